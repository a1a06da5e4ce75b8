"""Where time went: of one step, and of a message that takes no time itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from labkit.book import step_breakdown
from labkit.book.drawing.boxes import collective_boxes, message_boxes

from . import fake_trace as fake


def row(waiting: float) -> dict[str, float]:
    return {
        "compute": 0.1,
        "transfer": 0.0,
        "waiting": waiting,
        "overlapped": 0.0,
        "other": 0.0,
        "total": 0.1 + waiting,
    }


class TwoSteps(fake.Trace):
    def step_breakdown(self, step: int | None = None) -> list[dict[str, float]]:
        return [row({None: 0.5, 0: 0.2, 1: 0.3}[step])]


def test_the_breakdown_is_of_the_step_that_was_asked_for() -> None:
    told = {step: step_breakdown(TwoSteps(1), step).rows[0]["waiting (ms)"] for step in (None, 0, 1)}
    assert told == {None: 500.0, 0: 200.0, 1: 300.0}


def boxes(**times: float) -> list[tuple[int, str, float, float]]:
    message: Any = SimpleNamespace(src=0, dst=1, nbytes=4, collective=-1, **times)
    trace: Any = SimpleNamespace(collectives=lambda: [])
    return [(b.rank, b.kind, b.start, b.end) for b in message_boxes(trace, [message]) if b.end > b.start]


def test_a_receiver_waits_until_the_sender_begins_also_when_the_link_takes_no_time() -> None:
    assert boxes(start=10, end=10, recv_start=0, arrived=10) == [(1, "waiting", 0, 10)]
    assert boxes(start=10, end=12, recv_start=0, arrived=12) == [
        (0, "send", 10, 12), (1, "waiting", 0, 10), (1, "receive", 10, 12),
    ]  # fmt: skip


def test_a_buffered_send_does_not_wait_for_its_receiver() -> None:
    assert boxes(start=0, end=1, recv_start=5, arrived=6) == [(0, "send", 0, 1), (1, "receive", 5, 6)]


def test_of_calls_that_wait_in_a_queue_only_the_first_shows_its_name() -> None:
    def call(start: float, end: float) -> Any:
        return SimpleNamespace(rank=0, name="all_reduce", algorithm="ring", shape=(4,), start=start, end=end,
                               nested=False, native=False, group=1, seq=1)  # fmt: skip

    def labels(*times: tuple[float, float]) -> list[str]:
        trace: Any = SimpleNamespace(collectives=lambda: [call(*t) for t in times])
        return [b.label for b in collective_boxes(trace)]

    assert labels((0, 2), (1, 3), (2.5, 4), (4, 5)) == ["all_reduce ring", "", "all_reduce ring", "all_reduce ring"]
    assert labels((0, 2), (2, 3)) == ["all_reduce ring"] * 2
