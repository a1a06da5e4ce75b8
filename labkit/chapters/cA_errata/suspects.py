"""The case of the 100 milliseconds: its facts, who may have done it, and what a slider says.

Where a function takes `two_level`, that is the reader's `two_level_seconds(nbytes, nodes, gpus, nvlink, port)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from labkit import book
from labkit.cost import format_bandwidth, slow_sync
from labkit.cost.units import GB

TwoLevel = Callable[..., float]

FLAT = 0.2398  # seconds that the file expects of one flat ring
EXPECTED = 0.0485  # and of a hierarchical all-reduce
# Both directions of NVLink together, by two readings of the file's 300 GB/s: that it is their sum, or one of them.
SUM, ONE_WAY = slow_sync.NVLINK_BOTH_DIRECTIONS, 2 * slow_sync.NVLINK_BOTH_DIRECTIONS
PHASES = ("reduce-scatter in the node", "ring between nodes", "all-gather in the node")
STATED = (*PHASES[:2], "broadcast in the node")
RECIPES = {
    "your function, NVLink sends 150 GB/s": SUM,
    "your function, NVLink sends 300 GB/s": ONE_WAY,
    "the file's recipe, with a broadcast": None,
}  # both directions together, in bytes per second


def facts() -> book.Table:
    """What the file says."""
    told = {
        "nodes": f"{slow_sync.NODES}, of {slow_sync.RANKS_PER_NODE} GPUs",
        'NVLink, in its word "bidirectional"': format_bandwidth(slow_sync.NVLINK_BOTH_DIRECTIONS),
        "InfiniBand, one port": format_bandwidth(slow_sync.PORT),
        'counter of the uplinks, "during the inter-node phase"': f"{slow_sync.UPLINK_FRACTION:.0%} of their throughput",
        "expected of one flat ring": f"{1e3 * FLAT:.1f} ms",
        "expected of a hierarchical all-reduce": f"{1e3 * EXPECTED:.1f} ms",
        "seen": f"{1e3 * slow_sync.OBSERVED:.0f} ms",
    }
    return book.Table([{"fact": what, "value": value} for what, value in told.items()], caption="quoted")


def size() -> book.Conclusion:
    """The message for which both expected times come out."""
    nbytes = slow_sync.message_bytes(FLAT)
    return book.conclude(
        "A flat ring takes the expected {flat:.1f} ms for {size:.2f} GB. For that size this hierarchical recipe takes "
        "{same:.1f} ms, as expected: a reduce-scatter in the node, a ring between nodes, a broadcast in the node, with "
        "NVLink counted in both directions.",
        "The source shows no recipe; we tried several, and this one gives its number.",
        "But if the message has {other:.2f} GB, one flat ring takes exactly the {seen:.0f} ms.",
        flat=1e3 * FLAT,
        size=nbytes / GB,
        same=1e3 * slow_sync.stated_hierarchical_seconds(nbytes),
        other=slow_sync.message_bytes(slow_sync.OBSERVED) / GB,
        seen=1e3 * slow_sync.OBSERVED,
    )


def phases(
    two_level: TwoLevel, nbytes: float = slow_sync.GRADIENT, fraction: float = 1.0, nvlink: float = SUM
) -> tuple[float, float, float]:
    """Seconds of the three phases, by the reader's function: with ports of no time, what is left is inside the node."""
    inside = two_level(nbytes, slow_sync.NODES, slow_sync.RANKS_PER_NODE, nvlink, math.inf)
    whole = two_level(nbytes, slow_sync.NODES, slow_sync.RANKS_PER_NODE, nvlink, fraction * slow_sync.PORT)
    return inside / 2, whole - inside, inside / 2


def table(two_level: TwoLevel) -> book.Table:
    """Who may have done it, for the size of the expected times."""
    part = slow_sync.UPLINK_FRACTION
    suspects = {
        "Eight flat rings at once, with a port each": slow_sync.rings_seconds(),
        "A hierarchical all-reduce, through one port of each node": slow_sync.hierarchical_seconds(ports_per_node=1),
        "One flat ring, through one port of each node": slow_sync.flat_seconds(),
        f"Your recipe, with uplinks at {part:.0%} of their speed": sum(phases(two_level, fraction=part)),
        "Your recipe, with all links healthy": sum(phases(two_level)),
        f"The file's recipe, with uplinks at {part:.0%} of their speed": slow_sync.seconds_at_uplink_fraction(),
        "The file's recipe, with all links healthy": slow_sync.stated_hierarchical_seconds(),
    }
    seen = 1e3 * slow_sync.OBSERVED
    rows = [{"suspect": s, "ms": round(1e3 * t, 1), f"far from the {seen:.0f} ms": f"{abs(seen - 1e3 * t):.1f} ms"}
            for s, t in suspects.items()]  # fmt: skip
    return book.Table(rows, caption="simulated: bandwidth only, no latency")


def fraction(two_level: TwoLevel) -> book.Conclusion:
    """What the counter says, by its two meanings, and by the two ways to read the file's NVLink."""
    seen, part = slow_sync.OBSERVED, slow_sync.UPLINK_FRACTION
    one, both, stated = phases(two_level), phases(two_level, nvlink=ONE_WAY), slow_sync.stated_phases()
    slow = (sum(phases(two_level, 1, part, nvlink)) for nvlink in (SUM, ONE_WAY))  # seconds of a byte
    return book.conclude(
        "**If NVLink sends {half:.0f} GB/s**, 3 GB take the {seen:.0f} ms with uplinks at {needed:.0%}. But then the "
        "counter would show {needed:.0%} as a speed or {carried:.0%} as an average, and it shows {part:.0%}. With "
        "uplinks at {part:.0%} a message of {slow:.2f} GB takes the {seen:.0f} ms.",
        {
            "healthy < part - 0.03": "An average of {part:.0%} cannot be: healthy uplinks have {healthy:.0%} for any "
            "size, and slow ones have less.",
            "healthy >= part - 0.03": "And healthy uplinks would have an average of {healthy:.0%}.",
        },
        "\n\n**If NVLink sends {whole:.0f} GB/s**, uplinks at {part:.0%} need a message of {slow_both:.2f} GB.",
        {
            "abs(healthy_both - part) < 0.03": "Or nothing is slow at all: a healthy run has an average of "
            "{healthy_both:.0%}, near enough to the counter, and takes the {seen:.0f} ms for {large:.2f} GB.",
            "abs(healthy_both - part) >= 0.03": "And a healthy run has an average of {healthy_both:.0%}.",
        },
        "\n\n**By the file's own recipe**, with a broadcast, a healthy run has an average of {healthy_file:.0%} and "
        "takes the {seen:.0f} ms for {file:.2f} GB. But it lets NVLink send {whole:.0f} GB/s in one direction, too.",
        half=SUM / 2 / GB,
        whole=ONE_WAY / 2 / GB,
        seen=1e3 * seen,
        part=part,
        needed=one[1] / (seen - one[0] - one[2]),
        carried=one[1] / seen,
        slow=seen / next(slow) / GB,
        healthy=one[1] / sum(one),
        slow_both=seen / next(slow) / GB,
        healthy_both=both[1] / sum(both),
        large=slow_sync.GRADIENT * seen / sum(both) / GB,
        healthy_file=stated[1] / sum(stated),
        file=slow_sync.GRADIENT * seen / sum(stated) / GB,
    )


@dataclass(frozen=True)
class Story:
    """What a recipe takes with some settings, and what it leaves of the file's two facts. names: of its phases."""

    phases: tuple[float, float, float]
    uplinks: float
    names: tuple[str, ...] = PHASES

    @property
    def seconds(self) -> float:
        return sum(self.phases)

    @property
    def average(self) -> float:
        """What an uplink carries of what it could, over the whole all-reduce."""
        return self.uplinks * self.phases[1] / self.seconds

    @property
    def facts(self) -> dict[str, tuple[bool, str]]:
        """Each fact: whether it fits, and the numbers."""
        ms, seen, counter = 1e3 * self.seconds, 1e3 * slow_sync.OBSERVED, slow_sync.UPLINK_FRACTION
        return {
            "time, within 3 %": (abs(ms / seen - 1) < 0.03, f"{ms:.1f} ms, seen {seen:.0f} ms"),
            "counter, one of two: as the speed while sending, within 3 points": (
                abs(self.uplinks - counter) < 0.03,
                f"{self.uplinks:.0%}, seen {counter:.0%}",
            ),
            "counter, one of two: as an average over the whole, within 3 points": (
                abs(self.average - counter) < 0.03,
                f"{self.average:.0%}, seen {counter:.0%}",
            ),
        }


def story(two_level: TwoLevel, gigabytes: float, uplinks: float, recipe: str = next(iter(RECIPES))) -> Story:
    """A recipe with a message of so many GB, and uplinks at so many percent."""
    nvlink, nbytes, part = RECIPES[recipe], gigabytes * GB, uplinks / 100
    if nvlink is None:
        return Story(slow_sync.stated_phases(nbytes, part), part, STATED)
    return Story(phases(two_level, nbytes, part, nvlink), part)
