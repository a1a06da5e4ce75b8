"""`labkit sweep`: the right runs, kept and not repeated, compared at the end, nothing left behind."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET

import psutil
import pytest
from small_books import cell, write

from labkit.commands.sweeping.figure import draw, nice_ticks
from labkit.commands.sweeping.grid import grid, split_values
from labkit.commands.sweeping.run import SweepRun, notebook_hash

pytestmark = pytest.mark.ranks

RECORDING = """\
from IPython.display import display
if world_size == 3:
    raise RuntimeError("three is too few")
record = {"sent": 10 * world_size, "note": transport, "time": 1 / world_size}
display({"application/vnd.labkit.record+json": {"schema": 1, "values": record}, "text/plain": "r"}, raw=True)
"""
PARAMETERS = 'world_size: int = 4  # ranks\ntransport: str = "local"\nsizes: list = [1]'


@pytest.fixture
def chapter(notebooks):
    """A chapter that records, and fails for three ranks."""
    parameters = cell("parameters", PARAMETERS, metadata={"tags": ["parameters"]})
    return write(notebooks / "03_tiny.ipynb", parameters, cell("run", RECORDING))


def runs_in(folder):
    return json.loads((folder / "table.json").read_text())["runs"]


def test_all_combinations_run_and_one_failure_does_not_stop_the_others(labkit, chapter, tmp_path):
    out = tmp_path / "out"
    words = ["sweep", "3", "-p", "world_size=8,3", "-p", "transport=local,gloo", "--out", out, "--jobs", 2]
    code, text, err = labkit(*words)
    assert code == 1, err
    runs = runs_in(out)
    told = [(run["parameters"]["world_size"], run["parameters"]["transport"], run["status"]) for run in runs]
    assert told == [(n, t, "failed" if n == 3 else "ran") for n in (8, 3) for t in ("local", "gloo")]
    assert runs[0]["records"] == {"sent": 80, "note": "local", "time": 0.125}
    assert "three is too few" in runs[2]["problem"] and "three is too few" in text
    assert "03_tiny.ipynb" in os.listdir(out / runs[0]["folder"])
    rows = list(csv.DictReader((out / "table.csv").open()))
    assert list(rows[0]) == ["world_size", "transport", "status", "run seconds", "note", "sent", "time"]
    assert (rows[1]["world_size"], rows[1]["transport"], rows[1]["sent"], rows[2]["sent"]) == ("8", "gloo", "80", "")
    assert "world_size  transport  status" in text and "\r" not in text + err  # lines where there is no terminal
    svg = (out / "figure.svg").read_text()
    ET.fromstring(svg)
    page = (out / "figure.html").read_text()
    assert (
        svg in page
        and "<h1>Sweep of 03_tiny</h1>" in page
        and "sent goes from 80 (world_size=8, transport=local)" in page
    )

    # A second time only what failed runs again.
    kept = {run["folder"]: (out / run["folder"] / "run.json").stat().st_mtime_ns for run in runs}
    code, text, _ = labkit(*words)
    assert code == 1 and "4 runs of 03_tiny, 2 finished before" in text
    again = {n for n, t in kept.items() if (out / n / "run.json").stat().st_mtime_ns != t}
    assert again == {run["folder"] for run in runs if run["parameters"]["world_size"] == 3}
    assert [run["records"] for run in runs_in(out)] == [run["records"] for run in runs]


def test_a_changed_notebook_runs_again_but_new_outputs_do_not_count(labkit, chapter, tmp_path):
    words = ["sweep", "3", "-p", "world_size=2", "--out", tmp_path / "out"]
    assert labkit(*words)[0] == 0
    before = notebook_hash(chapter)
    text = chapter.read_text()
    chapter.write_text(text.replace('"outputs": []', '"outputs": [{"name":"stdout","output_type":"stream","text":[]}]'))
    assert chapter.read_text() != text and notebook_hash(chapter) == before
    assert "1 finished before" in labkit(*words)[1]
    chapter.write_text(text.replace("10 * world_size", "20 * world_size"))
    assert "before" not in labkit(*words)[1].splitlines()[0]
    (run,) = runs_in(tmp_path / "out")
    assert run["records"]["sent"] == 40


def test_the_chapter_runs_where_it_lies_and_is_not_touched(labkit, notebooks, tmp_path):
    path = write(notebooks / "03_tiny.ipynb", cell("p", PARAMETERS, metadata={"tags": ["parameters"]}),
                 cell("a", "import os; print(os.getcwd(), sizes)"))  # fmt: skip
    before = path.read_bytes()
    code, text, _ = labkit("sweep", "3", "-p", "sizes=[1,2],[3]", "--out", tmp_path / "out")
    assert code == 0 and path.read_bytes() == before
    first = runs_in(tmp_path / "out")[0]
    assert first["parameters"] == {"sizes": [1, 2]}
    assert f"{notebooks} [1, 2]" in (tmp_path / "out" / first["folder"] / "03_tiny.ipynb").read_text()
    assert "recorded no numbers" in text and not (tmp_path / "out" / "figure.svg").exists()


def test_notes_that_cannot_be_read_mean_run_again(labkit, chapter, tmp_path):
    words = ["sweep", "3", "-p", "world_size=2", "--out", tmp_path / "out"]
    labkit(*words)
    (notes,) = (tmp_path / "out").glob("*/run.json")
    notes.write_text("{")
    assert "before" not in labkit(*words)[1].splitlines()[0]
    assert json.loads(notes.read_text())["status"] == "ran"


NOTES = {"key": "k", "status": "ran", "seconds": 2, "records": {"x": 1}}
STALE = [{"key": "other"}, {"status": "failed"}, {"seconds": "soon"}, {"records": None}]


def test_only_a_run_that_ended_well_under_the_same_key_is_taken_over(tmp_path):
    def recalled(notes):
        (tmp_path / "run.json").write_text(json.dumps(notes))
        run = SweepRun({}, "k", tmp_path)
        return run.recall(), run.status, run.records

    assert recalled(NOTES) == (True, "ran", {"x": 1})
    assert [recalled(NOTES | change) for change in STALE] == [(False, "waiting", {})] * len(STALE)


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(n, marks=pytest.mark.long) for n in (signal.SIGTERM, signal.SIGKILL))]
)
def test_an_interrupt_leaves_no_kernel(notebooks, tmp_path, number):
    ready = tmp_path / "ready"
    ready.mkdir()
    wait = f"import os, pathlib, time; (pathlib.Path({str(ready)!r}) / str(os.getpid())).touch(); time.sleep(60)"
    quick = "if world_size == 1: raise SystemExit"
    write(notebooks / "03_tiny.ipynb", cell("p", PARAMETERS, metadata={"tags": ["parameters"]}),
          cell("q", quick, metadata={"tags": ["raises-exception"]}), cell("w", wait))  # fmt: skip
    words = ["sweep", "3", "-p", "world_size=2,4,8", "--jobs", "2", "--out", str(tmp_path / "out")]
    command = (
        "import pathlib, sys; from labkit.cli import main;"
        f"sys.exit(main({words}, notebooks=pathlib.Path({str(notebooks)!r})))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 60
        while len(os.listdir(ready)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        kernels = [int(name) for name in os.listdir(ready)]
        assert len(kernels) == 2
        process.send_signal(number)
        if number != signal.SIGKILL:
            time.sleep(0.3)
            process.send_signal(number)  # an impatient reader
        out, err = process.communicate(timeout=60)
    deadline = time.monotonic() + 30  # after SIGKILL the runs notice by themselves
    while any(psutil.pid_exists(kernel) for kernel in kernels) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [kernel for kernel in kernels if psutil.pid_exists(kernel)] == []
    if number != signal.SIGKILL:
        # The second signal may come when everything is cleared up and the process is about to end.
        assert process.returncode in (130, -number) and "Traceback" not in err, err
        assert "goes on where this one stopped" in err
        told = [(run["status"], run["problem"]) for run in runs_in(tmp_path / "out")]
        assert [status for status, _ in told] == ["interrupted"] * 2, (told, out, err)


REFUSALS = {
    "no values": ([], "values to go through"),
    "nothing after =": (["-p", "world_size="], "no value after the ="),
    "a gap": (["-p", "world_size=2,,4"], "no value after 2,"),
    "a comma first": (["-p", "world_size=,2"], "before the first comma"),
    "only a comma": (["-p", "world_size=,"], "no value"),
    "one wrong value": (["-p", "world_size=2,four"], "world_size=four"),
    "the same value twice": (["-p", "world_size=2,4,02"], "02 is there twice"),
    "the same name twice": (["-p", "world_size=2", "-p", "world_size=4"], "given twice"),
    "unknown name": (["-p", "worldsize=2,4"], "Did you mean world_size?"),
    "no equals sign": (["-p", "world_size"], "name=value"),
    "a list without brackets": (["-p", "sizes=1,2"], "a list"),
    "no jobs": (["-p", "world_size=2", "--jobs", "0"], "'0'"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_is_refused_before_anything_runs(labkit, chapter, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    words, expected = REFUSALS[case]
    code, _, err = labkit("sweep", "3", *words)
    assert code == 2 and expected in err, err
    assert not (tmp_path / "runs").exists()


def test_folders_that_cannot_be_are_refused(labkit, chapter, tmp_path, notebooks):
    (tmp_path / "file").write_text("")
    for place, expected in ((tmp_path / "file", "file"), (notebooks, "holds the chapters")):
        code, _, err = labkit("sweep", "3", "-p", "world_size=2", "--out", place)
        assert code == 2 and expected in err
    assert labkit("sweep", "9", "-p", "world_size=2")[0] == 2


def test_two_sweeps_do_not_share_a_folder(labkit, chapter, tmp_path):
    import fcntl

    (tmp_path / "out").mkdir()
    with open(tmp_path / "out" / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, err = labkit("sweep", "3", "-p", "world_size=2", "--out", tmp_path / "out")
    assert code == 2 and "another sweep" in err


def test_values_split_at_commas_outside_brackets_and_quotes():
    assert split_values("2,4, 8") == ["2", "4", "8"]
    assert split_values("[1,2],[3]") == ["[1,2]", "[3]"]
    assert split_values("(1,[2,3]),{'a,b':1}") == ["(1,[2,3])", "{'a,b':1}"]
    assert split_values('"a,b",c') == ['"a,b"', "c"]
    assert split_values("don't,can't") == ["don't", "can't"]


def test_the_last_parameter_varies_fastest(chapter):
    found = grid(["world_size=2,4", "transport=local,gloo"], chapter)
    assert [tuple(values.values()) for values in found] == [(2, "local"), (2, "gloo"), (4, "local"), (4, "gloo")]


# --- the figure ------------------------------------------------------------------------------------------


def made(rows, names):
    """Runs from rows: the values of `names`, then what was recorded."""
    return [SweepRun(dict(zip(names, row, strict=False)), "k", None, "ran", records=row[-1]) for row in rows]


def test_every_line_and_number_is_told_by_the_picture():
    runs = made([(2, "a", {"x": 1.0, "y": 5}), (16, "a", {"x": 2.0, "y": 5}), (2, "b", {"x": 3.0})], ["n", "kind"])
    picture = draw(runs, "Title")
    root = ET.fromstring(picture.svg)
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"kind=a", "kind=b", "x", "y", "2", "16"} <= set(texts)
    said = [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "kind=b, n=2: 3" in said and "kind=a, n=16: 2" in said and len(said) == 1 + 5
    assert picture.sentence.startswith("2 recorded numbers over n. x goes from 1 (n=2, kind=a) to 3 (n=2, kind=b);")
    dashes = {e.get("stroke-dasharray") for e in root.iter("{http://www.w3.org/2000/svg}path") if e.get("stroke-width")}
    assert len(dashes) >= 2  # two lines differ by more than colour


def test_where_there_is_nothing_to_compare_there_is_no_picture():
    assert draw([], "t") is None
    assert draw(made([(2, {"x": 1})], ["n"]), "t") is None
    assert draw(made([(2, {"x": "a"}), (4, {"x": True})], ["n"]), "t") is None
    assert draw(made([(2, {"x": 1}), (4, {})], ["n"]), "t") is None


@pytest.mark.parametrize("records", [(0, 0), (-5, 3), (1e-9, 2e-9), (1e12, 1)])
def test_any_numbers_can_be_drawn(records):
    ET.fromstring(draw(made([(n, {"x": x}) for n, x in zip("ab", records, strict=True)], ["n"]), "t").svg)


def test_too_many_lines_are_left_to_the_table_and_said():
    runs = made([(n, k, {"x": k}) for k in range(10) for n in (1, 2)], ["n", "k"])
    assert "Only in the table: 2 more lines." in draw(runs, "t").sentence


@pytest.mark.parametrize("low, high", [(0, 1), (0, 7), (-3, 4), (0, 1e-7), (0, 123456), (2, 2)])
def test_ticks_are_few_and_hold_all_values(low, high):
    ticks = nice_ticks(low, high)
    assert 2 <= len(ticks) <= 7 and ticks[0] <= low and ticks[-1] >= high - 1e-12
