"""Ring attention (Liu et al. 2023, "Ring Attention with Blockwise Transformers"): keys and values go around.

Every rank keeps its queries. In round i rank r holds the keys and values of rank r - i, lets its queries attend to
them, and meanwhile passes them on to rank r + 1. After N rounds every query has met every key, and no rank ever held
more than two blocks of keys. In the backward pass keys and values go around once more, and the gradients of a block
travel after it, collecting one rank's share after another, until they are sent home.

With a sliding window only the first few rounds reach a key that a query may read (`Plan.rounds`); the rest is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from labkit.parallel.context.blocks import attend_, block_gradients, nothing_yet, pairs
from labkit.parallel.context.masks import Mask
from labkit.wire.group import Group

BACKWARD = 2.5  # matrix products of the backward pass, five, over those of the forward pass, two


@dataclass(frozen=True)
class Plan:
    """positions: of each rank. overlap: whether blocks travel while the rank computes. pair_seconds: if not 0, the time
    that a stand-in kernel takes for each scored pair of query and key (see `Group.compute`)."""

    group: Group
    positions: Sequence[Tensor]
    mask: Mask = Mask()
    overlap: bool = True
    pair_seconds: float = 0.0

    @property
    def rounds(self) -> int:
        """How many blocks a rank has to see: all that some rank's queries can reach."""
        n = self.group.size
        reach = [i for i in range(n) for r in range(n)
                 if not self.mask.none(self.positions[r], self.positions[(r - i) % n])]  # fmt: skip
        return max(reach, default=0) + 1

    def work(self, owner: int, times: float = 1.0) -> Any:
        """What this rank computes with the block of `owner`: at least as long as the stand-in kernel."""
        if not self.pair_seconds:
            return nullcontext()
        mine = pairs(self.positions[self.group.rank], self.positions[owner], self.mask)
        return self.group.compute(times * self.pair_seconds * mine)


def ring_attention(q_bhqd: Tensor, k_bgkd: Tensor, v_bgkd: Tensor, plan: Plan) -> Tensor:
    """Attention of this rank's queries to the keys of all ranks: (b, h, q, d), in the dtype of `q_bhqd`.

    q: (b, h, q, d), this rank's positions; k, v: (b, g, q, d), where g divides h. Equal to attention of the whole
    sequence, but for the order of additions, which are in float32 or wider.
    A ring of one rank (Ulysses alone) takes PyTorch's kernel where that has the mask.
    Bytes sent: `cost.ring_attention_bytes`.
    """
    mask = plan.mask
    if plan.group.size == 1 and not plan.pair_seconds and mask.window is None and mask.documents is None:
        grouped = q_bhqd.shape[1] != k_bgkd.shape[1]
        return F.scaled_dot_product_attention(q_bhqd, k_bgkd, v_bgkd, is_causal=mask.causal, enable_gqa=grouped)
    return _Ring.apply(q_bhqd, k_bgkd, v_bgkd, plan)


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Plan) -> Tensor:
        out, lse = nothing_yet(q)
        mine = plan.positions[plan.group.rank]
        for owner, kv in _around(plan, torch.stack((k, v))):
            with plan.work(owner):
                attend_(out, lse, q, kv[0], kv[1], mine, plan.positions[owner], plan.mask)
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, out, lse)
        return out.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, out, lse = ctx.saved_tensors
        plan: Plan = ctx.plan
        group, mine, rounds = plan.group, plan.positions[plan.group.rank], plan.rounds
        n, me = group.size, group.rank
        delta = (gradient * out).sum(-1)
        dq, travelling = torch.zeros_like(out), None
        for owner, kv in _around(plan, torch.stack((k, v))):
            dkv = torch.zeros_like(kv, dtype=out.dtype)
            with plan.work(owner, BACKWARD):
                block_gradients(q, kv[0], kv[1], gradient, lse, delta, mine, plan.positions[owner], plan.mask,
                                dq, dkv[0], dkv[1])  # fmt: skip
            if travelling is not None:  # what the ranks before this one have found for the same block
                dkv += travelling.wait()[1]
            if (me - owner) % n + 1 < rounds:
                travelling = _Move(group, dkv, _room(dkv, plan, owner - 1), 1)
        if rounds > 1:  # home: to the rank whose block this is
            dkv = _Move(group, dkv, torch.zeros_like(torch.stack((k, v)), dtype=out.dtype), 1 - rounds).wait()[1]
        return dq.to(q.dtype), dkv[0].to(k.dtype), dkv[1].to(v.dtype), None


class _Move:
    """A tensor to the rank `by` places to the right, and another one from as far on the left, both under way."""

    def __init__(self, group: Group, out: Tensor, room: Tensor, by: int) -> None:
        n, me = group.size, group.rank
        self.out, self.room = out, room
        self._handles = group.isend(out, (me + by) % n), group.irecv(room, (me - by) % n)

    def wait(self) -> tuple[Tensor, Tensor]:
        for handle in self._handles:
            handle.wait()
        return self.out, self.room


def _around(plan: Plan, kv: Tensor) -> Any:
    """(owner, its keys and values), round by round: the next block is on its way while this one is used."""
    group, n, rounds = plan.group, plan.group.size, plan.rounds
    for i in range(rounds):
        owner = (group.rank - i) % n
        move = _Move(group, kv, _room(kv, plan, owner - 1), 1) if i + 1 < rounds else None
        if move is not None and not plan.overlap:
            move.wait()
        yield owner, kv
        if move is not None:
            kv = move.wait()[1]


def _room(like: Tensor, plan: Plan, owner: int) -> Tensor:
    """Room for a block of the rank `owner`, whose positions may be one more or less."""
    return like.new_empty(*like.shape[:-2], len(plan.positions[owner % plan.group.size]), like.shape[-1])
