"""Causal attention, and rotary positions. Names of tensors as in `gpt.py`.

With grouped-query attention g is the number of heads that keys and values have.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(
    qkv_btn: Tensor, heads: int, groups: int, dropout: float = 0.0, rotary: bool = False,
    positions: Tensor | None = None, mask_btt: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Causal attention of `heads` queries to `groups` keys and values: (b, t, (h + 2 g) k) -> (b, t, h k).

    Position t reads positions 0..t (Vaswani et al. 2017, section 3.2). With fewer keys than queries, neighbouring
    heads share one (Ainslie et al. 2023, "GQA"). dropout: the share of attention weights that are set to 0.
    positions: by which rotary turns, (t,) or (b, t); without them, 0..t-1. mask_btt: bool, true where a query (first t)
    may read a key (second t), in the place of the causal mask.
    """
    q_bhtk, k_bgtk, v_bgtk = heads_of(qkv_btn, heads, groups)
    if rotary:
        at = torch.arange(qkv_btn.shape[1], device=qkv_btn.device) if positions is None else positions
        q_bhtk, k_bgtk = turned(q_bhtk, at), turned(k_bgtk, at)
    mask_b1tt = None if mask_btt is None else mask_btt[:, None]
    if dropout:
        y_bhtk = _attend_with_dropout(q_bhtk, k_bgtk, v_bgtk, dropout, mask_b1tt)
    else:
        y_bhtk = F.scaled_dot_product_attention(
            q_bhtk, k_bgtk, v_bgtk, mask_b1tt, is_causal=mask_b1tt is None, enable_gqa=groups != heads
        )
    return y_bhtk.transpose(1, 2).flatten(2)


def heads_of(qkv_btn: Tensor, heads: int, groups: int) -> tuple[Tensor, Tensor, Tensor]:
    """(b, t, (h + 2 g) k) as queries (b, h, t, k), keys and values (b, g, t, k)."""
    k = qkv_btn.shape[-1] // (heads + 2 * groups)
    parts = qkv_btn.split((heads * k, groups * k, groups * k), dim=-1)
    q_bhtk, k_bgtk, v_bgtk = (x.unflatten(-1, (-1, k)).transpose(1, 2) for x in parts)
    return q_bhtk, k_bgtk, v_bgtk


def turned(x_bhtk: Tensor, positions: Tensor, base: float = 10_000.0) -> Tensor:
    """Rotary positions (Su et al. 2021): number i and number i + k / 2 are a point, turned by t / base^(2 i / k).

    positions: (t,), or (b, t) where the sequences do not share them.
    The product of a query and a key then depends on how far apart they are, and on nothing else of their positions.
    """
    half = x_bhtk.shape[-1] // 2
    wide = torch.promote_types(x_bhtk.dtype, torch.float32)
    rates = base ** (-torch.arange(half, device=x_bhtk.device, dtype=wide) / half)
    angles = positions.to(x_bhtk.device, wide)[..., None, :, None] * rates  # (1, t, k / 2), or (b, 1, t, k / 2)
    a, b = x_bhtk.to(wide).split(half, dim=-1)
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1).to(x_bhtk.dtype)


def _attend_with_dropout(
    q_bhtk: Tensor, k_bgtk: Tensor, v_bgtk: Tensor, dropout: float, mask_b1tt: Tensor | None
) -> Tensor:
    """Written out, so that the weights that are dropped are those of `F.dropout`, as everywhere in this model."""
    share, t = q_bhtk.shape[1] // k_bgtk.shape[1], q_bhtk.shape[2]
    k_bhtk, v_bhtk = k_bgtk.repeat_interleave(share, dim=1), v_bgtk.repeat_interleave(share, dim=1)
    if mask_b1tt is None:
        mask_b1tt = torch.ones(t, t, dtype=torch.bool, device=q_bhtk.device).tril()
    scores_bhtt = (q_bhtk @ k_bhtk.mT / math.sqrt(q_bhtk.shape[-1])).masked_fill(~mask_b1tt, -math.inf)
    return F.dropout(scores_bhtt.softmax(-1), dropout) @ v_bhtk
