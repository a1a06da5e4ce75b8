"""The search finds what trying everything finds, says why the rest lost, and more memory never hurts."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings, strategies as st

from labkit.cost import planner
from labkit.cost.planner import MODELS, Model, Plan, Space, estimate, search
from labkit.cost.planner.explain import _WORDS

TINY = Model("tiny", 4, 1024, 8, 4, gated=True, vocabulary=32_000, sequence=2048, tied=False)
EXPERTS = Model("tiny experts", 4, 1024, 8, 4, gated=True, vocabulary=32_000, sequence=2048, tied=False, experts=4,
                top_k=2, expert_inside=2048)  # fmt: skip
GPT3, LLAMA = MODELS["GPT-3 175B"], MODELS["Llama 3 405B"]
GPUS = 16
CLUSTER = planner.h100_cluster(GPUS).with_memory(6e9)


def everything(model: Model, batch: int) -> list[Plan]:
    """All plans of the space, by trying all numbers; no part is shared, nothing is left out early."""
    sizes = (1, 2, 4, 8, 16)
    plans = []
    for t, p, c, e, d in product(sizes, repeat=5):
        if t * p * c * e * d != GPUS or c > 4:
            continue
        for b, recompute in product((1, 2, 4, 8), ("all", "selective", "full")):
            if batch % (d * e * b):
                continue
            runs = [("one_f_one_b", 1), ("zb_h1", 1), ("zb_h2", 1), *(("interleaved", v) for v in (2, 3, 4, 5))]
            kinds = [("zero1", 0), ("zero2", 0), ("zero3", 0), ("hsdp", 8 // t)]
            for (schedule, v), (kind, shard) in product(runs if p > 1 else runs[:1], kinds):
                if kind == "hsdp" and not (1 < shard < d * e * c and d * e * c % shard == 0):
                    continue
                m = batch // (d * e * b)
                parts = -(-model.layers // (p * v)) * p * v - model.layers
                if schedule == "interleaved" and parts > 2:
                    continue
                plan = Plan(t, p, c, e, d, b, m, schedule, v, kind, shard, recompute, t > 1)
                if not plan.why_impossible(model, GPUS):
                    plans.append(plan)
    return plans


@pytest.mark.parametrize("model", [TINY, EXPERTS], ids=lambda model: model.name)
def test_nothing_that_fits_is_faster_than_the_winner(model: Model) -> None:
    found = search(model, CLUSTER, 64)
    costs = planner.Costs(model, CLUSTER)
    fitting = [one for plan in everything(model, 64) if (one := estimate(model, CLUSTER, plan, costs=costs)).fits]
    assert found.winner.seconds == pytest.approx(min(one.seconds for one in fitting))
    by_cut: dict[tuple[int, ...], float] = {}
    for one in fitting:
        by_cut[one.plan.cut] = min(one.seconds, by_cut.get(one.plan.cut, 1e9))
    ten = sorted(by_cut.values())[:10]
    assert [one.seconds for one in found.best] == pytest.approx(ten)
    # The frontier: of those that hold at most as much, none is faster.
    for point in found.frontier:
        smaller = [one for one in fitting if one.held.total <= point.held.total * (1 + 1e-12)]
        assert point.seconds == pytest.approx(min(one.seconds for one in smaller))


def test_the_search_and_the_estimate_are_one_model() -> None:
    found = search(TINY, CLUSTER, 64)
    for one in (*found.best, *found.frontier):
        alone = estimate(TINY, CLUSTER, one.plan)
        assert alone.seconds == one.seconds and alone.held == one.held
        assert one.fits and one.plan.gpus == GPUS and one.plan.batch == 64


def test_the_frontier_trades_memory_for_time() -> None:
    points = search(TINY, CLUSTER, 64).frontier
    assert len(points) > 3
    assert all(a.seconds <= b.seconds and a.held.total > b.held.total for a, b in zip(points, points[1:], strict=False))


@settings(max_examples=8)
@given(st.floats(1.5e9, 1e10), st.floats(1, 3))
def test_more_memory_never_makes_a_plan_impossible_or_the_winner_slower(memory: float, factor: float) -> None:
    few, many = (search(TINY, CLUSTER.with_memory(x), 64, keep=99) for x in (memory, memory * factor))
    assert many.fitting >= few.fitting
    assert {one.plan.cut for one in few.best} <= {one.plan.cut for one in many.best}
    if few.best:
        assert many.winner.seconds <= few.winner.seconds * (1 + 1e-12)


@pytest.mark.parametrize("gpus, batch", [(131_072, 16_384), (24_576, 3072)])
def test_a_large_machine_is_searched(gpus: int, batch: int) -> None:
    found = search(LLAMA, planner.h100_cluster(gpus), batch)
    assert found.considered > 10_000 and len(found.best) == 10
    assert all(one.plan.gpus == gpus and one.plan.batch == batch and one.fits for one in found.best)


def test_domains_of_72() -> None:
    found = search(MODELS["Llama 3 70B"], planner.nvl72_cluster(4), 288)
    assert found.winner.plan.gpus == 288 and found.winner.link["tensor"] in ("", "rack")


def test_a_supernode_of_384_has_room_for_every_axis() -> None:
    found = search(MODELS["Llama 3 70B"], planner.cloudmatrix_cluster(1), 384)
    assert found.winner.plan.gpus == 384 and set(found.winner.link.values()) <= {"supernode", ""}
    assert planner.cloudmatrix_cluster(3).gpus == 1152 and found.winner.cluster.peak == 2 * 376e12


# Why not


def test_each_of_the_others_lost_for_a_part_of_its_step() -> None:
    found = search(GPT3, planner.h100_cluster(1024), 1024)
    said = planner.lost(found)
    assert len(said) == 9
    for one, sentence in zip(found.best[1:], said, strict=True):
        assert sentence.startswith(str(one.plan)) and "% slower, because " in sentence
    gaps = {part: found.best[1].parts[part] - found.winner.parts[part] for part in planner.PARTS}
    assert f"because {_WORDS[max(gaps, key=gaps.__getitem__)]} takes" in said[0]


def test_what_does_not_fit_is_told_with_what_would_make_it_fit() -> None:
    costs = planner.Costs(GPT3, planner.h100_cluster(1024))
    plan = Plan(8, 4, 1, 1, 32, 1, 32)
    assert planner.why_too_large(costs, plan) == (
        "needs 109 GB, 66.5 GB of it for the optimizer's state; a GPU has 80. ZeRO-1, ZeRO-2 or ZeRO-3 would fit"
    )
    for remedy in planner.remedies(costs, plan, most=99):
        assert estimate(GPT3, costs.cluster, remedy.plan).fits and remedy.plan.gpus == 1024
        assert remedy.plan.batch == plan.batch
    # One change is not enough here.
    large = planner.remedies(costs, Plan(8, 4, 1, 1, 32, 8, 4, recompute="all"))
    assert large and all(" with " in remedy.words for remedy in large)
    assert planner.why_too_large(costs, Plan(8, 8, 1, 1, 16, 1, 64, sharding="zero1")) == ""


def test_twice_as_wide_a_cut_fits() -> None:
    costs = planner.Costs(LLAMA, planner.h100_cluster(1024))
    plan = Plan(8, 16, 1, 1, 8, 1, 32, sharding="zero1", recompute="all")
    words = [remedy.words for remedy in planner.remedies(costs, plan, most=99)]
    assert {"TP 16", "full recomputation"} <= set(words)


def test_when_nothing_fits_the_nearest_is_named_and_where_it_would_fit() -> None:
    found = search(GPT3, planner.h100_cluster(16), 16)
    assert not found.best and found.nearest is not None and found.nearest.held.total > 80e9
    assert len(planner.rejections(found)) == len(found.refused) + len(found.too_large)
    least = min(one.held.total for one in (estimate(GPT3, found.cluster, p) for p in found.too_large.values()))
    assert found.nearest.held.total == least
    with pytest.raises(ValueError, match=rf"needs {least / 1e9:.1f} GB of 80, {(least - 80e9) / 1e9:.1f} GB too many"):
        _ = found.winner
    larger = planner.nearest_that_fits(found)
    assert larger is not None and larger.cluster.gpus == 64 and larger.winner.fits
    assert not search(GPT3, planner.h100_cluster(32), 16).best


def test_why_a_plan_was_not_taken() -> None:
    found = search(GPT3, planner.h100_cluster(1024), 1024)
    say = planner.why_not
    assert "is impossible: tensor=64 does not divide the 96 heads" in say(found, Plan(64, 1, 1, 1, 16, 1, 64))
    assert "has a batch of 512 sequences, and the search was for 1024" in say(found, Plan(8, 4, 1, 1, 32, 1, 16))
    assert "needs 109 GB, 66.5 GB of it for the optimizer's state" in say(found, Plan(8, 4, 1, 1, 32, 1, 32))
    assert "% slower, because " in say(found, Plan(8, 4, 1, 1, 32, 1, 32, sharding="zero1"))


def test_two_plans_in_sentences() -> None:
    found = search(GPT3, planner.h100_cluster(1024), 1024)
    fast, slow = found.winner, found.best[3]
    said = planner.compared(slow, fast)
    assert said == planner.compared(fast, slow)
    assert f"{slow.seconds / fast.seconds - 1:.1%} longer" in said[1]
    assert planner.compared(fast, fast) == [f"Both are the same plan, {fast.plan}."]
    words = " ".join(planner.explained(fast))
    assert f"MFU of {fast.mfu:.1%}" in words and f"{fast.held.total / 1e9:.1f} GB of 80, which fits" in words


def test_a_space_keeps_to_what_the_software_can_do() -> None:
    space = Space((2,), ("one_f_one_b",), ("zero1",), ("full",), tensor_limit=2, context_limit=1)
    found = search(TINY, CLUSTER, 64, space, keep=99)
    for one in found.best:
        plan = one.plan
        assert plan.microbatch == 2 and plan.schedule == "one_f_one_b" and plan.recompute == "full"
        assert plan.tensor <= 2 and plan.context == 1 and plan.sharding == "zero1"


def test_the_nearest_is_the_plan_that_needs_least_of_all() -> None:
    small = CLUSTER.with_memory(1e8)
    found, costs = search(TINY, small, 64), planner.Costs(TINY, small)
    assert not found.best and found.nearest is not None
    needs = [planner.memory_of(costs, plan).total for plan in everything(TINY, 64)]
    assert found.nearest.held.total == pytest.approx(min(needs))
    by_cut = {cut: planner.memory_of(costs, plan).total for cut, plan in found.too_large.items()}
    assert min(by_cut.values()) == found.nearest.held.total
