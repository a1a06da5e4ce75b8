"""Lines over plain axes: what they say in words, and that two lines over each other are both seen."""

from __future__ import annotations

import re

import pytest

from labkit import book


def test_lines_over_the_same_points_say_how_far_they_are_apart():
    figure = book.lines({"1 rank": [5.5, 4.0, 3.0], "4 ranks": [5.5, 4.25, 3.0]})
    assert figure.sentence == (
        "1 rank: loss 5.5 at step 1, 3 at step 3. 4 ranks: loss 5.5 at step 1, 3 at step 3. "
        "At the same step, lines are at most 2.5e-01 apart."
    )
    assert figure.rows[1] == {"step": 2, "1 rank": 4.0, "4 ranks": 4.25}
    assert "apart" not in book.lines({"a": [1.0, 2.0], "b": {1: 1.0, 3: 2.0}}).sentence
    assert book.lines({"a": [1.0], "b": [1.0]}).sentence.endswith("The lines are the same.")


def test_a_point_that_a_line_lacks_is_empty_in_the_table():
    assert book.lines({"a": {1: 2.0}, "b": {2: 3.0}}, x="ms").rows == [
        {"ms": 1, "a": 2.0, "b": None}, {"ms": 2, "a": None, "b": 3.0}
    ]  # fmt: skip


def test_markers_of_lines_that_coincide_sit_at_different_places():
    data = book.lines({"a": list(range(40)), "b": list(range(40))}).spec["data"]
    marked = [{x for x, size in zip(line["x"], line["marker"]["size"], strict=True) if size} for line in data]
    assert len(marked[0]) > 5 and len(marked[1]) > 5 and not marked[0] & marked[1]


def test_a_line_of_zeros_stands_at_the_bottom():
    low, high = book.lines({"a": [0.0, 0.0]}).spec["layout"]["yaxis"]["range"]
    assert -0.1 < low < 0 < high


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="nothing to draw"):
        book.lines({"a": []})


def test_steps_have_whole_ticks_and_tiny_numbers_no_prefix():
    few = book.lines({"a": {1: 1e-16, 2: 2e-16, 3: 0.0}}, x="after step")
    ticks = re.findall(r">(\d+\.?\d*)</text>", few.svg)
    assert {"1", "2", "3"} <= set(ticks) and "1.5" not in ticks and few.spec["layout"]["xaxis"]["dtick"] == 1
    assert few.spec["layout"]["yaxis"]["exponentformat"] == "power"
    broken = book.lines({"a": {1.5: 1.0, 2: 2.0, 3: 0.5}})
    assert "dtick" not in broken.spec["layout"]["xaxis"] and "exponentformat" not in broken.spec["layout"]["yaxis"]
    assert "dtick" not in book.lines({"a": [1.0] * 40}).spec["layout"]["xaxis"]


def test_an_axis_of_tenfolds_leaves_out_what_has_no_place_and_a_fixed_one_stays():
    figure = book.lines({"a": {1: 1, 2: 0.1, 4: 1e-3, 8: 0}}, log="xy")
    ticks = set(re.findall(r">([\d.]+)</text>", figure.svg))
    assert {"0.001", "0.01", "0.1", "1", "2", "4"} <= ticks and "8" not in ticks
    assert figure.rows[-1] == {"step": 8, "a": 0}, "the table has all of it"
    assert figure.spec["layout"]["xaxis"]["tickvals"] == [1, 2, 4] and figure.spec["layout"]["yaxis"]["type"] == "log"
    first, second, third = map(
        float, re.search(r'd="M[\d.]+ ([\d.]+) L[\d.]+ ([\d.]+) L[\d.]+ ([\d.]+)"', figure.svg).groups()
    )
    assert third - second == pytest.approx(2 * (second - first), rel=0.02), "two tenfolds are twice as long as one"
    for values in ([2.0, 1.9], [2.0, 1.0]):
        fixed = book.lines({"a": values}, within=(0.5, 2.5))
        assert fixed.spec["layout"]["yaxis"]["range"] == [0.5, 2.5] and ">0.5</text>" in fixed.svg
    with pytest.raises(ValueError, match="all are 0 or less"):
        book.lines({"a": [0.0, 0.0]}, log="y")
    with pytest.raises(ValueError, match="log='z'"):
        book.lines({"a": [1.0]}, log="z")
