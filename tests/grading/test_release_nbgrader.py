"""The same notebooks in nbgrader itself: its schema, its own release, its autograder; `make nbgrader` runs this."""

import json
import os
import sys
from pathlib import Path

import nbformat
import pytest
from sample_source import NAME, cell, sample, solved

pytest.importorskip("nbgrader", reason="run `make nbgrader`")

from nbgrader.api import Gradebook  # noqa: E402
from nbgrader.apps import NbGraderAPI  # noqa: E402
from nbgrader.nbgraderformat import MetadataValidator  # noqa: E402
from traitlets.config import Config  # noqa: E402

from labkit.commands.environment import using_our_kernel  # noqa: E402
from labkit.grading.source import release, secrets_of  # noqa: E402
from labkit.grading.source.compose import compose, essay, exercise, rubric, statement  # noqa: E402
from labkit.grading.source.leaks import leaks_in_file  # noqa: E402

WRONG = "def my_reduce_scatter(x, group):\n    return x.tensor_split(group.size)[group.rank].clone() * group.size\n"
FULL = {"ring-megabytes-public": 2, "reduce-scatter-public": 2, "reduce-scatter-hidden": 2}
NONE = dict.fromkeys(FULL, 0)


def explained():
    """The sample and an explanation, which a person marks."""
    notebook = sample()
    told = {"kind": "explanation", "points": 3, "core": False, "objective": "ring-steps", "section": "x", "level": 3}
    text = "## Explain\n\nYou will be checked on clarity. Difficulty: hard."
    cells = exercise("explain", statement(text, **told), essay("The model answer of the ring", 3), rubric("- 3: clear"))
    return compose(*notebook.cells, *cells)


class Course:
    """A course of nbgrader's in a folder, with one assignment."""

    def __init__(self, root, name=NAME):
        self.root, self.name = root, name
        config = Config()
        config.CourseDirectory.root = str(root)
        config.CourseDirectory.course_id = "sample"
        config.Execute.timeout = 300
        config.OverwriteCells.add_missing_cells = True  # hidden check cells, which labkit's release leaves out
        self.url = f"sqlite:///{root / 'gradebook.db'}"
        self.api = NbGraderAPI(config=config)

    def generate(self, source):
        """nbgrader's own student version of a source."""
        self.write(self.root / "source" / "ps1", source)
        done = self.api.generate_assignment("ps1", force=True)
        assert done["success"], done["log"]
        return nbformat.read(self.root / "release" / "ps1" / f"{self.name}.ipynb", 4)

    def grade(self, student, notebook):
        """Points by grade cell, as nbgrader's autograder gives them."""
        self.write(self.root / "submitted" / student / "ps1", notebook)
        with using_our_kernel():
            done = self.api.autograde("ps1", student)
        assert done["success"], done["log"]
        with Gradebook(self.url) as book:
            submission = book.find_submission_notebook(self.name, "ps1", student)
            return {grade.name: grade.auto_score for grade in submission.grades}

    def write(self, folder, notebook):
        folder.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, folder / f"{self.name}.ipynb")


@pytest.fixture
def programs(monkeypatch):
    programs = Path(sys.executable).parent  # nbgrader calls alembic by its bare name
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def course(tmp_path, programs):
    return Course(tmp_path)


@pytest.mark.parametrize("make", [sample, explained, lambda: release(sample()), lambda: release(explained())])
def test_source_and_release_validate_with_nbgraders_own_schema(make):
    notebook = make()
    MetadataValidator().validate_nb(notebook)
    nbformat.validate(notebook)


def test_nbgrader_refuses_what_our_rules_refuse():
    """So that the test above can fail."""
    for key, value in (("checksum", 1), ("schema_version", 2), ("grade_id", "a b"), ("points", -1)):
        notebook = sample()
        cell(notebook, "reduce-scatter-public").metadata.nbgrader[key] = value
        with pytest.raises(Exception, match=r".+"):
            MetadataValidator().validate_nb(notebook)


def test_nbgraders_own_release_hides_what_ours_hides(course):
    got = course.generate(explained())
    assert not leaks_in_file(secrets_of(explained()), "a.ipynb", json.dumps(got).encode())
    assert cell(got, "reduce-scatter-hidden").source.strip() == ""
    assert "raise NotImplementedError()" in cell(got, "reduce-scatter-answer").source


def test_nbgrader_autogrades_its_own_release_and_ours_alike(course):
    """Solutions, stubs, a wrong program, and a program that is right but sends too much: points by evidence."""
    theirs, ours = course.generate(sample()), release(sample())
    assert course.grade("theirs-solved", solved(theirs)) == FULL
    assert course.grade("ours-solved", solved(ours)) == FULL
    assert course.grade("ours-stub", ours) == NONE
    wrong = solved(ours)
    cell(wrong, "reduce-scatter-answer").source = WRONG
    got = course.grade("ours-wrong", wrong)
    assert got["reduce-scatter-public"] == 0 and got["ring-megabytes-public"] == 2
    wasteful = solved(ours)
    answer = cell(wasteful, "reduce-scatter-answer")
    answer.source = answer.source.replace(
        "    return total", "    group.exchange(x, to, x.clone(), source) if group.size > 1 else None\n    return total"
    )
    got = course.grade("ours-wasteful", wasteful)
    assert got == FULL | {"reduce-scatter-hidden": 1}  # the results are right, the bytes are not


def test_nbgrader_undoes_what_a_student_did_to_the_checks(course):
    course.generate(sample())
    cheated = release(sample())
    cell(cheated, "reduce-scatter-public").source = "2.0"
    cell(cheated, "ring-megabytes-public").source = "2.0"
    assert course.grade("cheat", cheated) == NONE


SOURCES = sorted((Path(__file__).parents[2] / "solutions").glob("[0-9][0-9]_*.ipynb"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_nbgrader_takes_every_chapter_and_gives_its_solutions_all_points(path, tmp_path, programs):
    """nbgrader's release shows no solution and no hidden check; right answers, in our release, get all points of them.

    It does show the rubrics, which are plain text to it: README.md says to hand out ours.
    """
    source = nbformat.read(path, 4)
    course = Course(tmp_path, path.stem)
    rubrics = {c.id for c in source.cells if c.metadata.get("labkit", {}).get("role") == "rubric"}
    found = leaks_in_file(secrets_of(source), "a.ipynb", json.dumps(course.generate(source)).encode())
    assert not [leak for leak in found if leak.secret.cell not in rubrics]
    handed_in = release(source)
    answers = {c.id: c.source for c in source.cells if c.metadata.get("labkit", {}).get("role") == "answer"}
    for c in handed_in.cells:
        if c.id in answers:
            c.source = "\n".join(line for line in answers[c.id].split("\n") if "### " not in line)
    checks = [c.metadata.nbgrader for c in source.cells if c.cell_type == "code" and "nbgrader" in c.metadata]
    right = {check.grade_id: check.points for check in checks if check.get("grade")}
    got = course.grade("ada", handed_in)
    assert len(right) > 5 and {name: got[name] for name in right} == right
