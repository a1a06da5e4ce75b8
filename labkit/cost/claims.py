"""A number of a source beside our own: is it the same to the digits that the source gives?

A reproduction table is a list of `Claim`s. What a source says stays as it writes it ("0.985", "at most 3"), because its
digits say how exactly it is meant.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

__all__ = ["Claim", "agreement", "claim_rows"]

BOUNDS: dict[str, Callable[[float, float], bool]] = {
    "at most": operator.le, "below": operator.lt, "at least": operator.ge, "above": operator.gt
}  # fmt: skip


@dataclass(frozen=True)
class Claim:
    """What a source says, and what we find.

    said: "81", "0.985", "10 to 25", "at most 3" (or below, at least, above), or "" where the source says nothing.
    found: ours, in the same unit.

    error: of `found`, a standard error; 0 for a closed form. given: the number was put in, so it proves nothing.
    why: in words, why the two differ or what the number hangs on. Raises ValueError for anything else in `said`.
    """

    source: str
    what: str
    said: str
    found: float
    unit: str = ""
    error: float = 0.0
    why: str = ""
    given: bool = False

    def __post_init__(self) -> None:
        number = r"\d+(\.\d+)?"
        if not re.fullmatch(rf"(({'|'.join(BOUNDS)}) )?{number}|{number} to {number}|", self.said):
            bounds = " or ".join(BOUNDS)
            raise ValueError(f"said must be a number, also after {bounds}, two with 'to', or empty, not {self.said!r}")

    @property
    def agrees(self) -> bool | None:
        """Is `found` within the bound, or does it round to the source's digits? None where the source says nothing."""
        return self._fits(self.found) if self.said else None

    @property
    def ours(self) -> str:
        """`found` with one digit more than the source gives, or as many as its error has, that error, and the unit.

        With more digits where those would hide that a bound is broken, or show nothing but zeros.
        """
        places = self._decimals + (self.found != round(self.found))
        if self.error:
            places = max(places, -math.floor(math.log10(self.error)))
        while places < 9 and self._misleads(round(self.found, places)):
            places += 1
        error = f" ± {self.error:.1g}" if self.error else ""
        return f"{self.found:,.{places}f}{error} {self.unit}".rstrip()

    def _misleads(self, shown: float) -> bool:
        zeros = shown == 0 and self.found != 0
        return zeros or bool(self.said) and not self._fits(self.found) and self._fits(shown)

    def _fits(self, number: float) -> bool:
        bound, _, digits = self.said.rpartition(" ")
        if bound in BOUNDS:
            return BOUNDS[bound](number, float(digits))
        rounded = f"{number:.{self._decimals}f}"
        if bound:
            return float(bound.removesuffix(" to")) <= float(rounded) <= float(digits)
        return rounded == digits

    @property
    def _decimals(self) -> int:
        return len(self.said.rpartition(" ")[2].partition(".")[2])


def claim_rows(claims: Iterable[Claim]) -> list[dict[str, object]]:
    """A row of a table for each."""
    return [
        {"source": x.source, "what": x.what, "it says": f"{x.said or '-'} {x.unit if x.said else ''}".rstrip(),
         "here": x.ours, "same digits": "put in" if x.given else x.agrees, "why": x.why}
        for x in claims
    ]  # fmt: skip


def agreement(claims: Iterable[Claim]) -> tuple[int, int]:
    """(that agree, that the source states) of those that were not put in."""
    judged = [x.agrees for x in claims if x.agrees is not None and not x.given]
    return sum(judged), len(judged)
