"""The hot expert of chapter 12: how evenly the experts are chosen while a small GPT learns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from labkit import book, cost
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import BLUE, ON_COLOUR
from labkit.book.drawing.svg import Svg
from labkit.chapters.c12_experts.shapes import MIXTRAL as MIXTRAL, WIDTH_AND_HIDDEN as WIDTH_AND_HIDDEN
from labkit.data import batches, text
from labkit.models import GPTConfig, MoEConfig
from labkit.wire import Group

CURES = ["nothing", "a loss", "a bias"]
TURNS = (("a loss", 0.1), ("a loss", 0.5), ("a bias", 0.02), ("a bias", 0.1), ("a bias", 0.5))  # to compare
CHOICES = 2  # of a token
Step = tuple[float, list[int]]  # the loss, and how often each expert was chosen


def gpt(experts: int, choices: int = CHOICES) -> GPTConfig:
    """A GPT of one block, with a mixture in the place of its feed-forward part."""
    moe = MoEConfig(experts, choices, hidden=1.0, balance=0.0)
    return GPTConfig(width=32, context=32, layers=1, heads=2, moe=moe)


def some_text(seed: int) -> Tensor:
    """32 bytes of the text, as one sequence."""
    inputs, _ = next(batches(text().train, 1, 32, seed))
    return inputs


def lessons(group: Group, seed: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """What this rank reads: two sequences of 32 bytes in each step, and their next bytes."""
    return islice(batches(text().train, 2, 32, seed, group.rank, group.size), steps)


def imbalance(steps: Sequence[Step], per_rank: int = 1) -> list[float]:
    """By step the load of the busiest rank over the mean, where a rank holds `per_rank` experts."""
    ranks = [[sum(load[e : e + per_rank]) for e in range(0, len(load), per_rank)] for _, load in steps]
    return [cost.expert_imbalance(load) for load in ranks]


def watch(layer: Any, strength: float) -> int:
    """As what `train` adds to the loss, it adds nothing. It notes how alike the tokens are that reach the router."""
    unit_nd = F.normalize(layer.tokens_nd, dim=-1)
    n = len(unit_nd)
    cosine = (unit_nd.sum(0).square().sum().item() - n) / (n * (n - 1))  # of two different tokens, on average
    with layer.group.span("alike", cosine=cosine):
        return 0


def cosines(run: Any) -> list[float]:
    """By step what `watch` has noted, as a mean over the ranks."""
    spans = run.trace.spans("alike")
    by_rank = [[s.attrs["cosine"] for s in spans if s.rank == rank] for rank in range(run.trace.world_size)]
    return [sum(each) / len(each) for each in zip(*by_rank, strict=True)]


def late(steps: Sequence[Step], per_rank: int = 1) -> float:
    """The mean imbalance of the last half."""
    every = imbalance(steps, per_rank)
    return sum(every[len(every) // 2 :]) / len(every[len(every) // 2 :])


def loss_at_end(steps: Sequence[Step]) -> float:
    """Of the language model, as a mean of the last five steps."""
    return sum(loss for loss, _ in steps[-5:]) / len(steps[-5:])


def shares(run: Any) -> book.Player:
    """Of each expert how many tokens have chosen it, a bar each, step by step."""
    steps: list[Step] = run.results[0]
    keep = sorted({0, 1, 2, 3, 5, *range(7, len(steps), 4), len(steps) - 1} & set(range(len(steps))))
    frames = []
    for n in keep:
        load = steps[n][1]
        hot, idle = max(range(len(load)), key=load.__getitem__), sum(not x for x in load)
        words = (
            f"Step {n + 1}: {load[hot] / sum(load) * CHOICES:.0%} of the tokens choose expert {hot}, which is "
            f"{cost.expert_imbalance(load):.2g} times the mean. "
            + (f"{idle} of {len(load)} experts get none." if idle else "Every expert gets some.")
        )
        frames.append((_bars(words, load), words))
    rows = [{"step": n + 1, **{f"expert {e}": x for e, x in enumerate(steps[n][1])}} for n in keep]
    worst = max(range(len(keep)), key=lambda k: cost.expert_imbalance(steps[keep[k]][1]))
    return book.play(frames, title="Who is chosen", badge="measured", rows=rows, still=worst)


def _bars(words: str, load: Sequence[int]) -> str:
    svg = Svg(WIDTH, "Who is chosen", words)
    top = max(heading(svg, "measured", words), 56.0) + 6
    high, left, wide = 140.0, 50.0, (WIDTH - 70) / len(load)
    for e, n in enumerate(load):
        share = n / sum(load) * CHOICES  # of the tokens
        svg.rect(
            left + e * wide + 0.15 * wide, top + high * (1 - share), 0.7 * wide, high * share, BLUE, "/", ON_COLOUR
        )
        name = f"expert {e}" if len(load) <= 10 else f"{e}"
        svg.text(left + (e + 0.5) * wide, top + high + 15, name, 10.5, "middle")
        if len(load) <= 16:
            svg.text(left + (e + 0.5) * wide, top + high + 30, f"{share:.0%}", 10.5, "middle", bold=True)
    even = top + high - high * CHOICES / len(load)
    svg.line(left, even, WIDTH - 20, even, dash="6 3", width=2)
    svg.text(8, even + 4, "even", 10.5)
    svg.line(left, top + high, WIDTH - 20, top + high)
    return svg.render(top + high + 38)


def against(runs: Mapping[str, Any]) -> book.Figure:
    """cure -> run: the busiest expert over the mean, step by step."""
    lines = {name: imbalance(run.results[0]) for name, run in runs.items()}
    told = ", ".join(f"{late(run.results[0]):.2g} with {name}" for name, run in runs.items())
    said = f"Busiest expert over the mean, on average in the last half: {told}. 1 is even."
    return book.lines(lines, y="busiest expert / mean", title="The busiest expert", sentence=said)
