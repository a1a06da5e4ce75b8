"""Numbers of the sources that a reader's function judges: a dozen that agree, and the lines with a single number."""

from __future__ import annotations

import math
from typing import NamedTuple

from labkit import cost
from labkit.cost import slow_sync
from labkit.cost.units import GB
from labkit.course import errata


class Number(NamedTuple):
    """where: the source, or the id of a line. said: the digits of the source. found: what follows from its inputs."""

    where: str
    said: str
    found: float

    @property
    def far(self) -> float:
        """How far what is said is from what follows, as a part of the latter."""
        return float(self.said) / self.found - 1 if self.found else math.inf


def by_its_digits(said: str, found: float) -> bool:
    """Whether `found` rounds to `said`, where the reader's own `agrees` is not at hand."""
    return f"{found:.{len(said.partition('.')[2])}f}" == said


def agreeing() -> list[Number]:
    """A dozen numbers that are as the sources say."""
    return [
        Number("003 1.2.1.3, flat ring, ms", "239.8", 1e3 * slow_sync.flat_seconds()),
        Number(
            "003 1.2.1.3, hierarchical, ms, by its own recipe", "48.5", 1e3 * slow_sync.stated_hierarchical_seconds()
        ),
        Number("003 1.2.3, state of 7B, GB", "112", cost.state_bytes(7e9) / GB),
        Number("003 1.2.3, ZeRO-3 on 64 GPUs, GB", "1.75", cost.zero_state_bytes(7e9, 64, 3) / GB),
        Number("003 1.4, state of 175B, GB", "2800", cost.state_bytes(175e9) / GB),
        Number("003 1.4, ZeRO-3 on 64 GPUs, GB", "43.8", cost.zero_state_bytes(175e9, 64, 3) / GB),
        Number("003 1.4.2.2, bubble, %", "17.9", 100 * 7 / (7 + 32)),
        Number(
            "003 1.4.2.3, NVLink over InfiniBand", "9", cost.wires.NVLINK.bandwidth / cost.wires.INFINIBAND.bandwidth
        ),
        Number("003 1.7.1, four models, GB", "1494", (70 + 13) * 16 + (70 + 13) * 2),
        Number("003 1.10, messages of 1B, %", "33", 100 * 25 / (25 + 50)),
        Number("003 1.10, messages of 70B, %", "7", 100 * 180 / (180 + 2400)),
        Number("002 6.1, effective time, %", "44", 100 * (18 - 10) / 18),
    ]


def numbers() -> list[Number]:
    """These and the lines of the appendix that have a single number, mixed."""
    lines = [Number(e.id, e.says, e.claim().found) for e in errata().values() if not e.quote and _single(e.says)]
    return sorted([*agreeing(), *lines], key=lambda one: (one.said[::-1], one.where))


def _single(says: str) -> bool:
    return says.replace(".", "").isdigit()
