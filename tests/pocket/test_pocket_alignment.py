"""The reading editions of alignment are equal to the full library: the same numbers and weights, and the same bytes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from slices import few
from torch import nn

import labkit
from labkit import align
from labkit.align import batching
from labkit.align.fleet import PPO, DPOConfig, Fleet, Placement, dpo_step, ppo_step
from labkit.align.rollout import Sampling, generate
from labkit.collectives import all_reduce
from labkit.models import GPT, GPTConfig, ScalarGPT, state
from labkit.models.threads import one_thread
from labkit.models.weights import flat_gradient
from labkit.parallel.refusals.agreement import agree
from labkit.pocket import dpo, packing, ppo

CONFIG = GPTConfig(vocab=17, context=24, layers=1, heads=2, width=16)
PROMPTS = [tuple((3 * i + j) % 17 for j in range(1 + i % 5)) for i in range(9)]
PAIRS = [((1, 2, n), tuple(range(1 + n % 3)), tuple(range(4, 6 + n % 4))) for n in range(7)]
NEW_TOKENS, END = 12, 5
STEPS = 2
GAMMA = 0.9  # with the usual 1.0 one that is left out would change nothing
CLIP, VALUE_CLIP = 0.02, 0.01  # narrow enough that both clips are what is taken, for some tokens of two short steps


def make(role: str) -> GPT:
    """The reference is not the policy, so that its penalty is there from the first step on; all say something."""
    if role in ("policy", "reference"):
        return GPT(CONFIG, 1 if role == "policy" else 7)
    model = ScalarGPT(CONFIG, 2 if role == "reward" else 3)
    with torch.no_grad():
        model.lm_head.weight.copy_(torch.linspace(-1, 1, 16)[None] * (4 if role == "reward" else 1))
    return model


def adam(model: nn.Module) -> torch.optim.Adam:
    """A large eps: without it Adam would not see a factor, and would make steps of rounding errors."""
    return torch.optim.Adam(model.parameters(), 1e-2, eps=0.1)


def trained(group: Any, full: bool, max_norm: float) -> dict[str, dict[str, torch.Tensor]]:
    """The weights of policy and critic after some steps of PPO."""
    ppo.GAMMA, ppo.CLIP, ppo.VALUE_CLIP, ppo.MAX_NORM = GAMMA, CLIP, VALUE_CLIP, max_norm  # in this process of its own
    with one_thread():
        fleet = Fleet(Placement.colocated(group.size), group, make)
        for learner in fleet.learners.values():
            learner.optimizer, learner.max_norm = adam(learner.model), max_norm
        optimizers = {role: learner.optimizer for role, learner in fleet.learners.items()}
        for step in range(STEPS):
            group.step(step + 1)
            if full:
                how = Sampling(NEW_TOKENS, END, seed=step)
                ppo_step(
                    fleet, dict(enumerate(PROMPTS)), how, PPO(gamma=GAMMA, clip=CLIP, value_clip=VALUE_CLIP, chunk=1)
                )
            else:
                ppo.ppo_step(fleet.models, optimizers, PROMPTS, group, NEW_TOKENS, END, seed=step)
        return {role: state(fleet.models[role]) for role in optimizers}


def chosen(group: Any, full: bool, max_norm: float) -> dict[str, dict[str, torch.Tensor]]:
    """The weights of the policy after some steps of DPO, on ranks with unequally many pairs."""
    dpo.MAX_NORM = max_norm
    with one_thread():
        fleet = Fleet(Placement.colocated(group.size, critic=False), group, make)
        learner = fleet.learners["policy"]
        learner.optimizer, learner.max_norm = adam(learner.model), max_norm
        for step in range(STEPS):
            group.step(step + 1)
            if full:
                dpo_step(fleet, PAIRS, DPOConfig(pairs=1))
            else:
                policy, reference = fleet.models["policy"], fleet.models["reference"]
                dpo.dpo_step(policy, reference, learner.optimizer, PAIRS[group.rank :: group.size], group)
        return {"policy": state(fleet.models["policy"])}


def only_full(group: Any, agreements: int, told: torch.Tensor) -> None:
    """What the docstring says that a step of the full one sends besides."""
    for step in range(STEPS):
        group.step(step + 1)
        for _ in range(agreements):
            agree(group, None)
        all_reduce(told, group)


def sent(run: labkit.Run) -> list[list[int]]:
    """Bytes of each rank in each step."""
    steps = range(1, STEPS + 1)
    return [
        [sum(int(m.nbytes) for m in run.trace.sends if m.src == r and m.step == s) for s in steps]
        for r in range(run.trace.world_size)
    ]


def equal(ours: labkit.Run, full: labkit.Run, begin: Any) -> None:
    """The same weights on all ranks, and not those of the beginning."""
    for mine, theirs in zip(ours.results, full.results, strict=True):
        for role, weights in theirs.items():
            for name, x in weights.items():
                torch.testing.assert_close(mine[role][name], x, rtol=0, atol=1e-6, msg=f"{role} {name}")
                assert torch.equal(mine[role][name], ours.results[0][role][name])
            moved = [(x - y).abs().max() for x, y in zip(weights.values(), begin(role).parameters(), strict=True)]
            assert min(moved) > 0 and max(moved) > 1e-3


@pytest.mark.ranks
@pytest.mark.parametrize(("size", "max_norm"), few([(3, math.inf), (2, 0.05), (1, 1.0), (4, 1.0)], 2))
@pytest.mark.parametrize(
    ("steps", "agreements", "told"), [(trained, 1, torch.zeros(8).double()), (chosen, 2, torch.zeros(3))]
)
def test_a_step_is_equal_to_the_full_one_in_weights_and_in_all_bytes_but_those_that_are_named(
    size: int, max_norm: float, steps: Any, agreements: int, told: torch.Tensor
) -> None:
    ours, full = (labkit.launch(steps, size, way, max_norm, transport="local") for way in (False, True))
    equal(ours, full, make)
    more = labkit.launch(only_full, size, agreements, told, transport="local")
    for mine, theirs, besides in zip(sent(ours), sent(full), sent(more), strict=True):
        assert mine == [a - b for a, b in zip(theirs, besides, strict=True)]
        assert size == 1 or min(mine) > 4 * CONFIG.num_parameters


def test_the_policy_writes_what_the_full_one_generates() -> None:
    policy, ids = make("policy"), [4, 1, 8]
    with torch.no_grad():
        tokens_bt, mask_bt = ppo.write(policy, [PROMPTS[i] for i in ids], ids, NEW_TOKENS, END, seed=3)
    samples = generate(policy, {i: PROMPTS[i] for i in ids}, Sampling(NEW_TOKENS, END, seed=3)).samples
    for i, tokens_t, mask_t in zip(ids, tokens_bt, mask_bt, strict=True):
        s, first = samples[i], len(PROMPTS[i])
        assert tuple(tokens_t[mask_t].tolist()) == s.tokens and tuple(tokens_t[:first].tolist()) == s.prompt
        assert mask_t.nonzero()[:, 0].tolist() == list(range(first, first + len(s.tokens)))
    assert {s.ended for s in samples.values()} == {"end", "length"}


@pytest.mark.ranks
def test_rewards_advantages_and_whitening_are_those_of_the_full_one() -> None:
    generator = torch.Generator().manual_seed(0)
    old_bt, reference_bt, values_bt = (torch.randn(4, 9, generator=generator) for _ in range(3))
    scores_b = torch.randn(4, generator=generator)
    mask_bt = align.response_mask(torch.tensor([1, 3, 8, 2]), torch.tensor([9, 4, 9, 7]), 9)
    rewards_bt = ppo.token_rewards(scores_b, old_bt, reference_bt, mask_bt)
    torch.testing.assert_close(rewards_bt, align.token_rewards(scores_b, old_bt, reference_bt, mask_bt, ppo.BETA))
    advantages_bt, _ = align.generalized_advantages(rewards_bt, values_bt, mask_bt, ppo.GAMMA, ppo.LAMBDA)
    torch.testing.assert_close(ppo.gae(rewards_bt, values_bt, mask_bt), advantages_bt)
    (whitened_bt,) = labkit.launch(lambda group: ppo.whiten(values_bt, mask_bt, group), 1).results
    torch.testing.assert_close(whitened_bt, align.whiten(values_bt, mask_bt, align.moments(values_bt, mask_bt)))


def test_the_usual_numbers_are_those_of_the_full_one() -> None:
    usual = PPO()
    assert (ppo.BETA, ppo.GAMMA, ppo.LAMBDA) == (usual.beta, usual.gamma, usual.lam)
    assert (ppo.CLIP, ppo.VALUE_CLIP) == (usual.clip, usual.value_clip)
    assert (ppo.EPOCHS, ppo.MINIBATCHES) == (usual.epochs, usual.minibatches)
    assert dpo.BETA == DPOConfig().beta and ppo.MAX_NORM == dpo.MAX_NORM == 1.0


def test_the_loss_of_dpo_is_that_of_the_full_one() -> None:
    four = [torch.randn(5, generator=torch.Generator().manual_seed(n)) * 20 for n in range(4)]
    losses_p = dpo.dpo_loss(*four)
    torch.testing.assert_close(losses_p.mean(), align.dpo_loss(*four, beta=dpo.BETA, pairs=5).loss)
    assert dpo.dpo_loss(four[0], four[1], four[0], four[1]).allclose(torch.tensor(2.0).log())


def test_log_probabilities_of_responses_are_those_of_the_full_one() -> None:
    """By themselves: in the loss whatever were added of the prompt would cancel."""
    policy, some = make("policy"), [(prompt, response) for prompt, response, _ in PAIRS]
    tokens_bt, mask_bt = batching.padded([torch.tensor([*prompt, *response]) for prompt, response in some])
    for mask_t, (prompt, _) in zip(mask_bt, some, strict=True):
        mask_t[: len(prompt)] = False
    expected_b = align.masked_sums(align.token_logprobs(policy(tokens_bt), tokens_bt), mask_bt)
    torch.testing.assert_close(dpo.sequence_logprobs(policy, some), expected_b)


def drawn(seed: int, count: int, room: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, room + 1, (count,), generator=generator).tolist()
    return [torch.randint(17, (n,), generator=generator) for n in lengths]


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_packed_as_the_full_one_packs_them(seed: int) -> None:
    sequences = drawn(seed, 1 + 2 * seed, room=16)
    lengths = [len(s) for s in sequences]
    assert packing.first_fit_decreasing(lengths, 16) == batching.first_fit_decreasing(lengths, 16)
    tokens_bt, documents_bt, positions_bt = packing.pack(sequences, 16)
    full = batching.Packed.of(sequences, 16)
    assert torch.equal(tokens_bt, full.tokens_bt) and torch.equal(documents_bt, full.documents_bt)
    kept = documents_bt >= 0
    assert torch.equal(positions_bt[kept], full.positions_bt[kept])
    assert torch.equal(packing.attention_mask(documents_bt), full.core.keywords["mask_btt"])  # type: ignore[attr-defined]


def weighted(group: Any, way: str, rotary: bool) -> torch.Tensor:
    """The gradient of a mean over unequally many tokens of ranks: packed here, packed there, or a sequence a row."""
    with one_thread():
        model = GPT(GPTConfig(vocab=17, context=16, layers=2, heads=2, width=16, rotary=rotary), 0)
        sequences = drawn(group.rank, 3 + 4 * group.rank, room=16)
        if way == "pocket":
            packing.token_weighted_gradients(model, sequences, 16, group)
            return flat_gradient(model)
        if way == "full":
            packed = batching.Packed.of(sequences, 16)
            logits_btv = model(packed.tokens_bt, packed.positions_bt, packed.core)
            logprobs_bt = align.token_logprobs(logits_btv, packed.tokens_bt)
            total = align.global_count(packed.predicted_bt, group)
            align.share(-logprobs_bt, packed.predicted_bt, total).backward()
        else:
            total = align.global_count(sum(len(s) - 1 for s in sequences), group)
            for s in sequences:
                (-align.token_logprobs(model(s[None]), s[None]).sum() / total).backward()
        return all_reduce(flat_gradient(model), group)


@pytest.mark.ranks
@pytest.mark.parametrize(("size", "rotary"), few([(3, False), (2, True), (1, True)], 2))
def test_gradients_of_packed_rows_are_those_of_the_full_one_and_of_sequences_alone(size: int, rotary: bool) -> None:
    ours, full, alone = (
        labkit.launch(weighted, size, way, rotary, transport="local") for way in ("pocket", "full", "alone")
    )
    for mine, theirs, unpacked in zip(ours.results, full.results, alone.results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
        torch.testing.assert_close(mine, unpacked, rtol=0, atol=1e-6)
        assert mine.abs().max() > 0.01
    assert ours.trace.bytes_sent() == full.trace.bytes_sent() and (size == 1 or min(ours.trace.bytes_sent()) > 0)
