"""The case of the 100 milliseconds: its facts, who may have done it, and what a slider says."""

from __future__ import annotations

from labkit import book
from labkit.cost import format_bandwidth, slow_sync
from labkit.cost.units import GB

FLAT = 0.2398  # seconds that the file expects of one flat ring
EXPECTED = 0.0485  # and of a hierarchical all-reduce
PHASES = ("reduce-scatter in the node", "ring between nodes", "broadcast in the node")


def facts() -> book.Table:
    """What the file says."""
    nvlink, port = format_bandwidth(slow_sync.NVLINK_BOTH_DIRECTIONS), format_bandwidth(slow_sync.PORT)
    told = {"expected, flat ring": FLAT, "expected, hierarchical": EXPECTED, "seen": slow_sync.OBSERVED}
    rows = [{"fact": what, "ms": 1e3 * seconds} for what, seconds in told.items()]
    return book.Table(rows, caption=f"NVLink {nvlink} both ways, InfiniBand {port} a port (quoted)")


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


def table() -> book.Table:
    """Who may have done it, for the size of the expected times, and how much of what was seen that leaves open."""
    percent, at = f"{slow_sync.UPLINK_FRACTION:.0%}", slow_sync.seconds_at_uplink_fraction
    large = slow_sync.message_of_counter()
    suspects = {
        "one flat ring, one port": slow_sync.flat_seconds(),
        "hierarchical, one port a node": slow_sync.hierarchical_seconds(ports_per_node=1),
        "the recipe, all well": slow_sync.stated_hierarchical_seconds(),
        f"the recipe, uplinks at {percent}": at(),
        "the recipe, NVLink in one direction": slow_sync.stated_hierarchical_seconds(one_direction=True),
        f"the same, uplinks at {percent}": at(one_direction=True),
        "eight flat rings, a port each": slow_sync.rings_seconds(),
        f"the recipe, all well, {large / GB:.2f} GB": slow_sync.stated_hierarchical_seconds(large),
    }
    rows = [{"suspect": s, "ms": 1e3 * t, "seen / this": slow_sync.OBSERVED / t} for s, t in suspects.items()]
    return book.Table(rows, caption="simulated: bandwidth only, no latency")


def fraction() -> book.Conclusion:
    """What the counter says, by its two meanings."""
    healthy = slow_sync.average_port_fraction(slow_sync.stated_hierarchical_seconds())
    large = slow_sync.message_of_counter()
    return book.conclude(
        "If the counter's {seen:.0%} are the speed of an uplink while it sends, they explain too little: it would take "
        "{both:.0%}, or {one:.0%} with NVLink counted in one direction.",
        "If they are an average over the whole all-reduce, they are no fault at all: with healthy links the recipe "
        "keeps an uplink busy for {healthy:.0%} of the time, and {seen:.0%} over {took:.0f} ms are a message of "
        "{large:.2f} GB, for which the recipe takes {then:.1f} ms.",
        both=slow_sync.uplink_fraction_for(),
        one=slow_sync.uplink_fraction_for(one_direction=True),
        seen=slow_sync.UPLINK_FRACTION,
        healthy=healthy,
        took=1e3 * slow_sync.OBSERVED,
        large=large / GB,
        then=1e3 * slow_sync.stated_hierarchical_seconds(large),
    )


def explained(gigabytes: float, uplinks: float, nvlink: float) -> tuple[str, list[dict[str, object]]]:
    """What the recipe takes with these settings, beside what was seen, and what the counter would show."""
    phases = slow_sync.stated_phases(gigabytes * GB, uplinks / 100, one_direction=nvlink == 1)
    whole, seen = sum(phases), slow_sync.OBSERVED
    average = slow_sync.stated_phases(gigabytes * GB)[1] / whole
    compared = "as was seen" if abs(whole / seen - 1) < 0.03 else f"{abs(whole - seen) * 1e3:.1f} ms "
    compared += "" if compared == "as was seen" else "less than was seen" if whole < seen else "more than was seen"
    said = f"The recipe takes {1e3 * whole:.1f} ms, {compared}. An uplink carries {average:.0%} of what it could, "
    said += "on average over the whole."
    return said, [
        {"phase": name, "ms": 1e3 * t, "part": f"{t / whole:.0%}"} for name, t in zip(PHASES, phases, strict=True)
    ]
