"""The layer of chapter 12: a mixture whose experts take time, tokens that have much in common, and what a run tells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import labkit
from labkit import book, collectives
from labkit.cost.units import US
from labkit.models import MoEConfig, seeded
from labkit.models.moe import MoE, Routing
from labkit.parallel import ExpertParallel
from labkit.pocket.experts import Swap
from labkit.wire import Group

CHOICES = 2  # of a token, where nothing else is said
WIDTH = 64  # of the tokens
ROW = 20 * US  # that an expert takes for a row, as an emulated kernel
LOVED = 3  # the expert that tokens with something in common choose
LOADS = (39, 21, 12, 9, 6, 4, 3, 2)  # of eight experts: the example of the section on capacity


def allowed(world_size: int, transport: str, per_rank: int, steps: int, seed: int = 0) -> None:
    """Raises ParameterError for parameters that the chapter's pictures and runs have no room for."""
    book.allow({
        "world_size is a number from 2 to 8": world_size in range(2, 9),
        'transport is "local" or "gloo"': transport in ("local", "gloo"),
        "per_rank is 2 to 4": per_rank in range(2, 5),
        "steps are 10 or more": steps in range(10, 100_000),
        "seed is a whole number, 0 or more": isinstance(seed, int) and seed >= 0,
    })  # fmt: skip


def launcher(transport: str) -> Callable[..., Any]:
    """`labkit.launch`, over the transport of the chapter's parameters."""
    return partial(labkit.launch, transport=transport)


def parameters(layer: nn.Module) -> int:
    return sum(p.numel() for p in layer.parameters())


def operations_of_a_token(layer: MoE, tokens: int = 256) -> float:
    """What PyTorch counts when so many tokens go through the layer, over their number."""
    with FlopCounterMode(display=False) as counter:
        layer(torch.randn(1, tokens, layer.router.gate.in_features))
    return counter.get_total_flops() / tokens


@dataclass(frozen=True)
class Told:
    """What a rank tells of a layer: (n, k) choices, weights and who is kept; (e,) load of all ranks; slots or None."""

    experts: list[list[int]]
    weights: list[list[float]]
    kept: list[list[bool]]
    load: list[int]
    slots: int | None
    row: float


def all_to_all(x: Tensor, group: Group, out: Sequence[int] | None = None, into: Sequence[int] | None = None) -> Tensor:
    """labkit's all-to-all with a backward pass: the gradients of rows go to the ranks that the rows came from."""
    if out is None or into is None or not x.requires_grad:
        got: Tensor = collectives.all_to_all(x, group, out, into, algorithm="pairwise")
        return got
    swapped: Tensor = Swap.apply(x, out, into, group)
    return swapped


class Timed(MoE):
    """A mixture of experts on the clock of `group`: each row takes `row` seconds, and the shared expert `beside`."""

    def __init__(self, group: Group, width: int, config: MoEConfig, row: float, beside: float, seed: int) -> None:
        with seeded(seed):
            super().__init__(width, config)
        self.group, self.row = group, row
        if self.shared is not None:
            self.shared.register_forward_hook(lambda *_: group.compute(beside) and None)

    def run_experts(self, rows_md: Tensor, counts: Sequence[int]) -> Tensor:
        with self.group.span("experts", rows=len(rows_md)):
            self.group.compute(self.row * len(rows_md))
            return super().run_experts(rows_md, counts)

    @property
    def told(self) -> Told:
        """Of the last forward pass, as plain data."""
        found = self.routing
        assert isinstance(found, Routing)
        tokens = int(found.load_e.sum()) // self.config.choices
        return Told(
            found.experts_nk.tolist(), found.weights_nk.tolist(), found.kept_nk.tolist(), found.load_e.tolist(),
            self.config.slots(tokens), self.row,
        )  # fmt: skip


def timed(
    group: Group, config: MoEConfig, *, width: int = WIDTH, row_time: float = ROW, shared_time: float = 0.0,
    seed: int = 0, hierarchical: bool = False, overlap: bool = True,
) -> Timed:  # fmt: skip
    """A mixture on this group's clock, its experts shared out among the ranks of `group`."""
    layer = Timed(group, width, config, row_time, shared_time, seed)
    ExpertParallel(group, hierarchical=hierarchical, overlap=overlap).into(layer)
    return layer


def eight_experts(group: Group, choices: int, capacity: float) -> Timed:
    """A mixture of eight experts; each rank has its part of them. capacity: the factor, or 0 for no limit."""
    return timed(group, MoEConfig(8, choices, capacity=capacity or None))


def with_shared(group: Group, experts: int, shared: float, overlap: bool) -> Timed:
    """A mixture beside a shared expert that takes `shared` µs for its rank's tokens; an expert takes 1 µs for a row."""
    config = MoEConfig(experts, CHOICES, shared=1.0)
    return timed(group, config, width=256, row_time=1 * US, shared_time=shared * US, overlap=overlap)


Forward = Callable[["Spread", Tensor], tuple[Tensor, Told]]  # (layer, x_nd): y_nd, and what happened


class Spread(MoE):
    """A mixture that computes what the reader's function says: it has a router's matrix, and this rank's experts.

    `happened` is what the last forward pass told. A row takes `row` seconds on the clock of `group`.
    """

    def __init__(self, whole: MoE, group: Group, forward: Forward, row: float = 0.0) -> None:
        nn.Module.__init__(self)
        self.config, self.router, self.experts = whole.config, whole.router, whole.experts
        self.shared, self.group, self.of, self.row = None, group, forward, row
        self.choices, self.each = whole.config.choices, whole.config.experts // group.size
        self.first = group.rank * self.each
        for e in set(map(int, self.experts)) - set(range(self.first, self.first + self.each)):
            del self.experts[str(e)]

    def forward(self, x_btd: Tensor) -> Tensor:
        y_nd, self.happened = self.of(self, x_btd.flatten(0, -2))
        return y_nd.view(x_btd.shape)

    def gate(self, x_nd: Tensor) -> Tensor:
        """The logits of each token, (n, e)."""
        self.tokens_nd = x_nd.detach()
        self.logits_ne: Tensor = self.router.gate(x_nd)
        return self.logits_ne

    def compute(self, rows_md: Tensor, expert_m: Tensor) -> Tensor:
        """Rows of any order through this rank's experts."""
        order = expert_m.sort(stable=True).indices
        counts = (expert_m - self.first).bincount(minlength=self.each).tolist()
        with self.group.span("experts", rows=len(rows_md)):
            if self.row:
                self.group.compute(self.row * len(rows_md))
            return self.run_experts(rows_md[order], counts)[order.argsort()]

    def told(self, experts_nk: Tensor, weights_nk: Tensor, kept_nk: Tensor, slots: int | None = None) -> Told:
        """What this rank tells of a forward pass. load: of its own tokens; `load_e` has it as floats."""
        load_e = experts_nk.flatten().bincount(minlength=self.config.experts)
        self.load_e = load_e.float()
        return Told(experts_nk.tolist(), weights_nk.tolist(), kept_nk.tolist(), load_e.tolist(), slots, self.row)


def yours(group: Group, forward: Callable[..., Any], experts: int, *, keep: Any = None, seed: int = 0) -> Spread:
    """One layer on this group's clock, which computes what `forward` says; `keep` says which choices are kept."""
    with seeded(seed):
        return Spread(MoE(WIDTH, MoEConfig(experts, CHOICES)), group, partial(forward, keep=keep), ROW)


def spread(model: nn.Module, group: Group, forward: Callable[..., Any], **given: Any) -> Spread:
    """Put a `Spread` in the place of the mixture of `model`, a GPT of one block, and return it. given: to `forward`."""
    (block,) = model.blocks  # type: ignore[misc]
    block.feed_forward = layer = Spread(block.feed_forward, group, partial(forward, **given))
    return layer


def own_choices(x_m: Tensor, group: Group) -> Tensor:
    """This rank's part, (n, k), of a queue of all first choices, rank by rank, and then of all second ones."""
    return x_m.view(CHOICES, -1).tensor_split(group.size, dim=1)[group.rank].T


def alike(layer: Timed | Spread, tokens: int, skew: float, seed: int = 1) -> Tensor:
    """This rank's part of `tokens` tokens that all have `skew` of one direction in common: what expert LOVED looks for.

    Whatever the number of ranks, the tokens of all together are the same.
    """
    loved = layer.router.gate.weight.detach()[LOVED % layer.config.experts]
    every = torch.randn(tokens, len(loved), generator=torch.Generator().manual_seed(seed))
    return (every + skew * loved / loved.norm()).tensor_split(layer.group.size)[layer.group.rank]


def waiting_line(loads: Sequence[int] = LOADS, seed: int = 2) -> Tensor:
    """The experts that tokens chose, in the order of the tokens: expert e comes loads[e] times."""
    every = torch.arange(len(loads)).repeat_interleave(torch.tensor(loads))
    return every[torch.randperm(len(every), generator=torch.Generator().manual_seed(seed))]


def crowd(line: Tensor, factor: float = 1.25) -> dict[str, Any]:
    """What the prediction is told of such a line: its sizes, the factor, and how often each expert was chosen."""
    loads = line.bincount().tolist()
    return {"tokens": len(line) // CHOICES, "choices": CHOICES, "experts": len(loads), "factor": factor, "loads": loads,
            "listed": ", ".join(map(str, loads)), "chosen": len(line)}  # fmt: skip


def crossing_rows(group: Group, tokens: int, width: int = 256) -> tuple[Tensor, Tensor]:
    """Two rows for each of this rank's tokens, and their experts: any of as many as there are ranks. Begins step 1."""
    draw = torch.Generator().manual_seed(group.rank)
    rows = torch.randn(CHOICES * tokens, width, generator=draw)
    group.step(1)
    return rows, torch.randint(group.size, (CHOICES * tokens,), generator=draw)


def kernel(group: Group, seconds: float = 1e-6) -> Callable[[Tensor, Tensor], Tensor]:
    """Experts that only take their time: so many seconds for a row."""

    def compute(rows_md: Tensor, expert_m: Tensor) -> Tensor:
        with group.span("experts", rows=len(rows_md)):
            group.compute(seconds * len(rows_md))
        return 2 * rows_md

    return compute
