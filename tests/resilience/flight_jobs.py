"""Jobs of plain PyTorch on gloo that stand still, each rank's flight recorder written when the test asks for it.

labkit writes down plain calls of torch.distributed, too, so its own status pages are there for the same run.
"""

from __future__ import annotations

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

from labkit import collectives
from labkit.resilience.diagnose import Verdict
from labkit.resilience.diagnose.dumping import dump_when_asked, dumped, stand_still, through

ODD = 2  # the rank that does otherwise


def program(group, change, folder):
    """Three steps of an all-reduce and a broadcast; in the second one rank ODD does otherwise."""
    dump_when_asked(group.rank, folder)
    # labkit says that a rank was lost, where PyTorch raises a RuntimeError that says nothing of the kind
    reduce = partial(collectives.all_reduce, group=group, algorithm="native") if change == "killed" else dist.all_reduce
    for n in range(3):
        odd = n == 1 and group.rank == ODD
        x = torch.ones(8)
        if odd:
            x = {"size": torch.ones(4), "dtype": x.int(), "half": x.half(), "double": x.double()}.get(change, x)
            if change == "absent":
                stand_still()
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
    dump_when_asked(group.rank, folder)
    pairs = [dist.new_group([0, 1], group_desc="left"), dist.new_group([2, 3], group_desc="right")]
    dist.all_reduce(torch.ones(2), group=pairs[group.rank // 2])
    if group.rank == 3:
        stand_still()
    dist.all_reduce(torch.ones(2), group=pairs[group.rank // 2])
    dist.all_reduce(torch.ones(8))


def everything(group, change, folder):
    """Calls that gloo writes down, under their name or another one, and calls that it does not."""
    dump_when_asked(group.rank, folder)
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
    dump_when_asked(group.rank, folder)
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
    dump_when_asked(group.rank, folder)
    alone = [dist.new_group([r], group_desc="alone") for r in range(group.size)][group.rank]
    dist.all_reduce(torch.ones(8))
    for _ in range(2100):
        alone.allreduce([torch.ones(1)]).wait()  # not through labkit, which would measure each one
    if change == "known":
        dist.all_reduce(torch.ones(8))
    if group.rank == 1:
        stand_still()
    dist.all_reduce(torch.ones(8))


def stood(folder: Path, change: str, fn=program, size: int = 4, ends=False) -> tuple[Verdict, dict[int, str]]:
    """`dumped` for these programs, which ODD and `change` spoil."""
    return dumped(folder, fn, size, change, str(folder), ends=ends)


# -- what is made of the dumps -------------------------------------------------------------------------------------


def said(verdict):
    return verdict.kind, verdict.suspects, verdict.exact


def changed(path: Path, change) -> None:
    """Write a dump again after `change(what it holds)`."""
    dump = pickle.loads(path.read_bytes())
    change(dump)
    path.write_bytes(pickle.dumps(dump, protocol=2))


cloudpickle.register_pickle_by_value(sys.modules[__name__])
