"""The dashboard of a fault-tolerant run: what it says and does, on a stand-in for the job, and on one real run."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from labkit.book import dashboard
from labkit.book.fault_tolerant.watching import ReplicaDashboard
from labkit.resilience import Deadlines, FtConfig, start_ft_hsdp
from labkit.wire.errors import RefusedError
from labkit.wire.faults import Corrupt, Fault, Hang, Kill, Slow
from labkit.world.diagnosis.look import Now

from .fake_replicas import LOST, ZERO, three_replicas


class Watch:
    """What `Job.watch` returns, as it is told to be."""

    def __init__(self) -> None:
        self.over, self.seconds, self.how = False, 10.0, ""
        self.gone: set[int] = set()

    def look(self) -> list[Now]:
        how = ["ended" if r in self.gone else "running" for r in range(6)]
        return [Now(r, how[r], 6, "in forward", (), 0.0, 0, 0) for r in range(6)]

    def outcome(self) -> str:
        return self.how


class Stand:
    """A fault-tolerant run of 3 replicas of 2 ranks, as far as the dashboard asks for it."""

    def __init__(self, folder: Path) -> None:
        self.done: list[Any] = []
        self.view = Watch()
        self.job = SimpleNamespace(
            watch=lambda: self.view, inject=self.done.append, pids=[10, 11, 12, 13, 14, 15],
            stop=lambda: self.done.append("stop"), events=[], spec=SimpleNamespace(world_size=6, transport="local"),
        )  # fmt: skip
        units = [SimpleNamespace(replica=r, state="up") for r in range(3)]
        self.supervisor = SimpleNamespace(incidents=[LOST], zero=ZERO, units=units)
        self.config = SimpleNamespace(replicas=3, ranks=2, batch=2)
        self.log_dir, self.steps = folder, 7
        self.outcome: Any = None
        with (folder / "audit-0000-0000.jsonl").open("w") as file:
            file.writelines(line.text() + "\n" for line in three_replicas())


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


def eventually(true: Callable[[], Any], seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def test_headless_it_says_how_the_run_stands(stand: Stand) -> None:
    board = ReplicaDashboard(stand)  # type: ignore[arg-type]
    assert set(board._repr_mimebundle_()) == {"text/plain"}
    assert board.text.startswith("3 replicas of 2 ranks, running, 10 s\n7 steps with 36 samples")
    assert re.search(r"^5 +0, 2 +1$", board.text, re.M) and "3.40 s  replica 1: rank 3 was lost" in board.text
    assert board.states() == ["trains"] * 3
    stand.supervisor.units[1].state = "starting"
    stand.supervisor.units[2].replica = None
    assert board.states() == ["trains", "is being started", "has no processes"]
    assert [row["replica"] for row in board.table()][2:4] == ["1: is being started"] * 2


def test_who_is_not_in_the_last_step_is_on_its_way(stand: Stand, tmp_path: Path) -> None:
    path = tmp_path / "audit-0000-0000.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:5]) + "\n")  # replica 1 is away in step 4
    assert ReplicaDashboard(stand).states() == ["trains", "is on its way to the others", "trains"]  # type: ignore[arg-type]


def test_who_was_lost_since_the_last_step_does_not_train(stand: Stand, tmp_path: Path) -> None:
    path = tmp_path / "audit-0000-0000.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:3]) + "\n")  # all train; replica 1 is lost at 3.4 s
    assert ReplicaDashboard(stand).states() == ["trains", "is on its way to the others", "trains"]  # type: ignore[arg-type]


def test_a_run_that_came_to_its_end_is_no_failure_whoever_was_lost(stand: Stand) -> None:
    board = ReplicaDashboard(stand)  # type: ignore[arg-type]
    stand.view.over, stand.view.how = True, "failed: rank 3 was killed by SIGKILL"
    stand.steps = 8
    assert "failed: rank 3" in board.headline
    stand.steps = 7
    assert board.headline == "3 replicas of 2 ranks, came to the end of its 7 steps, 10 s"
    assert board.states() == ["is through"] * 3


def test_lines_that_came_just_before_the_folder_went_are_told(stand: Stand, tmp_path: Path) -> None:
    board = ReplicaDashboard(stand)  # type: ignore[arg-type]
    (tmp_path / "audit-0000-0000.jsonl").unlink()
    stand.view.over, stand.view.how = True, "failed: rank 3 was killed by SIGKILL"
    assert board.story.steps == []
    stand.outcome = SimpleNamespace(lines=three_replicas())
    assert "came to the end of its 7 steps" in board.headline and len(board.story.steps) == 7


def test_buttons_strike_the_rank_that_is_chosen(stand: Stand) -> None:
    board = ReplicaDashboard(stand, controls=True)  # type: ignore[arg-type]
    view = board.widget
    for action in ("kill", "hang", "slow", "flip"):
        view._handle_custom_msg({"action": action, "rank": 3}, [])
    assert stand.done == [Kill(3), Hang(3), Slow(3, factor=4.0), Corrupt(3, at="exchange")]
    view._handle_custom_msg({"action": "melt", "rank": 3}, [])
    assert "does not exist" in view.said
    view._handle_custom_msg({"action": "stop"}, [])
    assert eventually(lambda: stand.done[-1] == "stop")

    def refuse(fault: Fault) -> None:
        raise RefusedError("this run is over")

    stand.job.inject = refuse
    view._handle_custom_msg({"action": "kill", "rank": 3}, [])
    assert view.said == "this run is over"
    board.close()


def test_who_is_gone_or_slow_already_is_left_alone_and_the_reader_is_told(stand: Stand) -> None:
    board = ReplicaDashboard(stand, controls=True)  # type: ignore[arg-type]
    for _ in range(2):
        board.widget._handle_custom_msg({"action": "slow", "rank": 2}, [])
    assert stand.done == [Slow(2, factor=4.0)] and board.widget.said == "rank 2 is slow already"
    stand.job.pids[2] = 22  # it was started again
    board.widget._handle_custom_msg({"action": "slow", "rank": 2}, [])
    assert len(stand.done) == 2
    stand.done.clear()
    for _ in range(2):
        board.widget._handle_custom_msg({"action": "flip", "rank": 3}, [])
    assert len(stand.done) == 1 and "still waits" in board.widget.said
    stand.job.events.append((1.0, 3, "fault: Corrupt at 'exchange' number 1"))
    board.widget._handle_custom_msg({"action": "flip", "rank": 3}, [])
    assert len(stand.done) == 2
    stand.view.gone = {4}
    board.widget._handle_custom_msg({"action": "kill", "rank": 4}, [])
    assert len(stand.done) == 2 and board.widget.said == "rank 4 has no process now"
    board.close()


def test_without_controls_nothing_can_be_struck(stand: Stand) -> None:
    board = ReplicaDashboard(stand)  # type: ignore[arg-type]
    board.widget._handle_custom_msg({"action": "kill", "rank": 3}, [])
    assert stand.done == [] and board.widget.controls is False
    board.close()


def test_the_view_follows_the_log_and_its_thread_ends_with_the_run(stand: Stand, tmp_path: Path) -> None:
    path = tmp_path / "audit-0000-0000.jsonl"
    whole = path.read_text().splitlines()
    path.write_text("")
    board = ReplicaDashboard(stand, controls=True)  # type: ignore[arg-type]
    view = board.widget
    assert view.svg == "" and view.words == "No step is committed yet." and view.members == []
    assert view.ranks[3] == "3 (rank 1 of replica 1)"
    with path.open("a") as file:
        file.write("\n".join(whole[:3]) + "\n")
    assert eventually(lambda: "Step 2 was trained by replicas 0, 1 and 2" in view.words)
    assert "<svg" in view.svg and view.members == [{"steps": "0 to 2", "trained by": "0, 1, 2", "zeros from": "-"}]
    with path.open("a") as file:
        file.write("\n".join(whole[3:]) + "\n")
    stand.view.over = True
    assert eventually(lambda: view.over and not [t for t in threading.enumerate() if t.name == "labkit-dashboard"])
    assert view.events[1] == "3.40 s  replica 1: rank 3 was lost" and len(view.members) == 4
    board.close()


def small(inner: Any, seed: int) -> tuple[Any, Any, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 1)

    def loss(model: Any, numbers: Any) -> Any:
        with inner.compute(0.1):
            return model(torch.sin(numbers[:, None] * torch.arange(1.0, 5))).square().mean()

    return model, torch.optim.SGD(model.parameters(), lr=0.01), loss


@pytest.mark.ranks
def test_a_real_run_is_seen_and_struck_through_its_dashboard() -> None:
    config = FtConfig(2, 1, deadlines=Deadlines.for_step(0.2, least=0.6), join_wait=1.0, beat=0.1)
    with start_ft_hsdp(config, small, 40) as job:
        board = dashboard(job, controls=True)
        view = board.widget
        assert isinstance(board, ReplicaDashboard)
        assert eventually(lambda: len(board.story.steps) >= 3)
        view._handle_custom_msg({"action": "kill", "rank": 1}, [])
        assert eventually(lambda: any("rank 1 was lost" in event for event in view.events))
        run = job.wait(60)
    run.require()
    assert len(run.incidents) == 1 and run.incidents[0].replica == 1
    assert eventually(lambda: not [t for t in threading.enumerate() if t.name == "labkit-dashboard"])
    assert view.over and "came to the end of its 40 steps" in view.headline
