"""Predictions: what is read, and how it compares with the run."""

from __future__ import annotations

import pytest
from course.sample import VALUES, chapter
from hypothesis import given, strategies as st

from labkit.course.predicting import Forecast, ratio


@pytest.fixture(scope="module")
def forecasts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Forecast]:
    loaded = chapter(tmp_path_factory.mktemp("chapter"))
    return {id: loaded.forecast(id, VALUES) for id in loaded.predictions}


def test_numbers_are_read_in_the_units_of_their_boxes(forecasts: dict[str, Forecast]) -> None:
    f = forecasts["bytes"]
    assert f.declared == (617.25, 14)
    assert f.read("0.6 GB", 14) == f.read(["600", "14 messages"[:2]]) == (600, 14)
    with pytest.raises(ValueError, match="2 numbers are asked for .'MB from each', 'messages'., 1 were given"):
        f.read(3)
    with pytest.raises(ValueError, match="MB from each: 'lots' is not a number"):
        f.read("lots", 2)
    with pytest.raises(ValueError, match="MB from each: -5 is not possible here: it cannot be less than 0"):
        f.read(-5, 2)
    with pytest.raises(ValueError, match="messages: 2.5 is not possible here: type a whole number"):
        f.read(600, 2.5)


def test_numbers_beside_the_run(forecasts: dict[str, Forecast]) -> None:
    first, second = forecasts["bytes"].compare((600.0, 42.0), (1200.0, 14), "the run (measured)")
    assert first == {
        "": "MB from each",
        "you": 600.0,
        "the run (measured)": 1200.0,
        "your number is": "too small by a factor of 2",
    }
    assert second["your number is"] == "too large by a factor of 3"
    alone = forecasts["bytes"].compare(None, (1200.0, 14), "the run")
    assert [row["you"] for row in alone] == ["not predicted"] * 2 and "your number is" not in alone[0]
    with pytest.raises(ValueError, match="2 boxes"):
        forecasts["bytes"].compare(None, (1.0,), "the run")


@pytest.mark.parametrize(
    ("mine", "run", "words"),
    [
        (3, 3, "right"),
        (100, 100.9, "within 1 %"),
        (11, 10, "10 % too large"),
        (7.5, 10, "25 % too small"),
        (30, 10, "too large by a factor of 3"),
        (10, 45, "too small by a factor of 4.5"),
        (0.955, 1.909, "too small by a factor of 2"),
        (1, 1.9, "47 % too small"),
        (1, 160.4, "too small by a factor of 160"),
        (4.8e6, 2, "too large by a factor of 2,400,000"),
        (0, 4, "4 too small"),
        (4, 0, "4 too large"),
        (-2, 2, "4 too small"),
        (0, 0, "right"),
        (-20, -10, "10 too small"),
    ],
)
def test_a_difference_in_words(mine: float, run: float, words: str) -> None:
    assert ratio(mine, run) == words


@pytest.mark.parametrize(
    ("mine", "run", "words"),
    [
        (80, 83.4, "3.4 points too small"),
        (90, 45, "45 points too large"),
        (3, 3, "right"),
        (0, 0.01, "within 0.1 points"),
    ],
)
def test_percents_differ_by_points(mine: float, run: float, words: str) -> None:
    assert ratio(mine, run, "%") == words


def test_a_choice_by_letter_text_or_position(forecasts: dict[str, Forecast]) -> None:
    f = forecasts["who-waits"]
    assert f.declared == (2,)
    assert f.read("b") == f.read("rank 0") == f.read(1) == f.read([1]) == (1,)
    for wrong in ("d", "", 3, "a b", None):
        with pytest.raises(ValueError, match="pick one: a to c"):
            f.read(wrong)
    assert f.compare((1,), (), "run") == [{"": "choice", "you": "rank 0", "run": "all but rank 0"}]
    assert f.compare((1,), ("b",), "run") == [{"": "choice", "you, and run": "rank 0"}]
    assert f.compare(None, (), "run")[0]["you"] == "not predicted"


def test_a_sketch_column_by_column(forecasts: dict[str, Forecast]) -> None:
    f = forecasts["bubble"]
    assert f.read([75, 50, 50, 25]) == f.read(75, 50, 50, 25) == (75, 50, 50, 25)
    with pytest.raises(ValueError, match="4 columns are asked for .1, 2, 4, 8., 1 were given"):
        f.read(75)
    rows = f.compare((75, 50, 50, 25), (80, 60, 40, 25), "run")
    assert [row["you minus the run"] for row in rows] == [-5, -10, 10, 0]
    assert [row["microbatches"] for row in rows] == ["1", "2", "4", "8"]
    assert [row["run"] for row in f.compare(None, (), "run")] == [81.125, 67.5, 43.25, 27.375]


def test_what_is_shown_has_no_answer(forecasts: dict[str, Forecast]) -> None:
    for f in forecasts.values():
        page = repr(f.shown()) + repr(f.lines()) + f.prompt
        assert not any(key in page for key in ("617", "81.125", "declared", "answer"))


@given(
    st.lists(st.none() | st.text() | st.integers() | st.floats() | st.lists(st.integers(), max_size=4), max_size=5),
    st.sampled_from(["bytes", "who-waits", "bubble"]),
)
def test_anything_answered_is_read_or_refused_in_words(
    forecasts: dict[str, Forecast], values: list[object], id: str
) -> None:
    try:
        read = forecasts[id].read(*values)
    except ValueError as error:
        assert str(error)
    else:
        assert forecasts[id].read(*read) == read and forecasts[id].told(read)
