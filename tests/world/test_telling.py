"""What a reader sees of a run that takes long, of one that is too large, and of one that fails or is interrupted."""

import io
import os
import signal
import threading
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
from slices import few

import labkit
from labkit import telling
from labkit.wire.errors import RefusedError
from labkit.world import RankFailed, spec

pytestmark = pytest.mark.ranks

PACKAGE = str(Path(labkit.__file__).parent)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(telling, "AFTER", 0.1)
    seen = Terminal()
    monkeypatch.setattr(telling, "sys", SimpleNamespace(stderr=seen, modules={}))
    return seen


def waits(group):
    if group.rank == 0:
        time.sleep(1)
    group.barrier()


def test_a_terminal_is_told_who_waits_for_what_and_is_left_clean(terminal):
    labkit.launch(waits, 2, progress=None)
    said = terminal.getvalue()
    assert "labkit: all 2 ranks are up, 1 wait (rank 1: " in said
    assert said.endswith("\r\x1b[K")


@pytest.mark.parametrize("why", ["progress", "LABKIT_HEADLESS", "no terminal", "short"])
def test_silence_where_nobody_looks_or_it_is_over_soon(terminal, monkeypatch, why):
    if why == "LABKIT_HEADLESS":
        monkeypatch.setenv("LABKIT_HEADLESS", "1")
    if why == "no terminal":
        terminal.isatty = lambda: False
    if why == "short":
        monkeypatch.setattr(telling, "AFTER", 60)
    labkit.launch(waits, 2, progress=False if why == "progress" else None)
    assert terminal.getvalue() == ""


CELL = """
import time, labkit, labkit.telling
labkit.telling.AFTER = 0.1
labkit.launch(lambda group: time.sleep(1), 2)
"""


@pytest.mark.parametrize("reader", few([True, False]))
def test_a_notebook_has_one_line_that_goes_and_a_headless_one_none(monkeypatch, reader):
    monkeypatch.setenv("LABKIT_HEADLESS", "0" if reader else "1")
    notebook = new_notebook(cells=[new_code_cell(CELL.replace("labkit.launch", "_ = labkit.launch"))])
    updates = []

    class Client(NotebookClient):
        def process_message(self, message, *rest):
            if message["msg_type"] == "update_display_data":
                updates.append(message["content"]["data"]["text/plain"])
            return super().process_message(message, *rest)

    Client(notebook, timeout=120).execute()
    outputs = [output.get("data", output) for output in notebook.cells[0].outputs]
    assert outputs == ([{"text/plain": ""}] if reader else [])
    assert any("all 2 ranks are up" in text for text in updates) is bool(updates) is reader


def test_more_ranks_than_are_sensible_are_asked_for_by_name(terminal, monkeypatch):
    monkeypatch.setattr(spec, "sensible_ranks", lambda: 2)
    with pytest.raises(RefusedError, match=r"3 ranks need about 0.1 GB .* cores. Up to 2 start .*force=True"):
        labkit.launch(lambda group: group.rank, 3)
    monkeypatch.setattr("labkit.world.engine.sensible_ranks", lambda: 2)
    assert labkit.launch(lambda group: group.rank, 3, force=True).results == [0, 1, 2]
    assert terminal.getvalue().startswith("\rlabkit: 3 ranks need about 0.1 GB")
    monkeypatch.setenv("LABKIT_MAX_RANKS", "2")
    with pytest.raises(RefusedError, match="at most 2 ranks"):
        labkit.launch(lambda group: group.rank, 3, force=True)


def test_what_is_sensible_follows_the_machine_and_is_never_less_than_64(monkeypatch):
    monkeypatch.setattr(spec, "_cores", lambda: 8)
    for free, most in ((None, 256), (1 << 40, 256), (200 * spec.RANK_BYTES, 100), (spec.RANK_BYTES, 64)):
        monkeypatch.setattr(spec, "memory_available", lambda free=free: free)
        assert spec.sensible_ranks() == most


def seen(error):
    """The files of the frames that a reader sees, as IPython and pytest choose them."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return [f.f_code.co_filename for f in frames if not f.f_locals.get("__tracebackhide__")]


def raises(group):
    raise RuntimeError("mine")


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: labkit.launch(raises, 2), RankFailed),
        (lambda: labkit.start(raises, 2).wait(), RankFailed),
        (lambda: labkit.launch(raises, 0), RefusedError),
        (lambda: labkit.launch(raises, 2, threading.Lock()), RefusedError),
    ],
)
def test_a_traceback_shows_the_call_and_the_error_and_nothing_between(call, error):
    with pytest.raises(error) as caught:
        call()
    assert seen(caught.value) and not [file for file in seen(caught.value) if file.startswith(PACKAGE)]
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_an_interrupt_ends_with_what_became_of_the_ranks():
    job = labkit.start(lambda group: time.sleep(60), 2)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt, match="^all ranks have ended$") as caught:
        job.wait()
    assert not [file for file in seen(caught.value) if file.startswith(PACKAGE)]
    assert not any(os.path.exists(f"/proc/{pid}") for pid in job.pids)
