"""Numbers of the sources that a reader's function judges: some that agree, and lines with a single number."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Decimal
from typing import NamedTuple

from labkit import cost
from labkit.chapters.cA_errata.apart import pencils
from labkit.cost.units import GB
from labkit.course import errata

LATER = {  # found by the reader later on, so not shown before
    "hierarchical-both", "fifty-gigabytes", "rejoin-left-out", "two-bases", "daily-checkpoint", "one-of-678",
    "two-of-three", "half-the-gpus", "twenty-or-nine", "where-warmup-begins",
}  # fmt: skip
NAMES = {
    "accumulation-both": "communication over computing",
    "bound-without-rate": "best learning rate, for 4 times the batch",
    "critical-4000": "critical batch",
    "eighteen-minutes": "between two failures",
    "hidden-behind-nothing": "computing, with 10.5 of 14 s hidden",
    "like-for-like": "computing, nothing hidden",
    "mebibytes": "one message of a pipeline",
    "nic-names": "names from NIC1 to NIC9",
    "no-gradients": "state of 175B on one of 128 GPUs",
    "nodes-136": "GPUs of a segment",
    "nvlink-phase-twice": "added to a ring by its hops inside nodes",
    "one-of-four": "all-reduces of 96 blocks",
    "saved-dollars": "saved by 8 GPUs instead of 32",
    "six-times-longer": "time of a run, 8 workers over 64",
}


class Number(NamedTuple):
    """where: the source, or the id of a line. what, unit: of the number. said: the source's digits. found: ours."""

    where: str
    what: str
    unit: str
    said: str
    found: float

    @property
    def far(self) -> float:
        """How far what is said is from what follows, as a part of the latter."""
        return float(self.said) / self.found - 1 if self.found else math.inf

    @property
    def shown(self) -> str:
        """Ours, with two digits more than the source gives, or with as many as it takes for two things to follow from
        what is shown: the number that it rounds to, and how far apart the two are."""
        if self.found == round(self.found):
            return f"{self.found:.0f}"
        places = len(self.said.partition(".")[2])
        more, right = places + 2, f"{self.found:.{places}f}"
        while more < 9 and not self._follows(f"{self.found:.{more}f}", Decimal(right)):
            more += 1
        return f"{self.found:.{more}f}".rstrip("0").rstrip(".")

    def _follows(self, shown: str, right: Decimal) -> bool:
        """Whether `shown` rounds to `right`, and is as far from what is said as the number itself."""
        apart = abs(float(self.said) / float(shown) - 1)
        return Decimal(shown).quantize(right, ROUND_HALF_UP) == right and percent(apart) == percent(abs(self.far))


def percent(part: float) -> str:
    """A part as a percentage of two digits, and 100 as 100."""
    return f"{100 * part:.0f}" if part >= 0.995 else f"{100 * part:.2g}"


def by_its_digits(said: str, found: float) -> bool:
    """Whether `found` rounds to `said`, where the reader's own `agrees` is not at hand."""
    return f"{found:.{len(said.partition('.')[2])}f}" == said


def agreeing() -> list[Number]:
    """Numbers that are as the sources say, some with many digits and some with a single one."""
    return [
        Number("003 1.4", "state of 175B", "GB", "2800", cost.state_bytes(175e9) / GB),
        Number("003 1.4", "350 GB of parameters over the 80 GB of a GPU", "times", "4", 350 / 80),
        Number("003 1.7.1", "memory of four models, two of them trained", "GB", "1494", (70 + 13) * 16 + (70 + 13) * 2),
        Number("003 1.10", "communication in a step of the 1B model", "%", "33", 100 * 25 / (25 + 50)),
        Number("003 1.10", "communication in a step of the 70B model", "%", "7", 100 * 180 / (180 + 2400)),
        Number("003 1.10", "171.2 minutes between checkpoints", "hours", "2.9", 171.2 / 60),
        Number("002 6.1", "8 minutes of every 18", "%", "44", 100 * (18 - 10) / 18),
    ]  # fmt: skip


def numbers() -> list[Number]:
    """These and the lines of the appendix that have a single number and no question later on, mixed."""
    lines = [
        Number(e.id, NAMES[e.id], e.unit, e.says, e.claim().found)
        for e in errata().values()
        if not e.quote and _single(e.says) and e.id not in {*pencils(), *LATER}
    ]
    return sorted([*agreeing(), *lines], key=lambda one: (one.said[::-1], one.what))


def _single(says: str) -> bool:
    return says.replace(".", "").isdigit()
