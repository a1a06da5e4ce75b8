"""The check-in inside a replica: all ranks of one incarnation find each other before it joins anything."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .errors import BadCall, WrongVersion


@dataclass
class Waiting:
    """One call of `register`. count: how many consecutive ranks it brings (an aggregator brings those of its host).

    code: the fingerprint of what it runs, "" if it does not say.
    """

    ticket: Any
    rank: int
    count: int
    data: dict[str, Any]
    until: float
    code: str = ""


@dataclass
class CheckIn:
    """Who of an incarnation has registered. complete: all have, and were told."""

    ranks: int = 0
    calls: dict[int, Waiting] = field(default_factory=dict)  # by first rank
    present: int = 0
    complete: bool = False

    def add(self, call: Waiting, ranks: int) -> Waiting | None:
        """Take one call; returns the call that it replaces, if its ranks were there. BadCall if it does not fit."""
        if self.ranks and ranks != self.ranks:
            raise BadCall(f"rank {call.rank} says its replica has {ranks} ranks, others said {self.ranks}")
        codes = {call.code, *(c.code for c in self.calls.values())} - {""}
        if len(codes) > 1:
            raise WrongVersion(f"ranks of one replica run different code: {', '.join(sorted(codes))}")
        old = self.calls.get(call.rank)
        if old is not None:
            self.remove(old)
        else:
            for other in self.calls.values() if call.count > 1 or self._blocks() else ():
                if call.rank < other.rank + other.count and other.rank < call.rank + call.count:
                    raise BadCall(f"rank {max(call.rank, other.rank)} has checked in from two hosts")
        self.ranks = ranks
        self.calls[call.rank] = call
        self.present += call.count
        return old

    def _blocks(self) -> bool:
        return self.present != len(self.calls)

    def remove(self, call: Waiting) -> None:
        """Forget a call that is withdrawn."""
        if self.calls.get(call.rank) is call:
            del self.calls[call.rank]
            self.present -= call.count
            if not self.calls:
                self.ranks = 0

    @property
    def full(self) -> bool:
        return self.ranks > 0 and self.present == self.ranks

    def missing(self) -> str:
        """Which ranks have not come, in words."""
        there = {r for c in self.calls.values() for r in range(c.rank, c.rank + c.count)}
        gone = [r for r in range(self.ranks) if r not in there]
        text = ", ".join(map(str, gone[:8])) + (", ..." if len(gone) > 8 else "")
        return f"rank{'s' if len(gone) != 1 else ''} {text} of {self.ranks}"

    def peers(self) -> list[dict[str, Any]]:
        """What each rank brought, in order."""
        return [c.data for _, c in sorted(self.calls.items()) for _ in range(c.count)]
