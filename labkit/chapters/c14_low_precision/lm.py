"""What chapter 14 trains: a small GPT on Python's own documentation; and what is seen of its numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

import labkit
from labkit import book
from labkit.collectives import all_reduce
from labkit.data import batches, text
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.optim.precision import (
    E4M3,
    E5M2,
    FORMATS,
    Format,
    Recipe,
    Scaled,
    Scales,
    TensorScale,
    low_precision,
    quantize,
    round_to,
)
from labkit.parallel import DataParallel
from labkit.wire import Group
from labkit.world import World

CONFIG = GPTConfig(context=32, layers=2, width=48, heads=4, tied=False)
BATCH, RATE, BEFORE = 8, 5e-3, 8  # texts of a rank; of AdamW; steps before the first cell looks at the numbers
RANKS = 2  # that train in section 3
NEAR = 0.03  # losses of single runs that are no further apart are called equal
KINDS = ("gradients", "weights", "activations")
POWERS = range(17)  # of two: scales that are tried one by one
LAYER = "blocks.1.feed_forward.up"  # the one whose tensors section 2 follows


def allowed(world_size: int, transport: str, steps: int, seed: int) -> None:
    """Raises ParameterError for parameters that the chapter's pictures and runs have no room for."""
    book.allow({
        "world_size is a number from 2 to 8": world_size in range(2, 9),
        'transport is "local" or "gloo"': transport in ("local", "gloo"),
        "steps are 20 to 1000": steps in range(20, 1001),
        "seed is a whole number, 0 or more": isinstance(seed, int) and seed >= 0,
    })  # fmt: skip


def launcher(transport: str) -> Callable[..., Any]:
    """`labkit.launch`, over the transport of the chapter's parameters."""
    return partial(labkit.launch, transport=transport)


def gpt(seed: int = 0) -> GPT:
    return GPT(CONFIG, seed)


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), RATE)


def lessons(group: Group, seed: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Texts for this rank, step by step: no two ranks read the same."""
    return islice(batches(text().train, BATCH, CONFIG.context, seed, group.rank, group.size), steps)


# What numbers a model in training has ----------------------------------------------------------------------------


def look_at(kind: str, group: Group, seed: int = 0) -> Tensor:
    """All gradients, weights or activations of the linear layers of a GPT that has trained for a few steps, flat.

    Each rank has the gradients of its own texts, and here they are averaged. Activations are what this rank's layers
    read.
    """
    x = _numbers(group.rank, group.size, seed)[kind].clone()
    return all_reduce(x, group) / group.size if kind == "gradients" else x


def noise(group: Group, seed: int) -> float:
    """How far a rank's own gradient is from the mean of all ranks, in root mean squares."""
    mine, mean = _numbers(group.rank, group.size, seed)["gradients"], look_at("gradients", group, seed)
    return ((mine - mean).square().sum() / mean.square().sum()).sqrt().item()


def rows_of(kind: str, group: Group, seed: int) -> Tensor:
    """The first of these numbers as 256 rows of 128."""
    return look_at(kind, group, seed)[: 256 * 128].view(256, 128).clone()


@cache
def _numbers(rank: int, size: int, seed: int) -> dict[str, Tensor]:
    """Of the last of a few steps. Trained once by each process, with the texts of all ranks and no message, so that a
    slider of the workbench moves over the same numbers."""
    model, read = gpt(seed), list[Tensor]()
    optimizer = adamw(model)
    linears = [m for m in model.blocks.modules() if isinstance(m, nn.Linear)]
    texts = [islice(batches(text().train, BATCH, CONFIG.context, seed, r, size), BEFORE) for r in range(size)]
    for step, pairs in enumerate(zip(*texts, strict=True), 1):
        if step == BEFORE:
            break
        optimizer.zero_grad()
        for inputs, targets in pairs:
            (next_token_loss(model(inputs), targets) / size).backward()
        optimizer.step()
    optimizer.zero_grad()
    for linear in linears:
        linear.register_forward_pre_hook(lambda _, args: read.append(args[0].detach().flatten()))
    inputs, targets = pairs[rank]
    next_token_loss(model(inputs), targets).backward()
    return {
        "gradients": torch.cat([m.weight.grad.flatten() for m in linears if m.weight.grad is not None]),
        "weights": torch.cat([m.weight.detach().flatten() for m in linears]),
        "activations": torch.cat(read),
    }


def shape(exponent: int, mantissa: int) -> Format:
    """The format of these bits: the standard one where it exists, else one that gives as few codes away as it can."""
    known = {(f.exponent, f.mantissa): f for f in FORMATS.values()}
    specials = "ieee" if exponent == 8 else "nan"
    return known.get((exponent, mantissa)) or Format(f"E{exponent}M{mantissa}", exponent, mantissa, specials)


@dataclass(frozen=True)
class Fate:
    """What became of the numbers of a tensor. powers: how many lie from 2^p to 2^(p+1), and of these how many became 0,
    lost digits (subnormal), were kept to full precision, or were too large. off: the root mean square of the
    differences over that of the numbers. window: the smallest number above 0, the smallest normal and the largest, of
    the tensor as it was."""

    format: str
    bits: int
    powers: dict[int, tuple[int, int, int, int]]
    zeros: int  # that were 0 before
    off: float
    window: tuple[float, float, float]

    def count(self, which: int) -> int:
        """0: of those that became 0, 1: subnormal, 2: normal, 3: too large."""
        return sum(one[which] for one in self.powers.values())

    def share(self, which: int) -> float:
        return self.count(which) / self.numbers

    @property
    def lost(self) -> float:
        """The share that became 0 or was too large."""
        return self.share(0) + self.share(3)

    @property
    def numbers(self) -> int:
        return self.zeros + sum(map(sum, self.powers.values()))


def fate(x: Tensor, narrow: Tensor, format: Format, scale: float) -> Fate:
    """x became `narrow`, by way of x * scale in `format`."""
    size = x.abs()
    there = size > 0
    smallest, normal, largest = (edge / scale for edge in (format.smallest, format.smallest_normal, format.max))
    became = torch.where(narrow == 0, 0, torch.where(size > largest * (1 + 1e-6), 3, torch.where(size < normal, 1, 2)))[
        there
    ]
    powers = torch.frexp(size[there]).exponent.long() - 1
    low = int(powers.min()) if len(powers) else 0
    counts = torch.bincount((powers - low) * 4 + became, minlength=4)
    rows = torch.nn.functional.pad(counts, (0, -len(counts) % 4)).view(-1, 4).tolist()
    found = {low + n: tuple(row) for n, row in enumerate(rows) if any(row)}
    off = ((x - narrow).square().sum() / x.square().sum()).sqrt().item()
    return Fate(
        format.name, format.bits, found, int((~there).sum()), off,
        (smallest, normal, largest),
    )  # fmt: skip


Fates = dict[str, dict[int, Fate]]  # by kind of numbers, and by the power of two that is the scale


def first_panel(launch: Callable[..., Any]) -> tuple[Fates, Fate]:
    """What the first panel shows of all three kinds of numbers in E4M3 at each scale of `POWERS`; and of gradients in
    E5M2 at a scale of 1."""
    found: tuple[Fates, Fate] = launch(_first_panel, 2).results[0]
    return found


def _first_panel(group: Group) -> tuple[Fates, Fate]:
    numbers = {kind: look_at(kind, group) for kind in KINDS}
    fates = {kind: {power: cast_at(x, E4M3, 2.0**power) for power in POWERS} for kind, x in numbers.items()}
    return fates, cast_at(numbers["gradients"], E5M2, 1.0)


def cast_at(x: Tensor, format: Format, scale: float) -> Fate:
    """What becomes of x * scale in `format`."""
    return fate(x, round_to(x * scale, format) / scale, format, scale)


def largest_that_fits(fates: dict[int, Fate]) -> int:
    """The largest power of two at which nothing is too large."""
    return max(power for power, one in fates.items() if not one.count(3))


def compromise(fates: Fates) -> int:
    """The power of two at which the kind that loses most, to 0 or above the largest, loses least."""
    return min(POWERS, key=lambda power: max(one[power].lost for one in fates.values()))


# A tensor that jumps ------------------------------------------------------------------------------------------------

SMALL, LARGE = 1.0, 10.0  # how large a tensor is
JUMP = [SMALL] * 4 + [LARGE] * 3 + [SMALL] * 8 + [LARGE] * 3 + [SMALL] * 20 + [LARGE] * 3 + [SMALL] * 3  # by step
RULES = ("current", "delayed", "fixed")
YOURS = "your rule"
SPOILT = 0.1  # a tensor that is further off than this
Rule = Callable[[list[float], float], float]


def jumping(group: Group, rule: Rule) -> dict[str, list[float]]:
    """How far a tensor that jumps is off in E4M3, step by step, with a scale by each rule of the book, and by the
    reader's: `rule(amaxes, largest)`, of the steps before, and in the first step of that step."""
    tensors = [_of_size(size) for size in JUMP]
    kept = {name: TensorScale(Recipe(scaling=name, scale=100.0), E4M3) for name in RULES}
    found = {name: [_cast_once(tensor, x) for x in tensors] for name, tensor in kept.items()}
    amaxes = [x.abs().max().item() for x in tensors]
    scales = [rule(amaxes[: max(step, 1)], E4M3.max) for step in range(len(tensors))]
    mine = [quantize(x, E4M3, scale=torch.tensor(float(scale))) for x, scale in zip(tensors, scales, strict=True)]
    return found | {YOURS: [_off(x, narrow) for x, narrow in zip(tensors, mine, strict=True)]}


def _of_size(size: float) -> Tensor:
    return torch.randn(4096, generator=torch.Generator().manual_seed(0)) * size


def _cast_once(tensor: TensorScale, x: Tensor) -> float:
    """Cast x, remember its amax, and say how far it is off."""
    narrow = tensor.cast(x)
    assert isinstance(narrow, Scaled) and tensor.pending is not None
    tensor.amaxes.append(tensor.pending)
    tensor.pending = None  # the next step has an amax of its own
    return _off(x, narrow)


def _off(x: Tensor, narrow: Scaled) -> float:
    """The root mean square of the differences, over that of the numbers."""
    return ((x - narrow.wide()).square().sum() / x.square().sum()).sqrt().item()


def spoilt(line: Sequence[float]) -> list[int]:
    """In which steps, counted from 1, the tensor is far off."""
    return [step for step, off in enumerate(line, 1) if off > SPOILT]


# Training ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """What a rank tells of a step: its loss; of all tensors of inputs, weights and gradients (in this order) the share
    that became 0 and that was too large, of the numbers that were not 0 before; and the largest number of each of the
    three in `LAYER`."""

    loss: float
    zero: tuple[float, float, float]
    over: tuple[float, float, float]
    amax: tuple[float, float, float]


def seen(loss: Tensor, scales: Scales) -> Told:
    """To be called after `scales.spoilt()`."""
    lost: dict[str, list[int]] = {kind: [0, 0, 0] for kind in ("input", "weight", "gradient")}
    for name, tensor in scales:
        one, it = lost[name.rpartition(".")[2]], tensor.lost
        for n, count in enumerate((it.numbers - it.zeros, it.underflow, it.overflow)):
            one[n] += count
    zero, over = (tuple(one[n] / max(one[0], 1) for one in lost.values()) for n in (1, 2))
    amaxes = (scales.of[f"{LAYER}.{kind}"].amaxes for kind in lost)
    return Told(loss.item(), zero, over, tuple(a[-1] if a else 0.0 for a in amaxes))  # type: ignore[arg-type]


def trained(
    group: Group, recipe: Recipe, steps: int, seed: int = 0, keep: tuple[str, ...] = ("lm_head",)
) -> list[Told]:
    """The loop of the chapter's cell `train`, for the runs that stand beside it."""
    model = gpt(seed)
    scales = low_precision(model, recipe, keep, group)
    wrapped, optimizer = DataParallel(model, group), adamw(model)
    told = []
    for inputs, targets in lessons(group, seed, steps):
        optimizer.zero_grad()
        loss = next_token_loss(wrapped(inputs), targets)
        loss.backward()
        if not scales.spoilt():
            optimizer.step()
        told.append(seen(loss, scales))
    return told


def last(told: list[Told], few: int = 10) -> float:
    """The mean loss of the last steps."""
    return sum(step.loss for step in told[-few:]) / len(told[-few:])


Beside = dict[str, list[Told]]
WITHOUT = "no linear layers"  # what that line is called
NOTHING = Recipe(scaling="fixed", scale=2.0**-40)  # every number of every cast tensor becomes 0


def _both(group: Group, steps: int, seed: int) -> Beside:
    return {"BF16": trained(group, Recipe("BF16", "BF16"), steps, seed), WITHOUT: trained(group, NOTHING, steps, seed)}


@cache
def beside(transport: str, steps: int, seed: int) -> Beside:
    """The same training in BF16; and with linear layers that give nothing but their biases, because all of their
    factors are 0: a model that sees of a text only the last symbol and its place. A cast that ends above has made the
    layers worse than useless."""
    found: Beside = labkit.launch(_both, RANKS, steps, seed, transport=transport).results[0]
    return found


USUAL = {"forward": "E4M3", "backward": "E5M2", "scaling": "delayed", "power": 0}  # of the reader's `train`


@dataclass
class Trainings:
    """Trainings with the chapter's parameters. made: those that the panel has made, by their settings."""

    transport: str
    steps: int
    seed: int
    made: dict[tuple[Any, ...], list[Told]] = field(default_factory=dict)

    def beside(self) -> Beside:
        return beside(self.transport, self.steps, self.seed)

    def keep(self, told: list[Told], **settings: Any) -> None:
        self.made[_key(settings)] = told

    def of(self, train: Callable[..., list[Told]], turns: dict[str, dict[str, Any]]) -> Beside:
        """What rank 0 tells of the reader's `train` with each of these settings; run now unless the panel has."""
        missing = [name for name, settings in turns.items() if _key(settings) not in self.made]
        with World(RANKS, transport=self.transport) as ranks:
            for name in book.in_turn(missing, "training with {}"):
                self.keep(ranks.run(partial(train, **turns[name])).results[0], **turns[name])
        return {name: self.made[_key(settings)] for name, settings in turns.items()}


def _key(settings: dict[str, Any]) -> tuple[Any, ...]:
    """With a scale that follows, the fixed one does not count."""
    whole = USUAL | settings
    return tuple((whole | {"power": 0} if whole["scaling"] != "fixed" else whole).values())


def place(loss: float, wide: float, bare: float) -> int:
    """Where a loss ends: 0 with BF16 or below, 1 between it and no linear layers, 2 with no linear layers, 3 above."""
    return 0 if loss < wide + NEAR else 3 if loss > bare + NEAR else 2 if loss > bare - NEAR else 1


def share(told: list[Told], what: str, kind: int) -> float:
    """The mean share of numbers that became 0 ("zero") or were too large ("over"): inputs, weights or gradients."""
    return sum(getattr(step, what)[kind] for step in told) / len(told)
