"""Never more than S x C bytes on their way to a neighbour, from its own record and from its neighbour's."""

from __future__ import annotations

import os
import time

import pytest
import torch
from leftovers import eventually
from slices import few

import labkit
from labkit.resilience.ftar.exchange import ft_all_reduce
from labkit.wire.recording import record as rec

pytestmark = pytest.mark.ranks


def most_in_flight(trace) -> dict[tuple[int, int], int]:
    """For each pair of neighbours the most bytes that had left the one and not yet been taken by the other."""
    changes: dict[tuple[int, int], list[tuple[float, int]]] = {}
    for m in trace.sends:
        changes.setdefault((m.src, m.dst), []).extend([(m.start, m.nbytes), (m.arrived, -m.nbytes)])
    found = {}
    for pair, steps in changes.items():
        now = most = 0
        for _, change in sorted(steps):
            now += change
            most = max(most, now)
        found[pair] = most
    return found


@pytest.mark.parametrize(("chunk_bytes", "chunks"), few([(4096, 3), (1000, 1), (1 << 16, 2)]))
def test_bytes_in_flight(chunk_bytes, chunks) -> None:
    """Rank 2 comes late and takes its time, so that the others would run ahead if they could."""

    def work(group):
        for _ in range(3):
            if group.rank == 2:
                time.sleep(0.2)
            ft_all_reduce(torch.ones(200_000), group, chunk_bytes=chunk_bytes, chunks=chunks)

    trace = labkit.launch(work, 4, transport="local", timeout=30).trace
    most = most_in_flight(trace)
    assert set(most) == {(r, (r + 1) % 4) for r in range(4)}
    size = chunk_bytes // 4 * 4
    assert max(most.values()) <= size * chunks
    assert most[1, 2] > size * (chunks - 1), "rank 1 had as much out as it may, while rank 2 slept"


def test_a_neighbour_that_stands_still_holds_up_no_more_than_that(tmp_path) -> None:
    """Counted while it stands still, at the sender: what went out, without what still waits at its door."""
    gate = str(tmp_path / "gate")

    def work(group):
        if group.rank == 1:
            while not os.path.exists(gate):
                time.sleep(0.01)
        return ft_all_reduce(torch.ones(100_000), group, chunk_bytes=4000, chunks=3).unique().tolist()

    job = labkit.start(work, 3, transport="local", timeout=30)
    assert eventually(lambda: job.trace().bytes_between()[0][1] > 0)
    time.sleep(0.3)
    rows = job.trace().events
    out = rows[(rows["kind"] == rec.SEND) & (rows["rank"] == 0) & (rows["t1"] > 0)]
    assert out["nbytes"].tolist() == [3924] * 3  # a third of the tensor, evenly in chunks of at most 4000 bytes
    open(gate, "w").close()
    assert job.wait().results == [[3.0]] * 3
