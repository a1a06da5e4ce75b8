"""What chapter 12 draws and computes agrees with what its ranks did, and with published numbers."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch

import labkit
from labkit import cost
from labkit.chapters.c12_experts import flying, hot, layers, pictures, same, shapes, you_write
from labkit.collectives import all_gather
from labkit.models import MoEConfig, next_token_loss

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "12_experts.ipynb"


@pytest.fixture
def page():
    """Names of the page's own functions, made of the book's parts, with two experts on each of four ranks."""
    cells = {c["id"]: "".join(c["source"]) for c in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]}
    names = {"torch": torch, "all_gather": all_gather, "same": same, "experts": 8, "world_size": 4, "per_rank": 2,
             "partial": partial, "layers": layers}  # fmt: skip
    names |= {name: getattr(you_write, name) for name in ("route", "through_experts", "within_capacity")}
    for cell in ("mixture", "one-queue", "over-nodes"):
        exec(cells[cell], names)
    return names


def layer(group, capacity, drop, skew=2.0, experts=8):
    made = layers.timed(group, MoEConfig(experts, 2, capacity=capacity, drop=drop))
    made(layers.alike(made, 48, skew))
    return made.told


@pytest.mark.ranks
@pytest.mark.parametrize(("capacity", "drop"), [(None, "position"), (1.0, "position"), (1.25, "probability")])
def test_queues_are_those_of_the_run(capacity, drop):
    run = labkit.launch(layer, 4, capacity, drop, clock="virtual")
    told = run.results
    every = flying.choices_of(told)
    assert len(every) == 96 and sum(c.kept for c in every) == sum(flying.rows_by_rank(told))
    for e, n in enumerate(told[0].load):
        places = sorted(c.place for c in every if c.expert == e)
        assert places == list(range(n))
        kept = sum(c.kept for c in every if c.expert == e)
        assert kept == (n if told[0].slots is None else min(n, told[0].slots))
        assert all(c.kept == (c.place < kept) for c in every if c.expert == e), "those that are kept stand first"
    spans = [sum(s.attrs["rows"] for s in run.trace.spans("experts") if s.rank == r) for r in range(4)]
    assert spans == flying.rows_by_rank(told)
    words = [text for _, text in flying.flying(run).frames]
    assert f"{96 - sum(flying.rows_by_rank(told))} of 96 choices are dropped" in words[3]


@pytest.mark.ranks
def test_the_number_of_ranks_changes_nothing_in_who_is_dropped():
    kept = []
    for size in (1, 2, 4, 8):
        told = labkit.launch(layer, size, 1.0, "position", clock="virtual").results
        kept.append([row for one in told for row in one.kept])
    assert kept[0] == kept[1] == kept[2] == kept[3] and not all(all(row) for row in kept[0])


def of_the_page(group, config, forward, skew):
    made = layers.yours(group, config, forward)
    result = made(layers.alike(made, 48, skew))
    return result, made.happened


@pytest.mark.ranks
@pytest.mark.parametrize("skew", [0.0, 6.0])
def test_the_layer_of_the_page_computes_and_sends_what_it_should(page, skew):
    run = labkit.launch(of_the_page, 4, MoEConfig(8, 2), page["mixture"], skew, clock="virtual")
    labkits = labkit.launch(lambda g: (m := layers.timed(g, MoEConfig(8, 2)))(layers.alike(m, 48, skew)), 4)
    for (result, _), right in zip(run.results, labkits.results, strict=True):
        assert torch.allclose(result, right, atol=1e-6)
    run.results[:] = [happened for _, happened in run.results]
    assert pictures.bytes_of(run, layers.WIDTH) == run.trace.bytes_sent()


@pytest.mark.ranks
@pytest.mark.parametrize(("by", "drop"), [("position", "position"), ("weight", "probability")])
def test_the_queue_of_the_page_drops_whom_labkit_drops(page, by, drop):
    slots = cost.expert_capacity(48, 8, 1.0, choices=2)
    keep = partial(page["one_queue"], slots=slots, by=by)
    run = labkit.launch(of_the_page, 4, MoEConfig(8, 2), partial(page["mixture"], keep=keep), 2.0)
    theirs = labkit.launch(layer, 4, 1.0, drop).results
    assert [happened.kept for _, happened in run.results] == [one.kept for one in theirs]
    assert any(not all(row) for one in theirs for row in one.kept)


@pytest.mark.ranks
def test_by_way_of_the_node_every_row_comes_home_in_fewer_messages(page):
    def trip(group, name):
        rows, expert = layers.crossing_rows(group, 12, 8, width=3)
        group.step(1)
        compute = lambda x, e: x * (e[:, None] + 1) if ((e // 2) == group.rank).all() else None  # noqa: E731
        return torch.equal(page[name](rows, expert, compute, group, 2), rows * (expert[:, None] + 1))

    crossed, said = [], []
    for name in ("through_experts", "by_way_of_the_node"):
        run = labkit.launch(trip, 4, name, clock="virtual")
        assert run.results == [True] * 4
        run.results[:] = [2] * 4
        said.append(pictures.crossing(run).sentence)
        crossed.append(sum(m.src // 2 != m.dst // 2 for m in run.trace.sends if m.step == 1))
    assert 0 < crossed[1] < crossed[0]
    assert "talks to 2 ranks of other nodes" in said[0] and "talks to 1 rank of other nodes" in said[1]
    assert f"{crossed[1]} messages" in said[1]


@pytest.mark.ranks
@pytest.mark.parametrize(("size", "on_node"), [(3, 1), (4, 2)])
def test_every_pair_of_ranks_that_talk_has_a_line_of_its_own(page, size, on_node):
    def trip(group):
        rows, expert = layers.crossing_rows(group, 12, 2 * group.size, width=3)
        group.step(1)
        page["through_experts"](rows, expert, lambda x, e: x, group, 2)
        return on_node

    svg = pictures.crossing(labkit.launch(trip, size, clock="virtual")).svg
    arcs, straight = svg.count(" Q"), svg.count(f'stroke="{pictures.ORANGE}" stroke-width="1.8"')
    assert straight == (3 if on_node == 1 else 4)
    assert arcs == (3 if on_node == 1 else 2), "with one rank on a node no line may lie on another"


@pytest.mark.ranks
def test_beside_one_device_only_a_wrong_divisor_makes_a_difference(page):
    def three(group, by):
        row, twins = same.row_and_column(group, 2)
        model, one, off = same.gpt(4), same.OneDevice(4, "SGD", group.size), []
        layers.spread(model, row, page["mixture"])
        step = same.stepper(model, "SGD")
        for inputs, targets in same.lessons(group.rank, group.size):
            next_token_loss(model(inputs), targets).backward()
            you_write.average_gradients(model, group, twins)
            factor = same.mistake(model, by, group, twins)
            step()
            off.append(one.goes_on(model))
        return off, factor

    for by, factor in (("all ranks", 1), ("its ranks", 2), ("nothing", 4)):
        run = labkit.launch(three, 4, by)
        experts, others = run.results[0][0][0]
        assert run.results[0][1] == factor and others < 1e-12 and experts == pytest.approx(factor - 1, abs=1e-12)
        words = pictures.compared(run, "SGD").sentence
        assert f"{factor} times that of one device" in words and ("rounding" in words) == (factor == 1)


def test_what_is_said_of_a_step_of_training():
    class Run:
        results = [[(5.0, [4, 4, 4, 4]), (4.0, [8, 8, 0, 0])]]

    words = [text for _, text in hot.shares(Run()).frames]
    assert words == [
        "Step 1: 50% of the tokens choose expert 0, which is 1 times the mean. Every expert gets some.",
        "Step 2: 100% of the tokens choose expert 0, which is 2 times the mean. 2 of 4 experts get none.",
    ]


def test_the_parameters_of_mixtral():
    assert shapes.MIXTRAL.all == pytest.approx(46.7e9, rel=1e-3)
    assert shapes.MIXTRAL.active == pytest.approx(12.9e9, rel=2e-3)


def test_the_example_of_the_queue_has_the_loads_that_it_says():
    for seed in (0, 1, 7):
        assert layers.waiting_line(seed=seed).bincount().tolist() == list(layers.LOADS)
