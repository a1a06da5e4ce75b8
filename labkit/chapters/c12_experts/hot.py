"""The hot expert of chapter 12: how evenly the experts are chosen while a small GPT learns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit import book, cost
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import BLUE, ON_COLOUR
from labkit.book.drawing.svg import Svg
from labkit.chapters.c12_experts import layers
from labkit.chapters.c12_experts.shapes import MIXTRAL as MIXTRAL, WIDTH_AND_HIDDEN as WIDTH_AND_HIDDEN
from labkit.collectives import all_reduce
from labkit.data import batches, text
from labkit.models import GPT, GPTConfig, MoEConfig
from labkit.wire import Group

CURES = ["nothing", "a loss", "a bias"]
TURNS = (("a loss", 0.1), ("a loss", 0.5), ("a bias", 0.02), ("a bias", 0.1), ("a bias", 0.5))  # to compare
CHOICES = 2  # of a token


class Step(NamedTuple):
    """The language model's loss, how often each expert was chosen, and how alike the tokens of a rank are.

    alike: the mean cosine of two tokens that reach the router. common: the part of the output logits' squares that is
    the same for all tokens.
    """

    loss: float
    load: list[int]
    alike: float = 0.0
    common: float = 0.0


def gpt(experts: int, choices: int = CHOICES, hidden: float = 1.0) -> GPTConfig:
    """A GPT of one block, with a mixture in the place of its feed-forward part. hidden: of an expert, in widths."""
    moe = MoEConfig(experts, choices, hidden=hidden, balance=0.0)
    return GPTConfig(width=32, context=32, layers=1, heads=2, moe=moe)


def some_text(seed: int) -> Tensor:
    """32 bytes of the text, as one sequence."""
    inputs, _ = next(batches(text().train, 1, 32, seed))
    return inputs


def lessons(group: Group, seed: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """What this rank reads: two sequences of 32 bytes in each step, and their next bytes."""
    return islice(batches(text().train, 2, 32, seed, group.rank, group.size), steps)


class SmallGpt:
    """A GPT of one block in training. Its mixture computes as `forward` says; all ranks share out its experts.

    layer: the mixture. bias_e: what `choose` gets beside the logits, 0 until somebody moves it. alone: the group of
    this rank, since nobody else has its experts. told: the steps so far.
    """

    def __init__(
        self, group: Group, forward: Callable[..., Any], choose: Callable[..., Any], experts: int, seed: int
    ) -> None:
        self.group, self.alone, self.bias_e = group, group.subgroup([group.rank]), torch.zeros(experts)
        self.model = GPT(gpt(experts), seed)
        self.layer = layers.spread(self.model, group, forward, choose=partial(choose, bias_e=self.bias_e))
        self.model.lm_head.register_forward_hook(self._keep)
        self.adam, self.told = torch.optim.AdamW(self.model.parameters(), lr=2e-3), list[Step]()

    def step(self, loss: Tensor) -> None:
        """Takes AdamW's step with the gradients as they are, clears them, and notes the step; `loss`: of the task."""
        self.adam.step()
        self.adam.zero_grad()
        load_e = all_reduce(self.layer.load_e.clone(), self.group)
        self.told.append(Step(loss.item(), load_e.int().tolist(), cosine(self.layer.tokens_nd),
                              common(self.scores_btv)))  # fmt: skip

    def _keep(self, head: Any, given: Any, scores_btv: Tensor) -> None:
        self.scores_btv = scores_btv.detach()


def cosine(tokens_nd: Tensor) -> float:
    """Of two different tokens, on average over all pairs."""
    unit_nd, n = F.normalize(tokens_nd, dim=-1), len(tokens_nd)
    return (unit_nd.sum(0).square().sum().item() - n) / (n * (n - 1))


def common(scores_btv: Tensor) -> float:
    """Of the squares of the logits, each less its token's mean, the part that all tokens have in common."""
    every_nv = scores_btv.flatten(0, -2)
    every_nv = every_nv - every_nv.mean(-1, keepdim=True)
    return (every_nv.mean(0).square().sum() / every_nv.square().sum(-1).mean()).item()


def imbalance(steps: Sequence[Step], per_rank: int = 1) -> list[float]:
    """By step the load of the busiest rank over the mean, where a rank holds `per_rank` experts."""
    ranks = [[sum(step.load[e : e + per_rank]) for e in range(0, len(step.load), per_rank)] for step in steps]
    return [cost.expert_imbalance(load) for load in ranks]


def leaders(steps: Sequence[Step]) -> int:
    """How many different experts are the busiest one in some step of the last half."""
    return len({max(range(len(step.load)), key=step.load.__getitem__) for step in steps[len(steps) // 2 :]})


def cosines(run: Any) -> list[float]:
    """By step how alike two tokens of a rank are, as a mean over the ranks."""
    return [sum(step.alike for step in steps) / len(steps) for steps in zip(*run.results, strict=True)]


def shared_logits(run: Any, step: int) -> float:
    """The part of the output logits that all tokens have in common, in a step, as a mean over the ranks."""
    return sum(steps[step].common for steps in run.results) / len(run.results)


def task(run: Any) -> float:
    """The language model's loss in the last half of the steps, as a mean over steps and ranks."""
    late = [step.loss for steps in run.results for step in steps[len(steps) // 2 :]]
    return sum(late) / len(late)


def late(steps: Sequence[Step], per_rank: int = 1) -> float:
    """The mean imbalance of the last half."""
    every = imbalance(steps, per_rank)
    return sum(every[len(every) // 2 :]) / len(every[len(every) // 2 :])


def shares(run: Any, beside: Any = None) -> book.Player:
    """Of each expert how many tokens have chosen it, a bar each, step by step.

    beside: a run without a cure, whose bars stand beside these; then the pictures begin with the last step.
    """
    steps: list[Step] = run.results[0]
    without: list[Step] = beside.results[0] if beside is not None else []
    keep = sorted({0, 1, 2, 3, 5, *range(7, len(steps), 4), len(steps) - 1} & set(range(len(steps))))
    frames = []
    for n in keep:
        load = steps[n].load
        hot, idle = max(range(len(load)), key=load.__getitem__), sum(not x for x in load)
        words = (
            f"Step {n + 1}: {load[hot] / sum(load) * CHOICES:.0%} of the tokens choose expert {hot}, which is "
            f"{cost.expert_imbalance(load):.2g} times the mean. "
            + (f"{idle} of {len(load)} experts get none." if idle else "Every expert gets some.")
        )
        if without:
            words += f" With nothing the busiest one has {cost.expert_imbalance(without[n].load):.2g} times."
        frames.append((_bars(words, load, without[n].load if without else None), words))
    last = bool(without)
    rows = [{"step": n + 1, **{f"expert {e}": x for e, x in enumerate(steps[n].load)}} for n in keep]
    worst = max(range(len(keep)), key=lambda k: cost.expert_imbalance(steps[keep[k]].load))
    return book.play(frames, title="Who is chosen", badge="measured", rows=rows, still=-1 if last else worst,
                     begin=len(frames) - 1 if last else 0, label="Picture")  # fmt: skip


def _bars(words: str, load: Sequence[int], without: Sequence[int] | None = None) -> str:
    svg = Svg(WIDTH, "Who is chosen", words)
    top = max(heading(svg, "measured", words), 56.0) + 6
    high, left, wide = 140.0, 50.0, (WIDTH - 70) / len(load)
    for e, n in enumerate(load):
        share, bar = n / sum(load) * CHOICES, 0.35 if without else 0.7  # of the tokens; of the room for an expert
        if without:
            tall = high * without[e] / sum(without) * CHOICES
            svg.rect(left + (e + 0.15) * wide, top + high - tall, bar * wide, tall, "none", "", ON_COLOUR)
        svg.rect(
            left + (e + 0.85 - bar) * wide, top + high * (1 - share), bar * wide, high * share, BLUE, "/", ON_COLOUR
        )
        name = f"expert {e}" if len(load) <= 10 else f"{e}"
        svg.text(left + (e + 0.5) * wide, top + high + 15, name, 10.5, "middle")
        if len(load) <= 16:
            svg.text(left + (e + 0.5) * wide, top + high + 30, f"{share:.0%}", 10.5, "middle", bold=True)
    even = top + high - high * CHOICES / len(load)
    svg.line(left, even, WIDTH - 20, even, dash="6 3", width=2)
    svg.text(8, even + 4, "even", 10.5)
    svg.line(left, top + high, WIDTH - 20, top + high)
    if without:
        svg.text(left, top + high + 48, "Hatched: this run. Empty: the same step with nothing.", 10.5)
    return svg.render(top + high + (56 if without else 38))


def against(runs: Mapping[str, Any]) -> book.Figure:
    """cure -> run: the busiest expert over the mean, step by step."""
    lines = {name: imbalance(run.results[0]) for name, run in runs.items()}
    some = next(iter(runs.values())).results[0]
    lines["even"] = [1.0] * len(some)
    told = ", ".join(f"{late(run.results[0]):.2g} with {name}" for name, run in runs.items())
    said = f"Busiest expert over the mean, on average in the last half: {told}. 1 is even."
    return book.lines(lines, y="busiest expert / mean", title="The busiest expert", sentence=said,
                      within=(0.0, 1.075 * len(some[0].load) / CHOICES))  # fmt: skip
