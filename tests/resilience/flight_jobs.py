"""Jobs of plain PyTorch on gloo that stand still, each rank's flight recorder written when the test asks for it.

labkit writes down plain calls of torch.distributed, too, so its own status pages are there for the same run.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import os
import pickle
import signal
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import cloudpickle
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.config_manager import JobConfig
from torch.distributed.flight_recorder.components.loader import read_dump

import labkit
from labkit import collectives
from labkit.resilience.diagnose import Detector, Verdict

ODD = 2  # the rank that does otherwise
NOW = "now"  # the file whose being there asks all ranks for their dumps


def write_when_asked(rank: int, folder: Path) -> None:
    """On a thread that Python does not list, so that no diagnosis takes it for one that may still act."""

    def wait() -> None:
        while not (folder / NOW).exists():
            time.sleep(0.02)
        for there, data in (("pickle", c10d._dump_fr_trace()), ("json", c10d._dump_fr_trace_json())):
            path = folder / there / f"trace_{rank}"
            path.with_suffix(".part").write_bytes(data if isinstance(data, bytes) else data.encode())
            path.with_suffix(".part").rename(path)

    _thread.start_new_thread(wait, ())


def forever() -> None:
    while True:
        time.sleep(0.1)


def through(rank: int, folder: str) -> None:
    (Path(folder) / f"through {rank}").touch()
    forever()


def program(group, change, folder):
    """Three steps of an all-reduce and a broadcast; in the second one rank ODD does otherwise."""
    write_when_asked(group.rank, Path(folder))
    # labkit says that a rank was lost, where PyTorch raises a RuntimeError that says nothing of the kind
    reduce = partial(collectives.all_reduce, group=group, algorithm="native") if change == "killed" else dist.all_reduce
    for n in range(3):
        odd = n == 1 and group.rank == ODD
        x = torch.ones(8)
        if odd:
            x = {"size": torch.ones(4), "dtype": x.int(), "half": x.half(), "double": x.double()}.get(change, x)
            if change == "absent":
                forever()
            if change == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
        if odd and change == "collective":
            dist.broadcast(x, 0)
        elif not (odd and change == "skip"):
            reduce(x)
        dist.broadcast(torch.ones(5), 0)
    through(group.rank, folder)


def two_groups(group, change, folder):
    """Pairs of ranks that reduce on their own: rank 3 does not come to its pair, and everybody else goes on."""
    write_when_asked(group.rank, Path(folder))
    pairs = [dist.new_group([0, 1], group_desc="left"), dist.new_group([2, 3], group_desc="right")]
    dist.all_reduce(torch.ones(2), group=pairs[group.rank // 2])
    if group.rank == 3:
        forever()
    dist.all_reduce(torch.ones(2), group=pairs[group.rank // 2])
    dist.all_reduce(torch.ones(8))


def everything(group, change, folder):
    """Calls that gloo writes down, under their name or another one, and calls that it does not."""
    write_when_asked(group.rank, Path(folder))
    x, peer = torch.ones(4), 1 - group.rank
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    dist.broadcast(x, 1)
    for act in (dist.send, dist.recv)[:: 1 if group.rank == 0 else -1]:
        act(x, peer)
    dist.reduce_scatter(torch.ones(2), [torch.ones(2), torch.ones(2)])
    dist.monitored_barrier()
    dist.new_group([0, 1], group_desc="both")
    dist.all_reduce(x)
    through(group.rank, folder)


def gives_up(group, change, folder):
    """gloo gives the first all-reduce of a group up, because rank ODD does not come, and the others catch that."""
    write_when_asked(group.rank, Path(folder))
    hasty = dist.new_group(list(range(group.size)), timeout=timedelta(seconds=0.5), group_desc="hasty")
    if group.rank != ODD:
        with contextlib.suppress(RuntimeError):
            dist.all_reduce(torch.ones(8), group=hasty)
        while not json.loads(c10d._dump_fr_trace_json())["entries"][-1]["retired"]:
            time.sleep(0.02)
    through(group.rank, folder)


def overflowing(group, change, folder):
    """More calls than the recorder keeps, in a group of each rank's own; then rank 1 does not come.

    change: "known" where it came to a call of all ranks afterwards, so that its dump still tells how far it is."""
    write_when_asked(group.rank, Path(folder))
    alone = [dist.new_group([r], group_desc="alone") for r in range(group.size)][group.rank]
    dist.all_reduce(torch.ones(8))
    for _ in range(2100):
        alone.allreduce([torch.ones(1)]).wait()  # not through labkit, which would measure each one
    if change == "known":
        dist.all_reduce(torch.ones(8))
    if group.rank == 1:
        forever()
    dist.all_reduce(torch.ones(8))


def stood(
    folder: Path, change: str, fn=program, size: int = 4, faults=(), ends=False
) -> tuple[Verdict, dict[int, str]]:
    """Run it until it stands still and leave the dumps in folder/pickle and folder/json; labkit's own verdict, and the
    ranks that died, and how. ends: every rank comes to its end."""
    for kind in ("pickle", "json"):
        (folder / kind).mkdir()
    job = labkit.start(fn, size, change, str(folder), transport="gloo", on_failure="continue", timeout=60)
    try:
        detector = Detector(job, 0.3)
        job._started.wait(10)
        if ends:
            _wait(folder / f"through {r}" for r in range(size))
        own = detector.now(silent=()) if ends else detector.wait(30, silent=())
        died = {f.rank: f.message.split()[-1] for f in detector.failures if f.kind == "died"}
        (folder / NOW).touch()
        _wait(folder / "json" / f"trace_{r}" for r in range(size) if r not in died)
        return own, died
    finally:
        job.stop()


def _wait(paths) -> None:
    paths, end = list(paths), time.monotonic() + 30
    while missing := [p.name for p in paths if not p.exists()]:
        assert time.monotonic() < end, f"no rank wrote {missing}"
        time.sleep(0.02)


# -- what is made of the dumps -------------------------------------------------------------------------------------


def said(verdict):
    return verdict.kind, verdict.suspects, verdict.exact


def analyzed(folder: Path, named: bool = True):
    """What PyTorch's analyzer says: (number, ranks that are missing, ranks that differ) of the calls that are not well.
    named: put the names into `pg_config` that gloo leaves out."""
    details = {p.name: read_dump("trace_", str(p)) for p in sorted(folder.iterdir())}
    for dump in details.values() if named else ():
        if list(dump["pg_config"]) == [""]:
            dump["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(len(details))))}}
    db = build_db(details, JobConfig().parse_args([str(folder)]), "2.10")
    return [
        (c.collective_seq_id, c.missing_ranks or set(), set(c.mismatch_collectives or ()))
        for c in db.collectives
        if c.missing_ranks or c.mismatch_collectives
    ]


def changed(path: Path, change) -> None:
    """Write a dump again after `change(what it holds)`."""
    dump = pickle.loads(path.read_bytes())
    change(dump)
    path.write_bytes(pickle.dumps(dump, protocol=2))


cloudpickle.register_pickle_by_value(sys.modules[__name__])
