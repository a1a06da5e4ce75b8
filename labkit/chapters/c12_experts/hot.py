"""The hot expert of chapter 12: cures, and how evenly the experts are chosen while a small GPT learns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from labkit import book, cost
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import BLUE, ON_COLOUR
from labkit.book.drawing.svg import Svg
from labkit.chapters.c12_experts.shapes import MIXTRAL as MIXTRAL, WIDTH_AND_HIDDEN as WIDTH_AND_HIDDEN
from labkit.models import GPTConfig, MoEConfig
from labkit.models.moe import MoE

CURES = ["nothing", "a loss", "a bias"]
Step = tuple[float, list[int]]  # the loss, and how often each expert was chosen


def gpt(experts: int, cure: str = "nothing", strength: float = 0.1, choices: int = 1) -> GPTConfig:
    """A GPT of one block with a mixture. The bias moves by a fifth of `strength` in a step, on sigmoid scores."""
    cured = {
        "nothing": {"balance": 0.0},
        "a loss": {"balance": strength},
        "a bias": {"balance": 0.0, "bias_rate": strength / 5, "scores": "sigmoid"},
    }[cure]
    moe = MoEConfig(experts, choices, hidden=1.0, **cured)  # type: ignore[arg-type]
    return GPTConfig(width=32, context=32, layers=1, heads=2, moe=moe)


def imbalance(steps: Sequence[Step]) -> list[float]:
    return [cost.expert_imbalance(load) for _, load in steps]


def late(steps: Sequence[Step]) -> float:
    """The mean imbalance of the last half."""
    every = imbalance(steps)
    return sum(every[len(every) // 2 :]) / len(every[len(every) // 2 :])


def curve(run: Any) -> book.Figure:
    """The most loaded expert over the mean, step by step, and the loss."""
    steps: list[Step] = run.results[0]
    every = imbalance(steps)
    worst = len(steps[0][1])
    said = (
        f"The busiest expert gets {every[0]:.2g} times the mean in the first step, {max(every):.2g} times at worst, "
        f"and {late(steps):.2g} times on average in the last half. {worst} times would be all tokens for one expert. "
        f"The loss falls from {steps[0][0]:.2f} to {steps[-1][0]:.2f}."
    )
    lines = {"busiest expert / mean": every, "loss (nats a byte)": [loss for loss, _ in steps]}
    return book.lines(lines, y="times, or nats", title="While the model learns", sentence=said)


def shares(run: Any) -> book.Player:
    """Every expert's share of the choices, a bar each, step by step."""
    steps: list[Step] = run.results[0]
    keep = sorted({0, 1, 2, 3, 5, *range(7, len(steps), 4), len(steps) - 1} & set(range(len(steps))))
    frames = []
    for n in keep:
        load = steps[n][1]
        hot = max(range(len(load)), key=load.__getitem__)
        idle = sum(not x for x in load)
        words = (
            f"Step {n + 1}: expert {hot} gets {load[hot] / sum(load):.0%} of the tokens, "
            f"{cost.expert_imbalance(load):.2g} times the mean, and {idle} of {len(load)} get none."
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
        tall = high * n / sum(load)
        svg.rect(left + e * wide + 0.15 * wide, top + high - tall, 0.7 * wide, tall, BLUE, "/", ON_COLOUR)
        name = f"expert {e}" if len(load) <= 10 else f"{e}"
        svg.text(left + (e + 0.5) * wide, top + high + 15, name, 10.5, "middle")
        svg.text(left + (e + 0.5) * wide, top + high + 30, f"{n / sum(load):.0%}", 10.5, "middle", bold=True)
    even = top + high - high / len(load)
    svg.line(left, even, WIDTH - 20, even, dash="6 3", width=2)
    svg.text(8, even + 4, "even", 10.5)
    svg.line(left, top + high, WIDTH - 20, top + high)
    return svg.render(top + high + 38)


def cures(runs: Mapping[str, Any]) -> book.Figure:
    """cure -> run: the busiest expert over the mean, step by step."""
    lines = {name: imbalance(run.results[0]) for name, run in runs.items()}
    told = ", ".join(f"{late(run.results[0]):.2g} with {name}" for name, run in runs.items())
    said = f"Busiest expert over the mean, on average in the last half: {told}. 1 is even."
    return book.lines(lines, y="busiest expert / mean", title="Three ways to train", sentence=said)


def mixtures(model: nn.Module) -> list[MoE]:
    return [layer for layer in model.modules() if isinstance(layer, MoE)]
