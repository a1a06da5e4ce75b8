"""A fresh clone of this repository, with a home and an environment of its own, where a newcomer's commands are run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
import urllib.request
import uuid
from functools import cached_property
from pathlib import Path

import nbformat
import psutil

ROOT = Path(__file__).parents[2]
PRIVATE = ("LABKIT", "PYTEST", "PYTHON", "VIRTUAL_ENV", "COVERAGE", "XDG", "JUPYTER", "MAKE", "MFLAGS")
NO_NETWORK = {
    "PIP_NO_INDEX": "1",
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_FIND_LINKS": "",
    "PIP_INDEX_URL": "http://0.0.0.0",
}


class Failed(AssertionError):
    """A command did not do what the page says. The message has the end of what it printed."""


class Place:
    """The clone, once installed, and what the commands make in it. Everything it starts carries `mark` and is ended."""

    def __init__(self, root: Path) -> None:
        self.root, self.home = root, root / "home"
        self.home.mkdir()
        self.mark = uuid.uuid4().hex
        kept = {k: v for k, v in os.environ.items() if not k.startswith(PRIVATE)}
        self.environ = {**kept, "HOME": str(self.home), "NEWCOMER": self.mark, "BROWSER": "false"}
        self.system_path = self.environ["PATH"]

    @cached_property
    def clone(self) -> Path:
        """The clone, after `make install`; its programs come first on PATH from now on."""
        folder = self.root / "clone"
        self.run(f"git clone --quiet --no-hardlinks {ROOT} {folder}", self.root, 120)
        self.run("make install", folder, 1800)
        self.environ["PATH"] = f"{folder / '.venv/bin'}{os.pathsep}{self.system_path}"
        return folder

    @cached_property
    def wheels(self) -> Path:
        self.run("pip wheel . -c constraints.txt -w wheels", self.clone, 900)
        return self.clone / "wheels"

    @cached_property
    def bundle(self) -> Path:
        """class.zip with wheels. The stubs are not run again: `labkit release` did."""
        assert self.wheels.is_dir()
        self.run(
            "labkit release --no-run --bundle class.zip --wheels wheels", self.clone, 600, "installs without a network"
        )
        return self.clone / "class.zip"

    @cached_property
    def unpacked(self) -> Path:
        """The archive, unpacked elsewhere and installed without a network, by the system's own Python."""
        there = self.root / "student"
        there.mkdir()
        self.run(f"unzip -q {self.bundle}", there, 120)
        walled = subprocess.run(["unshare", "-rn", "true"], capture_output=True).returncode == 0
        first = "unshare -rn " if walled else ""  # where the system lets us, there is no network at all
        self.run(f"{first}python3 install.py", there / "class", 1200, "Installed", PATH=self.system_path, **NO_NETWORK)
        return there / "class"

    @cached_property
    def submissions(self) -> Path:
        """Ada hands in every exercise, solved by the solutions' own lines; Bob one stub as he got it."""
        folder = self.clone / "submissions"
        for path in sorted((self.clone / "exercises").glob("[0-9]*.ipynb")):
            (folder / "ada").mkdir(parents=True, exist_ok=True)
            nbformat.write(self.solved(path.name), folder / "ada" / path.name)
        (folder / "bob").mkdir()
        shutil.copy(self.clone / "exercises" / "03_collectives.ipynb", folder / "bob")
        return folder

    def solved(self, name: str) -> nbformat.NotebookNode:
        """The students' notebook with the answers of the solutions written into its answer cells."""
        source = nbformat.read(self.clone / "solutions" / name, 4)
        answers = {c.id: c.source for c in source.cells if c.metadata.get("labkit", {}).get("role") == "answer"}
        notebook = nbformat.read(self.clone / "exercises" / name, 4)
        for cell in notebook.cells:
            if cell.id in answers:
                lines = answers[cell.id].split("\n")
                cell.source = "\n".join(line for line in lines if "### " not in line)
        return notebook

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self, command: str, where: Path, seconds: float, says: str = "", **environ: str) -> str:
        """Run a line of shell and return what it printed. Raises Failed: its code, the time, or what it did not say."""
        process, log = self._start(command, where, environ)
        try:
            code: int | str = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = f"nothing: it was not over after {seconds} s"
        finally:
            self.end()
        said = log.read_text(errors="replace")
        if code != 0 or says not in said:
            raise Failed(f"`{command}` returned {code}, and {says!r} was to be read in:\n{said[-4000:]}")
        return said

    def served(self, command: str, where: Path, seconds: float) -> str:
        """Start a server, ask for the page whose address it prints, and interrupt it. Returns the page."""
        process, log = self._start(command, where, {})
        try:
            end = time.monotonic() + seconds
            while time.monotonic() < end and process.poll() is None:
                addresses = re.findall(r"http://(?:localhost|127\.0\.0\.1):\d+/\S+", log.read_text(errors="replace"))
                if addresses:
                    with urllib.request.urlopen(addresses[-1], timeout=60) as answer:
                        return answer.read().decode()
                time.sleep(0.5)
            raise Failed(f"`{command}` served no page in {seconds} s:\n{log.read_text(errors='replace')[-4000:]}")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)  # JupyterLab asks once more; ending it is up to us
                time.sleep(1)
            self.end()
            process.wait(20)

    def _start(self, command: str, where: Path, environ: dict[str, str]) -> tuple[subprocess.Popen[bytes], Path]:
        log = self.root / "log.txt"
        with log.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", command], cwd=where, env={**self.environ, **environ}, stdin=subprocess.DEVNULL,
                stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        return process, log

    def end(self) -> None:
        """Kill whatever this place started and is still there, known by its mark."""
        for process in psutil.process_iter():
            try:
                if process.environ().get("NEWCOMER") == self.mark:
                    process.kill()
            except psutil.Error:
                pass
