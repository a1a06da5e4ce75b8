"""A cut model beside one device: losses, norms and weights over steps of AdamW, and what four mistakes do to them.

Everything is in 64 bits, so what differs by more than 1e-6 is a mistake and no rounding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from labkit.collectives import all_reduce
from labkit.cost.collectives.parts import split_sizes
from labkit.data import batches, text
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.parallel import AdamW, Hybrid, HybridConfig
from labkit.parallel.hybrid import norm as norms_of, whole
from labkit.parallel.hybrid.plain import Plain
from labkit.parallel.hybrid.replicas import places
from labkit.parallel.pipeline.running.tied import Tied
from labkit.wire import Group

MODEL = GPTConfig(context=16, layers=4, heads=8, width=32, expansion=2)
BATCH, STEPS, CLIP = 16, 3, 0.3
SETTINGS: dict[str, Any] = {"lr": 1e-2, "eps": 1e-4}
NEAR = 1e-6  # what rounding in 64 bits stays far below
Step = Callable[..., tuple[Any, float]]


@dataclass(frozen=True)
class Signals:
    """Of a run: the loss and the norm of each step; how far weights are from one device, and copies from each other.

    ends: how far the last gradients of the tied matrix are from each other on the first stage and the last.
    """

    losses: tuple[float, ...]
    norms: tuple[float, ...]
    weights: float
    copies: float
    ends: float = 0.0

    def off(self, seed: int) -> dict[str, float]:
        """By signal, how far the run is from one device."""
        one = on_one_device(seed)
        return {
            "loss of step 1": abs(self.losses[0] - one.losses[0]),
            "gradient norm of step 1": abs(self.norms[0] - one.norms[0]),
            "copies of a weight": self.copies,
            f"weights after step {STEPS}": self.weights,
        }


@dataclass(frozen=True)
class OneDevice:
    """The plain model, trained on the whole batch."""

    losses: tuple[float, ...]
    norms: tuple[float, ...]
    weights: dict[str, Tensor]


def lessons(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches: real text."""
    return islice(batches(text().train, BATCH, MODEL.context, seed), STEPS)


@functools.cache
def on_one_device(seed: int = 0) -> OneDevice:
    """One process, plain PyTorch."""
    model = GPT(MODEL, seed).double()
    adam, losses, norms = torch.optim.AdamW(model.parameters(), **SETTINGS), [], []
    for inputs, targets in lessons(seed):
        adam.zero_grad()
        loss = next_token_loss(model(inputs), targets)
        loss.backward()
        losses.append(loss.item())
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        adam.step()
    return OneDevice(tuple(losses), tuple(norms), {n: p.detach() for n, p in model.named_parameters()})


# Mistakes --------------------------------------------------------------------------------------------------------


def counted_twice(hybrid: Hybrid) -> Tensor:
    """A norm to which every rank adds all that it holds, whoever else holds it too."""
    mine = sum(float(h.gradient.double().square().sum()) for h in hybrid.held() if h.gradient is not None)
    return all_reduce(torch.tensor([mine], dtype=torch.float64), hybrid.group)[0].sqrt()


def untie(hybrid: Hybrid) -> None:
    """The first and the last stage no longer add up the gradients of the matrix that both hold."""
    if hybrid._pipeline is not None:
        hybrid._pipeline.tied = Tied({}, hybrid.pp)
    if hasattr(hybrid.replicas, "_ends"):
        hybrid.replicas._ends = None


MISTAKES = ("none", "norm counted twice", "tied matrix apart", "data by rank", "averaged twice")


def train(group: Group, config: HybridConfig, mistake: str = "none", seed: int = 0) -> Signals:
    """Three steps of a cut model, with one of `MISTAKES`."""
    hybrid = Hybrid(group, MODEL, config, seed=seed, optimizer=AdamW(**SETTINGS), dtype=torch.float64)
    if mistake == "tied matrix apart":
        untie(hybrid)
    losses, norms = [], []
    for inputs, targets in lessons(seed):
        if mistake == "data by rank":  # rank r begins with its own example, also inside a replica
            inputs, targets = inputs.roll(group.rank, 0), targets.roll(group.rank, 0)
        hybrid.zero_grad()
        losses.append(hybrid.forward_backward(inputs, targets).item())
        if mistake == "averaged twice":
            for h in hybrid.held():
                if h.gradient is not None:
                    h.gradient /= hybrid.dense.size
        norms.append(_clip(hybrid, mistake))
        hybrid.optimizer_step()
    return Signals(tuple(losses), tuple(norms), furthest(hybrid, seed), copies_apart(hybrid))


def _clip(hybrid: Hybrid, mistake: str) -> float:
    if mistake != "norm counted twice":
        return float(hybrid.clip_grad_norm_(CLIP))
    found = counted_twice(hybrid)
    norms_of.scale(hybrid.held(), found, CLIP)
    return float(found)


# A step by hand --------------------------------------------------------------------------------------------------


class ByHand:
    """A cut model that adds up no gradients of replicas or of stages: whoever takes a step with it does.

    weights: that this rank holds. dp: the ranks that hold the same ones. ends: the first stage and the last one, where
    this rank is one of two such; both hold `vocabulary`.
    """

    def __init__(self, group: Group, config: HybridConfig, seed: int) -> None:
        self.hybrid = Hybrid(group, MODEL, config, seed=seed, optimizer=AdamW(**SETTINGS), dtype=torch.float64)
        untie(self.hybrid)
        assert isinstance(self.hybrid.replicas, Plain)
        self.hybrid.replicas._reducers = []
        self.group, self.dp, pp = group, self.hybrid.dense, self.hybrid.pp
        last = pp.size - 1
        self.ends = pp.subgroup([0, last]) if last and pp.rank in (0, last) else None
        self.weights = [p for part in self.hybrid.parts for p in part.parameters()]
        self.vocabulary = next((p for part in self.hybrid.parts for p in part.model.tied.values()), None)

    def forward_backward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss; this rank's own gradients lie in `weights`. Layers and stages send what they must."""
        self.hybrid.zero_grad()
        return self.hybrid.forward_backward(inputs, targets)

    def pieces(self) -> list[tuple[Tensor, int]]:
        """(gradient, how many ranks hold the same one)."""
        return pieces_of(self.hybrid)

    def clip_and_update(self, norm: float) -> None:
        norms_of.scale(self.hybrid.held(), torch.tensor(norm, dtype=torch.float64), CLIP)
        self.hybrid.optimizer_step()


def train_by_hand(group: Group, config: HybridConfig, seed: int, step: Step) -> Signals:
    """Three steps of `ByHand`. step: (model, inputs, targets) -> loss and norm."""
    model = ByHand(group, config, seed)
    losses, norms = zip(*(step(model, *lesson) for lesson in lessons(seed)), strict=True)
    apart, ends = copies_apart(model.hybrid), ends_apart(model)
    return Signals(tuple(map(float, losses)), tuple(map(float, norms)), furthest(model.hybrid, seed), apart, ends)


# What is compared ------------------------------------------------------------------------------------------------


def pieces_of(hybrid: Hybrid) -> list[tuple[Tensor, int]]:
    """(gradient, how many ranks hold the same one) of everything that this rank holds, for plain data parallelism."""
    found = []
    for part in hybrid.parts:
        where = places(part, hybrid.tp)
        for p in part.parameters():
            copies = hybrid.dense.size * (1 if where[id(p)].spec is not None else hybrid.tp.size)
            ends = bool(part.model.tied) and where[id(p)].name == "tokens.weight"
            if p.grad is not None:
                found.append((p.grad, copies * (2 if ends else 1)))
    return found


def furthest(hybrid: Hybrid, seed: int) -> float:
    """The largest difference of a weight from that of one device."""
    mine, one = hybrid._gathered(whole.KEYS["parameters"]), on_one_device(seed).weights
    return max(float((mine[name] - one[name]).abs().max()) for name in one)


@torch.no_grad()
def copies_apart(hybrid: Hybrid) -> float:
    """The largest difference between two copies of a weight that should be equal to the bit. 0 where none has two."""
    apart = [0.0]
    if hybrid.config.data not in ("zero3", "fsdp", "hsdp"):
        for part in hybrid.parts:
            where = places(part, hybrid.tp)
            for p in part.parameters():
                among = [hybrid.dense] + ([hybrid.tp] if where[id(p)].spec is None else [])
                apart += [_spread(p.detach(), group) for group in among if group.size > 1]
        if hybrid.config.pp > 1:
            apart.append(_spread(_matrix(hybrid), hybrid.pp))
    worst = torch.tensor([max(apart)], dtype=torch.float64)
    return float(all_reduce(worst, hybrid.group, "max"))


def ends_apart(model: ByHand) -> float:
    """The largest difference between the gradients that two stages have of the tied matrix; 0 if one stage has it."""
    apart = torch.zeros(1, dtype=torch.float64)
    if model.ends is not None and model.vocabulary is not None and model.vocabulary.grad is not None:
        apart += _spread(model.vocabulary.grad, model.ends)
    return float(all_reduce(apart, model.group, "max"))


def _matrix(hybrid: Hybrid) -> Tensor:
    """The tied matrix where this rank has a copy; elsewhere NaN."""
    tied = [p for part in hybrid.parts for p in part.model.tied.values()]
    rows = split_sizes(MODEL.vocab, hybrid.tp.size)[hybrid.tp.rank]
    return tied[0].detach() if tied else torch.full((rows, MODEL.width), torch.nan, dtype=torch.float64)


def _spread(x: Tensor, group: Group) -> float:
    high, low = (all_reduce((s * x).nan_to_num(-torch.inf), group, "max") for s in (1.0, -1.0))
    return float((high + low).abs().max())
