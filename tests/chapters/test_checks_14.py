"""What the checks of the programs of chapter 14 compare with: histories, parts, blocks, and chance."""

from __future__ import annotations

import pytest
import torch

from labkit.chapters.c14_low_precision import checks, rounding
from labkit.grading.checks.student import Evidence, NotRight, Student
from labkit.grading.known import Answers
from labkit.optim.precision import E4M3, quantize, round_to

answers = Answers("14_low_precision")


class Door(Student):
    """What draws inputs and judges evidence; no student is behind it."""

    def __init__(self, seed: int):
        super().__init__(seed, "any")

    def _call(self, *_):
        raise NotImplementedError

    def _value(self, _):
        raise NotImplementedError


# Scales that remember ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n, empty", [(1, -1), (3, -1), (5, 1)])
def test_scales_are_those_of_the_whole_tensors_of_earlier_good_steps(n, empty):
    inputs = checks.shards(Door(n).tensor, n, 9, 5, [(3, n - 1, 0, torch.inf), (6, 0, 4, torch.nan)], empty)
    good = []
    for step, (scales, taken) in enumerate(zip(*answers.remembered(inputs, 3, E4M3.max)[n - 1], strict=True)):
        whole = [torch.cat([mine[step][i] for mine in inputs]) for i in range(5)]
        for i, scale in enumerate(scales.tolist()):
            known = torch.cat([torch.zeros(1), *(amaxes[i] for amaxes in good[-3:])])
            top = known.abs().max().item()
            assert scale == pytest.approx(448 / top if top else 1)
        assert taken == (step not in (3, 6))
        if taken:
            good.append(whole)
    assert (answers.remembered(inputs, 3, E4M3.max)[0][0][4, 1], len(good)) == (1, 7)


@pytest.mark.parametrize("mistake", checks.MEMORY_SLIPS)
def test_each_mistake_with_histories_gives_other_scales(mistake):
    for seed in range(10):
        inputs = checks.shards(Door(seed).tensor, 3, 9, 5, [(3, 2, 0, torch.inf)])
        right, wrong = (answers.remembered(inputs, 3, E4M3.max, one) for one in ("", mistake))
        assert any(not torch.allclose(a[0], b[0]) for a, b in zip(right, wrong, strict=True)), seed


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda x: x[1].__setitem__(3, True), "step 3 was taken, though rank 2"),
        (lambda x: x[1].__setitem__(4, False), "step 4 was not taken"),
        (lambda x: x[0].__setitem__((5, 1), 0.0), "the scale of tensor 1 in step 5 is 0.0"),
        (lambda x: x[0].__setitem__((5, 1), torch.inf), "never gets into a history"),
        (lambda x: x.__setitem__(0, x[0][:, :4]), "a row for each step"),
        (lambda x: x.__setitem__(1, x[1].float()), "9 booleans"),
        (lambda x: x[0].__setitem__((5, 1), 3.25), "entries are wrong"),
        (lambda x: x.pop(), "no list of two tensors"),
    ],
)
def test_what_is_wrong_with_scales_and_steps_is_told(change, says):
    inputs = checks.shards(Door(4).tensor, 3, 9, 5, [(3, 2, 0, torch.inf)])
    run = Evidence(results=[[x.clone() for x in pair] for pair in answers.remembered(inputs, 3, E4M3.max)])
    checks.expect_memory(Door(4), run, inputs, 3)
    change(run.results[1])
    with pytest.raises(NotRight, match=says):
        checks.expect_memory(Door(4), run, inputs, 3)


def test_more_messages_and_more_bytes_than_those_of_an_all_reduce_are_refused():
    checks.expect_one_message(Door(1), Evidence([[]] * 3, bytes_sent=[9 * 32] * 3, messages=[36] * 3), 9, 5)
    with pytest.raises(NotRight, match="37 messages in 9 steps"):
        checks.expect_one_message(Door(1), Evidence([[]] * 3, bytes_sent=[9] * 3, messages=[36, 37, 36]), 9, 5)
    with pytest.raises(NotRight, match="rank 1 sent 290 B"):
        checks.expect_one_message(Door(1), Evidence([[]] * 3, bytes_sent=[288, 290, 288], messages=[36] * 3), 9, 5)


# Parts of unequal length -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[7], [4, 5, 6], [6, 0, 1, 12, 3], [0, 0, 5, 0, 1]])
def test_what_was_sent_and_what_is_left_is_all_that_there_was(sizes):
    inputs = checks.gradients(Door(2).tensor, sizes, 4)
    got = answers.in_parts(inputs, sizes)
    sent = torch.cat([sums.sum(0) for sums, _ in got])
    there = torch.stack([torch.stack(mine).sum(0) for mine in inputs]).sum(0)
    size = torch.cat([torch.full((few,), 16.0**part) for part, few in enumerate(sizes)])
    torch.testing.assert_close((sent + sum(left for _, left in got)) / size, there / size, rtol=1e-5, atol=1e-5)
    for rank, (_, left) in enumerate(got):
        assert not left.split(sizes)[rank].any()
    if len(sizes) > 1:
        assert any(left.any() for _, left in got)
        first = answers.in_parts([mine[:1] for mine in inputs], sizes)
        for rank, part in enumerate(inputs[0][0].split(sizes)):
            if rank and len(part):
                torch.testing.assert_close(first[0][1].split(sizes)[rank], part - quantize(part, E4M3).wide())


@pytest.mark.parametrize("mistake, why", checks.PARTS_SLIPS.items())
def test_each_mistake_with_parts_is_told(mistake, why):
    sizes = [4, 5, 6]
    for seed in range(5):
        inputs = checks.gradients(Door(seed).tensor, sizes, 3)
        checks.expect_parts(Door(seed), Evidence(results=answers.in_parts(inputs, sizes)), inputs, sizes)
        with pytest.raises(NotRight) as said:
            checks.expect_parts(Door(seed), Evidence(results=answers.in_parts(inputs, sizes, mistake)), inputs, sizes)
        assert why in str(said.value)


def test_bytes_of_parts_are_those_of_their_messages():
    sizes = [6, 0, 1]
    messages = {(r, s): 4 + sizes[s] for r in range(3) for s in range(3) if r != s and sizes[s]}
    due = [2 * sum(nbytes for (r, _), nbytes in messages.items() if r == rank) for rank in range(3)]
    assert checks.bytes_of_parts(sizes, 2) == due == [10, 30, 20]
    checks.expect_bytes_of_parts(Door(1), Evidence([[]] * 3, bytes_sent=due), sizes, 2)
    for wrong, says in (([18, 30, 28], "has sent a scale"), ([8, 56, 48], "in 32 bits"), ([10, 31, 20], "rank 1 sent")):
        with pytest.raises(NotRight, match=says):
            checks.expect_bytes_of_parts(Door(1), Evidence([[]] * 3, bytes_sent=wrong), sizes, 2)


# Up or down by chance ----------------------------------------------------------------------------------------------


def by_chance(inputs, seed, ranks_alike=False, most=1.0):
    """most: the largest random number; below 1 fewer are rounded up than should be."""

    def rounded(x, *numbers):
        return (x + most * torch.rand(x.shape, generator=rounding.dice(*numbers), dtype=x.dtype)).floor()

    n = len(inputs)
    steps = inputs[0]["gradient"].double() / rounding.STEP
    total = sum(rounded(steps, seed, 0 if ranks_alike else r) for r in range(n))
    exact = inputs[0]["weights"].double() - rounding.RATE * rounding.STEP * total / n
    weights = rounded(exact / rounding.GRAIN, seed, n) * rounding.GRAIN
    return Evidence(results=[[total.to(torch.int16), weights.float()] for _ in range(n)])


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_fair_chance_is_accepted_whatever_it_draws(n):
    for seed in range(8):
        inputs = rounding.alike(Door(seed).tensor, n, 6001)
        run = by_chance(inputs, seed)
        rounding.expect_fair_sums(Door(seed), run, inputs)
        rounding.expect_fair_weights(Door(seed), run, inputs)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_ranks_that_draw_alike_are_seen_in_the_spread(n):
    for seed in range(10):
        inputs = rounding.alike(Door(seed).tensor, n, 6001)
        with pytest.raises(NotRight, match="do all ranks draw the same"):
            rounding.expect_fair_sums(Door(seed), by_chance(inputs, seed, ranks_alike=True), inputs)


def test_chance_that_leans_to_one_side_is_seen_in_the_mean():
    for n, seed in ((1, 1), (2, 2), (5, 3)):
        inputs = rounding.alike(Door(seed).tensor, n, 6001)
        run = by_chance(inputs, seed, most=0.8)
        with pytest.raises(NotRight, match="steps off on average"):
            rounding.expect_fair_sums(Door(seed), run, inputs)
        with pytest.raises(NotRight, match="grains off on average"):
            rounding.expect_fair_weights(Door(seed), run, inputs)


def test_gradients_of_whole_steps_leave_only_the_weights_to_chance():
    inputs = rounding.alike(Door(3).tensor, 2, 6001, whole=True)
    now, later = by_chance(inputs, 1), by_chance(inputs, 2)
    assert torch.equal(now.results[0][0], later.results[0][0])
    rounding.expect_new_draws(Door(3), now, later, True)
    with pytest.raises(NotRight, match="the gradients of rank 0 are rounded alike"):
        rounding.expect_new_draws(Door(3), now, later, False)
    with pytest.raises(NotRight, match="the weights of rank 0 are rounded alike"):
        rounding.expect_new_draws(Door(3), now, now, True)


def test_dice_follow_from_their_numbers_and_from_their_order():
    draws = [torch.rand(4, generator=rounding.dice(*numbers)) for numbers in ((1, 2), (1, 2), (2, 1), (1,), (12,))]
    assert torch.equal(draws[0], draws[1])
    assert len({tuple(draw.tolist()) for draw in draws}) == 4


# A block across the border -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [[21], [21, 22, 23], [5, 0, 3, 40, 1], [0, 70, 2, 2, 5]])
@pytest.mark.parametrize("block", [8, 16, 32])
def test_blocks_are_those_of_the_whole_tensor(lengths, block):
    parts = rounding.cut(Door(6).tensor, lengths, block)
    whole = torch.cat(parts)
    padded = torch.nn.functional.pad(whole, (0, -len(whole) % block)).view(-1, block)
    packed = quantize(whole, E4M3, block, "e8m0-up")
    got = answers.in_blocks(parts, block)
    assert torch.equal(torch.cat([narrow for narrow, _ in got]), packed.wide())
    begin = 0
    for (_, scales), length in zip(got, lengths, strict=True):
        touched = packed.scale[begin // block : -(-(begin + length) // block)] if length else packed.scale[:0]
        assert torch.equal(scales, touched)
        begin += length
    assert (padded.abs().amax(1) * packed.scale).max() <= E4M3.max


@pytest.mark.parametrize("mistake, why", rounding.BLOCK_SLIPS.items())
def test_each_mistake_with_blocks_is_told(mistake, why):
    lengths, block = [21, 22, 23, 24], 32 if mistake == "next" else 8
    for seed in range(5):
        parts = rounding.cut(Door(seed).tensor, lengths if mistake != "next" else [5, 2, 3, 40], block)
        rounding.expect_blocks(Door(seed), Evidence(results=answers.in_blocks(parts, block)), parts, block)
        if mistake == "next":  # seen where the largest number lies two ranks away
            parts[0][0] = 7e4
        with pytest.raises(NotRight) as said:
            rounding.expect_blocks(Door(seed), Evidence(results=answers.in_blocks(parts, block, mistake)), parts, block)
        assert why in str(said.value)


def test_more_than_two_numbers_for_each_other_rank_are_refused():
    rounding.expect_two_numbers(Door(1), Evidence([[]] * 3, bytes_sent=[16, 16, 12]))
    with pytest.raises(NotRight, match="rank 1 sent 20 B"):
        rounding.expect_two_numbers(Door(1), Evidence([[]] * 3, bytes_sent=[16, 20, 12]))


def test_four_bytes_for_each_gradient_are_refused():
    rounding.expect_two_bytes(Door(1), Evidence([[]] * 3, bytes_sent=[24] * 3), 9)
    with pytest.raises(NotRight, match="rank 2 sent 48 B.*32 bits"):
        rounding.expect_two_bytes(Door(1), Evidence([[]] * 3, bytes_sent=[24, 24, 48]), 9)


def test_numbers_are_rounded_as_the_statement_says():
    parts = rounding.cut(Door(8).tensor, [9, 30], 16)
    for (narrow, scales), x, begin in zip(answers.in_blocks(parts, 16), parts, (0, 9), strict=True):
        scale = scales[(begin + torch.arange(len(x))) // 16 - begin // 16]
        assert torch.equal(narrow, round_to(x * scale, E4M3) / scale)
