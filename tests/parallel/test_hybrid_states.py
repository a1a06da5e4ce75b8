"""The state of any hybrid run goes on in any other: weights, momentum, variance, numbers of steps, routers' biases."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from slices import LONG, few

import labkit
from labkit.models import GPT, GPTConfig
from labkit.models.moe import MoEConfig
from labkit.parallel import AdamW, Hybrid, HybridConfig
from labkit.resilience.checkpoint import Checkpointer
from labkit.wire.errors import RefusedError

pytestmark = pytest.mark.ranks

DENSE = GPTConfig(vocab=13, context=12, layers=4, heads=4, width=16, expansion=2)
MOE = dataclasses.replace(DENSE, moe=MoEConfig(4, 1, hidden=1, scores="sigmoid", bias_rate=1e-2, balance=0))
ANY = [
    HybridConfig(dp=2, data="zero1", pp=2, tp=2, sequence_parallel=True, microbatches=2),
    HybridConfig(dp=4, data="hsdp", shard=2, tp=2, sequence_parallel=True),
    HybridConfig(dp=2, pp=2, cp=2, microbatches=2),
    HybridConfig(cp=2, data="zero3", dp=4),
    HybridConfig(dp=2, data="fsdp", pp=4, microbatches=1),
    HybridConfig(dp=2, data="zero2", tp=4),
    HybridConfig(tp=2, pp=2, dp=2, schedule="v_half", chunks=2, microbatches=2, order=("pp", "tp", "dp", "cp")),
    HybridConfig(dp=2, data="fsdp", cp=2, tp=2),
]
EXPERTS = [
    HybridConfig(dp=4, data="zero1", pp=2, ep=2, microbatches=1),
    HybridConfig(dp=4, data="fsdp", ep=4, tp=2, sequence_parallel=True),
    HybridConfig(dp=2, ep=2, pp=2, cp=2, microbatches=2),
    HybridConfig(dp=8, data="zero3", ep=2),
]


def batch(step):
    drawn = torch.randint(13, (8, 12), generator=torch.Generator().manual_seed(step))
    return drawn[:, :-1], drawn[:, 1:]


def trained(group, model, config, first, last, state=None):
    """The state after steps `first` to `last`, begun with `state`."""
    hybrid = Hybrid(group, model, config, seed=3, optimizer=AdamW(lr=1e-2, eps=1e-4), dtype=torch.float64)
    if state is not None:
        hybrid.load_state_dict(state)
        again = hybrid.state_dict()
        assert all(torch.equal(again[key][name], x) for key in ("parameters", "momentum", "variance", "buffers")
                   for name, x in state[key].items()) and again["steps"] == state["steps"]  # fmt: skip
    for step in range(first, last):
        hybrid.step(*batch(step), max_norm=0.3)
    return hybrid.state_dict()


def apart(a, b):
    assert a["steps"] == b["steps"] and all(a[key].keys() == b[key].keys() for key in a if key != "kind")
    return max(float((a[key][name] - x).abs().max()) for key in ("parameters", "momentum", "variance", "buffers")
               for name, x in b[key].items())  # fmt: skip


PAIRS = [("dense", n) for n in range(8)] + [("moe", n) for n in range(8)]


@pytest.mark.parametrize(("kind", "number"), few(PAIRS))
def test_a_state_goes_on_in_any_other_configuration(worlds, kind, number):
    """Saved by one, loaded by another, and by a single rank: as if it had been one run."""
    model, known = (DENSE, ANY) if kind == "dense" else (MOE, EXPERTS)
    one, other = random.Random(number if not LONG else None).sample(known, 2)
    state = worlds(8).run(trained, model, one, 0, 2).results[3]
    went_on = worlds(8).run(trained, model, other, 2, 3, state).results[5]
    alone = worlds(1).run(trained, model, HybridConfig(), 0, 3).results[0]
    if kind == "dense":  # with experts the pieces of the batch matter, a little
        assert apart(went_on, alone) < 1e-9, (one, other)
    back = worlds(1).run(trained, model, HybridConfig(), 3, 3, went_on).results[0]
    assert apart(back, went_on) == 0 and set(back["steps"].values()) == {3}


def test_shards_go_on_with_their_numbers_of_steps(worlds, tmp_path):
    """AdamW's correction depends on them: FSDP that began to count anew would take a step of another length."""
    one, other = HybridConfig(dp=2, data="zero1"), HybridConfig(dp=2, data="fsdp")
    worlds(2).run(resumed, DENSE, one, tmp_path, 0, 2)
    loaded, went_on = worlds(2).run(resumed, DENSE, other, tmp_path, 2, 3).results[1]
    alone = worlds(1).run(resumed, DENSE, HybridConfig(), tmp_path / "alone", 0, 3).results[0][1]
    assert set(loaded["steps"].values()) == {2} and apart(went_on, alone) < 1e-9


def test_a_state_of_another_model_is_refused_on_every_rank():
    def refused(group):
        hybrid = Hybrid(group, DENSE, HybridConfig(dp=2, data="zero1"))
        state, found = hybrid.state_dict(), []
        for change in (
            lambda s: s.pop("momentum"),
            lambda s: s["parameters"].pop("norm.bias"),
            lambda s: s["variance"].update({"norm.bias": torch.zeros(3)}),
            lambda s: s["parameters"].update(more=torch.zeros(3)),
            lambda s: s["steps"].pop("norm.bias"),
        ):
            other = {key: dict(x) if isinstance(x, dict) else x for key, x in state.items()}
            if group.rank:  # on one rank only: all refuse
                change(other)
            try:
                hybrid.load_state_dict(other)
            except RefusedError as why:
                found.append(str(why))
        return found

    wanted = ["it has no 'momentum'", "no parameters of 'norm.bias'", "'norm.bias' is [3], and here [16]",
              "parameters of 'more'", "no number of steps of 'norm.bias'"]  # fmt: skip
    for found in labkit.launch(refused, 2, transport="local").results:
        assert len(found) == len(wanted)
        assert all(words in said and "on rank 1" in said for words, said in zip(wanted, found, strict=True)), found


def with_dropout(group, config, stop):
    """Losses of four steps; at `stop` another object goes on from the state of the first."""
    model, losses = dataclasses.replace(DENSE, dropout=0.3), []
    hybrid = Hybrid(group, model, config, seed=3)
    for step in range(4):
        if step == stop:
            state = hybrid.state_dict()
            hybrid = Hybrid(group, model, config, seed=3)
            hybrid.load_state_dict(state)
        losses.append(hybrid.step(*batch(step)).item())
    return losses


@pytest.mark.long
@pytest.mark.parametrize("config", few([
    HybridConfig(tp=2, pp=2, microbatches=2, sequence_parallel=True), HybridConfig(dp=2, data="fsdp", tp=2),
]), ids=range(2))  # fmt: skip
def test_dropout_goes_on_as_if_nothing_had_been(config):
    whole, stopped = (labkit.launch(with_dropout, 4, config, at, transport="local").results for at in (9, 2))
    assert all(x == pytest.approx(whole[0], rel=1e-5) for x in (*whole, *stopped))
    plain = dataclasses.replace(DENSE, dropout=0.0)
    assert abs(labkit.launch(first_loss, 1, plain).results[0] - whole[0][0]) > 1e-3  # it drops


def first_loss(group, model):
    return Hybrid(group, model, HybridConfig(), seed=3).step(*batch(0)).item()


def resumed(group, model, config, directory, first, last):
    """Go on from what is on the disk, train to step `last`, save; the whole state before and after."""
    hybrid = Hybrid(group, model, config, seed=9, optimizer=AdamW(lr=1e-2, eps=1e-4), dtype=torch.float64)
    with Checkpointer(directory, group, hybrid) as checkpoints:
        loaded = checkpoints.load()
        assert (loaded.step if loaded else 0) == first
        found = hybrid.state_dict()
        for step in range(first, last):
            hybrid.step(*batch(step), max_norm=0.3)
        checkpoints.save(last)
    return found, hybrid.state_dict()


def plain(group, model, directory):
    """The same checkpoint taken up by the plain model with torch's optimizer."""
    gpt = GPT(model).double()
    adam = torch.optim.AdamW(gpt.parameters())
    with Checkpointer(directory, group, gpt, adam) as checkpoints:
        checkpoints.load()
    named = dict(gpt.named_parameters())
    kept = {"momentum": "exp_avg", "variance": "exp_avg_sq"}
    state = {key: {name: adam.state[p][theirs] for name, p in named.items()} for key, theirs in kept.items()}
    return {"parameters": {name: p.detach() for name, p in named.items()}, **state, "lr": adam.param_groups[0]["lr"],
            "steps": {name: int(adam.state[p]["step"]) for name, p in named.items()},
            "buffers": dict(gpt.named_buffers())}  # fmt: skip


@pytest.mark.parametrize(("kind", "number"), few([PAIRS[9], *PAIRS[:9], *PAIRS[10:]], keep=0))
def test_a_checkpoint_goes_on_in_any_other_configuration(worlds, kind, number, tmp_path):
    """On the disk, in parts; and the plain model goes on from it, too."""
    model, known = (DENSE, ANY) if kind == "dense" else (MOE, EXPERTS)
    one, other = random.Random(number if not LONG else None).sample(known, 2)
    _, saved = worlds(8).run(resumed, model, one, tmp_path, 0, 2).results[0]
    loaded, went_on = worlds(8).run(resumed, model, other, tmp_path, 2, 3).results[7]
    assert apart(loaded, saved) == 0
    last = worlds(1).run(plain, model, tmp_path).results[0]
    assert last.pop("lr") == 1e-2
    assert apart(last, {key: x for key, x in went_on.items() if key != "kind"}) == 0
