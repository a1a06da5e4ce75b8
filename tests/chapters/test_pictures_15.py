"""What chapter 15 draws and says agrees with what its ranks did, with the closed forms, and with the planner."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import re

import pytest
import torch

import labkit
from labkit import book, cost
from labkit.chapters.c15_hybrid_parallelism import (
    cases,
    doing,
    drawings,
    memo,
    panels,
    pictures,
    said,
    same,
    searches,
    small,
    you_write,
)
from labkit.collectives import all_reduce
from labkit.cost import planner
from labkit.cost.planner import MODELS, Plan
from labkit.course.chapter_file import load_chapter
from labkit.parallel import Hybrid, HybridConfig
from labkit.wire import Group
from labkit.wire.recording.breakdown import length

LINKS = small.network(8, nodes=4)


def test_the_cube_has_every_rank_once_and_its_groups() -> None:
    player = drawings.cube({"dp": 2, "pp": 2, "tp": 2})
    assert len(player.frames) == 4 and "{0, 1} and {2, 3}" in player.frames[3][1]
    assert [row["rank"] for row in player.still.rows] == list(range(8))
    for n in range(8):
        assert player.frames[0][0].count(f">{n}</text>") == 1


def test_the_machines_are_those_of_the_planner() -> None:
    player = drawings.machines()
    assert [row["fast domain"] for row in player.still.rows] == [8, 72, 384]
    assert player.frames[1][0].count("#e69f00") >= 72 and player.frames[2][0].count("#e69f00") >= 384


def test_published_runs_are_drawn_by_their_errors() -> None:
    rows = pictures.published({run: run.estimated() for run in (*planner.MEGATRON_2021, *planner.LLAMA3_405B)}).rows
    assert len(rows) == 13 and all(
        row["off (%)"] == pytest.approx(100 * (row["planner"] / row["published"] - 1)) for row in rows
    )


def test_the_rungs_say_what_their_searches_found() -> None:
    given = planner.advice(MODELS["Llama 3 8B"], planner.h100_cluster(8), 128)
    player = drawings.ladder(given, pictures.short)
    assert [words for _, words in player.frames] == given.sentences(pictures.short)
    assert [row["rung"] for row in player.still.rows] == [rung.name for rung in given.rungs]


def test_bars_of_parts_add_up() -> None:
    found = planner.search(MODELS["Llama 3 8B"], planner.h100_cluster(64), 256)
    shown = pictures.named(found.best)
    for figure, total in ((pictures.steps(shown), lambda one: one.seconds),
                          (pictures.memory(shown), lambda one: one.held.total / 1e9)):  # fmt: skip
        assert [row["all"] for row in figure.rows] == pytest.approx([total(one) for one in shown.values()])


def test_a_plan_made_small_uses_all_ranks_and_the_axes_of_the_plan() -> None:
    for plan, wanted in (
        (Plan(8, 4, data=32, microbatches=32, sharding="zero1"), (2, 2, 1, 2, "zero1")),
        (Plan(data=64, sharding="zero3"), (1, 1, 1, 8, "fsdp")),
        (Plan(4, 16, 2, data=64, microbatches=32, sharding="zero2"), (2, 2, 1, 2, "zero1")),
        (Plan(8, 8, microbatches=64), (4, 2, 1, 1, "plain")),
        (Plan(context=2, data=128, sharding="zero2"), (1, 1, 2, 4, "zero2")),
    ):
        config = small.shape_of(plan)
        assert (config.tp, config.pp, config.cp, config.dp, config.data) == wanted and config.size == 8


def test_the_histogram_has_every_plan_that_fits_once() -> None:
    found = planner.search(MODELS["Llama 3 8B"], planner.h100_cluster(64), 256)
    assert len(found.seconds) == found.fitting and min(found.seconds) == pytest.approx(found.winner.seconds)
    rows = pictures.all_plans(found).rows
    assert sum(row["plans"] for row in rows) == found.fitting and len(rows) == 10
    assert all(row["plans"] == sum(n for name, n in row.items() if name in drawings.PARTS) for row in rows)
    assert sum(row["plans"] for row in rows[:5]) == sum(s > 2 * found.winner.seconds for s in found.seconds)


def test_most_plans_that_fit_take_twice_as_long_as_the_best() -> None:
    """What the first screen says of the 1,024 GPUs."""
    found = panels.searched("GPT-3 175B", "1,024 H100")
    assert sum(s > 2 * found.winner.seconds for s in found.seconds) > found.fitting / 2 > 1000


def test_the_best_plan_moves_as_the_text_says() -> None:
    """What the reader is sent to find: a thin network, a small batch, and racks with a domain of 64."""
    base, thin, few, racks = (
        panels.searched("GPT-3 175B", machine, network, batch).winner.plan
        for machine, network, batch in (
            ("1,024 H100", "full", 1024), ("1,024 H100", "fat tree 4 : 1", 1024), ("1,024 H100", "full", 256),
            ("16 racks of 64 B200", "full", 1024),
        )
    )  # fmt: skip
    assert thin.pipeline > base.pipeline and thin.data < base.data and thin.schedule.startswith("zb")
    assert few.data < base.data and few.tensor > base.tensor
    assert base.pipeline > 1 and racks.pipeline == 1 and racks.stage == 3
    assert not panels.searched("Llama 3 405B", "64 A100").best


def test_the_fastest_cut_does_not_fill_a_node_with_tensor_ranks() -> None:
    job = cases.Job("GPT-3 175B", gpus=1024, batch=1024)
    cut = you_write.best_cut(job.gpus, job.heads, job.layers, job.fits, job.seconds)
    eight = min(one.seconds for one in job.with_tensor(8))

    def fits(t: int, p: int, d: int) -> bool:
        mine = you_write.state_bytes(175e9, t, p, d, 2, 4, 12)
        return job.batch % d == 0 and mine + job.activations(t, p, d) <= 80e9

    def seconds(t: int, p: int, d: int) -> float:
        return you_write.step_seconds(t, p, job.batch // d, job.layers, **job.ingredients(t, p, d))

    own = you_write.best_cut(job.gpus, job.heads, job.layers, fits, seconds)
    promised = searches.own_planner(job, own, seconds, cut, you_write.best_cut).text
    best = job.found.winner
    without_cp = next(one for one in job.found.best if one.plan.context == 1)
    told = searches.search(job, job.of(*cut), without_cp, best, you_write.best_cut).text
    assert seconds(*own) <= seconds(*cut) and job.seconds(*own) > 1.2 * seconds(*own), "a search finds what is too good"
    assert f"promised {seconds(*own):.2f} s" in promised and "a real stage has a whole number" in promised
    found = job.all_cuts()
    drawn = drawings.cuts(found, {"own": own[:2], "labkit's": cut[:2]}, "cuts", "all")
    assert len(drawn.rows) == len(found) and drawn.svg.count(" s</text>") == sum(s is not None for s in found.values())
    assert min(s for s in found.values() if s) == found[cut[:2]] == job.seconds(*cut) and None in found.values()
    assert "no cut that fits" in searches.own_planner(job, None, seconds, cut, you_write.best_cut).text
    without = planner.search(job.model, planner.h100_cluster(1024), 1024, planner.Space(context_limit=1)).winner
    assert f"only {without.seconds / job.found.winner.seconds - 1:.1%} longer" in told
    assert job.found.winner.seconds < job.seconds(*cut) < eight and max(cut[0], job.found.winner.plan.tensor) < 8
    assert eight == min(job.seconds(8, p, 128 // p) for p in (1, 2, 4, 8, 16, 32, 64) if job.fits(8, p, 128 // p))


@pytest.mark.parametrize("machine", panels.CLUSTERS)
@pytest.mark.parametrize("batch", [256, 1024])
def test_every_plan_that_a_reader_can_choose_can_run_small(machine: str, batch: int) -> None:
    for model in ("GPT-3 175B", "Llama 3 70B"):
        for one in panels.searched(model, machine, "full", batch).best:
            config = small.shape_of(one.plan)
            assert config.size == 8 and small.BATCH % (config.dp * config.microbatches) == 0, (one.plan, config)


def test_what_hides_of_an_axis_is_a_part_of_what_it_takes_alone() -> None:
    few, many = (
        {check.axis: check for check in planner.bandwidth_check(planner.estimate(
            MODELS["GPT-3 175B"], planner.h100_cluster(1024), Plan(8, 8, data=16, microbatch=64 // m, microbatches=m)
        ))}["data"] for m in (8, 64)
    )  # fmt: skip
    assert few.waited < many.waited < many.alone == pytest.approx(few.alone)
    assert many.alone > many.seconds, "software does not reach the full rate"
    assert f"of which {1 - many.waited / many.alone:.0%} hide" in planner.bandwidth_sentence(many)


def test_a_memo_is_answered_point_by_point() -> None:
    model, cluster = MODELS["Llama 3 70B"], planner.h100_cluster(256)
    plan = Plan(8, 4, data=8, microbatches=64, sharding="zero1")
    told = memo.critique(model, cluster, plan, 300e9)
    assert (
        told.count("\n| ") == 16  # twelve answers, and a table of links
        and "| pipeline | cluster |" in told
        and "Yes: the fullest GPU holds" in told
        and "% slower" in told
    )
    assert "| Bubble | 4.5% of the pipeline's time idle" in told  # 3 of 67
    assert memo.critique(model, cluster, dataclasses.replace(plan, tensor=3), 1e9).startswith("**It cannot run.**")
    assert "optimizer's state lies nowhere else" in told and "most optimistic assumption" not in told
    tight = memo.critique(model, cluster, dataclasses.replace(plan, schedule="zb_h1"), 1e7)
    waits = planner.estimate(model, cluster, dataclasses.replace(plan, schedule="zb_h1"))
    assert f"what stages still wait is {waits.parts['bubble'] / waits.seconds:.1%} of the step" in tight
    assert "0.00 million" not in tight and " dollars, " in tight and "| 0 MWh" not in tight
    gathers = dataclasses.replace(
        plan, tensor=1, pipeline=1, data=256, microbatches=2, sharding="zero3", recompute="full"
    )
    assert "hides so well is the planner's most optimistic assumption" in memo.critique(model, cluster, gathers, 1e9)
    other = dataclasses.replace(plan, microbatches=65)
    assert (
        "**That is another job.** Your plan has 520 sequences"
        in memo.answer("Llama 3 70B", 256, other, 1e9, batch=512).text
    )
    assert "Does it fit?" in memo.answer("Llama 3 70B", 256, plan, 1e9, batch=512).text
    large = memo.critique(
        model, cluster, dataclasses.replace(plan, sharding="plain", tensor=1, data=64, microbatches=8), 1e9
    )
    assert "No: it needs" in large and "Price" not in large and "first hour" not in large
    one = planner.estimate(model, cluster, plan)
    assert "| In the first step | A loss near ln(128,256) = 11.8" in told and f"{one.parts['tensor']:.2g} s for" in told
    low, high = (f"{one.seconds * (1 + way * pictures.published_error(max)):.3g} s" for way in (-1, 1))
    assert f"Steps of {low} to {high}" in told
    best = planner.search(model, cluster, 512).winner.plan
    assert "found no plan that is faster" in memo.critique(model, cluster, best, 1e9)
    quiet = memo.critique(model, cluster, plan, 300e9, reveal=False)
    assert str(best) not in quiet and "Yours loses most in" in quiet and "uneven" not in quiet
    once = planner.search(model, cluster, 512, planner.Space(sharding=("plain", "zero1"))).winner
    part = planner.estimate(model, cluster, plan).seconds / once.seconds - 1
    assert memo._hides(planner.search(model, cluster, 512).winner) and not memo._hides(once)
    assert (
        f"ZeRO-1 does not need it, and your step takes {part:.0%} longer than its" in quiet
        and str(once.plan) not in quiet
    )
    assert str(once.plan) in told
    assert "First it has to fit" in memo.critique(
        model, cluster, dataclasses.replace(plan, tensor=1, pipeline=1, data=cluster.gpus, microbatches=1), 1e9,
        reveal=False,
    )  # fmt: skip


def test_a_memo_shows_the_planners_plan_also_to_one_that_does_not_fit_and_refuses_in_a_sentence() -> None:
    def told(reveal: bool = False, **choices: object) -> str:
        plan = {"data": 256, "microbatches": 2, "sharding": "zero3", "recompute": "selective"} | choices
        return memo.answer("Llama 3 70B", 256, plan, 1e9, batch=512, reveal=reveal).text

    best = str(planner.search(MODELS["Llama 3 70B"], planner.h100_cluster(256), 512).winner.plan)
    assert told(recompute="none") == told(recompute="all") != told()
    assert (
        "With ZeRO-1 it would take" in told(True)
        and best in told(True)
        and "Yours does not fit" in told(True)
        and "If it did fit, " in told(True)
    )
    assert best not in told() and "First it has to fit" in told()
    for choices, why in (
        ({"sharding": "hsdp"}, "needs shard=..."), ({"sharding": "zero9"}, "must be one of"),
        ({"schedule": "interleaved"}, "needs chunks=..."), ({"tensr": 2}, "no choice 'tensr': a plan has tensor"),
        ({"tensor": 2.0}, "whole number"), ({"data": 128}, "128 ranks do not fill 256 GPUs"),
    ):  # fmt: skip
        assert told(**choices).startswith("**It cannot run") and why in told(**choices)


def test_a_model_of_the_reader_s_own_is_searched_and_comes_with_reasons_and_error(monkeypatch) -> None:
    asked: dict[str, object] = {}
    monkeypatch.setattr(panels, "recorded", lambda bench, often: bench)
    monkeypatch.setattr(panels.book, "workbench", lambda run, controls, views, **how: asked.update(controls))
    monkeypatch.setattr(panels, "_own", {})
    own = planner.Model("odd", layers=44, hidden=5632, heads=44, vocabulary=50_000)
    panels.plan_and_try(print, own)
    assert asked["model"].options[-1] == "odd"
    one = panels.Tried((found := panels.searched("odd", "1,024 H100")), panels.chosen(found, 1))
    assert found.model is own and "is the planner's mean error" in panels.in_words(one).replace("That is", "is")
    assert "misses the worst of them by 8.6%" in panels.price_and_trust(one)
    assert all("ms: " in row["beside the first"] for row in list(panels.why_lost(one))[1:])
    with pytest.raises(ValueError, match="there is a model 'GPT-3 175B' already"):
        panels.plan_and_try(print, dataclasses.replace(own, name="GPT-3 175B"))


def test_where_the_page_sends_the_reader_for_tp8_a_plan_with_tp8_comes_first() -> None:
    assert panels.searched("Llama 3 405B", "1,024 A100").winner.plan.tensor == 8


def test_where_nothing_fits_the_planner_says_by_how_much_and_where_it_would() -> None:
    found = planner.search(MODELS["Llama 3 405B"], planner.a100_cluster(64), 1024)
    one = panels.Tried(found, panels.chosen(found, 1))
    told = panels.in_words(one)
    assert "GB more than a GPU has" in told and "such GPUs" in told
    table = panels.why_lost(one)
    assert "needs least" in table.caption and "step (s)" not in table.columns
    assert not one.plan.fits and "did not try it" in panels.tried(one) and panels.pictures_of_run(one) == ""


@pytest.mark.parametrize(("model", "gpus", "batch"), [("Llama 3 8B", 64, 256), ("GPT-3 175B", 1024, 1024)])
def test_what_follows_the_degrees_is_explained_before_the_first_such_name(model: str, gpus: int, batch: int) -> None:
    place = pathlib.Path(__file__).parents[2] / "notebooks" / "15_hybrid_parallelism.ipynb"
    cells = json.loads(place.read_text("utf-8"))["cells"]
    (table,) = (cell for cell in cells if cell["id"] == "names")
    assert [cell["id"] for cell in cells].index("names") < [cell["id"] for cell in cells].index("search-use")
    told = set(re.findall(r"`([A-Za-z]+)", "".join(table["source"]), re.M))
    found = planner.search(MODELS[model], planner.h100_cluster(gpus), batch)
    for one in found.best:
        signs = {word.rstrip("0123456789").split("_")[0] for word in pictures.short(one).split()}
        assert signs - {"TP", "PP", "DP", "ZeRO-"} <= told
    assert {"CP", "HSDP", "b", "v", "zb", "sel", "full"} == told - {"TP"}


def test_a_plan_made_small_says_what_was_left_out() -> None:
    plan = Plan(4, 16, data=32, microbatch=2, microbatches=16, schedule="interleaved", chunks=6, sharding="zero1")
    config = small.shape_of(plan)
    assert (config.schedule, config.chunks, config.microbatches) == ("interleaved", 2, 2)
    told = small.made_small(plan, config)
    assert "tensor from 4 to 2, pipeline from 16 to 2, data from 32 to 2" in told
    assert "4 of the 6 chunks" in told and "recomputation" in told
    same_cut = small.shape_of(dataclasses.replace(plan, microbatches=64, chunks=1, schedule="one_f_one_b"))
    assert same_cut != config  # another plan, another run


@pytest.mark.ranks
def test_the_planner_is_within_its_bounds_on_real_ranks() -> None:
    """Predicted against measured steps of eight ranks with emulated links, on virtual time: the same on any machine."""
    cut = small.cut
    cuts = [
        cut(8), cut(8, 2, data="zero1"), cut(8, 2, 1, 2, data="fsdp"), cut(8, 1, 2, 4),
        cut(8, 4, 1, 2, data="zero1"), cut(8, 2, 2, 4), cut(8, 2, 4, 8),
    ]  # fmt: skip
    with labkit.world(8, clock="virtual", network=LINKS) as world:
        steps = {pictures.cut_name(c): small.measured(world.run(small.two_steps, c), LINKS) for c in cuts}
    off = sorted(map(abs, pictures.errors(steps).values()))
    assert off[3] < 0.015 and off[-1] < 0.05
    figure = pictures.beside(steps)
    assert [row["ranks (seconds)"] for row in figure.rows] == [one.seconds for one in steps.values()]


@pytest.mark.ranks
def test_bytes_by_axis_are_the_closed_forms_and_what_is_held_is_the_planners() -> None:
    config = small.cut(8, 2, 2, 2, algorithm="ring")
    with labkit.world(8, clock="virtual", network=LINKS) as world:
        run = world.run(small.two_steps, config)
        held = world.run(small.holding, config)
    said = cost.hybrid_bytes_by_rank(small.GPT, config, small.BATCH, small.GPT.context, itemsize=2)
    for row, one in zip(small.sent_by_axis(run), said, strict=True):
        assert (row["tensor"], row["data"]) == (one.tensor, one.data)
        assert row["pipeline"] + row["numbers"] == one.pipeline + one.numbers
    inside = small.crossing(run, 2)
    assert sum(sum(by.values()) for by in inside.values()) + sum(r["numbers"] for r in small.sent_by_axis(run)) == sum(
        one.total for one in said
    )
    assert not any(inside["another rail"].values())
    assert sum(small.fullest(held).values()) == pytest.approx(small.state_of(config), rel=0.003)
    figure = pictures.held({"so": (small.fullest(held), small.state_of(config))})
    assert figure.rows[0]["all"] == pytest.approx(max(sum(one.values()) for one in held.results) / 1e3)


@pytest.mark.ranks
def test_each_mistake_shows_in_other_signals() -> None:
    config, loud = small.cut(4, 2, 2, 2), {}
    with labkit.world(4) as world:
        for mistake in same.MISTAKES:
            signals = world.run(same.train, config, mistake, 0).results[0]
            loud[mistake] = [n for n, v in enumerate(signals.off(0).values()) if v > same.NEAR]
    assert loud["none"] == []
    assert loud["norm counted twice"] == [1, 3]
    assert loud["tied matrix apart"] == [1, 2, 3]
    assert 0 in loud["data by rank"]


@pytest.mark.ranks
@pytest.mark.parametrize("seed", [0, 3])
def test_clipping_hides_from_the_weights_that_gradients_were_averaged_twice(seed: int) -> None:
    with labkit.world(4) as world:
        ran = [panels.Checked(world.run(same.train, small.cut(4, 2, 1, 2), how, seed), seed)
               for how in ("averaged twice", "data by rank", "none", "norm counted twice")]  # fmt: skip
    asked = load_chapter("15_hybrid_parallelism").forecast("which-signal", {"norm": 4.0, "clip": same.CLIP})
    told, choices = [said.which_differ(run) for run in ran], asked.shown()["choices"]
    assert told[0] == choices[asked.declared[0]] and {*told} == {*choices}
    assert same.on_one_device(seed).norms[-1] > 2 * same.CLIP, "or a gradient that is half as long is not clipped"


def test_an_axis_that_cuts_nothing_is_told_to_have_no_neighbours() -> None:
    told = pictures._without_neighbours
    assert told(small.cut(8, 4, 1, 2, "data")) == "" == told(small.cut(8, 4, 1, 2, "tensor"))
    assert "no pipeline ranks, so the neighbours are those of data" in told(small.cut(8, 4, 1, 2, "pipeline"))
    assert "no tensor ranks, so the neighbours are those of data" in told(small.cut(8, 1, 2, 2, "tensor"))


def test_of_two_plans_that_are_the_same_run_when_made_small_both_are_told() -> None:
    found = panels.searched("GPT-3 175B", "1,024 H100")
    shapes = [small.shape_of(one.plan) for one in found.best[:5]]
    for one, shape in zip(found.best[:5], shapes, strict=True):
        told = panels._the_same(panels.Tried(found, one), shape)
        others = [str(n) for n, (plan, its) in enumerate(zip(found.best, shapes, strict=False), 1)
                  if plan is not one and its == shape]  # fmt: skip
        assert bool(told) == bool(others) and all(n in told for n in others)
    assert len({*shapes}) < len(shapes), "or there is nothing to tell"


def test_the_small_cluster_has_the_ratio_of_a_node_of_a100s() -> None:
    inside, across = planner.a100_cluster(16).topology.levels
    assert inside.bandwidth / across.bandwidth == 12 == round(small.INSIDE.bandwidth / small.ACROSS.bandwidth, 9)


@pytest.mark.ranks
def test_the_first_screen_is_several_times_as_fast_with_tensor_ranks_inside() -> None:
    with labkit.world(8, clock="virtual", network=small.network(8)) as world:
        outside, inside = (small.seconds(world.run(_first_screen, (4, 1), 2, inner)) for inner in ("data", "tensor"))
        took = {
            (cut, m): small.seconds(world.run(_first_screen, cut, m))
            for cut in panels.cuts(8).values() for m in (1, 2, 4) if cut[1] > 1 or m == 1
        }  # fmt: skip
    assert outside > 3 * inside and min(took, key=lambda one: took[one]) == ((1, 2), 4)
    assert 7.5 < outside / took[(1, 2), 4] < 8.5 and took[(8, 1), 1] > outside
    assert max(took.values()) == took[(8, 1), 1] and 18.5 < took[(8, 1), 1] / took[(1, 2), 4] < 19.5


def _first_screen(group: Group, cut: tuple[int, int], microbatches: int, neighbours: str = "tensor") -> small.Told:
    return small.take(Hybrid(group, small.GPT, small.cut(8, *cut, microbatches, neighbours)))


@pytest.mark.ranks
def test_c_is_the_fastest_of_three_and_tensor_ranks_belong_inside() -> None:
    """What the prediction declares and the first screen promises; time is virtual, so it is the same everywhere."""
    cut = small.cut
    with labkit.world(8, clock="virtual", network=LINKS) as world:
        a, b, c = (
            small.seconds(world.run(small.two_steps, one))
            for one in (cut(8, data="zero1"), cut(8, 2, data="zero1"), cut(8, 2, 2, 8, data="zero1"))
        )
        inside, outside = (
            small.seconds(world.run(small.two_steps, cut(8, 2, 2, 4, inner))) for inner in ("tensor", "data")
        )
        runs = [world.run(small.two_steps, one) for one in (cut(8), cut(8, algorithm="ring"), cut(8, data="zero1"))]
        plain, ring, _ = map(small.seconds, runs)
        assert [small.slow_turns(run, 2) for run in runs] == [6, 14, 14]  # rings of 4 nodes, and of 8 ranks twice
    assert c < b < a and outside > 1.5 * inside
    assert plain < b and a == pytest.approx(ring, rel=0.01)  # A is slow because its exchange ignores the nodes


@pytest.mark.ranks
def test_each_fault_turns_its_own_signals_red() -> None:
    red = {}
    with labkit.world(8, clock="virtual", network=LINKS) as world:
        for fault in small.FAULTS:
            run = world.run(small.step_with_fault, fault)
            seen = pictures.signals_of(panels.Watched(run, world.run(small.holding_with_fault, fault)))
            red[fault] = {name for name, (_, fine) in seen.items() if not fine}
            if fault == "a single microbatch":  # what the question describes
                assert 0.3 < small.busy(run) < 0.4 and seen["pipeline"][0] == "41%"
    assert red == {
        "none": set(), "tensor ranks on two nodes": {"the step", "tensor"},
        "a single microbatch": {"the step", "pipeline"},
        "nothing sharded": {"ZeRO"}, "a slow GPU": {"the step", "pipeline", "machine"},
    }  # fmt: skip


@pytest.mark.ranks
def test_ranks_begin_the_measured_step_together() -> None:
    """A rank that is late from building the model would make the step of the others longer."""
    with labkit.world(8, clock="virtual", network=LINKS) as world:
        run = world.run(small.two_steps, small.cut(8, data="zero1"))
    begin, _ = run.trace.during_step(2)
    first = [min(s.start for s in run.trace.spans() if s.rank == r and s.step == 2) for r in range(8)]
    assert max(first) - begin < 2e-3


@pytest.mark.ranks
@pytest.mark.parametrize(("cut", "lanes"), [((1, 4), 4), ((2, 2), 2), ((4, 1), 1)])
def test_the_first_picture_has_a_lane_for_each_stage(cut: tuple[int, int], lanes: int) -> None:
    run = labkit.launch(small.two_steps, 8, small.cut(8, *cut, 2), clock="virtual", network=small.network(8))
    drawn = pictures.each_stage(run)
    shown = [row["rank"] for row in drawn.rows]
    stages = [pictures._layout(run).coordinates(rank)["pp"] for rank in shown]
    assert sorted(stages) == list(range(lanes)), "one rank of each, and no stage twice"
    assert drawn.sentence == doing.bands(run, range(8), "all").sentence, "the words are about all ranks"


@pytest.mark.ranks
@pytest.mark.parametrize("cut", [small.cut(8, 2, 2, 4), small.cut(8, 1, 4, 4), small.cut(8, 2, data="fsdp")])
def test_what_ranks_do_adds_up_to_the_step_and_no_moment_is_counted_twice(cut: HybridConfig) -> None:
    run = labkit.launch(small.two_steps, 8, cut, clock="virtual", network=LINKS)
    shares = doing.shares(run)
    assert sum(shares.values()) == pytest.approx(small.seconds(run))
    assert shares["computing"] == pytest.approx(small.busy(run) * small.seconds(run))
    assert (shares["tensor"] > 0) == (cut.tp > 1) and (shares["pipeline"] > 0) == (cut.pp > 1)
    assert shares["context"] == 0 and shares["data"] > 0
    for rank in doing.of_ranks(run):
        times = sorted(span for spans in rank.does.values() for span in spans)
        assert all(a <= b for (_, a), (b, _) in zip(times, times[1:], strict=False))
        hidden = [span for spans in rank.beneath.values() for span in spans]
        assert all(any(c <= a and b <= d for c, d in rank.does["computing"]) for a, b in hidden)
    beneath = sum(length(rank.beneath["data"]) for rank in doing.of_ranks(run))
    assert (beneath > 0) == (cut.data == "fsdp"), "only FSDP gathers while a rank computes"


@pytest.mark.ranks
def test_a_band_says_in_words_and_rows_what_it_draws() -> None:
    run = labkit.launch(small.two_steps, 8, small.cut(8, 2, 2, 4, "data"), clock="virtual", network=LINKS)
    figure, shares = doing.bands(run, range(8), "One step"), doing.shares(run)
    part = f"{shares['tensor'] / small.seconds(run):.0%} for messages of tensor parallelism"
    assert part in figure.sentence and [row["rank"] for row in figure.rows] == list(range(8))
    assert "waits for tensor" in figure.svg and "waits for context" not in figure.svg
    run_alone = labkit.launch(
        small.two_steps, 8, small.cut(8, 2, 4, 1, "pipeline"), clock="virtual", network=small.network(8)
    )
    alone = doing.bands(run_alone, range(8), "One step").sentence
    assert "data parallelism" not in alone and "for the loss and the norm" in alone, "there is one replica"
    placed = pictures.placed({"data inside": run})
    assert placed.rows[0]["tensor"] == pytest.approx(1e3 * shares["tensor"])


@pytest.mark.ranks
def test_the_lines_of_a_placement_are_the_messages_of_its_step() -> None:
    runs = {
        axis: labkit.launch(small.two_steps, 8, small.cut(8, 2, 2, 4, axis), clock="virtual", network=cases.LINKS)
        for axis in ("tensor", "data")
    }
    drawn = pictures.partners(runs)
    for axis, run in runs.items():
        rows = [row for row in drawn.rows if row[""] == axis]
        assert len(rows) == 12, "a cube has 12 edges"
        assert {row["axis"] for row in rows if row["link"] == "in a node"} == {axis}
        sent = sum(n for row in small.sent_by_axis(run) for kind, n in row.items() if kind != "numbers")
        assert sum(row["kB"] for row in rows) == pytest.approx(sent / 1e3)
        off = sum(row["kB"] for row in rows if row["link"] == "between nodes")
        assert f"{off / 1e3:.3g} MB leave a node with {axis}" in drawn.sentence


@pytest.mark.ranks
def test_a_fit_finds_what_the_data_sheet_promises_too_much_of() -> None:
    world = labkit.world(8, clock="virtual", network=cases.LINKS)
    with world:
        ranks = cases.Ranks(8, world, "local", 0)
        timed = ranks.timed([small.cut(8), small.cut(8, pp=2, microbatches=4), small.cut(8, tp=2, data="zero1")])
    sheet = cases.by_the_data_sheet(timed)
    assert all(off < -0.15 for off in pictures.errors(sheet).values()), "what is promised is faster than what there is"
    fit = cases.fitted(sheet, timed)
    assert fit.efficiency.products == pytest.approx(cases.SHEET["products"], rel=0.05)
    assert fit.efficiency.across == pytest.approx(cases.SHEET["across"], rel=0.05)


@pytest.mark.ranks
@pytest.mark.parametrize("cut", [(2, 2), (1, 4), (4, 1)])
def test_a_step_with_every_sum_written_out_is_one_device_and_each_sum_matters(cut: tuple[int, int]) -> None:
    def step(over_replicas: bool, over_ends: bool, model: same.ByHand, *lesson: torch.Tensor) -> tuple[float, float]:
        loss = model.forward_backward(*lesson)
        for weight in model.weights if over_replicas else []:
            all_reduce(weight.grad, model.dp)
        if model.ends and over_ends:
            all_reduce(model.vocabulary.grad, model.ends)
        norm = you_write.grad_norm(model.pieces(), model.group)
        model.clip_and_update(norm)
        return float(loss), norm

    config = small.cut(8, *cut, 2)
    with labkit.world(8) as world:
        for sums, right in (((True, True), True), ((False, True), config.dp == 1), ((True, False), config.pp == 1)):
            run = world.run(same.train_by_hand, config, 0, functools.partial(step, *sums))
            assert (max(run.results[0].off(0).values()) < same.NEAR) == right, sums
            assert (run.results[0].ends > same.NEAR) == (not sums[1] and config.pp > 1), "only the sum over the ends"


@pytest.mark.parametrize(
    "given", [(1, "local", 1e9), (9, "local", 1e9), (4, "nccl", 1e9), (4, "gloo", 0), (4, "gloo", "x")]
)
def test_parameters_are_refused_before_anything_is_started(given: tuple[int, str, float]) -> None:
    cases.allowed(8, "local", 300e9)
    with pytest.raises(book.ParameterError):
        cases.allowed(*given)


def test_a_bar_that_makes_all_others_small_is_drawn_shorter_with_all_of_its_parts() -> None:
    bars = {"one": {"computing": 90.0, "tensor": 10.0}, "two": {"computing": 10.0}, "three": {"computing": 8.0}}
    cut = drawings.stacked(bars, unit="s", title="t", badge="simulated", sentence="said")
    widths = [float(w) for w in re.findall(r'width="([\d.]+)" height="17"', cut.svg)]
    whole = drawings.stacked({**bars, "one": {"computing": 30.0}}, unit="s", title="t", badge="simulated", sentence="s")
    assert cut.rows[0]["all"] == 100 and ">100<" in cut.svg, "the number is the true one"
    assert drawings._shown([100, 10, 8], None) == 12.5 and drawings._shown([30, 10, 8], None) == 30
    assert cut.svg.count("<line") == whole.svg.count("<line") + 2
    first, second, two, _ = widths
    assert first == pytest.approx(9 * second, rel=0.02) and first + second == pytest.approx(1.25 * two, rel=0.01)
    assert "is drawn shorter than it is" in cut.svg and "is drawn shorter" not in whole.svg


def test_the_line_of_a_limit_does_not_cross_a_bar_that_is_drawn_shorter() -> None:
    bars = {"one": {"parameters": 1000.0}, "two": {"parameters": 90.0}, "three": {"parameters": 40.0}}
    svg = drawings.stacked(bars, unit="GB", title="t", badge="simulated", sentence="s", limit=80.0).svg
    assert svg.count('stroke-dasharray="6 3"') == 2


def test_what_is_hidden_stands_behind_what_is_waited_for() -> None:
    first, second = (cases.gpt3(*cut, microbatches=64, sharding="zero1") for cut in ((8, 8, 16), (16, 4, 16)))
    row = next(row for row in pictures.links(first, second).rows if "TP8 data" in str(row["in s"]))
    check = next(one for one in planner.bandwidth_check(first) if one.axis == "data")
    assert (row["data"], row["hidden"]) == (check.waited, check.alone - check.waited)
    assert [*row][-2:] == ["hidden", "all"]
    assert "TP16 tensor: 634 GB in the node + 90.6 GB over the cluster" in pictures.links(first, second).svg
    assert [line["a GPU waits (s)"] for line in pictures.nested(first).rows] == [
        next(one.waited for one in planner.bandwidth_check(first) if one.axis == axis)
        for axis in ("tensor", "data", "pipeline")
    ]


def test_what_the_page_says_by_hand_of_the_memory_of_a() -> None:
    page = (pathlib.Path(__file__).parents[2] / "notebooks/15_hybrid_parallelism.ipynb").read_text()
    assert f"or {you_write.state_bytes(175e9, 1, 1, 1024, 2, 4, 12) / 1e9:,.0f} GB." in page


@pytest.mark.ranks
def test_a_slow_rank_has_a_band_beside_those_of_its_stages() -> None:
    with labkit.world(8, clock="virtual", network=LINKS) as world:
        slow, fine = (pictures.each_stage(world.run(small.step_with_fault, fault)) for fault in ("a slow GPU", "none"))
    assert [row["rank"] for row in fine.rows] == [0, 4] and "slow" not in fine.title
    assert [row["rank"] for row in slow.rows] == [0, 4, 5] and slow.title.endswith("and of the slow rank 5")
