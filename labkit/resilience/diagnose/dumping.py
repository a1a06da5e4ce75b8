"""A job of this process that is run until it stands still, and then has each rank's flight recorder of PyTorch written.

    verdict, died = dumped(folder, program, 6, ...)   # folder/pickle/trace_0, ..., folder/json/trace_0, ...
    from_pytorch(folder / "pickle", dead=died)        # labkit's verdict on these files
    analyzed(folder / "pickle")                       # what PyTorch's own analyzer says of them

Gloo writes no dump by itself, so a thread of each rank waits for the file NOW and writes one (`dumps` says what is in
it). labkit writes down plain calls of torch.distributed, too, so its own status pages are there for the same run.
"""

from __future__ import annotations

import _thread
import importlib
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from labkit.wire.errors import RefusedError
from labkit.world import start

from .detector import Detector
from .verdict import Verdict

NOW = "now"  # the file whose being there asks all ranks for their dumps
THROUGH = "through"  # with its rank behind it, the file of a rank that has come to the end of its program
QUIET, PATIENCE = 0.3, 30.0  # seconds without a record until everybody stands still; seconds for any one thing here

Call = tuple[int, set[int], set[int]]  # (number, ranks that are missing, ranks that differ)


def dump_when_asked(rank: int, folder: str | Path) -> None:
    """On a thread that Python does not list, so that no diagnosis takes it for one that may still act."""
    c10d: Any = importlib.import_module("torch._C._distributed_c10d")  # private, and without types

    def wait() -> None:
        await_files([Path(folder) / NOW], patience=float("inf"))
        for there, data in (("pickle", c10d._dump_fr_trace()), ("json", c10d._dump_fr_trace_json())):
            path = Path(folder) / there / f"trace_{rank}"
            path.with_suffix(".part").write_bytes(data if isinstance(data, bytes) else data.encode())
            path.with_suffix(".part").rename(path)

    _thread.start_new_thread(wait, ())


def stand_still() -> None:
    """Never return, as a rank whose data does not come."""
    while True:
        time.sleep(0.1)


def through(rank: int, folder: str | Path) -> None:
    """Say that this rank has come to the end of its program, and stay, so that its recorder can still be read."""
    (Path(folder) / f"{THROUGH} {rank}").touch()
    stand_still()


def dumped(
    folder: Path, fn: Callable[..., Any], size: int, *args: Any, ends: bool = False
) -> tuple[Verdict, dict[int, str]]:
    """Run `fn(group, *args)` on gloo until it stands still, and leave the dumps in folder/pickle and folder/json.

    fn calls `dump_when_asked` first. ends: every rank comes to its end instead, and says so by `through`. Returns
    labkit's own verdict on this run, and the ranks that died, and how. Raises RefusedError where a rank writes nothing
    within PATIENCE seconds.
    """
    for kind in ("pickle", "json"):
        (folder / kind).mkdir()
    job = start(fn, size, *args, transport="gloo", on_failure="continue", timeout=2 * PATIENCE)
    try:
        detector = Detector(job, QUIET)
        if ends:
            await_files(folder / f"{THROUGH} {r}" for r in range(size))
        own = detector.now(silent=()) if ends else detector.wait(PATIENCE, silent=())
        died = {f.rank: f.message.split()[-1] for f in detector.failures if f.kind == "died"}
        (folder / NOW).touch()
        await_files(folder / "json" / f"trace_{r}" for r in range(size) if r not in died)
        return own, died
    finally:
        job.stop()


def await_files(paths: Iterable[Path], patience: float = PATIENCE) -> None:
    """Wait until all of them are there. Raises RefusedError after `patience` seconds."""
    paths, end = list(paths), time.monotonic() + patience
    while missing := [p.name for p in paths if not p.exists()]:
        if time.monotonic() > end:
            raise RefusedError(f"no rank wrote {', '.join(missing)} within {patience:g} s")
        time.sleep(0.02)


def analyzed(folder: Path, named: bool = True) -> list[Call]:
    """What PyTorch's analyzer says of the calls that are not well, without what it prints.

    named: put the names into `pg_config` that gloo leaves out; without them it ends with a KeyError.
    """
    log = logging.getLogger("Flight Recorder")
    before, log.disabled = log.disabled, True
    try:
        from torch.distributed.flight_recorder.components.builder import build_db
        from torch.distributed.flight_recorder.components.config_manager import JobConfig
        from torch.distributed.flight_recorder.components.loader import read_dump

        details: dict[str, Any] = {p.name: read_dump("trace_", str(p)) for p in sorted(folder.iterdir())}
        for dump in details.values() if named else ():
            if list(dump["pg_config"]) == [""]:
                everyone = {"name": "0", "desc": "default_pg", "ranks": str(list(range(len(details))))}
                dump["pg_config"] = {"0": everyone}
        found = build_db(details, JobConfig().parse_args([str(folder)]), "2.10").collectives
    finally:
        log.disabled = before
    return [
        (c.collective_seq_id, c.missing_ranks or set(), set(c.mismatch_collectives or ()))
        for c in found
        if c.missing_ranks or c.mismatch_collectives
    ]
