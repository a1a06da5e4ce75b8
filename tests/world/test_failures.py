"""A rank that fails ends the world, and the caller is told by which rank, why, and what the others waited for."""

from __future__ import annotations

import linecache
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from leftovers import NEVER, eventually
from slices import SLOW_WIRES

import labkit
from labkit import RankFailed

pytestmark = pytest.mark.ranks


def receive_from(group, source):
    return group.recv(torch.zeros(3), source)


def test_the_traceback_of_the_first_rank_that_raised_is_shown() -> None:
    def inner_function():
        raise KeyError("no such layer")

    def work(group):
        if group.rank == 1:
            inner_function()
        receive_from(group, 1)

    with pytest.raises(RankFailed) as caught:
        labkit.launch(work, 3)
    failure = caught.value.failure
    assert (failure.rank, failure.kind, failure.error) == (1, "raised", "KeyError")
    assert "in inner_function" in failure.traceback and "labkit/world" not in failure.traceback
    assert failure.waiting == {r: "receive float32[3] from rank 1 (waits for rank 1)" for r in (0, 2)}
    assert failure.awaits == {0: [1], 2: [1]}
    text = str(caught.value)
    assert "rank 1 raised KeyError" in text and "rank 2: receive float32[3] from rank 1" in text
    assert text.startswith(f"{caught.value.reason}\n\nMeanwhile:\n  rank 0: ")
    assert "in inner_function" in caught.value.reason and "rank 2" not in caught.value.reason


def test_a_traceback_has_the_lines_of_the_notebooks_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = "/tmp/ipykernel_77/123.py"
    lines = ["def work(group):\n", "    [][group.rank]\n"]
    monkeypatch.setitem(linecache.cache, cell, (9, None, lines, cell))
    names: dict[str, Any] = {}
    exec(compile("".join(lines), cell, "exec"), names)
    with pytest.raises(RankFailed) as caught:
        labkit.launch(names["work"], 1)
    shown = str(caught.value)
    assert cell in caught.value.failure.traceback and cell not in shown
    assert "File your cell, line 2, in work\n    [][group.rank]\nIndexError" in shown


def test_a_rank_that_takes_long_to_say_why_it_failed_is_heard_all_the_same() -> None:
    class Wordy(ValueError):
        def __str__(self) -> str:
            time.sleep(0.5)  # meanwhile the page says "failed", and the host looks at it several times
            return "a bad image"

    def work(group):
        if group.rank == 1:
            raise Wordy
        receive_from(group, 1)

    with pytest.raises(RankFailed, match="rank 1 raised Wordy: a bad image"):
        labkit.launch(work, 2)


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_a_rank_that_raises_ends_the_world_though_nobody_waits_for_it(transport) -> None:
    def work(group):
        if group.rank == 2:
            raise ValueError("here")
        time.sleep(NEVER)

    with pytest.raises(RankFailed, match="rank 2 raised ValueError: here"):
        labkit.launch(work, 4, transport=transport, timeout=NEVER)


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_a_rank_that_dies_is_named_and_not_those_that_lost_it(transport) -> None:
    def work(group):
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        receive_from(group, 1 - group.rank if group.rank < 2 else 0)

    with pytest.raises(RankFailed) as caught:
        labkit.launch(work, 3, transport=transport)
    assert caught.value.rank == 1 and "was killed by SIGKILL" in str(caught.value)


def test_a_death_explains_the_errors_it_causes_and_comes_first() -> None:
    def work(group):
        group.barrier()
        if group.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            receive_from(group, 2)
        except labkit.PeerLost:  # those who lose it may well be heard first
            raise RuntimeError("cannot go on") from None

    run = labkit.launch(work, 3, transport="local", on_failure="return")
    assert (run.failures[0].rank, run.failures[0].kind) == (2, "died")
    assert {(f.rank, f.kind) for f in run.failures[1:]} <= {(0, "raised"), (1, "raised")}


@pytest.mark.parametrize("code", [0, 3])
def test_a_rank_that_exits_without_a_result_failed(code) -> None:
    with pytest.raises(RankFailed, match=f"rank 0 exited with code {code}"):
        labkit.launch(lambda group: os._exit(code), 1)
    with pytest.raises(RankFailed, match="rank 0 raised SystemExit"):
        labkit.launch(lambda group: sys.exit(code), 1)


def test_a_keyboard_interrupt_inside_a_rank_is_a_failure() -> None:
    def work(group):
        raise KeyboardInterrupt

    with pytest.raises(RankFailed, match="rank 0 raised KeyboardInterrupt"):
        labkit.launch(work, 1)


def test_the_step_of_the_failure_is_known() -> None:
    def work(group):
        for n in range(10):
            group.step(n)
            if n == 4:
                raise ArithmeticError

    assert labkit.launch(work, 1, on_failure="return").failures[0].step == 4


def test_on_failure_return_gives_what_is_left() -> None:
    def work(group):
        if group.rank == 0:
            return "done"
        group.exchange(torch.zeros(1), 3 - group.rank, torch.zeros(1), 3 - group.rank)
        time.sleep(0.3)
        raise ValueError(group.rank)

    run = labkit.launch(work, 3, on_failure="return")
    assert run.results == ["done", None, None]
    assert run.failures[0].kind == "raised" and run.failures[0].rank in (1, 2)
    assert sum(run.trace.messages()) == 2


def test_on_failure_continue_lets_the_others_finish() -> None:
    def work(group):
        if group.rank == 1:
            raise ValueError("out")
        time.sleep(0.3)
        return group.rank

    run = labkit.launch(work, 3, on_failure="continue")
    assert run.results == [0, None, 2]
    assert [(f.rank, f.error) for f in run.failures] == [(1, "ValueError")]


def test_an_exception_that_cannot_travel_is_told_all_the_same() -> None:
    class Odd(Exception):
        def __init__(self, a, b):
            super().__init__(a)
            self.lock = __import__("threading").Lock()

        def __str__(self):
            return "odd one"

    def work(group):
        raise Odd(1, 2)

    with pytest.raises(RankFailed, match="rank 0 raised Odd: odd one"):
        labkit.launch(work, 1)


def test_even_an_exception_that_cannot_say_what_it_is() -> None:
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    def work(group):
        raise Mute

    with pytest.raises(RankFailed, match=r"rank \d raised Mute"):
        labkit.launch(work, 2, timeout=NEVER)


def test_what_a_rank_started_ends_with_it(tmp_path) -> None:
    note = tmp_path / "pid"

    def work(group):
        note.write_text(str(subprocess.Popen(["sleep", "300"]).pid))

    labkit.launch(work, 1)
    assert eventually(lambda: not os.path.exists(f"/proc/{note.read_text()}"))


def test_a_result_that_cannot_be_sent_names_its_type() -> None:
    with pytest.raises(RankFailed, match="rank 0 returned a generator that cannot be sent to the notebook"):
        labkit.launch(lambda group: (i for i in range(3)), 1)


def test_a_result_that_is_too_large_says_what_to_do() -> None:
    with pytest.raises(RankFailed, match="rank 1 returned more than .* raise max_result_bytes"):
        labkit.launch(lambda group: torch.zeros(group.rank * 10**6), 2, max_result_bytes=10**6)


def test_a_result_that_cannot_be_loaded_names_the_rank() -> None:
    def work(group):
        class Trap:
            def __reduce__(self):
                return eval, ("1 / 0",)

        return Trap()

    with pytest.raises(RankFailed, match="the result of rank 0 cannot be loaded here: ZeroDivisionError"):
        labkit.launch(work, 1)


def test_who_computes_when_a_rank_fails_is_told_as_waiting_for_it():
    """Others are a little behind: the picture is that of the moment in which they lack the rank's message."""

    def step(group):
        if group.rank == 1:
            raise ValueError("an infinite number")
        end = time.perf_counter() + 0.12
        while time.perf_counter() < end:
            pass
        labkit.collectives.all_reduce(torch.ones(4), group, algorithm="ring")

    with pytest.raises(RankFailed) as caught:
        labkit.launch(step, 3, transport="local")
    failure = caught.value.failure
    assert all(failure.awaits[rank] for rank in (0, 2)), failure.waiting
