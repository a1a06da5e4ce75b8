"""A rollout over real ranks has the tokens of one rank, also when ranks die, hang or come too late."""

from __future__ import annotations

import math

import pytest
import torch
from leftovers import eventually
from slices import REBUILDABLE, few

import labkit
from labkit import Hang, Kill
from labkit.align.rollout import Sampling, generate, rollout
from labkit.models import GPT, GPTConfig
from labkit.parallel import kernels
from labkit.wire.errors import PeerLost, RefusedError

CONFIG = GPTConfig(vocab=17, context=32, layers=1, heads=2, width=16)
PROMPTS = {5 * i: tuple((3 * i + j) % 17 for j in range(1 + i % 4)) for i in range(11)}
HOW = Sampling(12, end=5, seed=4)
ALONE = generate(GPT(CONFIG), PROMPTS, HOW).samples


@pytest.fixture(params=REBUILDABLE)
def goes_on(request):
    return {"transport": request.param, "on_failure": "continue"}


def work(group, prompts, deadline=math.inf, model=None):
    """Only rank 0 knows the prompts."""
    return rollout(prompts if group.rank == 0 else {}, model or GPT(CONFIG), group, HOW, slots=2, deadline=deadline)


def same(made, wanted=ALONE):
    """The tokens are the same, and log-probabilities but for rounding: other sequences were in the batch."""
    assert list(made) == list(wanted)
    for i, s in made.items():
        assert (s.sequence, s.prompt) == (i, PROMPTS[i])
        assert (s.tokens, s.ended) == (wanted[i].tokens, wanted[i].ended)
        assert s.log_probs == pytest.approx(wanted[i].log_probs, abs=1e-5)


def expected_bytes(found, group_size):
    """By rank: 8 for each number, three of them in each head; see `parcels.py`."""
    numbers = {i: 4 + len(s.prompt) + 2 * len(s.tokens) for i, s in found.samples.items()}
    sent = [0] * group_size
    for rank in range(1, group_size):
        mine = [i for i, by in found.made_by.items() if by == rank]
        if mine:
            sent[0] += 8 * (3 + 2 + sum(2 + len(PROMPTS[i]) for i in mine))
            sent[rank] += 8 * (3 + sum(numbers[i] for i in mine))
        sent[0] += 8 * (3 + group_size + 1 + len(numbers) + sum(numbers.values()))
    return sent


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("size", "count", "transport"), few([(3, 11, "local"), (5, 3, "gloo"), (1, 4, "local"), (2, 0, "local")], 2)
)
def test_all_ranks_get_the_tokens_of_one_rank_and_bytes_are_those_of_the_formula(size, count, transport):
    prompts = dict([*PROMPTS.items()][:count])
    run = labkit.launch(work, size, prompts, transport=transport)
    found = run.results[0]
    assert run.results == [found] * size and found.lost == {}
    same(found.samples, {i: ALONE[i] for i in prompts})
    assert list(found.made_by.values()) == [n % size for n in range(count)]
    assert run.trace.bytes_sent() == expected_bytes(found, size)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("faults", "dead"),
    few([
        ([Kill(1, at="generate"), Kill(2, message=1)], {1, 2}),  # before it has begun, and with its samples in hand
        ([Kill(1, message=2)], {1}),  # in the middle of its answer
        ([Kill(2, message=3)], {2}),
        ([Kill(1, at="generate"), Kill(2, at="generate", nth=2)], {1, 2}),  # one that dies over the other's prompts
    ], 2),
)  # fmt: skip
def test_the_prompts_of_a_rank_that_dies_are_generated_by_others(faults, dead, goes_on):
    run = labkit.launch(work, 4, PROMPTS, faults=faults, **goes_on)
    assert run.unfired == [] and {f.rank for f in run.failures} == dead
    for rank, found in enumerate(run.results):
        if rank in dead:
            assert found is None
        else:
            same(found.samples)
            assert found.lost == dict.fromkeys(sorted(dead), "died")
            gone = {fault.rank for fault in faults if fault.nth == 1}  # in the first round: what came is kept
            assert not gone & {*found.made_by.values()}
            assert all(found.made_by[i] == n % 4 for n, i in enumerate(PROMPTS) if n % 4 not in gone)


@pytest.mark.ranks
def test_if_all_others_die_rank_0_does_it_alone(goes_on):
    run = labkit.launch(work, 3, PROMPTS, faults=[Kill(1, at="generate"), Kill(2, at="generate")], **goes_on)
    same(run.results[0].samples)
    assert {*run.results[0].made_by.values()} == {0}
    assert [s.rank for s in run.trace.spans("generate")].count(0) == 2  # its share, and then all of theirs


@pytest.mark.ranks
def test_a_rank_that_dies_with_nothing_to_do_is_not_missed(goes_on):
    def two_prompts_for_three(group):
        group.step(group.rank)
        return rollout(dict([*PROMPTS.items()][:2]), GPT(CONFIG), group, HOW)

    run = labkit.launch(two_prompts_for_three, 3, faults=[Kill(2, step=2)], **goes_on)
    assert run.results[0] == run.results[1] and run.results[2] is None
    assert run.results[0].made_by == {0: 0, 5: 1}


@pytest.mark.ranks
def test_the_prompts_of_a_rank_that_hangs_are_generated_by_others_after_the_deadline(goes_on):
    job = labkit.start(work, 3, PROMPTS, 1.0, faults=[Hang(1, at="generate")], timeout=60, **goes_on)
    assert eventually(lambda: job.finished == [0, 2] or job.over, 60)
    job.kill(1)  # it is stopped, and would be so for ever
    run = job.wait()
    for rank in (0, 2):
        same(run.results[rank].samples)
        assert run.results[rank].lost == {1: "came too late"} and 1 not in run.results[rank].made_by.values()


@pytest.mark.ranks
def test_a_rank_that_is_slow_is_left_out_and_the_others_go_on_without_it(goes_on):
    """Exact on the virtual clock: a step takes rank 2 ten seconds and the others one; in the next step they are two."""

    def work(group):
        model = GPT(CONFIG)
        with kernels(model, group, {"norm": (10.0 if group.rank == 2 else 1.0, 0.0)}):
            try:
                first = rollout(PROMPTS if group.rank == 0 else {}, model, group, HOW, deadline=20.0)
                again = rollout(PROMPTS, model, group, HOW, deadline=20.0, lost=first.lost)
            except PeerLost as why:
                return str(why)
            rebuilt = rollout(PROMPTS, model, group.rebuild([0, 1]), HOW, deadline=20.0)
        return first, again, rebuilt

    run = labkit.launch(work, 3, clock="virtual", **goes_on)
    for rank in (0, 1):
        first, again, rebuilt = run.results[rank]
        for found in run.results[rank]:
            same(found.samples)
            assert {*found.made_by.values()} == {0, 1}
        assert first.lost == again.lost == {2: "came too late"} and rebuilt.lost == {}
    assert [s.rank for s in run.trace.spans("generate")].count(2) == 1  # it was not asked again
    assert "rank 2: rank 0, which has the prompts, is gone, or goes on without this rank" in run.results[2]


@pytest.mark.ranks
def test_without_rank_0_it_is_over_for_all(goes_on):
    def work(group):
        with pytest.raises(PeerLost, match=f"rank {group.rank}: rank 0, which has the prompts, is gone"):
            rollout(PROMPTS, GPT(CONFIG), group, HOW)
        return True

    run = labkit.launch(work, 3, faults=[Kill(0, at="generate")], **goes_on)
    assert run.results == [None, True, True]


@pytest.mark.ranks
def test_all_ranks_refuse_with_the_same_words():
    def refused(group, prompts, seed, how, **options):
        with pytest.raises(RefusedError) as why:
            rollout(prompts, GPT(CONFIG, seed), group, how, **options)
        return str(why.value)

    def work(group):
        odd = group.rank == 2
        return [
            refused(group, PROMPTS, int(odd), HOW),
            refused(group, PROMPTS, 0, Sampling(12, seed=5 if odd else 4)),
            refused(group, PROMPTS | {7: ()}, 0, HOW),
            refused(group, {8: (1,), 7: (2,) * 32}, 0, HOW),
            refused(group, {}, 0, HOW, deadline=0),
            rollout(PROMPTS, GPT(CONFIG), group, HOW).lost,  # and goes on
        ]

    said = labkit.launch(work, 3).results
    assert said[1] == said[2] == said[0]
    weights, policy, empty, long, deadline, lost = said[0]
    assert weights.startswith("rank 2 has other weights than rank 0") and lost == {}
    assert policy.startswith("rank 2 has another policy than rank 0")
    assert empty.startswith("the prompt of sequence 7 is empty") and long.startswith("the prompt of sequence 7 has 32")
    assert deadline.startswith("deadline=0")


@pytest.mark.ranks
def test_nan_logits_on_any_rank_name_the_sequence_on_all():
    def work(group):
        model = GPT(GPTConfig(vocab=17, context=32, tied=False))
        with torch.no_grad():
            model.tokens.weight[16] = math.nan
        with pytest.raises(RefusedError) as why:
            rollout({i: (16,) if i == 4 else (1,) for i in range(6)}, model, group, Sampling(1))
        return str(why.value)

    said = labkit.launch(work, 3).results
    assert said[0].startswith("the logits of sequence 4 are NaN") and said == said[:1] * 3
