"""What chapter 14 shows: what few bits make of numbers, where formats have theirs, and how training goes in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from math import log2
from typing import Any

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.style import BLUE, GREEN, GREY, ON_COLOUR, ORANGE, PURPLE, RED, YELLOW
from labkit.book.drawing.svg import Svg, text_width
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import bytes_text, listing, seconds_text
from labkit.chapters.c14_low_precision import lm
from labkit.chapters.c14_low_precision.wires import Sum, sum_of

LOW, HIGH = -36, 20  # powers of two on the axis of `caught`
LEFT, TALL = 14.0, 190.0
FATES = (  # of a number, with colour and hatch
    ("becomes 0", GREY, "x"), ("loses digits", ORANGE, "/"), ("fits", BLUE, ""), ("too large", RED, "\\"),
)  # fmt: skip


def power_text(power: int) -> str:
    """2^-9 as people write it, with a real minus sign."""
    return "2" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def share_text(share: float) -> str:
    """A share of a whole, never as a 0.0% that is not none, nor as a 100.0% that is not all."""
    if not share or share == 1:
        return "all" if share else "none"
    return "fewer than 0.1%" if share < 1e-3 else "more than 99.9%" if share > 0.999 else f"{share:.1%}"


def caught_said(run: Any) -> str:
    """How many numbers came through, and what sending them takes."""
    return _fate_said(run.results[0])


def _fate_said(fate: lm.Fate) -> str:
    zero, few, _, over = (share_text(fate.share(which)) for which in range(4))
    lost = f"**{zero} become{'s' * (zero == 'none')} 0**, and {over} {'is' if over == 'none' else 'are'} too large"
    dull = "" if few == "none" else f" {few[0].upper()}{few[1:]} lose digits."
    off = f"The errors are {fate.off:.1%} of the numbers in root mean square" if fate.off else "None is rounded"
    return (
        f"**{fate.format}** ({fate.bits} bits): of {fate.numbers:,} numbers {lost}.{dull} {off}. All of it takes "
        f"{bytes_text(fate.numbers * fate.bits / 8)} in place of {bytes_text(4 * fate.numbers)}."
    )


def caught(run: Any) -> book.Figure:
    """How many numbers there are of each size, and what becomes of them; the window of the format above them."""
    return _fate_drawn(run.results[0])


def _fate_drawn(fate: lm.Fate) -> book.Figure:
    n = fate.numbers
    said = (
        f"Each bar counts the numbers between two powers of two. The band marks what {fate.format} can hold: normal "
        f"numbers from {fate.window[1]:.2g} to {fate.window[2]:.3g}, and with fewer and fewer digits down to "
        f"{fate.window[0]:.2g}."
    )
    svg = Svg(WIDTH, "Which numbers fit?", said)
    top = heading(svg, "measured", said) + 34
    step = (WIDTH - 2 * LEFT) / (HIGH - LOW)

    def across(power: float) -> float:
        return LEFT + (min(max(power, LOW), HIGH) - LOW) * step

    floor = top + TALL
    _window(svg, fate, across, top, floor)
    highest = max((sum(one) for one in fate.powers.values()), default=1)
    for power, counts in sorted(fate.powers.items()):
        y = floor
        for (_, colour, hatch), count in zip(FATES, counts, strict=True):
            if count:
                tall = TALL * 0.94 * count / highest
                y -= tall
                svg.rect(across(power) + 1, y, step - 2, tall, colour, hatch, ON_COLOUR, stroke_width=0.6)
    svg.line(LEFT, floor, WIDTH - LEFT, floor)
    for power in range(LOW, HIGH + 1, 4):
        svg.line(across(power), floor, across(power), floor + 4)
        svg.text(across(power), floor + 17, power_text(power), 11, "middle")
    svg.text(WIDTH / 2, floor + 34, "size of a number", 11.5, "middle")
    bottom = legend(svg, floor + 46, [(name, colour, hatch, "") for name, colour, hatch in FATES])
    rows: list[Row] = [
        {"from": 2.0**power} | {name: count / n for (name, *_), count in zip(FATES, counts, strict=True)}
        for power, counts in sorted(fate.powers.items())
    ]
    return book.Figure("Which numbers fit?", "measured", said, rows, svg.render(bottom))


def one_by_one(fates: Sequence[lm.Fate]) -> book.Player:
    """The picture of each, one after the other, and what came through."""
    frames = [(_fate_drawn(fate).svg, _fate_said(fate).replace("**", "")) for fate in fates]
    return book.play(frames, title="The gradients, each format with its scale", badge="measured", still=0,
                     rows=[{"": said} for _, said in frames], label="Format")  # fmt: skip


def _window(svg: Svg, fate: lm.Fate, across: Callable[[float], float], top: float, floor: float) -> None:
    """From the smallest to the largest number of the format; subnormal numbers dashed."""
    smallest, normal, largest = (across(log2(edge)) for edge in fate.window)
    svg.rect(smallest, top - 18, max(normal - smallest, 1), 12, ORANGE, "/", dash="3 2")
    svg.rect(normal, top - 18, max(largest - normal, 1), 12, BLUE, "", ON_COLOUR)
    name = f"{fate.format}: {fate.bits} bits"
    at = min(max((normal + largest) / 2, LEFT + text_width(name, 11) / 2), WIDTH - LEFT - text_width(name, 11) / 2)
    svg.text(at, top - 24, name, 11, "middle", bold=True)
    for edge in (smallest, largest):
        svg.line(edge, top - 6, edge, floor, dash="2 3", faint=True)


# 1: where a format has numbers -------------------------------------------------------------------------------------

Number = Callable[[int, int, int], float]
RULED = ((4, 3), (5, 2), (3, 4), (2, 1))  # exponent and mantissa bits
REACH, POWERS = 4.0, 18  # of the ruler, and of the strip below it: powers of two on each side of 1


def rulers(number: Number) -> book.Player:
    """The numbers of formats from 0 to 4 on a ruler, by the reader's own `number`, with the bits of one of them."""
    frames, rows = [], []
    for exponent, mantissa in RULED:
        codes = range(2 ** (exponent + mantissa))
        values = [number(code, exponent, mantissa) for code in codes]
        shown = [value for value in values if value <= REACH]
        name = f"E{exponent}M{mantissa}"
        least = min(v for v in values if v)
        below, above = (sum(low <= v < 2 * low for v in values) for low in (1.0, 2.0))
        words = (
            f"{name} has {len(values)} numbers from 0 up. {below} of them lie from 1 to below 2, and {above} from 2 to "
            f"below 4, so at each power of two the step doubles. The ruler ends at 4. All codes together reach from "
            f"{least:.2g} to {max(values):,g}, as the strip below it shows."
        )
        frames.append((_ruler(name, exponent, mantissa, number, shown, (least, max(values)), words), words))
        rows.append({"format": name, "numbers up to 4": len(shown), "largest": max(values)})
    return book.play(frames, title="Where a format has its numbers", badge="simulated", rows=rows, still=0)


def _ruler(
    name: str, exponent: int, mantissa: int, number: Number, shown: Sequence[float], ends: tuple[float, float],
    words: str,
) -> str:  # fmt: skip
    svg = Svg(WIDTH, f"Where {name} has its numbers", words)
    top = heading(svg, "simulated", words) + 12
    code = (2 ** (exponent - 1)) << mantissa | (1 if mantissa else 0)  # the number after 2
    x, wide = 40.0, 34.0
    bits = [("sign", "0", YELLOW, "x")]
    for n in range(exponent):
        bits.append(("exponent", str(code >> (exponent + mantissa - 1 - n) & 1), PURPLE, "/"))
    for n in range(mantissa):
        bits.append(("mantissa", str(code >> (mantissa - 1 - n) & 1), GREEN, ""))
    for n, (_, digit, colour, _hatch) in enumerate(bits):
        svg.rect(x + n * wide, top, wide - 3, 30, colour, "", ON_COLOUR)
        svg.text(x + n * wide + wide / 2 - 1.5, top + 20, digit, 14, "middle", on_colour=True)
    for part, first, count in (("sign", 0, 1), ("exponent", 1, exponent), ("mantissa", 1 + exponent, mantissa)):
        svg.text(x + (first + count / 2) * wide, top + 46, part, 11, "middle")
    svg.text(x + len(bits) * wide + 12, top + 20, f"= {number(code, exponent, mantissa):g}", 14)
    line, unit = top + 110, (WIDTH - 80) / REACH
    svg.line(40, line, 40 + REACH * unit, line)
    for value in shown:
        whole = value == int(value)
        svg.line(40 + value * unit, line - (16 if whole else 9), 40 + value * unit, line, width=1.6 if whole else 1)
    for value in range(int(REACH) + 1):
        svg.text(40 + value * unit, line + 18, str(value), 11.5, "middle")
    at = number(code, exponent, mantissa)
    svg.arrow_head(40 + at * unit, line - 18, 0, 1, 9)
    return svg.render(_reach(svg, line + 48, *ends))


def _reach(svg: Svg, y: float, least: float, most: float) -> float:
    """A strip from the smallest number above 0 to the largest, over powers of two; where it ends."""
    unit = (WIDTH - 80) / (2 * POWERS)
    left, right = (40 + (math.log2(x) + POWERS) * unit for x in (least, most))
    svg.text(40, y - 4, "all numbers above 0, by powers of two", 11)
    svg.rect(left, y + 4, right - left, 14, GREEN, "", ON_COLOUR)
    svg.line(40, y + 22, WIDTH - 40, y + 22)
    for power in range(-POWERS + POWERS % 4, POWERS + 1, 4):
        svg.text(40 + (power + POWERS) * unit, y + 38, f"2^{power}", 10.5, "middle")
    return y + 46


# 2 and 3: scales, and training -------------------------------------------------------------------------------------

OF = ("inputs", "weights", "gradients")


def largest_by_step(told: Sequence[lm.Told], format: Any) -> book.Figure:
    """The largest number of three tensors of a layer, step by step, and the window of a format without a scale."""
    series: dict[str, list[float]] = {kind: [step.amax[n] for step in told] for n, kind in enumerate(OF)}
    first, end = told[0].amax, told[-1].amax
    said = (
        f"In step 1 the largest input of this layer is {first[0]:.2g} and its largest gradient {first[2]:.2g}; in step "
        f"{len(told)} they are {end[0]:.2g} and {end[2]:.2g}. Without a scale {format.name} holds numbers from "
        f"{format.smallest:.2g} to {format.max:g}."
    )
    flat = {f"{format.name}: largest": format.max, f"{format.name}: smallest": format.smallest}
    lines = series | {name: [level] * len(told) for name, level in flat.items()}
    return book.lines(lines, x="step", y="largest number", log="y", title="The largest number of each tensor",
                      badge="measured", sentence=said)  # fmt: skip


def steps_text(steps: Sequence[int]) -> str:
    """Steps as one says them: steps 5 to 7 and 39."""
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][-1] + 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    told = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    return f"step{'s' * (len(steps) > 1)} {listing(told)}" if steps else "no step"


def jump(rules: Mapping[str, Sequence[float]], sizes: Sequence[float]) -> book.Figure:
    """How far a tensor that jumps is off, step by step, with each rule for its scale."""
    high = [step for step, size in enumerate(sizes, 1) if size == max(sizes)]
    told = [
        f"With {rule if rule == lm.YOURS else f'{rule} scaling'} it is spoilt in {steps_text(lm.spoilt(line))}."
        for rule, line in rules.items()
    ]
    said = (
        f"The tensor is ten times as large in {steps_text(high)}. {' '.join(told)} Spoilt means that it is more than "
        f"{lm.SPOILT:.0%} off."
    )
    return book.lines(rules, x="step", y="how far the tensor is off", title="A tensor that jumps", badge="measured",
                      sentence=said, y_text=lambda share: f"{share:.0%}")  # fmt: skip


def smooth(told: Sequence[lm.Told], few: int = 5) -> list[tuple[float, float]]:
    """Means of so many steps, at their last one."""
    return [
        (float(end), sum(step.loss for step in told[end - few : end]) / few) for end in range(few, len(told) + 1, few)
    ]


def trained(run: Any, beside: Callable[[], lm.Beside]) -> book.Figure:
    told, others = run.results[0], beside()
    return book.lines(
        {"this run": smooth(told)} | {name: smooth(other) for name, other in others.items()},
        x="step", y="loss on the text it reads (mean of 5 steps)", title="Loss by step", badge="measured",
        sentence="Each point is the mean loss of 5 steps, and the last two points of a line are the steps whose mean "
        "is told above.",
    )  # fmt: skip


def _losses(told: Sequence[lm.Told], others: lm.Beside) -> str:
    mine, wide, without = (lm.last(list(one)) for one in (told, others["BF16"], others[lm.WITHOUT]))
    worse = " So these layers do more harm than good." if mine > without + lm.NEAR else ""
    return (
        f"The mean loss of the last 10 steps is {mine:.3f}, against {wide:.3f} in BF16 and {without:.3f} with "
        f"{lm.WITHOUT}.{worse}"
    )


def trained_said(run: Any, beside: Callable[[], lm.Beside]) -> str:
    """The last losses, and what casting lost."""
    told = run.results[0]
    ends = told[len(told) // 2 :]
    lost = []
    for n, kind in enumerate(OF):
        zero, over = (lm.share(list(ends), what, n) for what in ("zero", "over"))
        if zero > 5e-4 or over > 5e-4:
            parts = [f"{share_text(share)} {did}" for share, did in ((zero, "became 0"), (over, "were too large"))
                     if share > 5e-4]  # fmt: skip
            lost.append(f"of the {kind} {' and '.join(parts)}")
    gone = "; ".join(lost) if lost else "hardly any became 0 or was too large"
    return f"**{_losses(told, beside())}** In the second half of the run, of the numbers that were not 0: {gone}."


def settings(trainings: Mapping[str, Sequence[lm.Told]]) -> book.Table:
    """The loss at the end of each training, and what its casts lost."""
    wide = lm.last(list(trainings["BF16"]))
    rows = []
    for name, told in trainings.items():
        x, dy, over = (share_text(lm.share(list(told), *which)) for which in (("zero", 0), ("zero", 2), ("over", 0)))
        end = lm.last(list(told))
        rows.append({
            "training": name, "x become 0": x, "x too large": over, "dy become 0": dy, "loss": f"{end:.3f}",
            "above BF16": "" if name == "BF16" else f"{end - wide:+.3f}",
        })  # fmt: skip
    return book.Table(rows, caption="Mean loss of the last 10 steps, and what the casts lost over the run (measured)")


# 4: long sums ------------------------------------------------------------------------------------------------------


def sums(found: Mapping[str, Sequence[tuple[int, float]]]) -> book.Figure:
    """Sums of ones against how many were added."""
    ends = listing([f"{line[-1][1]:,.0f} ({name})" for name, line in found.items()])
    return book.lines(found, x="ones added", y="their sum", title="Adding ones, one by one", badge="measured",
                      sentence=f"After {next(iter(found.values()))[-1][0]:,} ones the sum is {ends}.")  # fmt: skip


def step_by_step(found: Mapping[str, Sequence[float]]) -> book.Figure:
    """A weight that moves by small updates, in two ways of keeping it."""
    ends = listing([f"{line[-1]:.4g} ({name})" for name, line in found.items()])
    return book.lines(found, x="step", y="the weight", title="A weight and its updates", badge="measured",
                      sentence=f"After {len(next(iter(found.values())))} steps the weight is {ends}.")  # fmt: skip


# 5: the scale of the loss ------------------------------------------------------------------------------------------


def scales_by_rank(run: Any, title: str) -> book.Figure:
    """The loss scale of each rank, step by step, as a power of two."""
    ranks = {f"rank {n}": [log2(step.scale) for step in told] for n, told in enumerate(run.results)}
    apart = sum(len({told[step].scale for told in run.results}) > 1 for step in range(len(run.results[0])))
    skipped = [sum(not step.taken for step in told) for told in run.results]
    said = f"The ranks had different scales in {apart} of {len(run.results[0])} steps. " + (
        f"Every rank skipped the same {skipped[0]}."
        if len({tuple(s.taken for s in told) for told in run.results}) == 1
        else f"They skipped {', '.join(map(str, skipped))} of them."
    )
    return book.lines(ranks, x="step", y="loss scale, as a power of 2", title=title, badge="measured", sentence=said)


# 6: on the wire ----------------------------------------------------------------------------------------------------


def errors(found: Mapping[str, Mapping[int, Sum]]) -> book.Figure:
    """How far the sum is off with each way, against the number of ranks."""
    off = {way: {float(n): one.off for n, one in by_ranks.items()} for way, by_ranks in found.items()}
    ends = "; ".join(f"{listing([*map(_off_text, line.values())])} ({way})" for way, line in off.items())
    said = f"With {listing([f'{n:g}' for n in next(iter(off.values()))])} ranks the sum is off by {ends}."
    return book.lines(off, x="ranks", y="how far the sum is off", title="Whose error grows?", badge="measured",
                      sentence=said, y_text=lambda share: f"{share:.0%}")  # fmt: skip


def _off_text(off: float) -> str:
    return f"{off:.2%}" if off >= 5e-5 else "less than 0.01%"


def sent_said(run: Any) -> str:
    got = sum_of(run)
    alike = "All ranks hold the same bits." if got.alike else "**The ranks do not hold the same bits.**"
    return (
        f"Each rank sent {bytes_text(got.sent)} in {seconds_text(run.trace.duration)} (emulated). The sum is "
        f"**{_off_text(got.off)}** off. {alike}"
    )


def sent(run: Any) -> book.Figure:
    return book.timeline(run.trace)
