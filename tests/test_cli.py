"""The command line: right chapters and parameters, a kept notebook, clear refusals, nothing left running."""

import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import nbformat
import psutil
import pytest
from leftovers import NEVER
from slices import few

from labkit.commands.environment import jupyter_environment
from labkit.commands.lab import can_show_a_browser, lab_command

pytestmark = pytest.mark.ranks

PARAMETERS = """\
world_size: int = 4  # ranks
rate: float = 0.5
shuffle: bool = True
name: str = "ring"
sizes: list = [1, 2]
seed = 7
limit = None
"""


def write_chapter(directory, filename, *cells, parameters=PARAMETERS):
    """A notebook of code cells behind a parameters cell. A cell may be (source, tags)."""
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    notebook.cells.append(nbformat.v4.new_code_cell(parameters, metadata={"tags": ["parameters"]}))
    for cell in cells:
        source, tags = cell if isinstance(cell, tuple) else (cell, [])
        notebook.cells.append(nbformat.v4.new_code_cell(source, metadata={"tags": tags}))
    directory.mkdir(exist_ok=True)
    nbformat.write(notebook, directory / filename)


@pytest.fixture
def notebooks(tmp_path):
    directory = tmp_path / "notebooks"
    write_chapter(directory, "03_tiny.ipynb", "print(world_size, rate, shuffle, name, sizes, seed, limit)")
    write_chapter(directory, "05_other.ipynb", "1 / 0")
    (directory / "notes.ipynb").write_text("not a chapter")
    return directory


def printed(path):
    """All text that the cells of an executed notebook printed."""
    cells = nbformat.read(path, as_version=4).cells
    return "".join(o.get("text", "") for cell in cells for o in cell.get("outputs", []))


# --- running a chapter ------------------------------------------------------------------------------


def test_a_chapter_runs_with_the_given_parameters_and_is_kept(labkit, tmp_path):
    given = ["world_size=8", "rate=2", "shuffle=no", "name=tree", "sizes=[3]", "seed=1", "limit=9"]
    words = [word for item in given for word in ("-p", item)]
    code, out, err = labkit("run", "3", *words, "--out", tmp_path / "kept")
    assert code == 0, err
    kept = tmp_path / "kept" / "03_tiny.ipynb"
    assert str(kept) in out and "world_size=8" in out
    assert printed(kept) == "8 2.0 False tree [3] 1 9\n"


def test_without_parameters_the_defaults_hold_and_the_notebook_goes_to_a_new_folder(labkit, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = labkit("run", "tiny")
    assert code == 0, err
    (kept,) = (tmp_path / "runs").glob("*/03_tiny.ipynb")
    assert str(kept) in out
    assert printed(kept) == "4 0.5 True ring [1, 2] 7 None\n"


def test_the_kernel_is_this_interpreter_whatever_else_is_registered(labkit, notebooks, tmp_path, monkeypatch):
    other = tmp_path / "other" / "kernels" / "python3"
    other.mkdir(parents=True)
    spec = {"argv": ["/bin/false"], "display_name": "Python 3", "language": "python"}
    (other / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "other"))
    write_chapter(notebooks, "07_where.ipynb", "import os, sys; print(sys.executable, os.getcwd())")
    code, _, err = labkit("run", "7", "--out", tmp_path)
    assert code == 0, err
    assert printed(tmp_path / "07_where.ipynb") == f"{sys.executable} {notebooks}\n"
    assert os.environ["JUPYTER_PATH"] == str(tmp_path / "other")


def test_a_cell_that_fails_is_named_and_the_notebook_kept(labkit, notebooks, tmp_path):
    write_chapter(notebooks, "05_other.ipynb", "print('before')", "1 / 0", "print('after')")
    code, out, err = labkit("run", "5", "--out", tmp_path)
    assert code == 1
    assert "cell [3] `1 / 0` failed: ZeroDivisionError: division by zero" in err
    assert str(tmp_path / "05_other.ipynb") in out
    assert printed(tmp_path / "05_other.ipynb") == "before\n"


def test_a_cell_that_is_meant_to_raise_is_no_failure(labkit, notebooks, tmp_path):
    write_chapter(notebooks, "05_other.ipynb", ("1 / 0", ["raises-exception"]), "print('after')")
    code, _, err = labkit("run", "5", "--out", tmp_path)
    assert (code, err) == (0, "")
    kept = tmp_path / "05_other.ipynb"
    assert printed(kept) == "after\n"
    assert len(nbformat.read(kept, as_version=4).cells) == 3  # no banner that speaks of an error


def test_a_cell_beyond_its_time_is_named_and_marked(labkit, notebooks, tmp_path):
    write_chapter(notebooks, "05_other.ipynb", "import time", "time.sleep(60)", "print('after')")
    code, _, err = labkit("run", "5", "--out", tmp_path, "--timeout", 2)
    assert code == 1
    assert "`time.sleep(60)` ran longer than 2 s" in err and "--timeout" in err
    cells = nbformat.read(tmp_path / "05_other.ipynb", as_version=4).cells
    assert cells[2].outputs[-1].ename == "Stopped"
    assert cells[2].outputs[-1].evalue == "this cell ran longer than 2 s; allow more with --timeout"
    assert [cell.metadata.papermill.status for cell in cells] == ["completed", "completed", "failed", "pending"]


def test_a_kernel_that_dies_is_reported(labkit, notebooks, tmp_path):
    write_chapter(notebooks, "05_other.ipynb", "import os; os._exit(3)")
    code, _, err = labkit("run", "5", "--out", tmp_path)
    assert code == 1
    assert "`import os; os._exit(3)` lost its kernel" in err


@pytest.mark.parametrize("number", few([signal.SIGINT, signal.SIGTERM]))
def test_interrupting_ends_the_kernel_and_keeps_the_notebook(notebooks, tmp_path, number):
    ready = tmp_path / "ready"
    wait = f"import os, pathlib, time; pathlib.Path({str(ready)!r}).write_text(str(os.getpid())); time.sleep({NEVER})"
    write_chapter(notebooks, "05_other.ipynb", "print('before')", wait)
    words = ["run", "5", "--out", str(tmp_path)]
    command = (
        "import pathlib, sys; from labkit.cli import main;"
        f"sys.exit(main({words}, notebooks=pathlib.Path({str(notebooks)!r})))"
    )
    with subprocess.Popen([sys.executable, "-c", command], stderr=subprocess.PIPE, text=True) as process:
        kernel = int(wait_for(lambda: ready.exists() and ready.read_text()))
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "was interrupted" in err and "Traceback" not in err, err
    assert not psutil.pid_exists(kernel)
    assert printed(tmp_path / "05_other.ipynb") == "before\n"


def wait_for(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")


# --- refusals: exit code 2, before anything runs ------------------------------------------------------

REFUSALS = {
    "no such chapter": (["run", "9"], ["'9'", "3  tiny", "5  other"]),
    "no such parameter": (["run", "3", "-p", "world=8"], ["'world'", "world_size: int = 4  # ranks", "rate"]),
    "close to a parameter": (["run", "3", "-p", "worldsize=8"], ["Did you mean world_size?"]),
    "not an int": (
        ["run", "3", "-p", "world_size=four"],
        ["world_size=four", "whole number", "world_size=4"],
    ),
    "a float for an int": (["run", "3", "-p", "world_size=8.0"], ["world_size=8.0", "whole number"]),
    "an int by its default": (["run", "3", "-p", "seed=x"], ["seed=x", "whole number"]),
    "not a float": (["run", "3", "-p", "rate=fast"], ["rate=fast", "a number"]),
    "not a bool": (["run", "3", "-p", "shuffle=perhaps"], ["shuffle=perhaps", "true or false"]),
    "not a list": (["run", "3", "-p", "sizes=3"], ["sizes=3", "a list"]),
    "no equals sign": (["run", "3", "-p", "world_size"], ["name=value"]),
    "given twice": (["run", "3", "-p", "seed=1", "-p", "seed=2"], ["seed", "twice"]),
    "timeout of zero": (["run", "3", "--timeout", "0"], ["'0'", "seconds"]),
    "timeout that is no number": (["run", "3", "--timeout", "soon"], ["'soon'"]),
    "lab: no such chapter": (["lab", "9"], ["'9'", "3  tiny"]),
    "lab: no such port": (["lab", "--port", "99999"], ["'99999'", "65535"]),
    "no such benchmark": (["bench", "speed"], ["speed", "launch"]),
    "no such command": (["fly"], ["fly", "run"]),
    "no command": ([], ["COMMAND"]),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_is_refused_naming_value_and_remedy(labkit, case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("papermill.execute_notebook", lambda *a, **k: pytest.fail("it ran"))
    words, expected = REFUSALS[case]
    code, _, err = labkit(*words)
    assert code == 2
    assert [word for word in expected if word not in err] == [], err
    assert not (tmp_path / "runs").exists()


def test_the_chapter_itself_is_never_overwritten(labkit, notebooks):
    before = (notebooks / "03_tiny.ipynb").read_bytes()
    code, _, err = labkit("run", "3", "--out", notebooks)
    assert code == 2 and "--out" in err
    assert (notebooks / "03_tiny.ipynb").read_bytes() == before


def test_a_folder_that_cannot_be_made_is_named(labkit, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = labkit("run", "3", "--out", tmp_path / "file")
    assert code == 2 and str(tmp_path / "file") in err


def test_a_chapter_without_parameters_takes_none(labkit, notebooks):
    write_chapter(notebooks, "05_other.ipynb", parameters="")
    code, _, err = labkit("run", "5", "-p", "seed=1")
    assert code == 2 and "no parameters" in err


def test_a_notebook_that_names_no_kernel_is_refused(labkit, notebooks):
    path = notebooks / "03_tiny.ipynb"
    notebook = nbformat.read(path, as_version=4)
    del notebook.metadata["kernelspec"]
    nbformat.write(notebook, path)
    code, _, err = labkit("run", "3", "-p", "seed=1")
    assert code == 2 and str(path) in err and "JupyterLab" in err


# --- the other commands -------------------------------------------------------------------------------


def test_benchmarks_and_the_doctor_get_their_own_options(labkit, monkeypatch):
    seen = []
    for name, code in (("labkit.bench.launch", None), ("labkit.world.doctor", 3)):
        module = types.ModuleType(name)
        module.main = lambda argv, name=name, code=code: seen.append((name, argv)) or code
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setitem(sys.modules, name.rpartition(".")[0], types.ModuleType(name.rpartition(".")[0]))
    assert labkit("bench", "launch", "--json", "file")[0] == 0
    assert labkit("bench", "launch", "--help")[0] == 0
    assert labkit("doctor", "--json", "x")[0] == 3
    assert labkit("doctor")[0] == 3
    assert seen == [
        ("labkit.bench.launch", ["--json", "file"]),
        ("labkit.bench.launch", ["--help"]),
        ("labkit.world.doctor", ["--json", "x"]),
        ("labkit.world.doctor", []),
    ]


def test_help_and_version(labkit):
    for words in (["--help"], ["run", "--help"], ["lab", "--help"], ["bench", "--help"]):
        code, out, _ = labkit(*words)
        assert code == 0 and "usage: labkit" in out
    code, out, _ = labkit("--version")
    assert code == 0 and out.startswith("labkit ")


def test_help_comes_without_torch_or_papermill():
    check = "import sys, labkit.cli; labkit.cli._parser().format_help(); print({'papermill'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout
    assert out == "set()\n"


def test_lab_opens_the_first_chapter_on_this_machine_only(labkit, notebooks, monkeypatch, tmp_path):
    (notebooks / "notes.ipynb").unlink()
    monkeypatch.setenv("LABKIT_WORK", str(tmp_path / "work"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    code, out, _ = labkit("lab", "--no-browser", "--port", "9000")
    ((program, command, environment),) = labkit.opened
    assert program == command[0] == sys.executable
    assert "--ServerApp.ip=127.0.0.1" in command and "--ServerApp.port=9000" in command
    assert "--LabApp.default_url=/lab/tree/notebooks/03_tiny.ipynb" in command
    assert f"--ServerApp.root_dir={tmp_path / 'work'}" in command
    assert "--no-browser" in command and "address" in out
    settings = Path(environment["JUPYTER_CONFIG_PATH"].split(os.pathsep)[0]) / "labconfig"
    news = json.loads((settings / "default_setting_overrides.json").read_text())
    assert news["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"


def test_a_browser_needs_a_screen(monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("webbrowser.get", lambda: None)
    assert not can_show_a_browser({})
    assert can_show_a_browser({"DISPLAY": ":0"})
    assert "--no-browser" not in lab_command(Path("/a/notebooks/03_b c.ipynb"), 1, browser=True)


def test_our_settings_stand_first_and_the_readers_stay():
    environment = jupyter_environment({"JUPYTER_PATH": "/mine", "HOME": "/h"})
    first, rest = environment["JUPYTER_PATH"].split(os.pathsep)
    assert (Path(first) / "kernels" / "python3" / "kernel.json").exists()
    assert rest == "/mine" and environment["HOME"] == "/h"


def test_the_programs_of_this_environment_come_first_in_cells_and_terminals():
    assert jupyter_environment({"PATH": "/bin"})["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}/bin"
    assert jupyter_environment({})["PATH"].endswith(os.defpath)
