"""Every workbench of every chapter, moved at random: no error, no wrong formula, nothing left."""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import random
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from leftovers import descriptors, eventually
from slices import changed_last

from labkit import book
from labkit.book.workbenches.bench import Workbench, _words
from labkit.collectives import ALGORITHMS
from labkit.course import load
from labkit.world import RankFailed

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(1500)]

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CHAPTERS = [chapter.name for chapter in load().written() if chapter.opening]
CHANGES = 200 if os.environ.get("LABKIT_LONG") else 5  # of each workbench
ENDED = re.compile(
    r"^run (before )?on|^Deadlock: |^Mismatch: |^Died: rank|^Refused: |killed by SIGKILL"
    r"|^rank \d+ raised RefusedError: "
)  # how a run of a chapter may end
FORMULA = re.compile(r"he run took ([^;(]+)(?: \(emulated\))?; by the formula it takes ([^;(]+) \((?:emu|simu)lated\)")


def workbenches(name: str, monkeypatch: pytest.MonkeyPatch) -> list[Workbench]:
    """Run the chapter as a script: what it shows as workbenches."""
    found: list[Workbench] = []
    make = book.workbench
    monkeypatch.setenv("LABKIT_HEADLESS", "1")
    for collective, known in ALGORITHMS.items():  # a chapter's reader may register one, which other tests do not know
        monkeypatch.setitem(ALGORITHMS, collective, dict(known))
    with monkeypatch.context() as patch:
        patch.setattr(book, "workbench", lambda *args, **options: found.append(make(*args, **options)) or found[-1])
        names: dict[str, Any] = {"__name__": "__main__", "display": lambda *shown: None, "In": []}
        patch.setattr("labkit.book.reading.chapter.namespace", lambda: names)
        for cell in json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                source, file = "".join(cell["source"]), f"<{cell['id']}>"
                linecache.cache[file] = (len(source), None, source.splitlines(True), file)
                names["In"].append(source)
                exec(compile(source, file, "exec"), names)
    return found


def values_of(widget: Any) -> list[Any]:
    if hasattr(widget, "options"):
        return [value for _, value in widget._options_full]
    if not hasattr(widget, "max"):
        return [True, False]
    steps = round((widget.max - widget.min) / widget.step)
    return [widget.min, widget.max, *(widget.min + widget.step * i for i in range(steps + 1))]


def pasted_it_makes_the_same_run(one: Workbench) -> None:
    """In a kernel that has run no other cell."""
    code, names = one.code, dict[str, Any](__name__="__main__")
    assert "import labkit" in code and f"def {one._run.__name__}(" in code
    try:
        exec(compile(code, "<pasted>", "exec"), names)
    except RankFailed as failed:
        why = str(failed).partition("\n")[0]
        refused = why.partition(" raised RefusedError: ")[2]  # the bench says it without the rank that came first
        assert one.said.startswith(f"Refused: {refused}" if refused else why)
    else:
        again = names["run"]
        if hasattr(again, "trace"):
            assert again.trace.bytes_sent() == one.result.trace.bytes_sent()
        else:  # something that the reader's function made of its runs, so it is what the pictures say
            assert [_words(view(again)) for view in one._views] == [_words(face) for face in one.faces]


@pytest.mark.parametrize("name", changed_last(CHAPTERS))
def test_changes_at_random_end_well_and_leave_nothing(name: str, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    before = descriptors()  # processes and shared memory are looked at after every test
    found, dice = workbenches(name, monkeypatch), random.Random(7)
    assert len(found) >= 2
    monkeypatch.setenv("LABKIT_HEADLESS", "0")
    for one in found:
        with contextlib.closing(one):  # its ranks, if it fails, are not to be found by the tests that follow
            assert one.panel
            changed_at_random(one, dice)
            one._latest.ask(one.settings)  # the last run may have been cancelled
            assert one.wait(120)
            pasted_it_makes_the_same_run(one)
    assert eventually(lambda: threading.active_count() < 20), threading.enumerate()
    assert eventually(lambda: descriptors() <= before + 20), f"{descriptors()} descriptors, and {before} before"


def changed_at_random(one: Workbench, dice: random.Random) -> None:
    for _ in range(CHANGES):
        control = dice.choice(list(one.controls))
        one.set(**{control: dice.choice(values_of(one.controls[control]))})
        if dice.random() < 0.1:
            one._cancel()  # as by an interrupt
        if dice.random() < 0.5:
            time.sleep(dice.choice([0.001, 0.05]))
            continue
        assert one.wait(120), one.said
        assert ENDED.search(one.said) or "stopped" in one.said or "running" in one.said, one.said
        for took, formula in FORMULA.findall(" ".join(map(str, one.faces))):
            assert took.strip() == formula
