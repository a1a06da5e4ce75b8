"""Public checks run where no answers are: what they compare with is recorded, for some seeds."""

from __future__ import annotations

import pytest
import torch
from slices import LONG, changed_last, few
from zoo_runs import CHAPTERS, animals, answers_of, exercises, source

from labkit.grading import known
from labkit.grading.checks.notebook import NotebookStudent
from labkit.grading.checks.pristine import checks_of
from labkit.grading.checks.recording import digest
from labkit.grading.known import Answers, NotKnown, key_of, seeds

RECORDED = [name for name in CHAPTERS if known.record_path(name).is_file()]


@pytest.fixture
def a_students_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(known.SOLUTIONS, "")


@pytest.mark.ranks
@pytest.mark.parametrize("seed", few(known.SEEDS))
@pytest.mark.parametrize("chapter", changed_last(RECORDED))
def test_every_answer_that_a_public_check_asks_for_is_recorded(
    chapter: str, seed: int, a_students_machine: None
) -> None:
    """For solutions, and for wrong answers: what is asked for may not follow from what a student returns."""
    opened = checks_of(source(chapter), hidden=False, strict=False)
    recorded = [one.id for one in source(chapter).exercises if seeds(chapter, one.id)]
    assert recorded
    for one in recorded:
        assert opened.next_seed(one) in known.SEEDS
        opened.namespace.update(answers_of(chapter, one))
        outcome = opened.judge(one, NotebookStudent(opened.namespace, seed, one))
        assert outcome.state == "right", (one, seed, outcome)
        wrong = [animal for animal in animals(chapter) if animal.exercise == one]
        for animal in wrong if LONG else wrong[:2]:
            names = {**opened.namespace, animal.entry: animal.body}
            opened.judge(one, NotebookStudent(names, seed, one))  # raises NotKnown for what is not there


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_record_is_not_older_than_what_it_was_made_from(chapter: str) -> None:
    assert known.recorded_digest(chapter) == digest(source(chapter)), "say labkit release"


def test_a_record_is_made_of_what_its_checks_import_and_not_of_the_pictures_of_the_chapter() -> None:
    opened = "from labkit.chapters.c04_data_parallelism.checks import packed"
    parts = known.made_of("04_data_parallelism", opened)
    assert "checks" in parts and "pictures" not in parts
    parts = known.made_of("04_data_parallelism", "from labkit.chapters.c04_data_parallelism import pictures, machine")
    assert {"pictures", "machine", "counting"} <= set(parts), "and what they import"


def test_where_there_are_answers_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = Answers("10_pipeline_parallelism")
    assert answers.limited_1f1b(2, 977, 2)[0][:4] == ["0F0", "0F1", "0B0", "0F2"] and not seeds(answers._chapter, "x")
    monkeypatch.setenv(known.SOLUTIONS, "")
    with pytest.raises(NotKnown, match="10_pipeline_parallelism has no record of this limited_1f1b"):
        answers.limited_1f1b(2, 977, 2)


def test_a_check_that_asks_for_what_is_not_recorded_blames_nobody(a_students_machine: None) -> None:
    opened = exercises("10_pipeline_parallelism")

    @opened.check("fill-and-drain", evidence="result", points=1)
    def asks(student):
        Answers("10_pipeline_parallelism").limited_1f1b(2, 977, 2)

    try:
        with pytest.raises(NotKnown):
            opened.judge("fill-and-drain", NotebookStudent({}, 0, "fill-and-drain"))
    finally:
        del opened._checks["fill-and-drain"]["asks"]


def test_calls_are_known_by_their_data() -> None:
    x = torch.tensor([0.1, 0.2])
    assert key_of("f", (x, [1, 2]), {}) == key_of("f", (x + 1e-9, (1, 2)), {})
    calls = [("f", (x,), {}), ("g", (x,), {}), ("f", (2 * x,), {}), ("f", (x.double(),), {}), ("f", (x,), {"n": 1})]
    assert len({key_of(*call) for call in calls}) == 5
    with pytest.raises(TypeError, match="with plain data, not with a object"):
        key_of("f", (object(),), {})
