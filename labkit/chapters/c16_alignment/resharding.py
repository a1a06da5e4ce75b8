"""A policy between two layouts, drawn and run: trained with tensor and pipeline parallelism, generated from without."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from labkit import Group, Link, Network, book, cost
from labkit.align.reshard import Reshard, training_stage
from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.style import BLUE, ON_COLOUR, ORANGE
from labkit.book.drawing.svg import Svg
from labkit.models import GPTConfig
from labkit.models.threads import one_thread
from labkit.parallel.tensor.shard_spec import shard_specs_of

CONFIG = GPTConfig(vocab=128, context=40, layers=4, heads=8, width=128, tied=False)
LINK = Link(1e9, 20e-6)
NETWORK = partial(Network, ranks_per_node=1, inter=LINK)
TENSOR, PIPELINE = 2, 2  # of training
RANKS = TENSOR * PIPELINE


@dataclass(frozen=True)
class Moved:
    """Of a rank: bytes that arrived, and those of its part to generate with; of its stage, bytes that tensor
    parallelism cuts and that every rank has whole; seconds on the virtual clock."""

    received: int
    part: int
    cut: int
    whole: int
    seconds: float


def moved(group: Group, generation: int) -> Moved:
    """From the layout of training to tensor parallelism of `generation` ranks, once."""
    with one_thread(), torch.no_grad():
        stage = training_stage(CONFIG, group, TENSOR, PIPELINE)
        reshard = Reshard(stage, group, TENSOR, PIPELINE, generation)
        group.step(1)
        begin = group.context.clock_here().now()
        policy = reshard()
        taken = group.context.clock_here().now() - begin
    cut, whole = 0, 0
    for _, p, spec in shard_specs_of(stage):
        cut, whole = (cut, whole + p.nbytes) if spec is None else (cut + TENSOR * p.nbytes, whole)
    return Moved(reshard.received, sum(p.nbytes for p in policy.parameters()), cut, whole, taken / 1e9)


@dataclass(frozen=True)
class Least:
    """received: bytes that a rank of each stage must receive (`cost.reshard_bytes`). seconds: of the slowest rank if
    nothing but these bytes took time: what it receives, or what a rank must send."""

    received: list[int]
    seconds: float


def least(run: Any, generation: int) -> Least:
    stages: list[Moved] = run.results[::TENSOR]
    lacks = cost.reshard_bytes([s.cut for s in stages], [s.whole for s in stages], TENSOR, generation)
    moves = [m for m in run.trace.sends if m.step == 1]
    sent = max(sum(m.nbytes for m in moves if m.src // TENSOR == s) / TENSOR for s in range(PIPELINE))
    return Least(lacks, max(*lacks, sent) / LINK.bandwidth)


def layouts() -> book.Player:
    """Which layers and which part of them each rank has, for training, for generating, and what it must receive."""
    frames = []
    order = cost.generation_order(TENSOR, PIPELINE)
    part = {rank: order.index(rank) for rank in range(RANKS)}
    said = [
        "Training: ranks 0 and 1 are the first stage of a pipeline, and each has a half of layers 0 and 1. Ranks 2 and "
        "3 are the second stage.",
        "Generating: every rank has a quarter of every layer, so that all four work on every token.",
        "What a rank has already stays where it is. The quarters are dealt so that each lies within the half that the "
        "rank has; only the other stage's layers must come.",
    ]
    for n, words in enumerate(said):
        frames.append((_layout(n, part, words), words))
    return book.play(frames, title="Two layouts of one policy", badge="simulated", still=2,
                     rows=[{"step": n + 1, "what": words} for n, words in enumerate(said)])  # fmt: skip


def _layout(step: int, part: dict[int, int], said: str) -> str:
    svg = Svg(WIDTH, "Two layouts of one policy", said)
    items = [("has it", BLUE, "", ""), ("must receive it", ORANGE, "/", ""), ("not here", "none", "", "3 2")]
    top = legend(svg, heading(svg, "simulated", said), items) + 8
    wide, tall = 150.0, 26.0
    for rank in range(RANKS):
        x = 20 + rank * 184
        svg.text(x + wide / 2, top + 12, f"rank {rank}", 12, "middle", bold=True)
        for layer in range(CONFIG.layers):
            y = top + 22 + layer * (tall + 8)
            svg.rect(x, y, wide, tall, "none", "", dash="3 2")
            mine = layer // 2 == rank // TENSOR
            half = rank % TENSOR
            if step == 0 and mine:
                svg.rect(x + half * wide / 2, y, wide / 2, tall, BLUE, "", ON_COLOUR)
            if step > 0:
                colour, hatch = (BLUE, "") if mine or step == 1 else (ORANGE, "/")
                svg.rect(x + part[rank] * wide / 4, y, wide / 4, tall, colour, hatch, ON_COLOUR)
            if rank == 0:
                svg.text(x - 4, y + 17, str(layer), 11, "end")
    return svg.render(top + 22 + CONFIG.layers * (tall + 8) + 6)
