"""Rules of thumb answered by computing: the decision tree, the bandwidth check, and the chapter's own figures."""

from __future__ import annotations

import pytest

from labkit import cost
from labkit.cost import planner
from labkit.cost.planner import MODELS, Plan, advice, estimate

GPT3 = MODELS["GPT-3 175B"]


@pytest.mark.parametrize(
    "name, gpus, batch, rung",
    [
        ("GPT-2 1.5B", 8, 128, "plain data parallelism"),
        ("Llama 3 8B", 64, 512, "ZeRO-1"),
        ("Llama 3 70B", 256, 512, "ZeRO-3"),
        ("GPT-3 175B", 128, 128, "ZeRO-3"),
    ],
)
def test_where_the_tree_stops(name: str, gpus: int, batch: int, rung: str) -> None:
    given = advice(MODELS[name], planner.h100_cluster(gpus), batch)
    assert given.first is not None and given.first.name == rung
    before = given.rungs[: given.rungs.index(given.first)]
    assert all(one.needs > 80e9 for one in before)
    assert len(given.sentences()) == len(before) + 2
    # What replicas need is the closed form: 18 bytes a parameter with 4-byte gradients, and some activations.
    assert given.rungs[0].needs > 18 * MODELS[name].params * 0.999


def test_the_tree_costs_time_where_it_stops_early() -> None:
    given = advice(GPT3, planner.h100_cluster(1024), 1024)
    assert given.first is not None and given.first.best is not None
    assert given.first.best.seconds > 1.3 * given.found.winner.seconds
    assert "stopping at what fits first costs" in given.sentences()[-1]
    assert given.found.winner.plan.tensor <= 8 and given.found.winner.plan.pipeline > 1


def test_when_nothing_fits_the_tree_says_so() -> None:
    given = advice(GPT3, planner.h100_cluster(16), 16)
    assert given.first is None and given.sentences()[-1].startswith("No plan fits for GPT-3 175B on 16 GPUs")


def test_the_bandwidth_check_counts_what_leaves_a_domain() -> None:
    one = estimate(GPT3, planner.h100_cluster(1024), Plan(1, 1, 1, 1, 1024, 1, 1, sharding="plain", gradient_bytes=2))
    (check,) = planner.bandwidth_check(one)
    whole = cost.ring_all_reduce_bytes(2 * (GPT3.params - 2 * GPT3.hidden), 1024)
    assert (check.axis, check.link) == ("data", "cluster")
    assert check.nbytes == pytest.approx(whole / 8) and check.seconds == pytest.approx(check.nbytes / 50e9)


def test_tensor_parallelism_across_nodes_cannot_hide() -> None:
    checks = [
        planner.bandwidth_check(estimate(GPT3, planner.h100_cluster(1024), plan))[0]
        for plan in (Plan(8, 4, 1, 1, 32, 1, 32), Plan(16, 2, 1, 1, 32, 1, 32))
    ]
    assert [check.link for check in checks] == ["node", "cluster"]
    assert checks[0].waited < checks[1].waited
    assert "So the step waits" in planner.bandwidth_sentence(checks[0])


# The chapter's figures


def test_configurations_a_b_and_c() -> None:
    a, b, c = planner.configurations_a_b_c().values()
    assert [one.plan.gpus for one in (a, b, c)] == [1024] * 3
    # The chapter: A 37.5 percent efficient, B 54.5, C better still. A and B do not even fit.
    assert not a.fits and a.held.total > 1e12 and not b.fits and c.fits
    waits = [one.parts["data"] for one in (a, b, c)]
    assert waits[1] > 3 * waits[2]  # a quarter of the gradients on each GPU
    assert c.seconds < b.seconds


def test_memory_alone_does_not_choose() -> None:
    tensor, pipeline, claim = planner.pipeline_or_tensor()
    assert tensor.fits and pipeline.fits  # both hold; the chapter's point, and its direction
    assert claim.found > 23 and not claim.agrees
    assert pipeline.bubble < 0.15 and "because " in claim.why


def test_how_far_the_pipeline_is_ahead_depends_on_what_is_hidden_and_how_often_is_gathered() -> None:
    bare, hidden, twice = (planner.pipeline_over_tensor(*case) for case in ((1, False), (1, True), (2, True)))
    assert bare == pytest.approx(planner.pipeline_or_tensor()[2].found)  # the same two plans
    assert bare > hidden > twice > 0  # hidden, and then half as many gatherings
    assert round(hidden) == 177 and round(twice) == 26


def test_sharding_a_model_that_would_not_fit_without() -> None:
    slower, held = planner.sharding_overhead()
    assert not slower.agrees and slower.found < 19
    assert not held.agrees and held.found > 16 * 6.7  # GB: 16 bytes for each parameter of 7B


def test_the_optimizer_s_choice_and_its_mfu() -> None:
    theirs, most, ours = planner.optimizer_choice()
    assert most.found == 6.25  # 50 percent / 8: what dividing by its own bubble leaves
    assert not theirs.agrees and theirs.found > 30 and ours.found >= theirs.found


def test_a_slower_network_saves_less_than_it_loses() -> None:
    worth = planner.network_worth(MODELS["Llama 3 8B"], planner.h100_cluster(64), 128, factor=0.25)
    assert worth["saved"] == pytest.approx(0.125 * 0.75) and 0 < worth["lost"] < 1
    assert worth["a token costs more"] == pytest.approx((1 - worth["saved"]) / (1 - worth["lost"]) - 1)
    same = planner.network_worth(MODELS["Llama 3 8B"], planner.h100_cluster(64), 128, factor=1.0)
    assert same == {"saved": 0.0, "lost": 0.0, "a token costs more": 0.0}
