"""One rank's part of the training state, and how it follows when the replicas change.

Weights and optimizer state lie in the compute layout of the rank's replica. When a rank is lost or returns, all layouts
change. What a rank then lacks comes from the ranks that have it: of its own replica where the shards only changed
hands, of another replica where they were on the rank that was lost. Nothing is read from a disk.

A rank keeps what it holds until all ranks have what they want: it may be lost while that is on its way.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labkit.collectives import all_gather
from labkit.parallel.moving import Carrier, Moves, plan
from labkit.parallel.refusals.agreement import gather_texts
from labkit.parallel.tensor.shard_spec import ShardSpec, shard_specs_of
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from .config import NtpConfig
from .replicas import Replicas, positions_of
from .sync import NonuniformSync


@dataclass
class Part:
    """What a rank holds under one quorum. replicas: in whose layouts. inner: the ranks of its own."""

    quorum: int
    replicas: Replicas
    inner: Group
    model: nn.Module
    optimizer: torch.optim.Optimizer
    sync: NonuniformSync

    def told(self) -> list[Any]:
        """What the other ranks are told of it."""
        return [self.quorum, self.replicas.members]


class State:
    """Of one rank. step: the next one to train. lineage: the quorum of the last update.

    part: what it holds; None as long as that is nothing. pending: what is all here, and not taken up yet.
    """

    def __init__(self, config: NtpConfig) -> None:
        self.config = config
        self.step = self.lineage = 0
        self.part: Part | None = None
        self.pending: Part | None = None
        self.moved = 0  # bytes that came from other ranks when the layouts changed

    def prepare(self, quorum: int, replicas: Replicas, group: Group, held: Mapping[int, Replicas]) -> None:
        """Make a part of `replicas`, whose ranks are those of `group`; what this rank holds stays as it is.

        held: by world rank, in whose layouts it holds the state; empty if there is none yet: then all draw from the
        seed. Raises RefusedError on every rank if a part of the state is on no rank.
        """
        config, rank = self.config, group.context.rank
        replica, _ = replicas.place(rank)
        inner = group.subgroup(positions_of(replicas.members[replica], group.global_ranks))
        model = config.build(replicas, replica, inner)
        optimizer = config.optimizer(list(model.parameters()))
        if held:
            self._carry(model, optimizer, replicas, group, held)
        share = config.shares(replicas)[replica] / config.batch
        sync = NonuniformSync(model, replicas, group, share=share, bucket_bytes=config.bucket_bytes,
                              overlap=config.overlap)  # fmt: skip
        self.pending = Part(quorum, replicas, inner, model, optimizer, sync)

    def take_up(self, step: int, lineage: int) -> None:
        """What was prepared is what this rank holds from now on: the state before step `step`."""
        assert self.pending is not None
        if self.part is not None:
            self.part.sync.remove()
        self.part, self.pending = self.pending, None
        self.step, self.lineage = step, lineage

    # -- inside ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _carry(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, replicas: Replicas, group: Group,
        held: Mapping[int, Replicas],
    ) -> None:  # fmt: skip
        """Fill the new model and optimizer with the state that ranks hold."""
        part = self.part if group.context.rank in held else None
        before = dict(part.model.named_parameters()) if part else {}
        keys = self._keys(group, held, part)
        moves, parts, targets = list[Moves](), list[Tensor](), list[tuple[Tensor, str | None]]()
        for name, p, cut in shard_specs_of(model):
            m = _moves(name, p, cut, replicas, group, held)
            nothing = p.new_empty([*p.shape[: m.dim], 0, *p.shape[m.dim + 1 :]])
            kept = part.optimizer.state[before[name]] if part else {}
            for key in (None, *(k for k, like in keys[name].items() if like is None)):
                moves.append(m)
                parts.append((before[name] if key is None else kept[key]).detach() if part else nothing)
                targets.append((p, key))
            for key, value in keys[name].items():
                if value is not None:
                    optimizer.state[p][key] = torch.tensor(value) if isinstance(value, float) else value
        carrier = Carrier(moves, group)
        for (target, key), arrived in zip(targets, carrier.begin(parts).wait(), strict=True):
            if key is None:
                target.copy_(arrived)
            else:
                optimizer.state[target][key] = arrived
        self.moved += carrier.received_bytes(parts)

    def _keys(self, group: Group, held: Collection[int], part: Part | None) -> dict[str, dict[str, Any]]:
        """By parameter, what the optimizer keeps: None for a tensor like the parameter, else the number itself.

        Told by the first rank that has it, because a rank that is new cannot know.
        """
        found: dict[str, dict[str, Any]] = {}
        tells = next(i for i, rank in enumerate(group.global_ranks) if rank in held)
        model = part.model.named_parameters() if part and group.rank == tells else ()
        for name, p in model:
            assert part is not None
            found[name] = {
                key: None if isinstance(x, Tensor) and x.shape == p.shape and p.dim() else float(x)
                for key, x in part.optimizer.state.get(p, {}).items()
                if x is not None
            }
        text = json.dumps(found) if found else ""
        length = torch.tensor([len(text.encode())], device=group.device)
        texts = gather_texts(group, text, all_gather(length, group).tolist())
        return dict(json.loads(texts[tells]))


def _moves(
    name: str, p: Tensor, cut: ShardSpec | None, replicas: Replicas, group: Group, held: Mapping[int, Replicas]
) -> Moves:
    """From where ranks hold parameter `name` to where `replicas` want it."""
    have, want, near = list[Sequence[int]](), list[Sequence[int]](), []
    for rank in group.global_ranks:
        replica, position = replicas.place(rank)
        near.append(replica)
        if cut is None:
            every = range(p.shape[0])
            want.append(every)
            have.append(every if rank in held else [])
        else:
            want.append(_places(cut, replicas, replica, position))
            have.append(_places(cut, held[rank], *held[rank].place(rank)) if rank in held else [])
    try:
        return plan(have, want, dim=0 if cut is None else cut.dim, near=near)
    except RefusedError as why:
        raise RefusedError(f"a part of {name} is on no rank any more: {why}. Begin again from a checkpoint") from None


def _places(cut: ShardSpec, replicas: Replicas, replica: int, position: int) -> list[int]:
    """Which places of a parameter a position of a replica holds."""
    layouts = replicas.map_of(replica, cut.count)
    return [int(i) for i in cut.other(layouts.compute).places(position)]
