"""Where the time went, and which chain decided the end: exact, on the virtual clock."""

import json

import pytest
import torch

import labkit
import labkit.book
from labkit.wire.recording.breakdown import length, subtract, union

pytestmark = pytest.mark.ranks

LINK = labkit.Network(intra=labkit.Link(bandwidth=1e6, latency=0.5))  # 1 MB/s, half a second


def launch(fn, size, *args, **options):
    return labkit.launch(fn, size, *args, clock="virtual", network=LINK, transport="local", **options)


def test_intervals_are_merged_and_cut():
    assert union([(3, 4), (0, 1), (0.5, 2), (5, 5)]) == [(0, 2), (3, 4)]
    assert subtract([(0, 10)], [(1, 2), (9, 12)]) == [(0, 1), (2, 9)]
    assert length([(0, 2), (3, 4)]) == 3


def test_a_slow_rank_shows_as_waiting_on_its_neighbour():
    def program(group):
        group.compute(1.0 if group.rank == 0 else 3.0)
        if group.rank == 0:
            group.recv(torch.empty(250_000), 1)  # 1 MB: half a second of latency and a second of bytes
        else:
            group.send(torch.ones(250_000), 0)

    first, second = launch(program, 2).trace.step_breakdown()
    assert first == pytest.approx(
        {"compute": 1, "waiting": 2, "transfer": 1.5, "overlapped": 0, "other": 0, "total": 4.5}
    )
    assert second == pytest.approx({"compute": 3, "waiting": 0, "transfer": 1, "overlapped": 0, "other": 0, "total": 4})


def test_a_buffered_send_transfers_though_its_receiver_comes_later():
    """The timeline says the same: see `labkit.book.drawing.boxes.seconds_by_rank`."""

    def program(group):
        group.compute(1.0 if group.rank == 0 else 9.0)
        if group.rank == 0:
            group.send(torch.ones(250_000), 1)  # buffered: over after a second of bytes
        else:
            group.recv(torch.empty(250_000), 0)

    run = launch(program, 2)
    sender = run.trace.step_breakdown()[0]
    assert sender == pytest.approx({"compute": 1, "waiting": 0, "transfer": 1, "overlapped": 0, "other": 0, "total": 2})
    assert labkit.book.timeline(run.trace).rows[0]["waiting (ms)"] == 0


def test_a_collective_behind_compute_is_overlapped():
    from labkit.collectives import all_reduce

    def program(group, hidden):
        handle = all_reduce(torch.ones(250_000), group, algorithm="ring", async_op=hidden)
        group.compute(2.0)
        if hidden:
            handle.wait()

    exposed, hidden = launch(program, 2, False).trace, launch(program, 2, True).trace
    assert exposed.duration == pytest.approx(4.0) and hidden.duration == pytest.approx(2.0)
    assert exposed.overlap("compute", "communication") == pytest.approx([0, 0])
    assert hidden.overlap("compute", "communication") == pytest.approx([2, 2])
    assert hidden.overlap("compute", "all_reduce") == pytest.approx([2, 2])
    assert hidden.step_breakdown()[0]["transfer"] == pytest.approx(0)


def test_a_breakdown_of_one_step_counts_only_that_step():
    def program(group):
        for n, seconds in enumerate((1.0, 5.0)):
            group.step(n)
            group.compute(seconds)

    trace = launch(program, 2).trace
    assert [row["compute"] for row in trace.step_breakdown(step=1)] == [5.0, 5.0]
    assert [row["total"] for row in trace.step_breakdown(step=0)] == [1.0, 1.0]


def test_the_critical_path_runs_through_the_late_sender():
    def program(group):
        group.compute([1.0, 4.0, 0.1][group.rank])
        if group.rank == 1:
            group.send(torch.ones(1), 2)
        if group.rank == 2:
            group.recv(torch.empty(1), 1)
            group.compute(1.0)

    path = launch(program, 3).trace.critical_path()
    assert [(s.rank, s.kind) for s in path] == [(1, "work"), (2, "message"), (2, "work")]
    assert path[0].end == pytest.approx(4.0) and path[-1].end == pytest.approx(5.5, abs=1e-4)
    assert all(a.end == pytest.approx(b.start) for a, b in zip(path, path[1:], strict=False))


def test_chrome_gets_every_box_and_an_arrow_a_message(tmp_path):
    def program(group):
        with group.span("forward", layer=3):
            group.exchange(torch.ones(5), 1 - group.rank, torch.empty(5), 1 - group.rank)

    path = tmp_path / "trace.json"
    launch(program, 2).trace.to_chrome(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    assert [e["args"]["layer"] for e in events if e["name"] == "forward"] == [3, 3]
    assert sum(e["ph"] == "s" for e in events) == sum(e["ph"] == "f" for e in events) == 2
    assert all(e["dur"] >= 0 for e in events if e["ph"] == "X")
