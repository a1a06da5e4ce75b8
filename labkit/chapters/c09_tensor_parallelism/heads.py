"""What the checks of chapter 9 compare with: a loss over a cut vocabulary, and attention shared out by heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.chapters.c09_tensor_parallelism.checks import Found, columns, rows
from labkit.chapters.c09_tensor_parallelism.say import Causes

# A loss over a cut vocabulary -----------------------------------------------------------------------------------------


def vocabulary_loss(logits: Tensor, targets: Tensor, n: int, ignore: int) -> Found:
    """Loss and gradient of this rank's logits; `logits` is whole: (positions, vocabulary)."""
    kept = targets != ignore
    leaf = logits.clone().requires_grad_()
    loss = F.cross_entropy(leaf, targets, ignore_index=ignore)
    loss.backward()
    assert leaf.grad is not None
    loss, gradient, count = loss.detach(), leaf.grad, int(kept.sum())
    parts, gradients = columns(logits, n), columns(gradient, n)
    right = [[loss, gradients[r]] for r in range(n)]

    starts = [0]
    for part in parts:
        starts.append(starts[-1] + part.shape[1])
    places = torch.where(kept, targets, 0)
    log_sum, top = logits.logsumexp(1), logits.amax(1)
    target = logits.gather(1, places[:, None])[:, 0]
    clamped = torch.zeros_like(target)  # every rank adds a score, its own or not
    for r, part in enumerate(parts):
        at = (places - starts[r]).clamp(0, part.shape[1] - 1)
        clamped += part.gather(1, at[:, None])[:, 0] - top
    own = [part.logsumexp(1) for part in parts]
    hot = [
        F.one_hot((places - starts[r]).clamp(0, p.shape[1] - 1), p.shape[1]).to(p.dtype) for r, p in enumerate(parts)
    ]
    soft = columns(logits.softmax(1), n)
    own_top = [part.amax(1, True) for part in parts]
    unfit = torch.stack([(p - m).exp().sum(1) for p, m in zip(parts, own_top, strict=True)]).sum(0).log()
    top_there = sum(m[:, 0] * _mine(places, starts, r)[:, 0] for r, m in enumerate(own_top))

    def mean(values: Tensor) -> Tensor:
        return values[kept].sum() / count

    def share(values: Tensor) -> Tensor:
        return values * kept[:, None] / count

    everything = F.cross_entropy(logits, places, reduction="none")
    causes: Causes = {
        "the loss": {
            "Positions to be ignored count in the denominator of the mean.": [loss * count / len(targets)] * n,
            "Positions to be ignored count, as if their target were symbol 0.": [everything.mean()] * n,
            "That is the sum. Take the mean over the targets that count.": [loss * count] * n,
            "Its own sum of exponentials only: the sum over the vocabulary is over all ranks.": [
                mean(o - target) for o in own
            ],
            "A rank that has not the target adds a score all the same. It adds 0.": [mean(log_sum - top - clamped)] * n,
            "Each rank subtracts its own largest score from all, and the sums do not fit together.": [
                mean(unfit - (target - top_there))
            ]
            * n,
            "Each rank subtracts its own largest score in its exponentials, and the sums do not fit together.": [
                mean(unfit - (target - top))
            ]
            * n,
            "It is averaged over the ranks.": [loss / n] * n,
            "It is summed over the ranks, but it is whole on each of them.": [loss * n] * n,
        },
        "the gradient of the logits": {
            "That is the gradient of the sum. The loss is the mean over the targets that count.": [
                g * count for g in gradients
            ],
            "It is divided by all positions. Those to be ignored do not count.": [
                g * count / len(targets) for g in gradients
            ],
            "The softmax has its own sum of exponentials only.": [
                share(p.softmax(1) - h * _mine(places, starts, r))
                for r, (p, h) in enumerate(zip(parts, hot, strict=True))
            ],
            "The target is subtracted on every rank. One rank has its column.": [
                share(s - h) for s, h in zip(soft, hot, strict=True)
            ],
            "The target is not subtracted: softmax minus 1, where the target is.": [share(s) for s in soft],
            "Positions to be ignored have a gradient: softmax. Theirs is 0.": [
                (s - h * _mine(places, starts, r) * kept[:, None]) / count
                for r, (s, h) in enumerate(zip(soft, hot, strict=True))
            ],
            "Positions to be ignored have a gradient, as if their target were symbol 0. Theirs is 0.": [
                (s - h * _mine(places, starts, r)) / count for r, (s, h) in enumerate(zip(soft, hot, strict=True))
            ],
        },
    }
    return right, causes


def _mine(places: Tensor, starts: Sequence[int], rank: int) -> Tensor:
    return ((places >= starts[rank]) & (places < starts[rank + 1]))[:, None].double()


# Attention by heads ---------------------------------------------------------------------------------------------------


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(heads, s, k), (groups, s, k) twice -> (s, heads k): causal; neighbouring heads share a key and a value."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(0, 1).flatten(1)


def split_qkv(qkv: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """(..., (h + 2 g) k) -> queries (..., h, k), keys and values (..., g, k)."""
    k = qkv.shape[-1] // (heads + 2 * kv_heads)
    parts = qkv.split((heads * k, kv_heads * k, kv_heads * k), -1)
    q, key, value = (x.unflatten(-1, (-1, k)) for x in parts)
    return q, key, value


def heads_of(x: Tensor, numbers: Sequence[int]) -> Tensor:
    """Some heads of (rows, heads, k), side by side: (rows, heads k)."""
    return x[:, list(numbers)].flatten(1)


def attention(x: Tensor, qkv: Tensor, out: Tensor, heads: int, kv_heads: int, n: int) -> Found:
    """[this rank's columns of qkv, y] with the heads shared out."""
    q, k, v = split_qkv(qkv, heads, kv_heads)
    each, width = heads // n, qkv.shape[-1] // (heads + 2 * kv_heads)

    def mine(rank: int) -> tuple[range, range]:
        first = rank * kv_heads // n
        return range(rank * each, (rank + 1) * each), range(first, max((rank + 1) * kv_heads // n, first + 1))

    def cut(rank: int, queries: Sequence[int], groups: Sequence[int], swapped: bool = False) -> Tensor:
        key, value = heads_of(k, groups), heads_of(v, groups)
        return torch.cat([heads_of(q, queries), value if swapped else key, key if swapped else value], 1)

    def mixed(map_of: str = "neighbours", scale: bool = True, causal: bool = True) -> Tensor:
        qs, ks, vs = (heads_first(x @ w.flatten(1), width) for w in (q, k, v))
        if map_of == "modulo":
            ks, vs = (z.repeat(heads // kv_heads, 1, 1) for z in (ks, vs))
        options = {} if scale else {"scale": 1.0}
        y = F.scaled_dot_product_attention(qs, ks, vs, is_causal=causal, enable_gqa=True, **options)  # type: ignore[arg-type]
        return y.transpose(0, 1).flatten(1)

    whole = mixed()
    y = whole @ out
    right = [[cut(r, *mine(r)), y] for r in range(n)]
    length = qkv.shape[1] // n
    causes: Causes = {
        "the columns": {
            "That is one stretch of the joined matrix. Queries, keys and values are three sections: a part of each.": [
                qkv[:, r * length : (r + 1) * length] for r in range(n)
            ],
            "Its heads do not stand side by side: every n-th one is taken. Take neighbours, as `out` is cut.": [
                cut(r, range(r, heads, n), range(r % kv_heads, kv_heads, n)) for r in range(n)
            ],
            "Keys and values are exchanged.": [cut(r, *mine(r), swapped=True) for r in range(n)],
            "All keys and values are here. A rank has those that its queries read.": [
                cut(r, mine(r)[0], range(kv_heads)) for r in range(n)
            ],
            "These keys are not those that its queries read: queries h/t r to h/t (r + 1) - 1 read neighbours.": [
                cut(r, mine(r)[0], [r % kv_heads] if n > kv_heads else range(r, kv_heads, n)) for r in range(n)
            ],
            "Those are all columns. A rank has a part of them.": [qkv] * n,
        },
        "y": {
            "That is the partial sum of its own heads: nothing was summed.": [
                w @ o for w, o in zip(columns(whole, n), rows(out, n), strict=True)
            ],
            "The partial sums are averaged. They are summed.": [y / n] * n,
            "Head i reads key i modulo the keys. Neighbouring heads share one: head i reads key i // (heads / keys).": [
                mixed("modulo") @ out
            ]
            * n,
            "The logits are not divided by the root of a head's width.": [mixed(scale=False) @ out] * n,
            "Positions read what comes after them: it is not causal.": [mixed(causal=False) @ out] * n,
        },
    }
    return right, causes


def heads_first(x: Tensor, width: int) -> Tensor:
    """(s, heads width) -> (heads, s, width)."""
    return x.unflatten(-1, (-1, width)).transpose(0, 1)
