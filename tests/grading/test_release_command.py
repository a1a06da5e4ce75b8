"""`labkit release`: exercises/ from solutions/, what CI asks, and the archive for a class."""

import io
import json
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import nbformat
import pytest
from sample_source import NAME, PATH, cell, sample, solved

from labkit.commands import bundle as bundles
from labkit.commands.stub_outputs import StubRunFailed, with_stub_outputs
from labkit.grading.source import release, secrets_of
from labkit.grading.source.leaks import leaks_in_file

pytestmark = pytest.mark.ranks

ROOT = Path(__file__).parents[2]


def heading(text, id="title"):
    return nbformat.v4.new_markdown_cell(text, id=id)


@pytest.fixture
def book(tmp_path):
    """A repository with one chapter, its source of exercises, and mutants."""
    root = tmp_path / "book"
    for folder in ("notebooks/pictures", "solutions/mutants"):
        (root / folder).mkdir(parents=True)
    chapter = nbformat.v4.new_notebook(cells=[heading("# Collectives\n\n## 4 The ring")])
    chapter.cells.append(
        nbformat.v4.new_code_cell("1 + 1", id="run", outputs=[nbformat.v4.new_output("stream", text="2")])
    )
    nbformat.write(chapter, root / "notebooks" / f"{NAME}.ipynb")
    (root / "notebooks/pictures/a.svg").write_text("<svg/>")
    (root / "solutions" / f"{NAME}.ipynb").write_bytes(PATH.read_bytes())
    (root / "solutions/mutants" / f"{NAME}.py").write_text("def wrong_on_purpose(): ...\n")
    (root / "constraints.txt").write_text("tiny==1.0\n")
    return root


@pytest.fixture
def notebooks(book):
    return book / "notebooks"


@pytest.fixture
def exercise(book, labkit):
    """The released notebook's file."""
    assert labkit("release", "--no-run")[0] == 0
    return book / "exercises" / f"{NAME}.ipynb"


def test_it_writes_what_the_source_generates_and_says_so(book, labkit):
    code, out, err = labkit("release", "--no-run", "3")
    path = book / "exercises" / f"{NAME}.ipynb"
    assert (code, out, err) == (0, f"exercises/{NAME}.ipynb: 2 exercises, 6 points\n", "")
    assert path.read_text() == nbformat.writes(release(sample())) + "\n"
    changed = path.stat().st_mtime_ns
    assert labkit("release", "--no-run")[0] == 0 and path.stat().st_mtime_ns == changed
    assert labkit("release", "--check", "--no-run")[0] == 0


def edit(notebook, how):
    how(notebook)
    return nbformat.writes(notebook) + "\n"


EDITS = {
    "a source": (lambda n: cell(n, "between").update(source="Else"), "cell between: source"),
    "points": (lambda n: cell(n, "reduce-scatter-public").metadata.nbgrader.update(points=3), "metadata"),
    "a cell more": (lambda n: n.cells.append(heading("x", "more")), "cell more is not in the source"),
    "a cell less": (lambda n: n.cells.pop(0), "cell title is missing"),
    "the order": (lambda n: n.cells.insert(0, n.cells.pop(7)), "the order of the cells"),
    "the kernel": (lambda n: n.metadata.kernelspec.update(name="x"), "the notebook's metadata"),
    "a count": (lambda n: cell(n, "setup").update(execution_count=1), "cell setup: execution_count"),
    "an output": (
        lambda n: cell(n, "setup").update(outputs=[nbformat.v4.new_output("stream", text="x")]),
        "cell setup: outputs",
    ),
}


@pytest.mark.parametrize("what", EDITS)
def test_check_fails_when_exercises_are_not_what_the_source_generates(labkit, exercise, what):
    how, said = EDITS[what]
    exercise.write_text(edit(nbformat.read(exercise, 4), how))
    before = exercise.read_bytes()
    code, _, err = labkit("release", "--check", "--no-run")
    assert code == 1 and said in err and "run labkit release" in err
    assert exercise.read_bytes() == before


def test_check_fails_for_bytes_that_only_look_the_same(labkit, exercise):
    exercise.write_text(json.dumps(json.loads(exercise.read_text())))
    code, _, err = labkit("release", "--check", "--no-run")
    assert code == 1 and "the form of the file" in err


def test_check_fails_for_an_exercise_that_is_missing_or_has_no_source(book, labkit, exercise):
    stray = exercise.with_name("04_data_parallelism.ipynb")
    stray.write_bytes(exercise.read_bytes())
    code, _, err = labkit("release", "--check", "--no-run")
    assert code == 1 and f"exercises/{stray.name}: has no source" in err
    assert labkit("release", "--check", "--no-run", "3")[0] == 0  # it was not asked about
    stray.unlink()
    exercise.write_text("{")
    assert "is missing, or no notebook" in labkit("release", "--check", "--no-run")[2]
    exercise.unlink()
    assert "is missing, or no notebook" in labkit("release", "--check", "--no-run")[2]
    assert not exercise.exists()


def test_a_broken_source_leaves_the_exercise_as_it_was(book, labkit, exercise):
    before = exercise.read_bytes()
    notebook = sample()
    cell(notebook, "ring-megabytes-statement").metadata.labkit.section = "5-Elsewhere"
    nbformat.write(notebook, book / "solutions" / f"{NAME}.ipynb")
    code, _, err = labkit("release", "--no-run")
    assert code == 1 and "exercise 'ring-megabytes', cell 3 (ring-megabytes-statement)" in err
    assert exercise.read_bytes() == before


def test_a_source_that_tells_its_own_solution_is_not_released(book, labkit):
    notebook = sample()
    cell(notebook, "ring-megabytes-hint-2").source += "\n\n`ring_megabytes = sent_chunks * 12 / 6`"
    nbformat.write(notebook, book / "solutions" / f"{NAME}.ipynb")
    code, _, err = labkit("release", "--no-run")
    assert code == 1 and "cell ring-megabytes-hint-2: shows 'ring_megabytes = sent_chunks * 12 / 6'" in err
    assert not (book / "exercises").exists()


def test_wrong_questions_are_refused_with_a_remedy(book, labkit, tmp_path):
    for words, said in (
        (["99"], "there is no chapter '99'"),
        (["--wheels", tmp_path], "add --bundle"),
        (["--check", "--bundle", "a.zip"], "--check writes nothing"),
    ):
        code, _, err = labkit("release", "--no-run", *words)
        assert code == 2 and said in err
    (book / "solutions").rename(book / "elsewhere")
    code, _, err = labkit("release")
    assert code == 2 and "only a clone of the repository" in err


@pytest.mark.long
def test_the_stubs_are_run_and_what_is_the_same_everywhere_is_kept(book, labkit):
    assert labkit("release")[0] == 0
    path = book / "exercises" / f"{NAME}.ipynb"
    notebook = nbformat.read(path, 4)
    shown = {c.id: c.outputs for c in notebook.cells if c.get("outputs")}
    assert set(shown) == {"ring-megabytes-public", "reduce-scatter-public"}
    text = shown["reduce-scatter-public"][0].data["text/plain"]
    assert "reduce-scatter: not attempted yet, 0 of 2 points" in text
    counts = {c.id: c.execution_count for c in notebook.cells if c.cell_type == "code"}
    assert {id for id, count in counts.items() if count is not None} == set(shown)
    assert labkit("release", "--check")[0] == 0
    cell(notebook, "reduce-scatter-public").outputs[0].data["text/plain"] = "all right"
    nbformat.write(notebook, path)
    code, _, err = labkit("release", "--check")
    assert code == 1 and "cell reduce-scatter-public: outputs" in err
    assert labkit("release", "--no-run")[0] == 0  # outputs that are there stay
    assert "all right" in path.read_text()


def plain(*lines):
    """A released notebook whose public cells hold these lines, without any check."""
    cells = [nbformat.v4.new_code_cell(line, id=f"c{number}") for number, line in enumerate(lines)]
    for c in cells[1:]:
        c.metadata["labkit"] = {"exercise": "x", "role": "public"}
    return nbformat.v4.new_notebook(cells=cells)


HOME = "import os; print(os.path.expanduser('~/notes'))"


def test_outputs_that_differ_from_run_to_run_or_name_a_place_are_not_kept():
    random, place, same = "import os; os.urandom(4)", "import os; os.getcwd()", "print('same')"
    got = with_stub_outputs(
        plain("0", random, place, same, HOME, "1 / 0", "import os; os.environ.get('PYTEST_CURRENT_TEST')")
    )
    kept = {c.id: [o.get("text", "") for o in c.outputs] for c in got.cells if c.outputs}
    assert kept == {"c3": ["same\n"]}


def test_a_setup_cell_that_fails_is_no_stub():
    with pytest.raises(StubRunFailed, match="cell c0 failed: ZeroDivisionError"):
        with_stub_outputs(plain("1 / 0", "1"))


@pytest.mark.long
@pytest.mark.parametrize("which", ["stub", "solution"])
def test_under_nbval_stubs_fail_and_solutions_pass(tmp_path, which):
    """nbval-lax does not compare the marks: a check cell raises there unless all is right."""
    notebook = with_stub_outputs(release(sample()), runs=1)
    nbformat.write(notebook if which == "stub" else solved(notebook), tmp_path / f"{NAME}.ipynb")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval-lax", "--nbval-current-env"]
    done = subprocess.run(
        [*command, "--nbval-cell-timeout=120", f"{NAME}.ipynb"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == (which == "stub"), done.stdout
    assert done.stdout.count("not attempted yet") >= 2 if which == "stub" else "5 passed" in done.stdout


# -- the archive for a class -------------------------------------------------------------------------------------------


def tiny_wheel(folder, name, files, requires=()):
    """A wheel made by hand: `files` by name, and the metadata that pip needs."""
    info = f"{name}-1.0.dist-info"
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n" + "".join(f"Requires-Dist: {r}\n" for r in requires)
    files = {
        **files,
        f"{info}/METADATA": head,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: by-hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return path


def stand_in(files=None):
    """A builder of a small package named labkit that needs another one, in place of labkit, which needs PyTorch."""
    said = files or {"labkit.py": "import tiny\n\n\ndef main():\n    print('works with', tiny.NAME)\n"}
    said["labkit-1.0.dist-info/entry_points.txt"] = "[console_scripts]\nlabkit = labkit:main\n"
    return lambda project, into: tiny_wheel(into, "labkit", said, requires=["tiny"])


def content(path):
    with zipfile.ZipFile(path) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


def test_the_archive_holds_working_copies_and_nothing_secret(book, exercise, tmp_path):
    with_outputs = nbformat.read(exercise, 4)
    cell(with_outputs, "setup").outputs = [nbformat.v4.new_output("stream", text="x")]
    nbformat.write(with_outputs, exercise)
    path = tmp_path / "class.zip"
    assert bundles.write_bundle(path, book / "notebooks", build=stand_in())
    files = content(path)
    assert set(files) == {
        "install.py", "constraints.txt", "package/labkit-1.0-py3-none-any.whl", "notebooks/03_collectives.ipynb",
        "notebooks/pictures/a.svg", "exercises/03_collectives.ipynb",
    }  # fmt: skip
    for name in ("notebooks", "exercises"):
        notebook = nbformat.reads(files[f"{name}/{NAME}.ipynb"].decode(), 4)
        assert not [c for c in notebook.cells if c.get("outputs") or c.get("execution_count")]
    assert not [leak for name in files for leak in leaks_in_file(secrets_of(sample()), name, files[name])]
    again = tmp_path / "again" / "class.zip"
    again.parent.mkdir()
    assert bundles.write_bundle(again, book / "notebooks", build=stand_in())
    ours, theirs = content(path), content(again)
    assert {k: v for k, v in ours.items() if "whl" not in k} == {k: v for k, v in theirs.items() if "whl" not in k}


LEAKING = {
    "a solution in an exercise": ("exercises/03_collectives.ipynb", "ring_megabytes = sent_chunks * 12 / 6"),
    "a whole solution in a chapter": (
        "notebooks/hints.md",
        "sent_chunks = 6 - 1  # every chunk but the one that stays\nring_megabytes = sent_chunks * 12 / 6",
    ),
    "a line of a hidden check in a text": ("notebooks/hints.md", "two_thirds = 6 * 2 * 4 * 2 // 3"),
    "a folder of mutants": ("exercises/mutants/x.py", "pass"),
    "the sources": ("notebooks/solutions/x.txt", "pass"),
}  # fmt: skip


@pytest.mark.parametrize("what", LEAKING)
def test_an_archive_that_would_tell_is_not_written(book, exercise, tmp_path, capfd, what):
    name, text = LEAKING[what]
    path = book / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        notebook = nbformat.read(path, 4)
        cell(notebook, "between").source = text
        nbformat.write(notebook, path)
    else:
        path.write_text(text)
    assert not bundles.write_bundle(tmp_path / "class.zip", book / "notebooks", build=stand_in())
    assert name in capfd.readouterr().err and not list(tmp_path.glob("*class*"))


def test_a_wheel_that_would_tell_is_not_packed(book, exercise, tmp_path, capfd):
    for files in ({"labkit/solutions/a.py": "pass"}, {"labkit/a.py": "x = 1\n    two_thirds = 6 * 2 * 4 * 2 // 3\n"}):
        assert not bundles.write_bundle(tmp_path / "class.zip", book / "notebooks", build=stand_in(files))
        assert next(iter(files)) in capfd.readouterr().err


@pytest.mark.long
def test_an_archive_with_wheels_installs_without_a_network(book, exercise, tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    tiny_wheel(wheels, "tiny", {"tiny.py": "NAME = 'tiny'\n"})
    path = tmp_path / "class.zip"
    assert bundles.write_bundle(path, book / "notebooks", wheels, build=stand_in())
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path)
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": "/dev/null", "HOME": str(tmp_path)}
    command = [sys.executable, str(tmp_path / "class" / "install.py")]
    done = subprocess.run(command, env={"PATH": "/usr/bin:/bin", **nowhere}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "127.0.0.1" not in done.stdout + done.stderr  # nobody was asked
    ran = subprocess.run([tmp_path / "class/.venv/bin/labkit"], env={"PATH": "/bin"}, capture_output=True, text=True)
    assert ran.stdout == "works with tiny\n"


def test_an_archive_without_the_wheels_it_needs_says_so_at_installation(book, exercise, tmp_path):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    tiny_wheel(wheels, "other", {"other.py": ""})
    assert bundles.write_bundle(tmp_path / "class.zip", book / "notebooks", wheels, build=stand_in())
    with zipfile.ZipFile(tmp_path / "class.zip") as archive:
        archive.extractall(tmp_path)
    done = subprocess.run([sys.executable, tmp_path / "class/install.py"], capture_output=True, text=True)
    assert done.returncode != 0 and "tiny" in done.stdout + done.stderr


def test_wrong_wishes_for_an_archive_are_refused(book, labkit, tmp_path):
    (tmp_path / "empty").mkdir()
    for words, said in (
        (["--bundle", tmp_path / "class.tar"], "ends in .zip"),
        (["--bundle", tmp_path / "class.zip", "--wheels", tmp_path / "empty"], "there is no wheel"),
        (["--bundle", tmp_path / "class.zip"], "has no pyproject.toml"),
    ):
        code, _, err = labkit("release", "--no-run", *words)
        assert code == 2 and said in err
    assert not (tmp_path / "class.zip").exists()


def test_no_solution_is_packed_into_a_wheel_or_a_source_archive():
    """The build system is told so twice: what goes in, and what never does. Where it is installed, it is asked."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert {"solutions", "mutants"} <= set(told["exclude"])
    assert told["targets"]["wheel"]["packages"] == ["labkit"]
    assert not [name for name in told["targets"]["sdist"]["include"] if "solution" in name or name == "/"]


@pytest.mark.long
def test_the_build_system_obeys(tmp_path):
    pytest.importorskip("hatchling", reason="packs the archives: pip install hatchling")
    project = tmp_path / "project"
    for name in ("labkit/solutions/a.py", "labkit/mutants/b.py", "solutions/c.ipynb", "exercises/d.ipynb"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("{}")
    (project / "labkit/__init__.py").write_text("")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (project / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", tmp_path / "dist"], cwd=project, check=True)
    import tarfile

    with tarfile.open(next((tmp_path / "dist").glob("*.tar.gz"))) as archive:
        names = archive.getnames()
    names += zipfile.ZipFile(io.BytesIO(next((tmp_path / "dist").glob("*.whl")).read_bytes())).namelist()
    assert any(name.endswith("labkit/__init__.py") for name in names)
    assert not [name for name in names if "solutions" in name or "mutants" in name]
