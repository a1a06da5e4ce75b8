"""The tests' own world keeps the promises of a Group; otherwise the other tests would prove little."""

from __future__ import annotations

import time

import pytest
import torch

from labkit.wire.errors import Mismatch, RefusedError
from labkit.wire.ops import SUM

from .thread_world import Deadlock, run


def test_a_send_returns_when_the_receiver_has_taken_it():
    seen = []

    def work(group):
        if group.rank == 0:
            group.send(torch.ones(2), to=1)
            seen.append("sent")
        else:
            time.sleep(0.05)
            seen.append("receiving")
            group.recv(torch.empty(2), source=0)

    run(work, 2)
    assert seen == ["receiving", "sent"]


def test_send_against_send_is_a_deadlock_and_exchange_is_not():
    with pytest.raises(Deadlock, match="rank 0 sends to 1.*rank 1 sends to 0|rank 1 sends.*rank 0 sends"):
        run(lambda g: g.send(torch.ones(1), to=1 - g.rank), 2)
    results = run(lambda g: g.exchange(torch.ones(1), 1 - g.rank, torch.ones(1), 1 - g.rank, SUM).item(), 2)
    assert results.results == [2.0, 2.0]
    assert results.bytes_between == [[0, 4], [4, 0]]


def test_what_a_group_would_refuse_is_refused():
    wrong = {
        "shape": lambda g: g.exchange(torch.ones(1 + g.rank), 1 - g.rank, torch.ones(1), 1 - g.rank),
        "dtype": lambda g: g.exchange(torch.ones(1), 1 - g.rank, torch.ones(1).int(), 1 - g.rank),
    }
    for fn in wrong.values():
        with pytest.raises(Mismatch):
            run(fn, 2)
    x = torch.ones(4)
    for fn in (
        lambda g: g.exchange(x[:3], 1 - g.rank, x[1:], 1 - g.rank),
        lambda g: g.send(torch.ones(4)[::2], to=1),
        lambda g: g.send(x, to=g.rank),
        lambda g: g.send(x, to=2),
    ):
        with pytest.raises(RefusedError):
            run(fn, 2)


def test_a_message_that_nobody_takes_is_noticed():
    with pytest.raises((AssertionError, Deadlock)):
        run(lambda g: g.rank == 0 and g.isend(torch.ones(1), to=1), 2)
