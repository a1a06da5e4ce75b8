"""Keys of chapter 9 and what its checks compare with: slips are told apart, the sources' numbers come out, and
references agree with labkit's own layers on real ranks."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from grading.zoo_runs import animals, exercises, judged, source
from slices import few
from slips import every_draw, tell_apart
from torch import nn

import labkit
from labkit import cost
from labkit.chapters.c09_tensor_parallelism import checks as pairs, heads as parts, say, whole
from labkit.grading.answers import find_key
from labkit.grading.checks.pristine import preamble
from labkit.grading.checks.student import Evidence, NotRight
from labkit.grading.checks.wording import fill
from labkit.grading.grader import memory
from labkit.grading.grader.door import Pace, SandboxStudent
from labkit.grading.sandbox import open_sandbox
from labkit.models.gpt import attend
from labkit.parallel import ColumnParallelLinear, RowParallelLinear, vocab_parallel_cross_entropy
from labkit.parallel.tensor import regions

CHAPTER = "09_tensor_parallelism"
D = torch.float64


def answer(name, **numbers):
    return find_key(CHAPTER, name, **numbers).answer


BYTES = every_draw(h=[5120, 6144, 8192], b=[1, 2, 4], s=[2048, 4096], L=[40, 48, 64], t=[4, 8])
BOOK = every_draw(t=[2, 4, 8, 16], percent=[2, 5, 10])
WIDER = every_draw(e=[2, 3, 4, 6])
HAND = every_draw(x=[2, 3], a0=[1, 2], a1=[3, 4], a2=[-2, -1], b0=[2, 5], b1=[3, 4], b2=[6, 7], c=[4, 6])
HEADS = every_draw(
    heads=[48, 96], kv_heads=[6, 12, 24], ffn=[13824, 14336, 16384, 28672], vocab=[50257, 100277, 151643]
)
FOUR = every_draw(b=[1, 2, 4], t=[4, 8, 16])
KEPT = every_draw(h=[4096, 8192, 12288], s=[2048, 4096], b=[1, 2], t=[4, 8])
FIFTY = every_draw(gpus=[64, 96, 128], memory=[80, 96], t=[4, 8, 16])
SHARE = every_draw(d=[4096, 8192, 12288], t=[4, 8], teraflops=[300, 400, 500])
REST = every_draw(rest=[3, 4, 6], send=[1, 2], t=[8, 16])
KEYS = [
    *((name, g) for name in ("activation_mb", "sent_once_mb", "sent_forward_gb") for g in BYTES),
    *((name, g) for name in ("really_sent", "too_many", "ranks_for_percent") for g in BOOK),
    *(
        (name, g)
        for name in ("narrowing_by_columns", "narrowing_by_rows", "pair_columns_rows", "pair_columns_columns")
        for g in WIDER
    ),
    *((name, g) for name in ("y_out", "dx_whole", "dx_of_rank_1", "dx_too_large") for g in HAND),
    *(
        (name, g)
        for name in ("largest_degree", "columns_of_a_rank", "largest_with_copies", "rows_of_vocabulary")
        for g in HEADS
    ),
    *(
        (name, g)
        for name in ("one_all_reduce_ms", "as_the_book_adds", "every_all_reduce", "inside_a_node")
        for g in FOUR
    ),
    *((name, g) for name in ("kept_mb", "kept_sequence_mb", "kept_selective_mb", "copies_percent") for g in KEPT),
    *(
        (name, g)
        for name in ("one_sequence_gb", "split_sequence_gb", "fewest_ranks_plain", "fewest_ranks_sequence")
        for g in FIFTY
    ),
    *((name, g) for name in ("share_on_nvlink", "share_on_infiniband", "width_for_half") for g in SHARE),
    *((name, g) for name in ("speedup", "speedup_of_twice", "speedup_at_most", "speedup_sequence") for g in REST),
]


@pytest.mark.parametrize("name", sorted({name for name, _ in KEYS}))
def test_no_slip_is_right_and_each_is_told_apart_by_some_numbers(name):
    tell_apart(find_key(CHAPTER, name, **numbers) for same, numbers in KEYS if same == name)


def test_formulas_and_letters_have_a_reason_each():
    step = find_key(CHAPTER, "sent_in_a_step")
    assert step.mark("2*(t-1)/t * A * 4*L*m").right
    for wrong, why in step.slips:
        assert not step.mark(wrong).right and step.mark(wrong).why == why
    letter = find_key(CHAPTER, "where_from")
    for choice in "abcd":
        assert letter.mark(choice).right == (choice == "c") and letter.mark(choice).why
    helps = find_key(CHAPTER, "what_makes_it_smaller")
    assert helps.mark("bce").right and not helps.mark("be").right and "fewer ranks" in helps.mark("be").why


def test_the_numbers_of_the_sources():
    assert answer("really_sent", t=8, percent=5) == pytest.approx(117.44, rel=1e-4)
    assert "what the textbook says" in find_key(CHAPTER, "really_sent", t=8, percent=5).mark("134 MB").why
    assert answer("too_many", t=8, percent=5) == pytest.approx(4 * 96 * 0.1342 - 4 * 96 * 0.11744, rel=1e-2)
    assert answer("one_sequence_gb", gpus=64, memory=80, t=8) == pytest.approx(275.4, rel=1e-3)
    assert answer("split_sequence_gb", gpus=64, memory=80, t=8) == pytest.approx(55.6, rel=1e-3)  # "about 50 GB"
    big = cost.SHAPES["175B"]
    forward = find_key(CHAPTER, "sent_forward_gb", h=big.hidden, b=4, s=2048, L=96, t=8)
    assert forward.mark("67.65 GB").right and forward.answer == pytest.approx(67.65, rel=1e-3)
    assert answer("fewest_ranks_plain", gpus=64, memory=80, t=8) == 32
    assert answer("fewest_ranks_sequence", gpus=64, memory=80, t=8) == 8


@pytest.mark.parametrize("numbers", BOOK[::2])
def test_the_fewest_ranks_by_search(numbers):
    fit = [n for n in range(2, 200) if n / (n - 1) <= 1 + numbers["percent"] / 100 + 1e-12]
    assert answer("ranks_for_percent", **numbers) == fit[0]


def units_of(ways, e, n=4, rows=12, d=8):
    """What rank 0 sends of layers of `ways`, whole inputs and outputs, forward and backward, in gathers of rows x d."""

    def run(group):
        fit = [way for way, _, _ in ways] == ["columns", "rows"]
        x = torch.ones(rows, ways[0][1], requires_grad=True)
        group.step(1)
        y = x
        for way, i, o in ways:
            linear = nn.Linear(i, o)
            if way == "columns":
                y = ColumnParallelLinear.of(linear, group, gather_output=not fit, algorithm="ring", check=False)(y)
            else:
                y = RowParallelLinear.of(linear, group, input_is_split=fit, algorithm="ring", check=False)(y)
        y.sum().backward()
        group.step(2)

    trace = labkit.launch(run, n).trace
    sent = sum(m.nbytes for m in trace.sends if m.step == 1 and m.src == 0)
    return sent / cost.ring_all_gather_bytes(4 * rows * d, n)


@pytest.mark.ranks
@pytest.mark.parametrize("e", [2, 6])
def test_units_of_cuts_are_those_of_real_layers(e):
    wide = 8 * e
    assert units_of([("columns", wide, 8)], e) == answer("narrowing_by_columns", e=e)
    assert units_of([("rows", wide, 8)], e) == answer("narrowing_by_rows", e=e)
    assert units_of([("columns", 8, wide), ("rows", wide, 8)], e) == answer("pair_columns_rows", e=e)
    assert units_of([("columns", 8, wide), ("columns", wide, 8)], e) == answer("pair_columns_columns", e=e)


@pytest.mark.parametrize("n", HAND[::37])
def test_three_ranks_by_autograd(n):
    x = torch.tensor(float(n["x"]), dtype=D, requires_grad=True)
    y = sum(torch.relu(x * n[f"a{r}"]) * n[f"b{r}"] for r in range(3)) + n["c"]
    (0.5 * y**2).backward()
    assert (answer("y_out", **n), answer("dx_whole", **n)) == (float(y.detach()), float(x.grad))
    assert answer("dx_too_large", **n) == 3 * float(x.grad)
    x.grad = None
    (y.detach() * torch.relu(x * n["a1"]) * n["b1"]).backward()
    assert answer("dx_of_rank_1", **n) == float(x.grad)


@pytest.mark.ranks
@pytest.mark.parametrize("n", HEADS[::7])
def test_degrees_by_search(n):
    def fits(t, copies):
        keys = [{i // (n["heads"] // n["kv_heads"]) for i in range(r * n["heads"] // t, (r + 1) * n["heads"] // t)}
                for r in range(t)]  # fmt: skip
        spans = {(max(k) - min(k) + 1, len(k)) for k in keys}
        if n["heads"] % t or n["ffn"] % t or len(spans) > 1:
            return False
        if copies:  # every key is read by equally many ranks, and nobody needs a part of one
            readers = [sum(g in k for k in keys) for g in range(n["kv_heads"])]
            return len(set(readers)) == 1 and len(set(map(tuple, map(sorted, keys)))) in (t, n["kv_heads"])
        return n["kv_heads"] % t == 0

    for copies, name in ((False, "largest_degree"), (True, "largest_with_copies")):
        assert answer(name, **n) == max(t for t in range(1, n["heads"] + 1) if fits(t, copies))
    rows, t = answer("rows_of_vocabulary", **n), answer("largest_degree", **n)
    assert rows % 128 == 0 and n["vocab"] <= rows * t < n["vocab"] + 128 * t


@pytest.mark.parametrize("n", SHARE[::5])
def test_shares_are_those_of_the_model_of_a_layer(n):
    for name, wire in (("share_on_nvlink", cost.wires.NVLINK), ("share_on_infiniband", cost.wires.INFINIBAND)):
        layer = cost.tensor_parallel_layer(2**16, 64, n["d"], n["t"], n["teraflops"] * 1e12, wire)
        assert answer(name, **n) == pytest.approx(100 * layer.share, rel=0.01)  # but for latency, and logits
    at_half = cost.tensor_parallel_layer(
        2**16, 64, round(answer("width_for_half", **n)), n["t"], n["teraflops"] * 1e12, cost.wires.INFINIBAND
    )
    assert at_half.share == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize("n", REST[::3])
def test_speedups_go_to_their_limit(n):
    ever_more = {**n, "t": 10**6}
    assert answer("speedup", **ever_more) == pytest.approx(answer("speedup_at_most", **n), rel=1e-3)
    assert answer("speedup_of_twice", **n) == answer("speedup", **{**n, "t": 2 * n["t"]})
    assert answer("speedup", **n) < answer("speedup_sequence", **n) < n["t"]


# What the checks compare with ---------------------------------------------------------------------------------------


def same(a, b):
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-9, atol=1e-9)


def fresh(*shape):
    return torch.randn(*shape, dtype=D)


def pair_of(n):
    torch.manual_seed(n)
    return fresh(5, 4), fresh(4, 13), fresh(13), fresh(13, 4), fresh(4), fresh(5, 4)


@pytest.mark.parametrize("n", [1, 3, 4])
def test_a_pair_is_that_of_autograd(n):
    x, A, a, B, b, dy = pair_of(n)
    leaves = [z.clone().requires_grad_() for z in (x, A, a, B, b)]
    y = torch.relu(leaves[0] @ leaves[1] + leaves[2]) @ leaves[3] + leaves[4]
    grads = torch.autograd.grad(y, leaves, dy)
    right, causes = pairs.feed_forward(x, A, a, B, b, dy, n)
    for r, mine in enumerate(right):
        cut = [grads[1].tensor_split(n, 1)[r], grads[2].tensor_split(n)[r], grads[3].tensor_split(n)[r]]
        assert all(map(same, mine, [y, grads[0], *cut, grads[4]]))
    if n > 1:
        tell_wrong(right, causes, ["y", "dx", "dA", "da", "dB", "db"])


def tell_wrong(right, causes, names):
    """Known slips are wrong on some rank, and have the shapes of something that a rank might return."""
    for name, known in causes.items():
        for cause, wrong in known.items():
            assert len(wrong) == len(right), cause
            place = names.index(name)
            assert not all(same(w, mine[place]) for w, mine in zip(wrong, right, strict=True)), cause


@pytest.mark.ranks
@pytest.mark.parametrize("both", [False, True])
def test_regions_are_those_of_one_device_and_of_the_library(both):
    torch.manual_seed(3)
    x, gains, n = fresh(4, 5), [fresh(5) for _ in range(2)], 3
    ups, downs = [fresh(5, 7), fresh(5, 8)], [fresh(7, 5), fresh(8, 5)]
    right, causes = pairs.regions(x, gains, ups, downs, n, both)
    (alone,) = pairs.regions(x, gains, ups, downs, 1, both)[0]
    names = pairs.region_names(2)
    for r, mine in enumerate(right):
        joined = [g.tensor_split(n, 1 if "of A" in name else 0)[r] if "of A" in name or "of B" in name else g
                  for name, g in zip(names, alone, strict=True)]  # fmt: skip
        assert all(map(same, mine, joined))

    def on_ranks(group):
        stream = mine = x.clone().requires_grad_()
        for g, A, B in zip(gains, ups, downs, strict=True):
            A, B = pairs.columns(A, n)[group.rank], pairs.rows(B, n)[group.rank]
            inside = regions.copy_to_region(stream * g, group)
            partial = torch.relu(inside @ A) @ B + both * (inside @ A) @ B
            stream = stream + regions.reduce_from_region(partial, group)
        (stream**2).mean().backward()
        return mine.grad

    assert all(same(g, mine[1]) for g, mine in zip(labkit.launch(on_ranks, n).results, right, strict=True))
    for cause in pairs.WRONG_WAYS:
        gradients = [causes[name][cause] for name in names]
        assert not all(same(w, m[i]) for i, wrong in enumerate(gradients) for w, m in zip(wrong, right, strict=True))
    assert all(same(w, m[0]) for w, m in zip(causes["the loss"][pairs.NO_COPY], right, strict=True))


@pytest.mark.ranks
@pytest.mark.parametrize("n", [1, 3, 4])
def test_the_loss_is_that_of_the_library(n):
    torch.manual_seed(n)
    logits, targets = 3 * fresh(9, 17), torch.randint(0, 17, (9,))
    targets[2] = -100
    right, causes = parts.vocabulary_loss(logits, targets, n, -100)

    def on_ranks(group):
        mine = pairs.columns(logits, n)[group.rank].requires_grad_()
        loss = vocab_parallel_cross_entropy(mine, targets, group, vocab=17)
        loss.backward()
        return loss.detach(), mine.grad

    assert all(all(map(same, mine, got)) for mine, got in zip(right, labkit.launch(on_ranks, n).results, strict=True))
    if n > 1:
        tell_wrong(right, causes, ["the loss", "the gradient of the logits"])


@pytest.mark.parametrize("n, heads, keys", [(1, 6, 3), (2, 8, 4), (4, 12, 2)])
def test_attention_is_that_of_the_model(n, heads, keys):
    torch.manual_seed(n)
    k, s = 3, 5
    x, qkv, out = fresh(s, 7), fresh(7, (heads + 2 * keys) * k), fresh(heads * k, 7)
    right, causes = parts.attention(x, qkv, out, heads, keys, n)
    y = attend((x @ qkv)[None], heads, keys)[0] @ out
    rest = y
    each, first = heads // n, [r * keys // n for r in range(n)]
    for r, (own, got) in enumerate(right):
        assert same(got, y)
        held = max(keys // n, 1)
        partial = attend((x @ own)[None], each, held)[0] @ out.tensor_split(n)[r]
        assert own.shape[1] == (each + 2 * held) * k
        assert same(own[:, each * k : each * k + k], qkv[:, (heads + first[r]) * k :][:, :k])
        rest = rest - partial
    assert rest.abs().max() < 1e-9  # what the ranks' own columns make adds up to the whole
    if n > 1:
        tell_wrong(right, causes, ["the columns", "y"])


def test_the_norm_is_that_of_the_whole_model():
    torch.manual_seed(5)
    n, kinds = 3, ["cut", "partial", "copy"]
    cut, copy, partials = fresh(7, 2), fresh(4), [fresh(5) for _ in range(3)]
    gradients = [[cut.tensor_split(n)[r], partials[r], copy] for r in range(n)]
    right, causes = whole.norm_of_all(kinds, gradients)
    expected = torch.cat([cut.flatten(), sum(partials), copy]).norm()
    assert all(same(mine[-1], expected) and same(mine[1], sum(partials)) for mine in right)
    tell_wrong(right, causes, ["gradient 0", "gradient 1", "gradient 2", "the norm"])
    assert math.isclose(float(right[0][-1]), float(expected))


@pytest.mark.ranks
@pytest.mark.parametrize("n", [1, 2, 4])
def test_positions_are_cut_as_in_the_library(n):
    torch.manual_seed(n)
    x, dy, gain, shift, A, B = fresh(9, 4), fresh(9, 4), fresh(4), fresh(4), fresh(4, 10), fresh(10, 4)
    right, causes = whole.sequence_pair(x, gain, shift, A, B, dy, n)

    def on_ranks(group):
        mine = [pairs.rows(x, n)[group.rank], gain.clone(), shift.clone(), pairs.columns(A, n)[group.rank],
                pairs.rows(B, n)[group.rank]]  # fmt: skip
        leaves = [z.clone().requires_grad_() for z in mine]
        g, s = regions.copy_all_to_region(leaves[1:3], group)
        hat = regions.gather_sequence(F.layer_norm(leaves[0], (4,), g, s), group, 0, length=9)
        y = regions.reduce_scatter_sequence(torch.relu(hat @ leaves[3]) @ leaves[4], group, 0)
        return [y.detach(), *torch.autograd.grad(y, leaves, pairs.rows(dy, n)[group.rank])]

    for mine, got in zip(right, labkit.launch(on_ranks, n).results, strict=True):
        assert all(map(same, mine, got))
    if n > 1:
        tell_wrong(right, causes, ["y", "dx", "dgain", "dshift", "dA", "dB"])


# What is said ---------------------------------------------------------------------------------------------------------


class Door:
    """As much of a `Student` as the sentences need."""

    def expect(self, holds, sentence, **values):
        if not holds:
            raise NotRight(fill(sentence, values))


def said(results, right, causes=None, names=("a", "b")):
    with pytest.raises(NotRight) as found:
        say.expect_named(Door(), Evidence(results=results), names, right, causes)
    return str(found.value)


def test_a_sentence_has_rank_name_number_and_the_cause_that_fits_best():
    right = [[fresh(3), fresh(2)] for _ in range(2)]
    wrong = [[x.clone() for x in mine] for mine in right]
    say.expect_named(Door(), Evidence(results=wrong), ("a", "b"), right)
    wrong[1][0] *= 2
    wrong[1][1] *= 3
    twice = [2 * mine[0] for mine in right]
    causes = {
        "a": {"one of two.": twice, "both of two.": twice},
        "b": {"both of two.": [3 * mine[1] for mine in right]},
    }
    text = said(wrong, right, causes)
    assert text.startswith("With 2 ranks: a of rank 1 is wrong: entry [") and text.endswith("both of two.")
    assert "should be a list of 2: a, b" in said([{"a": 1}, None], right)
    swapped = said([mine[::-1] for mine in right], right)
    assert "a: rank 0 returned a tensor of shape [2]; it should be [3]" in swapped
    wrong[0][0] = right[0][0].float().double()
    assert "in 32 bits on the way" in said(wrong, right)
    wrong[0][0] = torch.full((3,), math.nan, dtype=D)
    assert "is nan and should be" in said(wrong, right)


def test_calls_must_fit_to_the_byte_and_halves_count_as_a_whole():
    from labkit.grading.checks.order import Call, Order

    n, size = 4, 22
    due = cost.ring_all_reduce_bytes_by_rank(size, 8, n)
    halves = [cost.ring_reduce_scatter_bytes_by_rank(size, 8, n), cost.ring_all_gather_bytes_by_rank(size, 8, n)]

    def evidence(*calls):
        by_rank = [[(name, sent[r]) for name, sent in calls] for r in range(n)]
        orders = [Order(tuple(Call(*c, (i,), (i,)) for i, c in enumerate(row))) for row in by_rank]
        return Evidence(results=[None] * n, bytes_sent=[sum(s for _, s in row) for row in by_rank], order=orders)

    one = evidence(("all_reduce", due))
    say.expect_calls(Door(), one, [size], "one")
    say.expect_calls(Door(), evidence(("reduce_scatter", halves[0]), ("all_gather", halves[1])), [size], "one")
    for run, why in (
        (evidence(("all_reduce", due), ("all_reduce", due)), "whole already"),
        (evidence(("all_gather", halves[1])), "What is made whole there"),
        (evidence(), "Nothing is summed"),
        (evidence(("reduce", due), ("broadcast", due)), "Only all_reduce is needed here"),
        (evidence(("all_reduce", [b + 8 for b in due])), "wider"),
    ):
        with pytest.raises(NotRight, match=why) as found:
            say.expect_calls(Door(), run, [size], "one")
        assert "rank 0" in str(found.value) and " B" in str(found.value)


# Behind walls -------------------------------------------------------------------------------------------------------


@pytest.mark.ranks
@pytest.mark.parametrize(
    "name", few(["the_last_weights_first", "waits_at_once", "weights_first", "a_sum_for_each_matrix"])
)
def test_a_hidden_sum_has_the_same_marks_behind_walls(name, monkeypatch):
    """Rounds of a switch and records of a program agree on what had begun, and what was over."""
    monkeypatch.setenv("LABKIT_SLOW_MACHINE", "5")
    animal = next(a for a in animals(CHAPTER) if a.body.__name__ == name)
    opened = exercises(CHAPTER)
    with open_sandbox([preamble(source(CHAPTER), opened), animal.source, memory.PROBE], Pace(4.0).limits()) as box:
        here = opened.judge(animal.exercise, SandboxStudent(box, 20_26, animal.exercise, Pace(4.0)))
    there = judged(CHAPTER, animal.exercise, {animal.entry: animal.body})
    assert [(m.name, m.state, m.sentence) for m in here.marks] == [(m.name, m.state, m.sentence) for m in there.marks]
    assert (here.state == "right") == animal.right
