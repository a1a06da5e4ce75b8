"""The training state as one device would have it: plain names, whole tensors. Of any hybrid run, and for any other.

    {"kind": "full", "parameters": {name: tensor}, "momentum": {...}, "variance": {...}, "steps": {name: int},
     "buffers": {name: tensor}}

the format of `ZeRO.training_state("full")`. For states that no single host can hold `Checkpointer` writes parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.collectives import all_reduce
from labkit.models.gpt import GPT, GPTConfig
from labkit.parallel.flat import Flat
from labkit.parallel.hybrid.replicas import Held
from labkit.wire.group import Group

KEYS = {"parameters": "values", "momentum": "momentum", "variance": "variance"}
Shapes = Mapping[str, tuple[int, ...]]


def plain_shapes(model: GPTConfig) -> tuple[Shapes, Shapes]:
    """Of all parameters, and of all buffers, by their names in GPT(model)."""
    with torch.device("meta"):
        plain = GPT(model)
    return ({name: tuple(p.shape) for name, p in plain.named_parameters()},
            {name: tuple(b.shape) for name, b in plain.named_buffers()})  # fmt: skip


@torch.no_grad()
def gathered(
    held: Iterable[Held], what: str, shapes: Shapes, dtype: torch.dtype, tp: int, group: Group
) -> dict[str, Tensor]:
    """Whole tensors by name on the CPU of every rank. what: "values", "gradient", "momentum" or "variance".

    Each element is written by the rank that counts it, and is 0 on all others: the sum over the ranks has it, to the
    bit. shapes: of all parameters of the plain model. Sent: an all-reduce of the model.
    """
    flat = Flat(shapes.items())
    joined = torch.zeros(flat.numel, dtype=dtype, device=group.device)
    found = dict(zip(flat.names, flat.views(joined), strict=True))
    for h in held:
        values = getattr(h, what)
        if h.counted and values is not None:
            _put(h, values, found[h.place.name], tp)
    all_reduce(joined, group)
    return {name: x.to("cpu", copy=True) for name, x in found.items()}


def _put(h: Held, values: Tensor, whole: Tensor, tp: int) -> None:
    """Write elements `start` to `stop` of this rank's part to their place, and leave all others as they are."""
    spec = h.place.spec
    part = whole if spec is None else spec.take(whole, tp)
    flat = part.reshape(-1)
    flat[h.start : h.stop].copy_(values)
    if spec is not None:
        spec.put(flat.view(h.place.shape), tp, whole)


@torch.no_grad()
def take(held: Iterable[Held], what: str, state: Mapping[str, Tensor], tp: int) -> None:
    """Copy what this rank holds out of whole tensors. Nothing is sent."""
    for h in held:
        whole = state[h.place.name]
        part = whole if h.place.spec is None else h.place.spec.take(whole, tp)
        getattr(h, what).copy_(part.reshape(-1)[h.start : h.stop])


def steps(mine: Mapping[str, int], names: Sequence[str], group: Group) -> dict[str, int]:
    """Updates of each parameter so far, from those that each rank knows."""
    most = all_reduce(torch.tensor([mine.get(name, 0) for name in names], device=group.device), group, "max")
    return dict(zip(names, most.tolist(), strict=True))


def problem(state: Any, shapes: Shapes, buffers: Shapes) -> str | None:
    """Why `state` cannot be loaded, as a sentence; None if it can."""
    wanted = {**dict.fromkeys(KEYS, shapes), "buffers": buffers}
    for key, named in wanted.items():
        given = state.get(key) if isinstance(state, Mapping) else None
        if not isinstance(given, Mapping):
            return f"this is no state of a hybrid run: it has no {key!r}; pass what state_dict() has returned"
        for name, shape in named.items():
            if name not in given:
                return f"the state is of another model: it has no {key} of {name!r}"
            if tuple(given[name].shape) != tuple(shape):
                return f"the state is of another model: {name!r} is {list(given[name].shape)}, and here {list(shape)}"
        extra = sorted(set(given) - set(named))
        if extra:
            return f"the state is of another model: it has {key} of {extra[0]!r}, which this one has not"
    missing = sorted(set(shapes) - set(state.get("steps", ())))
    return f"the state has no number of steps of {missing[0]!r}" if missing else None
