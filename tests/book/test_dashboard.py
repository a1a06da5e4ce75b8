"""The dashboard of real jobs: what it says, that nothing waits for it, and that no thread is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from leftovers import NEVER

import labkit
from labkit.book import dashboard, watching
from labkit.book.frontend import VIEW
from labkit.world import Job

pytestmark = pytest.mark.ranks


def pause(group: Any) -> int:
    """Rank 0 works for a long time; the others wait for it."""
    group.step(3)
    if group.rank == 1:
        group.send(torch.ones(100), 2)
    if group.rank == 2:
        group.recv(torch.empty(100), 1)
    if group.rank == 0:
        with group.span("think"):
            time.sleep(NEVER)
    else:
        group.recv(torch.empty(100), 0)
    return 1


def eventually(true: Callable[[], Any], seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "labkit-dashboard"]


@pytest.fixture
def job() -> Iterator[Job]:
    started = labkit.start(pause, 3, transport="local", on_failure="return")
    yield started
    started.stop()
    assert eventually(lambda: not threads())


def blocked(board: Any) -> bool:
    return [n.state for n in board.ranks()] == ["running", "waiting", "waiting"]


def test_headless_it_says_who_waits_for_whom_and_does_not_wait_itself(job: Job) -> None:
    board = dashboard(job)
    bundle = board._repr_mimebundle_()
    assert not job.over and set(bundle) == {"text/plain"} and not threads()
    assert "3 ranks over local, running" in bundle["text/plain"]
    assert eventually(lambda: blocked(board))
    now = board.ranks()
    assert [n.step for n in now] == [3, 3, 3]
    assert now[0].doing == "in think" and now[1].waits_for == now[2].waits_for == (0,)
    assert watching.in_short(now[1]).startswith("for rank 0: receive float32[100]")
    assert [(n.nbytes, n.messages) for n in now] == [(0, 0), (400, 1), (0, 0)]
    assert "receive float32[100] from rank 0" in board.text
    job.stop()
    assert eventually(lambda: ", was stopped, " in board.headline)
    assert [n.step for n in board.ranks()] == [n.step for n in board.ranks()] == [3, 3, 3]
    assert {n.state for n in board.ranks()} == {"ended"}
    assert "ended" in board.text


def test_the_live_view_follows_the_job_and_its_thread_ends_with_it(job: Job) -> None:
    board = dashboard(job, controls=True)
    view = board.widget
    assert len(threads()) == 1
    assert eventually(lambda: [row["state"] for row in view.rows] == ["running", "waiting", "waiting"])
    view._handle_custom_msg({"action": "kill", "rank": 2}, [])
    assert eventually(lambda: view.over)
    assert eventually(lambda: not threads())
    states = {row["rank"]: row["state"] for row in view.rows}
    assert states == {0: "ended", 1: "ended", 2: "failed"}
    assert "failed: rank 2: rank 2 was killed by SIGKILL" in view.headline
    assert any("rank 2: ended" in event for event in view.events)


def test_hang_and_slow_reach_the_rank_and_stop_ends_the_run(job: Job) -> None:
    board = dashboard(job, controls=True)
    view = board.widget
    assert eventually(lambda: blocked(board))
    view._handle_custom_msg({"action": "slow", "rank": 0}, [])
    view._handle_custom_msg({"action": "hang", "rank": 1}, [])
    assert eventually(lambda: board.ranks()[1].state == "stopped")
    assert any("fault: Hang" in event for event in board.events)
    view._handle_custom_msg({"action": "restart", "rank": 1}, [])
    assert eventually(lambda: "does not exist" in view.said)
    view._handle_custom_msg({"action": "stop"}, [])
    assert eventually(lambda: view.over and "was stopped" in view.headline)


def test_without_controls_the_page_can_only_stop(job: Job) -> None:
    board = dashboard(job)
    assert eventually(lambda: blocked(board))
    board.widget._handle_custom_msg({"action": "kill", "rank": 0}, [])
    time.sleep(0.5)
    assert blocked(board) and job.poll() is None


def test_closing_it_leaves_no_thread_and_the_job_goes_on(job: Job) -> None:
    board = dashboard(job)
    assert board.widget.rows
    assert len(threads()) == 1
    board.close()
    assert not threads() and board._view is None
    assert job.poll() is None


def test_running_the_cell_again_closes_the_view_before(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABKIT_HEADLESS", "0")
    monkeypatch.setattr(watching, "cell_id", lambda: "cell-1")
    first, second = dashboard(job), dashboard(job)
    assert VIEW in first._repr_mimebundle_() and VIEW in second._repr_mimebundle_()
    assert first._view is None and len(threads()) == 1
    second.close()


def test_only_a_job_can_be_watched() -> None:
    with pytest.raises(TypeError, match="labkit.start"):
        dashboard("run")  # type: ignore[arg-type]
