"""One rank's part of the training state, and how it follows when the replicas change.

Weights and optimizer state lie in the compute layout of the rank's replica. When a rank is lost or returns, all layouts
change. What a rank then lacks comes from the ranks that have it: of its own replica where the shards only changed
hands, of another replica where they were on the rank that was lost. Nothing is read from a disk.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.collectives import all_gather
from labkit.parallel.agree import gather_texts
from labkit.parallel.tensor.cut import Cut, cuts_of
from labkit.parallel.tensor.gpt import TensorParallelGPT
from labkit.wire.errors import Refused
from labkit.wire.group import Group

from .config import NtpConfig
from .moving import Carrier, Moves, plan
from .replicas import Replicas, positions_of
from .sync import NonuniformSync


class State:
    """Model, optimizer and version of one rank. step: the next one to train. lineage: the quorum of the last update.

    replicas: whose layouts it is in; None as long as it has none.
    """

    def __init__(self, config: NtpConfig) -> None:
        self.config = config
        self.step = self.lineage = 0
        self.replicas: Replicas | None = None
        self.moved = 0  # bytes that came from other ranks when the layouts changed
        self.model: TensorParallelGPT
        self.optimizer: torch.optim.Optimizer
        self.sync: NonuniformSync

    def arrange(self, replicas: Replicas, group: Group, old: Replicas | None, healthy: Sequence[int]) -> None:
        """Be a part of `replicas`, whose ranks are those of `group`, with the state of the `healthy` world ranks.

        old: the replicas in whose layouts they hold it; None if there is no state yet: then all draw from the seed.
        Raises Refused on every rank, with all as it was, if a part of the state is on no rank.
        """
        config, rank = self.config, group.context.rank
        replica, _ = replicas.place(rank)
        inner = group.subgroup(positions_of(replicas.members[replica], group.global_ranks))
        model = TensorParallelGPT(
            config.model, inner, seed=config.seed, spread=replicas.computes(config.model, replica)
        )
        model.to(config.dtype)
        optimizer = config.optimizer(list(model.parameters()))
        if old is not None:
            self._carry(model, optimizer, replicas, group, old, set(healthy))
        if self.replicas is not None:
            self.sync.remove()
        self.model, self.optimizer, self.replicas = model, optimizer, replicas
        share = replicas.shares(config.batch)[replica] / config.batch
        self.sync = NonuniformSync(model, replicas, group, share=share, bucket_bytes=config.bucket_bytes,
                                   overlap=config.overlap)  # fmt: skip

    # -- inside ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _carry(
        self, model: TensorParallelGPT, optimizer: torch.optim.Optimizer, replicas: Replicas, group: Group,
        old: Replicas, healthy: set[int],
    ) -> None:  # fmt: skip
        """Fill the new model and optimizer with the state that the healthy ranks hold."""
        mine = self.replicas is not None and group.context.rank in healthy
        before = dict(self.model.named_parameters()) if mine else {}
        keys = self._keys(group, healthy, mine)
        moves, parts, targets = list[Moves](), list[Tensor](), list[tuple[Tensor, str | None]]()
        for name, p, cut in cuts_of(model):
            m = self._moves(name, p, cut, replicas, group, old, healthy)
            nothing = p.new_empty([*p.shape[: m.dim], 0, *p.shape[m.dim + 1 :]])
            kept = self.optimizer.state[before[name]] if mine else {}
            for key in (None, *(k for k, like in keys[name].items() if like is None)):
                moves.append(m)
                parts.append((before[name] if key is None else kept[key]).detach() if mine else nothing)
                targets.append((p, key))
            for key, value in keys[name].items():
                if value is not None:
                    optimizer.state[p][key] = torch.tensor(value) if isinstance(value, float) else value
        carrier = Carrier(moves, group)
        for (p, key), part in zip(targets, carrier.begin(parts).wait(), strict=True):
            if key is None:
                p.copy_(part)
            else:
                optimizer.state[p][key] = part
        self.moved += carrier.received_bytes(parts)

    def _moves(
        self, name: str, p: Tensor, cut: Cut | None, replicas: Replicas, group: Group, old: Replicas, healthy: set[int]
    ) -> Moves:
        """From where the healthy ranks hold parameter `name` to where `replicas` want it."""
        have, want, near = [], [], []
        for rank in group.global_ranks:
            replica, position = replicas.place(rank)
            near.append(replica)
            if cut is None:
                every = list(range(p.shape[0]))
                want.append(every)
                have.append(every if rank in healthy else [])
                continue
            want.append(_places(cut, replicas, replica, position))
            have.append(_places(cut, old, *old.place(rank)) if rank in healthy else [])
        try:
            return plan(have, want, dim=0 if cut is None else cut.dim, near=near)
        except Refused as why:
            raise Refused(f"a part of {name} is on no rank any more: {why}. Begin again from a checkpoint") from None

    def _keys(self, group: Group, healthy: set[int], mine: bool) -> dict[str, dict[str, Any]]:
        """By parameter, what the optimizer keeps: None for a tensor like the parameter, else the number itself.

        Told by the first healthy rank, because a rank that is new cannot know.
        """
        found: dict[str, dict[str, Any]] = {}
        tells = next(i for i, rank in enumerate(group.global_ranks) if rank in healthy)
        for name, p in self.model.named_parameters() if mine and group.rank == tells else ():
            found[name] = {
                key: None if isinstance(x, Tensor) and x.shape == p.shape and p.dim() else float(x)
                for key, x in self.optimizer.state.get(p, {}).items()
                if x is not None
            }
        text = json.dumps(found) if found else ""
        length = torch.tensor([len(text.encode())], device=group.device)
        texts = gather_texts(group, text, all_gather(length, group).tolist())
        return dict(json.loads(texts[tells]))


def _places(cut: Cut, replicas: Replicas, replica: int, position: int) -> list[int]:
    """Which places of a parameter a position of a replica holds."""
    layouts = replicas.map_of(replica, cut.count)
    return [int(i) for i in cut.other(layouts.compute).places(position)]
