"""Batches of tokens that count, with NaN wherever none does."""

import math

import torch
from hypothesis import strategies as st

seeds = st.integers(0, 10**6)


def batch(seed, b=3, t=6, tensors=4, dtype=torch.float64):
    """Tensors (b, t), and a mask with holes in which each row has one token or more; elsewhere stands NaN."""
    random = torch.Generator().manual_seed(seed)
    mask = torch.rand(b, t, generator=random) < 0.6
    mask[torch.arange(b), torch.randint(t, (b,), generator=random)] = True
    drawn = [torch.randn(b, t, generator=random, dtype=dtype) for _ in range(tensors)]
    return mask, [x.where(mask, math.nan) for x in drawn]


def counted(mask):
    return [[at for at, one in enumerate(row) if one] for row in mask.tolist()]
