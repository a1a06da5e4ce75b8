"""One pass of a GPT over the tokens that its cache does not know yet, of many sequences at once.

Without a cache each new token costs a pass over the whole sequence. But keys and values of the earlier positions do not
change, so with them at hand a pass over the new tokens is enough. For a new sequence these are its whole prompt, which
is called *prefill*; later it is one token, which is a *decoding step*. Both are the same pass here, and one batch may
have both: the new tokens of all sequences lie side by side in one row without padding, and only attention looks at
which belongs to which (Yu et al. 2022, "Orca", section 3.2, selective batching).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.align.rollout.cache import PagedCache, Places
from labkit.models.attention import heads_of, turned
from labkit.models.gpt import GPT, Attention
from labkit.wire.errors import RefusedError


@torch.no_grad()
def extend(model: GPT, cache: PagedCache, fresh: Mapping[int, Sequence[int]]) -> list[Tensor]:
    """Logits after each of the `fresh` tokens of each sequence: for every sequence (tokens, v), in the given order.

    fresh: by id of the sequence, one token or more that follow those in the cache; from now on they are in it. The
    logits are those of `model` on the whole sequence, but for rounding. The model runs as in evaluation: without
    dropout. Raises RefusedError for a mixture of experts, which may drop a token because of its neighbours in a batch,
    and where the cache is full; ValueError beyond the context.
    """
    if model.config.moe is not None:
        raise RefusedError("a mixture of experts treats a token by what else is in its batch: generate without `moe`")
    counts = {i: len(tokens) for i, tokens in fresh.items()}
    if not counts or not all(counts.values()):
        raise RefusedError(f"a pass needs new tokens of each sequence; it got, by id, {counts}")
    places = cache.append(counts)
    tokens_n = torch.tensor([t for tokens in fresh.values() for t in tokens], device=places.position_n.device)
    with _attention(model, lambda layer: CachedAttention(cache, layer, places)):
        logits_nv = model(tokens_n[None], places.position_n)[0]
    return list(logits_nv.split(list(counts.values())))


def next_logits(model: GPT, cache: PagedCache, fresh: Mapping[int, Sequence[int]]) -> Tensor:
    """Logits of the next token of each sequence, (b, v): `extend`, of which the last row of each is left."""
    return torch.stack([logits_tv[-1] for logits_tv in extend(model, cache, fresh)])


class CachedAttention:
    """What stands in the place of `attend` in one layer: new queries read old and new keys and values."""

    def __init__(self, cache: PagedCache, layer: int, places: Places) -> None:
        self.cache, self.layer, self.places = cache, layer, places

    def __call__(self, qkv_1nc: Tensor, heads: int, groups: int, dropout: float, rotary: bool) -> Tensor:
        """(1, n, (h + 2 g) k) -> (1, n, h k), for the n new positions of the batch."""
        at = self.places
        q_hnk, k_gnk, v_gnk = (x[0] for x in heads_of(qkv_1nc, heads, groups))
        if rotary:
            q_hnk, k_gnk = turned(q_hnk, at.position_n), turned(k_gnk, at.position_n)
        self.cache.write(self.layer, at, k_gnk.transpose(0, 1), v_gnk.transpose(0, 1))
        k_bgsk, v_bgsk = self.cache.read(self.layer, at)

        b, t = len(at.start_b), int(at.column_n.max()) + 1
        q_bthk = q_hnk.new_zeros(b, t, *q_hnk.transpose(0, 1).shape[1:])
        q_bthk[at.row_n, at.column_n] = q_hnk.transpose(0, 1)
        reader_bt = at.start_b[:, None] + torch.arange(t, device=qkv_1nc.device)
        reads_bts = torch.arange(k_bgsk.shape[2], device=qkv_1nc.device) <= reader_bt[:, :, None]
        y_bhtk = F.scaled_dot_product_attention(
            q_bthk.transpose(1, 2), k_bgsk, v_bgsk, attn_mask=reads_bts[:, None], enable_gqa=groups != heads
        )
        return y_bhtk.transpose(1, 2)[at.row_n, at.column_n].flatten(1)[None]


@contextlib.contextmanager
def _attention(model: GPT, core: Callable[[int], CachedAttention]) -> Iterator[None]:
    """Inside, layer number i of `model` attends with `core(i)`, and the model is in evaluation mode."""
    training, layers = model.training, [module for module in model.modules() if isinstance(module, Attention)]
    before = [layer.core for layer in layers]
    model.eval()
    try:
        for i, layer in enumerate(layers):
            layer.core = core(i)  # type: ignore[assignment]
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            layer.core = own
        model.train(training)
