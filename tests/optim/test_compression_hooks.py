"""Compression as hooks of `DataParallel`: bytes as by the formula, the same bits everywhere, and nothing lost."""

from __future__ import annotations

import pytest
import torch
from leftovers import NEVER
from slices import few
from torch import nn

import labkit
from labkit import Link, Network, RankFailed, cost
from labkit.models import seeded
from labkit.optim.compression import (
    DGC,
    Block8,
    Compressed,
    MajorityVote,
    PowerSGD,
    Quantize,
    RandomK,
    ScaledSign,
    TopK,
    ternary,
)
from labkit.parallel import DataParallel
from labkit.wire.errors import RefusedError

SHAPES = {"2.weight": (5, 16), "2.bias": (5,), "1.weight": (1,), "0.weight": (16, 24), "0.bias": (16,)}
TENTH, RING = 0.1, {"algorithm": "ring"}


def tenth(n):
    return -(-n // 10)


def gathered(payload):
    """The bytes of each rank for parameters of these numbers of elements, each at most as large as it is."""
    return lambda ns, size: [cost.gathered_payload_bytes(sum(min(4 * n, payload(n)) for n in ns), size)] * size


def summed(ns, size):
    return cost.ring_all_reduce_bytes_by_rank(sum(min(n, tenth(n)) for n in ns), 4, size)


HOOKS = {  # what makes the hook, and bytes by rank of a bucket whose parameters have these numbers of elements
    "top-k": (lambda: Compressed(TopK(TENTH)), gathered(lambda n: cost.top_k_bytes(tenth(n)))),
    "random-k": (lambda: Compressed(RandomK(TENTH), **RING), summed),
    "qsgd": (lambda: Compressed(Quantize(15), feedback=False), gathered(lambda n: cost.quantized_bytes(n, 15))),
    "ternary": (lambda: Compressed(ternary(), feedback=False), gathered(lambda n: cost.quantized_bytes(n, 1))),
    "sign": (lambda: Compressed(ScaledSign()), gathered(cost.sign_bytes)),
    "block8": (lambda: Compressed(Block8(64)), gathered(lambda n: cost.block8_bytes(n, 64))),
    "dgc": (lambda: DGC([TENTH]), gathered(lambda n: cost.top_k_bytes(tenth(n)))),
    "vote": (MajorityVote, lambda ns, size: cost.majority_vote_bytes_by_rank(sum(ns), size)),
    "power": (lambda: PowerSGD(4, **RING), None),
}


def net():
    with seeded(0):
        return nn.Sequential(nn.Linear(24, 16), nn.PReLU(), nn.Linear(16, 5))


def backward(model, group, step):
    dice = torch.Generator().manual_seed(100 * group.rank + step)
    model.zero_grad()
    model(torch.randn(4, 24, generator=dice)).square().sum().backward()


def equal(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


@pytest.mark.ranks
@pytest.mark.parametrize("size", few([3, 1, 2, 5], 2))
def test_bytes_of_a_step_are_those_of_the_formula_and_all_ranks_hold_the_same_bits(size):
    def work(group, first_bytes):
        found = {}
        for n, (name, (make, _)) in enumerate(HOOKS.items()):
            model = DataParallel(net(), group, hook=make(), first_bucket_bytes=first_bytes, rebuild=False)
            backward(model, group, 0)
            group.step(n + 1)
            backward(model, group, 1)
            found[name] = [p.grad.clone() for p in model.parameters()]
            group.step(0)
        return found, [b.names for b in model.buckets]

    run = labkit.launch(work, size, 300, transport="local")
    buckets = run.results[0][1]
    assert len(buckets) == 2
    sent = [[0] * size for _ in range(len(HOOKS) + 1)]
    for m in run.trace.sends:
        sent[m.step][m.src] += m.nbytes
    for n, (name, (_, formula)) in enumerate(HOOKS.items()):
        expected = [0] * size
        for names in buckets:
            shapes = [SHAPES[parameter] for parameter in names]
            form = formula or (lambda _, size, s=shapes: cost.power_sgd_bytes_by_rank(s, 4, size))
            by_rank = form([torch.Size(shape).numel() for shape in shapes], size)
            expected = [a + b for a, b in zip(expected, by_rank, strict=True)]
        assert sent[n + 1] == expected, name
        assert any(sent[n + 1]) == (size > 1)
        for found, _ in run.results:
            assert equal(found[name], run.results[0][0][name]), name


def one_bucket(group, hook, inputs):
    """Give the hook gradients of two parameters, step by step: what came out, and what is kept after each step."""
    out, kept = [], [torch.zeros(120)]
    for x in inputs:
        flat = x.clone()
        hook.bucket(flat, {"a": flat[:90].view(9, 10), "b": flat[90:]}, group).wait()
        residual = hook.kept["residual"]
        out.append(flat)
        kept.append(torch.cat([residual[n].flatten().clone() if n in residual else torch.zeros(30) for n in "ab"]))
    return out, kept


FEEDBACK = {name: make for name, (make, _) in HOOKS.items() if name not in ("qsgd", "ternary", "vote", "dgc")}


@pytest.mark.ranks
def test_what_was_sent_and_what_is_kept_are_what_came_in():
    """To the bit on one rank for top-k and random-k; else to 2^-23 of what is added up, on each rank."""

    def work(group):
        dice = torch.Generator().manual_seed(group.rank)
        inputs = torch.randn(5, 120, generator=dice)
        return inputs, {name: one_bucket(group, make(), inputs) for name, make in FEEDBACK.items()}

    for size in (1, 3):
        results = labkit.launch(work, size, transport="local").results
        for name in FEEDBACK:
            assert any(results[0][1][name][1][-1] != 0), name  # something was kept
            for step in range(5):
                came = [inputs[step] + found[name][1][step] for inputs, found in results]
                kept = [found[name][1][step + 1] for _, found in results]
                out = results[0][1][name][0][step]
                if size == 1 and name in ("top-k", "random-k"):
                    assert torch.equal(out + kept[0], came[0]), name
                else:
                    off = (out.double() + sum(k.double() for k in kept) - sum(c.double() for c in came)).abs()
                    scale = sum(c.abs() for c in came) + out.abs() + sum(k.abs() for k in kept)
                    assert (off <= 2**-23 * size * (scale if name != "power" else 10 * scale.max())).all(), name


@pytest.mark.ranks
def test_messages_are_under_way_while_the_rank_computes():
    """On the virtual clock: the first message of a bucket is hidden, the second one of votes and of Q is not."""
    latency, bandwidth, seconds = 10e-6, 1e7, 20e-3
    names = ("top-k", "random-k", "vote", "power")

    def work(group):
        for n, name in enumerate(names):
            group.step(n + 1)
            flat = torch.ones(6400)
            handle = HOOKS[name][0]().bucket(flat, {"w": flat.view(80, 80)}, group)
            group.compute(seconds)
            handle.wait()
        group.step(0)

    link = Link(bandwidth, latency)
    run = labkit.launch(work, 2, clock="virtual", network=Network(2, 1, link, link))
    took = {name: run.trace.step_breakdown(n + 1)[0]["total"] for n, name in enumerate(names)}
    shown = {"top-k": 0, "random-k": 0, "vote": latency + 400 / bandwidth,
             "power": cost.ring_all_reduce_time(80 * 4 * 4, 2, latency, 1 / bandwidth)}  # fmt: skip
    for name, more in shown.items():
        assert took[name] == pytest.approx(seconds + more, rel=1e-6), name


@pytest.mark.ranks
@pytest.mark.parametrize("size", few([5, 2, 3]))
def test_a_vote_takes_two_latencies_on_any_number_of_ranks(size):
    def work(group):
        flat = torch.ones(80)
        MajorityVote().bucket(flat, {"w": flat}, group).wait()
        return group.context.clock_here().now() / 1e9

    took = labkit.launch(work, size, clock="virtual", network=Network(size, 1, *[Link(1e9, 0.02)] * 2)).results
    assert took == pytest.approx([0.04] * size, rel=1e-3)


@pytest.mark.ranks
def test_buckets_made_anew_keep_what_was_kept():
    class Crossed(nn.Module):
        """Gradients arrive otherwise than in the reverse order of the parameters."""

        def __init__(self):
            super().__init__()
            with seeded(0):
                self.a, self.b, self.c = (nn.Linear(20, 20, bias=False) for _ in range(3))

        def forward(self, x):
            return self.a(self.c(self.b(x)))

    def work(group):
        return [[trained(group, make(), rebuild) for rebuild in (True, False)] for make in makes]

    def trained(group, hook, rebuild):
        model = DataParallel(Crossed(), group, hook=hook, rebuild=rebuild, bucket_bytes=3000, first_bucket_bytes=9)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            model.zero_grad()
            x = torch.randn(3, 20, generator=torch.Generator().manual_seed(10 * group.rank + step))
            model(x).square().sum().backward()
            sgd.step()
        return [b.names for b in model.buckets], torch.cat([p.detach().flatten() for p in model.parameters()])

    makes = [HOOKS[name][0] for name in ("dgc", "power", "random-k")]
    for (new, one), (old, other) in labkit.launch(work, 2).results[0]:
        assert new != old
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.ranks
def test_a_hook_goes_on_from_its_saved_state():
    def work(group):
        for make in (HOOKS["dgc"][0], HOOKS["random-k"][0], HOOKS["qsgd"][0], HOOKS["power"][0]):
            inputs = torch.randn(4, 120, generator=torch.Generator().manual_seed(group.rank))
            through, first, second, third = (make() for _ in range(4))

            def outs(hook, some):
                found = []
                for x in some:
                    flat = x.clone()
                    hook.bucket(flat, {"a": flat[:90].view(9, 10), "b": flat[90:]}, group).wait()
                    found.append(flat)
                return found

            expected = outs(through, inputs)
            outs(first, inputs[:2])
            saved = first.state_dict()
            outs(first, inputs[2:])  # nobody who goes on may touch what was saved
            for hook in (second, third):
                hook.load_state_dict(saved)
                assert equal(outs(hook, inputs[2:]), expected[2:])
            assert not equal(outs(make(), inputs[2:]), expected[2:])

    labkit.launch(work, 3, transport="local")


@pytest.mark.ranks
def test_what_was_left_of_a_parameter_arrives_though_nobody_uses_it_now():
    class Either(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False)

        def forward(self, x, both):
            return self.a(x) + self.b(x) if both else self.a(x)

    def work(group):
        hook = Compressed(TopK(0.25))
        model = DataParallel(Either(), group, hook=hook, find_unused_parameters=True)
        x = torch.arange(1.0, 11) * (group.rank + 1)
        whole = x.expand(10, 10) / group.size  # the gradient of b, this rank's share
        arrived = torch.zeros(10, 10)
        for step in range(6):
            model.zero_grad()
            model(x[None], step == 0).sum().backward()
            arrived += 0 if model.module.b.weight.grad is None else model.module.b.weight.grad
        return arrived, whole, model.module.b.weight.grad

    results = labkit.launch(work, 2).results
    for arrived, _, last in results:
        assert torch.equal(arrived, results[0][1] + results[1][1]) and last is None


@pytest.mark.ranks
def test_nan_is_refused_by_parameter_and_rank_unless_it_may_pass():
    def work(group, hook):
        model = DataParallel(net(), group, hook=hook)
        x = torch.ones(2, 24)
        (model(x).sum() * (float("nan") if group.rank == 1 else 1)).backward()

    for make in (lambda: Compressed(TopK(TENTH)), lambda: PowerSGD(2)):
        with pytest.raises(RankFailed) as caught:
            labkit.launch(work, 3, make(), timeout=NEVER)
        assert "rank 1" in str(caught.value) and "'2.bias'" in str(caught.value) and "NaN" in str(caught.value)
    labkit.launch(work, 2, MajorityVote(check_nan=False))


@pytest.mark.ranks
def test_ranks_with_different_hooks_and_a_hook_of_another_model_are_refused():
    def work(group):
        top = TopK(0.1 if group.rank else 0.2)
        for hook in (Compressed(top), PowerSGD(2 + group.rank), DGC([0.1 + group.rank / 9])):
            with pytest.raises(RefusedError, match=rf"rank 1: option hook.*{type(hook).__name__}"):
                DataParallel(net(), group, hook=hook)
        hook = HOOKS["top-k"][0]()
        backward(DataParallel(net(), group, hook=hook), group, 0)
        model = DataParallel(nn.Sequential(nn.Linear(24, 3)), group, hook=hook)
        with pytest.raises(RefusedError, match=r"residual kept for '0.*another model"):
            backward(model, group, 0)

    labkit.launch(work, 2, timeout=20)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Compressed(RandomK(0.1, scale=True)), "grow without end"),
        (lambda: DGC([]), "at least one share"),
        (lambda: DGC([0.5, 0.0]), "a share above 0"),
        (lambda: DGC(stage_steps=0), "stage_steps=0"),
        (lambda: DGC(momentum=1.0), "below 1"),
        (lambda: DGC(clip=0.0), "a norm above 0"),
        (lambda: PowerSGD(0), "rank=0"),
        (lambda: PowerSGD(min_compression_rate=-1), "min_compression_rate=-1"),
    ],
)
def test_options_that_cannot_be_are_refused(make, words):
    with pytest.raises(RefusedError, match=words):
        make()
