"""What cannot be learned from is refused on every rank with the same words, and nothing has changed afterwards."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from small_fleet import HOW, PROMPTS, STEP, make

import labkit
from labkit.align.fleet import GRPO, DPOConfig, Fleet, Placement, dpo_step, grpo_step, ppo_step
from labkit.models import state
from labkit.wire.errors import RefusedError

SEPARATE = Placement.separate(2, 1, 1, 1)


def refused(group, placement, prompts, spoil=None):
    """The refusal of a step with one model spoiled, whether all models are what they were, and updates of the next."""
    fleet = Fleet(placement, group, make)
    before = {role: state(model) for role, model in fleet.models.items()}
    if spoil in fleet.models:
        weight = next(fleet.models[spoil].parameters())
        kept = weight.detach().clone()
        weight.data[3] = math.nan
    with pytest.raises(RefusedError) as why:
        ppo_step(fleet, prompts, HOW, STEP)
    if spoil in fleet.models:
        weight.data.copy_(kept)
    same = all(
        torch.equal(x, before[role][name])
        for role, model in fleet.models.items() for name, x in state(model).items()
    )  # fmt: skip
    return str(why.value), same, ppo_step(fleet, PROMPTS, HOW, STEP).updates


@pytest.mark.ranks
@pytest.mark.parametrize("placement", [SEPARATE, Placement.colocated(2)])
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        ("reward", "the reward model on rank"),
        ("critic", "the critic model on rank"),
        ("policy", "the logits of sequence"),
    ],
)
def test_nan_in_a_model_is_named_and_nothing_is_learned(placement, spoil, words):
    results = labkit.launch(refused, placement.size, placement, PROMPTS, spoil, transport="local").results
    said = {text for text, *_ in results}
    assert len(said) == 1 and words in said.pop()
    for rank, (_, same, updates) in enumerate(results):
        assert same and updates == (4 if rank in placement.policy else 0)


@pytest.mark.ranks
def test_a_prompt_longer_than_the_context_is_refused_on_every_rank():
    prompts = {**PROMPTS, 3: (1,) * 24}
    results = labkit.launch(refused, 5, SEPARATE, prompts, transport="local").results
    assert {text for text, *_ in results} == {results[0][0]} and all(same for _, same, _ in results)
    assert "the prompt of sequence 3 has 24 tokens" in results[0][0]


@pytest.mark.ranks
def test_where_all_rewards_are_equal_nothing_is_left_and_the_step_is_skipped_on_every_rank():
    def work(group):
        def blind(role):
            model = make(role)
            if role == "reward":
                torch.nn.init.zeros_(model.lm_head.weight)
            return model

        fleet = Fleet(Placement.separate(2, 1, 1), group, blind)
        before = {role: state(model) for role, model in fleet.models.items()}
        told = grpo_step(fleet, PROMPTS, HOW, GRPO(responses=2))
        same = all(torch.equal(x, before[r][n]) for r, model in fleet.models.items() for n, x in state(model).items())
        return told.updates, same

    assert labkit.launch(work, 4, transport="local").results == [(0, True)] * 4


@pytest.mark.ranks
def test_advantages_of_another_shape_are_refused_on_every_rank():
    def work(group):
        fleet = Fleet(Placement.colocated(group.size, critic=False), group, make)
        with pytest.raises(ValueError, match="one for each reward") as why:
            grpo_step(fleet, PROMPTS, HOW, GRPO(responses=2), advantages=lambda rewards_pg: rewards_pg.mean(1))
        return str(why.value)

    first, second = labkit.launch(work, 2, transport="local").results
    assert first == second and "advantages of shape (1,)" in first and "(1, 2)" in first


@pytest.mark.ranks
def test_dpo_refuses_an_empty_batch_a_long_pair_and_nan():
    def work(group):
        fleet, words = Fleet(Placement((0, 1), (1,)), group, make), []
        pair = ((1, 2), (3,), (4, 5))
        for pairs in ([], [pair, ((1,) * 20, (2,) * 5, (3,))], [pair, ((1,), (), (3,))]):
            with pytest.raises(RefusedError) as why:
                dpo_step(fleet, pairs, DPOConfig())
            words.append(str(why.value))
        if "reference" in fleet.models:
            next(fleet.models["reference"].parameters()).data[3] = math.nan
        with pytest.raises(RefusedError) as why:
            dpo_step(fleet, [pair], DPOConfig())
        return [*words, str(why.value)]

    said = labkit.launch(work, 2, transport="local").results
    assert said[0] == said[1]
    assert "no pair is left" in said[0][0] and "pair 1 has a prompt of 20 tokens and 25 in all" in said[0][1]
    assert "pair 1" in said[0][2] and "the reference says NaN or infinity about pairs 0 to 0" in said[0][3]


@pytest.mark.ranks
def test_a_placement_must_fit_the_ranks():
    def work(group):
        said = []
        for placement in (Placement.colocated(2), Placement((0,), (2,))):
            with pytest.raises(RefusedError) as why:
                Fleet(placement, group, make)
            said.append(str(why.value))
        return said

    said = labkit.launch(work, 3, transport="local").results
    assert said == said[:1] * 3
    assert "is for 2 ranks, and the group has 3" in said[0][0] and "of which [1] have no model" in said[0][1]


def test_placements_that_cannot_be():
    for bad, words in (
        (lambda: Placement((), (0,)), "the policy model needs a rank"),
        (lambda: Placement((0, 0), (0,)), "different ranks"),
        (lambda: replace(SEPARATE, offload=True), "share all their ranks"),
    ):
        with pytest.raises(ValueError, match=words):
            bad()


@pytest.mark.ranks
def test_a_step_needs_its_models_and_room_and_does_nothing_without_prompts():
    def work(group):
        fleet, said = Fleet(Placement((0, 1), (1,)), group, make), []
        pair = ((1, 2), (3,), (4, 5))
        for step in (
            lambda: ppo_step(fleet, PROMPTS, HOW, STEP),
            lambda: grpo_step(fleet, PROMPTS, HOW, GRPO()),
            lambda: dpo_step(fleet, [pair], DPOConfig(budget=47)),
        ):
            with pytest.raises(RefusedError) as why:
                step()
            said.append(str(why.value))
        whole = Fleet(Placement.colocated(2), group, make)
        before = state(whole.models["policy"])
        with pytest.raises(RefusedError, match="budget=23: a microbatch must have room for 1 sequences of 24"):
            ppo_step(whole, PROMPTS, HOW, replace(STEP, budget=23))
        told = ppo_step(whole, {}, HOW, STEP)
        return said, told.updates, furthest(before, state(whole.models["policy"]))

    results = labkit.launch(work, 2, transport="local").results
    (ppo, grpo, dpo), *nothing = results[0]
    assert results[0] == results[1] and nothing == [0, 0.0]
    assert "no rank for the reward model" in ppo and "no rank for the reward model" in grpo
    assert "budget=47: a microbatch must have room for 2 sequences of 24 tokens" in dpo


def furthest(weights, others):
    return max(float((x - others[name]).abs().max()) for name, x in weights.items())


@pytest.mark.parametrize("bad", [lambda: replace(STEP, chunk=0), lambda: GRPO(responses=0), lambda: DPOConfig(pairs=0)])
def test_numbers_that_cannot_be(bad):
    with pytest.raises(ValueError, match="must be"):
        bad()
