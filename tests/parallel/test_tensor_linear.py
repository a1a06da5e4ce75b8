"""Column- and row-parallel layers against `nn.Linear`: values, gradients, what is sent and kept, what is refused."""

from __future__ import annotations

import pytest
import torch
from slices import LONG, few
from torch import nn

from labkit import Link, Network, RankFailed, cost, launch
from labkit.parallel import ColumnParallelLinear, RowParallelLinear, kernels
from labkit.parallel.tensor.whole import whole_gradients, whole_state

pytestmark = pytest.mark.ranks

B, T, I, O = 2, 7, 12, 24  # noqa: E741
SIZES = [1, 2, 3, 4] if LONG else [3]


def linear(seed=1, bias=True, i=I, o=O):
    torch.manual_seed(seed)
    layer = nn.Linear(i, o, bias=bias)
    if bias:
        nn.init.normal_(layer.bias)
    return layer


def numbers(*shape, seed=5):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def plain(layer, x, gradient):
    """(output, {gradient of x and of each parameter})."""
    x = x.clone().requires_grad_()
    y = layer(x)
    y.backward(gradient)
    return y.detach(), {"x": x.grad} | {name: p.grad for name, p in layer.named_parameters()}


def furthest(a, b):
    assert a.keys() == b.keys(), a.keys() ^ b.keys()
    assert all(a[k].shape == b[k].shape for k in a), [(k, a[k].shape, b[k].shape) for k in a]
    return max(float((a[k] - b[k]).abs().max()) for k in a)


def own(x, group, dim):
    return x.tensor_split(group.size, dim)[group.rank]


@pytest.mark.parametrize("size", SIZES)
def test_both_layers_are_the_linear_layer_that_they_are_parts_of(size):
    x, gradient = numbers(B, T, I), numbers(B, T, O, seed=6)

    def on_rank(group):
        found = {}
        for bias in (True, False):
            for overlap in (True, False):
                layer = ColumnParallelLinear.of(linear(bias=bias), group, overlap=overlap)
                y, g = plain(layer, x, own(gradient, group, 2).contiguous())
                off = y - own(plain(linear(bias=bias), x, gradient)[0], group, 2)
                found["column", bias, overlap] = [off.abs().max(), {"x": g["x"]} | whole_gradients(layer, group)]
            joined = ColumnParallelLinear.of(linear(bias=bias), group, gather_output=True)
            y, g = plain(joined, x, gradient)
            found["joined", bias] = [y, {"x": g["x"]} | whole_gradients(joined, group)]
            row = RowParallelLinear.of(linear(bias=bias), group)
            y, g = plain(row, own(x, group, 2), gradient)
            found["row", bias] = [y, whole_gradients(row, group), g["x"]]
            cut = RowParallelLinear.of(linear(bias=bias), group, input_is_split=False)
            y, g = plain(cut, x, gradient)
            found["cut", bias] = [y, {"x": g["x"]} | whole_gradients(cut, group)]
        return found

    wanted = {bias: plain(linear(bias=bias), x, gradient) for bias in (True, False)}
    for rank, found in enumerate(launch(on_rank, size, transport="local").results):
        for (kind, bias, *_), (y, gradients, *rest) in found.items():
            of_x = wanted[bias][1]["x"]
            if rest:
                assert (rest[0] - of_x.tensor_split(size, 2)[rank]).abs().max() < 1e-6
                gradients["x"] = of_x
            assert furthest(gradients, wanted[bias][1]) < 5e-6, kind
            off = y if kind == "column" else (y - wanted[bias][0]).abs().max()
            assert off < 1e-6, kind


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("t", [8, 7, 2])
def test_sequence_parallel_layers_gather_and_scatter_positions(size, t):
    """Two layers with a pair of outputs between, as in a block; 7 positions and 2 divide by few of the sizes."""
    x, gradient = numbers(B, t, I), numbers(B, t, I, seed=6)

    def on_rank(group):
        found = {}
        for again in (True, False):
            for overlap in (True, False):
                pair = nn.ModuleList([
                    ColumnParallelLinear.of(linear(), group, sequence=True, overlap=overlap, gather_again=again),
                    RowParallelLinear.of(linear(2, i=O, o=I), group, sequence=True),
                ])  # fmt: skip
                part = own(x, group, 1).clone().requires_grad_()
                y = pair[1](torch.tanh(pair[0](part, t)))
                y.backward(own(gradient, group, 1))
                found[again, overlap] = [y.detach(), part.grad, whole_gradients(pair, group)]
        return found

    whole = nn.Sequential(linear(), nn.Tanh(), linear(2, i=O, o=I))
    y, wanted = plain(whole, x, gradient)
    of_x = wanted.pop("x")
    wanted = {name.replace("2.", "1."): g for name, g in wanted.items()}
    results = launch(on_rank, size, transport="local").results
    for case in results[0]:
        parts = [found[case] for found in results]
        assert (torch.cat([p[0] for p in parts], 1) - y).abs().max() < 1e-6
        assert (torch.cat([p[1] for p in parts], 1) - of_x).abs().max() < 1e-6
        for part in parts:
            assert furthest(part[2], wanted) < 5e-6, case


def test_new_layers_are_parts_of_the_layer_that_would_have_been_drawn():
    def on_rank(group):
        torch.manual_seed(4)
        layers = nn.ModuleList([
            ColumnParallelLinear(I, O, group), RowParallelLinear(O, I, group, bias=False),
            ColumnParallelLinear(I, 10, group, uneven=True), ColumnParallelLinear(I, 24, group, sections=(12, 6, 6)),
        ])  # fmt: skip
        return [p.shape for p in layers.parameters()], whole_state(layers, group)

    torch.manual_seed(4)
    drawn = nn.ModuleList([nn.Linear(I, O), nn.Linear(O, I, bias=False), nn.Linear(I, 10), nn.Linear(I, 24)])
    for rank, (shapes, whole) in enumerate(launch(on_rank, 3, transport="local").results):
        assert shapes == [(8, I), (8,), (I, 8), (4 if rank == 0 else 3, I), (4 if rank == 0 else 3,), (8, I), (8,)]
        assert all(torch.equal(whole[name], p) for name, p in drawn.state_dict().items())


def test_sections_are_cut_each_by_itself():
    def on_rank(group):
        layer = ColumnParallelLinear.of(linear(), group, sections=(12, 6, 6))
        return layer(numbers(B, T, I)).detach()

    q, k, v = linear()(numbers(B, T, I)).split((12, 6, 6), -1)
    for rank, found in enumerate(launch(on_rank, 3, transport="local").results):
        mine = torch.cat([x.tensor_split(3, -1)[rank] for x in (q, k, v)], -1)
        assert (found - mine).abs().max() < 1e-6


def test_a_bias_after_the_sum_is_added_once():
    def on_rank(group):
        layer = RowParallelLinear.of(linear(), group)
        return layer(torch.zeros(1, I // group.size)).detach()

    for size in SIZES:
        for y in launch(on_rank, size, transport="local").results:
            assert torch.equal(y[0], linear().bias)


@pytest.mark.parametrize("t", [8, 7])
def test_what_is_sent_is_one_collective_of_the_activations(t):
    def on_rank(group):
        column = ColumnParallelLinear(I, O, group, algorithm="ring")
        row = RowParallelLinear(O, I, group, algorithm="ring")
        for step, sequence in ((1, False), (2, True)):
            column.sequence = row.sequence = sequence
            x = numbers(B, t, I) if not sequence else own(numbers(B, t, I), group, 1)
            group.step(step)
            y = row(torch.tanh(column(x.clone().requires_grad_(), t)))
            group.step(10 + step)
            y.sum().backward()

    size = 3
    run = launch(on_rank, size, transport="local")
    calls = {}
    for c in run.trace.collectives():
        if c.rank == 0 and c.step:
            calls.setdefault(c.step, []).append((c.name, c.nbytes))
    whole, mine, bias = 4 * B * t * I, 4 * B * -(-t // size) * I, 4 * I
    assert calls == {
        1: [("all_reduce", whole)], 11: [("all_reduce", whole)],
        2: [("all_gather", mine), ("reduce_scatter", whole)],
        12: [("all_reduce", bias), ("all_gather", mine), ("all_gather", mine), ("reduce_scatter", whole)],
    }  # fmt: skip
    sent = {step: [0] * size for step in calls}
    for m in run.trace.sends:
        if m.step:
            sent[m.step][m.src] += m.nbytes
    reduced = cost.ring_all_reduce_bytes_by_rank(B * t * I, 4, size)
    assert sent[1] == sent[11] == reduced
    halves = cost.tensor_parallel_bytes_by_rank(B, t, I, 1, size, passes="forward", sequence_parallel=True, itemsize=4)
    assert [2 * n for n in sent[2]] == halves, "a layer of a model has two such pairs"
    biases = cost.ring_all_reduce_bytes_by_rank(I, 4, size)
    both = cost.tensor_parallel_bytes_by_rank(B, t, I, 1, size, passes="backward", sequence_parallel=True,
                                              gather_again=True, itemsize=4)  # fmt: skip
    assert [2 * (n - b) for n, b in zip(sent[12], biases, strict=True)] == both


def test_what_is_kept_is_the_local_part():
    def on_rank(group):
        kept = {}
        for again in (True, False):
            layer = ColumnParallelLinear(I, O, group, sequence=True, gather_again=again)
            shapes = []
            with torch.autograd.graph.saved_tensors_hooks(
                lambda x, s=shapes: (s.append(tuple(x.shape)), x)[1], lambda x: x
            ):
                layer(numbers(B, 4, I).requires_grad_())
            kept[again] = shapes
        return kept

    for found in launch(on_rank, 2, transport="local").results:
        assert found == {True: [(B, 4, I), (O // 2, I)], False: [(B, 8, I), (O // 2, I)]}


# A column-parallel layer on a slow wire: its input's gradient takes 3 ms, its weight's 5 ms.
FORWARD, INPUT, WEIGHT = 2e-3, 3e-3, 5e-3


@pytest.mark.parametrize("size", few([2, 4]))
@pytest.mark.parametrize("seconds", [1e-3, 20e-3])  # the sum is shorter than the product, and longer
def test_the_sum_of_the_inputs_gradient_hides_behind_the_weights_gradient(size, seconds):
    alpha = 1e-4
    nbytes = 4 * B * 8 * I
    beta = (seconds - 2 * (size - 1) * alpha) / (2 * (size - 1) / size * nbytes)

    def on_rank(group, overlap, sequence):
        layer = ColumnParallelLinear(I, O, group, algorithm="ring", overlap=overlap, sequence=sequence)
        kernels(layer, group, {"": (FORWARD, INPUT, WEIGHT)})
        x = numbers(B, 8 // group.size if sequence else 8, I).requires_grad_()
        clock = group.context.clock
        times = [clock.now()]
        y = layer(x)
        times.append(clock.now())
        y.sum().backward()
        times.append(clock.now())
        return [(b - a) / 1e9 for a, b in zip(times, times[1:], strict=False)]

    network = Network(intra=Link(bandwidth=1 / beta, latency=alpha))
    half = seconds / 2  # an all-gather, and a reduce-scatter
    gathered = max(half, INPUT)  # then the reduce-scatter can begin
    expected = {
        (True, False): [FORWARD, INPUT + max(seconds, WEIGHT)],
        (False, False): [FORWARD, INPUT + seconds + WEIGHT],
        (True, True): [half + FORWARD, max(gathered + half, gathered + WEIGHT)],
        (False, True): [half + FORWARD, half + INPUT + half + WEIGHT],
    }
    for (overlap, sequence), times in expected.items():
        run = launch(on_rank, size, overlap, sequence, clock="virtual", network=network)
        for found in run.results:
            assert found == pytest.approx(times, abs=1e-7), (overlap, sequence)
        if not sequence:
            hidden = min(seconds, WEIGHT) if overlap else 0.0
            assert run.trace.overlap("compute", "communication") == pytest.approx([hidden] * size, abs=1e-7)


def test_stand_in_times_of_a_pair_are_those_of_its_local_products():
    def on_rank(group):
        pair = nn.Sequential(ColumnParallelLinear(I, O, group), nn.Tanh(), RowParallelLinear(O, I, group))
        with kernels(pair, group, flops=1e6):
            pair(numbers(B, T, I).requires_grad_()).sum().backward()
        pair(numbers(B, T, I)).sum().backward()  # removed: no time any more

    run = launch(on_rank, 3, clock="virtual")
    spans = [round((s.end - s.start) * 1e6) for s in run.trace.spans("compute") if s.rank == 1]
    assert spans == 6 * [2 * B * T * I * O // 3]  # forward 2, backward 2 each


def refused(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return None


def test_what_does_not_divide_is_refused_on_every_rank_with_the_nearest_that_does():
    def on_rank(group):
        return [
            refused(lambda: ColumnParallelLinear(12, 20, group)),
            refused(lambda: RowParallelLinear(25, 12, group)),
            refused(lambda: ColumnParallelLinear(12, 24, group, sections=(12, 6, 7))),
            refused(lambda: ColumnParallelLinear(12, 24, group, sections=(12, 8, 4))),
            refused(lambda: ColumnParallelLinear(12, 24, group, sections=(12, 12), gather_output=True)),
            refused(lambda: ColumnParallelLinear(12 + group.rank, 24, group)),
            refused(lambda: RowParallelLinear(12, 24, group, sequence=group.rank == 1)),
        ]

    wanted = [
        "out_features = 20 does not divide by 3. "
        "The nearest degrees of tensor parallelism that divide out_features = 20: 2 and 4",
        "in_features = 25 does not divide by 3. "
        "The nearest degrees of tensor parallelism that divide in_features = 25: 1 and 5",
        "sections=[12, 6, 7] are 25 outputs together, and the layer has 24",
        "section 1 = 8 and section 2 = 4 do not divide by 3",
        "leave out `sections`",
        "rank 1: parameter 'weight' is (24, 13)",
        "rank 1: option sequence is True (on rank 0 False)",
    ]
    for found in launch(on_rank, 3, transport="local").results:
        assert [w in str(f) for w, f in zip(wanted, found, strict=True)] == [True] * len(wanted), found


def test_another_input_on_one_rank_is_named_and_nothing_hangs():
    def on_rank(group):
        RowParallelLinear(I, O, group)(numbers(B + group.rank, T, I // group.size))

    with pytest.raises(RankFailed, match="Mismatch|rank"):
        launch(on_rank, 2, transport="local", timeout=20)
