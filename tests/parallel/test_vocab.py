"""A vocabulary cut among ranks: the loss and the embedding are those of the whole one, and little is sent for it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from slices import SLOW_WIRES, few
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from labkit import RankFailed, launch
from labkit.collectives import all_gather
from labkit.collectives.chunks import even_sizes
from labkit.cost import cost_of, vocabulary_parallel_loss_bytes_by_rank
from labkit.parallel import VocabParallelEmbedding, vocab_parallel_cross_entropy
from labkit.wire.errors import RefusedError

pytestmark = pytest.mark.ranks

SIZES = few([3, 1, 2, 4], 2)
SHAPE = (3, 5)


def logits(vocab, scale=1.0, dtype=torch.float32, shape=SHAPE):
    made = torch.Generator().manual_seed(vocab)
    return (scale * torch.randn(*shape, vocab, generator=made)).to(dtype)


def targets(vocab, shape=SHAPE, ignored=None):
    ids = torch.arange(torch.Size(shape).numel()).mul(7).remainder(vocab).view(shape)
    return ids if ignored is None else ids.masked_fill(ids % 3 == 1, ignored)


def whole(x, y, **options):
    """(loss, gradient) by PyTorch, of all logits on one device."""
    x = x.clone().requires_grad_()
    loss = F.cross_entropy(x.flatten(0, -2), y.flatten(), **options)
    loss.sum().backward()
    return loss.detach(), x.grad


def cut(x, group):
    return x.tensor_split(group.size, dim=-1)[group.rank].clone().requires_grad_()


def of_part(x, y, group, **options):
    """(loss, gradient of this rank's part)."""
    part = cut(x, group)
    loss = vocab_parallel_cross_entropy(part, y, group, **options)
    loss.sum().backward()
    assert part.grad.shape == part.shape and part.grad.dtype == part.dtype
    return loss.detach(), part.grad


CASES = {
    "plain": (lambda: (logits(12), targets(12)), {}),
    "a vocabulary that does not divide": (lambda: (logits(61), targets(61)), {}),
    "one id a rank": (lambda: (logits(4), targets(4)), {}),
    "ignored targets": (lambda: (logits(61), targets(61, ignored=-100)), {}),
    "an id in the vocabulary is ignored": (lambda: (logits(61), targets(61)), {"ignore_index": 7}),
    "summed": (lambda: (logits(61), targets(61, ignored=-1)), {"ignore_index": -1, "reduction": "sum"}),
    "a loss a target": (lambda: (logits(61), targets(61, ignored=-100)), {"reduction": "none"}),
    "smoothed": (lambda: (logits(61), targets(61, ignored=-100)), {"label_smoothing": 0.1}),
    "smoothed, each": (lambda: (logits(61), targets(61)), {"label_smoothing": 1.0, "reduction": "none"}),
    "logits in the thousands": (lambda: (logits(61, 3000.0), targets(61)), {}),
    "all logits shifted": (lambda: (logits(61) - 5e4, targets(61)), {}),
    "masked logits": (lambda: (logits(61).index_fill(-1, torch.arange(31, 61), float("-inf")), targets(31)), {}),
    "one position": (lambda: (logits(61, shape=(1, 1)), targets(61, (1, 1))), {}),
    "int32": (lambda: (logits(61), targets(61).int()), {}),
    "float64": (lambda: (logits(61, dtype=torch.float64), targets(61)), {}),
}


@pytest.mark.parametrize("size", SIZES)
def test_loss_and_gradient_are_those_of_all_scores(size):
    def on_rank(group):
        found = {}
        for name, (make, options) in CASES.items():
            x, y = make()
            for vocab in (None, x.shape[-1]):
                found[name, vocab] = of_part(x, y, group, vocab=vocab, **options)
        return found

    results = launch(on_rank, size, transport="local").results
    for name, vocab in results[0]:
        make, options = CASES[name]
        x, y = make()
        loss, gradient = whole(x, y.long(), **options)
        got = results[0][name, vocab][0]
        assert got.dtype == x.dtype and got.shape == (y.shape if options.get("reduction") == "none" else ())
        tolerance = 1e-12 if x.dtype == torch.float64 else 1e-6
        torch.testing.assert_close(got.flatten(), loss.flatten(), rtol=tolerance, atol=tolerance, msg=name)
        joined = torch.cat([r[name, vocab][1] for r in results], -1)
        torch.testing.assert_close(joined, gradient, rtol=0, atol=tolerance, msg=name)
        for other in results[1:]:  # the same bits everywhere
            assert torch.equal(other[name, vocab][0], got), name


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_16_bit_scores_are_reckoned_with_in_32(transport):
    def on_rank(group):
        return [of_part(logits(61, 4.0, dtype), targets(61), group) for dtype in (torch.bfloat16, torch.float16)]

    results = launch(on_rank, 3, transport=transport).results
    for index, dtype in enumerate((torch.bfloat16, torch.float16)):
        x, y = logits(61, 4.0, dtype), targets(61)
        loss, gradient = whole(x.float(), y)  # the same logits; what is lost was lost when they were rounded
        joined = torch.cat([r[index][1] for r in results], -1)
        assert results[0][index][0].dtype == torch.float32 and joined.dtype == dtype
        assert abs(float(results[0][index][0] - loss)) < 1e-6
        spacing = torch.finfo(dtype).eps * gradient.abs() + torch.finfo(dtype).smallest_normal
        assert ((joined.float() - gradient).abs() <= spacing).all()


def test_nothing_to_learn_from_is_no_gradient():
    """As in PyTorch: the mean over no target is NaN, its gradient is 0; of no position at all nothing is asked."""

    def on_rank(group):
        ignored = torch.full(SHAPE, -100)
        nothing = of_part(logits(61, shape=(0, 5)), targets(61, (0, 5)), group, reduction="sum")
        return of_part(logits(61), ignored, group), nothing

    loss, gradient = whole(logits(61), torch.full(SHAPE, -100))
    assert loss.isnan() and not gradient.any()
    for (mine, part), (none, empty) in launch(on_rank, 2, transport="local").results:
        assert mine.isnan() and not part.any() and float(none) == 0 and empty.numel() == 0


def test_gradcheck_on_real_ranks():
    def on_rank(group):
        part = cut(logits(7, dtype=torch.float64, shape=(4,)), group)
        y = targets(7, (4,), ignored=-100)
        base = part.detach().clone()

        def loss(others):  # ranks perturb their own columns one after the other, and all meet in every call
            return vocab_parallel_cross_entropy(others, y, group, vocab=7)

        checked = []
        for turn in range(group.size):
            numbers = even_sizes(7, group.size)[turn] * 4
            if turn == group.rank:
                checked.append(torch.autograd.gradcheck(loss, (part,), fast_mode=False))
            else:
                for _ in range(1 + 2 * numbers):
                    loss(base)
        return checked

    assert launch(on_rank, 3, transport="local").results == [[True]] * 3


class Largest(TorchDispatchMode):
    """The most numbers that any tensor of any operation had, in or out."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for thing in (*args, *(out if isinstance(out, tuple | list) else (out,))):
            if isinstance(thing, torch.Tensor):
                self.numbers = max(self.numbers, thing.numel())
        return out


def test_full_scores_never_exist_and_only_three_numbers_a_position_travel():
    rows, vocab, size = 1024, 12_001, 4
    full = rows * vocab * 4  # bytes of all logits in 32 bits

    def on_rank(group, rows, gather):
        weight = torch.zeros(even_sizes(vocab, size)[group.rank], 8).normal_()
        x, y = torch.randn(rows, 8, requires_grad=True), targets(vocab, (rows,))
        with Largest() as seen:
            part = F.linear(x, weight)
            if gather:
                joined = all_gather(part.detach().T.contiguous(), group, sizes=even_sizes(vocab, size)).T
                F.cross_entropy(joined.requires_grad_(), y).backward()
            else:
                vocab_parallel_cross_entropy(part, y, group, vocab=vocab, algorithm="ring").backward()
        return seen.numbers

    run, tiny, gathered = (
        launch(on_rank, size, *how, transport="local", memory="peak")
        for how in ((rows, False), (16, False), (rows, True))
    )
    assert max(run.results) == rows * -(-vocab // size) and min(gathered.results) >= rows * vocab
    extra = max(run.trace.peak_bytes()) - min(tiny.trace.peak_bytes())  # without what PyTorch takes for itself
    assert extra < 0.9 * full < 2 * full < min(gathered.trace.peak_bytes())
    assert {c.name for c in run.trace.collectives()} == {"all_reduce"} and len(run.trace.collectives()) == 2 * size
    assert max(m.nbytes for m in run.trace.sends) == 2 * rows // size * 4
    assert run.trace.bytes_sent() == vocabulary_parallel_loss_bytes_by_rank(1, rows, size, messages=(1, 2))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_bytes_are_the_closed_form_at_any_size(size):
    rows = 31  # does not divide
    cases = [(algorithm, dtype) for algorithm in ("ring", "recursive_doubling") for dtype in ("float32", "bfloat16")]

    def on_rank(group):
        for algorithm, dtype in cases:
            part = cut(logits(50, dtype=getattr(torch, dtype), shape=(rows,)), group)
            options = {"vocab": 50, "algorithm": algorithm}
            vocab_parallel_cross_entropy(part, targets(50, (rows,)), group, **options).backward()

    by_ring = vocabulary_parallel_loss_bytes_by_rank(1, rows, size, messages=(1, 2))
    other = cost_of("all_reduce", "recursive_doubling")
    by_doubling = [sum(pair) for pair in zip(*(other.bytes_by_rank(n * rows, 4, size) for n in (1, 2)), strict=True)]
    run = launch(on_rank, size, transport="local")
    assert run.trace.bytes_sent() == [2 * a + 2 * b for a, b in zip(by_ring, by_doubling, strict=True)]
    assert [(c.name, c.shape) for c in run.trace.collectives()] == size * len(cases) * [
        ("all_reduce", (rows,)), ("all_reduce", (2, rows)),
    ]  # fmt: skip


def test_label_smoothing_sends_one_number_a_position_more():
    options = {"vocab": 61, "label_smoothing": 0.1, "algorithm": "ring"}
    run = launch(lambda group: of_part(logits(61), targets(61), group, **options)[0], 3, transport="local")
    assert run.trace.bytes_sent() == vocabulary_parallel_loss_bytes_by_rank(3, 5, 3, messages=(1, 3))


def test_without_the_size_of_the_vocabulary_16_bytes_a_rank_are_gathered_first():
    trace = launch(lambda group: of_part(logits(61), targets(61), group)[0], 3, transport="local").trace
    assert [(c.name, c.shape, c.dtype) for c in trace.collectives()][:3] == [
        ("all_gather", (1, 2), "int64"), ("all_reduce", (15,), "float32"), ("all_reduce", (2, 15), "float32"),
    ]  # fmt: skip


# -- the embedding -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_embedding_tied_scores_and_loss_are_those_of_the_whole_matrix(size):
    vocab, width = 61, 6

    def on_rank(group):
        torch.manual_seed(3)
        tokens = VocabParallelEmbedding(vocab, width, group)
        x = tokens(targets(vocab))
        part = tokens.logits(torch.tanh(x))
        loss = vocab_parallel_cross_entropy(part, targets(vocab).roll(1), group, vocab=vocab)
        loss.backward()
        again = VocabParallelEmbedding.of(embedding(), group)
        return x.detach(), part.detach(), loss.detach(), tokens.weight, tokens.weight.grad, again.weight

    def embedding():
        torch.manual_seed(3)
        return nn.Embedding(vocab, width)

    plain = embedding()
    x = plain(targets(vocab))
    all_scores = F.linear(torch.tanh(x), plain.weight)
    loss = F.cross_entropy(all_scores.flatten(0, 1), targets(vocab).roll(1).flatten())
    loss.backward()
    results = launch(on_rank, size, transport="local").results
    for mine in results:
        assert torch.equal(mine[0], x)  # data is moved, not changed
        assert torch.equal(mine[3], mine[5])
        assert abs(float(mine[2] - loss.detach())) < 1e-6
    assert torch.equal(torch.cat([r[3] for r in results]), plain.weight)
    torch.testing.assert_close(torch.cat([r[1] for r in results], -1), all_scores, rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.cat([r[4] for r in results]), plain.weight.grad, rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_with_sequence_parallelism_ranks_hold_positions_outside(size):
    vocab, width, length = 61, 6, SHAPE[1]  # 5 positions: they do not divide either
    torch.manual_seed(3)
    plain = nn.Embedding(vocab, width)

    def on_rank(group):
        tokens = VocabParallelEmbedding.of(plain, group, sequence=True)
        x = tokens(targets(vocab))
        part = tokens.logits(torch.tanh(x), length=length)
        loss = vocab_parallel_cross_entropy(part, targets(vocab).roll(1), group, vocab=vocab)
        loss.backward()
        return x.detach(), loss.detach(), tokens.weight.grad

    x = plain(targets(vocab))
    loss = F.cross_entropy(F.linear(torch.tanh(x), plain.weight).flatten(0, 1), targets(vocab).roll(1).flatten())
    loss.backward()
    run = launch(on_rank, size, transport="local")
    assert torch.equal(torch.cat([r[0] for r in run.results], 1), x)
    assert max(abs(float(r[1] - loss.detach())) for r in run.results) < 1e-6
    torch.testing.assert_close(torch.cat([r[2] for r in run.results]), plain.weight.grad, rtol=0, atol=1e-6)
    names = [c.name for c in run.trace.collectives() if c.rank == 0]
    assert names[:4] == ["reduce_scatter", "all_gather", "all_reduce", "all_reduce"]
    assert sorted(names[4:]) == ["all_gather", "all_gather", "reduce_scatter"]


def test_the_embedding_sends_in_forward_only_and_the_scores_in_backward_only():
    def on_rank(group):
        tokens = VocabParallelEmbedding(61, 6, group)
        x = torch.randn(*SHAPE, 6, requires_grad=True)
        with group.span("look up"):
            looked_up = tokens(targets(61))
        with group.span("look up, backward"):
            looked_up.sum().backward()
        with group.span("score"):
            part = tokens.logits(x)
        with group.span("score, backward"):
            part.sum().backward()

    trace = launch(on_rank, 2, transport="local").trace
    calls = trace.collectives()
    inside = [
        [s.name for s in trace.spans() if s.rank == c.rank and s.start <= c.start and c.end <= s.end] for c in calls
    ]
    assert [(c.name, names) for c, names in zip(calls, inside, strict=True)] == 2 * [
        ("all_reduce", ["look up"]), ("all_reduce", ["score, backward"]),
    ]  # fmt: skip


# -- bad input -----------------------------------------------------------------------------------------------------


def refusals(work, size=3):
    def caught(group):
        try:
            work(group)
        except RefusedError as refusal:
            return str(refusal)
        return "not refused"

    return launch(caught, size, transport="local", timeout=20).results


@pytest.mark.parametrize("vocab", [None, 61])
@pytest.mark.parametrize("bad", [61, -1, 10**12])
def test_a_target_outside_the_vocabulary_is_named_on_every_rank(bad, vocab):
    y = targets(61)
    y[2, 1] = bad
    said = refusals(lambda group: vocab_parallel_cross_entropy(cut(logits(61), group), y, group, vocab=vocab))
    assert len(set(said)) == 1
    for word in (f"target {bad} at [2, 1]", "61 ids, 0 to 60", "ignore_index", "-100"):
        assert word in said[0]


def test_a_token_outside_the_vocabulary_is_named_on_every_rank():
    for bad in (61, -100):
        ids = targets(61)
        ids[1, 0] = bad
        said = refusals(lambda group, ids=ids: VocabParallelEmbedding(61, 4, group)(ids))
        assert len(set(said)) == 1 and f"id {bad} " in said[0] and "0 to 60" in said[0]


def test_ranks_with_other_targets_are_found():
    said = refusals(
        lambda group: vocab_parallel_cross_entropy(
            cut(logits(61), group), targets(61).roll(int(group.rank == 1)), group
        )
    )
    assert len(set(said)) == 1 and "rank 1 has other targets than rank 0" in said[0]


def test_fewer_ids_than_ranks():
    said = refusals(lambda group: VocabParallelEmbedding(2, 4, group))
    assert len(set(said)) == 1 and "vocab=2) on 3 ranks" in said[0] and "that works is 2" in said[0]


def test_parts_that_are_not_those_of_tensor_split():
    def work(group):
        vocab_parallel_cross_entropy(cut(logits(61), group), targets(61), group, vocab=63)

    words = r"rank [12] has the logits of 20 ids, but 63 ids on 3 ranks are 21 \+ 21 \+ 21"
    with pytest.raises(RankFailed, match=words):
        launch(work, 3, transport="local")


@pytest.mark.parametrize(
    "change, words",
    [
        ({"label_smoothing": 1.5}, "label_smoothing=1.5"),
        ({"reduction": "average"}, "reduction='average'"),
        ({"logits_part": torch.zeros(3, 5, 61, dtype=torch.int64)}, "torch.int64"),
        ({"targets": torch.zeros(3, 5)}, "torch.float32"),
        ({"targets": torch.zeros(5, 3, dtype=torch.int64)}, r"\[3, 5\], not \[5, 3\]"),
    ],
)
def test_arguments_that_cannot_work(change, words):
    given = {"logits_part": logits(61), "targets": targets(61), **change}
    with pytest.raises(RankFailed, match=words):
        launch(lambda group: vocab_parallel_cross_entropy(group=group, **given), 1, transport="local")
