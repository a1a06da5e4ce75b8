"""Attention to a block of keys, how the results of two blocks merge, and the gradients of one block.

The softmax of a row needs the sum over all its keys, and a rank has only some of them at a time. So each block gives,
beside its result, the logarithm of its sum of exponentials, `lse`; two blocks are then merged exactly (Milakov and
Gimelshein 2018, "Online normalizer calculation for softmax"). FlashAttention (Dao et al. 2022) does the same with
tiles that fit into a GPU's fast memory, so that the scores, (q, k) numbers, never exist as a whole; `tiles` cuts the
blocks here in the same way, and skips those that the mask hides.

b sequences, h heads of queries, g heads of keys (h / g queries share one), q and k positions, d width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from labkit.parallel.context.masks import Mask

TILE = 512  # positions at most, of queries and of keys: their scores are 1 MB a head in float32


def accumulating(x: Tensor) -> torch.dtype:
    """Sums are kept in float32 at least."""
    return torch.promote_types(x.dtype, torch.float32)


def runs(positions: Tensor, most: int = TILE) -> list[slice]:
    """Where `positions` go up without a gap, in pieces of at most `most`: zigzag has two such runs.

    Stripes count as one run, though their steps are long.
    """
    steps = positions.diff()
    gaps = [] if not len(steps) else ((steps > steps.min()).nonzero().flatten() + 1).tolist()
    ends = zip([0, *gaps], [*gaps, len(positions)], strict=True)
    return [slice(at, min(at + most, end)) for begin, end in ends for at in range(begin, end, most)]


def tiles(queries: Tensor, keys: Tensor, mask: Mask) -> Iterator[tuple[slice, slice, Tensor | None]]:
    """Pairs of runs in which a query may read a key: (rows, columns, what is allowed; None: everything)."""
    columns = runs(keys)
    for row in runs(queries):
        for column in columns:
            q, k = queries[row], keys[column]
            if mask.none(q, k):
                continue
            yield row, column, None if mask.all(q, k) else mask.allowed(q, k)


def attend_(
    out: Tensor, lse: Tensor, q_bhqd: Tensor, k_bgkd: Tensor, v_bgkd: Tensor, queries: Tensor, keys: Tensor, mask: Mask
) -> None:
    """Let the queries attend to these keys too, in place: `out` (b, h, q, d) and `lse` (b, h, q), see `nothing_yet`.

    queries, keys: their positions. Scores are divided by sqrt(d).
    """
    for row, column, allowed in tiles(queries, keys, mask):
        scores = _scores(q_bhqd[..., row, :], k_bgkd[..., column, :], allowed)
        part_lse = scores.logsumexp(-1)
        weights = (scores - _finite(part_lse)[..., None]).exp()
        part = _grouped(weights, v_bgkd.shape[1]) @ v_bgkd[..., column, :].to(out.dtype)[:, :, None]
        merge_(out[..., row, :], lse[..., row], part.flatten(1, 2), part_lse)


def nothing_yet(q_bhqd: Tensor) -> tuple[Tensor, Tensor]:
    """The result and lse of queries that have read no key: 0 and -inf, in float32 or wider."""
    out = torch.zeros_like(q_bhqd, dtype=accumulating(q_bhqd))
    return out, torch.full_like(out[..., 0], -math.inf)


def merge_(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> None:
    """Join another block's result with `out` and `lse`, in place: each counts by its share of the exponentials."""
    both = torch.logaddexp(lse, other_lse)
    out.mul_((lse - _finite(both)).exp()[..., None]).add_((other_lse - _finite(both)).exp()[..., None] * other)
    lse.copy_(both)


def _finite(lse: Tensor) -> Tensor:
    """-inf, of a query that has read nothing, as a number that can be subtracted from -inf."""
    return lse.clamp(min=torch.finfo(lse.dtype).min)


def pairs(queries: Tensor, keys: Tensor, mask: Mask) -> int:
    """How many pairs of query and key are scored: what the work of a block is proportional to."""
    found = ((row.stop - row.start) * (column.stop - column.start) if allowed is None else int(allowed.sum())
             for row, column, allowed in tiles(queries, keys, mask))  # fmt: skip
    return sum(found)


def block_gradients(
    q_bhqd: Tensor, k_bgkd: Tensor, v_bgkd: Tensor, grad_bhqd: Tensor, lse_bhq: Tensor, delta_bhq: Tensor,
    queries: Tensor, keys: Tensor, mask: Mask, dq: Tensor, dk: Tensor, dv: Tensor,
) -> None:  # fmt: skip
    """Add this block's share of the gradients to `dq`, `dk` and `dv`, which are in float32 or wider.

    lse: of the whole row, over the keys of all blocks, so that exp(score - lse) is the weight in the whole softmax.
    delta: the sum over d of result times gradient (Dao et al. 2022, appendix B.2).
    """
    wide, scale, g = accumulating(q_bhqd), 1 / math.sqrt(q_bhqd.shape[-1]), k_bgkd.shape[1]
    for row, column, allowed in tiles(queries, keys, mask):
        q, k, v = q_bhqd[..., row, :], k_bgkd[..., column, :].to(wide), v_bgkd[..., column, :].to(wide)
        dy = _grouped(grad_bhqd[..., row, :].to(wide), g)
        weights = _grouped((_scores(q, k, allowed) - lse_bhq[..., row, None]).exp(), g)
        dv[..., column, :] += (weights.mT @ dy).sum(2)
        ds = weights * (dy @ v[:, :, None].mT - _grouped(delta_bhq[..., row, None], g)) * scale
        dq[..., row, :] += (ds @ k[:, :, None]).flatten(1, 2)
        dk[..., column, :] += (ds.mT @ _grouped(q.to(wide), g)).sum(2)


def _grouped(x_bh: Tensor, groups: int) -> Tensor:
    """(b, h, ...) -> (b, g, h / g, ...): the heads that share keys, side by side."""
    return x_bh.unflatten(1, (groups, -1))


def _scores(q_bhqd: Tensor, k_bgkd: Tensor, allowed_qk: Tensor | None) -> Tensor:
    """q k / sqrt(d) as (b, h, q, k), -inf where a key is hidden."""
    wide, groups = accumulating(q_bhqd), k_bgkd.shape[1]
    q = _grouped(q_bhqd.to(wide), groups) / math.sqrt(q_bhqd.shape[-1])
    scores = (q @ k_bgkd.to(wide)[:, :, None].mT).flatten(1, 2)
    return scores if allowed_qk is None else scores.masked_fill(~allowed_qk, -math.inf)
