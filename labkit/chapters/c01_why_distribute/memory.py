"""What a training step holds, looked up while it runs: the bytes that autograd keeps, and the parts of the state."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labkit import cost
from labkit.cost.training.memory import StateBytes
from labkit.cost.units import GB, MB, format_bytes
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.parallel import ZeRO1, ZeRO2, ZeRO3
from labkit.pocket.checkpointing import checkpoint
from labkit.wire import Group
from labkit.wire.errors import RefusedError
from labkit.world.process import memory_available

SCALE_MODEL = GPTConfig(width=128, layers=2)  # trained in place of a model that no laptop holds
MODELS = {name: shape.params for name, shape in cost.SHAPES.items()}
STAGES = {"nothing": 0, "Adam's state": 1, "and gradients": 2, "and parameters": 3}
DEVICE = 64 * MB  # memory of a make-believe GPU, 1,250 times smaller than one of 80 GB
MOST = 4 * GB  # of training state on all ranks together: no laptop is asked for more


@dataclass(frozen=True)
class Trial:
    """What was tried with a model of `params` parameters, and the run of the small one that stands for it."""

    params: float
    precision: str
    stage: int
    run: Any

    @property
    def held(self) -> list[StateBytes]:
        """By rank: what the small model really held, times how much larger this one is."""
        return [StateBytes(*(n * self.times for n in parts)) for parts in self.run.results]

    @property
    def times(self) -> float:
        """How much larger the model is than the one that was trained."""
        return self.params / SCALE_MODEL.num_parameters

    @property
    def trace(self) -> Any:
        """What the ranks of the small model did."""
        return self.run.trace

    @property
    def formula(self) -> StateBytes:
        """What one rank holds by the closed form."""
        return cost.zero_state_parts(self.params, len(self.run.results), self.stage, self.precision)


def cut_among(group: Group, cut: str) -> tuple[type, Group]:
    """The strategy that cuts `cut` among the ranks of the second; for "nothing" each rank is a group of its own."""
    if cut == "nothing":
        return ZeRO1, group.split(group.rank)
    return (ZeRO1, ZeRO2, ZeRO3)[STAGES[cut] - 1], group


def train_step(group: Group, precision: str, cut: str) -> tuple[float, float, float]:
    """One step of the small model: bytes of parameters, gradients and optimizer's state that this rank then holds."""
    gc.collect()  # what the run before has left
    strategy, sharers = cut_among(group, cut)
    model = strategy(GPT(SCALE_MODEL, 0), sharers, precision="single" if precision == "float32" else "mixed")
    tokens = torch.randint(256, (2, 16))
    next_token_loss(model(tokens), tokens).backward()
    model.step()
    group.step(0)  # labkit looks at what is alive
    held = model.state_bytes()
    return held.parameters, held.gradients, held.optimizer


def refuse_too_large(params: float, ranks: int, stage: int, precision: str) -> None:
    """Raises RefusedError if this machine is not to hold a model of that many parameters on so many ranks."""
    each = cost.zero_state_bytes(params, ranks, stage, precision)
    free = memory_available()
    if each * ranks > min(MOST, (free or MOST) / 2):
        has = f"this machine has {format_bytes(free)} of memory free" if free else "that is too much for a laptop"
        raise RefusedError(
            f"{ranks} rank{'s' * (ranks > 1)} would hold {format_bytes(each)} each, {format_bytes(each * ranks)} in "
            f"all, and {has}. Nothing was started."
        )


def try_on(world: Any, model: str, precision: str, cut: str, full_size: bool) -> Trial:
    """Train for a step on the ranks of `world`, in place of `model` a small one that is cut in the same way."""
    stage, kind = STAGES[cut], "single" if precision == "float32" else "mixed"
    if full_size:
        refuse_too_large(MODELS[model], world.size, stage, kind)
    run = world.run(lambda group: train_step(group, precision, cut))
    return Trial(MODELS[model], kind, stage, run)


class Kept:
    """Bytes of the tensors that autograd keeps for the backward pass: each storage once, weights not at all."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self._weights = {w.untyped_storage().data_ptr() for w in weights}
        self._keepers: Counter[int] = Counter()
        self.nbytes = 0

    def pack(self, tensor: Tensor) -> _Held:
        return _Held(self, tensor)

    def add(self, tensor: Tensor, by: int) -> None:
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        if place in self._weights:
            return
        before = self._keepers[place]
        self._keepers[place] += by
        self.nbytes += storage.nbytes() * ((before + by > 0) - (before > 0))

    @staticmethod
    def unpack(held: _Held) -> Tensor:
        return held.tensor


class _Held:
    """A tensor while autograd keeps it: autograd lets go of this object when backward has passed."""

    def __init__(self, kept: Kept, tensor: Tensor) -> None:
        self.kept, self.tensor = kept, tensor
        kept.add(tensor, 1)

    def __del__(self) -> None:
        self.kept.add(self.tensor, -1)


PARTS = ("parameters", "Adam's state", "gradients", "activations")
Moment = dict[str, Any]  # "at": what has just happened; and the bytes of each part


class OutOfMemory(RuntimeError):
    """The make-believe device is full."""


def total(moment: Moment) -> int:
    """Bytes that are held at a moment."""
    return sum(moment[part] for part in PARTS)


def first_step(model: GPT, adam: torch.optim.Optimizer) -> None:
    """A step on a few tokens, after which Adam has its moments."""
    tokens = torch.arange(16).view(1, 16)
    next_token_loss(model(tokens), tokens).backward()
    adam.step()
    adam.zero_grad()


def watched_step(
    model: GPT, adam: torch.optim.Optimizer, inputs: Tensor, targets: Tensor, checkpointed: bool, room: float
) -> list[Moment]:  # fmt: skip
    """One training step of a GPT, and what was held at each moment of it.

    On a device that has `room` bytes: the step ends at the first moment that needs more, which is then the last one.
    Activations: what autograd keeps, from the embeddings to the loss, looked at with `saved_tensors_hooks`.
    """
    kept, moments = Kept(model.parameters()), list[Moment]()
    going_back = False

    def look(at: str) -> None:
        parameters = list(model.parameters())
        moments.append({
            "at": at, "parameters": nbytes(parameters), "Adam's state": nbytes(state_of(adam)),
            "gradients": nbytes(p.grad for p in parameters if p.grad is not None), "activations": kept.nbytes,
        })  # fmt: skip
        if total(moments[-1]) > room:
            raise OutOfMemory(f"out of memory at {at}")

    def forward_done(block: nn.Module, *_: object) -> None:
        if not (checkpointed and not going_back):
            look(f"layer {number[block]} {'computed again' if going_back else 'forward'}")

    number = {block: k for k, block in enumerate(model.blocks, 1)}
    hooks = []
    for block in model.blocks:
        hooks.append(block.register_forward_hook(forward_done))
        hooks.append(block.register_full_backward_hook(lambda b, *_: look(f"layer {number[b]} backward")))
    try:
        look("before the step")
        with torch.autograd.graph.saved_tensors_hooks(kept.pack, kept.unpack):
            assert model.positions is not None
            h = model.tokens(inputs) + model.positions(torch.arange(inputs.shape[1]))
            for block in model.blocks:
                h = checkpoint(block, h) if checkpointed else block(h)
                if checkpointed:
                    look(f"layer {number[block]} forward")
            loss = next_token_loss(model.lm_head(model.norm(h)), targets)
            look("the loss")
            going_back = True
            loss.backward()
        look("backward is over")
        adam.step()
        look("Adam's update")
        adam.zero_grad()
        look("gradients deleted")
    except OutOfMemory:  # as on a GPU, the step ends here
        return moments
    finally:
        for hook in hooks:
            hook.remove()
    return moments


def after_forward(moments: list[Moment]) -> int:
    """Bytes of activations that are kept when the last layer's forward pass is over."""
    return int(next(m for m in reversed(moments) if m["at"].endswith("forward"))["activations"])


def four_ways(batch: int) -> dict[str, tuple[int, bool]]:
    """A batch and twice as much, with all activations kept and checkpointed, by name."""
    kept = {False: "all kept", True: "checkpointed"}
    return {f"batch {b}, {kept[c]}": (b, c) for b in (batch, 2 * batch) for c in kept}


def by_formula(batch: int, width: int, checkpointed: bool) -> int:
    """Bytes of activations of the chapter's GPT, by the closed form: 4 layers, 128 tokens, 4 bytes a number."""
    if checkpointed:
        return cost.checkpointed_activation_bytes(batch, 128, width, 4, itemsize=4)
    return cost.activation_bytes(batch, 128, width, 4, heads=8, itemsize=4, dropout=False, scores=False)


def state_of(adam: torch.optim.Optimizer) -> list[Tensor]:
    """The tensors that an optimizer keeps."""
    return [t for state in adam.state.values() for t in state.values() if isinstance(t, Tensor)]


def nbytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.nbytes for t in tensors)
