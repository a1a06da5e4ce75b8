"""A JupyterLab server on a temporary folder, and Chromium in front of it.

page = lab.open("forms.ipynb", notebook)   # waits until the kernel is there
lab.run_all(page)                          # waits until nothing runs any more
lab.check_axe(page)                        # fails with what axe-core finds in the outputs
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from labkit.commands.environment import jupyter_environment

WAIT = int(os.environ.get("LABKIT_BROWSER_WAIT", 90_000))  # milliseconds; a loaded machine of two cores needs them
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"checkForUpdates": False, "fetchNews": "false"},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}
IDLE = """async () => {
  await window.jupyterapp.restored;
  const context = window.jupyterapp.shell.currentWidget?.context;
  if (!context) return "not there yet";
  await context.ready; await context.sessionContext.ready;
  return context.sessionContext.session?.kernel?.status === "idle" || context.sessionContext.session?.kernel?.status;
}"""


def missing() -> str:
    """Why no browser test can run here; empty if one can."""
    if not browser():
        return f"no Chromium here: looked for LABKIT_CHROMIUM and {', '.join(BROWSERS)}"
    try:
        import axe_playwright_python  # noqa: F401
        import playwright  # noqa: F401
    except ImportError as why:
        return f"{why}: install the test extras"
    return ""


def browser() -> str:
    """The path of a Chromium; empty if there is none."""
    found = (shutil.which(name) for name in (os.environ.get("LABKIT_CHROMIUM") or "chromium", *BROWSERS))
    return next((path for path in found if path), "")


class Lab:
    """One server and one browser, for all tests of a session."""

    def __init__(self, folder: Path, url: str, token: str, chromium: Any) -> None:
        self.folder, self.url, self.token, self.chromium = folder, url, token, chromium

    def open(self, name: str, notebook: NotebookNode | Sequence[str] | None = None, *, dark: bool = False,
             width: int = 1000, height: int = 900, watch: Callable[[Any], object] | None = None,
             **context: Any) -> Any:  # fmt: skip
        """A page with notebook `name`, written first if it is given (a notebook, or the sources of its cells).

        watch: called with the page before it loads anything.
        """
        if notebook is not None:
            if not isinstance(notebook, NotebookNode):
                cells = [nbformat.v4.new_code_cell(source, id=f"cell-{i}") for i, source in enumerate(notebook)]
                notebook = nbformat.v4.new_notebook(cells=cells)
            notebook.metadata.setdefault("kernelspec", {"name": "python3", "display_name": "Python 3"})
            nbformat.write(notebook, self.folder / name)
        page = self.chromium.new_page(viewport={"width": width, "height": height}, **context)
        page.set_default_timeout(WAIT)
        if watch:
            watch(page)
        page.goto(f"{self.url}/lab/tree/{name}?token={self.token}&reset")
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        self.wait_idle(page)
        self.set_theme(page, "JupyterLab Dark" if dark else "JupyterLab Light")
        return page

    def set_theme(self, page: Any, theme: str) -> None:
        """Until the page has the theme; the server remembers that of the page before."""
        light = str(theme == "JupyterLab Light").lower()
        end = time.monotonic() + WAIT / 1000
        while (shown := page.evaluate("document.body.dataset.jpThemeLight")) != light:
            assert time.monotonic() < end, f"{theme} does not come: jpThemeLight is {shown}"
            page.evaluate("(theme) => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
            page.wait_for_timeout(500)  # asked too early, it is forgotten

    def wait_idle(self, page: Any) -> None:
        """Until the kernel of the notebook has nothing to do."""
        page.wait_for_selector(".jp-Notebook .jp-Cell")
        end = time.monotonic() + WAIT / 1000
        while (status := page.evaluate(IDLE)) is not True:
            assert time.monotonic() < end, f"the kernel is {status} after {WAIT / 1000:.0f} s"
            page.wait_for_timeout(100)

    def run_all(self, page: Any) -> None:
        """Run all cells, as the menu does; until each has its number or one has failed."""
        page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")
        page.wait_for_timeout(300)
        page.wait_for_function(
            """() => ![...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]
            .some((prompt) => prompt.textContent.includes('*'))"""
        )
        self.wait_idle(page)

    def errors(self, page: Any) -> list[str]:
        """The texts of error outputs."""
        return page.locator('.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"], .jp-RenderedText[data-mime-type="application/vnd.jupyter.error"]').all_inner_texts()  # fmt: skip  # noqa: E501

    def check_axe(self, page: Any, selector: str = ".jp-OutputArea-output", *, excluded: Sequence[str] = (),
                  impacts: Sequence[str] = ()) -> None:  # fmt: skip
        """Fail with the findings of axe-core (WCAG 2.2 A and AA) inside the elements of `selector`.

        excluded: selectors of what is not looked at. impacts: such as "serious"; all of them when empty.
        """
        from axe_playwright_python.sync_playwright import Axe

        assert page.locator(selector).count(), f"nothing matches {selector}"
        # JupyterLab's body has no height and clips: axe-core would take all inside for unseen, and look at no colour.
        page.evaluate("document.body.style.overflow = 'visible'")
        rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
        options = {"runOnly": rules, "rules": {"region": {"enabled": False}}}
        where = {"include": [[selector]], "exclude": [[one] for one in excluded]}
        found = Axe().run(page, context=where, options=options).response["violations"]
        found = [v for v in found if not impacts or v["impact"] in impacts]
        told = [(v["id"], v["help"], [(n["target"], n["failureSummary"]) for n in v["nodes"]][:3]) for v in found]
        assert not told, json.dumps(told, indent=1)


@contextlib.contextmanager
def browsing() -> Iterator[Any]:
    """A Chromium, until the block ends."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        chromium = playwright.chromium.launch(executable_path=browser(), args=arguments)
        try:
            yield chromium
        finally:
            chromium.close()


@contextlib.contextmanager
def running(folder: Path, chromium: Any, *, copies: bool = False) -> Iterator[Lab]:
    """A server on `folder` in front of a browser, until the block ends.

    copies: start it as a reader does, with `labkit lab`, on copies of all chapters and under labkit's own settings.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token, files, settings = "browser-test", folder / "files", folder / "settings"
    settings.mkdir()
    environment = dict(os.environ) if copies else jupyter_environment(os.environ)
    for name in ("LABKIT_HEADLESS", "PYTEST_CURRENT_TEST"):
        environment.pop(name, None)
    for name in ("CONFIG", "DATA", "RUNTIME"):
        environment[f"JUPYTER_{name}_DIR"] = str(folder / name.lower())
    places = {"JUPYTERLAB_SETTINGS_DIR": settings / "user", "JUPYTERLAB_WORKSPACES_DIR": folder / "workspaces"}
    places |= {"XDG_DATA_HOME": folder / "share", "LABKIT_HOME": folder / "labkit"}  # of the reader's progress
    environment |= {name: str(place) for name, place in places.items()}
    environment.setdefault("LABKIT_SLOW_MACHINE", "10")  # checks of exercises give a loaded machine more time
    if copies:
        environment["JUPYTER_TOKEN"] = token
        (folder / "config").mkdir()
        opened = {"LabApp": {"expose_app_in_browser": True}, "ServerApp": {"port_retries": 0}}
        (folder / "config" / "jupyter_lab_config.json").write_text(json.dumps(opened))
        command = [
            sys.executable,
            "-m",
            "labkit.cli",
            "lab",
            "0",
            "--no-browser",
            f"--port={port}",
            "--folder",
            f"{files}",
        ]
    else:
        files.mkdir()
        for plugin, values in SETTINGS.items():
            package, _, file = plugin.partition(":")
            place = settings / "user" / package
            place.mkdir(parents=True)
            (place / f"{file}.jupyterlab-settings").write_text(json.dumps(values))
        command = [
            *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"),
            *(f"--ServerApp.root_dir={files}", f"--IdentityProvider.token={token}", "--ServerApp.port_retries=0"),
            *("--LabApp.expose_app_in_browser=True", "--log-level=WARN"),
        ]
    url = f"http://127.0.0.1:{port}"
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)
        try:
            wait_for_server(server, f"{url}/api/status?token={token}", folder / "server.log")
            yield Lab(files, url, token, chromium)
        finally:
            server.terminate()  # ends its kernels, too
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def wait_for_server(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    """Until the server answers; fails with its log if it does not."""
    end = time.monotonic() + WAIT / 1000
    while True:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except OSError:
            told = log.read_text(errors="replace")[-2000:]
            assert server.poll() is None, f"JupyterLab has ended:\n{told}"
            assert time.monotonic() < end, f"JupyterLab does not answer after {WAIT / 1000:.0f} s:\n{told}"
            time.sleep(0.2)
