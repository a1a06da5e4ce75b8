"""What chapter 4 asks its reader to write: averaged gradients, in buckets, behind backward, and of several passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit import collectives
from labkit.book.drawing.units import listing
from labkit.chapters.c04_data_parallelism.checks import gradients_on_one
from labkit.chapters.c04_data_parallelism.order import arrive_late
from labkit.grading.checks.student import Slips, StudentError
from labkit.grading.writing import Reader, you_write
from labkit.models import MLP, MLPConfig
from labkit.parallel import DataParallel
from labkit.parallel.announce import announce_backward
from labkit.wire import Group

all_reduce = partial(collectives.all_reduce, algorithm="ring")  # as in the chapter
Work = tuple[list[nn.Parameter], Tensor, Any]  # a bucket, its gradients in one tensor, and the handle of their journey


class Model(nn.Module):
    """A module that is nothing but parameters, with these gradients; its weights are all `weight`.

    A reader's message of an error names it.
    """

    def __init__(self, gradients: Sequence[Tensor], weight: float = 0.0) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.full_like(g, weight)) for g in gradients)
        for p, g in zip(self.weights, gradients, strict=True):
            p.grad = g.clone()


def gradients_of(model: nn.Module) -> list[Tensor | None]:
    return [p.grad for p in model.parameters()]


# 1: by hand ------------------------------------------------------------------------------------------------------


def joined_batch(student: Reader) -> str:
    def call(write: Callable[..., Any], mine: tuple[list[Tensor], int], group: Group) -> list[Tensor | None]:
        model = Model(mine[0])
        write(model, mine[1], group)
        return gradients_of(model)

    for n in student.sizes((2, 3)):
        counts = [2 + 3 * rank * rank for rank in range(n)]  # 2, 5, 14
        own = [[student.tensor(3, 2), student.tensor(5)] for _ in range(n)]
        run = student.through("average_gradients", n, list(zip(own, counts, strict=True)), call)
        parts, whole = list(zip(*own, strict=True)), sum(counts)
        right = [sum(c * g for c, g in zip(counts, each, strict=True)) / whole for each in parts]
        sums = [sum(each) for each in parts]
        scaled = [[c * g / whole for g in mine] for c, mine in zip(counts, own, strict=True)]
        kept = "The gradients are as they were, although something was sent: put the result into `p.grad`, in place."
        nothing = "The gradients are as they were, and nothing was sent: what do the other ranks contribute?"
        slips: Slips = {
            f"This is the plain average of the ranks. They have {listing([*map(str, counts)])} samples, so a sample of "
            "rank 0 then counts more than one of the last rank. Weight each rank by its share of all samples. How many "
            "there are is the sum of the ranks' counts, and not N times your own.": [
                [g / n for g in sums]
            ]
            * n,
            "These are the sums of the ranks' gradients, all with the same weight. What is the share of a rank?": [sums]
            * n,
            "Each rank counts as often as it has samples, but the sum is not divided by the number of all samples.": [
                [whole * g for g in right]
            ]
            * n,
            "You divided by the number of all samples, but you did not multiply this rank's mean gradient by its "
            "`count` first.": [[g / whole for g in sums]] * n,
            f"You weight each rank by its samples and then divide by the {n} ranks as well: the weights add up to 1 "
            "already, so the sum needs no average.": [[g / n for g in right]] * n,
            f"Every gradient is {n} times too large: is your number of all samples their sum over the ranks, or the "
            "mean of a rank?": [[n * g for g in right]] * n,
            "Each rank has weighted its own gradients, but nothing was added up: the sum over the ranks is "
            "missing.": scaled,
            "You multiply by all samples over this rank's. Its share is the other way round, `count / total`.": [
                [sum(whole / c * g for c, g in zip(counts, each, strict=True)) for each in parts]
            ]
            * n,
            "The weights are samples over *ranks*. They should add up to 1: samples over all samples.": [
                [whole * g / n for g in right]
            ]
            * n,
            "Only the first gradient is right: is there a `return` inside the loop?": [
                [right[0], *mine[1:]] for mine in own
            ],
            "Only the last gradient is added up: should the all-reduce stand inside the loop?": [
                [*mine[:-1], right[-1]] for mine in scaled
            ],
            "What you weight is the sum over the ranks, with this rank's share. Weight a rank's own gradients *before* "
            "they are added up.": [[c * g / whole for g in sums] for c in counts],
            kept if any(run.bytes_sent) else nothing: own,
        }  # fmt: skip
        student.expect_results(run, [right] * n, slips, within=1e-5)
    own = [[student.tensor(3, 2, dtype=torch.float64)] for _ in counts]  # of three ranks, as in the last run
    run = student.through("average_gradients", len(own), list(zip(own, counts, strict=True)), call)
    want = torch.stack([c * g[0] for c, g in zip(counts, own, strict=True)]).sum(0) / sum(counts)
    student.expect(
        all((found[0] - want).abs().max() <= 1e-12 * want.abs().max() for found in run.results),
        "It is right for gradients of 32 bits. Those of 64 bits come out only as exactly as 32 bits are: the quotient "
        "of a number and a tensor, or of two tensors of whole numbers, has 32 bits. So take the plain "
        "number with `.item()` before you divide.",
    )
    return "With 2 and 3 ranks that have different numbers of samples, every rank has the gradient of the global batch."


@you_write(joined_batch)
def average_gradients(model: nn.Module, count: int, group: Group) -> None:
    """Make each p.grad that of the global batch. This rank has had `count` samples."""
    total = all_reduce(torch.tensor(count), group).item()
    for p in model.parameters():
        p.grad *= count / total
        all_reduce(p.grad, group)


def _beginnings(gradients: Sequence[Tensor], factor: float) -> list[Tensor]:
    """For each gradient the first numbers of all of them together, where its own should be."""
    flat = torch.cat([g.flatten() for g in gradients]) * factor
    return [flat[: g.numel()].view_as(g) for g in gradients]


def _turned(gradients: Sequence[Tensor], factor: float) -> list[Tensor]:
    """For each gradient what it gets if the joined ones are cut and put back from the last to the first."""
    flat = torch.cat([g.flatten() for g in gradients]) * factor
    parts = flat.split([g.numel() for g in reversed(gradients)])
    return [part.view_as(g) for part, g in zip(reversed(parts), gradients, strict=True)]


# 2: one message for several gradients ----------------------------------------------------------------------------


WEIGHT = 0.5  # of every parameter that the second one is tried on; no gradient is that


def one_message(student: Reader) -> str:
    def call(write: Callable[..., Any], mine: list[Tensor], group: Group) -> list[Tensor | None]:
        model = Model(mine, WEIGHT)
        write(list(model.parameters()), group)
        return gradients_of(model)

    for n in student.sizes((2, 3)):
        own = [[n * student.tensor(4, 3), n * student.tensor(5), n * student.tensor(2, 2, 2)] for _ in range(n)]
        try:
            run = student.through("average_bucket", n, own, call)
        except StudentError as error:
            said = (
                "Gradients have different numbers of dimensions, so `torch.cat` cannot join them: flatten each first."
            )
            student.expect("same number of dimensions" not in f"{error}", said)
            said = "You averaged the parameters, not their gradients: those are in `p.grad`."
            student.expect("which requires grad" not in f"{error}", said)
            said = "A part of the flat tensor has one dimension, and a gradient may have more: give the part the shape "
            shapes = any(word in f"{error}" for word in ("size of tensor", "must match", "gradient of size"))
            sizes = "The parts of the flat tensor have other sizes than the gradients: split it by their `numel()`."
            student.expect("invalid for input of size" not in f"{error}", sizes)
            student.expect(not shapes, said + "of its parameter, with `view_as`.")
            raise
        sums = [sum(each) for each in zip(*own, strict=True)]
        calls = max(len(order.calls) for order in run.order)
        text = "The averages are right, but rank {rank} made {got} all-reduces, one after the other. Make a single one."
        slips: Slips = {
            "The gradients hold the sums over the ranks: divide, or use op='avg'.": [sums] * n,
            "The averages are in the flat tensor, but the gradients are as they were: copy its parts back.": own,
            "Each parameter got the beginning of the flat tensor: every part begins where the one before it ends.": [
                _beginnings(sums, 1 / n)
            ]
            * n,
            f"Two things: the numbers are {n} times too large, since they are sums and no averages; and each parameter "
            "got the beginning of the flat tensor, while every part begins where the one before it ends.": [
                _beginnings(sums, 1)
            ]
            * n,
            "The parts went back to other parameters. Cut the flat tensor, and put its parts back, in the order in "
            "which you joined the gradients.": [_turned(sums, 1 / n)] * n,
            "Only the first gradient got its average back: is there a `return` inside the loop?": [
                [sums[0] / n, *mine[1:]] for mine in own
            ],
        }
        for said, weight in (("averaged", WEIGHT), ("added up", n * WEIGHT)):
            said = f"You {said} the parameters, not their gradients: those are in `p.grad`."
            slips[said] = [[torch.full_like(g, weight) for g in sums]] * n
        if not calls:
            slips = {"The gradients are as they were, and nothing was sent.": own}
        student.expect_results(run, [[g / n for g in sums]] * n, slips, within=1e-6)
        student.expect_by_rank([len(order.calls) for order in run.order], [1] * n, text)
    return "With 2 and 3 ranks, three gradients of different shapes came back as averages, in a single all-reduce."


@you_write(one_message)
def average_bucket(bucket: list[nn.Parameter], group: Group) -> None:
    """Average the gradients of all parameters in `bucket`, in one all-reduce."""
    flat = torch.cat([p.grad.flatten() for p in bucket])  # type: ignore[union-attr]
    all_reduce(flat, group, op="avg")
    parts = flat.split([p.numel() for p in bucket])
    for p, part in zip(bucket, parts, strict=True):
        p.grad.copy_(part.view_as(p))  # type: ignore[union-attr]


# 3: while backward is at work ------------------------------------------------------------------------------------


def into_buckets(parameters: Sequence[nn.Parameter], nbytes: float) -> list[list[nn.Parameter]]:
    """From the last parameter to the first; a bucket is closed when it holds `nbytes` or more."""
    buckets: list[list[nn.Parameter]] = [[]]
    for p in reversed(parameters):
        if sum(q.nbytes for q in buckets[-1]) >= nbytes:
            buckets.append([])
        buckets[-1].append(p)
    return buckets


def begin(bucket: list[nn.Parameter], group: Group) -> Work:
    """Start the all-reduce of a bucket, and return at once."""
    flat = torch.cat([p.grad.flatten() for p in bucket if p.grad is not None])
    return bucket, flat, all_reduce(flat, group, op="avg", async_op=True)


def end(work: Work) -> None:
    """Wait until it is through, and put the averages back."""
    bucket, flat, handle = work
    handle.wait()
    for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
        p.grad = part.view_as(p)


WIDTHS, LAYERS = (6, 9, 7, 8, 4), 4  # of the network that the third one is tried on


def behind_backward(student: Reader) -> str:
    def call(write: Callable[..., Any], mine: tuple[Tensor, Tensor], group: Group) -> list[Tensor | None]:
        model = announce_backward(MLP(MLPConfig(WIDTHS)).double(), group)
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
        buckets = [list(reversed(list(layer.parameters()))) for layer in reversed(layers)]
        write(F.mse_loss(model(mine[0]), mine[1]), buckets, group)
        return gradients_of(model)

    def hooks_left(write: Callable[..., Any], mine: tuple[Tensor, Tensor], group: Group) -> int:
        model = MLP(MLPConfig(WIDTHS)).double()
        for _ in range(2):
            model.zero_grad()
            write(F.mse_loss(model(mine[0]), mine[1]), [list(reversed(list(model.parameters())))], group)
        return sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())

    for n in student.sizes((2, 3)):
        x, y = ([student.tensor(5, width, dtype=torch.float64) / 8 for _ in range(n)] for width in (6, 4))
        batches = list(zip(x, y, strict=True))
        try:
            run = student.through("overlapped", n, batches, call)
        except StudentError as error:
            early = any(word in f"{error}" for word in ("split_with_sizes", "'NoneType' object has no attribute"))
            said = "A bucket left before all its gradients were there: count down in `missing`, and send at 0."
            student.expect(not early, said)
            said = "`begin` takes one bucket, `buckets[place[p]]`, and not the list of all."
            student.expect("'list' object has no attribute 'grad'" not in f"{error}", said)
            said = "`begin` takes a bucket, a list of parameters. `place[p]` is only its number: `buckets[place[p]]`."
            student.expect("'int' object is not iterable" not in f"{error}", said)
            said = "Your hook was called with a gradient, and `place` knows parameters: register it with "
            said += "`p.register_post_accumulate_grad_hook`, which passes the parameter."
            student.expect("KeyError: tensor" not in f"{error}", said)
            raise
        own = [gradients_on_one(MLP(MLPConfig(WIDTHS)).double(), *batch) for batch in batches]
        right = [sum(parts) / n for parts in zip(*own, strict=True)]
        student.expect(any(g is not None for g in run.results[0]), "No parameter has a gradient: call loss.backward().")
        for rank, order in enumerate(run.order):
            begun = [len(order.begun_by(layer)) for layer in range(LAYERS - 1, 0, -1)]  # when that layer is computed
            values = {"n": n, "rank": rank, "k": len(order.calls), "all": LAYERS}
            said = "With {n} ranks, rank {rank} sent nothing: does your hook call `begin` when nothing is missing, "
            why = "and do you register it before you call loss.backward()?"
            student.expect(order.calls, said + why, **values)
            said = "With {n} ranks, rank {rank} sent {k} times, and there are {all} buckets. A bucket leaves once, "
            why = "when its last gradient is there: count down in `missing`, and send at 0."
            student.expect(len(order.calls) == LAYERS, said + why, **values)
            said = "With {n} ranks, rank {rank} began all {all} buckets at the end of its backward pass. Did you "
            why = "register hooks before loss.backward(), and does a bucket wait for its own gradients only?"
            student.expect(any(begun), said + why, **values)
            for b, k in enumerate(begun):
                said = (
                    "With {n} ranks, bucket {b} was full when layer {layer} was computed, and rank {rank} had begun "
                    "{begun} buckets by then, not {want}: what does your hook wait for?"
                )
                student.expect(k > b, said, b=b, layer=LAYERS - 1 - b, begun=k, want=b + 1, **values)
            over = [b for b, one in enumerate(order.calls) if one in order.over_by(1)]
            said = (
                "With {n} ranks, rank {rank} waited for bucket {b} before its backward pass was over: the layers that "
                "are left have to wait, too. Call `end` after loss.backward()."
            )
            student.expect(not over, said, b=over[0] if over else 0, **values)
        slips: Slips = {
            "All buckets left in time, but the averages are not in `p.grad`. Keep in `under_way` what `begin` returns, "
            "and call `end` for each of them when loss.backward() is over.": own,
        }
        for got, mine in zip(run.results, own, strict=True):
            back = [_near([g], [r]) for g, r in zip(got, right, strict=True)]
            either = all(b or _near([g], [o]) for b, g, o in zip(back, got, mine, strict=True))
            said = "Only some of the buckets were waited for: call `end` for each work in `under_way`."
            student.expect(not (either and any(back) and not all(back)), said)
        student.expect_results(run, [right] * n, slips, within=1e-9)
    left = max(student.through("overlapped", 2, [(x + 1, y) for x, y in batches[:2]], hooks_left).results)
    said = "After two steps {left} of your hooks are still registered: remove them before you return."
    student.expect(not left, said, left=left)
    return "With 2 and 3 ranks, each bucket left before the next layer was computed, and nobody waited before the end."


@you_write(behind_backward)
def overlapped(loss: Tensor, buckets: list[list[nn.Parameter]], group: Group) -> None:
    """Backward; each bucket leaves when its last gradient is there. Wait at the end."""
    place = {p: n for n, bucket in enumerate(buckets) for p in bucket}
    missing, under_way, hooks = [len(bucket) for bucket in buckets], [], []

    def arrived(p):  # type: ignore[no-untyped-def]
        n = place[p]
        missing[n] -= 1
        if missing[n] == 0:
            under_way.append(begin(buckets[n], group))

    hooks += [p.register_post_accumulate_grad_hook(arrived) for p in place]
    loss.backward()
    for work in under_way:
        end(work)
    for hook in hooks:
        hook.remove()


# 4: in the same order on every rank ------------------------------------------------------------------------------

EVEN = (6,) * (LAYERS + 1)  # widths: all buckets have the same size, so that an exchange raises no error


def in_one_order(student: Reader) -> str:
    def call(write: Callable[..., Any], mine: tuple[Tensor, Tensor, int], group: Group) -> list[Tensor | None]:
        x, y, late = mine
        model = announce_backward(MLP(MLPConfig(EVEN)).double(), group)
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
        buckets = [list(reversed(list(layer.parameters()))) for layer in reversed(layers)]
        if group.rank == 1:
            arrive_late(buckets[late], after=buckets[late + 1])
        write(F.mse_loss(model(x), y), buckets, group)
        return gradients_of(model)

    for n, late in zip(student.sizes((2, 3)), (0, LAYERS - 2), strict=True):
        batches = [tuple(student.tensor(5, 6, dtype=torch.float64) / 8 for _ in "xy") for _ in range(n)]
        own = [gradients_on_one(MLP(MLPConfig(EVEN)).double(), *batch) for batch in batches]
        try:
            run = student.through("overlapped_in_order", n, [(*batch, late) for batch in batches], call)
        except StudentError as error:
            stuck = any(word in f"{error}" for word in ("Deadlock", "Mismatch", "wait for it"))
            said = (
                f"With {n} ranks, rank 1's bucket {late} is full after bucket {late + 1}, and then a bucket never left "
                "on this rank. When a bucket leaves, look at the next one too: it may have been full for a while."
            )
            student.expect(not stuck, said)
            past = "IndexError" in f"{error}" or "out of range" in f"{error}"
            said = "Your hook looks for a bucket after the last one: stop when `len(under_way)` is `len(buckets)`."
            student.expect(not past, said)
            raise
        right = [sum(parts) / n for parts in zip(*own, strict=True)]
        student.expect(any(g is not None for g in run.results[0]), "No parameter has a gradient: call loss.backward().")
        for order in run.order:
            said = "Your hook begins no bucket: when the next one in order is full, call `begin` for it."
            student.expect(order.calls, said)
            said = "With {n} ranks a rank made {k} all-reduces for {all} buckets. After one has left, look at the next."
            student.expect(len(order.calls) == LAYERS, said, n=n, k=len(order.calls), all=LAYERS)
        begun = [len(run.order[0].begun_by(layer)) for layer in range(LAYERS - 1, 0, -1)]
        said = (
            "On rank 0, where the buckets fill in their order, they left too late: begin each in the hook, in its turn."
        )
        student.expect(all(k > b for b, k in enumerate(begun)), said)
        slips: Slips = {
            f"Rank 1 sent bucket {late + 1} before bucket {late}, because it was full first. So gradients of one layer "
            "were added to those of another. A bucket may leave only when all buckets before it have left.": _exchanged(
                own, late
            ),
            "All buckets left in time, but the averages are not in `p.grad`. Keep in `under_way` what `begin` returns, "
            "and call `end` for each of them when loss.backward() is over.": own,
        }
        student.expect_results(run, [right] * n, slips, within=1e-9)
    return (
        "With 2 and 3 ranks, all ranks sent their buckets in the same order, although one of them filled up late on "
        "rank 1."
    )


def _exchanged(own: Sequence[Sequence[Tensor]], late: int) -> list[list[Tensor]]:
    """What the ranks have if rank 1 sends bucket `late` after the next one. own: by rank, in the model's order."""
    n, layer = len(own), LAYERS - 1 - late  # bucket 0 is the last layer
    pairs = {2 * layer + k: 2 * (layer - 1) + k for k in (0, 1)}  # weight and bias of the two layers
    swapped = pairs | {b: a for a, b in pairs.items()}
    results = []
    for rank in range(n):
        mine = []
        for k in range(2 * LAYERS):
            call = swapped.get(k, k) if rank == 1 else k  # the all-reduce that filled it, by what the others bring
            parts = [own[r][swapped.get(call, call) if r == 1 else call] for r in range(n)]
            mine.append(torch.stack(parts).mean(0))
        results.append(mine)
    return results


@you_write(in_one_order)
def overlapped_in_order(loss: Tensor, buckets: list[list[nn.Parameter]], group: Group) -> None:
    """As `overlapped`, but on every rank the buckets leave in their order."""
    place = {p: n for n, bucket in enumerate(buckets) for p in bucket}
    missing, under_way = [len(bucket) for bucket in buckets], []  # type: ignore[var-annotated]

    def arrived(p):  # type: ignore[no-untyped-def]
        missing[place[p]] -= 1
        while len(under_way) < len(buckets) and missing[len(under_way)] == 0:
            under_way.append(begin(buckets[len(under_way)], group))

    hooks = [p.register_post_accumulate_grad_hook(arrived) for p in place]
    loss.backward()
    for work in under_way:
        end(work)
    for hook in hooks:
        hook.remove()


# 5: several passes for one all-reduce ----------------------------------------------------------------------------


def _near(got: Sequence[Tensor | None], want: Sequence[Tensor]) -> bool:
    return all(g is not None and torch.allclose(g, w, atol=1e-9) for g, w in zip(got, want, strict=True))


PASSES = 3
Piece = tuple[Tensor, Tensor]  # what one pass reads: inputs and targets


def graphs_at_once(write: Callable[..., Any], mine: list[Piece], group: Group) -> int:
    """How many pieces have been through the forward pass and not through the backward pass, at most."""
    model, waiting = DataParallel(MLP(MLPConfig(WIDTHS)).double(), group), [0]

    def loss_of(piece: Piece) -> Tensor:
        loss = F.mse_loss(model(piece[0]), piece[1])
        waiting.append(waiting[-1] + 1)
        loss.register_hook(lambda _: waiting.append(waiting[-1] - 1))
        return loss

    write(model, mine, loss_of)
    return max(waiting)


def calls_of_loss(write: Callable[..., Any], mine: list[Piece], group: Group) -> int:
    """How often `write` asks for a loss."""
    model, asked = DataParallel(MLP(MLPConfig(WIDTHS)).double(), group), list[int]()

    def loss_of(piece: Piece) -> Tensor:
        asked.append(1)
        return F.mse_loss(model(piece[0]), piece[1])

    write(model, mine, loss_of)
    return len(asked)


def sent_once(student: Reader) -> str:
    def call(write: Callable[..., Any], mine: list[Piece], group: Group) -> list[Tensor | None]:
        model = DataParallel(MLP(MLPConfig(WIDTHS)).double(), group)
        write(model, mine, lambda piece: F.mse_loss(model(piece[0]), piece[1]))
        return gradients_of(model.module)

    for n in student.sizes((2, 3)):
        own = [
            [tuple(student.tensor(5, width, dtype=torch.float64) / 8 for width in (6, 4)) for _ in range(PASSES)]
            for _ in range(n)
        ]
        try:
            run = student.through("accumulate", n, own, call)
        except StudentError as error:
            said = "`loss_of` takes one argument, a piece: it calls the model by itself."
            student.expect("positional argument" not in f"{error}", said)
            raise
        each = [[gradients_on_one(MLP(MLPConfig(WIDTHS)).double(), *piece) for piece in mine] for mine in own]
        sums = [[sum(parts) for parts in zip(*mine, strict=True)] for mine in each]  # on one rank, over its pieces
        right = [sum(parts) / (n * PASSES) for parts in zip(*sums, strict=True)]
        averages = [[sum(parts) / n for parts in zip(*(mine[k] for mine in each), strict=True)] for k in (0, -1)]
        student.expect(any(g is not None for g in run.results[0]), "No parameter has a gradient: call `.backward()`.")
        (asked,) = student.through("accumulate", 1, [own[-1]], calls_of_loss).results
        said = "These are the gradients of another loss. `loss_of(piece)` does the forward pass, and returns the loss "
        student.expect(asked, said + "for `.backward()`.")
        slips: Slips = {
            f"The gradients are {PASSES} times too large: they are the sum over the {PASSES} pieces and not its mean. "
            "Divide the loss of each piece by the number of pieces.": [[PASSES * g for g in right]] * n,
            "Every rank has the mean over its own pieces, and nothing was averaged over the ranks: the last pass must "
            "run outside of `no_sync`.": [[g / PASSES for g in mine] for mine in sums],
            "Every rank has the sum over its own pieces, and nothing was averaged over the ranks: the last pass must "
            "run outside of `no_sync`.": sums,
            f"The gradients are {n} times too small: the wrapper has divided by the {n} ranks already, so divide by "
            "the number of pieces alone.": [[g / n for g in right]] * n,
        }  # fmt: skip
        slips["The pieces do not count alike: the loss of the last one was not divided by the number of pieces."] = [
            [g + (1 - 1 / PASSES) * last for g, last in zip(right, averages[1], strict=True)]
        ] * n
        slips["Only the loss of the last piece was divided by the number of pieces: divide each of them."] = [
            [PASSES * g - (1 - 1 / PASSES) * last for g, last in zip(right, averages[1], strict=True)]
        ] * n
        for which, one in zip(("first", "last"), averages, strict=True):
            said = f"Only the {which} piece is in the gradients"
            slips[f"{said}: did you clear them between the passes, or return inside the loop?"] = [one] * n
            slips[f"{said}, divided by {PASSES}: did you clear them between the passes, or return inside the loop?"] = [
                [g / PASSES for g in one]
            ] * n
        early = [sum(parts) / n for parts in zip(*(mine[0] for mine in each), strict=True)]  # averaged after the first
        left = [[(a + sum(parts)) / PASSES for a, *parts in zip(early, *mine[1:], strict=True)] for mine in each]
        slips["You send after the first piece, so what the other pieces add stays on its own rank. Send in the last "
              "pass, when everything is there."] = left  # fmt: skip
        near = all(_near(got, right) for got in run.results)
        sent = [sum(call.name == "all_reduce" for call in order.calls) for order in run.order]
        said = "You send in the passes before the last, and not in the last: exchange the two."
        student.expect(near or sent != [PASSES - 1] * n, said)
        student.expect_results(run, [right] * n, slips, within=1e-9)
        said = (
            "The gradients are right, but rank {rank} made {got} all-reduces for its {passes} pieces, where one is "
            "enough. All passes but the last belong inside of `model.no_sync()`, the forward pass as well as the "
            "backward pass, because the wrapper decides in the forward pass whether it will send."
        )
        student.expect_by_rank(sent, [1] * n, said, passes=PASSES)
    (held,) = student.through("accumulate", 1, [own[0]], graphs_at_once).results
    student.expect(
        held == 1,
        "The gradients are right, but the activations of {held} pieces exist at once, as in one large pass. Do the "
        "backward pass of each piece before the forward pass of the next one.", held=held,
    )  # fmt: skip
    return f"With 2 and 3 ranks, the gradients of {PASSES} pieces came back as their mean, in a single all-reduce."


@you_write(sent_once)
def accumulate(model: DataParallel, pieces: Sequence[Any], loss_of: Callable[[Any], Tensor]) -> None:
    """Make each p.grad that of the mean over all `pieces` of all ranks."""
    for number, piece in enumerate(pieces, 1):
        with nullcontext() if number == len(pieces) else model.no_sync():
            (loss_of(piece) / len(pieces)).backward()
