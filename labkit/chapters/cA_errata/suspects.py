"""The case of the 100 milliseconds: its facts, who may have done it, and what a slider says.

Where a function takes `two_level`, that is the reader's `two_level_seconds(nbytes, nodes, gpus, nvlink, port)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from labkit import book
from labkit.chapters.cA_errata.gating import Said, unchecked, unsearched
from labkit.cost import format_bandwidth, slow_sync
from labkit.cost.units import GB

TwoLevel = Callable[..., float]

FLAT = 0.2398  # seconds that the file expects of one flat ring
EXPECTED = 0.0485  # and of a hierarchical all-reduce
# Both directions of NVLink together, by two readings of the file's 300 GB/s: that it is their sum, or one of them.
SUM, ONE_WAY = slow_sync.NVLINK_BOTH_DIRECTIONS, 2 * slow_sync.NVLINK_BOTH_DIRECTIONS
PHASES = ("reduce-scatter in the node", "ring between nodes", "all-gather in the node")
FLAT_RING = "one flat ring, through one port of each node"
ALGORITHMS = {  # both directions of NVLink together, in bytes per second, where the reader's function has it
    "two levels, NVLink sends 150 GB/s": SUM,
    "two levels, NVLink sends 300 GB/s": ONE_WAY,
    FLAT_RING: None,
}
SEEN = slow_sync.OBSERVED
NEAR = 0.03  # what we allow: a part of the time, and as much of the counter's whole scale


def facts() -> book.Table:
    """What the file says."""
    told = {
        "nodes": f"{slow_sync.NODES}, of {slow_sync.RANKS_PER_NODE} GPUs",
        'NVLink, which it calls "bidirectional"': format_bandwidth(slow_sync.NVLINK_BOTH_DIRECTIONS),
        "InfiniBand, one port": format_bandwidth(slow_sync.PORT),
        'counter of the uplinks, "during the inter-node phase"': f"{slow_sync.UPLINK_FRACTION:.0%} of their throughput",
        "expected of one flat ring": f"{1e3 * FLAT:.1f} ms",
        "expected of a hierarchical all-reduce": f"{1e3 * EXPECTED:.1f} ms",
        "seen": f"{1e3 * slow_sync.OBSERVED:.0f} ms",
    }
    return book.Table([{"fact": what, "value": value} for what, value in told.items()], caption="quoted")


def size(quiz: book.Quiz) -> book.Conclusion | Said:
    """The message for which both expected times come out, once the reader has computed one."""
    if book.live() and not quiz.answered:
        return Said("Compute the size in the question above, and run this cell again.")
    nbytes = slow_sync.message_bytes(FLAT)
    scatter, ring, broadcast = (1e3 * seconds for seconds in slow_sync.stated_phases(nbytes))
    return book.conclude(
        "A flat ring takes the expected {flat:.1f} ms if the message has {size:.2f} GB. The example does not say how "
        "it gets the {same:.1f} ms of a hierarchical all-reduce. We tried several algorithms, and for {size:.2f} GB "
        "this one takes that time: a reduce-scatter in the node ({scatter:.2f} ms at {nvlink:.0f} GB/s), a ring "
        "between the nodes ({ring:.2f} ms), and a broadcast in the node ({broadcast:.2f} ms).\n\nWith {other:.2f} GB "
        "one flat ring would take the {seen:.0f} ms that were seen. But then neither expected time comes out.",
        flat=1e3 * FLAT,
        size=nbytes / GB,
        same=scatter + ring + broadcast,
        scatter=scatter,
        ring=ring,
        broadcast=broadcast,
        nvlink=slow_sync.NVLINK_BOTH_DIRECTIONS / GB,
        other=slow_sync.message_bytes(slow_sync.OBSERVED) / GB,
        seen=1e3 * slow_sync.OBSERVED,
    )


def should(two_level: TwoLevel) -> book.Conclusion | Said:
    """What the file should have expected, by its own word for NVLink and by the other reading."""
    return unchecked(two_level) or _should(two_level)


def _should(two_level: TwoLevel) -> book.Conclusion:
    by_word, by_slip = (
        two_level(slow_sync.GRADIENT, slow_sync.NODES, slow_sync.RANKS_PER_NODE, nvlink, slow_sync.PORT)
        for nvlink in (SUM, ONE_WAY)
    )
    return book.conclude(
        "For {size:.0f} GB {whose} function says {ms:.2f} ms. The example should have expected this time, if a "
        "GPU sends {word:.0f} GB/s over NVLink. With {half:.0f} GB/s in one direction, it would be {other:.2f} ms.",
        whose=book.whose(two_level),
        word=SUM / 2 / GB,
        size=slow_sync.GRADIENT / GB,
        ms=1e3 * by_word,
        half=ONE_WAY / 2 / GB,
        other=1e3 * by_slip,
    )


def phases(
    two_level: TwoLevel, nbytes: float = slow_sync.GRADIENT, fraction: float = 1.0, nvlink: float = SUM
) -> tuple[float, float, float]:
    """Seconds of the three phases, by the reader's function: with ports of no time, what is left is inside the node."""
    inside = two_level(nbytes, slow_sync.NODES, slow_sync.RANKS_PER_NODE, nvlink, math.inf)
    whole = two_level(nbytes, slow_sync.NODES, slow_sync.RANKS_PER_NODE, nvlink, fraction * slow_sync.PORT)
    return inside / 2, whole - inside, inside / 2


def table(two_level: TwoLevel, quiz: book.Quiz) -> book.Table | Said:
    """Who may have done it, for the size of the expected times; once the reader has chosen one in the quiz."""
    if book.live() and not quiz.answered:
        return Said("Choose a candidate in the question above, and run this cell again.")
    return unchecked(two_level) or _table(two_level, quiz.chosen)


def _table(two_level: TwoLevel, chosen: str) -> book.Table:
    part = slow_sync.UPLINK_FRACTION
    slow, healthy = phases(two_level, fraction=part), phases(two_level)
    one_port, flat = slow_sync.hierarchical_seconds(ports_per_node=1), slow_sync.flat_seconds()
    between = slow_sync.RANKS_PER_NODE * healthy[1]  # eight shares through one port
    suspects = {
        "Eight flat rings at once, each through a port of its own": (
            slow_sync.rings_seconds(),
            "NVLink, over which a GPU sends for 7 of the 8 rings; the ports need only "
            f"{_ms(flat / slow_sync.RANKS_PER_NODE)}"),
        "A hierarchical all-reduce, through one port of each node": (
            one_port, f"the one port, which carries all eight shares: {_ms(between)}; "
            f"inside the nodes: {_ms(one_port - between)}"),
        "One flat ring, through one port of each node": (flat, "the port, which carries nearly twice the message"),
        f"The algorithm of two_level_seconds, with uplinks at {part:.0%} of their speed": (sum(slow), _parts(slow)),
        "The algorithm of two_level_seconds, with all links healthy": (sum(healthy), _parts(healthy)),
    }  # fmt: skip
    rows = []
    for suspect, (seconds, why) in sorted(suspects.items(), key=lambda one: abs(one[1][0] - slow_sync.OBSERVED)):
        rows.append({"candidate": suspect, "takes": f"{1e3 * seconds:.1f} ms", "what takes the time": why})
        if chosen:
            rows[-1]["your choice"] = "✓ yours" if suspect == chosen.rstrip(".") else ""
    return book.Table(rows, caption="simulated: bandwidth only, no latency")


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def _parts(times: tuple[float, float, float]) -> str:
    """Where the time of the reader's algorithm goes."""
    return f"between the nodes: {_ms(times[1])}; inside them: {_ms(times[0] + times[2])}"


def counter(quiz: book.Quiz) -> book.Conclusion | Said:
    """What the counter may mean, now that no candidate explains the time; once the reader has chosen one."""
    if book.live() and not quiz.answered:
        return Said("Choose a candidate in the question above, and run this cell again.")
    return book.conclude(
        "The nearest candidate takes {near:.1f} ms, so none explains the {seen:.0f} ms for {size:.0f} GB. What does "
        "the counter tell us? If it was read during the phase between the nodes, as the example says, it shows the "
        "*speed* at which an uplink sends. But if it counted over the whole all-reduce, it shows an *average*, which "
        "includes the time in which the uplink rests. How far below 100 % is this average when nothing is wrong?",
        near=1e3 * slow_sync.seconds_at_uplink_fraction(stated=False),
        seen=1e3 * slow_sync.OBSERVED,
        size=slow_sync.GRADIENT / GB,
    )


def left(two_level: TwoLevel, case: object = None) -> book.Conclusion | Said:
    """What is left of the example's conclusion, that the library cannot be using a flat ring. case: as of `plane`."""
    return unchecked(two_level) or unsearched(case, "left") or _left(two_level)


def _left(two_level: TwoLevel) -> book.Conclusion:
    part, rows, told = slow_sync.UPLINK_FRACTION, list[str](), _told(two_level)
    for algorithm, size, one in [row for row in told if row[2].fits]:
        uplinks = "healthy" if one.uplinks == 1 else f"at {one.uplinks:.0%}"
        fits = one.counter.removeprefix("counter as ").replace("counter in both meanings", "both")
        shown = one.average if fits == "an average" else one.speed
        rows.append(f"| {algorithm} | {size:.2f} GB | {uplinks} | {fits}: {shown:.0%} |")
    needed = [one.uplinks for _, size, one in told if abs(size * GB / slow_sync.GRADIENT - 1) < 0.001]
    needed.append(slow_sync.flat_seconds() / slow_sync.RANKS_PER_NODE / slow_sync.OBSERVED)  # of eight flat rings
    ((algorithm, average),) = [(name, one.average) for name, _, one in told if one.counter == "counter as an average"]
    exact, speed = _average_at(two_level, algorithm, part)
    whole = slow_sync.message_bytes(slow_sync.OBSERVED) / GB
    return book.conclude(
        "**With {size:.0f} GB no candidate fits.** One flat ring through one port takes too long even over healthy "
        "uplinks, and so does a hierarchical all-reduce through one port. For eight flat rings or for the algorithm "
        "of `two_level_seconds`, with either speed of NVLink, the uplinks would have to run at {least:.0%} to "
        "{most:.0%} of their speed. Then the counter would not show {part:.0%} in either meaning. With uplinks at "
        "{part:.0%} and NVLink at {word:.0f} GB/s, overhead, the third cause of the example, would have to add "
        "{missing:.1f} ms.\n\n**The case stays open.** If the message has the {size:.0f} GB of the expected times, "
        "the example is right that this was no flat ring through one port. But the example does not print the size. "
        "With {whole:.2f} GB a flat ring takes the {seen:.0f} ms over healthy uplinks, and with {slow:.2f} GB over "
        "uplinks at {part:.0%}, so a reader cannot check the conclusion. In these explanations the time is right "
        "without overhead, and the counter fits:\n\n| algorithm | message | uplinks | the counter fits as |\n| :-- | "
        "--: | :-- | :-- |\n{rows}\n\nThe average of {average:.0%} fits only within the {points:.0f} points that we "
        "allow. A similar explanation fits exactly: with {exact:.2f} GB, and uplinks at {speed:.0%} of their speed, "
        "the average is {part:.0%}.\n\nAll these explanations share one weak point: their message does not have the "
        "{size:.0f} GB for which both expected times come out. What would you measure next?",
        seen=1e3 * slow_sync.OBSERVED, size=slow_sync.GRADIENT / GB, rows="\n".join(rows), part=part,
        least=min(needed), most=max(needed), points=100 * NEAR, exact=exact, speed=speed, average=average,
        whole=whole, slow=part * whole, word=SUM / 2 / GB,
        missing=1e3 * (slow_sync.OBSERVED - sum(phases(two_level, fraction=part))),
    )  # fmt: skip


def _average_at(two_level: TwoLevel, algorithm: str, part: float) -> tuple[float, float]:
    """The GB, and the part of the uplinks' speed, with which they carry `part` of what they could, on average."""
    healthy = story(two_level, 1, 100, algorithm)
    ring = healthy.average * healthy.seconds  # of a message of 1 GB, as long as what uplinks wait for is `rest`
    rest, size = healthy.seconds - ring, part * slow_sync.OBSERVED / ring
    return size, size * ring / (slow_sync.OBSERVED - size * rest)


@dataclass(frozen=True)
class Story:
    """What an algorithm takes with some settings, and what it leaves of the file's two facts.

    uplinks: the part of their speed that they have. names: of the phases.
    """

    phases: tuple[float, ...]
    uplinks: float
    names: tuple[str, ...] = PHASES

    @property
    def seconds(self) -> float:
        return sum(self.phases)

    @property
    def average(self) -> float:
        """What an uplink carries of what it could, over the whole all-reduce."""
        ring = sum(t for name, t in zip(self.names, self.phases, strict=True) if "ring" in name)
        return self.speed * ring / self.seconds

    @property
    def speed(self) -> float:
        """What an uplink carries while it sends."""
        return self.uplinks

    @staticmethod
    def counted(part: float) -> str:
        """What the counter would show, with a ✓ where it fits what it does show."""
        return f"{part:.0%}{' ✓' if abs(part - slow_sync.UPLINK_FRACTION) < NEAR else ''}"

    @property
    def facts(self) -> dict[str, tuple[bool, str]]:
        """Each fact: whether it fits, and the numbers."""
        ms, seen, counter = 1e3 * self.seconds, 1e3 * slow_sync.OBSERVED, slow_sync.UPLINK_FRACTION
        return {
            "time, within 3 %": (abs(ms / seen - 1) < NEAR, f"{ms:.1f} ms, seen {seen:.0f} ms"),
            "counter as the speed while sending, within 3 points": (
                abs(self.speed - counter) < NEAR,
                f"{self.speed:.0%}, seen {counter:.0%}",
            ),
            "counter as an average over the whole, within 3 points": (
                abs(self.average - counter) < NEAR,
                f"{self.average:.0%}, seen {counter:.0%}",
            ),
        }

    @property
    def counter(self) -> str:
        """In which of its two meanings the counter fits, or nothing."""
        _, speed, average = (fits for fits, _ in self.facts.values())
        return (
            "counter in both meanings"
            if speed and average
            else "counter as a speed"
            if speed
            else ("counter as an average" if average else "")
        )

    @property
    def fits(self) -> bool:
        """Whether it has the time, and the counter in one of its two meanings."""
        return next(iter(self.facts.values()))[0] and bool(self.counter)

    @property
    def verdict(self) -> str:
        """Whether the two facts are explained: the time, and the counter by one of its two meanings."""
        time = next(iter(self.facts.values()))[0]
        if not (time or self.counter):
            return "This explanation fits neither the time nor the counter."
        if not self.fits:
            missing = "the counter fits neither as a speed nor as an average" if time else "the time does not fit"
            return f"This explains the {'time' if time else 'counter'}, but {missing}."
        return f"This explanation fits: it has the time, and the {self.counter}. One meaning of the counter is enough."


def story(two_level: TwoLevel, gigabytes: float, uplinks: float, algorithm: str = next(iter(ALGORITHMS))) -> Story:
    """An algorithm with a message of so many GB, and uplinks at so many percent."""
    nvlink, nbytes, part = ALGORITHMS[algorithm], gigabytes * GB, uplinks / 100
    if nvlink is None:
        return Story((slow_sync.flat_seconds(nbytes) / part,), part, ("ring over all GPUs",))
    return Story(phases(two_level, nbytes, part, nvlink), part)


def _told(two_level: TwoLevel) -> list[tuple[str, float, Story]]:
    """Stories that take the time that was seen: the algorithm, the size in GB, and the rest.

    For each algorithm three: with the size of the file's expected times, with uplinks as slow as the counter, and
    healthy.
    A flat ring of that size would need uplinks faster than they are, so it has two.
    """
    seen, rows = slow_sync.OBSERVED, []
    for algorithm in ALGORITHMS:
        healthy = story(two_level, slow_sync.GRADIENT / GB, 100, algorithm)
        ring = healthy.average * healthy.seconds
        rest = healthy.seconds - ring  # what uplinks wait for
        for uplinks in (ring / (seen - rest), slow_sync.UPLINK_FRACTION, 1.0):
            if 0 < uplinks <= 1:
                size = seen_size(two_level, uplinks, algorithm)
                rows.append((algorithm, size, story(two_level, size, 100 * uplinks, algorithm)))
    return rows


def seen_size(two_level: TwoLevel, uplinks: float, algorithm: str) -> float:
    """The GB that an algorithm reduces in the time that was seen, with uplinks at a part of their speed."""
    one_gb = story(two_level, 1, 100 * uplinks, algorithm)  # every phase grows with the message
    return slow_sync.OBSERVED / one_gb.seconds


def stories(two_level: TwoLevel) -> list[Mapping[str, object]]:
    """Stories that take the time that was seen, and what the counter would show in each, by its two meanings."""
    return [
        {
            "algorithm": algorithm,
            "message": f"{size:.2f} GB",
            "uplinks run at": f"{told.uplinks:.0%}",
            "counter as a speed": told.counted(told.speed),
            "counter as an average": told.counted(told.average),
        }
        for algorithm, size, told in _told(two_level)
    ]
