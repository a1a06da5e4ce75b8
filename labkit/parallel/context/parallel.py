"""`ContextParallel`: attention over several ranks in the place of a model's own, ring and Ulysses combined."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labkit.collectives import all_gather
from labkit.models.attention import heads_of, turned
from labkit.parallel.context.layouts import positions_of
from labkit.parallel.context.masks import Mask
from labkit.parallel.context.ring import Plan, ring_attention
from labkit.parallel.context.ulysses import to_heads, to_positions
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


class ContextParallel:
    """One sequence over the ranks of `group`.

        context = ContextParallel(group, layout="zigzag")
        model = context.into(GPT(config))                     # its attention layers read over all ranks
        inputs_bt, targets_bt = context.cut(inputs_bt), context.cut(targets_bt)
        logits_btv = model(inputs_bt, context.positions)      # of this rank's positions

    ulysses: how many neighbouring ranks share heads in place of positions. 1 is ring attention, `group.size` is
    Ulysses, and what lies between is both: all-to-all among neighbours, a ring of their groups (Fang and Zhao 2024,
    "USP"). layout: of the ring (see `layouts.py`); in a group that shares heads each rank holds a part of the ring's.
    Every rank brings the same arguments. Bytes: `cost.ring_attention_bytes`, `cost.ulysses_bytes`.

    `weight` is this rank's share of the positions: the ranks' mean losses times their weights add up to the mean of
    the whole sequence, and so do their gradients.
    """

    def __init__(
        self, group: Group, *, layout: str = "zigzag", ulysses: int = 1, causal: bool = True, window: int | None = None,
        overlap: bool = True, pair_seconds: float = 0.0,
    ) -> None:  # fmt: skip
        n = group.size
        if ulysses < 1 or n % ulysses:
            fit = ", ".join(str(u) for u in range(1, n + 1) if n % u == 0)
            raise RefusedError(f"ulysses={ulysses}: the ranks that share heads must divide the {n} ranks; choose {fit}")
        self.group, self.layout, self.overlap, self.pair_seconds = group, layout, overlap, pair_seconds
        self.mask = Mask(causal, window)
        first = group.rank // ulysses * ulysses
        self.sharing_heads = group.subgroup(range(first, first + ulysses))
        self.ring = group.subgroup(range(group.rank % ulysses, n, ulysses))
        self._of: list[Tensor] = []  # positions of each rank of the group
        self._plan: Plan | None = None

    @property
    def positions(self) -> Tensor:
        """Where this rank's tokens stand in the sequence that was cut last, ascending."""
        return self._cut()[self.group.rank]

    @property
    def weight(self) -> float:
        """This rank's share of the positions."""
        return len(self.positions) / sum(map(len, self._of))

    def begin(self, length: int, documents: Tensor | None = None) -> None:
        """What follows belongs to a sequence of `length` positions; `documents`: see `Mask`. `cut` calls it."""
        if documents is not None and len(documents) != length:
            raise RefusedError(f"documents has {len(documents)} numbers, and the sequence {length} positions")
        mask = Mask(self.mask.causal, self.mask.window, documents)
        blocks = [positions_of(r, self.ring.size, length, self.layout) for r in range(self.ring.size)]
        shared = self.sharing_heads.size
        if min(map(len, blocks)) < shared:
            raise RefusedError(f"a sequence of {length} positions is too short for {self.group.size} ranks")
        self._of = [part for block in blocks for part in block.tensor_split(shared)]
        self._plan = Plan(self.ring, blocks, mask, self.overlap, self.pair_seconds)

    def cut(self, whole: Tensor, dim: int = 1, documents: Tensor | None = None) -> Tensor:
        """This rank's positions of `whole`, which every rank has, along `dim`. Nothing is sent."""
        self.begin(whole.shape[dim], documents)
        return whole.index_select(dim, self.positions.to(whole.device))

    def join(self, part: Tensor, dim: int = 1) -> Tensor:
        """All ranks' positions along `dim`, in their order, on every rank: one all-gather, without a gradient."""
        counts = list(map(len, self._cut()))
        rows = all_gather(part.detach().movedim(dim, 0).contiguous(), self.group, counts)
        return rows[torch.cat(self._of).argsort()].movedim(0, dim)

    def into(self, module: nn.Module) -> nn.Module:
        """`module`, whose attention layers (those with a `core`) from now on read over all ranks."""
        found = [layer for layer in module.modules() if hasattr(layer, "core")]
        if not found:
            raise RefusedError(f"{type(module).__name__} has no attention layer with a `core` that could be replaced")
        for layer in found:
            layer.core = self  # type: ignore[assignment]
        return module

    def attention(self, q_bhtd: Tensor, k_bgtd: Tensor, v_bgtd: Tensor) -> Tensor:
        """Attention of this rank's queries to the keys of all: (b, h, t, d). h heads of queries, g of keys."""
        shared = self.sharing_heads
        if shared.size == 1:
            return ring_attention(q_bhtd, k_bgtd, v_bgtd, self._ready())
        h, g = q_bhtd.shape[1], k_bgtd.shape[1]
        if h % shared.size:
            raise RefusedError(
                f"{shared.size} ranks cannot share {h} heads evenly, and with Ulysses each of them needs whole heads. "
                "Let fewer ranks share heads (`ulysses`), and let a ring join their groups"
            )
        if g % shared.size:  # a rank needs whole heads of keys: they are copied until there are enough
            times = shared.size // g if shared.size % g == 0 else h // g
            k_bgtd, v_bgtd = (x.repeat_interleave(times, dim=1) for x in (k_bgtd, v_bgtd))
        first = self.group.rank - shared.rank
        counts = [len(p) for p in self._cut()[first : first + shared.size]]
        q, k, v = (to_heads(x, shared, counts) for x in (q_bhtd, k_bgtd, v_bgtd))
        return to_positions(ring_attention(q, k, v, self._ready()), shared, counts)

    def __call__(self, qkv_btn: Tensor, heads: int, groups: int, dropout: float = 0.0, rotary: bool = False) -> Tensor:
        """In the place of `labkit.models.gpt.attend`: (b, t, (h + 2 g) k) -> (b, t, h k), of this rank's positions."""
        if dropout:
            raise RefusedError("dropout in attention is not there over several ranks: build the model with dropout=0")
        if qkv_btn.shape[1] != len(self.positions):
            raise RefusedError(
                f"rank {self.group.rank} holds {len(self.positions)} positions of the sequence that was cut last, and "
                f"its input has {qkv_btn.shape[1]}: cut the tokens of each sequence before the forward pass"
            )
        q_bhtk, k_bgtk, v_bgtk = heads_of(qkv_btn, heads, groups)
        if rotary:
            q_bhtk, k_bgtk = turned(q_bhtk, self.positions), turned(k_bgtk, self.positions)
        return self.attention(q_bhtk, k_bgtk, v_bgtk).transpose(1, 2).flatten(2)

    def _cut(self) -> list[Tensor]:
        if not self._of:
            raise RefusedError("nothing was cut yet: call cut(tokens) first, which says how long the sequence is")
        return self._of

    def _ready(self) -> Plan:
        self._cut()
        assert self._plan is not None
        return self._plan
