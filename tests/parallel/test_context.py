"""Attention over several ranks is attention of the whole sequence: results, gradients, bytes, time of its rounds."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from slices import LONG, SLOW_WIRES, few

import labkit
from labkit import Link, Network, cost
from labkit.models import GPT, GPTConfig
from labkit.models.attention import turned
from labkit.models.gpt import next_token_loss
from labkit.parallel import FullyShard, Mesh, TensorParallelGPT
from labkit.parallel.context.blocks import runs
from labkit.parallel.context.layouts import positions_of
from labkit.parallel.context.masks import Mask
from labkit.parallel.context.parallel import ContextParallel
from labkit.wire.errors import RefusedError

pytestmark = pytest.mark.ranks

LAYOUTS = cost.CONTEXT_LAYOUTS
MASKS = {
    "causal": {}, "full": {"causal": False}, "window": {"window": 7}, "full window": {"causal": False, "window": 9},
    "documents": {"documents": True}, "documents, window": {"documents": True, "window": 6},
}  # fmt: skip
LIMIT = {torch.float64: 1e-12, torch.float32: 1e-6}


def drawn(heads, kv_heads, length, dtype, width=8):
    g = torch.Generator().manual_seed(length)
    shapes = [(2, h, length, width) for h in (heads, kv_heads, kv_heads, heads)]
    return [torch.randn(shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes]


def largest_error(group, layout, ulysses, mask, heads, kv_heads, length, dtype):
    """Of the result and the three gradients, against dense attention in float64: norm of the error over the norm."""
    *inputs, dy = drawn(heads, kv_heads, length, dtype)
    options = dict(MASKS[mask])
    documents = torch.tensor([0, 0, 1] + [2] * 9 + [3] * 99)[:length] if options.pop("documents", False) else None
    context = ContextParallel(group, layout=layout, ulysses=ulysses, **options)
    every = torch.arange(length)
    allowed = Mask(context.mask.causal, context.mask.window, documents).allowed(every, every)
    whole = [x.double().clone().requires_grad_() for x in inputs]  # exact, so that the rounding is ours alone
    y = F.scaled_dot_product_attention(*whole, attn_mask=allowed, enable_gqa=heads != kv_heads)
    y.backward(dy.double())
    mine = [context.cut(x, 2, documents).clone().requires_grad_() for x in inputs]
    part = context.attention(*mine)
    part.backward(context.cut(dy, 2, documents))
    pairs = [(part, y), *((a.grad, b.grad) for a, b in zip(mine, whole, strict=True))]
    return max(((context.join(a, 2) - b).norm() / b.norm()).item() for a, b in pairs)


@pytest.mark.parametrize("size", few([3, 4, 8, 2], keep=2))
def test_equal_to_dense_attention_in_every_layout_and_mask(size):
    degrees = [u for u in range(1, size + 1) if size % u == 0]
    cases = itertools.product(LAYOUTS, degrees, MASKS, [(24, 24), (24, 6), (24, 2)], [37, 48], LIMIT)
    with labkit.world(size, transport="local") as world:
        for n, (layout, ulysses, mask, heads, length, dtype) in enumerate(cases):
            if LONG or n % 11 == 0:  # 11 divides no number of values, so every value meets every other in turn
                off = max(world.run(largest_error, layout, ulysses, mask, *heads, length, dtype).results)
                assert off < LIMIT[dtype], (layout, ulysses, mask, heads, length, dtype, off)


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_two_ranks_on_every_transport(transport):
    run = labkit.launch(largest_error, 2, "zigzag", 1, "causal", 4, 2, 9, torch.float64, transport=transport)
    assert max(run.results) < 1e-12


def one_layer(group, layout, ulysses, heads, kv_heads, length, window=None, pair_seconds=0.0, overlap=True, back=True):
    context = ContextParallel(group, layout=layout, ulysses=ulysses, window=window, pair_seconds=pair_seconds,
                              overlap=overlap)  # fmt: skip
    context.begin(length)
    t = len(context.positions)
    q, k, v = (torch.randn(1, h, t, 8, requires_grad=True) for h in (heads, kv_heads, kv_heads))
    y = context.attention(q, k, v)
    group.step(1)
    if back:
        y.sum().backward()
    return t


def sent(run, step):
    return [sum(m.nbytes for m in run.trace.sends if m.src == r and (m.step == 1) == step)
            for r in range(run.trace.world_size)]  # fmt: skip


@pytest.mark.parametrize(("size", "layout"), few(itertools.product([3, 8, 2], LAYOUTS), keep=4))
@pytest.mark.parametrize("window", [None, 5])
def test_the_ring_sends_the_formula(size, layout, window):
    run = labkit.launch(one_layer, size, layout, 1, 6, 2, 45, window, transport="local")
    blocks, mask = [positions_of(r, size, 45, layout) for r in range(size)], Mask(window=window)
    meet = [i for i in range(size) for r in range(size) if mask.allowed(blocks[r], blocks[r - i]).any()]
    about = {"itemsize": 4, "rounds": max(meet) + 1}
    for passes, step in (("forward", False), ("backward", True)):
        assert sent(run, step) == cost.ring_attention_bytes_by_rank(run.results, 2, 8, passes=passes, **about)
    reach = {"contiguous": 2, "striped": min(size, 5), "zigzag": size}  # 5 tokens back are 4 ranks back
    assert max(meet) + 1 == (size if window is None else reach[layout])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 4, 9])
@pytest.mark.parametrize("texts", [0, 1, 3, 7])
def test_a_mask_knows_whether_anything_is_read_as_if_it_looked_at_every_pair(causal, window, texts):
    length = 29
    documents = torch.arange(length) * texts // length if texts else None
    mask = Mask(causal=causal, window=window, documents=documents)
    for size, layout in itertools.product((1, 2, 3, 8), LAYOUTS):
        parts = [positions_of(r, size, length, layout) for r in range(size)] + [torch.arange(0)]
        for q, k in itertools.product(parts, parts):
            assert mask.none(q, k) == (not mask.allowed(q, k).any()), (size, layout, q, k)


@pytest.mark.parametrize(("size", "kv_heads"), few([(4, 2), (3, 3), (2, 6), (4, 12), (4, 3)], keep=3))
def test_ulysses_sends_the_formula(size, kv_heads):
    run = labkit.launch(one_layer, size, "contiguous", size, 12, kv_heads, 46, transport="local")
    for passes, step in (("forward", False), ("backward", True)):
        formula = cost.ulysses_bytes_by_rank(run.results, 12, kv_heads, 8, itemsize=4, passes=passes)
        assert sent(run, step) == formula
    even = cost.ulysses_bytes_by_rank([64] * 4, 8, 8, 16, passes="forward")
    assert even == [2 * 4 * 256 * 8 * 16 * 3 // 4**2] * 4  # 4 N h (P - 1) / P^2 numbers, as in the paper


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kernel", [1e-7, 1e-9])  # the kernels decide, or the link
def test_the_rounds_take_what_the_simulation_says(layout, kernel):
    wire, n, length = Link(bandwidth=1e9, latency=1e-5), 4, 256
    block = wire.seconds(2 * 4 * 2 * 8 * length // n)
    for overlap in (True, False):
        layer = (one_layer, n, layout, 1, 4, 2, length, None, kernel, overlap, False)
        run = labkit.launch(*layer, clock="virtual", network=Network(intra=wire))
        said = cost.ring_attention_seconds(n, length, layout, kernel, block, overlap=overlap)
        assert run.trace.duration == pytest.approx(said, rel=1e-9)


def test_what_the_papers_say_of_balance():
    assert [round(cost.causal_balance(8, 4096, layout), 3) for layout in LAYOUTS] == [1.875, 1.002, 1.0]
    every = [range(4096)]
    for layout in LAYOUTS:
        whole = [cost.context_ranges(r, 8, 4096, layout) for r in range(8)]
        assert sum(cost.causal_pairs(q, k) for q in whole for k in whole) == 4096 * 4097 // 2
        assert cost.causal_pairs(whole[3], every) == sum(p + 1 for part in whole[3] for p in part)
    seconds = {layout: cost.ring_attention_seconds(8, 4096, layout, 1e-9, 1e-9) for layout in LAYOUTS}
    assert seconds["contiguous"] / seconds["zigzag"] > 1.8


def test_how_many_tokens_hide_a_transfer():
    a100 = 312e12, 300e9
    assert cost.ring_attention_tokens_to_hide(*a100, causal=False) == pytest.approx(1040)  # their table 2: 1.0 thousand
    for causal in (False, True):
        s = cost.ring_attention_tokens_to_hide(*a100, heads=32, kv_heads=8, causal=causal)
        work = 4 * 32 * 128 * s**2 / (2 if causal else 1) / a100[0]
        assert work == pytest.approx(2 * 8 * 128 * s * 2 / a100[1])
    with pytest.raises(ValueError, match="bandwidth must be above 0, not 0"):
        cost.ring_attention_tokens_to_hide(1, 0)


CONFIG = GPTConfig(vocab=37, context=40, layers=2, heads=4, width=32, kv_heads=2)


def train(group, config, ways, documents, steps=3):
    """Losses, and the weights after some steps; on one rank without context parallelism."""
    model = GPT(config, seed=1).double()
    context = ContextParallel(group, **ways)
    if group.size > 1:
        context.into(model)
    adam, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for step in range(steps):
        tokens = torch.randint(config.vocab, (2, 38), generator=torch.Generator().manual_seed(step))
        inputs, targets = (context.cut(x, documents=documents) for x in (tokens[:, :-1], tokens[:, 1:]))
        loss = context.weight * next_token_loss(model(inputs, context.positions), targets)
        adam.zero_grad()
        loss.backward()
        for p in model.parameters():
            labkit.collectives.all_reduce(p.grad, group)
        adam.step()
        losses.append(labkit.collectives.all_reduce(loss.detach(), group).item())
    return losses, torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("ways", [{"layout": "zigzag"}, {"layout": "striped", "ulysses": 2}], ids=str)
@pytest.mark.parametrize("rotary", [False, True])
def test_a_gpt_trains_as_on_one_rank(ways, rotary):
    config = GPTConfig(**{**vars(CONFIG), "rotary": rotary})
    losses, weights = labkit.launch(train, 1, config, {}, None).results[0]
    for got, w in labkit.launch(train, 4, config, ways, None, transport="local").results:
        assert got == pytest.approx(losses, rel=1e-12)
        torch.testing.assert_close(w, weights, rtol=0, atol=1e-9)


def sharded(group, config, steps=3):
    """The same with each block's weights cut among the same ranks: FSDP averages, so each loss counts size times."""
    context = ContextParallel(group)
    model = FullyShard(context.into(GPT(config, seed=1).double()), group)
    adam, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for step in range(steps):
        tokens = torch.randint(config.vocab, (2, 38), generator=torch.Generator().manual_seed(step))
        inputs, targets = context.cut(tokens[:, :-1]), context.cut(tokens[:, 1:])
        loss = group.size * context.weight * next_token_loss(model(inputs, context.positions), targets)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(labkit.collectives.all_reduce(loss.detach(), group, op="avg").item())
    return losses


def test_with_its_weights_cut_by_fsdp_too():
    losses, _ = labkit.launch(train, 1, CONFIG, {}, None).results[0]
    for got in labkit.launch(sharded, 3, CONFIG).results:
        assert got == pytest.approx(losses, rel=1e-9)


def cut_both_ways(group, config, sequence):
    """Loss and whole gradients of a GPT whose heads are cut among two ranks, and whose positions among the others."""
    mesh = Mesh(group, {"cp": group.size // 2 or 1, "tp": min(2, group.size)})
    model = TensorParallelGPT(config, mesh["tp"], sequence=sequence, seed=1).double()
    context = ContextParallel(mesh["cp"])
    context.into(model)
    tokens = torch.randint(config.vocab, (2, 38), generator=torch.Generator().manual_seed(0))
    inputs, targets = context.cut(tokens[:, :-1]), context.cut(tokens[:, 1:])
    loss = context.weight * model(inputs, targets, context.positions)
    loss.backward()
    found = model.whole_gradients()
    for g in found.values():
        labkit.collectives.all_reduce(g, mesh["cp"])
    return labkit.collectives.all_reduce(loss.detach(), mesh["cp"]).item(), found


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("rotary", [False, True])
def test_with_heads_cut_by_tensor_parallelism_too(sequence, rotary):
    config = GPTConfig(**{**vars(CONFIG), "rotary": rotary})
    loss, whole = labkit.launch(cut_both_ways, 1, config, False).results[0]
    for got, mine in labkit.launch(cut_both_ways, 6, config, sequence, transport="local").results:
        assert got == pytest.approx(loss, rel=1e-12)
        for name, g in mine.items():
            torch.testing.assert_close(g, whole[name], rtol=0, atol=1e-12)


def test_packed_texts_are_as_good_as_alone():
    """The logits of a text do not depend on what it was packed with."""

    def logits(group, tokens, documents):
        context = ContextParallel(group)
        model = context.into(GPT(GPTConfig(**{**vars(CONFIG), "rotary": True}), seed=1).double())
        return context.join(model(context.cut(tokens, documents=documents), context.positions))

    tokens = torch.randint(37, (1, 30), generator=torch.Generator().manual_seed(0))
    documents = torch.tensor([0] * 11 + [5] * 19)
    packed = labkit.launch(logits, 3, tokens, documents).results[0]
    for part in (slice(11), slice(11, 30)):
        alone = labkit.launch(logits, 1, tokens[:, part], None).results[0]
        torch.testing.assert_close(packed[:, part], alone, rtol=0, atol=1e-12)  # rotary: only distances count


def test_rotary_positions_depend_on_distances_only():
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).unbind()
    for near, far in ((3, 5), (103, 105)):
        product = (turned(q, torch.tensor([far])) * turned(k, torch.tensor([near]))).sum()
        torch.testing.assert_close(product, (turned(q, torch.tensor([2])) * turned(k, torch.tensor([0]))).sum())
    with pytest.raises(ValueError, match="the width of a head, 5, must be even"):
        GPTConfig(width=20, heads=4, rotary=True)
    model = GPT(GPTConfig(rotary=True))
    assert sum(p.numel() for p in model.parameters()) == model.config.num_parameters


def test_runs_of_positions():
    assert runs(torch.arange(5)) == [slice(0, 5)]
    assert runs(positions_of(1, 4, 40)) == [slice(0, 5), slice(5, 10)]
    assert runs(positions_of(1, 4, 40, "striped")) == [slice(0, 10)]
    assert runs(torch.arange(1000), 400) == [slice(0, 400), slice(400, 800), slice(800, 1000)]
    assert runs(torch.tensor([7])) == [slice(0, 1)]


@pytest.mark.parametrize(("ways", "length", "words"), [
    ({"layout": "zag"}, 9, "layout must be one of 'contiguous', 'striped', 'zigzag', not 'zag'"),
    ({}, 3, r"a sequence of 3 positions cannot be shared out among 2 ranks \(zigzag\): it needs 4"),
    ({"ulysses": 3}, 9, "ulysses=3: the ranks that share heads must divide the 2 ranks; choose 1, 2"),
    ({"ulysses": 2, "heads": 3}, 9, "2 ranks cannot share 3 heads evenly"),
    ({"window": 0}, 9, "a window of 0 positions"),
    ({"documents": torch.tensor([1, 0, 0])}, 3, "a text stands in one piece, so they ascend"),
    ({"documents": torch.tensor([0, 0])}, 4, "documents has 2 numbers, and the sequence 4 positions"),
])  # fmt: skip
def test_what_cannot_be_is_refused_on_every_rank(ways, length, words):
    def refused(group):
        options = dict(ways)
        heads, documents = options.pop("heads", 2), options.pop("documents", None)
        with pytest.raises(RefusedError, match=words):
            context = ContextParallel(group, **options)
            x = context.cut(torch.zeros(1, heads, length, 4), 2, documents)
            context.attention(x, x, x)
        return True

    assert labkit.launch(refused, 2).results == [True, True]


def test_a_forward_pass_without_a_cut_or_with_other_tokens_is_refused():
    def refused(group):
        context = ContextParallel(group)
        model, tokens = context.into(GPT(CONFIG)), torch.zeros(1, 8, dtype=torch.int64)
        with pytest.raises(RefusedError, match=r"call cut\(tokens\) first"):
            model(tokens)
        context.cut(torch.zeros(1, 9, dtype=torch.int64))
        with pytest.raises(RefusedError, match="rank 0 holds 9 positions of the sequence that was cut last, and its"):
            model(tokens)
        with pytest.raises(RefusedError, match="build the model with dropout=0"):
            context(torch.zeros(1, 9, 3 * 32), 4, 4, dropout=0.1)
        with pytest.raises(RefusedError, match="Linear has no attention layer"):
            context.into(torch.nn.Linear(2, 2))
        return True

    assert labkit.launch(refused, 1).results == [True]
