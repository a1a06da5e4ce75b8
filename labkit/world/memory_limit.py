"""A limit on the memory of a rank, kept by the operating system.

Two things ask for one: the option `memory_limit=` of a launch (bytes a rank), and the environment variable
`LABKIT_MAX_MEMORY` of a shared machine (what the ranks of one world may hold together, as `4GB`, `512MiB` or plain
bytes; each rank gets an equal share). The smaller of the two holds.

What is limited: the private writable memory that a rank adds to what it was born with (Linux, RLIMIT_DATA). That is
its tensors, Python objects, modules imported later, and 8 MiB of address space for the stack of each thread. What is
not: the interpreter and PyTorch, which all ranks share with the process they were forked from (a page of it that a
rank writes to becomes its own, uncounted); the status pages, and a result on its way home (max_result_bytes limits
it); files; the memory of a GPU. A process that a rank starts gets the same limit once more for itself.
It keeps a machine from being filled by mistake. It is no wall against somebody who means to climb it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from labkit.cost.units import GB, KB, MB, TB, GiB, KiB, MiB, TiB, format_bytes
from labkit.wire.errors import RefusedError

VARIABLE = "LABKIT_MAX_MEMORY"
LEAST = 128 * MiB  # connections of a rank and the modules of one training step take about 100 MiB
_UNITS = {"": 1, "B": 1, "kB": KB, "KB": KB, "MB": MB, "GB": GB, "TB": TB,
          "KiB": KiB, "MiB": MiB, "GiB": GiB, "TiB": TiB}  # fmt: skip
_M_MMAP_THRESHOLD = -3


@dataclass(frozen=True)
class Allowance:
    """What one rank may take, in bytes, and who says so."""

    nbytes: int
    source: str


def parse_bytes(text: str) -> int | None:
    """`4GB`, `1.5 GiB`, `512MiB` or `1000000` as bytes (GB = 10^9, GiB = 2^30); None for anything else."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text, re.ASCII)
    if found is None or found[2] not in _UNITS:
        return None
    return int(float(found[1]) * _UNITS[found[2]]) if "." in found[1] else int(found[1]) * _UNITS[found[2]]


def world_cap() -> int | None:
    """What the ranks of one world may hold together here, in bytes; None without a cap. Raises `RefusedError`."""
    text = os.environ.get(VARIABLE)
    if text is None:
        return None
    cap = parse_bytes(text)
    if not cap:
        raise RefusedError(
            f"{VARIABLE}={text!r} in the environment is no amount of memory: write 4GB, 512MiB or plain bytes"
        )
    return cap


def allowance(memory_limit: int | None, world_size: int) -> Allowance | None:
    """What each rank may take; None if nothing limits it. Raises `RefusedError` where no rank could live on it."""
    cap = world_cap()
    if cap is None and memory_limit is None:
        return None
    if sys.platform != "linux":
        raise RefusedError(f"memory_limit= and {VARIABLE} need Linux: this system cannot keep a rank to them")
    if memory_limit is not None and memory_limit < LEAST:
        raise RefusedError(f"memory_limit={memory_limit}: a rank needs at least {LEAST} bytes ({_amount(LEAST)})")
    if cap is not None and cap // world_size < LEAST:
        fit = cap // LEAST
        room = f"at most {fit} ranks fit" if fit else "not even one fits"
        raise RefusedError(
            f"world_size={world_size}: the ranks of a world may take {_amount(cap)} together here "
            f"({VARIABLE}), and each needs at least {_amount(LEAST)}: {room}"
        )
    if cap is None or (memory_limit is not None and memory_limit <= cap // world_size):
        assert memory_limit is not None
        return Allowance(memory_limit, f"memory_limit={memory_limit}")
    return Allowance(cap // world_size, f"{VARIABLE}={os.environ[VARIABLE]}, shared by {world_size} ranks")


@contextlib.contextmanager
def limited(allowed: Allowance | None) -> Iterator[None]:
    """Inside, this process may take no more than that above what it has now; allocations beyond it fail.

    The limit is lifted again outside, so that what failed can still be told.
    """
    if allowed is None:
        yield
        return
    _give_back_at_once()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = _data_bytes() + allowed.nbytes
    bounds = [x for x in (wanted, soft, hard) if x != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def is_shortage(error: BaseException | None) -> bool:
    """Whether an error says that memory was refused, as Python, PyTorch or the system put it."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            return True
        words = ("allocate memory", "bad_alloc", "can't start new thread")
        if isinstance(error, RuntimeError | ImportError) and any(w in str(error) for w in words):
            return True
        error = error.__cause__ or error.__context__
    return False


def remedy(allowed: Allowance) -> str:
    """Which limit it was, and what can be done."""
    own = allowed.source.startswith("memory_limit")
    other = "raise memory_limit=" if own else f"start fewer ranks, or ask for a higher {VARIABLE}"
    return (f"This rank may take {_amount(allowed.nbytes)} above what it was born with ({allowed.source}): "
            f"hold less on it at once, or {other}")  # fmt: skip


def _data_bytes() -> int:
    """Private writable memory of this process: what RLIMIT_DATA counts."""
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmData:"))


def _give_back_at_once() -> None:
    """Have the C library return freed tensors of 4 MiB and more to the system, so that what counts is what is held.

    By itself it keeps pieces of up to 32 MiB for later, which doubled the count of a loop over tensors of many sizes.
    """
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 4 * MiB)


def _amount(nbytes: int) -> str:
    return format_bytes(nbytes)
