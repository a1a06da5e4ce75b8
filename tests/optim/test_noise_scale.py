"""The noise scale where the truth is known, and from the gradients of a real data parallel run."""

import math
from statistics import fmean

import pytest
import torch

import labkit
from labkit.data import digits, image_batches
from labkit.models import MLP, flat_gradient
from labkit.optim import NoiseScale, TwoBatches, signal_and_noise, squared_norm, two_norms
from labkit.optim.noise_scale import student_t
from labkit.parallel import DataParallel
from labkit.wire.errors import RefusedError

TRUE, SPREAD = torch.tensor([3.0, 0.0, -1.0, 0.5], dtype=torch.float64), torch.tensor([1.0, 2, 3, 4]).double()
SIGNAL, NOISE = float(TRUE.square().sum()), float(SPREAD.square().sum())  # |G|^2 and tr(Sigma)


def norms(random, steps, ranks=4, each=2, true=TRUE):
    """Gradients of a loss whose true gradient and covariance are known: `steps` pairs of squared norms."""
    examples = true + SPREAD * torch.randn(steps, ranks, each, len(true), generator=random, dtype=torch.float64)
    small = examples.mean(2)
    return small.square().sum(-1).mean(1).tolist(), small.mean(1).square().sum(-1).tolist()


def test_signal_and_noise_of_expected_norms_are_exact():
    for small, large in ((1, 2), (2, 8), (7, 300)):
        signal, noise = signal_and_noise(SIGNAL + NOISE / small, SIGNAL + NOISE / large, small, large)
        assert (signal, noise) == (pytest.approx(SIGNAL), pytest.approx(NOISE))
    signal, noise = signal_and_noise(100 + 1.6e6 / 4, 100 + 1.6e6 / 8192, 4, 8192)
    assert noise / signal == pytest.approx(16_000)  # the pilot trace of 003, section 1.3.6


def test_signal_and_noise_are_unbiased_and_the_mean_of_ratios_is_not():
    steps = 40_000
    pairs = list(zip(*norms(torch.Generator().manual_seed(0), steps), strict=True))
    both = [signal_and_noise(*pair, 2, 8) for pair in pairs]
    for values, truth in zip(zip(*both, strict=True), (SIGNAL, NOISE), strict=True):
        mean = fmean(values)
        error = math.sqrt(fmean([(x - mean) ** 2 for x in values]) / steps)
        assert abs(mean - truth) < 4 * error and error < 0.01 * truth
    assert min(signal for signal, _ in both) < 0  # of one step, the signal may be anything
    scale = NoiseScale(2, 8)
    for pair in pairs:
        scale.add(*pair)
    assert scale.estimate().scale == pytest.approx(NOISE / SIGNAL, rel=0.03)
    assert abs(fmean([noise / signal for signal, noise in both]) / (NOISE / SIGNAL) - 1) > 0.1


def test_the_running_means_are_those_of_the_whole_list_and_fade_forgets():
    small, large = norms(torch.Generator().manual_seed(1), 50)
    both = [signal_and_noise(*pair, 2, 8) for pair in zip(small, large, strict=True)]
    for fade in (1.0, 0.9):
        scale = NoiseScale(2, 8, fade)
        for pair in zip(small, large, strict=True):
            scale.add(*pair)
            assert scale.last == signal_and_noise(*pair, 2, 8)
        weights = [fade ** (49 - t) for t in range(50)]
        signal, noise = (sum(w * x[i] for w, x in zip(weights, both, strict=True)) / sum(weights) for i in (0, 1))
        found = scale.estimate()
        assert (found.signal, found.noise) == (pytest.approx(signal), pytest.approx(noise))
        assert found.effective == pytest.approx(sum(weights) ** 2 / sum(w * w for w in weights))
        assert found.steps == 50


@pytest.mark.parametrize("fade, steps", [(1.0, 30), (0.95, 200)])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(fade, steps):
    random, held, runs = torch.Generator().manual_seed(2), 0, 400
    for _ in range(runs):
        scale = NoiseScale(2, 8, fade)
        for pair in zip(*norms(random, steps), strict=True):
            scale.add(*pair)
        found = scale.estimate(0.9)
        assert found.low <= found.scale <= found.high or math.isnan(found.scale)
        held += found.low <= NOISE / SIGNAL <= found.high
    assert 0.85 < held / runs < 0.95


def test_without_a_signal_it_says_so_and_gives_no_number():
    lost = NoiseScale(2, 8)
    for pair in zip(*norms(torch.Generator().manual_seed(3), 40, true=torch.zeros(4).double()), strict=True):
        lost.add(*pair)
    found = lost.estimate()
    assert found.high == math.inf and found.low > 0 and "signal" in found.word
    assert math.isnan(found.scale) == (found.signal <= 0)
    below = NoiseScale(1, 2)
    below.add(small_norm2=10.0, large_norm2=4.0)  # G2 = -2
    assert math.isnan(below.estimate().scale) and "no signal" in str(below.estimate())
    one = NoiseScale(1, 2)
    one.add(10.0, 6.0)
    assert (one.estimate().scale, one.estimate().high) == (4.0, math.inf) and "one step" in one.estimate().word
    for _ in range(3):
        one.add(10.0, 12.0)
    assert one.estimate().scale == 0 and "no noise" in one.estimate().word


def test_what_gives_no_number_is_refused():
    for sizes in ((0, 4), (4, 4), (8, 4)):
        with pytest.raises(RefusedError, match="two batch sizes"):
            NoiseScale(*sizes)
    with pytest.raises(RefusedError, match="fade"):
        NoiseScale(1, 2, fade=0)
    scale = NoiseScale(1, 2)
    with pytest.raises(RefusedError, match="no step"):
        scale.estimate()
    with pytest.raises(RefusedError, match="nan"):
        scale.add(math.nan, 1.0)
    scale.add(1.0, 0.8)
    assert scale.estimate().steps == 1
    with pytest.raises(RefusedError, match="confidence"):
        scale.estimate(95)


@pytest.mark.parametrize("freedom, table", [(4, 2.776), (9, 2.262), (30, 2.042), (1000, 1.962)])
def test_student_t_against_the_table(freedom, table):
    assert student_t(0.95, freedom) == pytest.approx(table, rel=0.01)


def _loss(model, part):
    return torch.nn.functional.cross_entropy(model(part.x), part.y)


def _train(group, steps, per_rank, images):
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch, again = TwoBatches(group, per_rank), TwoBatches(group, per_rank)
    pairs = []
    data = image_batches(images, per_rank, rank=group.rank, world=group.size)
    for _, part in zip(range(steps), data, strict=False):
        optimizer.zero_grad()
        _loss(model, part).backward()
        own = [p.grad.clone() for p in model.parameters()]
        pairs.append(two_norms(own, group))
        again.before(model.parameters())
        watch.average(model.parameters())
        again.after(model.parameters())
        assert all(torch.equal(a, p.grad) for a, p in zip(own, model.parameters(), strict=True))
        optimizer.step()
    assert (watch.noise.signal, watch.noise.noise) == pytest.approx((again.noise.signal, again.noise.noise), rel=1e-9)
    return pairs, watch.noise.estimate(), flat_gradient(model)


@pytest.mark.ranks
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_norms_of_a_data_parallel_run_are_those_of_one_device(ranks):
    steps, per_rank = 6, 32
    results = labkit.launch(_train, ranks, steps, per_rank, digits()[0]).results
    model = MLP()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = NoiseScale(per_rank, per_rank * ranks)
    for step, part in zip(range(steps), image_batches(digits()[0], per_rank * ranks), strict=False):
        small = []
        for rank in range(ranks):
            mine = slice(rank * per_rank, (rank + 1) * per_rank)
            optimizer.zero_grad()
            _loss(model, type(part)(part.x[mine], part.y[mine])).backward()
            small.append(squared_norm(p.grad for p in model.parameters()))
        optimizer.zero_grad()
        _loss(model, part).backward()
        large = squared_norm(p.grad for p in model.parameters())
        expected.add(fmean(small), large)
        for pairs, _, _ in results:
            assert pairs[step] == (pytest.approx(fmean(small), rel=1e-5), pytest.approx(large, rel=1e-5))
        optimizer.step()
    for _, found, gradient in results:
        assert found.scale == pytest.approx(expected.estimate().scale, rel=1e-3)
        assert found == results[0][1]
        torch.testing.assert_close(gradient, flat_gradient(model), rtol=0, atol=1e-6)


def _train_in_buckets(group, steps, per_rank, images):
    watch, again = TwoBatches(group, per_rank), TwoBatches(group, per_rank)
    model, plain = DataParallel(MLP(), group, first_bucket_bytes=4000, bucket_bytes=40_000, hook=watch.hook), MLP()
    for _, part in zip(range(steps), image_batches(images, per_rank, rank=group.rank, world=group.size), strict=False):
        for each in (model, plain):
            each.zero_grad()
            _loss(each, part).backward()
        watch.count()
        again.average(plain.parameters())
        with torch.no_grad():
            for p, q in zip(model.parameters(), plain.parameters(), strict=True):
                p.sub_(p.grad, alpha=0.1)
                q.sub_(q.grad, alpha=0.1)
    assert len(model.buckets) > 1
    return [(w.noise.signal, w.noise.noise, w.noise.steps) for w in (watch, again)]


@pytest.mark.ranks
def test_the_hook_of_data_parallel_takes_the_same_norms_bucket_by_bucket():
    for in_buckets, at_once in labkit.launch(_train_in_buckets, 3, 4, 16, digits()[0]).results:
        assert in_buckets == pytest.approx(at_once, rel=1e-4)
        assert in_buckets[2] == 4


@pytest.mark.ranks
def test_a_world_of_one_and_a_forgotten_norm_are_refused():
    def alone(group):
        with pytest.raises(RefusedError, match="two ranks or more"):
            TwoBatches(group, 4)

    def forgot(group):
        with pytest.raises(RefusedError, match="without before"):
            TwoBatches(group, 4).after([torch.zeros(1)])
        with pytest.raises(RefusedError, match="without a bucket"):
            TwoBatches(group, 4).count()

    labkit.launch(alone, 1)
    labkit.launch(forgot, 2)
