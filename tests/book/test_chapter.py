"""A notebook's door to its chapter: predictions that stop a reader, quizzes that keep their keys, records."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from course.sample import SAMPLE

from labkit import book
from labkit.book.frontend import VIEW
from labkit.book.reading.ending import _beginning, what_next
from labkit.book.reading.records import RECORD
from labkit.course import chapter_file

NAME = "99_sample"
# Every text and number that would give an answer away.
SECRETS = [
    "617.25",
    "617",
    "81.125",
    "67.5",
    "43.25",
    "27.375",
    "WHY-",
    "MISSED-",
    "EXPLAINED-",
    "REDUCE-AND-SCATTER",
    "reduce-?scatter",
    "declared",
    "slips",
    "tolerance",
]


@pytest.fixture(autouse=True)
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of their own, and the sample among the chapters; nobody is there."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LABKIT_HEADLESS", "1")
    folder = tmp_path / "chapters"
    (folder / f"c{NAME}").mkdir(parents=True)
    (folder / f"c{NAME}" / "questions.toml").write_text(SAMPLE)
    monkeypatch.setattr(chapter_file, "ROOMS", folder)
    return tmp_path / "home"


@pytest.fixture
def somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in JupyterLab."""
    monkeypatch.setenv("LABKIT_HEADLESS", "0")


def opened(world_size: int = 8) -> book.Chapter:
    return book.open_chapter(NAME, world_size=world_size, nbytes=4_000_000, seed=0)


def everything_shown(shown: Any) -> str:
    """All that leaves the kernel: each MIME type with its metadata, and the state of the widget but for its code."""
    bundle = shown._repr_mimebundle_()
    state = shown.form.widget.get_state() if VIEW in bundle else {}
    state = {key: value for key, value in state.items() if key not in ("_esm", "_css")}
    text = json.dumps([bundle, state, repr(shown)], default=str, ensure_ascii=False)
    return re.sub(r"\b(IPY_MODEL_)?[0-9a-f]{32}\b", "", text)  # the random name of a widget may hold any digits


# --- nobody is there


def test_headless_the_declared_answer_stands_in_and_nothing_stops(reader: Path) -> None:
    chapter = opened()
    p = chapter.predict("bytes")
    p.require()
    assert not p.predicted and not p.skipped and p.values == p.declared == (617.25, 14)
    assert "not predicted" in repr(p) and "4 MB" in repr(p)
    table = p.compare(600.0, 14)
    assert [row["you"] for row in table] == ["not predicted"] * 2
    assert [row["the run (measured)"] for row in table] == [600.0, 14]
    chapter.quiz().answer("a-word", "reduce-scatter")
    assert "The end" in repr(chapter.finish())
    assert not reader.exists(), "headless, nothing is written"


def test_headless_the_text_of_a_quiz_is_its_questions(reader: Path) -> None:
    quiz = opened().quiz()
    assert "Which one for 8 ranks?" in quiz.text and "b) " in quiz.text and "(a number in MB)" in quiz.text
    for secret in SECRETS:
        assert secret not in quiz.text


# --- a reader is there


@pytest.mark.usefixtures("somebody")
def test_a_sketch_over_other_columns_is_asked_again() -> None:
    file = chapter_file.ROOMS / f"c{NAME}" / "questions.toml"
    file.write_text(SAMPLE.replace('"[1, 2, 4, 8]"', '"[world_size * k for k in (1, 2, 4, 8)]"'))
    opened().predict("bubble").answer(75, 50, 50, 25)
    assert opened().predict("bubble").predicted
    assert not opened(world_size=3).predict("bubble").predicted


@pytest.mark.usefixtures("somebody")
def test_an_unanswered_prediction_stops_the_cell_and_an_answer_unlocks_it(reader: Path) -> None:
    p = opened().predict("bytes")
    with pytest.raises(book.PredictFirst) as stop:
        p.require()
    lines = stop.value._render_traceback_()
    assert len(lines) == 2 and lines[0] == "Predict first." and "press Skip" in lines[1]
    with pytest.raises(ValueError, match="'lots' is not a number"):
        p.answer("lots", 3)
    with pytest.raises(book.PredictFirst):
        p.require()
    p.answer("0.5 GB", 14)
    p.require()
    assert p.predicted and p.values == (500, 14) and not p.form.items[0]["locked"]
    row = p.compare(1000.0, 14)[0]
    assert p.form.items[0]["locked"], "the answer is known now"
    assert row["you"] == 500 and row["your number is"] == "too small by a factor of 2"


@pytest.mark.usefixtures("somebody")
def test_skip_unlocks_and_records_not_predicted() -> None:
    chapter = opened()
    p = chapter.predict("who-waits")
    p.skip()
    p.require()
    assert not p.predicted and p.skipped and p.values == p.declared
    assert p.compare()[0]["you"] == "not predicted"
    assert chapter.progress.prediction(NAME, "who-waits")["state"] == "skipped"


@pytest.mark.usefixtures("somebody")
def test_a_prediction_about_other_numbers_may_be_skipped_and_stays() -> None:
    opened().predict("bytes").answer(500, 14)
    other = opened(world_size=3).predict("bytes")
    with pytest.raises(book.PredictFirst):
        other.require()
    assert other.form.act("bytes", "skip")["state_text"] == "Skipped"
    other.require()
    opened(world_size=3).predict("bytes").require()  # also when the cell is run again
    assert opened().predict("bytes").values == (500, 14)


@pytest.mark.usefixtures("somebody")
def test_the_form_does_what_the_methods_do() -> None:
    p = opened().predict("bytes")
    item = p.form.act("bytes", "submit", ["lots", "14"])
    assert item["state"] == "open" and "is not a number" in item["feedback"] and item["value"] == ["lots", "14"]
    with pytest.raises(book.PredictFirst):
        p.require()
    item = p.form.act("bytes", "submit", ["0.5 GB", "14"])
    assert item["state"] == "done" and item["state_text"] == "Predicted"
    p.require()
    other = opened().predict("bubble")
    other.form.act("bubble", "submit", [75, 50, 50, 25])
    assert other.values == (75, 50, 50, 25)
    third = opened().predict("who-waits")
    third.form.act("who-waits", "skip")
    third.require()
    assert third.form.item("who-waits")["state_text"] == "Skipped"


@pytest.mark.usefixtures("somebody")
def test_running_the_cell_again_shows_what_was_answered() -> None:
    chapter = opened()
    chapter.predict("bytes").answer(500, 14)
    chapter.quiz("a-number").answer("a-number", "40")
    chapter.quiz("pick-one").answer("pick-one", "alpha")
    chapter.quiz("in-order").reveal("in-order")
    for again in (chapter, opened()):  # the same kernel, and another one
        p = again.predict("bytes")
        p.require()
        assert p.values == (500, 14) and p.form.item("bytes")["value"] == ["500", "14"]
        quiz = again.quiz("a-number", "pick-one", "in-order")
        assert quiz.form.item("a-number")["value"] == ["40"] and quiz.form.item("a-number")["state"] == "wrong"
        assert "WHY-WHOLE" in quiz.form.item("a-number")["feedback"]
        assert (
            quiz.form.item("pick-one")["state"] == "right" and "EXPLAINED-ONE" in quiz.form.item("pick-one")["feedback"]
        )
        assert quiz.form.item("in-order")["state"] == "open"
    assert chapter.progress.question(NAME, "a-number")["tries"] == 1, "looking again is no try"


@pytest.mark.usefixtures("somebody")
def test_an_answer_to_a_question_that_changed_is_asked_anew(tmp_path: Path) -> None:
    opened().predict("bytes").answer(500, 14)
    text = SAMPLE.replace('{ label = "messages", answer = "2 * world_size - 2", whole = true }', "")
    (tmp_path / "chapters" / f"c{NAME}" / "questions.toml").write_text(text)
    with pytest.raises(book.PredictFirst):
        opened().predict("bytes").require()


@pytest.mark.usefixtures("somebody")
def test_the_quiz_form_marks_explains_and_reveals() -> None:
    chapter = opened()
    quiz = chapter.quiz("pick-one", "a-number", "a-word")
    item = quiz.form.act("a-number", "submit", ["32"])
    assert item["state"] == "wrong" and "WHY-HALF" in item["feedback"] and "EXPLAINED" not in item["feedback"]
    item = quiz.form.act("a-number", "submit", ["much"])
    assert item["state"] == "open" and "is not a number" in item["feedback"] and item["value"] == ["much"]
    item = quiz.form.act("a-number", "submit", ["64"])
    assert item["state"] == "right" and "EXPLAINED-NUMBER" in item["feedback"]
    assert chapter.progress.question(NAME, "a-number")["tries"] == 2, "what is no number is no try"
    item = quiz.form.act("a-word", "reveal")
    assert item["state"] == "done" and "REDUCE-AND-SCATTER" in item["feedback"] and "EXPLAINED-WORD" in item["feedback"]
    assert chapter.progress.question(NAME, "a-word")["revealed"]
    told = quiz.answer("pick-one", "alpha")
    assert told.right and told.explanation == "EXPLAINED-ONE" and quiz.form.item("pick-one")["state"] == "right"
    with pytest.raises(ValueError, match="no question 'pick-won' here .did you mean 'pick-one'"):
        quiz.answer("pick-won", 1)


@pytest.mark.usefixtures("somebody")
def test_a_quiz_without_ids_has_what_no_other_cell_asked() -> None:
    chapter = opened()
    assert chapter.quiz("a-number", "a-word").ids == ["a-number", "a-word"]
    assert chapter.quiz().ids == ["pick-one", "pick-some", "in-order"]
    assert chapter.quiz().ids == ["pick-one", "pick-some", "in-order"], "the same when its cell runs again"


# --- no answer before it was asked for


@pytest.mark.parametrize("headless", ["0", "1"])
def test_no_answer_is_in_any_output_or_widget_state(monkeypatch: pytest.MonkeyPatch, headless: str) -> None:
    monkeypatch.setenv("LABKIT_HEADLESS", headless)
    chapter = opened()
    shown = [chapter.predict(id) for id in ("bytes", "who-waits", "bubble")] + [chapter.quiz(), chapter]
    pages = [everything_shown(s) for s in shown[:-1]] + [repr(chapter)]
    assert ("model_id" in pages[0]) is (headless == "0")
    for page in pages:
        assert [secret for secret in SECRETS if secret in page] == []


@pytest.mark.parametrize("headless", ["0", "1"])
def test_what_is_shown_is_the_same_whichever_answer_is_right(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, headless: str
) -> None:
    monkeypatch.setenv("LABKIT_HEADLESS", headless)

    def pages() -> list[str]:
        chapter = opened()
        shown = [chapter.predict(id) for id in ("bytes", "who-waits", "bubble")]
        shown.append(chapter.quiz("pick-one", "pick-some", "a-number", "a-word"))
        texts = [everything_shown(s) for s in shown]
        for s, n in zip(shown, range(len(texts)), strict=True):
            if headless == "0":
                texts[n] = texts[n].replace(s.form.widget.model_id, "id")
                texts[n] = texts[n].replace(s.form.widget.layout.model_id, "id")
        return texts

    before = pages()
    other = SAMPLE
    for old, new in [
        ('"617.25"', '"3"'),
        ('answer = "2"', 'answer = "0"'),
        ("81.125, 67.5", "1, 2"),
        ("ring_all_reduce_bytes", "ring_reduce_scatter_bytes"),
        (
            '{ text = "alpha", right = true }, { text = "beta", why = "WHY-BETA" }, { text = "gamma", why',
            '{ text = "alpha", why = "x" }, { text = "beta", right = true }, { text = "gamma", why',
        ),
        ('"reduce-?scatter"', '"all-?gather"'),
        ("REDUCE-AND-SCATTER", "gather"),
        ("EXPLAINED", "TOLD"),
        ("tolerance = 0.01", "tolerance = 0.2"),
    ]:
        assert old in other
        other = other.replace(old, new)
    (tmp_path / "chapters" / f"c{NAME}" / "questions.toml").write_text(other)
    assert pages() == before


# --- comparing, recording, the end


def test_a_sketch_is_compared_as_a_figure() -> None:
    p = opened().predict("bubble")
    alone = p.compare([80, 60, 40, 25], mark="emulated")
    assert alone.badge == "emulated" and "Not predicted" in alone.sentence and "you" not in alone.svg
    p.answer(75, 50, 50, 25)
    both = p.compare([80, 65, 40, 25])
    assert "furthest off at 2 microbatches: 15 too low" in both.sentence and "at 1, 4 and 8 m" in both.sentence
    assert [row["you minus the run"] for row in both.rows] == [-5, -15, 10, 0]
    assert both.spec is not None and both.spec["layout"]["yaxis"]["rangemode"] == "tozero"
    names = [trace["name"] for trace in both.spec["data"]]
    assert "you" in names and "the run" in names
    with pytest.raises(ValueError, match="badge 'guessed' does not exist"):
        p.compare(mark="guessed")


def test_a_scalar_of_torch_is_a_result_like_any_other() -> None:
    import torch

    p = opened().predict("bytes")
    p.answer(600, 14)
    row = p.compare(torch.tensor(1200.0), torch.tensor(14))[0]
    assert row["the run (measured)"] == 1200.0 and isinstance(row["the run (measured)"], float)


def test_a_record_is_a_display_that_programs_read() -> None:
    import numpy as np

    from labkit.book.reading.records import record_bundle

    bundle = record_bundle(NAME, {"ring_ms": np.float32(0.5), "winner": "ring", "crossover": None, "held": True})
    assert bundle[RECORD] == {
        "schema": 1,
        "chapter": NAME,
        "values": {"ring_ms": 0.5, "winner": "ring", "crossover": None, "held": True},
    }
    assert "ring_ms" in bundle["text/plain"] and json.loads(json.dumps(bundle)) == bundle
    for bad, why in (
        ({"x": float("nan")}, "record None"),
        ({"x": object()}, "cannot be recorded"),
        ({}, "nothing to record"),
    ):
        with pytest.raises(ValueError, match=why):
            record_bundle(NAME, bad)


def test_a_record_outside_a_notebook_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    opened().record(ring_ms=3.5)
    assert "ring_ms" in capsys.readouterr().out


@pytest.mark.usefixtures("somebody")
def test_the_end_says_what_was_done_and_what_to_read_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the book's own chapters
    monkeypatch.setenv("LABKIT_HEADLESS", "0")
    monkeypatch.setenv("LABKIT_HOME", "/nonexistent/never")
    monkeypatch.setattr("labkit.course.progress_file.ProgressFile._tell", lambda self, text: None)
    chapter = book.open_chapter("03_collectives", world_size=4)
    chapter.predict("naive-bytes", nbytes=10).answer(1, 2)
    chapter.predict("ring-bytes", nbytes=10).skip()
    right = "Rank 3 has left out one call: it is already at the next gradient."
    chapter.quiz("who-to-look-at").answer("who-to-look-at", right)
    chapter.quiz("rank-0-of-16")  # shown and not answered: it is named with its numbers
    said = repr(chapter.finish())
    assert "Predictions: 1 of 3 made at least once, 1 only skipped." in said
    assert "Questions: 1 of 14 right, 1 at the first try. Still open: “" in said and " and 9 more." in said
    assert _beginning("The recipe of `two_level_seconds`, _now_") == "“The recipe of two_level_seconds, now”"
    assert "“16 ranks all-reduce 250 MB through rank 0. How ...”" in said
    assert "“Data parallel ranks skip the all-reduce in one step ...”" in said
    assert "Read next: chapter 4, Data parallelism" in said
    assert "[Its exercises](exercises/03_collectives.ipynb)" in said
    monkeypatch.chdir(Path(__file__).parents[2] / "notebooks")
    said = what_next("03_collectives")
    assert "Read next: [chapter 4, Data parallelism](04_data_parallelism.ipynb)." in said
    assert "[Its exercises](../exercises/03_collectives.ipynb)" in said
    assert chapter.progress.chapters()["03_collectives"]["read"]


def test_a_value_that_nobody_passed_is_named_where_it_is_needed() -> None:
    chapter = book.open_chapter(NAME, world_size=8)
    with pytest.raises(ValueError, match="99_sample, bytes: .*needs 'nbytes', which nobody passed"):
        chapter.predict("bytes")


def test_the_ending_names_no_chapter_that_is_not_written_but_the_next_one():
    from labkit import course
    from labkit.book.reading.ending import what_next

    planned = [c for c in course.load().chapters if not c.written]
    assert planned, "some are planned: else this test has nothing to look at"
    for chapter in course.load().written():
        also = what_next(chapter.name).partition("Also built on this one: ")[2]
        assert not any(f"({c.title})" in also for c in planned)


def test_parameters_that_make_no_sense_are_refused_in_a_sentence_alone() -> None:
    book.allow({"holds": True})
    with pytest.raises(book.ParameterError, match="^steps are 10 or more; and nor this$") as refused:
        book.allow({"holds": True, "steps are 10 or more": False, "nor this": False})
    assert refused.value._render_traceback_() == ["steps are 10 or more; and nor this"]


def test_a_reader_sees_nothing_of_a_record_and_a_program_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from labkit.book.reading import records

    shown: list[dict[str, Any]] = []
    monkeypatch.setattr("IPython.get_ipython", lambda: object())
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    for there in (True, False):
        monkeypatch.setattr(records, "live", lambda there=there: there)
        records.show_record(NAME, {"ms": 1.5})
    assert RECORD in shown[0] and "text/plain" not in shown[0] and "1.5" in shown[1]["text/plain"]
