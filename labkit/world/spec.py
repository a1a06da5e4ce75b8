"""What a job is asked to be: the options of `start` and `launch`, checked before anything runs."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, field, fields
from typing import Any

from labkit.wire.errors import RefusedError
from labkit.wire.faults import Fault, check_faults
from labkit.wire.hostspeed import refuse_faster_links
from labkit.wire.network import Network
from labkit.wire.transports import kinds

from . import devices
from .devices import CPU, GPU, ON_CPU, Placement
from .memory_limit import allowance
from .process import memory_available, processes_available

RANK_BYTES = 40 << 20  # what one more rank takes at the least, for the check that a world can fit
_CHOICES = {
    "backend": ("auto", CPU, GPU),
    "transport": ("auto", *kinds()),
    "clock": ("real", "virtual"),
    "memory": (None, "resident", "peak"),
    "on_failure": ("raise", "return", "continue"),
}
_UNLISTED = [name for name, kind in kinds().items() if not kind.listed]


@dataclass
class Spec:
    """Options of a run.

    backend: "auto" (nccl where every rank has a GPU of its own, else gloo), "gloo" or "nccl" (ranks may share a GPU;
    where NCCL cannot, their tensors stay on it and messages go by way of host memory).
    transport: "auto" (the backend's own; with a virtual clock on CPUs "local": quicker, with the same times)
    or one of `labkit.wire.transports`. clock: "real" or "virtual".
    network: a `Network` of emulated links. faults: a list of faults. timeout: seconds, the longest single wait.
    deadline: seconds for the whole run. memory: None, "resident" (tensors alive) or "peak" (of the process).
    on_failure: "raise", "return" (a Run with failures) or "continue" (the other ranks go on).
    progress: True prints each training step as it begins; None says what is going on, in one line, when a run takes
    longer than two seconds and somebody looks; False says nothing.
    force: start more ranks than are sensible here. seed: of torch, numpy and random, the same on every rank.
    check: False switches the supervisor's checks for mismatch and deadlock off, to see what the bare library does.
    max_result_bytes: the largest result a rank may return.
    memory_limit: bytes that each rank may take above what it is born with, or None (Linux; see `memory_limit.py`).
    """

    world_size: int
    backend: str = "auto"
    transport: str = "auto"
    clock: str = "real"
    network: Network | None = None
    faults: list[Fault] = field(default_factory=list)
    timeout: float = 60.0
    deadline: float | None = None
    memory: str | None = None
    on_failure: str = "raise"
    progress: bool | None = None
    force: bool = False
    seed: int = 0
    check: bool = True
    max_result_bytes: int = 1 << 30
    memory_limit: int | None = None
    gpus: Placement = field(default=ON_CPU, init=False)  # no option: worked out from the backend and this machine

    @property
    def timed(self) -> bool:
        """Whether messages carry their sender's time."""
        return self.clock == "virtual" or self.network is not None

    @property
    def per_node(self) -> int:
        return self.network.per_node(self.world_size) if self.network else self.world_size


def make_spec(world_size: Any, options: dict[str, Any]) -> Spec:
    """The checked spec; raises `RefusedError` naming the value and the remedy."""
    known = {f.name for f in fields(Spec) if f.init} - {"world_size"}
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}" if near else ""
            raise RefusedError(f"launch has no option {name!r}{hint}. Options are: {', '.join(sorted(known))}")
    _whole("world_size", world_size, 1)
    spec = Spec(world_size, **{k: v for k, v in options.items() if k != "faults"})
    for name, choices in _CHOICES.items():
        value = getattr(spec, name)
        if value not in choices:
            told = [choice for choice in choices if choice not in _UNLISTED]
            raise RefusedError(f"{name}={value!r} is not one of {', '.join(map(repr, told))}")
    for name in ("timeout", "deadline"):
        value = getattr(spec, name)
        if value is None and name == "deadline":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10**7:
            raise RefusedError(f"{name}={value!r}: needs a number of seconds above 0")
    for name in ("check", "force", "progress"):
        value = getattr(spec, name)
        if not isinstance(value, bool) and not (name == "progress" and value is None):
            raise RefusedError(f"{name}={value!r}: needs True or False")
    _whole("seed", spec.seed, 0, 2**63)
    _whole("max_result_bytes", spec.max_result_bytes, 1)
    if spec.memory_limit is not None:
        _whole("memory_limit", spec.memory_limit, 1, 2**60)
    if spec.network is not None:
        if not isinstance(spec.network, Network):
            raise RefusedError(f"network={spec.network!r}: needs a labkit.Network")
        spec.network.per_node(world_size)
        if spec.clock == "real":
            refuse_faster_links(spec.network)
    spec.faults = check_faults(options.get("faults"), world_size)
    _resolve_backend(spec)
    _check_room(world_size)
    allowance(spec.memory_limit, world_size)
    return spec


def _whole(name: str, value: Any, least: int, below: float = float("inf")) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RefusedError(f"{name}={value!r}: needs a whole number of at least {least}")
    if value >= below:
        raise RefusedError(f"{name}={value!r}: needs a whole number below {below}")


def _resolve_backend(spec: Spec) -> None:
    """Fill in what "auto" stands for, and which rank has which GPU."""
    gpus = devices.gpu_count()
    kind = kinds().get(spec.transport)
    for_gpus = kind is not None and kind.device == "cuda"
    if (for_gpus or spec.backend == GPU) and gpus == 0:
        raise RefusedError(
            "nccl needs an NVIDIA GPU and a CUDA build of PyTorch, and this machine has none: "
            "use backend='gloo' (`labkit doctor` says more)"
        )
    if for_gpus and spec.backend == CPU:
        raise RefusedError(f"transport={spec.transport!r} needs backend={GPU!r} or 'auto'")
    if spec.backend == "auto":
        spec.backend = GPU if gpus >= spec.world_size and (kind is None or for_gpus) else CPU
    if spec.backend == GPU:
        spec.gpus = devices.place(spec.world_size, gpus, devices.nccl_version())
        spec.backend = spec.gpus.backend  # gloo, by way of host memory, where NCCL does not let ranks share a GPU
        if for_gpus and spec.backend == CPU:
            raise RefusedError(
                f"transport={spec.transport!r} with {spec.world_size} ranks on {gpus} GPUs: this NCCL does not let "
                "ranks share a GPU; leave transport out, and messages go by way of host memory"
            )
    if spec.transport == "auto":
        own = spec.backend
        spec.transport = own if kinds()[own].carries_time or not spec.timed else CPU
        if own == CPU and spec.clock == "virtual":  # no wall time is asked for: take what is quickest here
            spec.transport = "local"
    if spec.timed and not kinds()[spec.transport].carries_time:
        raise RefusedError(
            f"transport={spec.transport!r} cannot carry the times of a virtual clock or of emulated links: "
            "leave transport out, and messages go by way of host memory"
        )


def rank_cap() -> int | None:
    """How many ranks a reader may start in one world here (LABKIT_MAX_RANKS); None without a cap."""
    cap = os.environ.get("LABKIT_MAX_RANKS")
    if cap is not None and not cap.isdecimal():
        raise RefusedError(f"LABKIT_MAX_RANKS={cap!r} in the environment is no whole number")
    return None if cap is None else int(cap)


def sensible_ranks() -> int:
    """How many ranks start here unasked: 32 for each core, and half of the memory that is free, but never below 64."""
    free = memory_available()
    by_memory = free // 2 // RANK_BYTES if free is not None else 1 << 30
    return max(64, min(32 * _cores(), by_memory))


def needs(world_size: int) -> str:
    """What a world will take of this machine, in words."""
    memory = f"about {world_size * RANK_BYTES / 1e9:.1f} GB of memory at the least"
    return f"{world_size} ranks need {memory}, and {world_size} processes take turns on {_cores()} cores"


def refuse_many(spec: Spec) -> None:
    """Raises RefusedError for more ranks than are sensible here, unless spec.force says that they are wanted."""
    most = sensible_ranks()
    if spec.world_size > most and not spec.force:
        raise RefusedError(
            f"world_size={spec.world_size}: {needs(spec.world_size)}. Up to {most} start here without being "
            "asked for; take fewer, or say force=True and expect to wait for them"
        )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_room(world_size: int) -> None:
    cap = rank_cap()
    if cap is not None and world_size > cap:
        raise RefusedError(
            f"world_size={world_size}: this machine allows at most {cap} ranks a reader (LABKIT_MAX_RANKS)"
        )
    free = memory_available()
    if free is not None and world_size * RANK_BYTES > free:
        need = world_size * RANK_BYTES / 1e9
        raise RefusedError(
            f"world_size={world_size} needs about {need:.1f} GB and {free / 1e9:.1f} GB are free: "
            f"at most {free // RANK_BYTES} ranks fit here"
        )
    room = processes_available()
    if room is not None and world_size + 4 > room:
        raise RefusedError(f"world_size={world_size}: this container may start only {room} more processes")
