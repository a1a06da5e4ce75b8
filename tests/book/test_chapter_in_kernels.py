"""Predictions in real kernels: one that nobody watches (nbclient, papermill), and one asked as JupyterLab asks."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import papermill
import psutil
import pytest
from jupyter_client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel
from leftovers import eventually
from nbclient import NotebookClient

from labkit.book.frontend import VIEW
from labkit.book.reading.records import RECORD
from labkit.commands.environment import jupyter_environment

pytestmark = pytest.mark.ranks

CELLS = [
    "from labkit import book\nchapter = book.open_chapter('03_collectives', world_size=4, seed=0)",
    "ring = chapter.predict('ring-bytes', nbytes=4_000_000)\nring",
    "ring.require()\nprint('ran')",
    "ring.compare(6.0, 7.0)",
    "chapter.quiz('ring-bytes-of-12', 'who-to-look-at')",
    "chapter.record(ring_mb=6.0)",
    "chapter.finish()",
]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A kernel's: as a reader has it, without pytest's variable; the home is empty."""
    monkeypatch.delenv("LABKIT_HEADLESS", raising=False)
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return {key: value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"}


def notebook() -> nbformat.NotebookNode:
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    nb.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nb


def outputs(nb: nbformat.NotebookNode) -> list[dict[str, Any]]:
    """Of each cell its last output: data by MIME type, or the text of a stream."""
    last = [cell.outputs[-1] if cell.outputs else {} for cell in nb.cells]
    return [dict(o.get("data", {"text/plain": o.get("text", "")})) for o in last]


def check_unwatched(nb: nbformat.NotebookNode, home: Path) -> None:
    opened, form, ran, table, quiz, record, end = outputs(nb)
    assert "not predicted" in form["text/plain"] and "leave each rank" in form["text/plain"]
    assert VIEW not in form and VIEW not in quiz, "nobody is there to press a button"
    assert ran["text/plain"] == "ran\n"
    assert table["text/plain"].count("not predicted") == 2
    assert "The job hangs" in quiz["text/plain"] and "1100" not in str(quiz) and "1,100" not in str(quiz)
    assert record[RECORD] == {"schema": 1, "chapter": "03_collectives", "values": {"ring_mb": 6.0}}
    assert (
        "Read next: " in end["text/plain"]
        and "chapter 4" in end["text/plain"]
        and "Questions:" not in end["text/plain"]
    )
    assert not home.exists(), "headless, no progress is written"


def test_nbclient_runs_to_the_end_without_a_prediction(environment: dict[str, str], tmp_path: Path) -> None:
    nb = notebook()
    NotebookClient(nb, timeout=60).execute(env=environment)
    check_unwatched(nb, tmp_path / "home")


def test_papermill_runs_to_the_end_without_a_prediction(
    environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    nbformat.write(notebook(), tmp_path / "in.ipynb")
    papermill.execute_notebook(tmp_path / "in.ipynb", tmp_path / "out.ipynb", progress_bar=False)
    check_unwatched(nbformat.read(tmp_path / "out.ipynb", 4), tmp_path / "home")


@pytest.fixture
def lab(environment: dict[str, str]) -> Iterator[BlockingKernelClient]:
    """A kernel with somebody in front of it."""
    manager, client = start_new_kernel(env=environment)
    yield client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run(client: BlockingKernelClient, source: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """(what was shown last, the reply, what was printed) of a cell run as JupyterLab runs it."""
    shown: dict[str, Any] = {}
    printed: list[str] = []

    def see(message: dict[str, Any]) -> None:
        if message["msg_type"] in ("execute_result", "display_data"):
            shown.clear()
            shown.update(message["content"]["data"])
        elif message["msg_type"] == "stream":
            printed.append(message["content"]["text"])

    reply = client.execute_interactive(source, allow_stdin=True, stdin_hook=print, output_hook=see, timeout=60)
    return shown, reply["content"], "".join(printed)


def test_with_a_reader_the_cell_stops_until_they_have_predicted(lab: BlockingKernelClient, tmp_path: Path) -> None:
    run(lab, CELLS[0])
    shown, _, _ = run(lab, CELLS[1])
    assert VIEW in shown and "[not predicted]" not in shown["text/plain"]
    shown, reply, printed = run(lab, CELLS[2])
    assert reply["status"] == "error" and reply["ename"] == "PredictFirst" and printed == ""
    assert reply["traceback"][0] == "Predict first." and len(reply["traceback"]) == 2
    _, reply, _ = run(lab, "ring.answer('6 MB', 7)")
    assert reply["status"] == "ok"
    _, reply, printed = run(lab, CELLS[2])
    assert reply["status"] == "ok" and printed == "ran\n"
    shown, _, _ = run(lab, CELLS[3])
    assert "right" in shown["text/plain"] and "not predicted" not in shown["text/plain"]
    shown, _, _ = run(lab, CELLS[6])
    assert "Predictions: 1 of 3 made" in shown["text/plain"]
    assert (tmp_path / "home" / "progress.json").exists()


def test_cells_of_run_all_that_arrive_late_do_not_run_either(lab: BlockingKernelClient) -> None:
    run(lab, CELLS[0])
    run(lab, CELLS[1])
    lab.execute("ring.require()", allow_stdin=True)
    time.sleep(0.1)  # on a busy machine, JupyterLab sends one cell so long after the other
    late = lab.execute("print('late')", allow_stdin=True)
    while (reply := lab.get_shell_msg(timeout=60))["parent_header"]["msg_id"] != late:
        assert reply["content"]["ename"] == "PredictFirst"
    assert reply["content"]["status"] == "aborted"


def test_the_worker_and_pytorch_are_on_their_way_before_a_cell_is_run(monkeypatch):
    for name, value in jupyter_environment(os.environ).items():
        monkeypatch.setenv(name, value)
    manager, client = start_new_kernel()
    try:
        kernel = psutil.Process(manager.provisioner.pid)
        assert eventually(lambda: any("zygote.py" in " ".join(child.cmdline()) for child in kernel.children()))
        (worker,) = [child for child in kernel.children() if "zygote.py" in " ".join(child.cmdline())]
        said: list[str] = []
        client.execute_interactive(
            "import sys, labkit\nprint([n for n in dir() if n in ('torch', 'zygote', 'begin')], "
            "labkit.launch(lambda group: group.rank, 2).results)",
            output_hook=lambda message: said.append(message["content"].get("text", "")),
            timeout=60,
        )
        assert "".join(said).strip() == "[] [0, 1]"
        assert worker in kernel.children()
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert eventually(lambda: not worker.is_running())
