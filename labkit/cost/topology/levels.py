"""A machine as data: levels from the inside out, each with its wires, and what can be asked of them.

A level says how many parts one unit of it holds (GPUs, or units of the level inside it), and what joins those parts: a
node holds 8 GPUs joined by NVLink, a segment 128 nodes joined by their network cards. GPUs are numbered so that
neighbours share as much as they can: GPU r is in unit r // capacity of each level.

Two bandwidths matter. `bandwidth` is what a GPU reaches that sends alone: its own port. `share` is what is left for
each GPU when all of them send to other parts at once: the port over the oversubscription of the switches above.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from labkit.cost.links.wires import Wire
from labkit.cost.refuse import not_negative, one_of, positive, whole


@dataclass(frozen=True)
class Level:
    """What joins the parts of one unit.

    name: of the unit ("node"). holds: parts in it. bandwidth: bytes per second, one direction, from a GPU to a GPU of
    another part while nobody else sends. latency: seconds of an empty message on that way. oversubscription: the ports
    of a part's GPUs over what leaves the part, 2.8 for "1 : 2.8"; counted from the GPU, so over all switches on the
    way. source: where the numbers come from. assumed: which of them no source gives.
    """

    name: str
    holds: int
    bandwidth: float
    latency: float
    oversubscription: float = 1.0
    source: str = ""
    assumed: str = ""

    def __post_init__(self) -> None:
        whole(holds=self.holds)
        positive(bandwidth=self.bandwidth, oversubscription=self.oversubscription)
        not_negative(latency=self.latency)
        if self.oversubscription < 1:
            raise ValueError(
                f"oversubscription of a {self.name} must be at least 1, not {self.oversubscription!r}: a network with "
                "room to spare is no faster than the GPUs' ports"
            )

    @property
    def share(self) -> float:
        """Bytes per second for each GPU, one direction, when all send to other parts at once."""
        return self.bandwidth / self.oversubscription


@dataclass(frozen=True)
class Topology:
    """A machine: its levels, innermost first. notes: what its source leaves open or says twice.

    Raises ValueError for no levels, two of one name, or one that is faster than a level inside it.
    """

    name: str
    levels: tuple[Level, ...]
    notes: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not self.levels:
            raise ValueError(f"{self.name} needs a level or more: what joins its GPUs?")
        names = [level.name for level in self.levels]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"{self.name} has two levels called {twice[0]!r}: names must differ")
        for inner, outer in zip(self.levels, self.levels[1:], strict=False):
            if outer.latency < inner.latency or outer.bandwidth > inner.bandwidth or outer.share > inner.share:
                raise ValueError(
                    f"{outer.name!r} is faster than {inner.name!r}, which it holds: levels go from the inside out, "
                    "latencies do not fall and bandwidths do not rise on the way"
                )

    # -- sizes -----------------------------------------------------------------------------------------------------

    @property
    def gpus(self) -> int:
        """GPUs of the whole machine."""
        return math.prod(level.holds for level in self.levels)

    def index(self, level: str) -> int:
        """The place of a level by its name, 0 for the innermost."""
        one_of([known.name for known in self.levels], level=level)
        return next(i for i, known in enumerate(self.levels) if known.name == level)

    def level(self, name: str) -> Level:
        """The level of this name."""
        return self.levels[self.index(name)]

    def capacity(self, level: str) -> int:
        """GPUs in one unit of a level."""
        return self.capacities[self.index(level)]

    @property
    def capacities(self) -> tuple[int, ...]:
        """GPUs in one unit of each level, innermost first."""
        return tuple(math.prod(one.holds for one in self.levels[: i + 1]) for i in range(len(self.levels)))

    def units(self, level: str) -> int:
        """How many units of a level the machine has."""
        return self.gpus // self.capacity(level)

    def unit_of(self, rank: int, level: str) -> int:
        """The unit of a level that GPU `rank` is in."""
        self._check(rank)
        return rank // self.capacity(level)

    # -- two GPUs, or several --------------------------------------------------------------------------------------

    def crossing(self, ranks: Iterable[int]) -> Level:
        """The innermost level that has all of `ranks` in one unit: its wires are the slowest that they need."""
        several = set(ranks)
        for rank in several:
            self._check(rank)
        if len(several) < 2:
            raise ValueError(f"two different ranks or more are needed to cross a wire, not {sorted(several)}")
        low, high = min(several), max(several)  # units are stretches of ranks: the ends decide
        return next(one for one, c in zip(self.levels, self.capacities, strict=True) if low // c == high // c)

    def bandwidth(self, a: int, b: int, *, busy: bool = False) -> float:
        """Bytes per second from GPU a to GPU b, one direction; busy: while all others send as far."""
        level = self.crossing((a, b))
        return level.share if busy else level.bandwidth

    def latency(self, a: int, b: int) -> float:
        """Seconds of an empty message from GPU a to GPU b."""
        return self.crossing((a, b)).latency

    def message_seconds(self, a: int, b: int, nbytes: float, *, busy: bool = False) -> float:
        """Seconds of one message of `nbytes` from GPU a to GPU b."""
        return self.wire(self.crossing((a, b)).name, busy=busy).seconds(nbytes)

    def wire(self, level: str, *, busy: bool = False) -> Wire:
        """A level's link as a `Wire`, for everything that reckons with one."""
        one = self.level(level)
        return Wire(one.name, one.share if busy else one.bandwidth, one.latency)

    def tiers(self, base: str | None = None) -> dict[str, float]:
        """Latency of each level over that of level `base` (the innermost, if not given)."""
        unit = (self.levels[0] if base is None else self.level(base)).latency
        positive(**{"latency of the base level": unit})
        return {one.name: one.latency / unit for one in self.levels}

    def tier(self, a: int, b: int, base: str | None = None) -> float:
        """Latency between two GPUs over that of level `base`."""
        return self.tiers(base)[self.crossing((a, b)).name]

    # -- all at once -----------------------------------------------------------------------------------------------

    def bisection(self, level: str | None = None) -> float:
        """Bytes per second, one direction, between the two halves of one unit of a level (the whole machine).

        Half of the parts, all their GPUs, each with its share. Where the number of parts is odd, the smaller half.
        """
        i = len(self.levels) - 1 if level is None else self.index(level)
        one = self.levels[i]
        return one.holds // 2 * (self.capacities[i] // one.holds) * one.share

    def rows(self) -> list[dict[str, object]]:
        """The levels as a table, outermost first: counts, bytes per second of a GPU, seconds."""
        tiers = self.tiers() if self.levels[0].latency else {}
        return [
            {
                "level": one.name, "units": self.units(one.name), "holds": one.holds,
                "GPUs": self.capacity(one.name), "alone": one.bandwidth, "all at once": one.share,
                "oversubscription": one.oversubscription, "latency": one.latency, "tier": tiers.get(one.name),
                "source": one.source or None, "assumed": one.assumed or None,
            }
            for one in reversed(self.levels)
        ]  # fmt: skip

    def _check(self, rank: int) -> None:
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < self.gpus:
            raise ValueError(f"rank must be a GPU of {self.name}, 0 to {self.gpus - 1}, not {rank!r}")
