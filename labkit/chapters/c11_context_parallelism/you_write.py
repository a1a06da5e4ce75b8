"""What chapter 11 asks its reader to write: two halves of a softmax, the ring's loop, zigzag, and a part's loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit import cost
from labkit.chapters.c11_context_parallelism.attention import attend
from labkit.grading.checks.student import Evidence, NotRight, StudentError
from labkit.grading.writing import Reader, you_write
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.parallel import ContextParallel
from labkit.wire import Group

Part = tuple[Tensor, Tensor]
NEAR = 1e-5  # how far a result in float64 may be off: far more than rounding, far less than any mistake
ROUGH = 1e-3  # the same in float32 with scores of several hundred, where a log-sum-exp is off by 3e-5


def halves_are_joined(student: Reader) -> str:
    g = torch.Generator().manual_seed(student.seed)
    cases = []
    for high in (3.0, 300.0):
        scores, values = _scores(g, high), torch.randn(2, 1, 9, 3, generator=g, dtype=torch.float64)
        cases.append([_part(scores[..., s], values[..., s, :]) for s in (slice(4), slice(4, 9), slice(9))])
    some = cases[0][2]
    nothing = torch.zeros_like(some[0]), torch.full_like(some[1], -math.inf)
    got = _merged(student, [*(case[:2] for case in cases), [some, nothing], [nothing, some]])
    for name, case, pair in zip(("small scores", "scores of several hundred"), cases, got, strict=False):
        _say_what_is_wrong(student, pair, case[0], case[1], case[2], name)
    for out, lse in got[2:]:
        student.expect(
            _near(out, some[0]) and _near(lse, some[1]),
            "A part without a key to read has an lse of -inf and must change nothing, but here it did{nan}: its share "
            "is exp(-inf - both), which is 0. Use `torch.logaddexp`, which knows -inf.",
            nan=" (the result is nan)" if bool(out.isnan().any() or lse.isnan().any()) else "",
        )
    return (
        "Joined from two parts, the result is the softmax over all nine keys, with scores of several hundred too, and "
        "a part without a key to read changes nothing."
    )


def _say_what_is_wrong(student: Reader, got: Part, left: Part, right: Part, whole: Part, scores: str) -> None:
    (out, lse), both = got, whole[1]
    shares = [(part[1] - both).exp()[..., None] for part in (left, right)]
    largest = [(part[1] - torch.maximum(left[1], right[1])).exp()[..., None] for part in (left, right)]
    bad = bool(out.isnan().any() or out.isinf().any() or lse.isnan().any() or lse.isinf().any())
    student.expect(
        not bad,
        "With {scores} your result has entries that are nan or inf: exp(300) is larger than any float32. Subtract "
        "before you take the exponential: exp(lse - both) is never more than 1.",
        scores=scores,
    )  # fmt: skip
    slips = (
        ((left[0] + right[0]) / 2, "That is the plain average of the two means. A part counts by its share of the sum "
         "of exponentials, exp(lse - both)."),
        (left[0] + right[0], "The two means were added. Each must first be multiplied by its share."),
        (left[0], "`out` came back as it was: the other part is not in it."),
        (right[0], "Only the other part came back, and the first one is lost."),
        ((-right[1]).exp()[..., None] * left[0] + (-left[1]).exp()[..., None] * right[0], "You added the two "
         "logarithms, and that multiplies the sums. Use `torch.logaddexp`."),
        (shares[1] * left[0] + shares[0] * right[0], "The shares have changed places: `out` goes with `lse`."),
        (shares[0] * left[0] + right[0], "The other part was added whole: it needs its share too."),
        (left[0] + shares[1] * right[0], "The first part was added whole: it needs its share too."),
        (largest[0] * left[0] + largest[1] * right[0], "Your joined lse is the larger of the two, so the shares add up "
         "to more than 1. Use `torch.logaddexp`."),
        (_weighted(left, right), "You used the lse themselves as weights. They are logarithms, so the weights are "
         "exp(lse - both)."),
    )  # fmt: skip
    if not _near(out, whole[0], ROUGH):
        why = next((said for wrong, said in slips if _near(out, wrong, ROUGH)), "")
        student.expect(False, "With {scores} the joined mean is not that of all keys. {why}", scores=scores, why=why)
    sums = (
        (left[1] + right[1], "Yours is the sum of the two logarithms, which is the logarithm of the product."),
        (torch.maximum(left[1], right[1]), "Yours is the larger of the two, which is close, but the smaller part is "
         "missing from it."),
        (left[1], "Yours is still that of the first part."),
        (right[1], "Yours is that of the other part."),
        (left[1].exp() + right[1].exp(), "Yours is the sum itself: return its logarithm."),
    )  # fmt: skip
    if not _near(lse, both):
        why = next((said for wrong, said in sums if _near(lse, wrong)), "")
        student.expect(False, "The mean is right, but the lse is not log(exp(lse) + exp(other_lse)). {why}", why=why)


@you_write(halves_are_joined)
def merge(out: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> Part:
    """Join two means, (..., d), by their log-sum-exps, (...); return both."""
    both = torch.logaddexp(lse, other_lse)
    share, other_share = (lse - both).exp(), (other_lse - both).exp()
    return share[..., None] * out + other_share[..., None] * other, both


def every_key_is_met(student: Reader) -> str:
    for n, layout in ((1, "contiguous"), (2, "zigzag"), (3, "contiguous"), (4, "striped")):
        length = 12 * n
        g = torch.Generator().manual_seed(student.seed + n)
        q, k, v = torch.randn(3, 1, 2, length, 4, generator=g, dtype=torch.float64)
        every = torch.arange(length)
        positions = [torch.cat([every[p.start : p.stop : p.step] for p in cost.context_ranges(r, n, length, layout)])
                     for r in range(n)]  # fmt: skip
        whole = attend(q, k, v, every, every)[0]
        inputs = [tuple(x[:, :, p] for x in (q, k, v)) + (positions,) for p in positions]
        run = _run_ring(student, n, inputs)
        _all_blocks(student, run, n, inputs, [whole[:, :, p] for p in positions])
    return (
        "On 1 to 4 ranks, in three layouts, every query has read all the keys that it may read, and each block was "
        "passed on n - 1 times."
    )


def _run_ring(student: Reader, n: int, inputs: Sequence[Any]) -> Evidence:
    def call(fn: Callable[..., Any], x: Any, group: Group) -> Any:
        mine = [t.clone() for t in x[:3]]
        out = fn(*mine, x[3], group)
        return out, all(torch.equal(a, b) for a, b in zip(mine, x[:3], strict=True))

    try:
        return student.through("ring", n, inputs, call)
    except StudentError as error:
        raise StudentError(f"{error} {_likely(str(error), error.detail)}".rstrip(), error.detail) from None


def _all_blocks(student: Reader, run: Evidence, n: int, inputs: Sequence[Any], want: Sequence[Tensor]) -> None:
    ranks = f"With {n} rank{'s' * (n != 1)}"
    student.expect(not run.library, "A ready-made {name} did the work. Use `group.exchange` alone.",
                   name=", ".join(run.library))  # fmt: skip
    for rank, (out, _) in enumerate(run.results):
        student.expect(isinstance(out, Tensor), "{ranks} rank {rank} returned {got}: return `out`.", ranks=ranks,
                       rank=rank, got=type(out).__name__)  # fmt: skip
    student.expect(n == 1 or any(run.messages), "{ranks} nothing was sent. In every round but the last, pass `kv` "
                   "on to `right` and take the next block from `left`.", ranks=ranks)  # fmt: skip
    block = 2 * inputs[0][0].nbytes
    for rank, row in enumerate(run.bytes_between):
        others = [to for to, nbytes in enumerate(row) if nbytes and to != (rank + 1) % n]
        student.expect(not others, "{ranks} rank {rank} sent to rank {to}, which is not its right neighbour.",
                       ranks=ranks, rank=rank, to=others and others[0])  # fmt: skip
    for rank, (out, _) in enumerate(run.results):
        q, k, v, positions = inputs[rank]
        if out.shape == q.shape and _near(out, want[rank]):
            continue
        own, nothing = attend(q, k, v, positions[rank], positions[rank]), _nothing(q)
        blocks = [inputs[(rank - i) % n] for i in range(n)]
        met = [attend(q, b[1], b[2], positions[rank], positions[(rank - i) % n]) for i, b in enumerate(blocks)]
        again = [attend(q, b[1], b[2], positions[rank], positions[rank]) for b in blocks]
        ahead = [attend(q, b[1], b[2], positions[rank], positions[(rank + i) % n]) for i, b in enumerate(blocks)]
        fixed = [attend(q, b[1], b[2], positions[rank], positions[i]) for i, b in enumerate(blocks)]
        mine = [attend(q, k, v, positions[rank], positions[(rank - i) % n]) for i in range(n)]
        alike = all(len(p) == len(positions[rank]) for p in positions)
        turned = [attend(q, b[1], b[2], positions[(rank - i) % n], positions[rank]) for i, b in enumerate(blocks)
                  if alike]  # fmt: skip
        gone = [blocks[min(i + 1, n - 1)] for i in range(n)]
        early = [attend(q, b[1], b[2], positions[rank], positions[(rank - i) % n]) for i, b in enumerate(gone)]
        slips = (
            (nothing[0], "`out` is still 0: nothing was merged into it. Is what `merge` returns assigned, `out, lse = "
             "...`? And are there n rounds? The last one reads a block, too, and only sends none."),
            (torch.stack([part[0] for part in met]).sum(0), "the means of all blocks were added up. Join them with "
             "`merge`, by their shares."),
            (own[0], "it has merged its own block and no other. Does your `return` stand inside the loop? Or do you "
             "skip blocks of later owners? Under this layout every rank has early and late tokens, and `attend` knows "
             "by the positions what may be read. So merge every block that comes."),
            (_joined(met[:-1]), "the last block is missing. There are n blocks to read and n - 1 messages, so the last "
             "round reads and does not send."),
            (_joined(met[1:]), "its own block is missing. Read a block before you pass it on, and merge each part "
             "with what was there."),
            (_joined(again), "the blocks came, but each was read as if it were its own. The keys' positions are those "
             "of the owner: `positions[owner]`."),
            (_joined(fixed), "in round i you took the positions of rank i. Blocks travel to the right, so in round i "
             "this rank has the block of rank me - i."),
            (_joined(ahead), "the blocks came, but with the positions of other owners. Blocks travel to the right, so "
             "in round i a rank has the block of rank me - i."),
            (_joined(turned), "`attend` wants the positions of the queries first, and then those of the keys: "
             "`positions[me], positions[owner]`."),
            (_joined(mine), "its own keys were read in every round, with the positions of others. Read what is in "
             "`kv`, and assign what `exchange` returns to it: `kv = group.exchange(...)`."),
            (_joined([own] * n), "its own block was read {n} times, and no other. Read what is in `kv`."),
            (_joined([attend(q, b[2], b[1], positions[rank], positions[(rank - i) % n]) for i, b in enumerate(blocks)]),
             "keys and values have changed places: `kv[0]` are the keys, and `kv[1]` the values."),
            (_joined(early), "a block was passed on before it was read, so each one was read with the positions of "
             "another owner. Read first, then pass on."),
        )  # fmt: skip
        why = next((said for wrong, said in slips if out.shape == wrong.shape and _near(out, wrong)), "")
        follow = "Nothing travels here, so look at what you give to `attend` and to `merge`."
        if n > 1:
            follow = f"Follow rank {rank}: which block does it hold in round 1, whose?"
        why = why or f"this is not attention over all keys. {follow}"
        student.expect(False, "{ranks} on rank {rank}: " + why, ranks=ranks, rank=rank, n=n)
    for rank, sent in enumerate(run.bytes_sent):
        student.expect(
            sent == (n - 1) * block,
            "The result is right. But {lower} rank {rank} sent {sent} bytes, where n - 1 blocks of keys and values are "
            "{right}: {why}",
            lower=ranks.lower(), rank=rank, sent=sent, right=(n - 1) * block,
            why="does the last round send a block that nobody reads?" if sent > (n - 1) * block else
            "was a block sent in another dtype?",
        )  # fmt: skip
    count = max(run.messages, default=0)
    student.expect(count < n, "The result is right. But {lower} a rank sent {count} messages, and n - 1 are enough: "
                   "`kv` holds keys and values, so exchange it as one tensor.",
                   lower=ranks.lower(), count=count)  # fmt: skip
    changed = "The result is right, but the rank's own q, k or v was changed: receive into a new tensor."
    student.expect(all(kept for _, kept in run.results), changed)


@you_write(every_key_is_met)
def ring(q: Tensor, k: Tensor, v: Tensor, positions: Sequence[Tensor], group: Group) -> Tensor:
    """Attention of this rank's queries to the keys of all ranks."""
    n, me = group.size, group.rank
    right, left = (me + 1) % n, (me - 1) % n
    out, lse = torch.zeros_like(q), torch.full_like(q[..., 0], -math.inf)
    kv = torch.stack((k, v))
    for i in range(n):
        owner = (me - i) % n
        part, part_lse = attend(q, kv[0], kv[1], positions[me], positions[owner])
        out, lse = merge(out, lse, part, part_lse)
        if i < n - 1:
            kv = group.exchange(kv, right, torch.empty_like(kv), left)
    return out


def early_and_late(student: Reader) -> str:
    for n, length in ((2, 16), (1, 6), (4, 48), (3, 20), (8, 64)):
        try:
            (every,) = student.through("zigzag", 1, [(n, length)], _of_all).results
        except StudentError as error:
            said = str(error)
            few = len(torch.arange(length).chunk(2 * n)) < 2 * n
            student.expect("IndexError" not in said or not few, "There is no such chunk. The last of the 2 n chunks is "
                           "chunk 2 n - 1, counted from 0. But `chunk` may give fewer than you ask for, as for these "
                           "{length} positions: take `tensor_split(2 * size)`.", length=length)  # fmt: skip
            student.expect("IndexError" not in said, "There is no such chunk. Counted from 0, the last of the 2 n "
                           "chunks is chunk 2 n - 1, and it belongs to rank 0.")  # fmt: skip
            student.expect("stack" not in said and "TypeError" not in said, "{said} Join the two chunks with "
                           "`torch.cat((one, other))`: they may have different lengths.", said=said)  # fmt: skip
            raise
        want = [torch.cat([torch.arange(length)[p.start : p.stop] for p in cost.context_ranges(r, n, length)])
                for r in range(n)]  # fmt: skip
        _as_zigzag(student, every, want, n, length)
    return "For 1 to 8 ranks each has an early and a late chunk, every position has one rank, and the work is even."


def _of_all(fn: Callable[..., Any], x: tuple[int, int], group: Group) -> Any:
    return [fn(rank, *x) for rank in range(x[0])]


def _as_zigzag(student: Reader, every: Sequence[Any], want: Sequence[Tensor], n: int, length: int) -> None:
    about = f"With {n} rank{'s' * (n != 1)} and {length} positions"
    for rank, got in enumerate(every):
        student.expect(isinstance(got, Tensor), "{about} you returned {got} for rank {rank}: return a tensor of "
                       "positions.", about=about, rank=rank, got=type(got).__name__)  # fmt: skip
    if all(got.dtype == w.dtype and torch.equal(got, w) for got, w in zip(every, want, strict=True)):
        return
    student.expect(not any(got.is_floating_point() for got in every), "{about} the positions are no whole numbers: "
                   "begin with `torch.arange(length)`.", about=about)  # fmt: skip
    seen = torch.cat(list(every)).tolist()
    wrong = [p for p in seen if not 0 <= p < length]
    student.expect(not wrong, "{about} there is no position {p}.", about=about, p=wrong and wrong[0])
    twice = sorted({p for p in seen if seen.count(p) > 1})
    alike = torch.arange(length).tensor_split(n)
    halves = n > 1 and all(torch.equal(got, torch.cat((alike[r], alike[-1 - r]))) for r, got in enumerate(every))
    student.expect(not halves, "{about} position 0 comes twice, because you have cut the text into n chunks. Zigzag "
                   "needs 2 n of them.", about=about)  # fmt: skip
    student.expect(not twice, "{about} position {p} comes twice: chunk r goes with chunk 2 n - 1 - r, counted from 0"
                   "{more}.", about=about, p=twice and twice[0],
                   more="" if length % (2 * n) == 0 else ". (`chunk` may give fewer chunks than you ask for, "
                   "`tensor_split` always gives as many)")  # fmt: skip
    missing = sorted(set(range(length)) - set(seen))
    why = "there are 2 n chunks, and each rank takes two of them"
    if all(sorted(got.tolist()) == [r, 2 * n - 1 - r] for r, got in enumerate(every)) and length > 2 * n:
        why = "you returned the numbers of the two chunks. Return their positions, from `torch.arange(length)`"
    if len(seen) == length // (2 * n) * 2 * n:
        why = f"{length} is no multiple of {2 * n}, and your chunks leave the rest out. Take `tensor_split`"
    student.expect(not missing, "{about} no rank has position {p}: {why}.", about=about, p=missing and missing[0],
                   why=why)  # fmt: skip
    dealt = all(torch.equal(got, torch.arange(rank, length, n)) for rank, got in enumerate(every))
    student.expect(not dealt or n == 1, "{about} these are the striped positions, dealt out like cards. They are "
                   "nearly even, too, but zigzag gives each rank two chunks of neighbours.", about=about)  # fmt: skip
    work = [int((got + 1).sum()) for got in every]
    student.expect(
        max(work) <= 1.2 * min(work) or n == 1,
        "{about} every position has one rank, but rank {busy} has {most} pairs to compute and rank {idle} only "
        "{least}. Give rank r chunk r and chunk 2 n - 1 - r.",
        about=about, busy=work.index(max(work)), most=max(work), idle=work.index(min(work)), least=min(work),
    )  # fmt: skip
    down = [rank for rank, got in enumerate(every) if bool((got.diff() < 0).any())]
    student.expect(not down, "{about} the work is even, but the positions of rank {rank} do not ascend: {why}.",
                   about=about, rank=down and down[0], why="put the early chunk first" if down and
                   torch.equal(every[down[0]].sort().values, want[down[0]]) and
                   every[down[0]][0] > every[down[0]][-1] else "leave each chunk as it is")  # fmt: skip
    student.expect(False, "{about} rank 0 should have {want}, and has {got}: chunks are those of `tensor_split`, the "
                   "larger ones first.", about=about, want=want[0].tolist(), got=every[0].tolist())  # fmt: skip


@you_write(early_and_late)
def zigzag(rank: int, size: int, length: int) -> Tensor:
    """The positions of `rank`: of 2 N chunks, chunk r and chunk 2 N - 1 - r."""
    chunks = torch.arange(length).tensor_split(2 * size)
    return torch.cat((chunks[rank], chunks[2 * size - 1 - rank]))


def shares_add_up(student: Reader) -> str:
    for n, length in ((2, 9), (3, 14)):  # which zigzag shares out as 5 and 4, and as 5, 5 and 4
        g = torch.Generator().manual_seed(student.seed + n)
        batch = torch.randint(32, (2, length + 1), generator=g)
        config = GPTConfig(vocab=32, context=length, layers=1, heads=2, width=16)
        seed, one = student.seed, GPT(config, student.seed)
        whole = next_token_loss(one(batch[:, :-1]), batch[:, 1:])
        whole.backward()
        mean = whole.item()

        def call(fn: Callable[..., Any], x: Tensor, group: Group, config: GPTConfig = config, seed: int = seed) -> Any:
            context = ContextParallel(group)
            model = context.into(GPT(config, seed))
            inputs, targets = context.cut(x[:, :-1]), context.cut(x[:, 1:])
            got = fn(model, inputs, targets, context)
            if isinstance(got, Tensor) and got.numel() != 1:
                return f"a tensor of shape {list(got.shape)}, as the logits are; give them to `next_token_loss`"
            if not isinstance(got, Tensor) or not got.requires_grad:
                return repr(got)[:60]
            got.backward()
            gradient = dict(model.named_parameters())["tokens.weight"].grad
            with torch.no_grad():
                t, mine = inputs.shape[1], context.positions
                guessed = torch.arange(t) + group.rank * t  # as if the parts were contiguous
                ways = (
                    (inputs, mine, targets),
                    (inputs, None, targets),
                    (inputs, guessed.clamp(max=config.context - 1), targets),
                    (inputs, mine, inputs),
                    (targets, mine, inputs),
                    (inputs, mine, targets.roll(-1, 1)),
                )
                means = [float(next_token_loss(model(of, at), to)) for of, at, to in ways]
                means.append(float(next_token_loss(model(inputs, mine)[:, :-1], targets[:, 1:])))
            return got.item(), gradient, means, context.weight, inputs.numel()

        try:
            run = student.through("part_loss", n, [batch] * n, call)
        except StudentError as error:
            said = "`context.positions` are this rank's own positions already: take them as they are, without an index."
            student.expect("0-d tensor" not in f"{error}", said)
            said = "`next_token_loss` wants the logits first, and then the targets."
            student.expect("not implemented for" not in f"{error}", said)
            said = "These are not this rank's positions: give the model `context.positions` as they are."
            student.expect("positions, but this model has" not in f"{error}", said)
            said = "Take the loss on this rank's part: the logits of its `inputs`, and its `targets`."
            student.expect("to match target batch_size" not in f"{error}", said)
            said = "`inputs` and `targets` are this rank's part already: do not cut them again."
            student.expect(not (", but rank" in f"{error}" and "receives" in f"{error}"), said)
            said = "Nothing is sent here. Return this rank's share only: all of them are added up later."
            student.expect("all_reduce" not in f"{error}", said)
            raise
        for rank, got in enumerate(run.results):
            student.expect(not isinstance(got, str), "With {n} ranks, rank {rank} returned {got}. Return this rank's "
                           "share of the mean loss, as a tensor that still has its gradient.",
                           n=n, rank=rank, got=got)  # fmt: skip
        losses, grads, means, weights, lengths = zip(*run.results, strict=True)
        about = f"With {n} ranks and {length} tokens"
        if abs(sum(losses) - mean) > 1e-5:
            raise NotRight(f"{about}: {_why_not(losses, means, weights, lengths, mean)}")
        assert one.tokens.weight.grad is not None
        student.expect(torch.allclose(sum(grads), one.tokens.weight.grad, atol=1e-6),
                       "{about} the losses add up to that of one device, but their gradients do not.",
                       about=about)  # fmt: skip
    return (
        "On 2 and 3 ranks, with parts of unequal length too, the shares add up to the loss of one device, and so do "
        "their gradients."
    )


def _why_not(losses: Any, means: Any, weights: Any, lengths: Any, whole: float) -> str:
    """losses, weights, lengths: of each rank's part, its tokens in all texts. means: its mean loss with its positions,
    without any, with those of contiguous parts, against the inputs, of the targets against the inputs, and against
    targets that were shifted once more, around the part's end and up to it."""

    def near(other: Sequence[float]) -> bool:
        return all(abs(a - b) < 1e-5 * max(1.0, abs(b)) for a, b in zip(losses, other, strict=True))

    right, from_zero, contiguous, itself, exchanged, *shifted = zip(*means, strict=True)
    n = len(losses)
    if any(near([x * w for x, w in zip(from_zero, share, strict=True)]) for share in (weights, [1] * n, [1 / n] * n)):
        return "the model counted the positions of each part from 0. Give it `context.positions` beside the inputs."
    if near([x * w for x, w in zip(contiguous, weights, strict=True)]):
        return "you number a part as if parts were contiguous. These are zigzag: `context.positions` has the numbers."
    if any(near([x * w for x, w in zip(itself, share, strict=True)]) for share in (weights, [1] * n)):
        return "the loss was taken against the inputs. The model is to predict the `targets`."
    if any(near([x * w for x, w in zip(exchanged, share, strict=True)]) for share in (weights, [1] * n)):
        return "inputs and targets have changed places. The model reads `inputs`, and its logits meet `targets`."
    if any(near([x * w for x, w in zip(to, share, strict=True)]) for to in shifted for share in (weights, [1] * n)):
        return "the targets were shifted once more. They are one token ahead of the inputs already."
    if near(right):
        return (
            f"the ranks' losses add up to {sum(losses):.2f}, and one device has {whole:.2f}. Each is the mean over one "
            "part: multiply it by the rank's share of the tokens, `context.weight`."
        )
    if near([x / n for x in right]):
        return "all parts count alike, but they have different lengths. A rank counts by its share, `context.weight`."
    if any(near([x * w / b for x, w in zip(right, lengths, strict=True)]) for b in (1, 2)):  # of 2 texts, or of one
        return (
            "each is a sum over the tokens of a part, and nobody divides by the number of all tokens. Take the mean, "
            "and multiply it by `context.weight`, which is the one number over the other."
        )
    if near([x / w for x, w in zip(right, weights, strict=True)]):
        return "you divide by `context.weight`. It is this rank's share of the tokens, so multiply by it."
    if near([x * w * n for x, w in zip(right, weights, strict=True)]):
        return "you multiply by the number of ranks as well. The shares are added up, not averaged."
    if near([x * losses[0] / right[0] for x in right]):
        return (
            f"the mean of every part is multiplied by {losses[0] / right[0]:.3g}, however long the part is. A rank "
            "counts by its share of the tokens, `context.weight`."
        )
    if near([whole] * n):
        return (
            "every rank returned the loss of the whole batch. Return this rank's share, since all are added up later."
        )
    return f"the ranks' losses add up to {sum(losses):.3f}, and one device has {whole:.3f}."


@you_write(shares_add_up)
def part_loss(model: nn.Module, inputs: Tensor, targets: Tensor, context: Any) -> Tensor:
    """This rank's share of the mean loss. inputs, targets: its part, (b, t)."""
    logits = model(inputs, context.positions)
    return context.weight * next_token_loss(logits, targets)


def _scores(g: torch.Generator, high: float) -> Tensor:
    return high * torch.randn(2, 5, 9, generator=g, dtype=torch.float64)


def _part(scores: Tensor, values: Tensor) -> Part:
    """(..., k) scores and (..., k, d) values: the weighted mean, and the log-sum of exponentials."""
    weights = scores.softmax(-1)
    return (weights[..., None] * values).sum(-2), scores.logsumexp(-1)


def _merged(student: Reader, cases: Sequence[Sequence[Part]]) -> list[Part]:
    """What `merge` makes of each two parts, in float32 as on a rank."""

    def call(fn: Callable[..., Any], x: Any, group: Group) -> Any:
        return [fn(*(t.float() for t in one)) for one in x]

    inputs = [[(*one[0], *one[1]) for one in cases]]
    try:
        results = student.through("merge", 1, inputs, call).results[0]
    except StudentError as error:
        student.expect("size of tensor" not in f"{error}", "A share has the shape (...), and a mean (..., d): give the "
                       "share a last dimension, `share[..., None]`, before you multiply.")  # fmt: skip
        raise
    for got, (first, _) in zip(results, cases, strict=True):
        pair = isinstance(got, tuple) and len(got) == 2 and all(isinstance(x, Tensor) for x in got)
        student.expect(pair, "Return two tensors, the joined mean and its lse: you returned {got}.",
                       got="None" if got is None else type(got).__name__)  # fmt: skip
        student.expect(
            got[0].shape == first[0].shape and got[1].shape == first[1].shape,
            "The mean should have the shape {a} and the lse {b}; yours have {c} and {d}.",
            a=list(first[0].shape), b=list(first[1].shape), c=list(got[0].shape), d=list(got[1].shape),
        )  # fmt: skip
    return [(out.double(), lse.double()) for out, lse in results]


def _near(a: Tensor, b: Tensor, near: float = NEAR) -> bool:
    b = b.to(a.dtype)
    limit = near * max(1.0, _largest(b))
    return a.shape == b.shape and bool(torch.where(a == b, True, (a - b).abs() < limit).all())


def _largest(x: Tensor) -> float:
    finite = x[x.isfinite()].abs()
    return float(finite.max()) if len(finite) else 0.0


def _weighted(left: Part, right: Part) -> Tensor:
    a, b = left[1][..., None], right[1][..., None]
    return (a * left[0] + b * right[0]) / (a + b)


def _nothing(q: Tensor) -> Part:
    return torch.zeros_like(q), torch.full_like(q[..., 0], -math.inf)


def _joined(parts: Sequence[Part]) -> Tensor:
    """The mean over all of the parts, or zeros where there is none."""
    if not parts:
        return torch.full((0,), math.nan)
    lses = torch.stack([lse for _, lse in parts])
    shares = (lses - lses.logsumexp(0).clamp(min=-1e300)).exp()
    return (shares[..., None] * torch.stack([out for out, _ in parts])).sum(0)


def _likely(said: str, detail: str) -> str:
    if "wait for each other" in said:
        if "send" in detail and "receive" not in detail:
            return "All of them send before anybody receives. `group.exchange` does both at the same time."
        return "Does each rank receive from the one that sends to it? Send to `right`, receive from `left`."
    if "to itself" in said:
        return "A single rank has nobody to exchange with: send only while `i < n - 1`."
    if "missing 1 required positional argument: 'other_lse'" in said:
        return "`attend` returns two things, a mean and its lse, and `merge` wants both."
    if "IndexError" in said:
        return "Take the owner modulo n."
    if ", but rank" in said and "receives" in said:
        return "What travels is `kv`, so receive into `torch.empty_like(kv)`."
    return ""
