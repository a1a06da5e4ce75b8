"""The telemetry channel: what it lets in, what silence tells, and a diagnosis from afar."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
import time

import pytest
import torch

import labkit
from labkit import RefusedError, collectives
from labkit.resilience.diagnose import Agent, Collector, Report, diagnose, report_to

from .pages_by_hand import Desk


def eventually(check, seconds=10.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if check():
            return True
        time.sleep(0.02)
    return bool(check())


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.close()
    assert not made._thread.is_alive()


def test_reports_arrive_as_they_were(collector) -> None:
    desk = Desk(3)
    desk.enter(0, (0, 1, 2))
    agent = Agent(desk.reader, collector.address, collector.token, every=0.02)
    assert eventually(lambda: len(collector.reports()) == 3)
    assert diagnose(collector.reports()).suspects == (1, 2)
    desk.enter(1, (0, 1, 2))
    assert eventually(lambda: diagnose(collector.reports()).suspects == (2,))
    assert collector.nbytes > 0 and agent.looks > 0
    agent.close()
    assert not agent._thread.is_alive()


def test_silence_is_measured_here_and_a_rank_that_is_over_is_not_silent(collector) -> None:
    desk = Desk(2)
    agent = Agent(desk.reader, collector.address, collector.token, every=0.02)
    assert eventually(lambda: len(collector.reports()) == 2)
    desk.pages[1].state = 2
    agent.close()
    assert collector.silent(30) == set()
    assert eventually(lambda: collector.silent(0.1) == {0})


@pytest.mark.parametrize("sent", [b"not the token", b""])
def test_another_token_is_refused(collector, sent) -> None:
    with socket.create_connection(collector.address) as sock:
        frame = Report(0, 1).to_bytes()
        sock.sendall(struct.pack("<I", len(sent)) + sent + struct.pack("<I", len(frame)) + frame)
        sock.settimeout(5)
        with contextlib.suppress(ConnectionError):  # its end is read, or it was reset
            assert sock.recv(1) == b""
    assert eventually(lambda: collector.refused == 1) and collector.reports() == {}


@pytest.mark.parametrize("frame", [b'{"rank": 0}', b"\xff\xfe", b"[]", struct.pack("<I", 1)])
def test_what_is_no_report_is_refused(collector, frame) -> None:
    token = collector.token.encode()
    with socket.create_connection(collector.address) as sock:
        sock.sendall(struct.pack("<I", len(token)) + token + struct.pack("<I", len(frame)) + frame)
        assert eventually(lambda: collector.refused == 1)
    assert collector.reports() == {}


def test_a_frame_that_is_too_long_is_refused_before_it_is_taken(collector) -> None:
    token = collector.token.encode()
    with socket.create_connection(collector.address) as sock:
        sock.sendall(struct.pack("<I", len(token)) + token + struct.pack("<I", 1 << 30))
        assert eventually(lambda: collector.refused == 1)


def test_an_agent_finds_its_collector_again() -> None:
    first = Collector()
    agent = Agent(Desk(1).reader, first.address, first.token, every=0.02)
    assert eventually(lambda: 0 in first.reports())
    first.close()
    time.sleep(0.1)
    second = Collector(port=first.address[1], token=first.token)
    assert eventually(lambda: 0 in second.reports())
    agent.close()
    second.close()


@pytest.mark.parametrize("every", [0, -1.0, float("inf")])
def test_a_pause_that_is_none_is_refused(every) -> None:
    with pytest.raises(RefusedError, match="every="):
        Agent(Desk(1).reader, ("127.0.0.1", 1), "x", every=every)


def reporting(group, address, token):
    agent = report_to(group, address, token, every=0.05)
    for n in range(10**6):
        group.step(n)
        group.compute(0.002)
        collectives.all_reduce(torch.ones(100), group, algorithm="native")
    agent.close()


@pytest.mark.ranks
def test_a_rank_that_hangs_inside_the_library_is_told_by_its_silence(collector) -> None:
    """All ranks have joined a native collective, and the records say no more: the one that is not heard of is it."""
    job = labkit.start(reporting, 3, collector.address, collector.token, transport="gloo", on_failure="continue")
    try:
        assert eventually(lambda: [r.step > 3 for r in collector.reports().values()] == [True] * 3)
        os.kill(job.pids[1], signal.SIGSTOP)
        assert eventually(lambda: collector.silent(0.6) == {1})
        verdict = diagnose(collector.reports(), silent=collector.silent(0.6))
        assert verdict.culprit == 1, str(verdict)
        os.kill(job.pids[1], signal.SIGCONT)
        assert eventually(lambda: collector.silent(0.6) == set())
        assert max(len(r.to_bytes()) for r in collector.reports().values()) < 20_000
    finally:
        job.stop()
    assert "labkit-telemetry" not in {t.name for t in threading.enumerate() if t is not collector._thread}
