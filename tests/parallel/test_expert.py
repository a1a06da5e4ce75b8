"""A mixture whose experts are shared out is that of one device: results, gradients, who is dropped, and bytes."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from slices import LONG, SLOW_WIRES

import labkit
from labkit import Link, Network, cost
from labkit.collectives import all_reduce
from labkit.models import GPT, GPTConfig
from labkit.models.gpt import next_token_loss
from labkit.models.moe import MoE, MoEConfig, best_of_each, losses_of
from labkit.parallel import ExpertParallel, Mesh, TensorParallelGPT
from labkit.parallel.expert.segments import back, in_order
from labkit.wire.errors import RefusedError

pytestmark = pytest.mark.ranks
WIDTH = 12


def step(group, config, tokens, hierarchical=False, skew=0.1):
    """One forward and backward of a layer over this rank's part of the tokens."""
    torch.manual_seed(0)
    layer = MoE(WIDTH, config).double()
    layer.router.bias.add_(skew * torch.randn(config.experts))  # so that some experts get much, and some nothing
    if group.size > 1:
        ExpertParallel(group, hierarchical=hierarchical).into(layer)
    x, dy = torch.randn(2, tokens, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).unbind()
    x, dy = (part.tensor_split(group.size)[group.rank].clone() for part in (x, dy))
    x.requires_grad_()
    group.step(1)
    y = layer(x)
    group.step(2)
    ((y * dy).sum() + len(x) / tokens * losses_of(layer)).backward()
    group.step(3)
    alike = [all_reduce(p.grad, group) for name, p in layer.named_parameters() if not name.startswith("experts")]
    experts = {name: p.grad for name, p in layer.named_parameters() if name.startswith("experts")}
    found = layer.routing
    rows = F.one_hot(found.experts_nk[found.kept_nk], config.experts).sum(0)
    return y.detach(), x.grad, alike, experts, found.dropped, found.load_e, rows


def differences(config, size, tokens, hierarchical=False, **options):
    one = labkit.launch(step, 1, config, tokens).results[0]
    many = labkit.launch(step, size, config, tokens, hierarchical, **options).results
    held = {name: g for rank in many for name, g in rank[3].items()}
    assert held.keys() == one[3].keys()
    assert sum(rank[4] for rank in many) == one[4] and all(torch.equal(rank[5], one[5]) for rank in many)
    pairs = [(torch.cat([rank[i] for rank in many]), one[i]) for i in (0, 1)]
    pairs += [(a, b) for rank in many for a, b in zip(rank[2], one[2], strict=True)]
    pairs += [(held[name], g) for name, g in one[3].items()]
    return max((a - b).abs().max().item() for a, b in pairs), one[4]


CASES = list(
    itertools.product((1, 2, 3), (None, 0.5, 1.0), ("position", "probability"), ("softmax", "sigmoid"), (0, 0.5))
)


@pytest.mark.parametrize("size", [2, 4])
def test_equal_to_one_device_for_every_capacity_and_drop(size):
    for n, (choices, capacity, drop, scores, shared) in enumerate(CASES):
        if not LONG and n % 7 != size:
            continue
        config = MoEConfig(8, choices, capacity=capacity, drop=drop, scores=scores, shared=shared, z=1e-3)
        off, dropped = differences(config, size, 33)
        assert off < 1e-12, (config, off)
        assert (dropped > 0) == (capacity is not None and dropped > 0), config


@pytest.mark.parametrize(("nodes", "each"), [(2, 2), (3, 2)])
def test_by_way_of_the_node_too(nodes, each):
    link = Link(bandwidth=1e9, latency=1e-5)
    network = Network(nodes=nodes, ranks_per_node=each, intra=link, inter=link)
    options = {"clock": "virtual", "network": network}
    config = MoEConfig(12, 3, capacity=1.0, shared=0.5)
    assert differences(config, nodes * each, 35, True, **options)[0] < 1e-12
    messages = {}
    for hierarchical in (False, True):
        run = labkit.launch(step, nodes * each, config, 350, hierarchical, 0.0, **options)
        apart = [m for m in run.trace.sends if m.step == 2 and m.src // each != m.dst // each]
        messages[hierarchical] = len(apart), sum(m.nbytes for m in apart)
    assert messages[True][0] * each == messages[False][0], "one partner in each other node"
    assert messages[True][1] == messages[False][1], "each row crosses once either way"


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_bytes_of_a_layer(transport):
    size, tokens, config = 4, 64, MoEConfig(8, 2)
    run = labkit.launch(step, size, config, tokens, transport=transport)
    by_rank = [rank[6].view(size, -1).sum(1).tolist() for rank in run.results]
    assert sum(map(sum, by_rank)) == 2 * tokens
    sent = [[sum(m.nbytes for m in run.trace.sends if (m.src, m.step) == (r, s)) for r in range(size)] for s in (1, 2)]
    both = cost.dispatch_bytes_by_rank(by_rank, WIDTH, 8, itemsize=8, passes=2)
    forward = cost.dispatch_bytes_by_rank(by_rank, WIDTH, 8, itemsize=8)
    assert sent[0] == [n + cost.routing_bytes(size, 8, 2) for n in forward]
    assert sent[1] == [b - f for b, f in zip(both, forward, strict=True)]


def test_an_expert_without_a_token_gets_a_gradient_of_zeros():
    def idle(group):
        torch.manual_seed(0)
        layer = MoE(WIDTH, MoEConfig(4, 1, balance=0))
        layer.router.bias[3] = -1e9
        ExpertParallel(group).into(layer)
        layer(torch.randn(5, WIDTH)).sum().backward()
        return {name: p.grad.abs().sum().item() for name, p in layer.experts.named_parameters()}

    last = labkit.launch(idle, 2).results[1]
    assert {name.split(".")[0] for name in last} == {"2", "3"} and all(last[n] == 0 for n in last if n[0] == "3")


def test_equal_scores_choose_the_expert_with_the_lower_number():
    layer = MoE(4, MoEConfig(6, 3))
    torch.nn.init.zeros_(layer.router.gate.weight)
    layer(torch.randn(5, 4))
    assert layer.routing.experts_nk.tolist() == [[0, 1, 2]] * 5
    kept = best_of_each(torch.tensor([0.5, 0.5, 0.7, 0.5]), torch.tensor([1, 1, 1, 0]), slots=2)
    assert kept.tolist() == [True, False, True, True]


def test_dropping_by_position_takes_first_choices_first():
    layer = MoE(2, MoEConfig(2, 2, capacity=0.5))  # two slots an expert for four tokens with two choices each
    with torch.no_grad():
        layer.router.gate.weight.copy_(torch.eye(2))
    layer(torch.tensor([[1.0, 0], [1, 0], [1, 0], [0, 1]]))
    assert layer.routing.kept_nk.tolist() == [[True, True], [True, False], [False, False], [True, False]]
    assert (layer.routing.dropped, layer.routing.load_e.tolist()) == (4, [4, 4])


def train(group, steps, bias_rate, balance):
    """Most tokens are much alike, so they choose the same expert. The largest load over the mean, step by step."""
    torch.manual_seed(0)
    scores = "sigmoid" if bias_rate else "softmax"
    layer = MoE(WIDTH, MoEConfig(8, 1, balance=balance, bias_rate=bias_rate, scores=scores))
    ExpertParallel(group).into(layer)
    adam, imbalance = torch.optim.Adam(layer.parameters(), lr=3e-3), []
    draw = torch.Generator().manual_seed(1)
    directions = torch.randn(WIDTH, generator=draw), torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(2))
    for _ in range(steps):
        which = torch.randint(64, (256 // group.size,), generator=torch.Generator().manual_seed(group.rank))
        x = 1.5 * directions[0] + directions[1][which]
        adam.zero_grad()
        (F.mse_loss(layer(x), x.roll(1, 1)) + losses_of(layer)).backward()
        all_reduce(layer.router.gate.weight.grad, group, op="avg")
        adam.step()
        layer.router.rebalance(layer.routing.load_e)
        imbalance.append(cost.expert_imbalance(layer.routing.load_e.tolist()))
    return imbalance, layer.router.bias.tolist()


def test_a_hot_expert_is_cured():
    left_alone, _ = labkit.launch(train, 2, 60, 0.0, 0.0).results[0]
    assert left_alone[-1] > 2
    for bias_rate, balance in ((0.0, 1.0), (0.005, 0.0)):
        run = labkit.launch(train, 2, 60, bias_rate, balance)
        imbalance, bias = run.results[0]
        assert imbalance[0] > 3
        assert imbalance[-1] < 2 and imbalance[-1] < left_alone[-1] / 1.5
        assert run.results[1] == (imbalance, bias) and any(bias) == (bias_rate > 0)


def gpt(group, config, steps=2):
    model = GPT(config, seed=1).double()
    if group.size > 1:
        ExpertParallel(group).into(model)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for n in range(steps):
        tokens = torch.randint(config.vocab, (4, 9), generator=torch.Generator().manual_seed(n))
        mine = tokens.tensor_split(group.size)[group.rank]
        loss = next_token_loss(model(mine[:, :-1]), mine[:, 1:]) + losses_of(model)
        adam.zero_grad()
        loss.backward()
        for name, p in model.named_parameters():
            if "experts" in name:
                p.grad /= group.size  # it has the tokens of all ranks already
            else:
                all_reduce(p.grad, group, op="avg")
        adam.step()
    return {name: p.detach() for name, p in model.named_parameters()}


def test_a_gpt_of_experts_trains_as_on_one_device():
    config = GPTConfig(
        vocab=31, context=8, width=16, heads=2, moe=MoEConfig(4, 2, hidden=0.5, shared=0.5, capacity=1.2)
    )
    assert GPT(config).config.num_parameters == sum(p.numel() for p in GPT(config).parameters())
    whole = labkit.launch(gpt, 1, config).results[0]
    for mine in labkit.launch(gpt, 2, config).results:
        assert len(mine) < len(whole)
        for name, p in mine.items():
            torch.testing.assert_close(p, whole[name], rtol=0, atol=1e-9)


CUT = GPTConfig(vocab=31, context=12, width=24, heads=6,
                moe=MoEConfig(4, 2, hidden=0.5, shared=0.5, capacity=1.2, z=1e-3))  # fmt: skip


def gradients(group, sizes, sequence=False):
    """Loss and whole gradients of a GPT of experts; sizes: ranks along "ep" and "tp"."""
    mesh = Mesh(group, sizes)
    model = TensorParallelGPT(CUT, mesh["tp"], sequence=sequence, seed=1).double()
    ExpertParallel(mesh["ep"]).into(model)
    tokens = torch.randint(31, (4, 12), generator=torch.Generator().manual_seed(0))
    mine = tokens.tensor_split(mesh.sizes["ep"])[mesh["ep"].rank]
    loss = model(mine[:, :-1], mine[:, 1:]) + losses_of(model)
    loss.backward()
    found = model.whole_gradients()
    for name, g in found.items():
        if "experts" in name:
            g /= mesh.sizes["ep"]
        else:
            all_reduce(g, mesh["ep"], op="avg")
    return all_reduce(loss.detach(), mesh["ep"], op="avg").item(), found


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("sizes", [{"ep": 2, "tp": 2}, {"ep": 1, "tp": 3}], ids=str)
def test_experts_that_are_cut_as_well(sizes, sequence):
    loss, whole = labkit.launch(gradients, 1, {"ep": 1, "tp": 1}).results[0]
    for got, mine in labkit.launch(gradients, sizes["ep"] * sizes["tp"], sizes, sequence, transport="local").results:
        assert got == pytest.approx(loss, rel=1e-12)
        for name, g in mine.items():
            torch.testing.assert_close(g, whole[name], rtol=0, atol=1e-12)


def test_the_formulas_of_the_sources():
    assert cost.dispatch_payload_bytes(4 * 2048, 4096) == pytest.approx(67.1e6, rel=1e-3)
    assert 2 * cost.dispatch_payload_bytes(4 * 2048, 4096) == pytest.approx(134.2e6, rel=1e-3)
    assert cost.expert_capacity(8192, 64, 1.25) == 160 == MoEConfig(64, 1, capacity=1.25).slots(8192)
    assert cost.expert_capacity(33, 8, 0.5, 2) == 5 == MoEConfig(8, 2, capacity=0.5).slots(33)
    assert cost.expert_capacity(3, 8, 0.1) == 1 == MoEConfig(8, 1, capacity=0.1).slots(3)
    assert cost.balance_loss([5] * 4, [0.25] * 4) == 1 and cost.balance_loss([8, 0], [1, 0]) == 2
    assert cost.expert_imbalance([9, 1, 1, 1]) == 3


def test_segments_in_another_order():
    sizes = torch.tensor([[2, 1], [0, 3]])  # by a, then by b
    rows = torch.tensor([10, 10, 11, 21, 21, 21])
    index = in_order(sizes, (1, 0))
    assert rows[index].tolist() == [10, 10, 11, 21, 21, 21]
    assert index.tolist() == [0, 1, 2, 3, 4, 5]
    sizes = torch.tensor([[1, 2], [1, 1]])
    assert in_order(sizes, (1, 0)).tolist() == [0, 3, 1, 2, 4]
    assert rows[:5][in_order(sizes, (1, 0))][back(in_order(sizes, (1, 0)))].tolist() == rows[:5].tolist()


@pytest.mark.parametrize(("made", "words"), [
    (lambda group: MoEConfig(4, 5), "a token chooses from 1 to all of them"),
    (lambda group: MoEConfig(4, 1, capacity=0.0), "a factor above 0, or None to drop nothing"),
    (lambda group: MoEConfig(4, 1, drop="late"), "MoEConfig.drop='late'.: choose one of position, probability"),
    (lambda group: ExpertParallel(group).into(MoE(4, MoEConfig(3, 1))), "3 experts cannot be shared out evenly among"),
    (lambda group: TensorParallelGPT(GPTConfig(moe=MoEConfig(2, hidden=0.01)), group), "1 hidden numbers cannot be c"),
    (lambda group: ExpertParallel(group, hierarchical=True), "needs several nodes of equal size"),
    (lambda group: ExpertParallel(group).into(torch.nn.Linear(2, 2)), "Linear has no mixture of experts"),
    (lambda group: MoE(4, MoEConfig(3, 1))(torch.full((2, 4), torch.nan)), "the router's logits of token 0 are not f"),
])  # fmt: skip
def test_what_cannot_be_is_refused_on_every_rank(made, words):
    def refused(group):
        with pytest.raises((RefusedError, ValueError), match=words):
            made(group)
        return True

    assert labkit.launch(refused, 2).results == [True, True]
