"""Pictures of schedules: every box with its letter and number, the gaps, very many boxes, runs, deadlocks."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ET
from typing import Any

import pytest

import labkit
from labkit.book import schedule, wait_for
from labkit.book.timelines.schedule_runs import MOST_RUNS, runs
from labkit.book.timelines.schedules import Box
from labkit.parallel.pipeline import (
    Costs,
    ScheduleError,
    from_labels,
    gpipe,
    interleaved,
    labels,
    naive,
    one_f_one_b,
    simulate,
    validate,
    with_messages,
    zb_h1,
    zb_h2,
    zb_v,
)

from . import fake_trace as fake

SVG = "{http://www.w3.org/2000/svg}"


def shapes(figure: Any) -> list[ET.Element]:
    """Boxes below the legend."""
    found = [r for r in ET.fromstring(figure.svg).iter(f"{SVG}rect")]
    return [r for r in found if float(r.get("height", 0)) > 12 and not r.get("rx")]


def test_every_instruction_is_a_box_with_its_letter_above_its_microbatch() -> None:
    figure = one_f_one_b(4, 8).draw()
    assert len(shapes(figure)) == 4 * 16
    texts = [t.text for t in ET.fromstring(figure.svg).iter(f"{SVG}text")]
    assert texts.count("F") == texts.count("B") == 4 * 8
    for k in range(8):  # and once or twice on the time axis
        assert texts.count(str(k)) >= 8
    assert [r["in order"] for r in figure.rows] == [" ".join(row) for row in labels(one_f_one_b(4, 8))]


def test_the_words_say_what_is_idle_and_what_is_kept() -> None:
    figure = schedule(one_f_one_b(4, 8))
    assert figure.badge == "simulated"
    assert "4 ranks, 8 microbatches: 33 units, of which a rank is idle 27.3 % on average." in figure.sentence
    assert "keeps 1 to 4 activations at most" in figure.sentence
    assert [r["idle (units)"] for r in figure.rows] == [9, 9, 9, 9]
    assert [r["idle inside (units)"] for r in figure.rows] == [9, 6, 3, 0]
    assert [r["activations at most"] for r in figure.rows] == [4, 3, 2, 1]
    for make in (naive, gpipe, interleaved, zb_h1, zb_h2, zb_v):
        plan = make(3, 6)
        line, rows = simulate(plan, Costs(2e-3, 1e-3, 1e-3)), schedule(simulate(plan, Costs(2e-3, 1e-3, 1e-3))).rows
        assert [r["activations at most"] for r in rows] == list(validate(plan).peak)
        assert [r["idle (ms)"] for r in rows] == [ns / 1e6 for ns in line.idle]
        assert [r["idle inside (ms)"] for r in rows] == [ns / 1e6 for ns in line.idle_inside]
        assert [r["computing (ms)"] for r in rows] == [ns / 1e6 for ns in line.busy]


def test_boxes_lie_where_the_simulator_says() -> None:
    line = simulate(zb_h1(3, 5), Costs(3e-3, 2e-3, 1e-3))
    drawn = []
    for one in line.draw().plotly().data:
        drawn += [(round(y - 0.5), round(base * 1e6), round((base + x) * 1e6), text.split(":")[0])
                  for y, base, x, text in zip(one.y, one.base, one.x, one.hovertext, strict=True)]  # fmt: skip
        assert all(text in hover.split(":")[0] for text, hover in zip(one.text, one.hovertext, strict=True))
    expected = [
        (rank, begin, end, f"{rank}{i.action}{i.microbatch}") for rank in range(3)
        for i, begin, end in zip(line.schedule.ranks[rank], line.begin[rank], line.end[rank], strict=True)
    ]  # fmt: skip
    assert sorted(drawn) == sorted(expected)


def test_chunks_are_told_apart_by_their_stage_and_by_lightness() -> None:
    figure = interleaved(2, 4).draw()
    texts = {t.text for t in ET.fromstring(figure.svg).iter(f"{SVG}text")}
    assert {"0F", "1F", "2F", "3F", "0B", "3B"} <= texts
    assert len({r.get("fill") for r in shapes(figure)}) == 4  # two kinds, two chunks
    assert "Lighter boxes are later chunks; a number before a letter is the stage." in figure.sentence


def test_boxes_too_narrow_for_a_letter_are_hatched() -> None:
    lettered, narrow = gpipe(4, 4).draw(), gpipe(8, 90).draw()
    assert not [r for r in shapes(lettered) if "url(" in r.get("fill", "")]
    assert [r for r in shapes(narrow) if "url(" in r.get("fill", "")]
    assert "B" not in [t.text for t in ET.fromstring(narrow.svg).iter(f"{SVG}text")]


def test_a_window_and_ranks_choose_a_part() -> None:
    figure = schedule(one_f_one_b(4, 8), window=(3, 6), ranks=[0, 3])
    assert [r["rank"] for r in figure.rows] == [0, 3]
    assert [r["in order"] for r in figure.rows] == ["0F3", "3F0 3B0"]
    assert [r["computing (units)"] for r in figure.rows] == [1, 3]
    assert [r["idle (units)"] for r in figure.rows] == [2, 0]
    assert [r["activations at most"] for r in figure.rows] == [4, 1]  # of the whole step
    assert "from 3 units to 6 units" in figure.sentence
    half = schedule(one_f_one_b(4, 8), window=(3.5, 5.5), ranks=[3])
    assert half.rows[0]["computing (units)"] == 2
    with pytest.raises(ValueError, match="ranks 0 to 3"):
        schedule(one_f_one_b(4, 8), ranks=[4])
    with pytest.raises(ValueError, match="the first one smaller"):
        schedule(one_f_one_b(4, 8), window=(3, 3))


def test_what_is_no_schedule_is_named() -> None:
    with pytest.raises(ValueError, match="a list cannot be drawn as a schedule"):
        schedule([["0F0"]])
    with pytest.raises(ValueError, match="no spans named like 2F0"):
        schedule(fake.ring())
    with pytest.raises(ValueError, match="takes any time"):
        schedule(one_f_one_b(2, 2), costs=Costs(0, 0, 0))


def test_what_takes_no_time_is_in_the_words_all_the_same() -> None:
    figure = schedule(zb_h1(2, 2), costs=Costs(1e-3, 1e-3, 0))
    assert [r["in order"] for r in figure.rows] == [" ".join(row) for row in labels(zb_h1(2, 2))]
    assert [r["activations at most"] for r in figure.rows] == [2, 2]


def test_64_by_1024_is_drawn_in_a_second_and_stays_small() -> None:
    line = simulate(one_f_one_b(64, 1024), Costs(1e-3, 1e-3, 1e-3))
    began = time.process_time()
    figure = line.draw()
    spent = time.process_time() - began
    assert len(figure.svg) < 100_000 and len(str(figure.spec)) < 100_000
    assert "drawn as one stretch" in figure.sentence
    assert len(figure.rows) == 64 and figure.rows[0]["number of F"] == 1024
    first = [r for r in figure.plotly().data[0].base]  # forwards of the warmup: rank r begins at r
    assert first[:4] == [0, 0.001, 0.002, 0.003]
    assert spent < 2, spent


def test_a_stretch_is_as_tall_as_the_share_of_its_time_that_is_used() -> None:
    boxes = [Box(0, "F", 0, 0, k, 2.0 * k, 2.0 * k + 1) for k in range(500)]
    (run,) = runs({0: boxes}, (0.0, 1000.0))
    assert (run.kind, run.start, run.end) == ("F", 0, 999)
    assert run.share == pytest.approx(500 / 999)
    far = [Box(0, "F", 0, 0, k, 20.0 * k, 20.0 * k + 1) for k in range(50)]
    assert len(runs({0: far}, (0.0, 1000.0))) == 50  # gaps that can be seen
    mixed = [Box(0, "FB"[k % 2], 0, 0, k, float(k), k + 1.0) for k in range(100)]
    assert [(r.kind, r.share) for r in runs({0: mixed}, (0.0, 100.0))] == [("mixed", 1.0)]
    many = {rank: [Box(rank, "F", 0, 0, k, 10.0 * k, 10.0 * k + 1) for k in range(100)] for rank in range(100)}
    assert len(runs(many, (0.0, 1000.0))) <= MOST_RUNS


def a_run(group: Any) -> None:
    for step in range(2):
        group.step(step)
        for label in ("F0", "B0"):
            with group.span(f"{group.rank}{label}"):
                group.compute(0.001)
        with group.span("other"):
            group.compute(0.001)


@pytest.mark.ranks
def test_a_run_is_drawn_from_the_names_of_its_spans() -> None:
    trace = labkit.launch(a_run, 2, clock="virtual", transport="local").trace
    figure = schedule(trace, step=1)
    assert figure.badge == "emulated"
    assert [r["in order"] for r in figure.rows] == ["0F0 0B0", "1F0 1B0"]
    assert [r["computing (ms)"] for r in figure.rows] == [2, 2]
    assert [r["in order"] for r in schedule(trace).rows] == ["0F0 0B0 0F0 0B0", "1F0 1B0 1F0 1B0"]
    with pytest.raises(ValueError, match="another step than 7"):
        schedule(trace, step=7)


def test_a_deadlock_is_drawn_with_who_waits_for_whom() -> None:
    rows = labels(one_f_one_b(4, 2))
    rows[1], rows[2] = ["1F0", "1B0", "1F1", "1B1"], ["2F1", "2B1", "2F0", "2B0"]
    with pytest.raises(ScheduleError) as caught:
        validate(from_labels(rows))
    figure = caught.value.draw()
    assert "A circle of 2: rank 1 at 1B0 waits for 2B0 of rank 2, rank 2 at 2F1 waits for 1F1" in figure.sentence
    assert "2 more wait for them: rank 0, rank 3." in figure.sentence
    assert [(r["rank"], r["in the circle"]) for r in figure.rows] == [(0, "no"), (1, "yes"), (2, "yes"), (3, "no")]
    circles = [c.get("stroke-dasharray") for c in ET.fromstring(figure.svg).iter(f"{SVG}circle")]
    assert len(circles) == 6 and circles.count("3 2") == 2  # a second edge for those in the circle, dashes for others
    arrows = [note for note in figure.plotly().layout.annotations if note.showarrow]
    assert len(arrows) == 4 and all(note.standoff == note.startstandoff > 20 for note in arrows)
    assert {trace.name: sorted(trace.text) for trace in figure.plotly().data} == {
        "in the circle": ["<b>1</b>", "<b>2</b>"], "waits for one that is": ["<b>0</b>", "<b>3</b>"],
    }  # fmt: skip
    with pytest.raises(ScheduleError) as caught:
        validate(with_messages(one_f_one_b(2, 4), receive="late"))
    texts = {t.text for t in ET.fromstring(caught.value.draw().svg).iter(f"{SVG}text")}
    assert {"at 0SEND_F1", "1RECV_F1", "at 1SEND_B0", "0RECV_B0"} <= texts
    with pytest.raises(ValueError, match="not about a deadlock"):
        wait_for(ScheduleError("0F0 is missing"))
