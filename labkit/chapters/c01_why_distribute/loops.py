"""What the third part of chapter 1 shows: the loops of training, the work of each rank, and the holes of a pipeline."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit import book
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import GREY, ON_COLOUR, YELLOW, series
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import bytes_text, listing, seconds_text
from labkit.cost.units import MS
from labkit.data import digits
from labkit.models import MLP, MLPConfig
from labkit.wire import Group

LAYER, START = 5 * MS, 0.2 * MS  # a layer's work on the whole batch, and what each kernel needs to be started
RANKS, SAMPLES, LAYERS, COLUMNS = 4, 8, 4, 4
DEPTH = 8  # layers of the model that is cut in three ways
CUTS = ("samples", "columns", "layers")
LOOPS = {  # the loop: what it says, and what one sees when it is cut
    "epochs": ("for epoch in range(3):", "Epochs cannot be cut: the second begins with the weights that the first "
               "one leaves behind. So the ranks would have to work one after the other."),
    "steps": ("for batch in epoch:", "Steps cannot be cut either: step 2 needs the weights that step 1 makes."),
    "samples": ("for sample in batch:", "Data parallelism. Every rank computes all layers for its own samples, and "
                "the gradients are averaged once a step."),
    "layers": ("for layer in model:", "Pipeline parallelism. Every rank computes its own layers for all samples, and "
               "at each cut the activations travel on to the next rank."),
    "columns": ("for column in layer:", "Tensor parallelism. Every rank computes some columns of every layer, and "
                "after each layer the columns are joined."),
}  # fmt: skip


def eight_layers(seed: int) -> tuple[MLP, Tensor, Tensor]:
    """A model of eight layers, 64 digits of 8 x 8 pixels, and the logits that one process computes for them."""
    model = MLP(MLPConfig((64, *[128] * (DEPTH - 1), 10)), seed)
    images = digits(seed=seed)[0].x[:64].flatten(1)
    with torch.no_grad():
        return model, images, model(images)


def kernel(group: Group, part: float) -> None:
    """Stands for the kernel of a part of a layer's work on the whole batch."""
    group.compute(LAYER * part + START)


def nest() -> book.Player:
    """The loops of training, and who does what of one step when each of them is cut among four ranks."""
    words = ["One step is all of these cells: for each sample of the batch, every column of every layer. One rank "
             "does them all."] + [words for _, words in LOOPS.values()]  # fmt: skip
    title = "Which loop do you cut?"
    cut = {"epochs": "no", "steps": "no", "samples": "a parallel loop", "layers": "a pipeline", "columns": "vectorized"}
    sent = {"samples": "gradients, once a step", "layers": "activations, at each cut",
            "columns": "activations, in every layer"}  # fmt: skip
    rows: list[Row] = [
        {"loop": loop, "cut as": cut[loop], "what travels": sent.get(loop, "-"), "in words": LOOPS[loop][1]}
        for loop in LOOPS
    ]
    said = "Samples, layers and columns can be given to different ranks. Epochs and steps wait for each other."
    frames: list[str | None] = [None, *LOOPS]
    pictures = [(_nest(title, said, frame), said) for said, frame in zip(words, frames, strict=True)]
    return book.play(pictures, title=title, badge="simulated", rows=rows, sentence=said, still=3)


def owner(loop: str | None, sample: int, layer: int, column: int) -> int:
    """Which rank computes a cell."""
    return {"samples": sample * RANKS // SAMPLES, "layers": layer * RANKS // LAYERS,
            "columns": column * RANKS // COLUMNS}.get(loop or "", 0)  # fmt: skip


def _nest(title: str, said: str, loop: str | None) -> str:
    svg = Svg(WIDTH, title, said)
    top = max(heading(svg, "simulated", said), 70) + 8
    for k, (name, (code, _)) in enumerate(LOOPS.items()):
        x, y = 14 + 14.0 * k, top + 20 + 30 * k
        if name == loop:
            svg.rect(x - 6, y - 15, 196 - 8 * k, 22, fill=YELLOW if owner(loop, 7, 3, 3) else GREY, stroke="none",
                     radius=4)  # fmt: skip
        svg.text(x, y, code, 13, bold=name == loop, on_colour=name == loop)
    svg.text(14 + 14.0 * 5, top + 20 + 150, "compute()", 13)
    left, wide, tall, gap = 300.0, 22.0, 20.0, 10.0
    for layer in range(LAYERS):
        x = left + layer * (COLUMNS * wide + gap)
        svg.text(x + COLUMNS * wide / 2, top + 12, f"layer {layer + 1}", 11.5, "middle")
        for sample in range(SAMPLES):
            for column in range(COLUMNS):
                look = series(owner(loop, sample, layer, column))
                svg.rect(x + column * wide, top + 20 + sample * tall, wide, tall, look.colour, look.hatch,
                         stroke=ON_COLOUR, stroke_width=0.5)  # fmt: skip
    for sample in range(SAMPLES):
        svg.text(left - 6, top + 34 + sample * tall, f"sample {sample + 1}", 11, "end")
    bottom = top + 20 + SAMPLES * tall
    ranks = RANKS if owner(loop, 7, 3, 3) else 1
    for rank in range(ranks):
        x = left + rank * 95.0
        svg.rect(x, bottom + 14, 18, 12, series(rank).colour, series(rank).hatch, stroke_width=0.8)
        svg.text(x + 24, bottom + 24, f"rank {rank}", 11.5)
    return svg.render(bottom + 36)


def _rows(run: Any) -> list[list[tuple[float, float]]]:
    spans = run.trace.spans("compute")
    return [sorted((s.start, s.end) for s in spans if s.rank == rank) for rank in range(run.trace.world_size)]


def numbers(run: Any) -> tuple[str, list[list[int]]]:
    """What kernels are numbered by, and each rank's numbers: pieces of the batch if layers are cut, else layers."""
    rows = _rows(run)
    if run.results[0][0] != "layers":
        return "layer", [list(range(1, len(row) + 1)) for row in rows]
    held = [len(part) for part in torch.arange(DEPTH).tensor_split(len(rows))]
    return "piece of the batch", [[k // n + 1 for k in range(len(row))] for row, n in zip(rows, held, strict=True)]


def holes(run: Any) -> book.Player:
    """Who computes what when, moment by moment; hatched where a rank does not compute."""
    rows, (what, number) = _rows(run), numbers(run)
    end = run.trace.duration
    ends = sorted({round(stop, 9) for row in rows for _, stop in row})
    every = max(1, -(-len(ends) // 24))  # a picture for each end, or for so many
    moments = [0.0, *ends[every - 1 :: every]]
    moments += [] if moments[-1] == ends[-1] else [ends[-1]]
    moments[-1:] = [end] if end < ends[-1] + 1e-8 else [ends[-1], end]
    busy = sum(stop - start for row in rows for start, stop in row)
    idle = 1 - busy / (end * len(rows))
    title = "Who computes when"
    said = (
        f"The forward pass takes {seconds_text(end)}. Of the ranks' time {100 * (1 - idle):.0f} % is computing, and "
        f"{100 * idle:.0f} % is messages and waiting."
    )
    words = []
    for now in moments:
        done = [sum(stop <= now + 1e-9 for _, stop in row) for row in rows]
        at_work = [f"rank {r}" for r, row in enumerate(rows) if any(a < now + 1e-9 < b - 1e-9 for a, b in row)]
        working = f"{listing(at_work)} compute{'s' * (len(at_work) == 1)}" if at_work else "nobody computes"
        words.append(
            f"At {seconds_text(now)} the ranks have computed {listing([str(d) for d in done])} boxes. "
            + ("All is done. " + said if now == end else f"Now {working}.")
        )
    table: list[Row] = [
        {"rank": r, "kernels": len(row), "computing (ms)": 1e3 * sum(b - a for a, b in row),
         "idle (ms)": 1e3 * (end - sum(b - a for a, b in row))} for r, row in enumerate(rows)
    ]  # fmt: skip
    pictures = [
        (_holes(title, text, rows, number, what, now, end), text) for text, now in zip(words, moments, strict=True)
    ]
    return book.play(pictures, title=title, badge="emulated", rows=table, sentence=said, begin=len(moments) - 1)


def _holes(
    title: str, said: str, rows: list[list[tuple[float, float]]], number: list[list[int]], what: str, now: float,
    end: float,
) -> str:  # fmt: skip
    svg = Svg(WIDTH, title, said)
    top = max(heading(svg, "emulated", said), 70) + 10
    left, right, tall = 60.0, WIDTH - 14.0, 30.0 if len(rows) <= 8 else 18.0

    def across(t: float) -> float:
        return left + (right - left) * t / end

    for r, row in enumerate(rows):
        y = top + r * (tall + 8)
        svg.text(left - 8, y + tall / 2 + 4, f"rank {r}", anchor="end")
        if now > 0:
            svg.rect(left, y, across(now) - left, tall, hatch="/", dash="3 2")
        for n, (start, stop) in zip(number[r], row, strict=True):
            if start >= now - 1e-9:
                continue
            x, wide = across(start), across(min(stop, now)) - across(start)
            svg.rect(x, y, wide, tall, series((n - 1) % 8).colour, stroke=ON_COLOUR, stroke_width=0.7,
                     hover=f"rank {r}, {what} {n}")  # fmt: skip
            if wide > 18:
                svg.text(x + wide / 2, y + tall / 2 + 4, str(n), 11.5, "middle", on_colour=True)
    bottom = top + len(rows) * (tall + 8)
    svg.line(left, bottom, right, bottom)
    svg.text(left, bottom + 16, "0", 11)
    svg.text(right, bottom + 16, seconds_text(end), 11, "end")
    svg.rect(left + 60, bottom + 8, 18, 11, hatch="/", dash="3 2")
    svg.text(left + 84, bottom + 17, f"does not compute; the number in a box is the {what}", 11)
    return svg.render(bottom + 28)


def logits_of(run: Any) -> Tensor:
    """What the ranks computed together: the last rank's result, or all of them where samples are cut."""
    cut, results = run.results[0][0], [result for _, result in run.results]
    return torch.cat(results) if cut == "samples" else results[-1]


def computed(run: Any) -> float:
    """Seconds until the last kernel was over."""
    return float(max(s.end for s in run.trace.spans("compute")))


def same(whole: Tensor) -> Any:
    """A view that compares the ranks' logits with those of one process."""

    def view(run: Any) -> str:
        sent, messages = run.trace.bytes_sent(), sum(run.trace.messages())
        equal = torch.allclose(logits_of(run), whole, atol=1e-5)
        said = "The logits are those of one process. " if equal else "The logits are NOT those of one process. "
        return said + (
            f"The forward pass took {seconds_text(run.trace.duration)} (emulated), and all ranks together sent "
            f"{bytes_text(sum(sent))} in {messages:,} message{'s' * (messages != 1)}."
            + (
                ""
                if run.results[0][0] == "layers"
                else " (“pieces” has no effect here: it belongs to the cut by layers.)"
            )
        )

    return view
