"""`labkit doctor`: what this machine can do, what it cannot, and why. Each line was tried, not guessed."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import time
from collections.abc import Callable

from labkit.cost.units import format_bytes, format_seconds

from .memory_limit import LEAST, world_cap
from .process import memory_available, processes_available
from .spec import rank_cap


def main(argv: list[str] | None = None) -> int:
    """Print the report; 0 if the book can run here."""
    good = True
    for name, check in CHECKS:
        try:
            ok, text = check()
        except Exception as why:
            ok, text = False, f"{type(why).__name__}: {why}"
        good &= ok
        print(f"{'ok  ' if ok else 'NO  '} {name}: {text}", flush=True)
    print("\nThe book runs here." if good else "\nSomething above needs mending before the book can run.")
    return 0 if good else 1


def _python() -> tuple[bool, str]:
    ok = sys.version_info >= (3, 11)
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    return ok, found + ("" if ok else "; 3.11 or later is needed")


def _system() -> tuple[bool, str]:
    if sys.platform == "linux":
        return True, "Linux, tested whole"
    if sys.platform == "darwin":
        return True, "macOS: gloo and local sockets over TCP; bytes of native collectives are not measured"
    return False, "use WSL2 on Windows (see README)"


def _room() -> tuple[bool, str]:
    free, pids = memory_available(), processes_available()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    text = f"{cores} cores, {format_bytes(free) if free else 'unknown'} of memory free"
    text += f", {pids} processes left" if pids is not None else ""
    return free is None or free > 1 << 30, text + ("" if free is None or free > 1 << 30 else "; 1 GB is the least")


def _caps() -> tuple[bool, str]:
    """What a shared machine allows a reader; a value that cannot be read is an error here as at a launch."""
    ranks, memory = rank_cap(), world_cap()
    found = [f"{ranks} ranks in one world (LABKIT_MAX_RANKS)"] if ranks is not None else []
    if memory is not None:
        fit = memory // LEAST
        found.append(f"{format_bytes(memory)} for the ranks of one world together (LABKIT_MAX_MEMORY), room for {fit}")
    enough = (ranks is None or ranks > 0) and (memory is None or memory >= LEAST)
    return enough, ("at most " + " and ".join(found)) if found else "none set"


def _torch() -> tuple[bool, str]:
    import torch

    gloo = torch.distributed.is_available() and torch.distributed.is_gloo_available()
    return gloo, f"{torch.__version__}, {'with' if gloo else 'without'} gloo"


def _gpu() -> tuple[bool, str]:
    import torch

    from .devices import gpu_count

    n = gpu_count()
    if n:
        return True, f"{n} with NCCL: worlds of up to {n} ranks use it by default"
    why = "PyTorch is a CPU build" if torch.version.cuda is None else "no NVIDIA GPU is visible"
    return True, f"none ({why}); everything runs over gloo and local sockets"


def _ranks(transport: str) -> Callable[[], tuple[bool, str]]:
    def check() -> tuple[bool, str]:
        import torch

        from labkit.collectives import all_reduce

        from .engine import launch, warm

        begin = time.perf_counter()
        warm()
        start = time.perf_counter()
        run = launch(lambda g: all_reduce(torch.full((1000,), float(g.rank)), g)[0].item(), 4, transport=transport)
        end = time.perf_counter()
        right = run.results == [6.0] * 4
        first = f"first start {format_seconds(start - begin)}, " if start - begin > 0.1 else ""
        took = f"{first}4 ranks and an all-reduce in {format_seconds(end - start)}"
        return right, took + ("" if right else f"; WRONG: {run.results}")

    return check


def _shm() -> tuple[bool, str]:
    return True, "nameless (memfd)" if hasattr(os, "memfd_create") else "nameless temporary files"


def _jupyter() -> tuple[bool, str]:
    from importlib.metadata import version

    names = ("jupyterlab", "ipywidgets", "plotly", "papermill", "nbval")
    return True, ", ".join(f"{n} {version(n)}" for n in names)


def _browser() -> tuple[bool, str]:
    found = next((b for b in ("chromium", "google-chrome", "firefox") if shutil.which(b)), None)
    return True, f"{found}" if found else "none here: `labkit lab` prints the address to open elsewhere"


CHECKS: list[tuple[str, Callable[[], tuple[bool, str]]]] = [
    ("Python", _python), ("System", _system), ("Room", _room), ("Caps", _caps), ("PyTorch", _torch), ("GPUs", _gpu),
    ("Shared memory", _shm), ("Ranks over gloo", _ranks("gloo")), ("Ranks over local sockets", _ranks("local")),
    ("Jupyter", _jupyter), ("Browser", _browser),
]  # fmt: skip
