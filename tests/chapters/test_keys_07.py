"""Keys of chapter 7 and what its checks compare with: slips are told apart, the sources' numbers come out, and
formulas agree with labkit's own optimizers, with sums and with searches."""

from __future__ import annotations

import math

import pytest
import torch
from slips import every_draw, tell_apart

from labkit.chapters.c07_large_batches import checks as reference
from labkit.grading.answers import find_key
from labkit.optim import LAMB, LARS, NoiseScale, combined, linear_scaled, milestones, warmup

CHAPTER = "07_large_batches"


def answer(name, **numbers):
    return find_key(CHAPTER, name, **numbers).answer


AT = every_draw(least=[1500, 2000, 3000], C=[800, 1000, 1200], parts=[2, 4, 5])
BEYOND = every_draw(t=[2, 3, 4, 6])
NINETY = every_draw(critical=[3000, 4000, 5000])
HOUR = every_draw(N=[128, 256, 512], epoch=[1, 2, 3])
MEMORY = every_draw(k=[2, 4], beta=[0.98, 0.99], decay=[0.05, 0.1])
STEPS = every_draw(b=[4, 8, 16], N=[4, 8], own1=[48, 50, 56], all1=[28, 30], own2=[40, 44], all2=[3, 4])
TRUST = every_draw(percent=[1, 2, 5], w=[4, 6, 10], g=[2, 5], lr=[1.6, 3.2])
THEOREM = every_draw(k=[4, 9, 16])
KEYS = [
    *((name, g) for name in ("steps_below", "percent_below") for g in AT),
    *((name, g) for name in ("times_fewer_steps", "times_more_samples", "at_most_sooner") for g in BEYOND),
    *((name, g) for name in ("percent_by_the_law", "critical_needed", "speedup_by_the_law") for g in NINETY),
    *((name, g) for name in ("full_rate", "rate_on_the_way", "adam_rate") for g in HOUR),
    *((name, g) for name in ("beta_then", "decay_then") for g in MEMORY),
    *((name, g) for name in ("signal", "noise", "scale") for g in STEPS),
    *((name, g) for name in ("step_share", "trust_needed", "layer_rate") for g in TRUST),
    *((name, g) for name in ("rate_times", "bound_times") for g in THEOREM),
    *((name, {}) for name in ("critical_batches", "smallest_bound")),
]


@pytest.mark.parametrize("name", sorted({name for name, _ in KEYS}))
def test_no_slip_is_right_and_each_is_told_apart_by_some_numbers(name):
    tell_apart(find_key(CHAPTER, name, **numbers) for same, numbers in KEYS if same == name)


@pytest.mark.parametrize("name, right", [("best_for_samples", "b"), ("printed_rate", "a")])
def test_letters_have_a_reason_each(name, right):
    key = find_key(CHAPTER, name)
    for letter in "abcd":
        feedback = key.mark(letter)
        assert feedback.right == (letter == right) and feedback.why, letter


def test_the_numbers_of_the_sources():
    by_the_law = find_key(CHAPTER, "percent_by_the_law", critical=4000)
    assert by_the_law.mark("66.7 %").right and "textbook's share" in by_the_law.mark("90.84 %").why
    assert find_key(CHAPTER, "critical_needed", critical=4000).mark(19_968).right
    assert "97.7" in find_key(CHAPTER, "critical_needed", critical=4000).mark(9_301).why
    assert "40.1" in find_key(CHAPTER, "speedup_by_the_law", critical=4000).mark(40.1).why
    assert answer("critical_batches") == pytest.approx(8.5)
    assert answer("full_rate", N=256, epoch=5) == answer("rate_on_the_way", N=256, epoch=5) == pytest.approx(3.2)
    assert answer("rate_on_the_way", N=256, epoch=0) == pytest.approx(0.1)
    assert answer("rate_on_the_way", N=256, epoch=1) == pytest.approx(0.72)


def steps(batch, least, critical):
    return least + least * critical / batch


@pytest.mark.parametrize("numbers", AT[::5])
def test_the_law_below_the_critical_batch(numbers):
    least, critical, batch = numbers["least"], numbers["C"], numbers["C"] / numbers["parts"]
    assert answer("steps_below", **numbers) == pytest.approx(steps(batch, least, critical))
    tiny = 1e-6 * steps(1e-6, least, critical)
    assert answer("percent_below", **numbers) == pytest.approx(100 * tiny / (batch * steps(batch, least, critical)))


@pytest.mark.parametrize("t", [2, 3, 4, 6])
def test_the_law_beyond_the_critical_batch(t):
    before, after = steps(t, 1, 1), steps(2 * t, 1, 1)
    assert answer("times_fewer_steps", t=t) == pytest.approx(before / after)
    samples = answer("times_more_samples", t=t)
    assert samples == pytest.approx(2 * after / before) and 1 < samples < 2  # the source says "more than double"
    assert answer("at_most_sooner", t=t) == pytest.approx(before / steps(1e9, 1, 1))


def test_two_runs_give_the_batch_of_the_smaller_one():
    t = answer("critical_batches")
    assert 19 / 18 == pytest.approx(steps(t, 1, 1) / steps(2 * t, 1, 1))


@pytest.mark.parametrize("numbers", STEPS[::11])
def test_two_steps_by_hand_and_by_the_estimator(numbers):
    by_hand = NoiseScale(numbers["b"], numbers["b"] * numbers["N"])
    by_hand.add(numbers["own1"], numbers["all1"])
    by_hand.add(numbers["own2"], numbers["all2"])
    assert answer("signal", **numbers) == pytest.approx(by_hand.signal) and by_hand.last[0] < 0 < by_hand.signal
    assert answer("noise", **numbers) == pytest.approx(by_hand.noise)
    assert answer("scale", **numbers) == pytest.approx(by_hand.estimate().scale)


@pytest.mark.parametrize("numbers", TRUST[::7])
def test_lengths_of_a_first_step_of_lars(numbers):
    def moved(lr, trust, decay=0.0):
        w = torch.nn.Parameter(torch.tensor([float(numbers["w"]), 0.0]))
        w.grad = torch.tensor([0.0, float(numbers["g"])])
        before = w.detach().clone()
        LARS([w], lr=lr, momentum=0.0, trust=trust, weight_decay=decay).step()
        return (w.detach() - before)[1].abs().item()  # along the gradient

    lr = numbers["lr"]
    assert moved(lr, 1.0) / numbers["w"] == pytest.approx(answer("step_share", **numbers), rel=1e-5)
    share = moved(lr, answer("trust_needed", **numbers)) / numbers["w"]
    assert share == pytest.approx(numbers["percent"] / 100, rel=1e-5)
    rate = moved(lr, 0.001, 0.01) / numbers["g"]
    assert rate == pytest.approx(answer("layer_rate", **numbers), rel=1e-5)


@pytest.mark.parametrize("k", [4, 9, 16])
def test_the_bound_by_search(k):
    rates = [1e-4 * 1.001**i for i in range(12_000)]

    def best(batch, steps, first_has_rate=True):
        values = {lr: 2.0 / steps / (lr if first_has_rate else 1) + 3.0 * lr / batch for lr in rates}
        return min(values, key=values.get), min(values.values())

    (lr, value), (more_lr, more) = best(16, 1000), best(16 * k, 1000 / k)
    assert more_lr / lr == pytest.approx(answer("rate_times", k=k), rel=3e-3)
    assert more / value == pytest.approx(answer("bound_times", k=k), rel=1e-3)
    assert value == pytest.approx(2 * math.sqrt(2.0 * 3.0 / (16 * 1000)), rel=1e-3)
    assert best(16, 1000, first_has_rate=False)[0] == rates[0]
    assert find_key(CHAPTER, "smallest_bound").mark("sqrt(4*a*c/(K*B))").right


@pytest.mark.parametrize("numbers", MEMORY[::3])
def test_memories_in_samples(numbers):
    k, beta = numbers["k"], answer("beta_then", **numbers)

    def age(beta, samples):
        weights = [(1 - beta) * beta**i for i in range(5000)]
        return samples * sum(w * (i + 1) for i, w in enumerate(weights))

    assert age(beta, k) == pytest.approx(age(numbers["beta"], 1), rel=1e-3)
    shrunk = 0.1 * math.sqrt(k) * answer("decay_then", **numbers) * 1000 / k
    assert shrunk == pytest.approx(0.1 * numbers["decay"] * 1000)
    assert find_key(CHAPTER, "beta_then", **numbers).mark(numbers["beta"] ** k).right  # the usual rule


# What the checks compare with --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n, warm", [(1, 4), (3, 5), (4, 0)])
def test_rates_are_those_of_the_library(n, warm):
    told = dict(steps=14, lr=0.25, base_batch=4, per_rank=5, passes=2, warm=warm, decay_at=9 * n * 10 + 1)
    right, slips = reference.rates(n, **told)
    full = linear_scaled(0.25, n * 10, 4)
    by_library = combined(warmup(warm, start=4 / (n * 10)), milestones([10]))
    assert right.tolist() == pytest.approx([full * by_library(t) for t in range(14)])
    assert all(len(wrong) == n for wrong in slips.values())


def test_numbers_are_those_of_the_estimator():
    torch.manual_seed(1)
    own = [torch.randn(5, 30, dtype=torch.float64) + 1 for _ in range(3)]
    averages, right, wrong = reference.noise_numbers(own, 4)
    watch = NoiseScale(4, 12)
    for step in range(5):
        watch.add(sum(float(g[step].square().sum()) for g in own) / 3, float(averages[step].square().sum()))
    assert (right["signal"], right["noise"]) == pytest.approx((watch.signal, watch.noise))
    assert right["scale"] == pytest.approx(watch.estimate().scale)
    apart = [w for w in wrong.values() if not math.isclose(w["scale"], right["scale"], rel_tol=1e-6)]
    assert len(apart) >= 8


def whole(parts):
    return [torch.cat(list(layer)) for layer in zip(*parts, strict=True)]


def layers(scale=1.0, sizes=(7, 2, 12)):
    return [scale * torch.randn(size, dtype=torch.float64) for size in sizes]


@pytest.mark.parametrize("n", [1, 3, 4])
def test_lars_is_that_of_the_library(n):
    torch.manual_seed(n)
    w, g = layers(), layers(3.0)
    w[1] *= 0
    parameters = [torch.nn.Parameter(x.clone()) for x in w]
    for p, slope in zip(parameters, g, strict=True):
        p.grad = slope.clone()
    LARS(parameters, lr=0.5, momentum=0.0, weight_decay=0.125, trust=0.25).step()
    right, wrong = reference.lars(w, g, n, 0.5, 0.25, 0.125)
    for got, want in zip(whole(right), parameters, strict=True):
        assert torch.allclose(got, want.detach(), rtol=1e-9)
    for text, slip in wrong.items():
        same = all(map(torch.allclose, whole(slip), whole(right)))
        assert same == (n == 1 and ("shard" in text)), text


@pytest.mark.parametrize("n", [1, 3])
def test_lamb_is_that_of_the_library(n):
    torch.manual_seed(n)
    start, adapt = layers(), [True, False, True]
    parameters = [torch.nn.Parameter(x.clone()) for x in start]
    groups = [{"params": [p], "adapt": yes} for p, yes in zip(parameters, adapt, strict=True)]
    optimizer = LAMB(groups, lr=0.125, betas=(0.9, 0.99), weight_decay=0.25)
    state = {"w": start, "m": [0 * x for x in start], "v": [0 * x for x in start]}
    for t in (1, 2, 3):
        state["g"] = layers(2.0)
        for p, slope in zip(parameters, state["g"], strict=True):
            p.grad = slope.clone()
        optimizer.step()
        found, wrong = reference.lamb(state, adapt, n, t, 0.125, 0.25)
        state |= {name: whole([three[i] for three in found]) for i, name in enumerate("wmv")}
        for got, want in zip(state["w"], parameters, strict=True):
            assert torch.allclose(got, want.detach(), rtol=1e-6, atol=1e-9)
    for text, slip in wrong.items():
        same = all(map(torch.allclose, whole(slip), state["w"]))
        assert same == (n == 1 and "shard" in text), text


def test_passes_double_only_above_the_batch_and_up_to_most():
    torch.manual_seed(3)
    common, noise = torch.ones(200, dtype=torch.float64), torch.randn(20, 200, dtype=torch.float64)
    loud = [common + 9 * noise, common - 5 * noise.flip(0)]
    passes, updates = reference.grown(loud, 2, 1, 8)
    assert passes == [1, 2, 4, 8] and len(updates) == 4  # 5 of 20 pieces are left over
    assert torch.allclose(updates[1], torch.stack(loud)[:, 1:3].mean((0, 1)))
    assert reference.grown([common + 0.1 * noise, common + 0 * noise], 2, 1, 8)[0] == [1] * 20
    assert reference.grown(loud, 2, 2, 3)[0] == [2, 3, 3, 3, 3, 3, 3]
