"""Numbers as bytes on the wire: codecs, and a sum of gradients in 8 bits that is added up in 32."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from slices import few
from torch import nn

import labkit
from labkit import Link, Network, RankFailed, cost
from labkit.data import batches, text
from labkit.models import GPT, GPTConfig, next_token_loss, seeded
from labkit.optim.precision import BF16, E4M3, E5M2, Codec, Format, QuantizedAllReduce, Wire, named
from labkit.parallel import DataParallel, bf16_hook
from labkit.wire.errors import RefusedError

CODECS = [Codec(), Codec("E5M2", "row"), Codec("E4M3", 32, "e8m0-up"), Codec("BF16"), Codec(Format("E3M4", 3, 4), 5)]
SHAPES = [(0, 5), (1, 0), (3, 0), (1, 1), (2, 129), (3, 128), (5, 31)]
COUNTS = (0, 1, 2, 7, 300, 1003)  # numbers of a bucket: fewer than ranks, and parts that are not even


def name(codec):
    return f"{named(codec.format).name}-{codec.per}-{codec.scales}"


def form(codec):
    """The arguments of the closed forms."""
    return {"bits": named(codec.format).bits, "per": codec.per, "scale_bytes": codec.scale_bytes}


def there_and_back(codec, x):
    """A flat tensor as one row, encoded and decoded."""
    return codec.decode(codec.encode(x[None]), len(x))[0]


@pytest.mark.parametrize("codec", CODECS, ids=name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_takes_the_bytes_of_the_formula_and_comes_back(codec, shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * torch.tensor(1e-6)
    sent = codec.encode(x)
    assert sent.dtype == torch.uint8 and sent.shape == (shape[0], cost.coded_bytes(shape[1], **form(codec)))
    back, format = codec.decode(sent, shape[1]), named(codec.format)
    assert back.dtype == torch.float32 and back.shape == x.shape
    # half a step of the number itself, or of the smallest normal number where one scale serves many
    smallest = 2 * format.smallest / format.max * x.abs().max() if x.numel() and format != BF16 else 0
    assert ((back - x).abs() <= x.abs() * format.epsilon / 2 * 1.0001 + smallest).all()
    for r in range(shape[0]):
        assert torch.equal(codec.encode(x[r : r + 1]), sent[r : r + 1])  # whatever lies beside it


def test_a_row_of_zeros_stays_zeros_and_outliers_cost_their_block_only():
    assert torch.equal(there_and_back(Codec(), torch.zeros(300)), torch.zeros(300))
    x = torch.full((256,), 1e-6)
    x[200] = 1e6
    blocks, row = there_and_back(Codec("E4M3", 128), x), there_and_back(Codec("E4M3", "row"), x)
    assert torch.equal(blocks[:128], x[:128]) and blocks[128:200].count_nonzero() == 0
    assert row.count_nonzero() == 1


def test_closed_forms_by_hand():
    assert cost.coded_bytes(10**6) == 10**6 + 4 * 7813
    assert cost.coded_bytes(7, 16, "row", 0) == 14 and cost.coded_bytes(5, 4, 2, 1) == 3 + 3
    assert cost.coded_bytes(0) == cost.coded_bytes(0, per="row") == 0
    # 5 numbers on 3 ranks: parts of 2, 2, 1 weigh 6, 6, 5 bytes; a rank sends 17 - its own, and 17 - the next one's
    assert cost.coded_all_reduce_bytes_by_rank(5, 3) == [11 + 11, 11 + 12, 12 + 11]
    assert cost.coded_all_gather_bytes_by_rank([5, 0, 1], 3) == [11 + 5, 12 + 5, 11 + 0]
    share = sum(cost.coded_all_reduce_bytes_by_rank(10**6, 8)) / sum(cost.ring_all_reduce_bytes_by_rank(10**6, 4, 8))
    assert share == pytest.approx(0.25 * (1 + 4 / 128), rel=1e-3)
    # rows of 6 numbers: 10 bytes there, 12 back; 1 count of 8 bytes for each of the other rank's experts
    assert cost.coded_dispatch_bytes_by_rank([[9, 2], [3, 9]], 6, 2) == [8 + 20 + 36, 8 + 30 + 24]
    assert cost.coded_dispatch_bytes_by_rank([[9, 2], [3, 9]], 6, 2, passes=2) == [8 + 40 + 72, 8 + 60 + 48]
    for wrong in (lambda: cost.coded_bytes(-1), lambda: cost.coded_bytes(5, per=0), lambda: cost.coded_bytes(5, 0),
                  lambda: cost.coded_bytes(5, scale_bytes=2), lambda: cost.coded_bytes(5, per="tensor"),
                  lambda: cost.coded_all_reduce_bytes_by_rank(5, 0)):  # fmt: skip
        with pytest.raises(ValueError, match="must be"):
            wrong()


@pytest.mark.parametrize(("made", "words"), [
    (lambda: Codec("FP16"), "FP16.*a format of 8 bits is sent with scales"),
    (lambda: Codec("E2M1"), "E2M1.*Take E4M3, E5M2 or BF16"),
    (lambda: Codec("E4M4"), "format 'E4M4' is unknown"),
    (lambda: Codec(per=0), "per=0.*at least 1"),
    (lambda: Codec(per="tensor"), "per='tensor'.*'row', or the length"),
    (lambda: Codec(per=True), "per=True"),
    (lambda: Codec(scales="float16"), "scales='float16'"),
    (lambda: Codec().encode(torch.tensor([[1.0, torch.nan]])), "nan"),
    (lambda: Wire("E4M3"), "Wire.activations='E4M3'.: a Codec"),
    (lambda: Wire(gradients=None), "Wire.gradients=None.: a Codec"),
    (lambda: QuantizedAllReduce("E4M3"), "'E4M3'.: a Codec"),
    (lambda: QuantizedAllReduce(rounding="zero"), "rounding='zero'.: one of nearest, stochastic"),
])  # fmt: skip
def test_what_cannot_be_is_refused(made, words):
    with pytest.raises(RefusedError, match=words):
        made()


# -- the hook --------------------------------------------------------------------------------------------------


def inputs(rank, count):
    return torch.randn(count, generator=torch.Generator().manual_seed(1000 * rank + count)) * 10.0 ** (rank - 3)


@pytest.mark.ranks
@pytest.mark.parametrize("size", few([3, 1, 2, 4, 5], 3))
def test_the_sum_is_that_of_the_definition_to_the_bit_and_its_bytes_those_of_the_formula(size):
    cases = [(codec, count) for codec in CODECS for count in COUNTS]

    def work(group):
        found = []
        for n, (codec, count) in enumerate(cases):
            flat = inputs(group.rank, count)
            group.step(n + 1)
            QuantizedAllReduce(codec).bucket(flat, {"w": flat}, group).wait()
            group.step(0)
            found.append(flat)
        return found

    run = labkit.launch(work, size, transport="local")
    sent = [[0] * size for _ in range(len(cases) + 1)]
    for m in run.trace.sends:
        sent[m.step][m.src] += m.nbytes
    for n, (codec, count) in enumerate(cases):
        assert sent[n + 1] == cost.coded_all_reduce_bytes_by_rank(count, size, **form(codec)), (name(codec), count)
        by_rank = [inputs(rank, count).tensor_split(size) for rank in range(size)]
        parts = []
        for part in zip(*by_rank, strict=True):
            total, *others = (there_and_back(codec, x) for x in part)
            for x in others:
                total = total + x
            parts.append(there_and_back(codec, total))
        assert all(torch.equal(found[n], torch.cat(parts)) for found in run.results), (name(codec), count)


@pytest.mark.ranks
def test_bf16_on_the_wire_and_float32_in_the_sum_loses_nothing_where_a_ring_in_bf16_does():
    """1 + 4 * 2^-9 is a number of BF16, and 1 + 2^-9 is not."""

    def work(group):
        flat = torch.full((5,), 1.0 if group.rank == 0 else 2.0**-9)
        ring = flat.clone()
        QuantizedAllReduce(Codec("BF16")).bucket(flat, {"w": flat}, group).wait()
        bf16_hook(ring, group, "ring").wait()
        return flat, ring

    for flat, ring in labkit.launch(work, 5, transport="local").results:
        assert torch.equal(flat, torch.full((5,), 1 + 2.0**-7))
        assert (ring != flat).any()


def test_stochastic_rounding_of_bf16_has_the_right_mean():
    x = torch.full((1, 4000), 1 + 2.0**-9)
    for rounding, values in (("nearest", [1]), ("stochastic", [1, 1 + 2.0**-7])):
        back = Codec("BF16").decode(Codec("BF16").encode(x, rounding, torch.Generator().manual_seed(0)), 4000)
        assert back.unique().tolist() == values
    assert back.mean().item() == pytest.approx(1 + 2.0**-9, abs=3e-4)


@pytest.mark.ranks
def test_stochastic_rounding_has_the_right_mean_and_its_own_numbers_on_each_rank_and_in_each_step():
    x = torch.full((4000,), 1.03)
    x[::100] = 448.0  # the scale is 1, and 1.03 lies between 1 and 1.125

    def work(group):
        found = []
        for seed in (0, 0, 1):
            hook = QuantizedAllReduce(Codec("E4M3", 100), "stochastic", seed)
            for _ in range(2):
                flat = x.clone()
                hook.bucket(flat, {"w": flat}, group).wait()
                found.append(flat)
        opposed = x * (-1) ** group.rank
        QuantizedAllReduce(Codec("E4M3", 100), "stochastic").bucket(opposed, {"w": opposed}, group).wait()
        return found, opposed

    for size in (1, 2):
        (first, second, again, _, other, _), opposed = labkit.launch(work, size, transport="local").results[0]
        assert torch.equal(first, again) and not torch.equal(first, second) and not torch.equal(first, other)
        small = x < 2
        assert first[small].mean().item() == pytest.approx(1.03 * size, abs=5e-3 * size)  # nearest is off by 3e-2
        assert size == 1 or 0.2 < opposed[small].count_nonzero() / small.sum() < 0.5  # 0 if both drew alike


@pytest.mark.ranks
def test_a_hook_goes_on_from_its_saved_state():
    def step(hook, group):
        flat = inputs(0, 300)
        hook.bucket(flat, {"w": flat}, group).wait()
        return flat

    def work(group):
        first, second = (QuantizedAllReduce(Codec("E4M3", 100), "stochastic") for _ in range(2))
        one = step(first, group)
        second.load_state_dict(first.state_dict())
        return one, step(first, group), step(second, group)

    one, two, again = labkit.launch(work, 2, transport="local").results[0]
    assert torch.equal(two, again) and not torch.equal(one, two)


@pytest.mark.ranks
def test_the_parts_travel_while_the_rank_computes_and_the_sums_after_it():
    """On the virtual clock, two ranks and 6,400 numbers: 3,200 codes and 25 scales are gathered at the end."""
    latency, bandwidth, seconds = 10e-6, 1e7, 20e-3

    def work(group):
        flat = torch.ones(6400)
        group.step(1)
        handle = QuantizedAllReduce().bucket(flat, {"w": flat}, group)
        group.compute(seconds)
        handle.wait()
        group.step(0)

    link = Link(bandwidth, latency)
    run = labkit.launch(work, 2, clock="virtual", network=Network(2, 1, link, link))
    expected = seconds + latency + (3200 + 25 * 4) / bandwidth
    assert run.trace.step_breakdown(1)[0]["total"] == pytest.approx(expected, rel=1e-6)


CONFIG = GPTConfig(context=16, layers=1, width=16, heads=2)


def losses(group, hook, steps=12):
    model = DataParallel(GPT(CONFIG), group, hook=hook, first_bucket_bytes=3000, bucket_bytes=3000)
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for x, y in islice(batches(text().train, 4, CONFIG.context, 0, group.rank, group.size), steps):
        optimizer.zero_grad()
        loss = next_token_loss(model(x), y)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found, [p.detach() for p in model.parameters()], len(model.buckets)


@pytest.mark.ranks
def test_data_parallel_trains_as_with_whole_gradients():
    """All ranks hold the same weights, and the loss is within 1 % of what it is with FP32 after 12 steps."""

    def work(group):
        hooks = (None, QuantizedAllReduce(), QuantizedAllReduce(Codec("E5M2", "row"), "stochastic"))
        return [losses(group, hook) for hook in hooks]

    results = labkit.launch(work, 3, transport="local").results
    for found, whole in zip(results, (r[0] for r in results), strict=True):
        assert whole[2] > 2 and whole[0][-1] < whole[0][0] - 0.5
        for n in (1, 2):
            assert found[n][0][-1] == pytest.approx(whole[0][-1], rel=1e-2) and found[n][0] != whole[0]
            assert all(torch.equal(a, b) for a, b in zip(found[n][1], results[0][n][1], strict=True))


@pytest.mark.ranks
def test_ranks_that_bring_different_codecs_are_refused_on_each():
    hooks = [QuantizedAllReduce(), QuantizedAllReduce(Codec("E5M2"))]

    def work(group):
        with pytest.raises(RefusedError, match="option hook.*E5M2"):
            DataParallel(nn.Linear(2, 2), group, hook=hooks[group.rank])
        with seeded(0):
            module = nn.Linear(2, 2)
        DataParallel(module, group, hook=QuantizedAllReduce(Codec(E5M2)))
        DataParallel(module, group, hook=QuantizedAllReduce(Codec(E4M3)))
        return True

    assert labkit.launch(work, 2, transport="local").results == [True, True]


@pytest.mark.ranks
def test_a_gradient_that_is_no_number_is_refused_by_name():
    def work(group):
        model = DataParallel(nn.Linear(2, 2), group, hook=QuantizedAllReduce())
        (model(torch.ones(1, 2)) * (torch.nan if group.rank == 1 else 1)).sum().backward()

    with pytest.raises(RankFailed, match="rank 1.*weight|rank 1.*bias"):
        labkit.launch(work, 2, transport="local", timeout=30)
