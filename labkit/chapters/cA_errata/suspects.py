"""The case of the 100 milliseconds: its facts, who may have done it, and what a slider says."""

from __future__ import annotations

from dataclasses import dataclass

from labkit import book
from labkit.cost import format_bandwidth, slow_sync
from labkit.cost.units import GB

FLAT = 0.2398  # seconds that the file expects of one flat ring
EXPECTED = 0.0485  # and of a hierarchical all-reduce
PHASES = ("reduce-scatter in the node", "ring between nodes", "broadcast in the node")


def facts() -> book.Table:
    """What the file says."""
    told = {
        "nodes": f"{slow_sync.NODES}, of {slow_sync.RANKS_PER_NODE} GPUs",
        "NVLink, both directions together": format_bandwidth(slow_sync.NVLINK_BOTH_DIRECTIONS),
        "InfiniBand, one port": format_bandwidth(slow_sync.PORT),
        "uplinks, during the phase between nodes": f"{slow_sync.UPLINK_FRACTION:.0%} of their throughput",
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
        "The source shows no recipe; this one gives its number.",
        "But if the message has {other:.2f} GB, one flat ring takes exactly the {seen:.0f} ms.",
        flat=1e3 * FLAT,
        size=nbytes / GB,
        same=1e3 * slow_sync.stated_hierarchical_seconds(nbytes),
        other=slow_sync.message_bytes(slow_sync.OBSERVED) / GB,
        seen=1e3 * slow_sync.OBSERVED,
    )


def table(yours: float) -> book.Table:
    """Who may have done it, for the size of the expected times. yours: seconds of what the reader wrote."""
    percent, at = f"{slow_sync.UPLINK_FRACTION:.0%}", slow_sync.seconds_at_uplink_fraction
    suspects = {
        "one flat ring, one port a node": slow_sync.flat_seconds(),
        "hierarchical, one port a node": slow_sync.hierarchical_seconds(ports_per_node=1),
        "the file's recipe, all well": slow_sync.stated_hierarchical_seconds(),
        f"the file's recipe, uplinks at {percent}": at(),
        "the file's recipe, NVLink in one direction": slow_sync.stated_hierarchical_seconds(one_direction=True),
        f"the file's recipe, NVLink in one direction, uplinks at {percent}": at(one_direction=True),
        "two_level_seconds, as written above": yours,
        "eight flat rings, a port each (NVLink is their limit)": slow_sync.rings_seconds(),
    }
    rows = [{"suspect": s, "ms": round(1e3 * t, 1), "seen / this": f"{slow_sync.OBSERVED / t:.2f}"}
            for s, t in suspects.items()]  # fmt: skip
    return book.Table(rows, caption="simulated: bandwidth only, no latency")


def fraction() -> book.Conclusion:
    """What the counter says, by its two meanings."""
    healthy = slow_sync.average_port_fraction(slow_sync.stated_hierarchical_seconds())
    slow, large = slow_sync.OBSERVED / slow_sync.seconds_at_uplink_fraction(nbytes=1), slow_sync.message_of_counter()
    return book.conclude(
        "With 3 GB the time needs uplinks at {both:.0%}, or at {one:.0%} with NVLink counted in one direction, and the "
        "counter shows {seen:.0%}. Taken over the whole all-reduce, uplinks at {both:.0%} carry {average:.0%} of what "
        "they could, so no reading of the counter fits.",
        "If the {seen:.0%} are the speed of an uplink while it sends, a message of {slow:.2f} GB takes the {took:.0f} "
        "ms. If they are an average over the whole, nothing need be slow: with healthy links an uplink is busy for "
        "{healthy:.0%} of the time, and {seen:.0%} over {took:.0f} ms are {large:.2f} GB, for which the recipe takes "
        "{then:.1f} ms.",
        both=slow_sync.uplink_fraction_for(),
        one=slow_sync.uplink_fraction_for(one_direction=True),
        average=slow_sync.average_port_fraction(),
        seen=slow_sync.UPLINK_FRACTION,
        slow=slow / GB,
        healthy=healthy,
        took=1e3 * slow_sync.OBSERVED,
        large=large / GB,
        then=1e3 * slow_sync.stated_hierarchical_seconds(large),
    )


@dataclass(frozen=True)
class Story:
    """What the recipe takes with some settings, and what it leaves of the file's two facts."""

    phases: tuple[float, float, float]
    uplinks: float

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
            "counter, as the speed while sending": (
                abs(self.uplinks - counter) < 0.015,
                f"{self.uplinks:.0%}, seen {counter:.0%}",
            ),
            "counter, as an average over the whole": (
                abs(self.average - counter) < 0.015,
                f"{self.average:.0%}, seen {counter:.0%}",
            ),
        }


def story(gigabytes: float, uplinks: float, one_direction: bool) -> Story:
    """The recipe with a message of so many GB, and uplinks at so many percent."""
    return Story(slow_sync.stated_phases(gigabytes * GB, uplinks / 100, one_direction=one_direction), uplinks / 100)
