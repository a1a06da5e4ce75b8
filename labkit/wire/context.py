"""What a rank has, whatever group it speaks in: its place, its clock, its page, its wire, its faults."""

from __future__ import annotations

import functools
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from labkit.cost.collectives.links import Links
from labkit.wire.recording.record import MAIN_SLOT, Recorder

from . import accelerator
from .clock import Clock
from .device_clock import DeviceClock
from .network import Network, emulated_links
from .transports import FOREVER, Transport

LinkModel = Links  # of this machine, measured; `Context.links` has those of the run


class Collectives(Protocol):
    """What a group offers of the room above it, which every rank is given: the module `labkit.collectives`."""

    def barrier(self, group: Any) -> Any: ...

    def all_gather(self, x: torch.Tensor, group: Any, *, algorithm: str) -> Any: ...


class Settles(Protocol):
    """Work that goes on beside the reader's function, and is waited for when that ends."""

    def settle(self) -> None: ...


@dataclass
class Context:
    """One a process. `timeout` is the longest single wait, in seconds."""

    rank: int
    size: int
    recorder: Recorder
    clock: Clock
    transport: Transport
    collectives: Collectives
    timeout: float = 300.0
    backend: str = "gloo"
    device: torch.device = torch.device("cpu")
    network: Network | None = None
    ranks_per_node: int = 1
    link_model: LinkModel | None = None
    faults: Any = None
    sampler: Any = None  # measures resident memory where asked to
    check: bool = True
    socket_log: Any = None  # what native collectives sent, by connection
    natives: dict[tuple[int, ...], Any] = field(default_factory=dict)
    rebuilt: dict[Any, int] = field(default_factory=dict)  # how often, by members and their addresses
    local: threading.local = field(default_factory=threading.local)
    main: int = field(default_factory=threading.get_ident)  # the thread that runs the reader's function
    kept: dict[str, Any] = field(default_factory=dict)  # what functions of a kept world leave for the next ones
    streams: list[Settles] = field(default_factory=list)  # of all its groups

    def clock_here(self) -> Clock:
        """The clock of the calling thread: the run's own in the main thread, a stream's in its thread."""
        return getattr(self.local, "clock", self.clock)

    def slot_here(self) -> int:
        """The slot of the status page in which the calling thread says what it is blocked on."""
        slot = getattr(self.local, "slot", None)
        if slot is None:
            own = threading.get_ident() == self.main
            slot = self.local.slot = MAIN_SLOT if own else self.recorder.claim_slot()
        return slot

    @functools.cached_property
    def links(self) -> Links | None:
        """The links of this run, the same on every rank: those of the machine, or where they are slower the emulated.

        On the virtual clock the machine does not matter. None where nothing is known.
        """
        machine = None if self.clock.virtual else self.link_model
        if self.network is None:
            return machine
        return emulated_links(machine, self.network, self.ranks_per_node)

    @functools.cached_property
    def device_clock(self) -> DeviceClock | None:
        """What times spans and collectives on a GPU; None on a CPU, and where time is virtual."""
        device = accelerator.of(self.device)
        if device is None or self.clock.virtual:
            return None
        return DeviceClock(
            self.recorder, self.clock.now, lambda: device.synchronize(self.device), lambda: device.event(timing=True)
        )

    @property
    def charged(self) -> int:
        """How many stand-in kernels and collectives the calling thread is inside of: they say what time passes."""
        return getattr(self.local, "charged", 0)

    @charged.setter
    def charged(self, count: int) -> None:
        self.local.charged = count

    def limit(self) -> float:
        """Seconds that a wait of the calling thread may still take (`Messenger.within`); FOREVER if not limited."""
        until = getattr(self.local, "until", None)
        return FOREVER if until is None else max(0.0, until - time.monotonic())

    def settle(self) -> None:
        """Wait for the asynchronous collectives for which the reader's function did not: others still need them."""
        for stream in self.streams:
            stream.settle()

    def close_books(self, failed: bool = False) -> None:
        """Write down what is known only at the end of a run: times of the GPU, bytes of native collectives.

        failed: something went wrong; then nobody waits for a GPU, which may never be through.
        """
        if self.__dict__.get("device_clock") is not None:  # it was used
            self.__dict__["device_clock"].resolve(waiting=not failed)
        if self.socket_log is not None:
            self.socket_log.write()

    def enclosing(self) -> int:
        """The record of the collective or span that the calling thread is inside of, 0 for none."""
        return getattr(self.local, "parent", 0)
