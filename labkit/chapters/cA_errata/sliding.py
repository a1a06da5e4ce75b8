"""Sums of the sources with sliders for their inputs: what would have to be so, for the sentence to be right?"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from labkit import book, cost
from labkit.book.drawing.style import series
from labkit.book.drawing.svg import text_width
from labkit.book.drawing.units import bytes_text
from labkit.chapters.cA_errata.asked_first import First
from labkit.chapters.cA_errata.drawing import SMALL, WIDTH, Page, legend
from labkit.chapters.cA_errata.gating import unchecked
from labkit.cost.units import GB, MINUTE

Holds = Callable[[float, int, int], float]  # parameters, stage and ranks -> bytes
ROOM = 80 * GB  # of a GPU
ITEMS = ("parameters", "gradients", "optimizer")
STAGES = ("no sharding", "ZeRO-1", "ZeRO-2", "ZeRO-3")
COMPUTE, MESSAGES = 2.1 * 1024, 3.5  # GPU-seconds and seconds of a step of 175B, by source 003
CLAIMS = ((4096, 0.70, "first: above 70 % on 4,096 GPUs"), (8192, 0.50, "second: below half only beyond 8,192"))
FEWEST, MOST = 256, 16_384  # GPUs, where the curve begins and ends


def memory(held_bytes: Holds) -> Any:
    """What a GPU holds by each stage of ZeRO, for any model on any number of GPUs, by the page's function."""
    sliders = {
        "billions": book.Slider("parameters, in billions", 1, 200, 175),
        "nodes": book.Slider("nodes of 8 GPUs", 1, 128, 128),
    }
    if asked := unchecked(held_bytes):
        return asked
    return First(
        "zero1-nodes", "How many nodes does ZeRO-1 need at least, to hold the 175B in 80 GB of each GPU?",
        {"few": "5 nodes", "many": "100 nodes", "none": "No number is enough"},
        book.explorer("What one GPU holds", sliders,
                      lambda billions, nodes: held(held_bytes, billions, 8 * nodes)),
        "ZeRO-3 divides everything: 35 GPUs of 80 GB hold the 2,800 GB of state, so five nodes are enough if we "
        "leave out the activations. ZeRO-1 divides only the optimizer state, so the 700 GB of parameters and "
        "gradients stay on each GPU, however many there are. If nothing is sharded, the largest model has 5 billion "
        "parameters: at 16 bytes each they fill the 80 GB, and nothing is left for activations.",
        "none", "The 700 GB of parameters and gradients stay on each GPU, however many nodes there are.",
    )  # fmt: skip


def held(held_bytes: Holds, billions: float, gpus: int) -> book.Figure:
    """The state of a model on one of some GPUs, by each stage of ZeRO, beside the size of a GPU."""
    per = {name: cost.zero_state_parts(1e9 * billions, gpus, stage) for stage, name in enumerate(STAGES)}
    total = {name: held_bytes(1e9 * billions, stage, gpus) for stage, name in enumerate(STAGES)}
    fit = [name for name, nbytes in total.items() if nbytes <= ROOM]
    who = fit[0] if len(fit) == 1 else f"{', '.join(fit[:-1])} and {fit[-1]}" if fit else ""
    who = f"Only {who} fits" if len(fit) == 1 else "All four fit" if len(fit) == 4 else f"{who} fit" if fit else ""
    said = f"{who or 'None of the four fits'} in {bytes_text(ROOM)}. "
    said += f"By {book.whose(held_bytes)} held_bytes, {'one GPU' if gpus == 1 else f'each of {gpus:,} GPUs'} keeps "
    said += f"{bytes_text(total['ZeRO-1'])} of the {billions:g}B with ZeRO-1, and {bytes_text(total['ZeRO-3'])} with "
    said += "ZeRO-3."
    svg = Page("What one GPU holds", said)
    left, top, whole = 96.0, 30.0, total[STAGES[0]]
    scale = (WIDTH - left - 12) / max(whole, 1.05 * ROOM)
    for k, (name, parts) in enumerate(per.items()):
        x, y = left, top + 44 * k
        svg.text(8, y + 20, name, bold=name in fit)
        for n, (item, nbytes) in enumerate(
            zip(ITEMS, (parts.parameters, parts.gradients, parts.optimizer), strict=True)
        ):
            look, width = series(n), nbytes * scale
            svg.rect(x, y, width, 30, fill=look.colour, hatch=look.hatch, hover=f"{item}: {bytes_text(nbytes)}")
            x += width
        inside = x >= left + 0.72 * whole * scale  # beside a long bar there is no room
        text = bytes_text(total[name])
        at = x - 74 if inside else max(x, left + ROOM * scale) + 8 if x + 80 > left + ROOM * scale else x + 8
        if inside:
            svg.rect(at - 4, y + 5, text_width(text, SMALL) + 10, 20, "#fff", stroke_width=0.5)
        svg.text(at, y + 20, text)
    edge = left + ROOM * scale
    svg.line(edge, top - 6, edge, top + 168, dash="6 4", width=2)
    svg.text(min(edge, WIDTH - 70), top - 11, f"a GPU of {bytes_text(ROOM)}", anchor="middle")
    bottom = legend(svg, top + 182, [(item, series(n).colour, series(n).hatch) for n, item in enumerate(ITEMS)])
    rows = [
        {"": name, **{f"{item} (GB)": round(getattr(parts, item) / GB, 3) for item in ITEMS}}
        for name, parts in per.items()
    ]
    return book.Figure("What one GPU holds", "simulated", said, list(rows), svg.render(bottom))


def efficiency() -> Any:
    """How much of a step is computing, by the number of GPUs and the communication that nothing hides."""
    sliders = {"shorter": book.Slider("exposed time ÷", 1, 20, 1)}
    title = "How much exposed communication do the two sentences allow?"
    first, second = (MESSAGES * gpus * part / (COMPUTE * (1 - part)) for gpus, part, _ in CLAIMS)
    return First(
        "shorter-messages", "By which factor must the exposed time shrink, so that the second sentence holds?",
        {"2": "About 2", "5": "About 5", "13": "About 13"},
        book.explorer(title, sliders, lambda shorter: scaling(MESSAGES / shorter)),
        f"The second sentence holds if the exposed time shrinks by a factor of {second:.1f}, to "
        f"{MESSAGES / second:.2f} s, and the first one by {first:.1f}, to {MESSAGES / first:.3f} s. So the two "
        "sentences nearly agree with each other. But both contradict the example on their own page.",
        "13", f"It takes a factor of {second:.1f}: at 13 the second sentence does not hold yet, and at 14 it does.",
    )  # fmt: skip


def scaling(messages: float) -> book.Figure:
    """The part of a step that is computing on 256 to 16,384 GPUs, and two claims of the source as places."""

    def part(gpus: float) -> float:
        return COMPUTE / gpus / (COMPUTE / gpus + messages)

    half, at = COMPUTE // messages, part(4096)
    said = f"Exposed communication takes {messages:.3g} s here. On 4,096 GPUs {at:.1%} of a step is computing, so the "
    said += (
        f"first sentence {'holds' if at > 0.7 else 'does not hold'}. Up to {half:,.0f} GPUs at least half of a step is "
    )
    said += f"computing, so the second sentence {'holds' if half >= 8192 else 'does not hold'}."
    svg = Page("How much of a step is computing", said)
    left, top, wide, tall = 56.0, 12.0, WIDTH - 70.0, 190.0

    def place(gpus: float, share: float) -> tuple[float, float]:
        return left + wide * math.log(gpus / FEWEST) / math.log(MOST / FEWEST), top + tall * (1 - share)

    svg.rect(left, top, wide, tall, fill="none")
    steps = [FEWEST * (MOST / FEWEST) ** (k / 60) for k in range(61)]
    for a, b in zip(steps, steps[1:], strict=False):
        svg.line(*place(a, part(a)), *place(b, part(b)), width=3, colour=series(0).colour)
    for gpus, share, name in CLAIMS:
        x, y = place(gpus, share)
        holds = part(gpus) >= share
        svg.marker(x, y, "diamond", "#d55e00" if holds else "#fff", 6)
        side = -1 if holds else 1  # away from the curve, which falls: left of it and below, or right of it and above
        svg.text(x + 9 * side, y + 5 - 10 * side, name.partition(":")[0], anchor="end" if holds else "start")
        svg.text(left, top + tall + 58 + 19 * (gpus > 4096), f"{'◆' if holds else '◇'} {name}")
    for gpus in (256, 1024, 4096, 16_384):
        svg.text(place(gpus, 0)[0], top + tall + 17, f"{gpus:,}", anchor="middle" if gpus < MOST else "end")
    for share in (0, 0.5, 1):
        svg.text(left - 6, place(FEWEST, share)[1] + 5, f"{share:.0%}", anchor="end")
    svg.text(left + wide / 2, top + tall + 36, "GPUs (each mark: four times as many)", anchor="middle")
    svg.text(left + 8, top + tall - 10, "upwards: part of a step that is computing")
    rows = [{"GPUs": gpus, "computing (%)": round(100 * part(gpus), 1)} for gpus in (256, 614, 1024, 4096, 8192, MOST)]
    return book.Figure("How much of a step is computing", "simulated", said, list(rows), svg.render(top + tall + 87))


def failures() -> Any:
    """What is left of the time between two failures of a fleet of replicas."""
    sliders = {
        "every": book.Slider("a failure every", 10, 60, 18, unit="minutes"),
        "rejoin": book.Slider("second stall", 0, 200, cost.rejoin_stall_seconds(), 10, "s"),
        "replicas": book.Slider("replicas", 2, 48, 12),
    }
    many = cost.fault_tolerant_effective_time(18, 10, 3, 48, cost.rejoin_stall_seconds() / MINUTE)
    return First(
        "every-fifty",
        "By the paper's own rate, 100,000 GPUs with 8 in a server have a failure every 50 minutes. How much is done "
        "then?",
        {"80": "Nearly 80 %", "90": "Nearly 90 %", "98": "Nearly 98 %"},
        book.explorer("From one failure to the next", sliders, one_failure),
        "Without the second stall 80.1 % is done, so the paper's number is right if one forgets that stall. With a "
        "failure every 50 minutes, 89.8 % is done. More than 12 replicas hardly help, because the two stalls stop all "
        f"of them: with 48 it is {many:.1%}. A larger fleet also fails more often, but the panel does not know that: "
        "you have to move the first slider, too.",
        "90", "With a failure every 50 minutes, 89.8 % is done.",
    )  # fmt: skip


def one_failure(every: float, rejoin: float, replicas: int) -> book.Figure:
    """From one failure of a replica to the next: nobody works, all but one work, or all."""
    recovery, stall, one_less = 10.0, 3.0, (replicas - 1) / replicas
    parts = [("nobody", stall, 0.0), (f"{replicas - 1} of {replicas}", recovery - stall - rejoin / MINUTE, one_less),
             ("nobody", rejoin / MINUTE, 0.0), (f"all {replicas}", every - recovery, 1.0)]  # fmt: skip
    share = cost.fault_tolerant_effective_time(every, recovery, stall, replicas, rejoin / MINUTE)
    said = f"Of the work that {replicas} replicas could do in {every:g} minutes, {share:.1%} is done."
    svg = Page("From one failure to the next", said)
    x, top, scale, tall = 8.0, 26.0, (WIDTH - 16) / every, 60.0
    for what, minutes, part in parts:
        if minutes < 0.005:
            continue
        look, width = series(1 if part == 1 else 0), minutes * scale
        svg.rect(x, top, width, tall, dash="2 3")
        svg.rect(x, top + tall * (1 - part), width, tall * part, fill=look.colour, hatch=look.hatch)
        if 0 < part < 1:  # what is missing is a narrow strip
            middle = x + max(width / 2, 48)
            svg.text(middle, top - 10, f"1 of {replicas} away", anchor="middle")
            svg.line(x + width / 2, top - 6, x + width / 2, top + tall * (1 - part) / 2, width=1.5)
        if width > 52:
            svg.text(x + width / 2, top + tall + 17, what, anchor="middle")
            svg.text(x + width / 2, top + tall + 34, f"{minutes:.3g} min", anchor="middle")
        x += width
    svg.text(8, top + tall + 56, "Filled: what is done. White: what the failure costs. Below: who works, and how long.")
    rows = [{"who works": what, "minutes": round(minutes, 3), "part": f"{part:.0%}"} for what, minutes, part in parts]
    return book.Figure("From one failure to the next", "simulated", said, list(rows), svg.render(top + tall + 64))
