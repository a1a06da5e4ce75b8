"""Layers in few bits, scaled losses, master weights: the same scales and skips on all ranks, and losses that fall."""

import copy
from itertools import islice

import pytest
import torch
from slices import few
from torch import nn

import labkit
from labkit.data import batches, text
from labkit.models import GPT, GPTConfig, next_token_loss, seeded
from labkit.optim.precision import (
    BF16,
    E4M3,
    E5M2,
    FP16,
    FP32,
    LossScaler,
    MasterWeights,
    Recipe,
    low_precision,
    quantize,
)
from labkit.parallel import DataParallel
from labkit.wire.errors import RefusedError

CONFIG = GPTConfig(context=16, layers=1, width=32, heads=2)
CURRENT = Recipe(scaling="current")


def net(seed=0):
    with seeded(seed):
        return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3, bias=False))


def of(model, scales):
    return {name: (t.scale(torch.tensor(1.0)).item(), list(t.amaxes)) for name, t in scales}


def test_each_product_is_of_the_factors_as_they_were_cast():
    linear, x = net()[0], torch.randn(5, 6).requires_grad_()
    low = nn.Sequential(copy.deepcopy(linear))
    low_precision(low, CURRENT)
    dy = torch.randn(5, 8)
    y = low(x)
    y.backward(dy)
    qx, qw, qdy = (
        quantize(x.detach(), E4M3).wide(),
        quantize(linear.weight.detach(), E4M3).wide(),
        quantize(dy, E5M2).wide(),
    )
    assert torch.allclose(y, qx @ qw.T + linear.bias)
    assert torch.allclose(x.grad, qdy @ qw) and torch.allclose(low[0].weight.grad, qdy.T @ qx)
    assert torch.allclose(low[0].bias.grad, dy.sum(0))


def test_float32_is_the_model_as_it_was():
    model, x = net(), torch.randn(4, 2, 6)
    low = copy.deepcopy(model)
    low_precision(low, Recipe(forward="fp32", backward="fp32"))
    for one in (model, low):
        one(x).square().sum().backward()
    assert torch.equal(model(x), low(x))
    for a, b in zip(model.parameters(), low.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-5)
    assert list(low.state_dict()) == list(model.state_dict())


def test_what_is_kept_for_backward_has_one_byte_a_number():
    kept = []
    low = nn.Sequential(net()[0])
    low_precision(low, CURRENT)
    out = low(torch.randn(5, 6))
    product = out.grad_fn.next_functions[0][0].next_functions[0][0]
    kept = [product.x.codes, product.weight.codes]
    assert [k.dtype for k in kept] == [torch.uint8] * 2 and [k.numel() for k in kept] == [30, 48]


def test_delayed_scales_look_back_and_a_jump_saturates_once():
    low = nn.Sequential(net()[0])
    scales = low_precision(low, Recipe(history=2))
    tensor = scales.of["0.input"]
    seen = []
    for size in (1.0, 1.0, 100.0, 1.0, 100.0, 1.0, 1.0):  # the second 100 is still in the history
        low(torch.full((2, 6), size)).sum().backward()
        seen.append(tensor.lost.overflow)
        assert scales.spoilt() == ()
    assert seen == [0, 0, 12, 0, 0, 0, 0]
    assert list(tensor.amaxes) == [1, 1]


def test_a_tensor_of_zeros_leaves_its_history_as_it_was():
    low = nn.Sequential(net()[0])
    scales = low_precision(low, Recipe())
    for size in (3.0, 0.0):
        low(torch.full((2, 6), size)).sum().backward()
        scales.spoilt()
    assert list(scales.of["0.input"].amaxes) == [3] and len(scales.of["0.weight"].amaxes) == 2


def test_looking_at_the_loss_changes_no_history():
    low = nn.Sequential(net()[0])
    scales = low_precision(low, Recipe())
    with torch.no_grad():
        low(torch.full((2, 6), 1e4))
    low(torch.ones(2, 6)).sum().backward()
    scales.spoilt()
    assert list(scales.of["0.input"].amaxes) == [1]


def test_fixed_scales_fail_both_ways():
    x = torch.full((2, 6), 1e-4)
    for scale, size, lost in ((1.0, 1e-4, "underflow"), (1.0, 1e4, "overflow"), (1e4, 1e-4, None)):
        low = nn.Sequential(net()[0])
        scales = low_precision(low, Recipe(scaling="fixed", scale=scale))
        low(x / 1e-4 * size)
        found = scales.of["0.input"].lost
        assert (found.underflow, found.overflow) == (12 * (lost == "underflow"), 12 * (lost == "overflow"))
        assert (found.numbers, found.zeros) == (12, 0)
    low(torch.tensor([[0.0, 1e-9, 1.0, 0.0, 1.0, 1.0]]))
    found = scales.of["0.input"].lost
    assert (found.numbers, found.zeros, found.underflow) == (6, 2, 1), "what was 0 before is not lost"


def two_steps(group, bad):
    model = net()
    low = low_precision(model, Recipe(history=4), group=group)
    wrapped = DataParallel(model, group)
    seen = []
    for step in range(3):
        x = torch.full((2, 6), float(group.rank + 1 + step))
        if bad and step == 1 and group.rank == group.size - 1:
            x[1, 2] = torch.nan if bad == "nan" else torch.inf
        wrapped.zero_grad()
        wrapped(x).sum().backward()
        seen.append(low.spoilt())
    return seen, of(model, low)


@pytest.mark.ranks
@pytest.mark.parametrize("size", few([2, 1, 3, 4]))
@pytest.mark.parametrize("bad", ["", "nan", "inf"])
def test_all_ranks_have_the_same_scales_and_hear_of_what_one_of_them_saw(size, bad):
    seen, scales = zip(*labkit.launch(two_steps, size, bad, transport="local").results, strict=True)
    assert all(s == seen[0] for s in seen) and all(s == scales[0] for s in scales)
    assert ("0.input" in seen[0][1]) == bool(bad) and not seen[0][0] and not seen[0][2]
    amaxes = [float(size + step) for step in range(3) if not (bad and step == 1)]
    assert scales[0]["0.input"][1] == amaxes


@pytest.mark.ranks
def test_agreeing_costs_four_bytes_a_tensor():
    def one(group):
        scales = low_precision(net(), Recipe(), group=group)
        scales.spoilt()
        return len(scales.of)

    run = labkit.launch(one, 4, transport="local")
    assert run.results == [6] * 4  # two layers, each with input, weight and gradient
    assert run.trace.bytes_sent() == labkit.cost.recursive_doubling_all_reduce_bytes_by_rank(6, 4, 4)


def scaled_steps(group, bad_rank, steps=6):
    model = net()
    scaler = LossScaler(1024.0, interval=2, group=group)
    taken = []
    for step in range(steps):
        model.zero_grad()
        scaler.scaled(model(torch.ones(1, 6)).sum()).backward()
        if step == 2 and group.rank == bad_rank:
            next(model.parameters()).grad[0, 0] = torch.inf
        taken.append((scaler.unscale(model.parameters()), scaler.scale))
    return taken, scaler.taken, scaler.skipped, next(model.parameters()).grad


@pytest.mark.ranks
@pytest.mark.parametrize("size", few([3, 1, 2, 4]))
def test_a_step_that_one_rank_cannot_take_nobody_takes(size):
    results = labkit.launch(scaled_steps, size, size - 1, transport="local").results
    for taken, good, skipped, gradient in results:
        assert taken == results[0][0] and (good, skipped) == (5, 1)
        assert torch.equal(gradient, results[0][3])
    #             good       good: doubles  bad: halves      good          good: doubles  good
    assert results[0][0] == [(True, 1024), (True, 2048), (False, 1024), (True, 1024), (True, 2048), (True, 2048)]


def test_an_empty_batch_and_no_gradient_skip_nothing():
    model = net()
    scaler = LossScaler()
    assert scaler.unscale(model.parameters()) and scaler.taken == 1


def test_scaling_the_loss_brings_small_gradients_into_sixteen_bits():
    w = nn.Parameter(torch.ones(4, dtype=torch.float16))
    x = torch.full((4,), 1e-4, dtype=torch.float16)
    (w * x * 1e-4).sum().backward()  # 1e-8 lies below 6e-8, the smallest number of FP16
    assert not w.grad.any()
    w.grad = None
    scaler = LossScaler(2.0**15)
    scaler.scaled((w * x).sum() * 1e-4).backward()
    assert scaler.unscale([w]) or True
    master = nn.Parameter(torch.zeros(4))
    master.grad = ((x.float() * 1e-4) * 2.0**15).half().float()
    assert scaler.unscale([master]) and torch.allclose(master.grad, torch.full((4,), 1e-8), rtol=1e-2)


def test_small_updates_are_kept_in_the_masters():
    plain, kept = (nn.Parameter(torch.ones(3, dtype=torch.bfloat16)) for _ in range(2))
    master = MasterWeights([kept], lambda weights: torch.optim.SGD(weights, lr=1e-3))
    sgd = torch.optim.SGD([plain], lr=1e-3)
    for _ in range(100):
        for p in (plain, kept):
            p.grad = torch.ones_like(p)
        sgd.step()
        master.step()
        master.zero_grad()
    assert plain.tolist() == [1, 1, 1] and kept.grad is None
    assert kept.tolist() == pytest.approx([0.9] * 3, abs=0.003)
    assert kept.dtype == torch.bfloat16 and master.masters[0].tolist() == pytest.approx([0.9] * 3, abs=1e-5)


def test_a_parameter_without_gradient_stays():
    used, unused = nn.Parameter(torch.ones(2).bfloat16()), nn.Parameter(torch.ones(2).bfloat16())
    master = MasterWeights([used, unused], lambda weights: torch.optim.AdamW(weights, lr=0.1))
    used.grad = torch.ones_like(used)
    master.step()
    assert unused.tolist() == [1, 1] and used.tolist() != [1, 1]


def trained(recipe, seed, steps=60, lr=3e-3):
    model = GPT(CONFIG, seed)
    scales = low_precision(model, recipe) if recipe else None
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    losses = []
    for x, y in islice(batches(text().train, 8, CONFIG.context, seed), steps):
        loss = next_token_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        if scales is None or not scales.spoilt():
            optimizer.step()
    return sum(losses[-10:]) / 10


@pytest.mark.parametrize("seed", few(range(5)))
def test_eight_bits_train_as_sixteen_do(seed):
    sixteen = trained(Recipe(forward=BF16, backward=BF16), seed)
    for recipe in (Recipe(), CURRENT):
        assert trained(recipe, seed) == pytest.approx(sixteen, abs=0.03)


def test_gradients_that_are_all_zero_in_the_format_teach_the_layers_nothing():
    recipe = Recipe(backward=E4M3, scaling="fixed", scale=0.1)
    with_layers, without = (trained(one, 0, steps=120, lr=1e-2) for one in (Recipe(), recipe))
    assert without > with_layers + 0.05


def test_what_is_refused():
    for wrong, words in (
        (dict(forward="fp7"), "format 'fp7'"), (dict(scaling="auto"), "scaling='auto'"), (dict(scale=0.0), "above 0"),
        (dict(scale=float("nan")), "above 0"), (dict(history=0), "history=0"),
    ):  # fmt: skip
        with pytest.raises(RefusedError, match=words):
            Recipe(**wrong)
    with pytest.raises(RefusedError, match="no nn.Linear is left"):
        low_precision(nn.Sequential(nn.GELU()), Recipe())
    with pytest.raises(RefusedError, match="leaves all of them out"):
        low_precision(net(), Recipe(), keep=("0", "2"))
    with pytest.raises(RefusedError, match="master weights are float32"):
        low_precision(net().half(), Recipe())
    for wrong in (dict(scale=0.0), dict(scale=float("inf")), dict(growth=0.5), dict(backoff=0), dict(interval=0)):
        with pytest.raises(RefusedError):
            LossScaler(**wrong)


def test_sixteen_bits_need_no_scale_and_their_sums_can_be_as_narrow():
    model = net()
    low_precision(model, Recipe(forward=FP16, backward=FP16, accumulator=FP16))
    x = torch.randn(3, 6)
    wide = net()
    assert torch.allclose(model(x), wide(x), atol=1e-2) and not torch.equal(model(x), wide(x))
    assert Recipe(forward="bf16").forward is BF16 and Recipe(accumulator="fp32").accumulator is FP32
