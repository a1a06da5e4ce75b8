"""What a tensor-parallel GPT sends, keeps and takes: collectives, bytes and memory by closed form, exact times."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from labkit import Link, Network, cost, launch
from labkit.models import GPTConfig
from labkit.parallel import TensorParallelBlock, TensorParallelGPT, kernels
from labkit.parallel.tensor.shard_spec import shard_specs_of

pytestmark = pytest.mark.ranks

B, T = 2, 8
CONFIG = GPTConfig(vocab=61, context=16, layers=2, heads=12, width=48)
D = CONFIG.width
WAYS = {"tensor": {}, "sequence": {"sequence": True}, "kept": {"sequence": True, "gather_again": False}}


def add(*rows):
    return [sum(column) for column in zip(*rows, strict=True)]


def by_step(run, size):
    """({step: how often rank 0 called each collective}, {step: bytes that each rank sent})."""
    calls, sent = {}, {}
    for c in run.trace.collectives():
        if c.rank == 0 and c.step:
            calls.setdefault(c.step, Counter())[c.name] += 1
    for m in run.trace.sends:
        if m.step:
            sent.setdefault(m.step, [0] * size)[m.src] += m.nbytes
    return calls, sent


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("t", [8, 7])
def test_a_block_has_two_collectives_each_way_and_the_closed_forms_bytes(size, t):
    def on_rank(group):
        for i, ways in enumerate(WAYS.values()):
            block = TensorParallelBlock(CONFIG, group, algorithm="ring", **ways)
            x = torch.randn(B, t, D, generator=torch.Generator().manual_seed(1))
            x = (x.tensor_split(size, 1)[group.rank] if "sequence" in ways else x).clone().requires_grad_()
            group.step(10 * i + 1)
            y = block(x, t)
            group.step(10 * i + 2)
            y.sum().backward()
            group.step(0)

    calls, sent = by_step(launch(on_rank, size, transport="local"), size)
    assert calls[1] == calls[2] == {"all_reduce": 2}, "two sums forward, two backward"
    assert calls[11] == calls[21] == {"all_gather": 2, "reduce_scatter": 2}
    assert calls[12] == {"all_gather": 4, "reduce_scatter": 2, "all_reduce": 1}
    assert calls[22] == {"all_gather": 2, "reduce_scatter": 2, "all_reduce": 1}
    outside = cost.ring_all_reduce_bytes_by_rank(cost.replicated_layer_parameters(D), 4, size)
    for i, (way, ways) in enumerate(WAYS.items()):
        options = {"sequence_parallel": way != "tensor", "gather_again": way == "sequence", "itemsize": 4}
        for step, passes in ((1, "forward"), (2, "backward")):
            again = options["gather_again"] and passes == "backward"
            wanted = cost.tensor_parallel_bytes_by_rank(
                B, t, D, 1, size, passes=passes, **(options | {"gather_again": again})
            )
            if ways and passes == "backward":
                wanted = add(wanted, outside)
            assert sent[10 * i + step] == wanted, (way, passes)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_step_of_the_model_sends_the_closed_forms_bytes(size):
    t = 7

    def on_rank(group):
        tokens = torch.arange(B * (t + 1)).reshape(B, t + 1) % CONFIG.vocab
        for i, ways in enumerate(WAYS.values()):
            model = TensorParallelGPT(CONFIG, group, algorithm="ring", **ways)
            group.step(i + 1)
            model(tokens[:, :-1], tokens[:, 1:]).backward()
            group.step(0)

    _, sent = by_step(launch(on_rank, size, transport="local"), size)
    loss = cost.vocabulary_parallel_loss_bytes_by_rank(B, t, size, messages=(1, 2))
    reduced = cost.ring_all_reduce_bytes_by_rank(B * t * D, 4, size)
    gathered = cost.ring_all_gather_bytes_by_rank(t, 4 * B * D, size)
    scattered = cost.ring_reduce_scatter_bytes_by_rank(t, 4 * B * D, size)
    layers = {
        way: cost.tensor_parallel_bytes_by_rank(B, t, D, CONFIG.layers, size, itemsize=4, sequence_parallel=way > 0,
                                                gather_again=way == 1)
        for way in range(3)
    }  # fmt: skip
    assert sent[1] == add(layers[0], reduced, reduced, loss), "the layers, the embedding, the logits, the loss"
    outside = [cost.ring_all_reduce_bytes_by_rank(n, 4, size) for n in (*[6 * D] * CONFIG.layers, (2 + 16) * D)]
    both = [scattered, gathered, gathered, scattered]  # embedding forward and backward, logits forward and backward
    assert sent[2] == add(layers[1], *both, gathered, loss, *outside)
    assert sent[3] == add(layers[2], *both, loss, *outside)


def kept_bytes(module, call):
    """Bytes that autograd keeps for the backward of `call()`, without the parameters; each tensor once."""
    seen, parameters = {}, {p.untyped_storage().data_ptr() for p in module.parameters()}

    def keep(x):
        if x.untyped_storage().data_ptr() not in parameters:
            seen[x.untyped_storage().data_ptr()] = x  # alive: its place is not used again
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        call()
    return sum(x.untyped_storage().nbytes() for x in seen.values())


@pytest.mark.parametrize("size", [2, 4])
def test_a_rank_keeps_the_closed_forms_activations_and_parameters(size):
    def on_rank(group):
        found = {}
        for way, ways in WAYS.items():
            block = TensorParallelBlock(CONFIG, group, **ways)
            x = torch.randn(B, T // size if "sequence" in ways else T, D, requires_grad=True)
            found[way] = kept_bytes(block, lambda block=block, x=x: block(x))
        return found, sum(p.numel() for p in block.parameters())

    run = launch(on_rank, size, transport="local")
    wide = 4 * B * T * D
    for found, parameters in run.results:
        assert parameters == cost.layer_parameters(D, size)
        for way, nbytes in found.items():
            spread = 1 if way == "tensor" else size
            options = {"strategy": "selective", "sequence_parallel": spread > 1, "itemsize": 4, "dropout": False}
            formula = cost.tensor_parallel_activation_bytes(B, T, D, 1, CONFIG.heads, size, **options)
            attention = 4 * B * T * CONFIG.heads / size  # fused: a number for each row of its scores
            norms = 2 * 2 * 4 * B * T / spread  # mean and spread of each row
            gathered = 2 * (wide - wide / size) if way == "kept" else 0
            assert nbytes == formula + attention + norms + gathered, way


def test_each_rank_holds_its_share_of_the_parameters():
    def on_rank(group):
        model = TensorParallelGPT(CONFIG, group)
        return sum(p.numel() for _, p, cut in shard_specs_of(model) if cut), sum(
            p.numel() for _, p, cut in shard_specs_of(model) if not cut
        )

    results = launch(on_rank, 3, transport="local").results
    outside = CONFIG.layers * cost.replicated_layer_parameters(D) + (2 + CONFIG.context) * D
    assert [other for _, other in results] == [outside] * 3
    assert sum(mine for mine, _ in results) + outside == CONFIG.num_parameters
    assert max(mine for mine, _ in results) - min(mine for mine, _ in results) == D, "one row of the vocabulary"


# Seconds of the four products of a block: (forward, input gradient, weight gradient), and of one sum.
TIMES = {"attention.qkv": (3e-3, 4e-3, 5e-3), "attention.out": (1e-3, 2e-3, 1e-3),
         "feed_forward.up": (4e-3, 5e-3, 6e-3), "feed_forward.down": (4e-3, 4e-3, 3e-3)}  # fmt: skip


@pytest.mark.parametrize("sum_seconds", [2e-3, 5.5e-3, 12e-3])
def test_a_block_takes_its_products_its_sums_and_hides_what_it_can(sum_seconds):
    size, alpha = 4, 1e-4
    beta = (sum_seconds - 2 * (size - 1) * alpha) / (2 * (size - 1) / size * 4 * B * T * D)

    def on_rank(group):
        found = []
        for overlap in (True, False):
            block = TensorParallelBlock(CONFIG, group, algorithm="ring", overlap=overlap)
            kernels(block, group, TIMES)
            x = torch.randn(B, T, D, requires_grad=True)
            clock = group.context.clock
            begun = clock.now()
            y = block(x)
            turned = clock.now()
            y.sum().backward()
            found += [(turned - begun) / 1e9, (clock.now() - turned) / 1e9]
        return found

    forward, inputs, weights = (sum(column) for column in zip(*TIMES.values(), strict=True))
    hidden = sum(min(sum_seconds, TIMES[name][2]) for name in ("attention.qkv", "feed_forward.up"))
    waiting = inputs + weights + 2 * sum_seconds
    wanted = [forward + 2 * sum_seconds, waiting - hidden, forward + 2 * sum_seconds, waiting]
    network = Network(2, 2, intra=Link(1 / beta, alpha), inter=Link(1 / beta, alpha))
    for found in launch(on_rank, size, clock="virtual", network=network).results:
        assert found == pytest.approx(wanted, abs=1e-6)


def test_a_group_across_nodes_is_as_slow_as_the_wire_between_them():
    def on_rank(group):
        block = TensorParallelBlock(CONFIG, group, algorithm="ring")
        clock = group.context.clock
        begun = clock.now()
        block(torch.randn(B, T, D))
        return (clock.now() - begun) / 1e9

    fast, slow, nbytes = Link(100e9, 1e-6), Link(1e9, 1e-5), 4 * B * T * D
    inside = launch(on_rank, 4, clock="virtual", network=Network(1, 4, fast, slow)).results
    across = launch(on_rank, 4, clock="virtual", network=Network(4, 1, fast, slow)).results
    assert inside == pytest.approx([2 * cost.ring_all_reduce_time(nbytes, 4, 1e-6, 1e-11)] * 4, abs=1e-7)
    assert across == pytest.approx([2 * cost.ring_all_reduce_time(nbytes, 4, 1e-5, 1e-9)] * 4, abs=1e-7)


def test_looking_up_takes_no_time_and_scores_take_that_of_their_product():
    def on_rank(group):
        model = TensorParallelGPT(CONFIG, group)
        with kernels(model, group, flops=1e6):
            model(torch.zeros(B, T, dtype=torch.int64), torch.zeros(B, T, dtype=torch.int64)).backward()
        return model.lm_head.weight.numel()

    run = launch(on_rank, 3, clock="virtual")
    spans = [s for s in run.trace.spans("compute") if s.rank == 0]
    matrices = CONFIG.layers * 12 * D * D / 3 + run.results[0]
    assert sum(s.end - s.start for s in spans) == pytest.approx(6 * B * T * matrices / 1e6, rel=1e-9)
    assert len(spans) == 3 * (4 * CONFIG.layers + 1)
