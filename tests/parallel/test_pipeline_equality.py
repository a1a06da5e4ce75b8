"""Every schedule on real ranks gives the loss and the gradients of the plain model on the whole batch."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from slices import SLOW_WIRES, few
from torch import nn

from labkit import launch
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.parallel.pipeline import (
    Costs,
    Pipeline,
    Schedule,
    execute,
    gpipe,
    gpt_stages,
    interleaved,
    naive,
    one_f_one_b,
    pipedream,
    v_half,
    validate,
    with_messages,
    zb_h1,
    zb_h2,
    zb_v,
)

pytestmark = pytest.mark.ranks

CONFIG = GPTConfig(context=8, layers=8, width=12, heads=2, vocab=31)
TOKENS = torch.arange(26 * 9).reshape(26, 9) * 7 % 31
SCHEDULES = (naive, gpipe, one_f_one_b, interleaved, zb_h1, zb_h2, zb_v, v_half)


def batch(rows=26):
    return TOKENS[:rows, :-1], TOKENS[:rows, 1:]


def whole(config=CONFIG, rows=26, loss=next_token_loss, seed=0):
    """(loss, gradients by name) of the plain model."""
    model = GPT(config, seed)
    x, y = batch(rows)
    value = loss(model(x), y)
    value.backward()
    return float(value.detach()), {n: p.grad for n, p in model.named_parameters(remove_duplicate=False)}


def gradients(modules):
    return {n: p.grad for m in modules for n, p in m.named_parameters(remove_duplicate=False)}


def joined(results, key):
    """(loss of the only rank that has it, gradients of all ranks) of one case."""
    losses = [r[key][0] for r in results if r[key][0] is not None]
    assert len(losses) == 1
    found = {}
    for result in results:
        for name, gradient in result[key][1].items():
            assert name not in found or torch.equal(found[name], gradient), f"{name}: holders differ"
            found[name] = gradient
    return losses[0], found


def assert_equal(found, wanted, case):
    (loss, theirs), (value, ours) = found, wanted
    assert abs(loss - value) < 1e-6, case
    assert theirs.keys() == ours.keys(), case
    assert max(float((theirs[n] - g).abs().max()) for n, g in ours.items()) < 1e-6, case


def float_or_none(loss):
    return None if loss is None else float(loss)


@pytest.mark.parametrize(("size", "counts"), few([(2, (1, 4)), (3, (6, 7)), (4, (8,)), (8, (16,))], 2))
def test_loss_and_all_gradients_are_those_of_the_plain_model(size, counts):
    """Batches of 26 do not divide by most counts, and the last of them are smaller; both ends of the model are tied."""

    def on_rank(group):
        found, built, costs = {}, {}, Costs(1e-3, 1e-3, 1e-3)
        x, y = batch()
        for schedule in schedules:
            cut = schedule.chunks, schedule.placement
            modules = built[cut] = built.get(cut) or gpt_stages(config, schedule, group)
            for module in modules:
                module.zero_grad()
            step = execute(schedule, modules, group, x if group.rank == 0 else None, y, next_token_loss, seconds=costs)
            key = schedule.name, schedule.microbatches
            found[key] = float_or_none(step.loss), gradients(modules), step.in_flight, step.by_chunk
        return found

    config = replace(CONFIG, layers=2 * size)
    schedules = []
    for m in counts:
        schedules += [make(size, m) for make in SCHEDULES if make is not interleaved or m % size == 0]
    wanted = whole(config)
    results = launch(on_rank, size, transport="local", clock="virtual").results
    for schedule in schedules:
        key = schedule.name, schedule.microbatches
        assert_equal(joined(results, key), wanted, key)
        report = validate(schedule)
        assert [r[key][2] for r in results] == list(report.peak), key
        for rank, r in enumerate(results):
            assert r[key][3] == [report.by_stage[schedule.stage(rank, c)] for c in range(schedule.chunks)], key
    if size == 4:
        assert [r["one_f_one_b", 8][2] for r in results] == [4, 3, 2, 1], "p - rank"
        assert [r["gpipe", 8][2] for r in results] == [8] * 4, "m"


def test_uneven_layers_untied_weights_explicit_messages_gloo_and_given_sizes():
    config = GPTConfig(context=8, layers=5, width=12, heads=2, vocab=31, tied=False)
    cases = {
        "uneven": (one_f_one_b(3, 4), {"layers": [1, 3, 1]}, {}),
        "no layers at the ends": (zb_h1(3, 4), {"layers": [0, 5, 0]}, {}),
        "explicit": (with_messages(one_f_one_b(3, 4)), {}, {}),
        "explicit, zero bubble": (with_messages(zb_h1(3, 4)), {}, {}),
        "sizes": (gpipe(3, 4), {}, {"sizes": [8, 8, 8, 2]}),
        "checkpoint": (one_f_one_b(3, 4), {}, {"checkpoint": True}),
        "checkpoint, zero bubble": (zb_h2(3, 4), {}, {"checkpoint": True}),
        "nothing ahead": (one_f_one_b(3, 4), {}, {"ahead": 0}),
        "all ahead": (zb_h1(3, 4), {}, {"ahead": 100}),
    }

    def on_rank(group):
        found = {}
        for name, (schedule, cut, options) in cases.items():
            modules = gpt_stages(config, schedule, group, seed=3, **cut)
            step = execute(schedule, modules, group, *batch(), next_token_loss, **options)
            found[name] = float_or_none(step.loss), gradients(modules)
        return found

    wanted = whole(config, seed=3)
    for transport in ("local", "gloo"):
        results = launch(on_rank, 3, transport=transport).results
        for name in cases:
            assert_equal(joined(results, name), wanted, (transport, name))


def test_steps_add_up_and_tied_gradients_are_not_summed_twice():
    def on_rank(group):
        modules = gpt_stages(CONFIG, (2, 1), group)
        pipeline = Pipeline(modules, group, next_token_loss)
        for schedule in (one_f_one_b(2, 4), zb_h1(2, 2), gpipe(2, 1)):
            pipeline.execute(schedule, *batch())
        return {"all": (float_or_none(pipeline.execute(naive(2, 2), *batch()).loss), gradients(modules))}

    value, wanted = whole()
    results = launch(on_rank, 2, transport="local").results
    loss, found = joined(results, "all")
    assert abs(loss - value) < 1e-6
    for name, g in wanted.items():
        assert float((found[name] - 4 * g).abs().max()) < 4e-6, name


def test_losses_may_count_tokens_instead_of_examples():
    """Masked targets: microbatches have 8, 6, 1 and 16 tokens that count."""
    x, y = batch(8)
    y = y.clone()
    y[0:1], y[2, :], y[3, 2:], y[4, :], y[5, 1:] = -100, -100, -100, -100, -100

    def loss(logits, targets):
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)

    def on_rank(group):
        found = {}
        for name, count in {"tokens": lambda t: int((t != -100).sum()), "examples": len}.items():
            modules = gpt_stages(CONFIG, (2, 1), group)
            step = Pipeline(modules, group, loss, count=count).execute(one_f_one_b(2, 4), x, y)
            found[name] = float_or_none(step.loss), gradients(modules)
        return found

    model = GPT(CONFIG)
    value = loss(model(x), y)
    value.backward()
    wanted = float(value.detach()), {n: p.grad for n, p in model.named_parameters(remove_duplicate=False)}
    results = launch(on_rank, 2, transport="local").results
    assert_equal(joined(results, "tokens"), wanted, "tokens")
    with pytest.raises(AssertionError):
        assert_equal(joined(results, "examples"), wanted, "a mean of means is another number")


def test_dropout_depends_on_seed_step_stage_and_microbatch_and_not_on_the_schedule():
    config = GPTConfig(context=8, layers=4, width=12, heads=2, vocab=31, dropout=0.2)

    def on_rank(group):
        found = {}
        for name, schedule, options in cases:
            modules = gpt_stages(config, (2, 1), group)
            before = torch.get_rng_state()
            pipeline = Pipeline(modules, group, next_token_loss, **options)
            pipeline.execute(schedule, *batch())
            found[name] = [g.clone() for g in gradients(modules).values()]
            assert torch.equal(before, torch.get_rng_state()), "the reader's random numbers are left alone"
            for m in modules:
                m.zero_grad()
            pipeline.execute(schedule, *batch())
            found[name, "again"] = list(gradients(modules).values())
        return found

    cases = [
        ("1f1b", one_f_one_b(2, 4), {}), ("zb", zb_h2(2, 4), {}), ("computed again", zb_h1(2, 4), {"checkpoint": True}),
        ("other seed", one_f_one_b(2, 4), {"seed": 1}),
    ]  # fmt: skip
    for found in launch(on_rank, 2, transport="local").results:
        for name in ("zb", "computed again"):
            for step in (name, (name, "again")):
                first = "1f1b" if step == name else ("1f1b", "again")
                assert all(torch.equal(a, b) for a, b in zip(found[first], found[step], strict=True)), step
        for other in ("other seed", ("1f1b", "again")):
            assert not any(torch.equal(a, b) for a, b in zip(found["1f1b"][:3], found[other][:3], strict=True))


def test_stages_hold_the_weights_of_the_model_and_its_names():
    plain = GPT(CONFIG, 5).state_dict()
    for schedule in (one_f_one_b(3, 4), interleaved(2, 4), zb_v(2, 4)):
        found = {}
        for rank in range(schedule.size):
            for module in gpt_stages(CONFIG, schedule, rank, seed=5):
                found |= module.state_dict()
        assert found.keys() == plain.keys()
        assert all(torch.equal(found[name], value) for name, value in plain.items())
    assert list(gpt_stages(CONFIG, (4, 1), 1)[0].blocks) == ["2", "3"], "in the order of the model"
    assert list(gpt_stages(CONFIG, (3, 1), 2, layers=[5, 2, 1])[0].blocks) == ["7"]
    first, last = gpt_stages(CONFIG, zb_v(2, 4), 0)
    assert first.tokens.weight is last.lm_head.weight, "both ends on one rank share the matrix"


class Frozen(nn.Module):
    """A stage whose weights are not trained, or that ignores its input."""

    def __init__(self, ignores=False):
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(4, 4).requires_grad_(ignores)
        self.ignores = ignores

    def forward(self, x):
        return self.layer(torch.ones_like(x) if self.ignores else x)


@pytest.mark.parametrize("make", [one_f_one_b, zb_h1])
def test_frozen_stages_and_stages_that_ignore_their_input(make):
    x, y = torch.randn(6, 4), torch.randn(6, 4)

    def parts():
        torch.manual_seed(2)
        return [Frozen(), nn.Linear(4, 4), Frozen(True), nn.Linear(4, 4)]

    def on_rank(group):
        modules = [parts()[group.rank]]
        execute(make(4, 3), modules, group, x, y, F.mse_loss)
        return [p.grad for p in modules[0].parameters()]

    model = nn.Sequential(*parts())
    F.mse_loss(model(x), y).backward()
    for rank, found in enumerate(launch(on_rank, 4, transport="local").results):
        for g, p in zip(found, model[rank].parameters(), strict=True):
            wanted = torch.zeros_like(p) if p.grad is None else p.grad
            assert torch.allclose(torch.zeros_like(p) if g is None else g, wanted, atol=1e-7), rank


def test_a_list_by_hand_is_a_schedule():
    from labkit.parallel.pipeline import Backward, Forward

    mine = Schedule([[Forward(0), Forward(1), Backward(0), Backward(1)], [Forward(0), Backward(0), Forward(1),
                                                                         Backward(1)]], microbatches=2)  # fmt: skip

    def on_rank(group):
        modules = gpt_stages(CONFIG, mine, group)
        step = execute(mine, modules, group, *batch(), next_token_loss, outputs=True)
        return {"": (float_or_none(step.loss), gradients(modules), step.outputs)}

    results = launch(on_rank, 2).results
    assert_equal(joined(results, ""), whole(), "by hand")
    x, _ = batch()
    assert results[0][""][2] is None
    assert torch.allclose(results[1][""][2], GPT(CONFIG)(x), atol=1e-6)


class Part(nn.Module):
    """A stage as one writes it with PyTorch's own layers: activations, a mask, positions, a skip go on."""

    def __init__(self, index, parts):
        super().__init__()
        torch.manual_seed(index)
        self.first, self.last = index == 0, index == parts - 1
        self.layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True)
        self.embed = nn.Embedding(31, 8) if self.first else None
        self.lm_head = nn.Linear(8, 31) if self.last else None
        self.double()

    def forward(self, x, padding, positions, skip=None):
        if self.first:
            x = self.embed(x) + positions[..., None] / 100
            skip = x.tanh()
        x = self.layer(x, src_key_padding_mask=padding) + positions[..., None].sin()
        return (self.lm_head(x + skip), padding) if self.last else (x, padding, positions, skip)


def masked_mean(output, targets):
    logits, padding = output
    return F.cross_entropy(logits[~padding], targets[~padding], reduction="sum") / targets.numel()


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_stages_that_pass_masks_positions_and_a_skip_connection(transport):
    (x, y), options = batch(8), {"zb_h1": {"checkpoint": True}}
    padding = torch.arange(8) >= torch.tensor([8, 5, 3, 8, 7, 1, 8, 6])[:, None]
    positions = torch.arange(8).expand(8, 8).contiguous()
    schedules = [make(2, 4) for make in SCHEDULES] + [with_messages(one_f_one_b(2, 4)), pipedream(2, 1)]
    names = [f"{number} {schedule.name}" for number, schedule in enumerate(schedules)]

    def on_rank(group):
        found = {}
        for name, schedule in zip(names, schedules, strict=True):
            parts = [Part(schedule.stage(group.rank, c), schedule.stages) for c in range(schedule.chunks)]
            more = dict(options.get(schedule.name, {}))
            if schedule.name == "pipedream":
                more["optimizers"] = [torch.optim.SGD(part.parameters(), lr=1.0) for part in parts]
            before = [{n: p.detach().clone() for n, p in part.named_parameters()} for part in parts]
            pipeline = Pipeline(parts, group, masked_mean, **more)
            group.step(names.index(name))
            step = pipeline.execute(schedule, (x, padding, positions), y, outputs=True)
            found[name] = float_or_none(step.loss), step.outputs, {}
            for chunk, part in enumerate(parts):
                for n, p in part.named_parameters():
                    gradient = before[chunk][n] - p.detach() if p.grad is None else p.grad
                    found[name][2][schedule.stage(group.rank, chunk), n] = gradient
        return found

    run = launch(on_rank, 2, transport=transport)
    for number, (name, schedule) in enumerate(zip(names, schedules, strict=True)):
        model = [Part(i, schedule.stages) for i in range(schedule.stages)]
        value = (x, padding, positions)
        for part in model:
            value = part(*value)
        loss = masked_mean(value, y)
        loss.backward()
        loss = loss.detach()
        (there,) = [r[name] for r in run.results if r[name][0] is not None]
        assert abs(there[0] - float(loss)) < 1e-12, name
        assert torch.allclose(there[1][0], value[0]) and torch.equal(there[1][1], padding), name
        gradients = run.results[0][name][2] | run.results[1][name][2]
        for i, part in enumerate(model):
            for n, p in part.named_parameters():
                assert float((gradients[i, n] - p.grad).abs().max()) < 1e-12, (name, i, n)
        if (
            schedule.stages == 2
        ):  # tensors of 8 x 8 x 8 doubles: activations and skip, and back; mask and positions go on
            sent = [sum(m.nbytes for m in run.trace.sends if m.step == number and m.src == r) for r in (0, 1)]
            assert sent[0] - sent[1] == padding.nbytes + positions.nbytes, name


def test_a_tensor_that_is_passed_on_as_it_came_has_its_gradient_too():
    class Passes(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.layer = nn.Linear(3, 3)

        def forward(self, x, other=None):
            return (self.layer(x), x) if other is None else (self.layer(x), other)

    def on_rank(group):
        found = []
        for make, checkpoint in itertools.product((one_f_one_b, zb_h1), (False, True)):
            part = Passes()
            Pipeline(part, group, product, checkpoint=checkpoint).execute(make(3, 2), x, x)
            found.append(part.layer.weight.grad)
        return found

    def product(output, target):
        return (output[0] * output[1] * target).mean()

    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    model = [Passes() for _ in range(3)]
    value = (x,)
    for part in model:
        value = part(*value)
    product(value, x).backward()
    for part, found in zip(model, launch(on_rank, 3).results, strict=True):
        assert all(torch.allclose(g, part.layer.weight.grad) for g in found)


def test_complex_activations_have_their_gradients():
    class Turns(nn.Module):
        def __init__(self, last):
            super().__init__()
            torch.manual_seed(2)
            self.layer, self.last = nn.Linear(4, 4).double(), last

        def forward(self, x, turned=None):
            x = self.layer(x)
            if self.last:
                return x + torch.view_as_real(turned).flatten(1)
            return x, torch.view_as_complex(x.unflatten(1, (2, 2)).contiguous()) * 1j

    def on_rank(group):
        found = []
        for make in (one_f_one_b, zb_h1):
            part = Turns(group.rank == 1)
            Pipeline(part, group, F.mse_loss).execute(make(2, 2), x, x)
            found.append(part.layer.weight.grad)
        return found

    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(1)).double()
    model = [Turns(False), Turns(True)]
    F.mse_loss(model[1](*model[0](x)), x).backward()
    for transport in ("local", "gloo"):
        for part, found in zip(model, launch(on_rank, 2, transport=transport).results, strict=True):
            assert all(torch.allclose(g, part.layer.weight.grad) for g in found)
