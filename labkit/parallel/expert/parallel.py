"""`ExpertParallel`: the experts of every mixture in a model, shared out among the ranks of a group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from labkit.collectives import all_gather, all_to_all
from labkit.models.moe import MoE, Run, best_of_each
from labkit.optim.precision.codec import Wire
from labkit.parallel.expert.dispatch import Hop, dispatch
from labkit.parallel.expert.segments import back
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


class ExpertParallel:
    """Rank r of `group` holds the r-th part of the experts; tokens go to them and their results come back.

        model = ExpertParallel(group).into(GPT(GPTConfig(moe=MoEConfig(experts=8))))

    Which tokens are kept, the balancing loss and every result are those of one device that has the tokens of all ranks,
    in rank order, whatever the number of ranks. (The losses are means over a rank's own tokens: as with any loss, their
    average over ranks that have equally many is that of the whole.)

    hierarchical: rows cross between nodes in one message a node (see `dispatch.py`); needs several nodes of equal size.
    overlap: the shared expert computes while tokens are on their way. wire: how rows go to the experts, in FP8 with
    `Wire()`; they come back in BF16 then (see `dispatch.py`). Every rank gives the same.
    """

    def __init__(
        self, group: Group, *, hierarchical: bool = False, overlap: bool = True, wire: Wire | None = None
    ) -> None:  # fmt: skip
        if wire is not None and not isinstance(wire, Wire):
            raise RefusedError(f"wire={wire!r}: a Wire of labkit.optim.precision, or None to send rows as they are")
        self.group, self.overlap, self.wire = group, overlap, wire
        k = group.ranks_per_node
        if hierarchical and (k == group.size or group.size % k):
            raise RefusedError(
                f"hierarchical=True needs several nodes of equal size: this group of {group.size} has {k} ranks on a "
                "node. Launch it with a Network of several nodes"
            )
        self.nodes = group.size // k if hierarchical else 1
        if hierarchical:
            node, place = divmod(group.rank, k)
            inside, across = group.subgroup(range(node * k, node * k + k)), group.subgroup(range(place, group.size, k))
            self.hops: list[Hop] = [(inside, 1), (across, 0)]
        else:
            self.hops = [(group, 1)]

    def into(self, module: nn.Module) -> nn.Module:
        """`module`, each of whose `MoE` layers keeps this rank's experts only."""
        found = [layer for layer in module.modules() if isinstance(layer, MoE)]
        if not found:
            raise RefusedError(f"{type(module).__name__} has no mixture of experts (labkit.models.MoE)")
        for layer in found:
            mine = {str(e) for e in self.held(layer.config.experts)}
            for name in set(layer.experts) - mine:
                del layer.experts[name]
            layer.over = self
        return module

    def held(self, experts: int) -> range:
        """This rank's experts."""
        n, me = self.group.size, self.group.rank
        if experts % n:
            near = [d for d in range(1, experts + 1) if experts % d == 0]
            raise RefusedError(
                f"{experts} experts cannot be shared out evenly among {n} ranks: "
                f"{', '.join(map(str, near))} divide them"
            )
        few = experts // n
        return range(me * few, me * few + few)

    def choices_of_all(self, chosen_ke: Tensor) -> tuple[Tensor, Tensor]:
        """One all-gather of k e counts."""
        every_rke = all_gather(chosen_ke[None].contiguous(), self.group)
        return every_rke.sum(0), every_rke[: self.group.rank].sum(0)

    def keep_best(self, weights_kn: Tensor, experts_kn: Tensor, slots: int, experts: int) -> Tensor:
        """The rank of an expert compares all who chose it: weights go there, and a yes or no comes back."""
        k, n = weights_kn.shape
        choice = torch.arange(k, device=weights_kn.device)[:, None].expand(k, n).flatten()
        order = experts_kn.flatten().sort(stable=True).indices
        asked = torch.stack((weights_kn.flatten().double(), choice.double(), experts_kn.flatten().double()), 1)[order]
        few = len(self.held(experts))
        out = asked[:, 2].long().div(few, rounding_mode="floor").bincount(minlength=self.group.size)
        into = all_to_all(out[:, None].contiguous(), self.group, algorithm="pairwise")[:, 0]
        came = all_to_all(asked.contiguous(), self.group, out.tolist(), into.tolist())
        by_choice = came[:, 1].sort(stable=True).indices  # first choices first, then by rank, then by token
        kept = best_of_each(came[by_choice, 0], came[by_choice, 2].long(), slots)[back(by_choice)]
        said = all_to_all(kept[:, None].to(torch.uint8), self.group, into.tolist(), out.tolist())[:, 0].bool()
        return said[back(order)].view(k, n)

    def run(self, rows_md: Tensor, counts_e: Tensor, experts: Run, meanwhile: Callable[[], Any]) -> tuple[Tensor, Any]:
        """See `dispatch`."""
        sizes = counts_e.view(self.nodes, self.group.size // self.nodes, -1)
        return dispatch(rows_md, sizes, self.hops, experts, meanwhile, self.overlap, self.wire)
