"""Every figure: three faces that say the same, nothing random, nothing told by colour alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import torch

import labkit
from labkit.book import (
    Figure,
    bars,
    byte_matrix,
    cost_curves,
    lines,
    mesh,
    record,
    schedule,
    shard_board,
    shard_layouts,
    step_breakdown,
    timeline,
    topology,
    wait_for,
)
from labkit.book.drawing.boxes import Box, merged
from labkit.book.drawing.figure import PLOTLY
from labkit.book.drawing.style import KINDS, SERIES
from labkit.book.drawing.svg import Svg
from labkit.book.timelines.failed import after_failure
from labkit.book.timelines.timelines import NAMES, Scene, _milliseconds
from labkit.book.timelines.timelines_plotly import spec
from labkit.book.timelines.timelines_svg import picture
from labkit.collectives import all_reduce
from labkit.cost.topology import clos_buildings, hpn_paper
from labkit.parallel.layout import Layout
from labkit.parallel.pipeline import Costs, gpipe, one_f_one_b, pipedream, zb_h2, zb_v
from labkit.resilience.ntp import shard_map
from labkit.world import Failure

from . import fake_trace as fake

SVG = "{http://www.w3.org/2000/svg}"
CURVES = {"tree": lambda n: 6 * (2e-5 + n * 1e-9), "ring": lambda n: 14 * 2e-5 + 1.75 * n * 1e-9}
POINTS = {"ring": {1000: [4e-4, 3e-4, 5e-4], 10**6: [2e-3, 3e-3, 2.5e-3]}, "tree": {1000: [2e-4], 10**6: [7e-3]}}
FIGURES = {
    "timeline": lambda: timeline(fake.ring(4, 200_000, skew=1e-4)),
    "timeline of many ranks": lambda: timeline(fake.ring(16, 1600)),
    "timeline with a window": lambda: timeline(fake.ring(4, 200_000, skew=1e-4), window=(4e-4, 9e-4), ranks=[1, 2]),
    "timeline with writing beside the work": lambda: timeline(fake.ring(), beside=[(1, "writing", 0.0, 1e-3)]),
    "timeline of many ranks, with writing": lambda: timeline(fake.ring(16, 1600), beside=[(15, "writing", 0.0, 1e-3)]),
    "timeline of a stuck run": lambda: timeline(fake.stuck()),
    "timeline of nothing": lambda: timeline(fake.Trace(2)),
    "byte matrix": lambda: byte_matrix(fake.naive(4, 250_000), predicted=[3e6, 1e6, 1e6, 2e6]),
    "two byte matrices": lambda: byte_matrix(fake.naive(), predicted=fake.ring().bytes_between()),
    "byte matrix of one rank": lambda: byte_matrix([[0]]),
    "strip": lambda: record(fake.ring()).strip(),
    "strip of a wrong ring": lambda: record(fake.ring(4, 1000, skip=(1, 2))).strip(),
    "strip of an empty tensor": lambda: record(fake.ring(4, 0)).strip(),
    "cost curves": lambda: cost_curves(CURVES, POINTS),
    "cost curves without points": lambda: cost_curves(CURVES),
    "points without curves": lambda: cost_curves({}, POINTS),
    "bars": lambda: bars({"measured": {"naive": 7e6, "ring": 1.75e6}, "formula": {"naive": 7e6, "ring": 1.5e6}}),
    "bars of parts": lambda: bars(
        {"a": {"x": 2, "y": 1}, "b": {"x": 1}, "run": {"x": 3, "y": 1.05}}, unit="", ticks=True, stacked=True
    ),
    "bars with ticks": lambda: bars({"measured": {"a": 2, "b": 1}, "formula": {"a": 2, "b": 1}}, unit="", ticks=True),
    "bars of zeros": lambda: bars({"measured": {"ring": 0}}),
    "lines": lambda: lines({"1 rank": [5.5, 4.0, 3.0], "4 ranks": [5.5, 4.0, 3.001]}),
    "lines of other points": lambda: lines({"a": {1: 2.0, 3: 4.0}, "b": [(0.5, -1.0), (7, 2.0)]}, x="ms", y="error"),
    "shards": lambda: shard_layouts(shard_map(32, 8, 7)),
    "shards of one rank": lambda: shard_layouts(shard_map(1, 1, 1)),
    "as many shards as can be drawn": lambda: shard_layouts(shard_map(160, 12, 10)),
    "a board": lambda: shard_board(12, 4, 3).figure(),
    "a line of one point": lambda: lines({"a": [1.0]}),
    "a long line": lambda: lines({"a": list(range(100)), "b": list(range(100))}),
    "mesh": lambda: mesh(Layout({"dp": 2, "pp": 2, "tp": 2}), 4),
    "mesh of one rank": lambda: mesh(Layout({"dp": 1})),
    "mesh on nodes that are not full": lambda: mesh(Layout({"dp": 3, "tp": 4}), 5),
    "mesh with a node wider than a line": lambda: mesh(Layout({"tp": 40}), 36),
    "mesh with more ranks than are drawn": lambda: mesh(Layout({"dp": 16, "pp": 8, "tp": 8}), 8),
    "topology": lambda: topology(clos_buildings(), {"replica": 12, "pp": 16, "dp": 64, "tp": 8}),
    "topology of a machine alone": lambda: topology(hpn_paper()),
    "schedule": lambda: schedule(one_f_one_b(4, 8)),
    "schedule with chunks": lambda: schedule(zb_v(4, 8)),
    "schedule in seconds": lambda: schedule(pipedream(2, 3), costs=Costs(1e-3, 1e-3, 1e-3, 1e-4)),
    "schedule of more boxes than can be told apart": lambda: schedule(zb_h2(16, 64)),
    "schedule with boxes too narrow for letters": lambda: schedule(gpipe(8, 90)),
    "deadlock": lambda: wait_for(fake.deadlock(5, 2)),
    "deadlock of one rank": lambda: wait_for(fake.deadlock(1, 1)),
    "a dead rank": lambda: wait_for(fake.failed(8, 3)),
    "a rank of two": lambda: wait_for(fake.failed(2, 1)),
    "ranks in a circle": lambda: wait_for(fake.failed(30, -1)),
    "breakdown": lambda: step_breakdown(fake.ring(4, 200_000, skew=1e-4)),
    "breakdown of nothing": lambda: step_breakdown(fake.Trace(1)),
}
every_figure = pytest.mark.parametrize("make", FIGURES.values(), ids=FIGURES.keys())


@every_figure
def test_a_figure_is_one_bundle_of_plotly_svg_and_words(make: Any) -> None:
    figure = make()
    bundle, metadata = figure._repr_mimebundle_()
    assert figure.sentence in metadata["image/svg+xml"]["alt"]
    face = PLOTLY if figure.spec is not None else "text/html"
    assert set(bundle) == {"text/plain", "image/svg+xml", face}
    assert bundle["text/plain"].startswith(f"{figure.title} ({figure.badge})\n")
    assert figure.sentence.endswith(".") and figure.sentence in bundle["text/plain"]
    if PLOTLY in bundle:
        spec = bundle[PLOTLY]
        go.Figure(data=spec["data"], layout=spec["layout"])  # raises on a property that plotly does not know
        assert f"[{figure.badge}]" in spec["layout"]["title"]["text"]


@every_figure
def test_the_same_input_gives_the_same_bundle(make: Any) -> None:
    once, again = (json.dumps(make()._repr_mimebundle_(), sort_keys=True, allow_nan=False) for _ in range(2))
    assert once == again


@every_figure
def test_the_svg_is_xml_that_names_and_describes_itself(make: Any) -> None:
    figure = make()
    root = ET.fromstring(figure.svg)
    assert root.get("role") == "img"
    title, desc = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None and title.text == figure.title
    assert desc is not None and desc.text == figure.sentence
    assert root.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"
    shown = [t.text for t in root.iter(f"{SVG}text")]
    assert f"[{figure.badge}]" in shown
    ids = {e.get("id") for e in root.iter() if e.get("id")}
    used = {e.get("fill", "")[5:-1] for e in root.iter() if e.get("fill", "").startswith("url(#")}
    assert used <= ids
    assert "nan" not in figure.svg and "http://" not in figure.svg.replace("http://www.w3.org/2000/svg", "")


@every_figure
def test_svg_text_has_a_readable_size_and_no_fixed_background(make: Any) -> None:
    root = ET.fromstring(make().svg)
    sizes = [float(t.get("font-size", 12)) for t in root.iter(f"{SVG}text")]
    assert min(sizes) >= 8.5
    width = float(root.get("viewBox", "").split()[2])
    assert not [r for r in root.iter(f"{SVG}rect") if float(r.get("width", 0)) >= width]


@every_figure
def test_no_series_differs_from_another_by_its_colour_alone(make: Any) -> None:
    figure = make()
    if figure.spec is None:
        return
    signs = []
    for one in figure.spec["data"]:
        if one["type"] in ("heatmap",) or one.get("showlegend") is False:
            continue
        marker, line = one.get("marker", {}), one.get("line", {})
        clear = str(marker.get("color")).startswith("rgba")  # an outline without a filling is a sign of its own
        signs.append((one["type"], one.get("mode"), marker.get("pattern", {}).get("shape"), clear, line.get("dash"),
                      marker.get("symbol")))  # fmt: skip
    assert len(set(signs)) == len(signs)


def test_heat_maps_print_the_number_in_each_cell() -> None:
    heat = byte_matrix(fake.naive(4, 250_000)).spec["data"][0]  # type: ignore[index]
    assert heat["text"] == [["", "1", "1", "1"], *[["1", "", "", ""]] * 3]


def test_looks_differ_in_hatch_dash_and_marker() -> None:
    for sign in ("hatch", "dash", "marker"):
        assert len({getattr(look, sign) for look in SERIES}) == len(SERIES)
    drawn_together = ("compute", "span", "send", "receive", "waiting")
    hatches = {(KINDS[k].hatch, KINDS[k].colour == "none") for k in drawn_together}
    assert len(hatches) == len(drawn_together)


def test_the_timeline_says_how_long_each_rank_computes_moves_and_waits() -> None:
    rows = timeline(fake.ring(4, 200_000, skew=1e-4)).table()
    assert [round(r["computing (ms)"], 6) for r in rows] == [0.1, 0.2, 0.3, 0.4]  # type: ignore[call-overload]
    assert [r["bytes sent"] for r in rows] == [1_200_000] * 4
    assert [r["messages sent"] for r in rows] == [6] * 4
    waiting = [round(r["waiting (ms)"], 6) for r in rows]  # type: ignore[call-overload]
    assert waiting == [0.1, 0.1, 0, 0]  # rank 0 waits for rank 1; rank 1 was kept up by rank 0, and waits later
    for row, total in zip(rows, [1.72, 1.72, 1.72, 1.72], strict=True):
        spent = sum(row[f"{k} (ms)"] for k in ("computing", "transferring", "waiting"))  # type: ignore[misc]
        assert spent == pytest.approx(total)


def test_what_a_clock_cannot_tell_from_nothing_is_shown_as_nothing() -> None:
    assert [_milliseconds(seconds) for seconds in (-1e-12, 2.8e-17, 1e-9, 2e-9)] == [0, 0, 0, pytest.approx(2e-6)]


@pytest.mark.ranks
def test_a_step_alone_is_that_step_on_every_rank() -> None:
    def train(group: Any) -> None:
        for step in range(4):
            group.step(step)
            with group.span("compute"):
                pass
            all_reduce(torch.ones(8), group, algorithm="ring")

    trace = labkit.launch(train, 3, transport="local").trace
    whole, one = timeline(trace), timeline(trace, step=2)
    assert [row["messages sent"] for row in one.table()] == [4] * 3
    assert [row["messages sent"] for row in whole.table()] == [16] * 3
    first, last = one.spec["layout"]["xaxis"]["range"]
    assert first == 0 < last, "time counts from the beginning of the step"
    assert min(x for t in one.spec["data"] for x in t.get("base", [])) == 0 and ">0</text>" in one.svg


def test_the_window_cuts_the_numbers_too() -> None:
    (row,) = timeline(fake.ring(4, 200_000, skew=1e-4), window=(0.0, 1.5e-4), ranks=[3]).table()
    assert row["computing (ms)"] == pytest.approx(0.15) and row["messages sent"] == 0


def test_ranks_that_wait_alike_are_told_as_each_and_else_the_one_that_waits_longest() -> None:
    said = {}
    for late in (1e-3, 2e-3):  # rank 1 waits for rank 0, and then the other way round
        trace = fake.Trace(2)
        for rank, seconds in ((0, 1e-3), (1, late)):
            trace.compute(rank, seconds)
            trace.round((0, 1, 0, 0, 1000, False), (1, 0, 0, 0, 1000, False))
        said[late] = timeline(trace).sentence
    assert " Each rank waits " in said[1e-3] and "waits longest" not in said[1e-3], said
    assert " Rank 0 waits longest: " in said[2e-3] and "Each rank" not in said[2e-3], said
    trace = fake.Trace(3)
    for rank, seconds in ((0, 1e-3), (1, 1e-3), (2, 5e-3)):
        trace.compute(rank, seconds)
    trace.round((2, 0, 0, 0, 1000, False), (2, 1, 0, 0, 1000, False))
    assert " Ranks 0 and 1 wait longest: " in timeline(trace).sentence, "they wait alike"


def test_a_message_that_never_arrives_is_waiting_to_the_end() -> None:
    figure = timeline(fake.stuck())
    rows = figure.table()
    assert rows[1]["waiting (ms)"] == pytest.approx(0.7)
    assert "never comes" in figure.svg and "never received" in figure.svg


def test_what_goes_on_beside_a_ranks_work_has_a_lane_its_milliseconds_and_changes_no_other_number() -> None:
    trace = fake.ring(4, 200_000, skew=1e-4)
    plain = timeline(trace, window=(0.0, 1e-3)).table()
    figure = timeline(trace, window=(0.0, 1e-3), beside=[(2, "writing", 5e-4, 3e-3)], sentence="Rank 2 writes.")
    rows = figure.table()
    assert [row.pop("beside it (ms)") for row in rows] == pytest.approx([0, 0, 0.5, 0])  # type: ignore[attr-defined]
    assert rows == plain
    assert "Rank 2 writes." in figure.text and "waits longest" not in figure.text
    assert "rank 2: writing" in figure.svg and ">writing<" in figure.svg
    bars = [one for one in figure.spec["data"] if one["type"] == "bar"]  # type: ignore[index]
    (at,) = [y for one in bars for y, text in zip(one["y"], one["text"], strict=True) if text == "writing"]
    (work,) = [one for one in bars if one["name"] == "computing"]
    assert 2 < at < 3 and at not in work["y"]


def test_arrows_are_drawn_when_messages_are_few() -> None:
    few, many = timeline(fake.ring(3)), timeline(fake.ring(4))
    names = [[one.get("name") for one in figure.spec["data"]] for figure in (few, many)]  # type: ignore[index]
    assert "message" in names[0] and "message" not in names[1]


def test_who_waits_when_a_rank_has_died_is_followed_to_its_end() -> None:
    dead, circle = wait_for(fake.failed(8, 3)), wait_for(fake.failed(5, -1))
    assert dead.sentence.startswith("Rank 3 was killed by SIGKILL. Who waits: rank 0 for rank 7;")
    assert dead.sentence.endswith("In the end all of them wait for rank 3.")
    assert circle.sentence.endswith("Nobody in this circle can go on.")
    assert dead.table()[4] == {"rank": 4, "waits for rank": "3", "it was": "receive"} and dead.svg.count("M") >= 7
    assert wait_for(fake.failed(1, 0)).sentence.endswith("Nobody waited for another rank at that moment.")


def test_who_waits_is_told_in_the_order_of_ranks() -> None:
    dead = fake.failed(4, 1)
    dead.failure.awaits = dict(reversed(dead.failure.awaits.items()))
    assert "Who waits: rank 0 for rank 3; rank 2 for rank 1; rank 3 for rank 2." in wait_for(dead).sentence


def test_a_box_without_room_for_its_name_has_its_first_letter_where_asked_for() -> None:
    trace = fake.ring(4, skew=1e-5)
    assert "compute" in {span.name for span in trace.spans()}
    plain, short = timeline(trace, window=(0.0, 1e-3)), timeline(trace, window=(0.0, 1e-3), initials=True)
    texts = [[t for one in figure.spec["data"] for t in one.get("text", ())] for figure in (plain, short)]  # type: ignore[index]
    assert "compute" in texts[0] and "c" not in texts[0] and "c" in texts[1] and "compute" not in texts[1]
    assert ">c</text>" in short.svg and ">c</text>" not in plain.svg


def test_who_waits_names_the_rank_that_raised_and_its_error() -> None:
    raised = fake.failed(4, 3)
    raised.failure.kind, raised.failure.error, raised.failure.message = "raised", "ValueError", "a bad image"
    assert wait_for(raised).sentence.startswith("Rank 3 raised ValueError: a bad image. Who waits:")
    assert wait_for(raised, told=True).sentence.startswith("Who waits:"), "the error stands above the picture already"
    raised.failure.message = "rank 3: a bad image"
    assert wait_for(raised).sentence.startswith("Rank 3 raised ValueError: a bad image. Who waits:"), "named once"


def test_where_ranks_disagree_each_stands_with_what_it_brought() -> None:
    odd = fake.failed(4, -1)
    odd.failure.kind = "mismatch"
    odd.failure.message = (
        "rank 1 called all_reduce on int32[8] by 'ring', but ranks 0, 2 and 3 called all_reduce on float32[8] by "
        "'ring' (call 3 of the group)"
    )
    figure = wait_for(odd)
    assert figure.title == "What each rank brought" and figure.sentence.startswith("Rank 1 called all_reduce on int32")
    assert [row["differs"] for row in figure.table()] == ["no", "yes", "no", "no"]
    assert figure.svg.count(">float32[8]<") == 3 and figure.svg.count(">int32[8]<") == 1
    assert wait_for(odd, told=True).sentence == "Rank 1 brought something else than the others."
    odd.failure.message = (
        "rank 0 called barrier by 'dissemination'; ranks 4 to 6 called all_reduce on float32[8] (max) by 'ring', "
        "but ranks 1 to 3 and 7 called all_reduce on float32[8] by 'ring' (call 1 of the group)"
    )
    odd.run.spec.world_size = 8
    rows = wait_for(odd).table()
    assert [row["rank"] for row in rows if row["differs"] == "yes"] == [0, 4, 5, 6]
    odd.failure.message = "rank 0 sent rank 1 float32[8], but rank 1 receives int32[8] (message 3 between them)"
    assert wait_for(odd).title == "Who waits for whom"


def test_who_waits_says_in_which_call_where_it_is_the_same_for_all() -> None:
    stuck = fake.failed(3, -1)
    lines = [f"  rank {r}: send to rank 1 in all_reduce(float32[8]), call {{}} (waits for rank 1)" for r in (0, 2)]
    stuck.failure.message = "\n".join(["rank 1 has finished", *(line.format(5) for line in lines)])
    assert "Each of them waits in call 5, counted from the first collective." in wait_for(stuck).sentence
    stuck.failure.message = "\n".join(["rank 1 has finished", lines[0].format(5), lines[1].format(6)])
    assert "waits in call" not in wait_for(stuck).sentence


def test_a_tick_does_not_strike_through_the_number_of_its_bar() -> None:
    figure = bars({"run": {"a": 460, "b": 100}, "formula": {"a": 480, "b": 300}}, unit="", ticks=True)
    assert figure.spec is not None
    bar, _, above = figure.spec["data"]
    assert bar["text"] == ["", "100"] and (above["x"], above["y"], above["text"]) == (["a"], [480], ["460"])
    tree = ET.fromstring(figure.svg)
    (label,) = [float(t.get("y")) for t in tree.iter("{http://www.w3.org/2000/svg}text") if t.text == "460"]
    ticks = [float(one.get("y1")) for one in tree.iter("{http://www.w3.org/2000/svg}line")]
    assert label < min(ticks)


def test_parts_of_a_bar_stand_on_each_other_with_their_sum_above() -> None:
    parts = {"latencies": {"a": 2, "b": 1}, "bytes": {"a": 1, "b": 3}}
    figure = bars(parts | {"run": {"a": 3, "b": 4}}, unit="", ticks=True, stacked=True)
    assert figure.spec is not None and figure.spec["layout"]["barmode"] == "stack"
    first, second, tick = figure.spec["data"]
    assert (first["text"], second["text"], tick["y"]) == (["", ""], ["3", "4"], [3, 4])
    tree = ET.fromstring(figure.svg)
    boxes = [{k: float(r.get(k)) for k in ("y", "height")} for r in tree.iter("{http://www.w3.org/2000/svg}rect")
             if r.find("{http://www.w3.org/2000/svg}title") is not None]  # fmt: skip
    for below, above in (boxes[:2], boxes[2:4]):
        assert above["y"] + above["height"] == pytest.approx(below["y"], abs=0.2)
    assert boxes[0]["height"] == pytest.approx(2 * boxes[1]["height"], abs=0.2)
    late = bars(parts | {"run": {"a": 3.1, "b": 4}}, unit="", ticks=True, stacked=True).spec
    assert late is not None and late["data"][1]["text"] == ["", "4"] and late["data"][-1]["text"] == ["3"]


def test_the_byte_matrix_says_every_number_and_where_the_prediction_was_wrong() -> None:
    figure = byte_matrix(fake.naive(4, 250_000), predicted=[3e6, 1e6, 1e6, 2e6])
    assert figure.table()[0] == {
        "from": "rank 0", "to 0": 0, "to 1": 1_000_000, "to 2": 1_000_000, "to 3": 1_000_000, "sent": 3_000_000,
        "predicted": 3_000_000,
    }  # fmt: skip
    assert "3,000,000" in figure.text and "What rank 3 sent is not what was predicted" in figure.text
    assert "≠ 2" in figure.svg and "= 3" in figure.svg
    right = byte_matrix(fake.naive(4, 250_000), predicted=[3e6, 1e6, 1e6, 1e6])
    assert "equals what was predicted, to the byte" in right.text


def test_cost_curves_find_the_crossover_of_the_model_and_the_winner_of_the_measurements() -> None:
    figure = cost_curves(CURVES, POINTS)
    crossing = 8 * 2e-5 / (4.25 * 1e-9)  # 6 a + 6 n b = 14 a + 1.75 n b
    assert f"ring from {crossing / 1e3:.3g} kB" in figure.sentence
    assert "Measured, tree is fastest at 1 kB, ring at 1 MB." in figure.sentence
    by = {(r["bytes"], r["algorithm"]): r for r in figure.table()}
    assert by[1000, "ring"]["median (ms)"] == pytest.approx(0.4)
    assert by[1000, "ring"]["least (ms)"] == pytest.approx(0.3)
    assert by[1000, "tree"]["fastest"] == "model and measured"
    assert figure.badge == "measured" and cost_curves(CURVES).badge == "simulated"


def test_where_an_algorithm_was_fastest_is_told_from_its_first_size_to_its_last() -> None:
    wins = {1000: "a", 2000: "a", 4000: "b", 8000: "b", 16000: "a", 32000: "c"}
    runs = {name: {size: [1.0 if name == best else 2.0] for size, best in wins.items()} for name in "abc"}
    told = cost_curves({}, runs).sentence
    assert told == "Measured, a is fastest up to 2 kB, b from 4 kB to 8 kB, a at 16 kB, c at 32 kB."


def test_a_curve_that_wins_twice_is_told_twice() -> None:
    wavy = {"flat": lambda n: 1e-3, "bowl": lambda n: 1e-3 + 1e-4 * ((len(str(int(n))) - 5) ** 2 - 1)}
    assert cost_curves(wavy).sentence.count("from") == 2


def test_bars_say_where_measured_and_formula_differ() -> None:
    figure = FIGURES["bars"]()
    assert "Measured equals formula, except for ring." in figure.sentence
    assert [r["measured / formula"] for r in figure.table()] == [1.0, pytest.approx(1.75 / 1.5)]


def test_the_breakdown_adds_up_to_the_whole() -> None:
    for row in FIGURES["breakdown"]().table():
        parts = sum(row[f"{k} (ms)"] for k in ("compute", "transfer", "waiting", "other"))  # type: ignore[misc]
        assert parts == pytest.approx(row["total (ms)"])


def test_a_table_reads_as_text_and_as_html() -> None:
    table = byte_matrix([[0, 1234567], [8, 0]]).table()
    assert "1,234,567" in str(table) and 'scope="col"' in table._repr_html_()
    assert "46 more rows" in type(table)([{"a": i} for i in range(50)]).text(limit=4)


@pytest.mark.parametrize("bad, word", [
    (lambda: timeline(fake.ring(), ranks=[7]), "ranks 0 to 3"),
    (lambda: timeline(fake.ring(), window=(2, 1)), "window"),
    (lambda: timeline(fake.ring(), beside=[(9, "writing", 0, 1)]), "a rank from 0 to 3"),
    (lambda: timeline(fake.ring(), beside=[(0, "writing", 1, 0)]), "first second before"),
    (lambda: byte_matrix(fake.ring(), predicted=[1, 2]), "one for each rank"),
    (lambda: byte_matrix([[1, 2]]), "columns"),
    (lambda: bars({}), "nothing to draw"),
    (lambda: bars({"a": {"b": 1}}, unit="miles"), "miles"),
    (lambda: bars({str(k): {"b": 1} for k in range(9)}), "at most 8"),
    (lambda: cost_curves({}), "nothing to draw"),
    (lambda: cost_curves(CURVES, sizes=(10, 1)), "sizes"),
    (lambda: Figure("t", "guessed", "s", [], "<svg/>"), "guessed"),
    (lambda: Figure("t", "quoted", "s", [], "<svg/>").plotly(), "no plotly form"),
])  # fmt: skip
def test_bad_input_is_named(bad: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        bad()


def test_importing_the_book_loads_no_plotly_and_no_widgets() -> None:
    code = (
        "import sys, labkit.book as book; book.timeline; book.replay; "
        "print([m for m in ('plotly', 'anywidget', 'ipywidgets', 'torch') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    here = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=here, cwd=root, check=True)
    assert done.stdout.strip() == "[]"


def test_a_crowded_timeline_draws_short_boxes_as_one_and_keeps_its_numbers() -> None:
    figure = timeline(fake.ring(24, 2400))
    assert "drawn as one" in figure.sentence and len(figure.svg) < 60_000
    assert [r["messages sent"] for r in figure.table()] == [46] * 24
    assert "drawn as one" not in timeline(fake.ring(8)).sentence


def test_boxes_drawn_as_one_are_as_tall_as_the_time_that_they_fill() -> None:
    """Ten short boxes with as much nothing between them are half of what they cover, in both forms of the picture."""
    short = [Box(0, "work", "compute", 2.0 * n, 2.0 * n + 1) for n in range(10)] + [Box(0, "work", "compute", 40, 60)]
    one, long = merged(short, 3.0)
    assert (one.start, one.end, long.share) == (0, 19, 1) and one.share == pytest.approx(10 / 19)
    inside = [Box(0, "send", "send", 0, 2), Box(0, "send", "send", 0.5, 1), Box(0, "send", "send", 1, 2)]
    assert merged(inside, 3.0)[0].share == 1
    scene = Scene([0], (0.0, 60.0), [one, long], [], {"work": (0.1, 0.5)}, 100.0, True)
    first, second = spec(scene, "", "measured", NAMES)["data"][0]["width"]
    assert first == pytest.approx(second * 10 / 19, abs=1e-5)
    drawn = picture(scene, "", "measured", "", NAMES)
    assert 'height="26.3' in drawn and 'height="50"' in drawn


def test_the_data_stands_below_a_figure_of_a_notebook_as_a_closed_table(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "IPython.core.display_functions.publish_display_data", lambda data, metadata=None: shown.append(data)
    )
    figure = bars({"measured": {"naive": 7e6, "ring": 1.75e6}})
    figure._ipython_display_()
    assert shown == [figure.bundle()]  # a terminal: the words end with the numbers anyway
    shown.clear()
    monkeypatch.setattr(
        "labkit.book.drawing.figure._shell", lambda: type("Shell", (), {"config": {"IPKernelApp": {}}})()
    )
    figure._ipython_display_()
    assert shown[0] == figure.bundle() and set(shown[1]) == {"text/html"}
    html = shown[1]["text/html"]
    said = f'<p class="lk-said">{figure.sentence}</p>'
    assert html.startswith(f"{said}<details><summary>Data as a table</summary><table><caption>")
    assert "caption" not in str(figure.bundle()["application/vnd.plotly.v1+json"]) and figure.sentence not in str(
        figure.spec
    )
    assert html.count("<tr>") == 1 + len(figure.rows) and html.count('scope="col"') == sum(
        map(bool, figure.table().columns)
    )
    assert html == said + figure.data_html()  # the same text for the same figure: nbval may compare it
    shown.clear()
    Figure("Empty", "measured", "Nothing.", [], "<svg/>")._ipython_display_()
    assert len(shown) == 1


def test_a_long_table_is_cut_and_its_caption_counts_the_rest() -> None:
    figure = Figure("Long", "measured", "Long.", [{"x": i} for i in range(250)], "<svg/>")
    html = figure.data_html()
    assert html.count("<tr>") == 1 + 200
    assert "<caption>Long (measured): the first 200 rows; 50 more are in .table()</caption>" in html
    assert figure.table()._repr_html_().count("<tr>") == 251


def test_boxes_too_narrow_to_be_told_apart_are_one_and_have_no_outline() -> None:
    trace = fake.ring(8, 800)
    trace_boxes = timeline(trace)
    zoomed = timeline(trace, window=(0, trace.duration * 200))  # everything in a two-hundredth of the width
    assert "drawn as one" in zoomed.sentence and "drawn as one" not in trace_boxes.sentence
    spec = zoomed.bundle()[PLOTLY]
    sending = next(t for t in spec["data"] if t.get("name") == "sending")
    assert set(sending["marker"]["line"]["width"]) == {0} and len(sending["x"]) == 8
    whole = next(t for t in trace_boxes.bundle()[PLOTLY]["data"] if t.get("name") == "sending")
    assert set(whole["marker"]["line"]["width"]) == {0.5}


def test_a_tick_stands_across_the_bar_and_not_beside_it() -> None:
    figure = bars({"measured": {"a": 2, "b": 1}, "formula": {"a": 2, "b": 1}}, unit="", ticks=True)
    assert figure.spec is not None and [trace["type"] for trace in figure.spec["data"]] == ["bar", "scatter"]
    assert "formula" in figure.table()[0] and figure.svg.count('stroke-width="2.5"') == 2


def test_ranks_that_had_not_come_to_the_failed_call_are_told_apart() -> None:
    """Rank 3 raised while ranks 0 and 2 were still at work: nobody may say that all wait for an innocent one."""
    failure = Failure("raised", 3, "ValueError", "bad", "", -1, 0.1, {}, {1: [0]})
    sentence = after_failure(failure, 4).sentence
    assert sentence.endswith(
        "Who waits: rank 1 for rank 0. This is the moment at which rank 3 raised its error. Ranks 0 and 2 had not come "
        "so far yet, and an arrow to one of them does not say that it is to blame."
    )
    failure = Failure("signal", 3, "", "was killed", "", -1, 0.1, {}, {0: [1], 2: [3]})
    assert after_failure(failure, 4, told=True).sentence.endswith(
        "This is the moment at which rank 3 failed. Rank 1 had not come so far yet, and an arrow to it does not say "
        "that it is to blame."
    )
    failure = Failure("raised", 3, "ValueError", "bad", "", -1, 0.1, {}, {0: [3], 1: [0], 2: [3]})
    assert after_failure(failure, 4).sentence.endswith("In the end all of them wait for rank 3.")


def test_entries_of_a_key_stay_apart():
    svg = Svg(200, "a key", "two entries")
    svg.text(8, 20, "thick: now   thin: before")
    assert ">thick: now\u2003thin: before<" in svg.render(40), "a browser makes one space of three"


def test_a_tick_over_several_bars_runs_through_no_number() -> None:
    values = {"ranks": {"a": 100, "b": 50}, "yours": {"a": 60, "b": 49}, "planner": {"a": 104, "b": 90}}
    ranks, yours, _ = bars(values, unit="", ticks=True).spec["data"]
    assert ranks["textposition"] == ["inside", "outside"] and yours["textposition"] == ["outside", "outside"]
