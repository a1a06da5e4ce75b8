"""Rows on their way to experts in FP8, and back in BF16: what experts get, bytes by the formula, the loss."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
import torch.nn.functional as F
from slices import SLOW_WIRES

import labkit
from labkit import Link, Network, RankFailed, cost
from labkit.collectives import all_reduce
from labkit.data import batches, text
from labkit.models import GPT, GPTConfig
from labkit.models.gpt import next_token_loss
from labkit.models.moe import MoE, MoEConfig, losses_of
from labkit.optim.precision import Codec, Wire
from labkit.parallel import ExpertParallel
from labkit.parallel.expert.dispatch import dispatch
from labkit.wire.errors import RefusedError

pytestmark = pytest.mark.ranks

WIDTH = 12
DEEPSEEK = Wire(Codec("E4M3", 5), Codec("E4M3", 5))


def round_trip(codec, x):
    return codec.decode(codec.encode(x), x.shape[1])


@pytest.mark.parametrize("size", [3, 1, 2])
@pytest.mark.parametrize("wire", [Wire(), DEEPSEEK], ids=["row", "tiles"])
def test_there_in_one_format_and_back_in_another_to_the_bit(size, wire):
    """Experts that do nothing: rows come back rounded twice, and so do gradients. Some ranks send nothing to others."""

    def work(group):
        draw = torch.Generator().manual_seed(group.rank)
        counts = torch.tensor([[3, 0, 2, 5, 1, 0][(group.rank + r) % 6] for r in range(2 * group.size)])
        x, g = torch.randn(2, int(counts.sum()), WIDTH, generator=draw).unbind()
        x, seen = x.clone().requires_grad_(), []
        sizes = counts.view(1, group.size, 2)
        for overlap in (False, True):
            x.grad = None
            y, beside = dispatch(x, sizes, [(group, 1)], lambda rows, counts: (seen.append(rows), rows)[1], lambda: 7,
                                 overlap, wire)  # fmt: skip
            y.backward(g)
            assert beside == 7
        return x.detach(), g, y.detach(), x.grad, seen

    bf16 = Codec("BF16")
    for x, g, y, dx, (first, second) in labkit.launch(work, size, transport="local").results:
        assert torch.equal(y, round_trip(bf16, round_trip(wire.activations, x))) and not torch.equal(y, x)
        assert torch.equal(dx, round_trip(bf16, round_trip(wire.gradients, g)))
        assert torch.equal(first, second) and y.dtype == dx.dtype == torch.float32


def step(group, config, tokens, wire, hierarchical=False):
    """One forward and backward of a layer over this rank's part of the tokens."""
    torch.manual_seed(0)
    layer = MoE(WIDTH, config)
    ExpertParallel(group, hierarchical=hierarchical, wire=wire).into(layer)
    x, dy = torch.randn(2, tokens, WIDTH, generator=torch.Generator().manual_seed(1)).unbind()
    x, dy = (part.tensor_split(group.size)[group.rank].clone() for part in (x, dy))
    x.requires_grad_()
    group.step(1)
    y = layer(x)
    group.step(2)
    ((y * dy).sum() + len(x) / tokens * losses_of(layer)).backward()
    group.step(3)
    experts = torch.cat([p.grad.flatten() for name, p in layer.named_parameters() if name.startswith("experts")])
    found = layer.routing
    rows = F.one_hot(found.experts_nk[found.kept_nk], config.experts).sum(0)
    return y.detach(), x.grad, experts, rows


def off(a, b):
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("transport", SLOW_WIRES)
@pytest.mark.parametrize("size", [4, 2])
def test_bytes_of_a_layer_and_how_far_its_numbers_are_off(size, transport):
    tokens, config = 66, MoEConfig(8, 2, shared=0.5)
    plain = labkit.launch(step, size, config, tokens, None, transport=transport)
    for wire, per in ((Wire(), "row"), (DEEPSEEK, 5)):
        run = labkit.launch(step, size, config, tokens, wire, transport=transport)
        by_rank = [rank[3].view(size, -1).sum(1).tolist() for rank in run.results]
        assert sum(map(sum, by_rank)) == 2 * tokens
        sent = [
            [sum(m.nbytes for m in run.trace.sends if (m.src, m.step) == (r, s)) for r in range(size)] for s in (1, 2)
        ]
        forward = cost.coded_dispatch_bytes_by_rank(by_rank, WIDTH, 8, per)
        both = cost.coded_dispatch_bytes_by_rank(by_rank, WIDTH, 8, per, passes=2)
        assert sent[0] == [n + cost.routing_bytes(size, 8, 2) for n in forward]
        assert sent[1] == [b - f for b, f in zip(both, forward, strict=True)]
        for rank, (narrow, whole) in enumerate(zip(run.results, plain.results, strict=True)):
            # results are off by E4M3 of what experts got; gradients by the wire's format of theirs
            assert 1e-4 < off(narrow[0], whole[0]) < 0.02, rank
            assert 1e-4 < off(narrow[1], whole[1]) < 0.05 and 1e-3 < off(narrow[2], whole[2]) < 0.06, rank


def test_by_way_of_the_node_rows_are_what_they_are_in_one_hop():
    link = Link(bandwidth=1e9, latency=1e-5)
    options = {"clock": "virtual", "network": Network(nodes=2, ranks_per_node=2, intra=link, inter=link)}
    config, found, between = MoEConfig(8, 3, capacity=1.0, shared=0.5), {}, {}
    for hierarchical in (False, True):
        run = labkit.launch(step, 4, config, 35, Wire(), hierarchical, **options)
        found[hierarchical] = run.results
        apart = [m for m in run.trace.sends if m.step == 2 and m.src // 2 != m.dst // 2]
        between[hierarchical] = sum(m.nbytes for m in apart)
    assert between[True] == between[False]
    for one, two in zip(found[False], found[True], strict=True):
        for a, b in zip(one[:3], two[:3], strict=True):
            assert off(b, a) < 5e-3  # a second rounding to BF16 here and there


CONFIG = GPTConfig(context=16, layers=2, width=32, heads=2, moe=MoEConfig(4, 2, hidden=1.0, shared=0.5))


def losses(group, wire, steps):
    model, found = GPT(CONFIG, seed=1), []
    ExpertParallel(group, wire=wire).into(model)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for x, y in islice(batches(text().train, 4, CONFIG.context, 0, group.rank, group.size), steps):
        loss = next_token_loss(model(x), y)
        adam.zero_grad()
        (loss + losses_of(model)).backward()
        for name, p in model.named_parameters():
            if "experts" in name:
                p.grad /= group.size  # it has the tokens of all ranks already
            else:
                all_reduce(p.grad, group, op="avg")
        adam.step()
        found.append(loss.item())
    return found


def test_a_gpt_of_experts_trains_as_with_whole_rows():
    """The mean loss of the last 5 of 25 steps is within 2 %."""

    def work(group):
        return losses(group, None, 25), losses(group, Wire(), 25)

    for whole, narrow in labkit.launch(work, 2, transport="local").results:
        assert sum(whole[-5:]) < 5 * (whole[0] - 1.5) and narrow != whole
        assert sum(narrow[-5:]) == pytest.approx(sum(whole[-5:]), rel=2e-2)


def test_what_cannot_be_is_refused_on_every_rank_and_a_difference_is_named():
    def refused(group):
        with pytest.raises(RefusedError, match="wire='fp8': a Wire of labkit.optim.precision, or None"):
            ExpertParallel(group, wire="fp8")
        return True

    assert labkit.launch(refused, 2, transport="local").results == [True, True]

    def differs(group):
        torch.manual_seed(0)
        layer = MoE(WIDTH, MoEConfig(4, 1))
        ExpertParallel(group, wire=Wire() if group.rank else None).into(layer)
        layer(torch.randn(6, WIDTH))

    either = "0 sent rank 1 float32.* receives uint8|1 sent rank 0 uint8.* receives float32"  # whoever is told first
    with pytest.raises(RankFailed, match=f"Mismatch: rank ({either})"):
        labkit.launch(differs, 2, transport="local", timeout=30)
