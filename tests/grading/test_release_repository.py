"""The repository's own exercises: exactly what their sources generate, nothing secret, stubs fail, solutions pass."""

from pathlib import Path

import nbformat
import pytest

from labkit.cli import main
from labkit.commands.stub_outputs import run_notebook
from labkit.grading.source import leaks, read_source, secrets_of
from labkit.grading.source.leaks import leaks_in_file

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "solutions").glob("[0-9][0-9]_*.ipynb"))
MARK = "application/vnd.labkit.mark+json"

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(not SOURCES, reason="there are no solutions/ here: a student's copy, or none written yet"),
]
chapters = pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)


def records(notebook):
    """The marks that a notebook shows, the last of each exercise, by exercise."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    return {o.data[MARK]["exercise"]: o.data[MARK] for o in outputs if MARK in o.data}


@pytest.mark.parametrize("run", [False, pytest.param(True, marks=pytest.mark.long)], ids=["as it is", "run again"])
@chapters
def test_exercises_are_what_their_source_generates_and_show_nothing_secret(path, run, capfd):
    words = ["release", "--check", path.stem] + ([] if run else ["--no-run"])
    assert main(words, notebooks=ROOT / "notebooks") == 0, capfd.readouterr().err
    source = read_source(path, ROOT / "notebooks" / path.name)
    assert leaks(source.notebook, nbformat.read(ROOT / "exercises" / path.name, 4)) == []


def test_no_exercise_shows_a_secret_of_any_chapter():
    """What `labkit release --bundle` refuses: an exercise may show what another chapter keeps for itself."""
    secrets = [secret for path in SOURCES for secret in secrets_of(nbformat.read(path, 4))]
    assert len(secrets) > 50 * len(SOURCES)
    files = sorted((ROOT / "exercises").glob("*.ipynb"))
    assert [str(leak) for path in files for leak in leaks_in_file(secrets, path.name, path.read_bytes())] == []


@chapters
def test_every_stub_is_unattempted(path):
    """The marks in exercises/ were made by running the stubs; the long test above makes them again."""
    got = records(nbformat.read(ROOT / "exercises" / path.name, 4))
    public = [exercise.id for exercise in read_source(path).exercises if exercise.by_role("public")]
    assert {id: (mark["state"], mark["points"]) for id, mark in got.items()} == {
        id: ("unattempted", 0) for id in public
    }


@pytest.mark.long
@chapters
def test_every_solution_is_right(path, tmp_path):
    """As notebooks: all checks of all solutions are in test_checks_zoo."""
    source = read_source(path)
    got = records(run_notebook(nbformat.read(path, 4), tmp_path))
    for exercise in source.exercises:
        if exercise.kind != "explanation":
            mark = got.get(exercise.id, {"state": "no record", "checks": []})
            wrong = [check["sentence"] for check in mark["checks"] if check["state"] != "right"]
            assert (mark["state"], wrong) == ("right", []), exercise.id
            assert mark["points"] == mark["of"] == exercise.points, exercise.id
