"""Ranks at a barrier to which one of them does not come: what each one says, and where the missing one stands."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import labkit
from labkit import book
from labkit.resilience.diagnose.dumping import PATIENCE, await_files
from labkit.wire.errors import RefusedError

NAMED = re.compile(r"[Rr]anks? ([\d, ]+) failed to pass monitoredBarrier")


def ready(rank: int, folder: str) -> None:
    """From now on SIGUSR1 writes the stack of this rank's main thread into a file; gloo's own lines go there as well.

    faulthandler answers in the signal handler itself, in C, so the main thread need not come back to Python for it.
    """
    out = open(Path(folder) / f"stack_{rank}", "w")  # noqa: SIM115, it has to outlive this function
    faulthandler.register(signal.SIGUSR1, out, all_threads=False)
    os.dup2(os.open(Path(folder) / f"printed_{rank}", os.O_WRONLY | os.O_CREAT), 2)


def read_batch() -> bytes:
    """Wait for data from somebody who never writes any: a storage that does not answer."""
    return os.read(os.pipe()[0], 1)


@contextlib.contextmanager
def keep_error(rank: int, folder: str) -> Iterator[None]:
    """Write down what is raised, and end the process, as an error that nobody catches does. That closes its
    connections, and only then do those hear of it who wait for this rank."""
    try:
        yield
        text = "passed"
    except RuntimeError as why:
        text = str(why).splitlines()[0]
    part = Path(folder) / f"said_{rank}.part"
    part.write_text(text)
    part.rename(part.with_suffix(""))
    os._exit(0)


@dataclass(frozen=True)
class Stuck:
    """said: by rank, what the barrier raised. stack: of the frozen rank, innermost first, as (function, line)."""

    frozen: int
    said: dict[int, str]
    stack: list[tuple[str, str]]

    @property
    def named(self) -> list[int]:
        """The ranks that rank 0 names."""
        found = NAMED.search(self.said.get(0, ""))
        return [int(rank) for rank in found[1].replace(" ", "").split(",")] if found else []

    @property
    def table(self) -> book.Table:
        """What each rank says, those who say the same together."""
        alike: dict[str, list[int]] = {}
        for rank, text in self.said.items():
            alike.setdefault(re.sub(rf"(?i)\[?\brank {rank}\b\]?", "this rank", text), []).append(rank)
        rows = [{"ranks": ", ".join(map(str, ranks)), "say": text} for text, ranks in alike.items()]
        rows.append({"ranks": str(self.frozen), "say": "nothing"})
        return book.Table(rows, caption="A monitored barrier that one rank does not reach (measured)")

    def show(self) -> book.Table:
        """The stack of the rank that is missing, in print, and what all others say."""
        print(f"rank 0 names {self.named or 'nobody'}; missing is {[self.frozen]}")
        print(f"the stack of rank {self.frozen}, innermost first [measured]:")
        print(*(f"    {function}, {line}" for function, line in self.stack), sep="\n")
        return self.table


def watch(program: Callable[..., Any], size: int, frozen: int) -> Stuck:
    """Run `program(group, frozen, folder)` on gloo, gather what the ranks say, ask the frozen one for its stack."""
    if not 0 < frozen < size:
        raise RefusedError(f"watch(frozen={frozen!r}): take a rank from 1 to {size - 1}. Rank 0 names the "
                           "others, and without it nobody says anything until the group's own time-out")  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = labkit.start(program, size, frozen, name, transport="gloo", on_failure="continue", timeout=2 * PATIENCE)
        try:
            others = [rank for rank in range(size) if rank != frozen]
            await_files(folder / f"said_{rank}" for rank in others)
            said = {rank: (folder / f"said_{rank}").read_text() for rank in others}
            return Stuck(frozen, said, _stack(job.pids[frozen], folder / f"stack_{frozen}"))
        finally:
            job.stop()


def _stack(pid: int, path: Path) -> list[tuple[str, str]]:
    """The frames of the reader's program and above, of a process that has called `ready`."""
    os.kill(pid, signal.SIGUSR1)
    end = time.monotonic() + PATIENCE
    while "labkit/world/rank.py" not in (text := path.read_text()):  # the frame that called the program
        if time.monotonic() > end:
            raise RefusedError(f"process {pid} wrote no stack within {PATIENCE:g} s")
        time.sleep(0.02)
    frames = re.findall(r'File "(.+)", line (\d+) in (.+)', text)
    mine = frames[: next(n for n, frame in enumerate(frames) if "labkit/world/rank.py" in frame[0])]
    return [(function, f"line {line} of {_name(file)}") for file, line, function in mine]


def _name(file: str) -> str:
    name = Path(file).name
    return "the cell" if re.fullmatch(r"\d+\.py", name) else name
