"""Faults struck from outside: a rank that comes to the place of one asks, and is killed, stopped, or told to go on."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from labkit.wire.faults import Fault
from labkit.wire.recording import record as rec

from .life import RankProcess


class FaultInjector:
    """The faults of one job, by number, those injected later included. `tell(rank, text)` reports an event."""

    def __init__(self, faults: Sequence[Fault], pages: Sequence[rec.Page], lives: Sequence[RankProcess],
                 tell: Callable[[int, str], None]):  # fmt: skip
        self.faults: dict[int, Fault] = dict(enumerate(faults))
        self.pages, self.lives, self.tell = pages, lives, tell
        self.fired: set[int] = set()
        self.injected: dict[int, dict[int, Fault]] = {}

    def due(self, rank: int) -> dict[int, Fault]:
        """What may still strike this rank."""
        return {n: f for n, f in self.faults.items() if f.rank == rank and n not in self.fired}

    def unfired(self) -> list[str]:
        """The faults that never came about, as text."""
        return [str(self.faults[n]) for n in self.faults if n not in self.fired]

    def strike(self, life: RankProcess, number: int) -> None:
        """A rank has come to the place of a fault: strike it, once in the job."""
        more = self.injected.pop(life.rank, {})
        if number < 0 or number in self.fired:
            life.tell(("go", False, more))
            return
        fault = self.faults[number]
        self.fired.add(number)
        self.tell(life.rank, f"fault: {type(fault).__name__} {fault.where()}")
        if fault.signal:
            life.signal(fault.signal)
        if fault.signal != signal.SIGKILL:  # one that is stopped reads it on the day when it is continued
            life.tell(("go", not fault.signal, more))

    def inject(self, fault: Fault) -> None:
        """A fault into the running job."""
        number = len(self.faults)
        self.faults[number] = fault
        if fault.immediate and fault.signal:
            self.fired.add(number)
            self.tell(fault.rank, f"fault: {type(fault).__name__} at once")
            self.lives[fault.rank].signal(fault.signal)
            return
        self.injected.setdefault(fault.rank, {})[number] = fault
        self.pages[fault.rank].fault = 1
