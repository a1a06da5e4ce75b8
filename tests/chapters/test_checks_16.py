"""What the checks of the programs of chapter 16 compare with: updates by GRPO, layouts, deals, and pools that read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from slices import few

from labkit import cost, launch
from labkit.align import group_advantages, grpo_loss, token_rewards
from labkit.chapters.c16_alignment import checks, own_run, pools
from labkit.grading.checks.order import Call, Order, Plain
from labkit.grading.checks.student import Evidence, NotRight, Student
from labkit.grading.known import Answers
from labkit.wire import Group

answers = Answers("16_alignment")
ROOT = Path(__file__).parents[2]


class Door(Student):
    """What draws inputs and judges evidence; no student is behind it."""

    def __init__(self, seed: int):
        super().__init__(seed, "any")

    def _call(self, *_):
        raise NotImplementedError

    def _value(self, _):
        raise NotImplementedError


# Groups of unequal responses ---------------------------------------------------------------------------------------

GROUPS = [[3, 2, 4, 3], [], [4, 1, 3]]


@pytest.mark.parametrize("groups", [[[3, 3]], GROUPS, [[1], [], [5, 2], [3]]])
def test_an_update_is_that_of_all_responses_in_one_batch(groups):
    inputs, logits = checks.batches(Door(1).tensor, groups)
    leaf = logits.clone().requires_grad_()
    responses = [(x, old, ref) for mine in inputs for x, old, ref in
                 zip(mine["tokens"], mine["old"], mine["reference"], strict=True)]  # fmt: skip
    advantages = [group_advantages(mine["rewards"][mine["prompts"] == p][None])[0][
        (mine["prompts"][:i] == p).sum()] for mine in inputs for i, p in enumerate(mine["prompts"])]  # fmt: skip
    longest = max(len(x) for x, *_ in responses)

    def rows(tensors):
        return torch.stack([torch.cat([x, x.new_zeros(longest - len(x))]) for x in tensors])

    mask_bt = rows([torch.ones(len(x)) for x, *_ in responses]) > 0
    now_bt = rows([checks.log_probabilities(leaf, x) for x, *_ in responses])
    told = grpo_loss(now_bt, rows([old for _, old, _ in responses]), rows([ref for *_, ref in responses]),
                     torch.stack(advantages), mask_bt, int(mask_bt.sum()), "token", 0.2, 0.1)  # fmt: skip
    (gradient,) = torch.autograd.grad(told.loss, leaf)
    for loss, mine in answers.updated(inputs, logits, 0.2, 0.1):
        torch.testing.assert_close(loss, told.loss.detach(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(mine, gradient, rtol=1e-4, atol=1e-6)


def test_responses_to_a_prompt_do_not_stand_together_and_the_last_group_has_equal_rewards():
    inputs, _ = checks.batches(Door(2).tensor, GROUPS)
    prompts = inputs[0]["prompts"].tolist()
    assert sorted(prompts) != prompts and [prompts.count(p) for p in range(4)] == [3, 2, 4, 3]
    assert inputs[1]["tokens"] == [] and inputs[1]["rewards"].shape == (0,)
    assert set(inputs[2]["rewards"][inputs[2]["prompts"] == 6].tolist()) == {torch.tensor(1.7).item()}


@pytest.mark.parametrize("mistake, why", checks.UPDATE_SLIPS.items())
def test_each_mistake_with_an_update_is_told(mistake, why):
    for seed in range(2):
        inputs, logits = checks.batches(Door(seed).tensor, GROUPS)
        run = Evidence(results=answers.updated(inputs, logits, 0.2, 0.1))
        checks.expect_update(Door(seed), run, inputs, logits, 0.2, 0.1)
        run = Evidence(results=answers.updated(inputs, logits, 0.2, 0.1, mistake))
        with pytest.raises(NotRight) as said:
            checks.expect_update(Door(seed), run, inputs, logits, 0.2, 0.1)
        assert why in str(said.value)


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda x: x.pop(), "no list of two tensors"),
        (lambda x: x[1].__setitem__((0, 0), torch.nan), "rank 1 returned a number that is not finite"),
        (lambda x: x[1].__setitem__((2, 3), 9.0), "entries are wrong"),
    ],
)
def test_what_is_wrong_with_an_update_is_told(change, says):
    inputs, logits = checks.batches(Door(3).tensor, GROUPS)
    run = Evidence(results=answers.updated(inputs, logits, 0.2, 0.1))
    change(run.results[1])
    with pytest.raises(NotRight, match=says):
        checks.expect_update(Door(3), run, inputs, logits, 0.2, 0.1)


def test_more_bytes_than_those_of_a_gradient_are_refused():
    due = [each + 64 for each in cost.ring_all_reduce_bytes_by_rank(36, 4, 3)]
    checks.expect_one_gradient(Door(1), Evidence([[]] * 3, bytes_sent=due))
    with pytest.raises(NotRight, match="rank 1 sent"):
        checks.expect_one_gradient(Door(1), Evidence([[]] * 3, bytes_sent=[due[0], due[1] + 1, due[2]]))


# From one layout to another ----------------------------------------------------------------------------------------


def best_order(tensor, stages):
    order = cost.generation_order(tensor, stages)
    return [order.index(rank) for rank in range(tensor * stages)]


@pytest.mark.parametrize("tensor, layers", [(2, [2, 2]), (2, [3, 1, 2]), (1, [1, 2, 3]), (3, [2])])
def test_ranks_are_given_their_parts_and_may_take_those_that_lie_in_them(tensor, layers):
    parts, whole = checks.trained(Door(1).tensor, tensor, layers, 2)
    stages, n = len(layers), tensor * len(layers)
    begins = [sum(layers[:s]) for s in range(stages)]
    for rank, part in enumerate(parts):
        s, t = divmod(rank, tensor)
        rows = whole.shape[1] // tensor
        assert torch.equal(part, whole[begins[s] : begins[s] + layers[s], t * rows : (t + 1) * rows])
    numbers = best_order(tensor, stages)
    cut = [4 * k * n * 2 * 3 for k in layers]
    least = [cost.reshard_bytes(cut, [0] * stages, tensor, n)[rank // tensor] for rank in range(n)]
    between = [[0] * n for _ in range(n)]
    for rank, nbytes in enumerate(least):
        between[(rank + 1) % n][rank] = nbytes
    results = [[number, whole.chunk(n, 1)[number].contiguous()] for number in numbers]
    run = Evidence(results=results, bytes_between=between)
    checks.expect_new_parts(Door(1), run, whole)
    checks.expect_least_bytes(Door(1), run, tensor, layers, 2)
    between[0][n - 1] += 1
    with pytest.raises(NotRight, match=f"rank {n - 1} received"):
        checks.expect_least_bytes(Door(1), run, tensor, layers, 2)


def test_a_rank_whose_part_lies_elsewhere_is_named():
    _, whole = checks.trained(Door(1).tensor, 2, [2, 2], 2)
    results = [[number, whole.chunk(4, 1)[number].contiguous()] for number in range(4)]
    run = Evidence(results=results, bytes_between=[[0, 999, 0, 0]] * 4)
    with pytest.raises(NotRight, match="Rank 1 took part 1, of which it has nothing"):
        checks.expect_least_bytes(Door(1), run, 2, [2, 2], 2)


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda x: x[1].__setitem__(0, 0), "Each of the parts 0 to 3"),
        (lambda x: x.__setitem__(1, [x[1][0], x[2][1]]), "rank 1 says that it has part 2, and it has part 1"),
        (lambda x: x[1][1].__setitem__((0, 0, 0), 99.0), "entries are wrong|entry is wrong"),
        (lambda x: x[1].pop(), "no list of a whole number and a tensor"),
    ],
)
def test_what_is_wrong_with_new_parts_is_told(change, says):
    _, whole = checks.trained(Door(1).tensor, 2, [2, 2], 2)
    run = Evidence(results=[[number, whole.chunk(4, 1)[number].clone()] for number in best_order(2, 2)])
    change(run.results)
    with pytest.raises(NotRight, match=says):
        checks.expect_new_parts(Door(1), run, whole)


# Whoever is free ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n, chunk", [(2, 2), (3, 2), (4, 1), (5, 3)])
def test_every_chunk_goes_to_the_rank_that_was_free_first(n, chunk):
    prompts = pools.asked(Door(3).tensor, 23)
    by = answers.dealt(prompts, n, chunk).tolist()
    free = {rank: 0 for rank in range(1, n)}
    for begin in range(0, len(prompts), chunk):
        (rank,) = {*by[begin : begin + chunk]}
        assert (free[rank], rank) == min((time, one) for one, time in free.items())
        free[rank] += max(len(pools.write([prompt])[1]) for prompt in prompts[begin : begin + chunk])


def test_responses_depend_on_their_prompt_alone_and_a_chunk_takes_as_long_as_its_longest():
    prompts = pools.asked(Door(4).tensor, 12)
    steps, *together = pools.write(prompts)
    assert int(steps) == max(map(len, together)) > 3 * min(map(len, together))
    assert all(torch.equal(one, pools.write([prompt])[1]) for one, prompt in zip(together, prompts, strict=True))
    assert len({tuple(prompt.tolist()) for prompt in prompts}) == 12


def test_each_mistake_with_dealing_is_told():
    """By some seeds; a rank that is chosen by another rule may be the right one."""
    told = set()
    for seed in range(4):
        prompts = pools.asked(Door(seed).tensor, 35)
        responses = [pools.write([prompt])[1] for prompt in prompts]
        for mistake, why in pools.DEALING_SLIPS.items():
            by = answers.dealt(prompts, 4, 2, mistake)
            if torch.equal(by, answers.dealt(prompts, 4, 2)):
                continue
            with pytest.raises(NotRight) as said:
                pools.expect_responses(Door(seed), Evidence(results=[[responses, by]] + [None] * 3), prompts, 2)
            told |= {mistake} if why in str(said.value) else set()
    assert told == {*pools.DEALING_SLIPS}


def dealing(n, prompts, chunk):
    """Evidence of a rollout that does all as it should."""
    by = answers.dealt(prompts, n, chunk)
    sent, taken, at, out = [], [], iter(range(10**6)), {}
    between = [[0] * n for _ in range(n)]
    for number, some in enumerate(pools.chunks_of(prompts, chunk)):
        rank = int(by[number * chunk])
        if number >= n - 1:
            for other in out:
                taken += [Plain(other, 8, (next(at),)) for _ in range(2)]
            out = {}
        sent += [Plain(rank, 8, (next(at),)) for _ in range(2)]
        out[rank] = number
        between[0][rank] += pools.posted_bytes(some)
        between[rank][0] += pools.posted_bytes(pools.write(some))
    for rank in range(1, n):
        sent.append(Plain(rank, 16, (next(at),)))
        between[0][rank] += 16
    responses = [pools.write([prompt])[1] for prompt in prompts]
    order = [Order(sent=tuple(sent), taken=tuple(taken)), *(Order() for _ in range(n - 1))]
    return Evidence(results=[[responses, by], *[None] * (n - 1)], bytes_between=between, order=order)


def judge_dealing(run, prompts):
    pools.expect_responses(Door(1), run, prompts, 2)
    pools.expect_deal(Door(1), run, prompts, 2)
    pools.expect_one_at_a_time(Door(1), run, prompts, 2)


def without_answers(run):
    run.order[0] = Order(sent=run.order[0].sent)


def all_answers_first(run):
    first = [Plain(one.peer, 8, (-1,)) for one in run.order[0].taken]
    run.order[0] = Order(sent=run.order[0].sent, taken=tuple(first))


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda run: run.results[0][0].pop(), "has 10 responses, and there are 11"),
        (lambda run: run.results[0][0].reverse(), "not in the order of the prompts"),
        (lambda run: run.results[0][0].__setitem__(3, torch.zeros(2)), "as response 3 is not what was written"),
        (lambda run: run.results.__setitem__(0, None), "returned no list of two"),
        (lambda run: run.bytes_between[0].__setitem__(2, 1), "rank 0 sent 1 B to rank 2"),
        (lambda run: run.bytes_between[2].__setitem__(0, 1), "rank 2 sent 1 B to rank 0"),
        (without_answers, "before it had the answer to its chunk 0"),
        (all_answers_first, "waited for the answer of rank 1 before rank 2"),
    ],
)
def test_what_is_wrong_with_a_deal_is_told(change, says):
    prompts = pools.asked(Door(1).tensor, 11)
    run = dealing(3, prompts, 2)
    judge_dealing(run, prompts)
    change(run)
    with pytest.raises(NotRight, match=says):
        judge_dealing(run, prompts)


def test_a_deal_of_fewer_chunks_than_ranks_is_accepted():
    prompts = pools.asked(Door(1).tensor, 3)
    judge_dealing(dealing(5, prompts, 2), prompts)


# Pools that read while others write --------------------------------------------------------------------------------


def test_token_rewards_are_those_of_the_library():
    prompts = pools.asked(Door(5).tensor, 7)
    found = answers.rewarded(prompts, 2, 0.25)
    assert [len(one) for one in found] == [4, 3]
    for i, prompt in enumerate(prompts):
        tokens, old = pools.written(prompt)
        other, score = pools.reference(prompt, tokens), pools.reward(prompt, tokens)
        mask = torch.ones(1, len(tokens), dtype=torch.bool)
        right = token_rewards(score, old[None], other[None], mask, 0.25)[0]
        torch.testing.assert_close(found[i % 2][i // 2], right)


@pytest.mark.parametrize("mistake, why", pools.REWARD_SLIPS.items())
def test_each_mistake_with_rewards_is_told(mistake, why):
    layout = {"policy": [0, 1], "reference": [2], "reward": [2]}
    for seed in range(2):
        prompts = pools.asked(Door(seed).tensor, 5)
        run = Evidence(results=[*answers.rewarded(prompts, 2, 0.5), None])
        pools.expect_rewards(Door(seed), run, prompts, layout, 0.5)
        run = Evidence(results=[*answers.rewarded(prompts, 2, 0.5, mistake), None])
        with pytest.raises(NotRight) as said:
            pools.expect_rewards(Door(seed), run, prompts, layout, 0.5)
        assert why in str(said.value)


LAYOUT = {"policy": [0, 1], "reference": [2], "reward": [3]}


def streaming(prompts, late=False, waits=False):
    """Evidence of rank 0 and 1 of `LAYOUT`, with what each token takes. late: sent at the end. waits: for answers."""
    orders = []
    for place in (0, 1):
        at, calls, sent, taken = iter(range(10**6)), [], [], []
        for i, prompt in enumerate(prompts):
            for _ in range(pools.length_of(prompt)):
                calls.append(Call("all_reduce", 8, (next(at),), (next(at),)))
            if i % 2 == place:
                if not late:
                    sent += [Plain(to, 8, (next(at),)) for to in (2, 2, 3, 3)]
                if waits:
                    taken += [Plain(peer, 4, (next(at),)) for peer in (2, 3)]
        own = len(range(place, len(prompts), 2))
        if late:
            sent += [Plain(to, 8, (next(at),)) for _ in range(own) for to in (2, 2, 3, 3)]
        if not waits:
            taken += [Plain(peer, 4, (next(at),)) for _ in range(own) for peer in (2, 3)]
        orders.append(Order(tuple(calls), (), tuple(sent), tuple(taken)))
    return Evidence(results=[None] * 4, order=orders)


def test_responses_that_leave_late_and_answers_that_are_waited_for_are_told():
    prompts = pools.asked(Door(6).tensor, 5)
    pools.expect_stream(Door(6), streaming(prompts), prompts, LAYOUT)
    with pytest.raises(NotRight, match="rank 0 sent response 0 to rank 2 after response 1 was written"):
        pools.expect_stream(Door(6), streaming(prompts, late=True), prompts, LAYOUT)
    with pytest.raises(NotRight, match="rank 0 had the answer of rank 2 to response 0 before"):
        pools.expect_stream(Door(6), streaming(prompts, waits=True), prompts, LAYOUT)
    with pytest.raises(NotRight, match="took part in .* all-reduces"):
        pools.expect_stream(Door(6), streaming(prompts[:-1]), prompts, LAYOUT)


def test_bytes_between_pools_are_those_of_the_messages():
    prompts = pools.asked(Door(7).tensor, 3)
    for layout, n in ((LAYOUT, 4), ({"policy": [0, 1], "reference": [2], "reward": [2]}, 3)):
        between = [[0] * n for _ in range(n)]
        for i, prompt in enumerate(prompts):
            tokens, _ = pools.written(prompt)
            for rank in {layout["reference"][0], layout["reward"][0]}:
                between[i % 2][rank] += pools.posted_bytes([prompt, tokens])
            between[layout["reference"][0]][i % 2] += 4 * len(tokens)
            between[layout["reward"][0]][i % 2] += 4
        between[0][1] = 12345  # what the policy does by itself is not asked for
        run = Evidence(results=[None] * n, bytes_between=between)
        pools.expect_mail(Door(7), run, prompts, layout)
        between[1][2] += 8
        with pytest.raises(NotRight, match="rank 1 sent .* to rank 2, .* A response goes once"):
            pools.expect_mail(Door(7), run, prompts, layout)


def _talk(group: Group):
    if group.rank == 0:
        lists = [pools.take(group, 1) for _ in range(3)]
        return [[x.tolist() for x in one] for one in lists]
    for tensors in ([torch.tensor([3, 1]), torch.tensor([], dtype=torch.int64)], [], [torch.tensor([7])]):
        pools.post(tensors, group, 0).wait()
    return [sum(map(pools.posted_bytes, ([torch.zeros(2), torch.zeros(0)], [], [torch.zeros(1)])))]


def _write(group: Group, prompt):
    return list(pools.write_together(prompt, group))


@pytest.mark.ranks
def test_lists_arrive_as_they_were_posted_and_all_ranks_of_a_policy_write_the_same():
    run = launch(_talk, 2)
    assert run.results[0] == [[[3, 1], []], [], [[7]]]
    assert run.trace.bytes_sent() == [0, run.results[1][0]]
    prompt = torch.tensor([4, -2])
    run = launch(_write, 2, prompt)
    for tokens, logprobs in run.results:
        right, old = pools.written(prompt)
        assert torch.equal(tokens, right) and torch.allclose(logprobs, old)


# The step that is explained ----------------------------------------------------------------------------------------


@pytest.mark.ranks
@pytest.mark.parametrize("decode_ms", few([4, 1, 16], 1))
def test_what_is_said_of_the_own_run_is_what_it_shows(decode_ms):
    """The essay has 4 ms, the rubric has all."""
    cells = json.loads((ROOT / "solutions/16_alignment.ipynb").read_text())["cells"]
    texts = {cell["id"]: "".join(cell["source"]) for cell in cells}
    essay, rubric = (texts[f"a-placement-of-your-own-{role}"] for role in ("answer", "rubric"))
    every, each, two = (own_run.step_of(placement, decode_ms) for placement in own_run.WAYS.values())
    ms = [f"{told.milliseconds:.0f}" for told in (every, each, two)]
    assert f"{ms[0]}, {ms[1]} and {ms[2]} ms with" in rubric
    said = [each.busy[1], each.busy[3], each.utilization, min(every.busy)]
    assert all(f"{part:.0%}".replace("%", " %") in rubric for part in said)
    assert f"{each.busy[0]:.0%}" == "100%" and every.busy.index(min(every.busy)) == 1
    assert (f"{each.kilobytes:.1f}", f"{two.kilobytes:.1f}", every.kilobytes) == ("15.2", "11.3", 0)
    if decode_ms == 4:
        said += [two.busy[0], two.busy[1]]
        assert all(f"{part:.0%}".replace("%", " %") in essay for part in said)
        assert f"step takes {ms[0]} ms" in essay and f"takes {ms[2]} ms, more than half of {ms[1]} ms" in essay
    critic = two.busy[3] * two.milliseconds  # its training has one rank, that of the policy two
    assert two.milliseconds > 1.1 * each.milliseconds / 2 and critic > 150
