"""Stubs count as unattempted, solutions and other right answers get full marks, and every mutant is rejected.

`make test` takes, of each chapter, two solutions at one world size, one stub and one wrong answer (all solutions, and
one wrong answer of each program, of the chapter that changed last); `make test-all` takes all, at all world sizes.
"""

from __future__ import annotations

import pytest
from slices import changed_last, few
from zoo_runs import CHAPTERS, animals, answers_of, judged, sentences, source

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("patient")]

AUTOMATIC = [(c, e.id) for c in CHAPTERS for e in source(c).exercises if e.kind != "explanation"]
PROGRAMS = [(c, e.id) for c in CHAPTERS for e in source(c).exercises if e.kind == "program"]
CHANGED = {c for c in changed_last(CHAPTERS) if isinstance(c, str)}
FIRST = dict(reversed(PROGRAMS))  # of each chapter
LAST = dict(PROGRAMS)
SOLVED = [one for one in AUTOMATIC if one[0] in CHANGED or one in [*FIRST.items(), *LAST.items()]]
SOLVED += [one for one in AUTOMATIC if one not in SOLVED]
SHORT = sum(c in CHANGED or (c, e) in [*FIRST.items(), *LAST.items()] for c, e in AUTOMATIC)
STUBS = sorted(AUTOMATIC, key=lambda one: FIRST.get(one[0]) != one[1])
ANIMALS = [(c, animal) for c in CHAPTERS for animal in animals(c)]
ONE_EACH = list({(c, a.exercise if c in CHANGED else ""): (c, a) for c, a in reversed(ANIMALS) if not a.right}.values())


@pytest.fixture
def patient(monkeypatch):
    """Other work on the machine does not turn a slow run into a wrong one."""
    monkeypatch.setenv("LABKIT_SLOW_MACHINE", "5")


def name(value):
    return getattr(value, "name", str(value)).replace(": ", "-")


@pytest.mark.parametrize("chapter, exercise", few(STUBS, len(FIRST)))
def test_a_stub_is_unattempted(chapter, exercise):
    stub = judged(chapter, exercise, answers_of(chapter, exercise, stub=True))
    assert (stub.state, stub.points) == ("unattempted", 0), sentences(stub)


@pytest.mark.parametrize("worlds", few([[3], None]), ids=["one world", "all"])
@pytest.mark.parametrize("chapter, exercise", few(SOLVED, SHORT))
def test_a_solution_gets_full_marks(chapter, exercise, worlds):
    solved = judged(chapter, exercise, answers_of(chapter, exercise), worlds)
    assert (solved.state, solved.points) == ("right", source(chapter).exercise(exercise).points), sentences(solved)


@pytest.mark.long
@pytest.mark.parametrize("does_nothing", [lambda *args, **kwargs: None, lambda x, *args, **kwargs: x])
@pytest.mark.parametrize("chapter, exercise", PROGRAMS)
def test_doing_nothing_earns_nothing(chapter, exercise, does_nothing):
    outcome = judged(chapter, exercise, dict.fromkeys(source(chapter).exercise(exercise).names, does_nothing))
    assert outcome.points == 0 and outcome.state in ("wrong", "error"), sentences(outcome)


def check(chapter, animal, worlds):
    outcome = judged(chapter, animal.exercise, {animal.entry: animal.body}, worlds)
    if animal.right:
        assert outcome.state == "right", sentences(outcome)
    else:
        assert outcome.points < outcome.of
        assert animal.says in sentences(outcome), sentences(outcome)


@pytest.mark.parametrize("chapter, animal", ONE_EACH, ids=name)
def test_a_wrong_answer_is_rejected(chapter, animal):
    check(chapter, animal, [animal.at])


@pytest.mark.long
@pytest.mark.parametrize("chapter, animal", ANIMALS, ids=name)
def test_the_whole_zoo_at_all_world_sizes(chapter, animal):
    check(chapter, animal, None)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_program_has_four_mutants_and_two_variants(chapter):
    for exercise in source(chapter).exercises:
        if exercise.kind == "program":
            own = [animal for animal in animals(chapter) if animal.exercise == exercise.id]
            assert sum(not animal.right for animal in own) >= 4 and sum(animal.right for animal in own) >= 2, (
                exercise.id
            )
            assert {animal.entry for animal in own} <= set(exercise.names)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_an_animal_can_be_handed_in_as_the_source_of_an_answer(chapter):
    for animal in animals(chapter):
        names = {}
        exec(animal.source, names)
        assert callable(names[animal.entry]) and "mutant" not in animal.source and "variant" not in animal.source
