"""What chapter 16 asks its reader to write: attention of the newest token, packing, and the losses of PPO and DPO."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit.align.ppo import clipped_objective
from labkit.chapters.c16_alignment.decoding import Cache
from labkit.grading.checks.student import NotRight
from labkit.grading.writing import Reader, you_write
from labkit.wire import Group

# 1: attention of the newest token ------------------------------------------------------------------------------------

HEADS, GROUPS, WIDE, TOKENS = 4, 2, 4, 5
Sequences = tuple[Tensor, Tensor, Tensor]  # queries (t, h, k), keys and values (t, g, k)


def every_token_reads_those_before_it(student: Reader) -> str:
    for n in (1, 2):
        given = [_drawn(student.seed + r) for r in range(n)]
        run = student.through("attend_next", n, given, _token_by_token)
        for rank, ((outs, grown), (q_thk, k_tgk, v_tgk)) in enumerate(zip(run.results, given, strict=True)):
            for t, got in enumerate(outs):
                who = f"With {n} rank{'s' * (n != 1)}, on rank {rank}, at token {t}:"
                student.expect(isinstance(got, Tensor), "{who} return a tensor of shape (h, k).", who=who)
                student.expect(got.shape == (HEADS, WIDE), "{who} you return a tensor of shape {shape}, and it should "
                               "be (h, k) = "
                               "{right}.", who=who, shape=tuple(got.shape), right=(HEADS, WIDE))  # fmt: skip
                want = _attended(q_thk[t], k_tgk[: t + 1], v_tgk[: t + 1])
                if not torch.allclose(got, want, atol=1e-5):
                    raise NotRight(f"{who} {_about(got, q_thk, k_tgk, v_tgk, t)}")
                student.expect(grown[t] == t + 1, "{who} the output is right, but the cache has keys of {got} tokens, "
                               "and {right} were written. Put the new key and value into it.", who=who, got=grown[t],
                               right=t + 1)  # fmt: skip
    return (
        f"On each rank {TOKENS} tokens came one by one, and each read its own key and all earlier ones, {HEADS} "
        f"queries from {GROUPS} groups of keys. The outputs are those of attention over the whole sequence at once."
    )


def _drawn(seed: int) -> Sequences:
    draw = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(TOKENS, n, WIDE, generator=draw) for n in (HEADS, GROUPS, GROUPS))
    return 2 * q, k, v


def _token_by_token(fn: Callable[..., Any], given: Sequences, group: Group) -> tuple[list[Any], list[int]]:
    cache, outs, grown = Cache.empty(GROUPS, WIDE), [], []
    for q, k, v in zip(*given, strict=True):
        outs.append(fn(q, k, v, cache))
        grown.append(len(cache.keys) if len(cache.keys) == len(cache.values) else -1)
    return outs, grown


def _attended(
    q_hk: Tensor, k_tgk: Tensor, v_tgk: Tensor, scale: float | None = None, heads: str = "side by side", over: int = -1
) -> Tensor:
    """The right output, or that of a well-known slip."""
    more = HEADS // GROUPS
    k_thk, v_thk = (
        x.repeat_interleave(more, 1) if heads == "side by side" else x.repeat(1, more, 1) for x in (k_tgk, v_tgk)
    )
    scores_ht = torch.einsum("hk,thk->ht", q_hk, k_thk) / (math.sqrt(WIDE) if scale is None else scale)
    return torch.einsum("ht,thk->hk", scores_ht.softmax(over), v_thk)


def _about(got: Tensor, q_thk: Tensor, k_tgk: Tensor, v_tgk: Tensor, t: int) -> str:
    """Why an output is wrong."""
    q, k, v = q_thk[t], k_tgk[: t + 1], v_tgk[: t + 1]

    def like(other: Tensor) -> bool:
        return torch.allclose(got, other, atol=1e-5)

    if t and like(_attended(q, k[:-1], v[:-1])):
        return "the output has everything but the newest token. It reads its own key and value too: put them in first."
    if t and like(_attended(q, k[-1:], v[-1:])):
        return "the output has the newest token alone. Read all keys and values that the cache has."
    if not got.isfinite().all() or (not t and not float(got.abs().sum())):
        return "nothing was read: the cache is empty at the first token, until the new key and value are in it."
    if like(_attended(q, k, v, 1.0)):
        return "the output is that of scores which nobody has divided by the square root of k, the width of a head."
    if like(_attended(q, k, v, WIDE)):
        return "the scores were divided by k, the width of a head, in place of its square root."
    if like(_attended(q, k, v, over=0)):
        return "the softmax runs over the heads. Each head shares its attention among the tokens, so it runs over t."
    if like(_attended(q, k, v, heads="in turn")):
        return (
            "the heads read the wrong groups. The first h / g heads share group 0, the next ones group 1: repeat each "
            "group next to itself (`repeat_interleave`)."
        )
    return "the output is not that of softmax(q k / sqrt(k)) times the values of all tokens so far."


@you_write(every_token_reads_those_before_it)
def attend_next(q_hk: Tensor, k_gk: Tensor, v_gk: Tensor, cache: Cache) -> Tensor:
    """What the newest token reads, (h, k); the cache grows by this token."""
    cache.keys = torch.cat([cache.keys, k_gk[None]])
    cache.values = torch.cat([cache.values, v_gk[None]])
    heads_each = len(q_hk) // len(k_gk)
    keys_thk = cache.keys.repeat_interleave(heads_each, dim=1)
    values_thk = cache.values.repeat_interleave(heads_each, dim=1)
    scores_ht = torch.einsum("hk,thk->ht", q_hk, keys_thk) / q_hk.shape[1] ** 0.5
    return torch.einsum("ht,thk->hk", scores_ht.softmax(dim=1), values_thk)


# 2: rows of several sequences ----------------------------------------------------------------------------------------

CASES: tuple[tuple[list[int], int], ...] = (
    ([5, 3, 2, 2], 8), ([7, 5, 3], 8), ([2, 8, 6, 3, 5], 8), ([4, 4, 4, 4], 8), ([1], 8), ([8, 8], 8),
    ([2, 3, 7, 5, 6, 1, 4], 10), ([3, 5, 2, 6, 4, 4], 12),
)  # fmt: skip


BEYOND = "an index that does not exist"


def long_ones_come_first(student: Reader) -> str:
    cases = list(CASES)
    parts = [cases[0::2], cases[1::2]]  # each rank packs batches of its own
    run = student.through("pack", 2, parts, _each)
    for mine, found in zip(parts, run.results, strict=True):
        for (lengths, room), rows in zip(mine, found, strict=True):
            _a_packing(student, lengths, room, rows)
    return f"{len(CASES)} batches lie in the rows of first-fit decreasing: every sequence in one row, no row too full."


def _each(fn: Callable[..., Any], cases: Sequence[tuple[list[int], int]], group: Group) -> list[Any]:
    found = []
    for lengths, room in cases:
        try:
            found.append(fn(list(lengths), room))
        except IndexError:
            found.append(BEYOND)
    return found


def _a_packing(student: Reader, lengths: list[int], room: int, rows: Any) -> None:
    what = f"With lengths {lengths} and room for {room}"
    if rows == BEYOND:
        raise NotRight(f"{what}: your function used an index that does not exist. Do your rows hold lengths? Put the "
                       "indices of the sequences into them.")  # fmt: skip
    plain = isinstance(rows, (list, tuple)) and all(isinstance(row, (list, tuple)) for row in rows)
    student.expect(plain and all(isinstance(i, int) for row in rows for i in row),
                   "{what}: return a list of rows, each a list of indices into `lengths`.", what=what)  # fmt: skip
    placed = sorted(i for row in rows for i in row)
    if placed != list(range(len(lengths))):
        if sorted(lengths[i] if 0 <= i < len(lengths) else -1 for i in placed) != sorted(lengths) and sorted(
            n for row in rows for n in row
        ) == sorted(lengths):
            raise NotRight(f"{what}: your rows hold lengths. Put the indices of the sequences into them.")
        raise NotRight(f"{what}: each index from 0 to {len(lengths) - 1} must stand in exactly one row, and you have "
                       f"{placed}.")  # fmt: skip
    full = next((row for row in rows if sum(lengths[i] for i in row) > room), None)
    if full is not None:
        raise NotRight(
            f"{what}: row {list(full)} has {sum(lengths[i] for i in full)} tokens, more than there is room for."
        )
    right = _first_fit(lengths, room, decreasing=True)
    got = sorted(sorted(lengths[i] for i in row) for row in rows)
    if got == sorted(sorted(lengths[i] for i in row) for row in right):
        return
    if got == sorted(sorted(lengths[i] for i in row) for row in _first_fit(lengths, room, decreasing=False)):
        raise NotRight(f"{what}: you took the sequences in the order in which they came. Take the longest first: it is "
                       "the hardest to place.")  # fmt: skip
    if got == sorted(sorted(lengths[i] for i in row) for row in _first_fit(lengths, room, decreasing=True, spare=1)):
        raise NotRight(f"{what}: a sequence that fills a row exactly has room in it, too.")
    if len(rows) == len(lengths):
        raise NotRight(f"{what}: every sequence has a row of its own. Look for a row that has room first.")
    raise NotRight(f"{what}: first-fit decreasing gives {[[lengths[i] for i in row] for row in right]} by lengths, and "
                   f"you have {[[lengths[i] for i in row] for row in rows]}. Each goes into the *first* row with "
                   "room.")  # fmt: skip


def _first_fit(lengths: Sequence[int], room: int, decreasing: bool, spare: int = 0) -> list[list[int]]:
    """What the check compares with; without `decreasing`, the well-known slip."""
    rows: list[list[int]] = []
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i]) if decreasing else range(len(lengths))
    for i in order:
        fits = [row for row in rows if sum(lengths[j] for j in row) + lengths[i] <= room - spare]
        fits[0].append(i) if fits else rows.append([i])
    return rows


@you_write(long_ones_come_first)
def pack(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Rows of indices: the longest first, each into the first row with room."""
    rows = []  # type: ignore[var-annotated]
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        for row in rows:
            if sum(lengths[j] for j in row) + lengths[i] <= room:
                row.append(i)
                break
        else:
            rows.append([i])
    return rows


# 3: PPO's loss, as a share -------------------------------------------------------------------------------------------

CLIP = 0.2
# The columns of a token: log-probability now and before, advantage, and whether it counts.
Tokens = tuple[Tensor, Tensor, Tensor, Tensor]


def shares_add_up_to_the_clipped_mean(student: Reader) -> str:
    for n in (1, 3):
        given, total = _tokens(student.seed, n)
        run = student.through("clipped_loss", n, [(one, total) for one in given], _loss_and_gradient)
        every = [torch.cat([one[k] for one in given]) for k in range(4)]
        mean = float(_loss(every[0], every[1], every[2], every[3], total))
        shares = [got for got, _ in run.results]
        who = f"With {n} rank{'s' * (n != 1)}"
        for rank, got in enumerate(shares):
            student.expect(isinstance(got, float), "{who}, on rank {rank}: return one number, this rank's "
                                                   "share.", who=who,
                           rank=rank)  # fmt: skip
        if not math.isclose(sum(shares), mean, rel_tol=1e-4, abs_tol=1e-6):
            raise NotRight(f"{who}, the shares add up to {sum(shares):.4f}, and the mean over all {total} tokens is "
                           f"{mean:.4f}.{_why(shares, given, total)}")  # fmt: skip
        for rank, ((_, gradient), one) in enumerate(zip(run.results, given, strict=True)):
            want = _gradient(one, total)
            student.expect(gradient is not None, "{who}, on rank {rank}: no gradient reaches the log-probabilities. "
                           "Leave them as tensors.", who=who, rank=rank)  # fmt: skip
            if not torch.allclose(gradient, want, atol=1e-5):
                raise NotRight(f"{who}, on rank {rank}: the loss is right, but its gradient is not. It should flow "
                               "through the ratio, and be 0 where the clip is what counts.")  # fmt: skip
    return (
        "With 1 and 3 ranks, of which one has hardly a token, the shares add up to the mean over all tokens, and "
        "tokens that went too far have no gradient."
    )


def _tokens(seed: int, n: int) -> tuple[list[Tokens], int]:
    draw = torch.Generator().manual_seed(seed + n)
    given = []
    for r in range(n):
        count = (12, 30, 5)[r]
        old = -torch.rand(count, generator=draw) - 0.5
        now = old + 0.5 * torch.randn(count, generator=draw)
        now[:4] = old[:4] + torch.tensor([0.6, -0.6, 0.6, -0.6])  # far in both directions
        advantages = torch.randn(count, generator=draw)
        advantages[:4] = torch.tensor([1.0, 0.5, -0.7, -1.4])
        mask = torch.ones(count, dtype=torch.bool)
        mask[4::3] = False
        given.append((now, old, advantages, mask))
    return given, int(sum(int(one[3].sum()) for one in given))


def _loss_and_gradient(fn: Callable[..., Any], given: tuple[Tokens, int], group: Group) -> tuple[Any, Any]:
    (now, old, advantages, mask), total = given
    now = now.clone().requires_grad_()
    got = fn(now, old, advantages, mask, total, CLIP)
    if not isinstance(got, Tensor) or got.numel() != 1:
        return got if isinstance(got, float) else None, None
    if got.requires_grad:
        got.backward()
    return float(got.detach()), now.grad


def _loss(now: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, total: float) -> Tensor:
    objective, _ = clipped_objective(now, old, advantages, CLIP)
    return -objective[mask].sum() / total


def _gradient(one: Tokens, total: float) -> Tensor:
    now = one[0].clone().requires_grad_()
    _loss(now, *one[1:], total).backward()
    assert now.grad is not None
    return now.grad


def _larger(now: Tensor, old: Tensor, advantages: Tensor) -> Tensor:
    ratios = (now - old).exp()
    return torch.maximum(ratios * advantages, ratios.clamp(1 - CLIP, 1 + CLIP) * advantages)


def _why(shares: Sequence[float], given: Sequence[Tokens], total: int) -> str:
    """The slip that gives these shares, in a sentence that begins with a space."""
    slips: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
        "The sign is wrong: a loss becomes smaller, so it is minus what is to become larger.":
            lambda now, old, a, m: -_loss(now, old, a, m, total),
        "That is without the clip.": lambda now, old, a, m: -((now - old).exp() * a)[m].sum() / total,
        "You took the clipped ratio alone. Take the smaller one of both products, so that a token which went too far "
        "in the wrong direction still comes back.":
            lambda now, old, a, m: -((now - old).exp().clamp(1 - CLIP, 1 + CLIP) * a)[m].sum() / total,
        "You took the larger one of both products. PPO takes the smaller one, which promises less.":
            lambda now, old, a, m: -_larger(now, old, a)[m].sum() / total,
        "Each rank divided by its own tokens. Divide by `total`, so that every token counts the same on all ranks.":
            lambda now, old, a, m: _loss(now, old, a, m, int(m.sum())),
        "Tokens that do not count are in the sum: look at `mask`.":
            lambda now, old, a, m: _loss(now, old, a, torch.ones_like(m), total),
        "The ratio is upside down: it is the new probability over the old one.":
            lambda now, old, a, m: _loss(old, now, a, m, total),
        "A ratio of probabilities is e to the difference of their logarithms.":
            lambda now, old, a, m: -torch.minimum((now - old) * a, (now - old).clamp(1 - CLIP, 1 + CLIP) * a)[m].sum()
            / total,
    }  # fmt: skip
    for sentence, slip in slips.items():
        wrong = [float(slip(*one)) for one in given]
        if all(math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6) for a, b in zip(shares, wrong, strict=True)):
            return f" {sentence}"
    return ""


@you_write(shares_add_up_to_the_clipped_mean)
def clipped_loss(
    logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, total: float, clip: float
) -> Tensor:  # fmt: skip
    """This rank's share of PPO's loss over the tokens of all ranks."""
    ratios = (logprobs - old).exp()
    near = ratios.clamp(1 - clip, 1 + clip)
    objective = torch.minimum(ratios * advantages, near * advantages)
    return -objective[mask].sum() / total


# 4: DPO's loss -------------------------------------------------------------------------------------------------------

BETA = 0.1


def pairs_teach_by_their_margins(student: Reader) -> str:
    draw = torch.Generator().manual_seed(student.seed)
    given = [torch.randn(4, 6, generator=draw) * 4 - 20 for _ in range(2)]
    run = student.through("dpo_loss", 2, given, _of_pairs)
    for rank, ((got, gradient), x) in enumerate(zip(run.results, given, strict=True)):
        who = f"On rank {rank}:"
        want = float(_dpo(*x))
        student.expect(isinstance(got, float), "{who} return one number, the mean over the pairs.", who=who)
        if not math.isclose(got, want, rel_tol=1e-4):
            raise NotRight(f"{who} your loss is {got:.4f}, and it should be {want:.4f}.{_why_not(got, x)}")
        student.expect(gradient is not None and float(gradient[0].max()) < 0 < float(gradient[1].min()),
                       "{who} the loss is right, but a step along its gradient does not make chosen responses more "
                       "probable and rejected ones less.", who=who)  # fmt: skip
    ((got, _),) = student.through("dpo_loss", 1, [torch.full((4, 3), -7.0)], _of_pairs).results
    student.expect(math.isclose(got, math.log(2), rel_tol=1e-4), "Where policy and reference are equal, nothing is "
                   "known yet: the loss is ln 2 = 0.6931, and yours is {got}.", got=got)  # fmt: skip
    return (
        "On two ranks with other pairs the loss is right, and its gradient makes chosen responses more probable and "
        "rejected ones less. With a policy that is the reference it is ln 2."
    )


def _of_pairs(fn: Callable[..., Any], x: Tensor, group: Group) -> tuple[Any, Any]:
    x = x.clone().requires_grad_()
    got = fn(*x, BETA)
    if not isinstance(got, Tensor) or got.numel() != 1:
        return got if isinstance(got, float) else None, None
    if got.requires_grad:
        got.backward()
    return float(got.detach()), x.grad


def _dpo(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float = BETA) -> Tensor:
    return -F.logsigmoid(beta * ((chosen - ref_chosen) - (rejected - ref_rejected))).mean()


def _why_not(got: float, x: Tensor) -> str:
    chosen, rejected, ref_chosen, ref_rejected = x
    margins = (chosen - ref_chosen) - (rejected - ref_rejected)
    plain = _dpo(chosen, rejected, ref_chosen, ref_rejected, 1.0)
    slips = {
        "The rejected response has the plus. The chosen one is to become more probable.": _dpo(x[1], x[0], x[3], x[2]),
        "The reference is missing: what counts is how far each response has moved from it.":
            _dpo(chosen, rejected, torch.zeros(()), torch.zeros(())),
        "You left out `beta`.": plain,
        "`beta` stands outside. It multiplies the margin inside the sigmoid.": BETA * plain,
        "The sign is wrong: the loss is minus the logarithm.": -_dpo(*x),
        "That is the sum over the pairs. Take their mean.": _dpo(*x) * len(chosen),
        "The logarithm is missing.": -(BETA * margins).sigmoid().mean(),
        "The reference's margin must be subtracted, not added.": _dpo(chosen, rejected, -ref_chosen, -ref_rejected),
    }  # fmt: skip
    for sentence, wrong in slips.items():
        if math.isclose(got, float(wrong), rel_tol=1e-4):
            return f" {sentence}"
    return ""


@you_write(pairs_teach_by_their_margins)
def dpo_loss(
    chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, beta: float
) -> Tensor:  # fmt: skip
    """The mean of DPO's loss over pairs, from log-probabilities of whole responses."""
    margins = (chosen - ref_chosen) - (rejected - ref_rejected)
    return -F.logsigmoid(beta * margins).mean()
