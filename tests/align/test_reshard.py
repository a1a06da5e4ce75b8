"""Weights go from the training layout to the generating one: the same policy, the fewest bytes, hardly more time."""

from __future__ import annotations

import pytest
import torch
from slices import few

import labkit
from labkit import Link, Network
from labkit.align.reshard import Reshard, generate_sharded, stage_layers, training_stage
from labkit.align.rollout import Sampling, generate
from labkit.cost import reshard_bytes
from labkit.models import GPT, GPTConfig, state
from labkit.models.threads import one_thread
from labkit.parallel.tensor.shard_spec import shard_specs_of
from labkit.wire.errors import RefusedError

CONFIG = GPTConfig(vocab=32, context=24, layers=4, heads=4, width=16)
PROMPTS = {5 * i: tuple((3 * i + j) % 17 for j in range(1 + i % 4)) for i in range(5)}
HOW = Sampling(8, end=5, seed=4)
DEGREES = [(2, 2, 4), (1, 2, 2), (2, 2, 2), (2, 1, 1), (1, 4, 4), (2, 2, 1), (1, 1, 1), (1, 4, 2), (4, 1, 2)]
LINK = Link(1e6, 1e-6)


def work(group, tensor, pipeline, generation, config=CONFIG):
    with one_thread():
        stage = training_stage(config, group, tensor, pipeline)
        reshard = Reshard(stage, group, tensor, pipeline, generation)
        with torch.no_grad():
            for p in stage.parameters():  # as an update would
                p.mul_(1.5)
        group.step(1)
        begin = group.context.clock_here().now()
        policy = reshard()
        taken = group.context.clock_here().now() - begin
        group.step(2)
        cut, whole = 0, 0
        for _, p, spec in shard_specs_of(stage):
            cut, whole = (cut, whole + p.nbytes) if spec is None else (cut + tensor * p.nbytes, whole)
        if config.tied and stage.last and not stage.first:
            cut -= 4 * config.vocab * config.width  # the last stage's own copy of the embedding: no other rank wants it
        return policy.whole_state(), generate_sharded(policy, PROMPTS, HOW), reshard.received, (cut, whole), taken / 1e9


@pytest.mark.ranks
@pytest.mark.parametrize(("tensor", "pipeline", "generation"), few(DEGREES, 2))
def test_the_policy_is_the_same_and_no_byte_too_many_is_sent(tensor, pipeline, generation):
    made = labkit.launch(work, tensor * pipeline, tensor, pipeline, generation, transport="local")
    model = GPT(CONFIG)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    with one_thread():
        expected = generate(model, PROMPTS, HOW).samples
    stages = [made.results[s * tensor][3] for s in range(pipeline)]
    lacks = reshard_bytes([cut for cut, _ in stages], [whole for _, whole in stages], tensor, generation)
    for rank, (weights, samples, received, *_) in enumerate(made.results):
        assert all(torch.equal(x, weights[name]) for name, x in state(model).items())
        assert {i: s.tokens for i, s in samples.items()} == {i: s.tokens for i, s in expected.items()}
        arrived = sum(m.nbytes for m in made.trace.sends if m.dst == rank and m.step == 1)
        assert arrived == received == lacks[rank // tensor]


@pytest.mark.ranks
@pytest.mark.parametrize(("tensor", "pipeline", "generation"), few([(2, 2, 4), (1, 4, 4), (2, 2, 2)], 1))
def test_it_takes_hardly_longer_than_the_bytes_that_the_busiest_rank_must_move(tensor, pipeline, generation):
    config = GPTConfig(vocab=32, context=24, layers=4, heads=4, width=64)
    made = labkit.launch(work, tensor * pipeline, tensor, pipeline, generation, config, transport="local",
                         clock="virtual", network=Network(tensor * pipeline, 1, inter=LINK))  # fmt: skip
    received = max(received for _, _, received, *_ in made.results)
    sent = max(
        sum(m.nbytes for m in made.trace.sends if m.src // tensor == s and m.step == 1) / tensor
        for s in range(pipeline)
    )  # only the ranks of a stage have its layers, so together they must send them
    least = max(received, sent) / LINK.bandwidth
    assert least <= max(taken for *_, taken in made.results) <= 1.2 * least


def test_the_formula_for_even_stages():
    """(1 - 1 / p) P / g, and with degrees apart what is left."""
    for tensor, pipeline, generation in ((2, 2, 4), (4, 8, 8), (2, 4, 2), (8, 4, 32)):
        each = 64 * 960
        expected = (1 - 1 / pipeline) * each * pipeline / generation
        assert reshard_bytes([each] * pipeline, [0] * pipeline, tensor, generation) == [expected] * pipeline
    assert reshard_bytes([64], [7], 4, 2) == [16]  # half of it, of which it has a quarter
    with pytest.raises(ValueError, match="must divide tensor=2, or be a multiple"):
        reshard_bytes([60, 60, 60], [0] * 3, 2, 3)


@pytest.mark.ranks
def test_degrees_that_do_not_fit_are_refused_on_every_rank():
    def refused(group):
        stage = training_stage(CONFIG, group, 1, 2)
        said = []
        for degrees in ((2, 2, 1), (1, 2, 3), (1, 2, 0)):
            with pytest.raises(RefusedError) as why:
                Reshard(stage, group, *degrees)
            said.append(str(why.value))
        return said

    said = labkit.launch(refused, 2, transport="local").results
    assert said[0] == said[1] and all("must be the group's 2 ranks" in words for words in said[0])
    with pytest.raises(RefusedError, match="4 layers do not divide into 3 stages"):
        stage_layers(CONFIG, 3)
