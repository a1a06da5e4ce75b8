"""Keys of chapter 12 and what its checks compare with: slips are told apart, loads are counted one by one, and the
bytes of the programs are those of messages that are listed."""

from __future__ import annotations

import itertools

import pytest
import torch
from slips import every_draw, letters_have_reasons, tell_apart

from labkit import cost
from labkit.chapters.c12_experts import checks, keys, runs
from labkit.grading.answers import find_key
from labkit.grading.checks.fresh import Fresh
from labkit.models import MoEConfig
from labkit.models.moe import MoE

CHAPTER = "12_experts"


def answer(name, **numbers):
    return find_key(CHAPTER, name, **numbers).answer


HELD = every_draw(X=[64, 128, 160], k=[6, 8], L=[24, 28, 32], ep=[8, 16, 32])
DIVIDED = every_draw(n=[4096, 8192], k=[4, 6, 8], ep=[8, 16, 32], each=[2, 4, 8], hot=[3, 4, 5])
FULL = every_draw(X=[32, 64, 128], hot=[3, 4, 5], C=[1.25, 1.5])
ONCE = every_draw(n=[2048, 4096], k=[6, 8], nodes=[4, 8, 16], M=[2, 3])
LOSS = every_draw(X=[8, 16, 32], p=[30, 40, 60], q=[60, 75, 90])
KEYS = [
    *((name, g) for name in ("held_billions", "used_billions", "gigabytes_each", "fewest_gpus") for g in HELD),
    *((name, g) for name in ("rows_claimed", "rows_really", "rows_with_hot") for g in DIVIDED),
    *((name, g) for name in ("percent_dropped", "percent_empty", "factor_for_all", "empty_for_all") for g in FULL),
    *((name, g) for name in ("four_all_to_alls", "across_each", "across_once", "across_at_most") for g in ONCE),
    *((name, g) for name in ("even_value", "collapsed_value", "half_value", "blind_value") for g in LOSS),
]


@pytest.mark.parametrize("name", sorted({name for name, _ in KEYS}))
def test_no_slip_is_right_and_each_is_told_apart_by_some_numbers(name):
    tell_apart(find_key(CHAPTER, name, **numbers) for same, numbers in KEYS if same == name)


@pytest.mark.parametrize(
    "name, right, letters", [("why_not_divided", "b", "abcd"), ("what_the_bias_changes", "bce", "abcde")]
)
def test_letters_have_a_reason_each(name, right, letters):
    letters_have_reasons(find_key(CHAPTER, name), right, letters)


def test_parameters_are_near_those_of_the_model_whose_sizes_they_have():
    """DeepSeekMoE 16B: 16.4 billion, of which a token uses 2.8 (Dai et al. 2024)."""
    assert answer("held_billions", X=64, k=6, L=27, ep=8) == pytest.approx(16.4, rel=0.02)
    assert answer("used_billions", X=64, k=6, L=27, ep=8) == pytest.approx(2.8, rel=0.06)
    for numbers in HELD:
        fits = answer("fewest_gpus", **numbers)
        assert answer("gigabytes_each", **numbers | {"ep": fits}) <= keys.ROOM
        assert answer("gigabytes_each", **numbers | {"ep": fits / 2}) > keys.ROOM


@pytest.mark.parametrize("numbers", DIVIDED[::7])
def test_rows_of_all_gpus_are_all_choices(numbers):
    n, k, ep, each, hot = (numbers[name] for name in ("n", "k", "ep", "each", "hot"))
    experts, choices = ep * each, ep * n * k
    loads = [hot * choices / experts] + [choices * (1 - hot / experts) / (experts - 1)] * (experts - 1)
    rows = [sum(loads[r * each : (r + 1) * each]) for r in range(ep)]
    assert rows[0] == pytest.approx(answer("rows_with_hot", **numbers)) and max(rows) == rows[0]
    assert sum(rows) / ep == pytest.approx(answer("rows_really", **numbers))


@pytest.mark.parametrize("numbers", FULL)
def test_drops_and_empty_places_are_those_of_a_list_of_loads(numbers):
    X, hot, C = (numbers[name] for name in ("X", "hot", "C"))
    share = 1000 * (X - 2)  # of an expert, so that all loads are whole
    loads = [hot * share] * 2 + [1000 * (X - 2 * hot)] * (X - 2)
    assert sum(loads) == X * share

    def paid(factor):
        slots = cost.expert_capacity(X * share, X, factor)
        kept = sum(min(load, slots) for load in loads)
        return 100 * (1 - kept / sum(loads)), 100 * (1 - kept / (slots * X))

    assert paid(C) == pytest.approx((answer("percent_dropped", **numbers), answer("percent_empty", **numbers)))
    enough = answer("factor_for_all", **numbers)
    assert paid(enough) == pytest.approx((0, answer("empty_for_all", **numbers)))
    assert paid(0.99 * enough)[0] > 0


def test_the_mean_of_nodes_is_that_of_all_ways_to_choose():
    for nodes, k in ((2, 3), (3, 2), (4, 4)):
        ways = list(itertools.product(range(nodes), repeat=k))
        mean = sum(len(set(way) - {0}) for way in ways) / len(ways)
        copy = cost.dispatch_payload_bytes(512, keys.V3_WIDTH) / 1e6
        assert answer("across_once", n=512, k=k, nodes=nodes, M=1) == pytest.approx(mean * copy)
        each = sum(sum(m > 0 for m in way) for way in ways) / len(ways)
        assert answer("across_each", n=512, k=k, nodes=nodes, M=1) == pytest.approx(each * copy)


def test_values_of_the_loss_are_those_of_the_router():
    """A layer whose logits are its inputs: what `Router` adds to the loss, over its weight."""

    def value(logits):
        layer = MoE(len(logits[0]), MoEConfig(len(logits[0]), choices=1, balance=1.0))
        with torch.no_grad():
            layer.router.gate.weight.copy_(torch.eye(len(logits[0])))
        layer(torch.tensor(logits)[None].log())
        return layer.routing.losses.item()

    def scores(best, p, X):
        return [p if e == best else (1 - p) / (X - 1) for e in range(X)]

    X, p = 8, 40
    numbers = {"X": X, "p": p, "q": 75}
    assert value([scores(e, 0.3, X) for e in range(X)]) == pytest.approx(answer("even_value", **numbers), rel=1e-4)
    assert value([scores(2, p / 100, X)] * 5) == pytest.approx(answer("collapsed_value", **numbers), rel=1e-4)
    assert value([scores(2, 0.1251, X)] * 5) == pytest.approx(answer("blind_value", **numbers), rel=1e-2)
    half = [[0.75 if e == best else 0.25 / 4 if e >= 4 else 1e-9 for e in range(X)] for best in range(4)]
    assert value(half) == pytest.approx(answer("half_value", **numbers), rel=1e-4)


# What programs are compared with -----------------------------------------------------------------------------------


def test_a_step_of_the_layer_sends_what_a_list_of_its_rows_says():
    inputs = checks.dispatched(Fresh(7, "").tensor, [5, 6, 7], 3, 2)
    due = [2 * 3 * 8] * 3
    for rank, mine in enumerate(inputs):
        for experts, weights in zip(mine["experts"].tolist(), mine["weights"].tolist(), strict=True):
            assert len(set(experts)) == 2 and 7 not in experts, "expert 7 gets nothing"
            for expert, weight in zip(experts, weights, strict=True):
                if weight and expert // 3 != rank:
                    due[rank] += 2 * checks.WIDTH
                    due[expert // 3] += 4 * checks.WIDTH
    assert checks.layer_bytes(inputs, 3) == due
    assert any(not weight for mine in inputs for weight in mine["weights"].flatten().tolist())


def test_a_token_goes_to_a_node_once_and_inside_to_a_rank_once():
    inputs = runs.gated(Fresh(7, "").tensor, [5, 6, 7, 4], 2, 4)
    across, inside = node_lists(inputs, 2, 2)
    assert runs.node_bytes(inputs, 2, 2) == (across, inside)
    alone = runs.node_bytes(inputs, 2, 2, once=False)
    assert sum(alone[0]) > sum(across) and sum(alone[1]) > sum(inside)


def node_lists(inputs, per_node, per_rank):
    """Bytes of a token after the other."""
    n, row = len(inputs), 8 * checks.WIDTH
    across = [8 * (n // per_node - 1)] * n
    inside = [8 * (per_node - 1)] * n
    for rank, mine in enumerate(inputs):
        for gates in mine["gates"].tolist():
            wanted = {e // per_rank for e, gate in enumerate(gates) if gate}
            for node in {r // per_node for r in wanted}:
                relay = node * per_node + rank % per_node
                if relay != rank and node != rank // per_node:
                    across[rank] += row + 8 * per_node * per_rank
                    across[relay] += row
                for r in wanted:
                    if r // per_node == node and r != relay:
                        inside[relay] += row + 8 * per_rank
                        inside[r] += row
    return across, inside


def test_gradients_of_all_ranks_together_are_those_of_one_device():
    inputs = runs.lessons(Fresh(3, "").tensor, [4, 0, 7])
    parts = runs.gradients_by_rank(inputs, 5)
    layer = runs.small_layer(5)
    x, y = (torch.cat([mine[name] for mine in inputs]) for name in "xy")
    (layer(x) - y).square().mean().backward()
    for name, p in layer.named_parameters():
        torch.testing.assert_close(sum(part[name] for part in parts) / len(x), p.grad)
