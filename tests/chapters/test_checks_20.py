"""What the checks of the programs of chapter 20 compare with: shortest steps, and plans of ranks that are lost."""

from __future__ import annotations

import itertools

import pytest
import torch

from labkit.chapters.c20_nonuniform_tensor_parallelism import batches, state as states
from labkit.chapters.c20_nonuniform_tensor_parallelism.plan import some_plan
from labkit.grading.checks.student import Evidence, NotRight, Student
from labkit.parallel.moving import plan as moves_of
from labkit.resilience.rehearse import KILLED, adamw_step, gradient_of_shards
from labkit.wire.errors import RefusedError

STORIES = [
    (3, ("", "step", "", "")),
    (4, ("step", "step", "", "back move", "")),
    (5, ("", "step", "step", "", "back step", "")),
    (6, ("", "move", "", "back move", "")),
]


class Door(Student):
    """As much of a student as a plan needs, and what judges evidence."""

    def __init__(self, seed: int):
        super().__init__(seed, "any")

    def _call(self, *_):
        raise NotImplementedError

    def _value(self, _):
        raise NotImplementedError


def test_the_shortest_step_is_that_of_all_ways_to_deal_a_batch_out() -> None:
    for widths, shards, batch in (((8, 7), 32, 9), ((8, 8, 7), 32, 8), ((4, 1), 12, 3), ((6, 3, 2), 13, 7)):
        ways = (x for x in itertools.product(range(batch + 1), repeat=len(widths)) if sum(x) == batch)
        assert min(batches.step_time(x, widths, shards) for x in ways) == batches.shortest_step(batch, widths, shards)


def test_shares_by_gpus_are_too_slow_in_each_draw_and_an_idle_replica_must_be_idle() -> None:
    for seed, n in itertools.product(range(40), (2, 3, 4, 5)):
        one = batches.some_batch(Door(seed), n, 5)[0]
        batch, widths, shards = len(one["samples"]), one["widths"], one["shards"]
        slow = batches.step_time(batches.by_gpus(batch, widths), widths, shards)
        assert slow > batches.shortest_step(batch, widths, shards)
        one = batches.some_batch(Door(seed), n, 5, idle=True)[0]
        assert batches.shortest_step(len(one["samples"]), one["widths"], one["shards"]) < one["shards"]
        assert min(one["widths"]) == 1


def test_a_step_of_adamw_is_that_of_pytorch_and_leaves_the_state_as_it_was() -> None:
    generator = torch.Generator().manual_seed(1)
    state = torch.rand(3, 4, 6, generator=generator, dtype=torch.float64)
    before, now = state.clone(), state
    samples = [[3, 8], [1], [0, 5, 9]]
    for k, mine in enumerate(samples):
        now = adamw_step(now, 7 + k, gradient_of_shards(now[0], [2, 0, 9, 4], mine))
    assert torch.allclose(now, states.adamw(before, 7, [2, 0, 9, 4], samples), rtol=0, atol=1e-12)
    assert torch.equal(state, before) and not torch.allclose(now, before, atol=1e-2)


def test_a_gradient_of_a_shard_does_not_depend_on_the_others() -> None:
    weights = torch.arange(24.0, dtype=torch.float64).view(4, 6)
    both = gradient_of_shards(weights, [1, 5, 2, 7], [4, 6])
    assert torch.equal(both[[3, 1]], gradient_of_shards(weights[[3, 1]], [7, 5], [4, 6]))
    assert not torch.equal(both, gradient_of_shards(weights, [1, 5, 2, 8], [4, 6]))


@pytest.mark.parametrize("steps, shape", [(-1, (2, 2)), (True, (2, 2)), (1.0, (2, 2)), (1, (2, 3))])
def test_a_step_of_adamw_refuses_what_does_not_fit(steps, shape) -> None:
    with pytest.raises(RefusedError):
        adamw_step(torch.zeros(3, 2, 2, dtype=torch.float64), steps, torch.zeros(shape, dtype=torch.float64))


@pytest.mark.parametrize("n, story", STORIES)
def test_no_plan_loses_a_shard_and_each_moves_some(n, story) -> None:
    for seed in range(30):
        plan = some_plan(Door(seed), n, 9, 60, story)
        assert [bool(a.lost is not None) for a in plan.attempts] == ["step" in w or "move" in w for w in story]
        assert len({a.quorum["id"] for a in plan.attempts}) <= 5
        for a in plan.attempts:
            have, want, members = (a.quorum[key] for key in ("have", "want", "members"))
            for number in {plan.replica[r] for r in members}:
                assert sorted(s for r in members if plan.replica[r] == number for s in want[r]) == list(range(9))
            there = [have[r] if r in members else [] for r in range(n)]
            found = moves_of(there, want, near=plan.replica)  # of the library: it refuses where a shard is gone
            for rank in members:
                assert sum(row[rank] for row in found.counts()) == len(a.new(rank))
                far = sum(row[rank] for r, row in enumerate(found.counts()) if plan.replica[r] != plan.replica[rank])
                assert far == len(states._only_elsewhere(plan, a, rank))
        assert any(a.new(r) for a in plan.attempts for r in a.quorum["members"])


def test_what_is_expected_is_what_whole_ranks_would_have_and_a_wrong_shard_is_named() -> None:
    plan = some_plan(Door(5), 4, 9, 60, ("", "step", "", ""))
    right = states.expected(plan)
    assert sum(x == [KILLED] for x in right) == 1
    states.expect_state(Door(5), Evidence(results=right), plan)
    alive = next(r for r, x in enumerate(right) if x != [KILLED])
    state, steps = right[alive][0]
    for wrong, says in (
        ([state.flip(1), steps], "in another order"),
        ([state, steps + 1], "came to nothing was counted"),
        ([state[:, :1], steps], "is no float64"),
        ([state + torch.eye(3, dtype=torch.float64)[2][:, None, None], steps], "second moment"),
    ):
        results = [[wrong] if r == alive else x for r, x in enumerate(right)]
        with pytest.raises(NotRight, match=says):
            states.expect_state(Door(5), Evidence(results=results), plan)


def test_a_shard_that_came_without_moments_is_not_the_right_one() -> None:
    plan = some_plan(Door(3), 4, 9, 60, ("", "step", "", ""))
    want, holds = states.expected(plan), plan.attempts[-1].quorum["want"]
    came = [(r, s) for r in plan.attempts[-1].quorum["members"] for s in plan.attempts[2].new(r)]
    assert came
    for rank, shard in came:
        right = want[rank][0][0][:, holds[rank].index(shard)]
        kinds = [states.bare(plan, rank, shard, keep) for keep in (0, 1, 2)] + [states.unfinished(plan, shard)]
        assert not any(states.near(x, right) for x in kinds)


def test_too_many_bytes_are_told_with_the_rank_and_the_replica() -> None:
    plan = some_plan(Door(7), 4, 9, 60, ("", "step", "", "back", ""))
    one = 24 * 60
    near, far = torch.zeros(4, 4, dtype=torch.int64), torch.zeros(4, 4, dtype=torch.int64)
    for a in plan.attempts:
        members = a.quorum["members"]
        for rank in members:
            for shard in a.new(rank):
                holders = [r for r in members if shard in a.quorum["have"][r]]
                near[min(holders, key=lambda r: plan.replica[r] != plan.replica[rank]), rank] += one
                far[min(holders, key=lambda r: plan.replica[r] == plan.replica[rank]), rank] += one
    states.expect_moved(Door(7), Evidence(bytes_between=near.tolist()), plan)
    with pytest.raises(NotRight, match="had to come from there"):
        states.expect_moved(Door(7), Evidence(bytes_between=far.tolist()), plan)
    more = near.clone()
    more[0, 1] += one
    with pytest.raises(NotRight, match="rank 1 received"):
        states.expect_moved(Door(7), Evidence(bytes_between=more.tolist()), plan)


def right_batch(inputs):
    """What each rank returns, and the bytes of a ring of messages."""
    one, n = inputs[0], len(inputs)
    each = [batches.most_shards(one["shards"], width) for width in one["widths"]]
    shares = [0] * n
    for _ in one["samples"]:
        shares[min(range(n), key=lambda r: (shares[r] + 1) * each[r])] += 1
    edges = [sum(shares[:r]) for r in range(n + 1)]
    whole = batches.gradient_of(one["weights"], one["samples"])
    mine = [one["samples"][a:b].tolist() for a, b in itertools.pairwise(edges)]
    sent = [2 * (n - 1) * 8 * len(whole) // n + 8] * n
    return Evidence(results=[[shares, own, whole] for own in mine], bytes_sent=sent)


def judge_batch(run, inputs):
    door = Door(3)
    trained = batches.expect_shares(door, run, inputs)
    batches.expect_mean(door, run, inputs, trained)
    batches.expect_one_sum(door, run, inputs)


@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize("n", [1, 2, 4, 5])
def test_right_shares_and_the_mean_over_all_examples_are_accepted(n, idle) -> None:
    inputs = batches.some_batch(Door(n), n, 30, idle and n > 1)
    judge_batch(right_batch(inputs), inputs)


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda x: x[0].__setitem__(0, x[0][0] + 1), "add up to"),
        (lambda x: x.__setitem__(0, [*x[0][1:], x[0][0]]), "deal alike|units of time|examples, and its share"),
        (lambda x: x[1].pop(), "and its share is"),
        (lambda x: x[1].__setitem__(0, x[1][1]), "by nobody, or by two"),
        (lambda x: x.__setitem__(2, x[2] * 2), "entries are wrong"),
        (lambda x: x.__setitem__(2, x[2] * float("nan")), "has nan in its gradient"),
        (lambda x: x.pop(), "did not return"),
    ],
)
def test_a_wrong_share_sample_or_gradient_of_one_rank_is_refused(change, says) -> None:
    inputs = batches.some_batch(Door(2), 3, 30)
    run = right_batch(inputs)
    for result in run.results if says == "add up to" else run.results[1:2]:
        result[0] = list(result[0])
        change(result)
    with pytest.raises(NotRight, match=says):
        judge_batch(run, inputs)


@pytest.mark.parametrize("factor, says", [(0.2, "too little for a sum"), (2, "One all-reduce sends")])
def test_too_few_and_too_many_bytes_of_a_sum_are_refused(factor, says) -> None:
    inputs = batches.some_batch(Door(2), 4, 300)
    run = right_batch(inputs)
    wrong = Evidence(results=run.results, bytes_sent=[int(factor * x) for x in run.bytes_sent])
    with pytest.raises(NotRight, match=says):
        judge_batch(wrong, inputs)


def test_the_gpu_with_most_whole_shards_sets_the_pace() -> None:
    assert [batches.most_shards(32, width) for width in (8, 7, 5, 32)] == [4, 5, 7, 1]
    assert batches.shortest_step(9, [8, 7], 32) == batches.step_time([5, 4], [8, 7], 32) == 20
    assert batches.step_time([6, 3], [8, 7], 32) == 24


def test_shares_by_gpus_and_shares_that_differ_between_ranks_are_told() -> None:
    inputs = batches.some_batch(Door(2), 3, 30)
    run = right_batch(inputs)
    slow = batches.by_gpus(len(inputs[0]["samples"]), inputs[0]["widths"])
    with pytest.raises(NotRight, match="units of time.*in proportion to the GPUs"):
        batches.expect_shares(Door(2), Evidence([[slow, own, x] for _, own, x in run.results]), inputs)
    run.results[1][0] = slow
    with pytest.raises(NotRight, match="All ranks must deal alike"):
        batches.expect_shares(Door(2), run, inputs)


def test_a_rank_that_is_back_at_once_has_a_new_life_in_a_new_quorum() -> None:
    plan = some_plan(Door(1), 4, 9, 60, ("step", "back", ""))
    lost = plan.attempts[0].lost
    assert [a.quorum["id"] for a in plan.attempts] == [1, 2, 2]
    assert [a.lives[lost] for a in plan.attempts] == [0, 1, 1] and plan.attempts[1].quorum["have"][lost] == []


@pytest.mark.parametrize("n, story", STORIES)
def test_what_is_expected_is_a_whole_model_with_a_step_for_each_attempt_that_counts(n, story) -> None:
    plan = some_plan(Door(9), n, 9, 60, story)
    state, steps = plan.start, plan.steps
    for a in plan.attempts:
        if a.lost is None:
            gradient = gradient_of_shards(state[0], range(9), a.quorum["samples"])
            state, steps = adamw_step(state, steps, gradient), steps + 1
    for rank, lives in enumerate(states.expected(plan)):
        if lives[-1] != KILLED:
            assert lives[-1][1] == steps
            assert states.near(lives[-1][0], state[:, plan.attempts[-1].quorum["want"][rank]])
