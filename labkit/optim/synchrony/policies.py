"""BSP, SSP and ASP: when a worker that has finished c updates may have the weights for the next one.

    BSP()    when all have finished c; the gradients of one clock are averaged into one update   (Valiant 1990)
    SSP(s)   when the slowest has finished c - s; each gradient is an update, as it comes         (Ho et al. 2013)
    ASP()    at once; each gradient is an update, as it comes                                     (Recht et al. 2011)

A gradient that is an update of its own moves the weights by the whole learning rate. To move them in one clock of all N
workers as far as BSP does, give SSP and ASP the rate of BSP divided by N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from labkit.wire.errors import RefusedError


class Policy(Protocol):
    """together: the gradients of one clock are one update, their average, added in the order of the workers' ranks."""

    @property
    def together(self) -> bool: ...

    def waits(self, clock: int, slowest: int) -> bool:
        """Whether a pull of a worker at `clock` must wait while the slowest worker is at clock `slowest`."""
        ...


@dataclass(frozen=True)
class SSP:
    """Stale synchronous parallel: no worker is more than `s` clocks ahead of the slowest.

    SSP(0) waits as often as BSP does, but applies the gradients of a clock one after the other.
    """

    together: ClassVar[bool] = False

    s: int

    def __post_init__(self) -> None:
        if type(self.s) is not int or self.s < 0:
            raise RefusedError(f"SSP({self.s!r}): the staleness must be a whole number of clocks, 0 or more")

    def waits(self, clock: int, slowest: int) -> bool:
        return clock - slowest > self.s


@dataclass(frozen=True)
class BSP:
    """Bulk synchronous parallel: a barrier after each clock."""

    together: ClassVar[bool] = True

    def waits(self, clock: int, slowest: int) -> bool:
        return clock > slowest


@dataclass(frozen=True)
class ASP:
    """Asynchronous parallel: nobody waits, and nothing bounds the staleness."""

    together: ClassVar[bool] = False

    def waits(self, clock: int, slowest: int) -> bool:
        return False
