"""A trainer and its workers: nothing is staler than allowed, and what is lost changes only who writes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from leftovers import eventually
from slices import REBUILDABLE, few
from small_fleet import CONFIG, HOW, make

import labkit
from labkit import Hang, Kill
from labkit.align.fleet import GRPO, Fleet, Placement, WorkSeconds, grpo_step
from labkit.align.fleet.asynchronous import Asynchronous, learn_asynchronously
from labkit.cost import separate_seconds
from labkit.models import state
from labkit.models.threads import one_thread
from labkit.wire.errors import PeerLost, RefusedError

STEP = GRPO(responses=3, epochs=1)
RATES = {"policy": 1e-2}


@pytest.fixture(params=few(REBUILDABLE))
def goes_on(request):
    return {"transport": request.param, "on_failure": "continue"}


def prompts(update):
    return {n: tuple((5 * n + j + update) % 17 for j in range(1 + n % 4)) for n in range(5)}


def work(group, plan, seconds=None, how=HOW):
    """What rank 0 learned: ages, who wrote, who is lost, numbers of each update, weights in the end."""
    with one_thread():
        found = learn_asynchronously(group, make, prompts, how, STEP, plan, rates=RATES, seconds=seconds)
    if group.rank:
        return None
    numbers = [(told.reward, told.kl, told.loss, told.length) for told in found.reports]
    return found.ages, found.made_by, found.lost, numbers, state(found.policy)


def in_turn(updates):
    """The same updates by `grpo_step` on one rank."""

    def steps(group):
        with one_thread():
            fleet = Fleet(Placement.colocated(1, critic=False), group, make, rates=RATES)
            for u in range(updates):
                grpo_step(fleet, prompts(u), replace(HOW, seed=HOW.seed + u), STEP)
            return state(fleet.models["policy"])

    return labkit.launch(steps, 1, transport="local").results[0]


def same(weights, others):
    return all(torch.equal(x, others[name]) for name, x in weights.items())


@pytest.mark.ranks
@pytest.mark.parametrize("size", few([3, 2, 7], 1))
def test_without_staleness_it_is_the_synchronous_step_to_the_bit(size):
    made = labkit.launch(work, size, Asynchronous(3, staleness=0), transport="local")
    ages, made_by, lost, _, weights = made.results[0]
    assert ages == [0, 0, 0] and lost == {}
    assert made_by == [[1 + c % (size - 1) for c in range(5)]] * 3
    assert same(weights, in_turn(3))


@pytest.mark.ranks
@pytest.mark.parametrize("staleness", few([1, 2, 5], 1))
def test_responses_are_as_old_as_allowed_and_weights_travel_once_a_version(staleness):
    run = labkit.launch(work, 3, Asynchronous(4, staleness), transport="local")
    ages, _, _, _, weights = run.results[0]
    assert ages == [min(u, staleness) for u in range(4)]
    assert not same(weights, in_turn(4))  # corrected for, but not the same policy
    large = [m for m in run.trace.sends if m.nbytes == 4 * CONFIG.num_parameters]
    assert [m.src for m in large] == [0] * len(large) and len(large) == 2 * max(0, 3 - staleness)


@pytest.mark.ranks
def test_what_is_old_is_weighted_and_what_is_not_is_not():
    """A cap of 1 takes the weights above 1 away, so the policies part; without staleness there are no weights."""
    for staleness, equal in ((1, False), (0, True)):
        first, second = (
            labkit.launch(work, 2, Asynchronous(3, staleness, cap), transport="local").results[0] for cap in (1.0, 9.0)
        )
        assert same(first[4], second[4]) == equal


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("faults", "dead"),
    few([
        ([Kill(1, at="generate", nth=2)], [1]),
        ([Kill(2, message=2)], [2]),
        ([Kill(1, at="generate"), Kill(2, at="generate", nth=4)], [1, 2]),
    ], 1),
)  # fmt: skip
def test_workers_that_die_change_nothing_but_who_writes(faults, dead, goes_on):
    plan = Asynchronous(4, staleness=1)
    expected = labkit.launch(work, 3, plan, transport="local").results[0]
    run = labkit.launch(work, 3, plan, faults=faults, **goes_on)
    assert run.unfired == []
    ages, made_by, lost, numbers, weights = run.results[0]
    assert lost == dict.fromkeys(dead, "died") and ages == expected[0]
    assert numbers == expected[3] and same(weights, expected[4])
    assert {*made_by[-1]} == ({1, 2} - {*dead} or {0})  # with all of them gone the trainer writes for itself


@pytest.mark.ranks
def test_a_worker_that_hangs_does_not_stop_the_others(goes_on):
    expected = labkit.launch(work, 3, Asynchronous(3), transport="local").results[0]
    plan = Asynchronous(3, deadline=2.0)
    job = labkit.start(work, 3, plan, faults=[Hang(1, at="generate", nth=2)], timeout=60, **goes_on)
    assert eventually(lambda: job.finished == [0, 2] or job.over, 60)
    job.kill(1)  # it is stopped, and would be so for ever
    ages, made_by, lost, numbers, weights = job.wait().results[0]
    assert lost == {1: "came too late"} and {*made_by[-1]} == {2}
    assert (ages, numbers) == (expected[0], expected[3]) and same(weights, expected[4])


@pytest.mark.ranks
@pytest.mark.parametrize("staleness", [0, 1, 2])
def test_the_timeline_has_the_time_of_the_formula(staleness):
    """Generating and training after each other, or at once: the longer of the two. All responses are equally long."""
    updates, how = 5, replace(HOW, end=None)
    for train in (3e-4, 3e-3):
        seconds = WorkSeconds(1e-2, 0.0, train)
        run = labkit.launch(work, 6, Asynchronous(updates, staleness), seconds, how, clock="virtual", transport="local")
        generating, training = (
            sum(s.end - s.start for s in run.trace.spans(name)) / updates for name in ("generate", "train policy")
        )
        each = separate_seconds(generating, training, 5, 1, overlap=staleness > 0)
        first = separate_seconds(generating, training, 5, 1, overlap=False)
        assert run.trace.duration == pytest.approx(first + (updates - 1) * each, rel=1e-6)


@pytest.mark.ranks
def test_bad_input_is_refused_on_every_rank():
    def refused(group, what):
        with pytest.raises(RefusedError) as why:
            learn_asynchronously(group, make, what, HOW, STEP, Asynchronous(2))
        return str(why.value)

    long = labkit.launch(refused, 3, lambda u: {4: (1,) * 24}, transport="local").results
    assert long == long[:1] * 3 and "the prompt of sequence 4 has 24 tokens" in long[0]
    assert "one rank alone" in labkit.launch(refused, 1, prompts, transport="local").results[0]
    for bad in ({"staleness": -1}, {"deadline": 0.0}, {"deadline": math.nan}):
        with pytest.raises(RefusedError):
            Asynchronous(2, **bad)


@pytest.mark.ranks
def test_without_the_trainer_the_workers_say_so(goes_on):
    def lonely(group):
        with pytest.raises(PeerLost, match="rank 0, which learns, is gone"):
            learn_asynchronously(group, make, prompts, HOW, STEP, Asynchronous(3))
        return True

    run = labkit.launch(lonely, 3, faults=[Kill(0, at="train policy")], **goes_on)
    assert run.results == [None, True, True]
