"""The job of `diaries` under labkit's FT-HSDP, under torchft, and alone. Each starts when made; `close` ends it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.resilience.ft_hsdp import FtConfig

from .diaries import Watched, read
from .side_by_side import Broken

ENDLESS = 10**6  # steps: every job is ended from outside
PROGRAM = ("-m", f"{__package__}.torchft_process")


@dataclass(frozen=True)
class Torchft:
    """How torchft is used. ddp: through its DistributedDataParallel, else through `Manager.allreduce`.

    And its time-outs; what is left out is its own default. lighthouse: milliseconds, arguments of LighthouseServer.
    gloo: seconds, of ProcessGroupGloo. manager: seconds, arguments of Manager.
    """

    ddp: bool = False
    lighthouse: dict[str, int] = field(default_factory=dict)
    gloo: float | None = None
    manager: dict[str, float] = field(default_factory=dict)


class LabkitJob:
    """FT-HSDP, with its supervisor and its quorum service."""

    def __init__(self, folder: Path, config: FtConfig, seconds: float):
        from labkit.resilience.supervising.run import start_ft_hsdp

        build = Watched(seconds, folder, skip=int(config.warm_up))
        self._run = start_ft_hsdp(config, build, ENDLESS, log_dir=folder / "audit")

    def look(self, struck: int | None) -> None:
        supervisor = self._run.supervisor
        for n, incident in enumerate(list(supervisor.incidents)):
            if n or incident.replica != struck:
                raise Broken(f"replica {incident.replica} {incident.cause}: {incident.why}")
        if supervisor.errors or self._run.job.over:
            raise Broken(next(iter(supervisor.errors), "the job ended"))

    def close(self) -> None:
        self._run.stop()


class Processes:
    """Replica groups as processes of their own: under torchft with its lighthouse, or each alone (how=None)."""

    def __init__(self, folder: Path, replicas: int, seconds: float, how: Torchft | None):
        self._folder, self._started = folder, 0
        self._common: dict[str, Any] = {"replicas": replicas, "seconds": seconds, "folder": str(folder), "role": "bare"}
        self._living: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}  # and what it says
        self._renewed = False
        with contextlib.ExitStack() as stack:
            stack.callback(self.close)
            if how is not None:
                port = self._begin("lighthouse", {"role": "lighthouse", "waits": how.lighthouse}, answers=True)
                self._common.update(role="replica", lighthouse=f"http://127.0.0.1:{port}", ddp=how.ddp, gloo=how.gloo,
                                    waits=how.manager)  # fmt: skip
            for replica in range(replicas):
                self._begin(str(replica), {**self._common, "replica": replica})
            stack.pop_all()

    def _begin(self, name: str, options: dict[str, Any], answers: bool = False) -> str:
        """Start a process; returns the first line that it prints if one is expected."""
        self._started += 1
        errors = self._folder / f"{name}-{self._started}.err"
        asked = json.dumps({**options, "parent": os.getpid()})
        with open(errors, "wb") as told:
            process = subprocess.Popen(
                [sys.executable, *PROGRAM, asked], stdin=subprocess.DEVNULL, stderr=told, env=_environment(),
                stdout=subprocess.PIPE if answers else told,
                start_new_session=True,  # Ctrl-C is for the benchmark, which ends them
            )  # fmt: skip
        self._living[name] = process, errors
        if not answers:
            return ""
        assert process.stdout is not None
        line = process.stdout.readline().decode().strip()
        if not line:
            process.wait()
            raise Broken(f"the {name} did not start: {_last(errors)}")
        return line

    def look(self, struck: int | None) -> None:
        for name, (process, errors) in list(self._living.items()):
            if process.poll() is None:
                continue
            if name == str(struck) and not self._renewed:
                self._renewed = True
                self._begin(name, {**self._common, "replica": struck})
                continue
            own = [life.error for life in read(self._folder) if life.pid == process.pid and life.error]
            why = own[0] if own else f"ended with code {process.returncode}: {_last(errors)}"
            raise Broken(f"{name if name == 'lighthouse' else f'replica {name}'}: {why}")

    def close(self) -> None:
        for process, _ in self._living.values():
            process.kill()
        for process, _ in self._living.values():
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _environment() -> dict[str, str]:
    """As here, and: the same modules are found, all messages stay on this host, nothing sets torchft's time-outs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TORCHFT_")}
    paths = dict.fromkeys([str(Path(__file__).resolve().parents[2]), *(p for p in sys.path if p)])
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "GLOO_SOCKET_IFNAME": loopback, "NO_PROXY": "*",
            "no_proxy": "*"}  # fmt: skip


def _last(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
