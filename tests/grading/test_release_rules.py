"""A broken source is refused, with the exercise and the cell that must be changed."""

import json

import nbformat
import pytest
from sample_source import NAME, PATH, cell, sample

from labkit.grading.source import SourceError, read_notebook, read_source, release

NOTHING = "### BEGIN SOLUTION\n# nothing\n### END SOLUTION"
RING, SCATTER = "ring-megabytes", "reduce-scatter"


def label(**values):
    return lambda c: c.metadata.labkit.update(values)


def grader(**values):
    return lambda c: c.metadata.nbgrader.update(values)


def text(old, new):
    def change(c):
        assert old in c.source
        c.source = c.source.replace(old, new)

    return change


def drop(where, key):
    return lambda c: c.metadata[where].pop(key)


BROKEN = [
    # the cell to break, how, and what must be said; the cell to blame where it is another one
    ("ring-megabytes-answer", text("### BEGIN SOLUTION\n", ""), "add ### BEGIN SOLUTION"),
    ("ring-megabytes-answer", text("\n### END SOLUTION", ""), "never ends"),
    ("ring-megabytes-answer", text("### END", "### BEGIN"), "inside the one of line 1"),
    ("ring-megabytes-answer", text("### BEGIN SOLUTION", "# BEGIN SOLUTION"), "nbgrader takes it for one"),
    ("ring-megabytes-answer", lambda c: c.update(source="ring_megabytes = 10"), "has no solution"),
    ("ring-megabytes-answer", lambda c: c.update(source=NOTHING), "but comments"),
    ("ring-megabytes-answer", text("ring_mega", "mega"), "asks for 'ring_megabytes'", "ring-megabytes-public"),
    ("reduce-scatter-answer", text("(x, group):", "(x, group)"), "no plain Python"),
    ("reduce-scatter-answer", drop("labkit", "stub"), "must say what to do"),
    ("reduce-scatter-answer", label(stub="x" * 120), "120 is the limit"),
    ("reduce-scatter-answer", label(stub_code="return ("), "with the stub in place"),
    ("between", text("The", "### BEGIN SOLUTION\nThe"), "belongs into a cell of the role answer"),
    ("setup", text("from", "### BEGIN HIDDEN TESTS\nfrom"), "belongs into a cell of the role public or hidden"),
    ("ring-megabytes-statement", label(points=3), "promises 3 points, and its checks add up to 2"),
    ("ring-megabytes-statement", label(points="two"), "its points are 'two'"),
    ("ring-megabytes-statement", label(points=True), "its points are True"),
    ("reduce-scatter-public", grader(points=3), "its checks have 2 points, and nbgrader's metadata says 3"),
    ("reduce-scatter-hidden", text("points=1", "points=9"), "its checks have 18 points"),
    ("reduce-scatter-public", text("points=2", "points=two"), "needs points, as a number"),
    ("reduce-scatter-public", text('evidence="result", ', ""), "does not say what it looks at"),
    ("ring-megabytes-statement", label(objective="ring-byte"), "no objective 'ring-byte' (did you mean 'ring-bytes'?)"),
    ("ring-megabytes-statement", label(section="4-The-rings"), "no section '4-The-rings' (did you mean '4-The-ring'?)"),
    ("ring-megabytes-statement", label(kind="riddle"), "its kind is 'riddle'"),
    ("ring-megabytes-statement", label(level=4), "its level is 4"),
    ("ring-megabytes-statement", label(core="yes"), "core is 'yes'"),
    ("ring-megabytes-statement", text("## Bytes", "Bytes"), "must begin with a heading"),
    ("ring-megabytes-statement", text("You will be checked on", "Mind"), "does not say 'You will be checked on'"),
    ("ring-megabytes-statement", text("Difficulty", "This is"), "does not say 'Difficulty'"),
    ("ring-megabytes-hint-1", lambda c: c.update(source=" "), "this hint is empty"),
    ("ring-megabytes-hint-2", label(step=3), "says it is step 3, but it is number 2"),
    ("ring-megabytes-hint-1", text("Into", "<details>Into"), "fold around a hint"),
    ("reduce-scatter-hint-1", label(role="rubric"), "answer stands behind a rubric", "reduce-scatter-answer"),
    ("reduce-scatter-hidden", text("### BEGIN HIDDEN TESTS\n", ""), "begin it with ### BEGIN HIDDEN TESTS"),
    ("reduce-scatter-hidden", text("### END HIDDEN TESTS", "### END HIDDEN TESTS\nprint()"), "outside its markers"),
    ("reduce-scatter-public", text('exercises.run("reduce-scatter")', "None"), "its last line must be exercises.run"),
    ("reduce-scatter-public", text('run("reduce', 'run("reduces'), "its last line must be exercises.run"),
    ("reduce-scatter-public", text('check("reduce', 'check("reduces'), "is for 'reduces-scatter'"),
    ("reduce-scatter-public", text("@exercises", "# @exercises"), "defines no check"),
    ("reduce-scatter-hidden", text("sends_only_what_it_must", "works_for_odd_worlds"), "two checks named"),
    ("reduce-scatter-public", lambda c: c.metadata.update(tags=["nbval-check-output"]), "drop the tag"),
    ("reduce-scatter-public", text("inputs = [", "!ls\n    inputs = ["), "no plain Python"),
    ("reduce-scatter-public", drop("nbgrader", "locked"), "lacks locked"),
    ("reduce-scatter-public", grader(schema_version=2), "schema_version is 2"),
    ("reduce-scatter-public", grader(schema_version="3"), "which is no int"),
    ("reduce-scatter-public", grader(checksum="0" * 32), "knows no 'checksum'"),
    ("reduce-scatter-public", grader(grade=False), "nbgrader's grade is False"),
    ("reduce-scatter-public", grader(points=-1), "nbgrader's points are -1"),
    ("reduce-scatter-public", grader(grade_id="a b"), "may hold only letters"),
    ("reduce-scatter-answer", grader(grade_id="setup"), "2 cells have the grade_id 'setup'"),
    ("reduce-scatter-answer", grader(points=1), "belong to check cells only"),
    ("reduce-scatter-answer", grader(solution=False), "nbgrader's solution is False"),
    ("reduce-scatter-answer", grader(task=True), "nbgrader's task is True"),
    ("reduce-scatter-answer", lambda c: c.metadata.pop("nbgrader"), "has no nbgrader metadata"),
    ("reduce-scatter-answer", lambda c: c.update(id="setup"), "2 cells have the cell id 'setup'", "setup"),
    ("reduce-scatter-answer", label(role="solution"), "its role is 'solution'"),
    ("between", lambda c: c.metadata.update(labkit={"exercise": RING}), "has no role"),
    ("between", lambda c: c.metadata.update(nbgrader={}), "but no role"),
]  # fmt: skip


@pytest.mark.parametrize(("where", "how", "said", "blamed"), [(*b[:3], b[3] if len(b) > 3 else b[0]) for b in BROKEN])
def test_a_broken_source_is_refused_with_its_exercise_and_its_cell(where, how, said, blamed):
    notebook = sample()
    exercise = cell(notebook, where).metadata.get("labkit", {}).get("exercise", "")
    how(cell(notebook, where))
    with pytest.raises(SourceError) as refused:
        read_notebook(notebook, NAME, {"4-The-ring"})
    problems = [problem for problem in refused.value.problems if said in problem.text]
    assert problems, str(refused.value)
    assert problems[0].cell == blamed
    number = [c.id for c in notebook.cells].index(blamed) + 1
    assert problems[0].number == number or where == "reduce-scatter-answer"
    assert f"({blamed})" in str(problems[0]) and (f"exercise '{exercise}'" in str(problems[0]) or not exercise)


def move(id, to):
    def change(notebook):
        moved = cell(notebook, id)
        notebook.cells.remove(moved)
        notebook.cells.insert(to, moved)

    return change


def without(*ids):
    def change(notebook):
        notebook.cells = [c for c in notebook.cells if c.id not in ids]

    return change


def renamed(old, new):
    def change(notebook):
        for c in notebook.cells:
            if c.metadata.get("labkit", {}).get("exercise") == old:
                c.metadata.labkit.exercise = new
                c.source = c.source.replace(f'"{old}"', f'"{new}"')

    return change


def same_name(notebook):
    for id in ("reduce-scatter-answer", "reduce-scatter-public", "reduce-scatter-hidden"):
        c = cell(notebook, id)
        c.source = c.source.replace("my_reduce_scatter", "ring_megabytes")


WHOLE = [
    (without("setup"), "there is no setup cell"),
    (move("setup", 14), "must come before all exercises"),
    (lambda n: cell(n, "between").metadata.update(labkit={"exercise": "", "role": "setup"}), "second setup cell"),
    (
        without("ring-megabytes-statement"),
        "exercise 'ring-megabytes', cell 3 (ring-megabytes-hint-1): the exercise has no",
    ),
    (without("ring-megabytes-hint-1", "ring-megabytes-hint-2"), "cell 3 (ring-megabytes-statement): there is no hint"),
    (without("ring-megabytes-answer"), "needs a cell of the role answer"),
    (without("ring-megabytes-public"), "needs a cell of the role public"),
    (move("ring-megabytes-public", 12), "is interrupted"),
    (move("ring-megabytes-public", 3), "hint stands behind a public"),
    (move("ring-megabytes-statement", 4), "must be the first cell"),
    (renamed("ring-megabytes", "reduce-scatter"), "second statement: is its id used twice?"),
    (renamed("ring-megabytes", "Ring megabytes"), "the id 'Ring megabytes' must be of small letters"),
    (same_name, "exercise 'ring-megabytes' also defines 'ring_megabytes'"),
    (lambda n: n.metadata.update(labkit={"released": True}), "it is a released notebook"),
    (lambda n: n.update(nbformat_minor=4), "no cell ids"),
    (lambda n: n.update(cells=[cell(n, "setup")]), "there is no exercise"),
    (lambda n: n.update(cells="none"), "not valid as a notebook"),
]


@pytest.mark.parametrize(("how", "said"), WHOLE)
def test_a_source_whose_cells_do_not_fit_together_is_refused(how, said):
    notebook = sample()
    how(notebook)
    with pytest.raises(SourceError) as refused:
        read_notebook(notebook, NAME)
    assert said in str(refused.value)


def test_all_problems_are_said_at_once_in_the_order_of_the_cells():
    notebook = sample()
    cell(notebook, "reduce-scatter-answer").metadata.labkit.pop("stub")
    cell(notebook, "ring-megabytes-statement").metadata.labkit.level = 9
    with pytest.raises(SourceError) as refused:
        read_notebook(notebook, NAME)
    assert [p.cell for p in refused.value.problems] == ["ring-megabytes-statement", "reduce-scatter-answer"]
    assert str(refused.value).count("\n") == 1


def test_a_file_that_is_no_notebook_is_refused_by_name(tmp_path):
    for number, content in enumerate([b"", b"{", b"[1]", b'{"cells": 3}', b"\xff\xfe\x00", b'{"a": "\x00"}', b"null"]):
        path = tmp_path / f"0{number}_x.ipynb"
        path.write_bytes(content)
        with pytest.raises(SourceError, match=path.name[:4]):
            read_source(path)


def test_a_copied_cell_is_found_in_a_file_too(tmp_path):
    """Reading must not give the copy a new id in silence."""
    notebook = sample()
    cell(notebook, "ring-megabytes-hint-2").id = "ring-megabytes-hint-1"
    path = tmp_path / f"{NAME}.ipynb"
    path.write_text(json.dumps(notebook))
    with pytest.raises(SourceError, match=r"cell 5 \(ring-megabytes-hint-1\): 2 cells have the cell id"):
        read_source(path)


def test_release_refuses_what_the_rules_refuse_by_itself():
    notebook = sample()
    answer = cell(notebook, "reduce-scatter-answer")
    answer.source = answer.source.replace("### BEGIN SOLUTION", "")
    with pytest.raises(SourceError, match="reduce-scatter-answer"):
        release(notebook)


def test_a_word_that_says_released_opens_no_door():
    notebook = sample()
    notebook.metadata["labkit"] = {"released": True}
    with pytest.raises(SourceError):
        read_notebook(notebook, NAME)
    assert "sent_chunks" not in nbformat.writes(release(notebook))


def test_a_released_notebook_needs_both_the_word_and_no_marker():
    broken = sample()
    broken.metadata["labkit"] = {"released": True}
    answer = cell(broken, "ring-megabytes-answer")
    answer.source = answer.source.replace("\n### END SOLUTION", "")  # all below it would be taken for the solution
    with pytest.raises(SourceError, match="never ends"):
        release(broken)
    forgotten = sample()
    forgotten.cells = [c for c in forgotten.cells if c.id != "reduce-scatter-hidden"]
    for c in forgotten.cells:
        c.source = "\n".join(line for line in c.source.split("\n") if "### " not in line)
    with pytest.raises(SourceError, match="has no solution"):
        release(forgotten)


def test_the_sample_is_in_order():
    source = read_source(PATH)
    assert source.ids == [RING, SCATTER] and source.points == 6
    ring, scatter = source.exercises
    assert (ring.title, ring.kind, ring.points, ring.core, ring.level) == ("Bytes of a ring", "derivation", 2, True, 1)
    assert [(c.name, c.points, c.hidden) for c in ring.checks] == [
        ("is_a_positive_number", 1, False), ("is_what_the_ring_sends", 1, True)
    ]  # fmt: skip
    assert [(c.name, c.evidence, c.hidden) for c in scatter.checks] == [
        ("returns_its_part_of_the_sum", "result", False), ("works_for_odd_worlds", "result", True),
        ("sends_only_what_it_must", "bytes", True),
    ]  # fmt: skip
    assert scatter.names == ("my_reduce_scatter",) and [c.id for c in scatter.answers] == ["reduce-scatter-answer"]
    with pytest.raises(KeyError, match="has no exercise 'x'"):
        source.exercise("x")
