"""One submission: the same states as in the student's notebook, whatever a cell does."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from slices import few
from test_checks_nbval import nbval
from zoo_runs import animals, judged

from labkit.bench.grade_class import NAME, ROOT, SECRET, filled, hostile_answers, programs, source
from labkit.grading.grader import memory
from labkit.grading.grader.answers import take_answers
from labkit.grading.grader.one import How, could_not, grade_one, is_trouble
from labkit.grading.grader.pristine import OverlayError, Pristine
from labkit.grading.grader.reading import cells_of
from labkit.grading.grader.results import Handed, ResultError, from_json, to_json
from labkit.grading.grader.submissions import Submission
from labkit.grading.sandbox import open_sandbox

pytestmark = pytest.mark.ranks

SAME = (
    "smallest_subtree_first", "everyone_receives_first", "keeps_a_copy_of_everything", "calls_the_library",
    "all_blocks_as_long_as_mine", "by_hand",
)  # fmt: skip


@pytest.fixture(scope="module")
def how():
    with open_sandbox([]) as box:
        return How(20_26, box.tier, factor=4.0)  # patient with a busy machine


@pytest.fixture(scope="module")
def pristine():
    return Pristine(ROOT / "solutions" / f"{NAME}.ipynb")


@pytest.fixture
def grade(pristine, how):
    """grade(notebook, **options): its result."""

    def graded(notebook, how=how, pristine=pristine, **options):
        problems = []
        cells = cells_of(json.dumps(notebook).encode(), problems)
        answers = take_answers(pristine.source, cells, problems)
        submission = Submission("ada", NAME, Handed("", problems=tuple(problems)), answers, True)
        return grade_one(submission, pristine, how, **options)

    return graded


def only(answers):
    """A notebook of stubs, but for these answers."""
    stubs = json.loads((ROOT / "exercises" / f"{NAME}.ipynb").read_text(encoding="utf-8"))
    there = {c["id"]: c for c in stubs["cells"]}
    for exercise in source().exercises:
        for c in exercise.answers:
            there[c.id]["source"] = answers.get(exercise.id, there[c.id]["source"])
    return stubs


def told(graded):
    return "\n".join(f"{mark.name}: {mark.state} {mark.sentence} {mark.detail}" for mark in graded.marks)


def test_the_untouched_notebook_is_unattempted_and_the_solution_has_full_marks(grade, pristine):
    stubs = grade(only({}))
    assert {graded.state for graded in stubs.exercises} == {"unattempted"} and stubs.points == 0
    solved = grade(filled({}))
    for graded in solved.exercises:
        if graded.kind == "explanation":
            assert (graded.state, graded.points, graded.of) == ("to mark", 0, 8) and "19 ms" in graded.free_response
        else:
            assert (graded.state, graded.points) == ("right", graded.of), told(graded)
    assert [g.exercise for g in solved.exercises] == list(pristine.source.ids) and solved.of == pristine.source.points
    hidden = {mark.name for graded in solved.exercises for mark in graded.marks if mark.hidden}
    assert {"other_dtypes_and_sizes", "keeps_three_parts_at_most"} <= hidden and "doubles_in_every_round" not in hidden
    assert from_json(to_json(solved)) == solved


@pytest.mark.parametrize("name", few(SAME))
def test_the_sandbox_and_the_notebook_give_the_same_marks(grade, name, monkeypatch):
    monkeypatch.setenv("LABKIT_SLOW_MACHINE", "5")
    animal = next(a for a in animals(NAME) if a.body.__name__ == name)
    here = grade(only({animal.exercise: animal.source})).exercise(animal.exercise)
    there = judged(NAME, animal.exercise, {animal.entry: animal.body})
    assert (here.state, here.points) == (there.state, there.points), told(here)
    assert [(m.name, m.state) for m in here.marks] == [(m.name, m.state) for m in there.marks], told(here)
    assert here.state == "right" if animal.right else here.state != "right"


@pytest.mark.long
def test_nbval_is_red_where_the_grader_takes_points_for_public_checks(grade, tmp_path):
    chosen = {a.exercise: a.source for a in animals(NAME)
              if a.body.__name__ in ("halve_the_ranks", "through_rank_0", "all_at_once", "by_leaders")}  # fmt: skip
    right = {e.id: e.answers[0].source for e in source().exercises if e.id in ("factor-of-two", "where-they-cross")}
    notebook = only(chosen | right | {"ring-bytes": "ring_megabytes = 1"})
    path = tmp_path / f"{NAME}.ipynb"
    path.write_text(json.dumps(notebook))
    done = nbval(path)
    result = grade(notebook)
    less = [g.exercise for g in result.exercises if any(m.points < m.of for m in g.marks if not m.hidden)]
    stubs = ["independent-of-p", "a-time-without-a-size", "after-the-all-reduce"]
    assert less == ["ring-bytes", *stubs, "reduce-scatter", "two-nodes"]
    assert f"{len(less)} failed" in done.stdout, done.stdout[-3000:]


def test_a_cell_that_fails_fails_its_own_exercise_with_the_students_own_lines(grade):
    answers = {
        "broadcast": "def my_broadcast(x, group, root)\n    return x\n",
        "reduce-scatter": "import math\nvalue = math.sqrt(-1)\ndef my_reduce_scatter(x, group):\n    return x\n",
        "uneven-all-gather": "def my_all_gather(x, group, sizes):\n    print('here I am')\n    return helper(x)\n",
        "factor-of-two": "megabytes_sent = lambda: 1\ntoo_high = '33 %'",
    }
    result = grade(only(answers | {"ring-bytes": "import os\nos._exit(0)", "two-nodes": "my_two_level = 5"}))
    states = {g.exercise: g.state for g in result.exercises if g.state != "unattempted"}
    assert states.pop("factor-of-two") in ("error", "partly")
    assert states == dict.fromkeys([e for e in (*answers, "ring-bytes", "two-nodes") if e != "factor-of-two"], "error")
    say = {g.exercise: told(g) for g in result.exercises}
    assert "SyntaxError" in say["broadcast"] and "def my_broadcast(x, group, root)" in say["broadcast"]
    assert "File your cell, line 2" in say["reduce-scatter"] and "/labkit/" not in say["reduce-scatter"]
    assert "Only the answer cells are run" in say["uneven-all-gather"]
    assert "here I am" in result.exercise("uneven-all-gather").output
    assert "function" in say["factor-of-two"]
    assert not any(is_trouble(g) for g in result.exercises)


def test_an_answer_may_use_what_another_answer_defines_even_if_that_cell_fails_later(grade):
    right = {e.id: e.answers[0].source for e in source().exercises}["broadcast"]
    helper = "def helper(x, group, root):\n" + right.split("\n", 1)[1] + "\nraise ValueError('later')\n"
    mine = "def my_broadcast(x, group, root):\n    return helper(x, group, root)\n"
    result = grade(only({"reduce-scatter": helper, "broadcast": mine}))
    assert result.exercise("broadcast").state == "right", told(result.exercise("broadcast"))
    assert result.exercise("reduce-scatter").state == "error"


def test_memory_is_the_notebooks_number_and_a_forged_one_is_caught(grade, monkeypatch):
    seen = []
    unpacked = memory.unpacked
    monkeypatch.setattr(memory, "unpacked", lambda run: seen.append(unpacked(run)) or seen[-1])
    right = {e.id: e.answers[0].source for e in source().exercises}["reduce-scatter"]
    assert grade(only({"reduce-scatter": right})).exercise("reduce-scatter").state == "right"
    results, peaks = seen.pop()
    x = 5 * results[0].nbytes  # about: rows do not divide
    assert all(x <= peak <= x * 1.6 + 4096 for peak in peaks), (x, peaks)
    forged = right.replace("    n, me =", "    hoard = torch.ones(10_000_000)\n    n, me =", 1)
    lie = "import labkit.wire.sampler as s\ns.Sampler.peak = lambda self: 1\ns.Sampler.sample = lambda self: None\n"
    graded = grade(only({"reduce-scatter": lie + forged})).exercise("reduce-scatter")
    assert min(seen.pop()[1]) > 25_000_000
    assert [m.state for m in graded.marks if m.kind == "memory"] == ["wrong"], told(graded)


def test_what_never_ends_costs_one_limit_an_exercise(grade, how):
    sleeps = hostile_answers([])["sleeps"] + "\ndef my_broadcast(x, group, root): return attack(x, group)"
    result = grade(only({"factor-of-two": "while True: pass", "broadcast": sleeps}), replace(how, factor=0.4))
    for id in ("factor-of-two", "broadcast"):
        graded = result.exercise(id)
        assert graded.state == "error" and "did not end within 1.6 s" in told(graded)
        assert "Not run" in told(graded)


def test_only_takes_the_others_from_before_and_condemned_ones_are_not_tried(grade, pristine, how):
    before = grade(only({"ring-bytes": "ring_megabytes = 1"}))
    kept = replace(before.exercises[0], points=77)
    before = replace(before, exercises=(kept, *before.exercises[1:]))
    after = grade(only({"ring-bytes": "ring_megabytes = 1"}), only=["broadcast"], before=before)
    assert after.exercises[0] == kept and after.grader == before.grader
    old = replace(before, exercises=(replace(kept, check_hash="other"), *before.exercises[1:]))
    assert grade(only({}), only=["broadcast"], before=old).grader.source_sha256 == ""  # the next full run grades all
    condemned = grade(only({"ring-bytes": "ring_megabytes = 1"}), condemned={"ring-bytes": "it hung."})
    assert is_trouble(condemned.exercises[0]) and "it hung." in told(condemned.exercises[0])
    nothing = could_not("ada", pristine, how, "why")
    assert all(is_trouble(g) for g in nothing.exercises) and nothing.of == before.of


def test_an_overlay_adds_and_replaces_checks_and_all_of_them_are_hidden(grade, tmp_path):
    check = """
@exercises.check("ring-bytes", evidence="answer", points=3)
def {name}(student):
    student.expect(student.value("ring_megabytes") == 1, "The private check says no.")
exercises.run("ring-bytes")
"""
    cell = {"cell_type": "code", "source": check.format(name="each_rank_sends"), "metadata": {}}
    (tmp_path / f"{NAME}.ipynb").write_text(json.dumps({"cells": [cell]}))
    (tmp_path / f"{NAME}.py").write_text(check.format(name="another"))
    overlaid = Pristine(ROOT / "solutions" / f"{NAME}.ipynb", tmp_path)
    graded = grade(only({"ring-bytes": "ring_megabytes = 1"}), pristine=overlaid).exercise("ring-bytes")
    assert [(m.name, m.points, m.hidden) for m in graded.marks] == [("each_rank_sends", 3, True), ("another", 3, True)]
    assert (graded.state, graded.of) == ("right", 6)
    first = overlaid.overlay_sha256
    (tmp_path / f"{NAME}.py").write_text(check.format(name="each").replace("ring-bytes", "no-such"))
    changed = Pristine(ROOT / "solutions" / f"{NAME}.ipynb", tmp_path)
    assert changed.overlay_sha256 != first
    with pytest.raises(OverlayError, match="no exercise 'no-such'"):
        changed.checks("")
    (tmp_path / f"{NAME}.py").write_text("1 +")
    with pytest.raises(OverlayError, match="SyntaxError"):
        Pristine(ROOT / "solutions" / f"{NAME}.ipynb", tmp_path).checks("")


def test_numbers_are_everybodys_or_each_students_own_as_asked(pristine):
    shared, ada, ben = (dict(pristine.checks(name).namespace["given"]) for name in ("", "ada", "ben"))
    assert shared == dict(pristine.checks("").namespace["given"]) and len({str(x) for x in (shared, ada, ben)}) == 3


def test_a_record_of_another_schema_is_refused_in_words():
    with pytest.raises(ResultError, match="schema is 99"):
        from_json('{"schema": 99}')
    for text in ("", "[]", '{"schema": 1}', '{"a": 1}'):
        with pytest.raises(ResultError):
            from_json(text)


def test_the_seed_is_named_and_not_told(how):
    assert str(how.seed) not in how.seed_id and how.seed_id != replace(how, seed=3).seed_id
    assert how.seed_for(NAME, "broadcast") != replace(how, seed=3).seed_for(NAME, "broadcast")
    assert SECRET and len(programs(source())) == 4
