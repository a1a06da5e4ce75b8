"""Attention as chapter 11 uses it: a small text's queries, keys and values, attention to a part of the keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.wire import Link, Network

HEADS, WIDTH = 4, 16  # of the attention that the chapter computes: heads, and numbers of a head
LINKS = {"10 MB/s": 10e6, "40 MB/s": 40e6, "160 MB/s": 160e6}
Part = tuple[Tensor, Tensor]


def drawn(length: int, heads: int = HEADS, kv_heads: int | None = None, width: int = WIDTH, seed: int = 0) -> Any:
    """Queries, keys and values of one text: (1, heads, length, width), the same on every rank that asks."""
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(1, h, length, width, generator=g) for h in (heads, kv_heads or heads, kv_heads or heads)]


def contiguous(rank: int, size: int, length: int) -> Tensor:
    """The positions of `rank`, where the text is cut into as many parts as there are ranks."""
    return torch.arange(length).tensor_split(size)[rank]


def packed(length: int, texts: int) -> Tensor:
    """The number of each token's text, for texts of one length that are packed into `length` tokens."""
    return torch.arange(length) * texts // length


def over(link: str) -> Network:
    """A network whose links have the bandwidth that is named, and no latency."""
    return Network(intra=Link(LINKS[link]))


def later(queries: Tensor, keys: Tensor) -> Tensor:
    """(q,), (k,) positions -> (q, k): whether the key comes later than the query, so that it may not be read."""
    return keys[None, :] > queries[:, None]


def attend(q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Causal attention to these keys alone: the weighted mean of their values, (b, h, q, d), and lse, (b, h, q).

    queries, keys: their positions. A query that may read none of the keys gets a mean of 0 and an lse of -inf.
    """
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(later(queries, keys), -math.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.clamp(min=torch.finfo(lse.dtype).min)[..., None]).exp()
    return weights @ v, lse


def kept_bytes(attention: Callable[..., Tensor], length: int, heads: int = HEADS, width: int = WIDTH) -> int:
    """Bytes of all tensors that autograd keeps between the forward and the backward pass of `attention`."""
    kept: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return x

    inputs = [x.requires_grad_() for x in drawn(length, heads, width=width)]
    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        y = attention(*inputs)
    del y
    return sum(kept.values())
