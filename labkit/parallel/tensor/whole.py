"""A model's parameters and gradients put together again: the unsharded names and tensors, for tests and checkpoints.

Works on any module whose layers say in `shard_specs` how their parameters are cut. Every rank of the group calls these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from labkit.collectives import all_gather
from labkit.parallel.refusals.agreement import agree
from labkit.parallel.tensor.shard_spec import ShardSpec, shard_specs_of
from labkit.wire.group import Group


def whole_state(model: nn.Module, group: Group) -> dict[str, Tensor]:
    """All parameters by name, whole, on the CPU of every rank: copies. A weight that two layers share appears once.

    Sent: one all-gather of every parameter that is cut.
    """
    return {name: _whole(p.detach(), cut, group) for name, p, cut in shard_specs_of(model)}


def whole_gradients(model: nn.Module, group: Group) -> dict[str, Tensor]:
    """All gradients by name, whole, on the CPU of every rank: copies. Parameters without a gradient are left out."""
    return {name: _whole(p.grad, cut, group) for name, p, cut in shard_specs_of(model) if p.grad is not None}


@torch.no_grad()
def load_whole(model: nn.Module, group: Group, state: Mapping[str, Tensor]) -> None:
    """Take this rank's part of every tensor of `state`, which has whole tensors by name. Nothing large is sent.

    Names that are not parameters of the model are passed over if they repeat one that is: `lm_head.weight` of a model
    that ties it. Raises RefusedError on every rank: a name that is missing or unknown, another shape.
    """
    known = {name: (p, cut) for name, p, cut in shard_specs_of(model)}
    agree(group, next(_problems(model, known, state, group), None))
    for name, (p, cut) in known.items():
        p.copy_(state[name] if cut is None else cut.take(state[name], group.rank))


def _problems(
    model: nn.Module,
    known: Mapping[str, tuple[nn.Parameter, ShardSpec | None]],
    state: Mapping[str, Tensor],
    group: Group,
) -> Iterator[str]:
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name, (p, cut) in known.items():
        if name not in state:
            yield f"load_whole: {name!r} is missing"
        else:
            shape = list(p.shape)
            if cut is not None:
                shape[cut.dim] = sum(cut.sizes)
            if list(state[name].shape) != shape:
                yield f"load_whole: {name!r} is {tuple(state[name].shape)}, and this model needs {tuple(shape)}"
    for name in state:
        if name not in every:
            yield f"load_whole: this model has no parameter {name!r}"


def _whole(part: Tensor, cut: ShardSpec | None, group: Group) -> Tensor:
    if cut is None:
        return part.to("cpu", copy=True)
    rows = part.movedim(cut.dim, 0).contiguous()
    joined = all_gather(rows, group, cut.sizes).movedim(0, cut.dim)
    whole = torch.empty_like(joined, memory_format=torch.contiguous_format)
    for rank, piece in enumerate(joined.split(cut.sizes, cut.dim)):
        cut.put(piece, rank, whole)
    return whole.to("cpu")
