"""How ranks connect over gloo: the board on which they meet, and what becomes of a connection that is never made."""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from leftovers import NEVER, eventually

import labkit
from labkit import PeerLost, WaitTimeout
from labkit.wire.message import Message
from labkit.wire.transports.board import RECORD, Board
from labkit.wire.transports.gloo import GlooTransport


@pytest.fixture
def path():
    fd = os.memfd_create("board")
    yield f"/proc/self/fd/{fd}"
    os.close(fd)


def test_what_one_sets_the_others_get(path) -> None:
    boards = [Board(path) for _ in range(3)]

    def fill(n) -> None:
        for i in range(500):
            boards[n].set(f"{n} {i}", f"{i * n}".encode())

    threads = [threading.Thread(target=fill, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for board in (*boards, Board(path)):
        assert all(board.get(f"{n} {i}") == b"%d" % (i * n) for n in range(3) for i in range(500))
    boards[0].set("again", "1")
    boards[1].set("again", b"2")
    assert boards[2].get("again") == b"2" and dist.PrefixStore("a", boards[2].clone()).check(["b"]) is False
    assert os.stat(path).st_size == (3 * 500 + 2) * RECORD


def test_what_is_refused_and_what_never_comes(path) -> None:
    board = Board(path)
    with pytest.raises(ValueError, match="an entry has 4096 bytes at most"):
        board.set("key", bytes(RECORD))
    with pytest.raises(dist.DistStoreError, match=r"nobody has set \['never'\] within 0.05 s"):
        board.wait(["never"], timedelta(seconds=0.05))
    assert not board.check(["key"]) and os.stat(path).st_size == 0


class World:
    """Two ranks of one process. alive: who is taken to be."""

    def __init__(self, path: str):
        self.alive = {0, 1}
        self.store = Board(path)
        self.ranks = [GlooTransport(r, self.store, ["here", "there"], self.alive.__contains__) for r in (0, 1)]
        self.lanes = [rank.lane(7, 0, NEVER) for rank in self.ranks]

    def receives(self, rank: int) -> Message:
        m = Message(1 - rank, 1, torch.zeros(3), None, (0, 0))
        self.lanes[rank].begin(self.lanes[rank].pull, m)
        return m

    def promise(self) -> None:
        """Rank 1 says that it wants to be connected, and does nothing for it."""
        self.store.set("7/0/0/1>0", "'there' 'here'")
        assert eventually(lambda: self.lanes[0].links[1].constructing)

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()


@pytest.fixture
def world(path):
    made = World(path)
    yield made
    made.close()


def test_a_message_goes_and_nothing_is_left_behind(world) -> None:
    m = world.receives(0)
    world.lanes[1].run((world.lanes[1].push, Message(0, 1, torch.arange(3.0), None, (0, 0))))
    world.lanes[0].finish(m, NEVER, NEVER)
    assert m.x.tolist() == [0.0, 1.0, 2.0]
    world.close()
    assert not world.ranks[0].abandoned and not world.ranks[1].abandoned


def test_a_rank_that_leaves_does_not_wait_for_a_connection_and_counts_the_thread_that_does(world) -> None:
    m = world.receives(0)
    world.promise()
    world.lanes[0].leave([1])
    with pytest.raises(PeerLost, match="rank 0 has left this group itself"):
        world.lanes[0].finish(m, NEVER, NEVER)
    assert len(world.ranks[0].abandoned) == 1
    with pytest.raises(PeerLost, match="rank 1 lost rank 0: it has left the group"):  # and does not connect first
        world.lanes[1].finish(world.receives(1), NEVER, NEVER)


def test_who_dies_in_the_middle_of_connecting_is_missed_at_once(world) -> None:
    m = world.receives(0)
    world.promise()
    world.alive.discard(1)
    with pytest.raises(PeerLost, match="rank 0 lost rank 1: it is no longer running"):
        world.lanes[0].finish(m, NEVER, NEVER)
    assert len(world.ranks[0].abandoned) == 1


def test_a_receive_that_was_given_up_before_it_could_set_out_does_not_do_so_later(world) -> None:
    m = world.receives(0)
    with pytest.raises(WaitTimeout, match="rank 0 waited 0.05 s for rank 1"):
        world.lanes[0].finish(m, 0.05, 0.05)
    late = Message(0, 1, torch.ones(3), None, (0, 0))
    world.lanes[1].begin(world.lanes[1].push, late)
    assert eventually(lambda: late.works is not None)
    time.sleep(0.1)
    assert m.x.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.ranks
def test_a_rank_that_fails_at_once_does_no_harm_to_those_that_still_connect() -> None:
    def work(group):
        if group.rank == 2:
            raise ValueError("at once")
        pair = group.subgroup([0, 1])
        return pair.exchange(torch.ones(1), 1 - pair.rank, torch.zeros(1), 1 - pair.rank).item()

    run = labkit.launch(work, 3, transport="gloo", on_failure="continue", timeout=NEVER)
    assert run.results == [1.0, 1.0, None] and [f.rank for f in run.failures] == [2]
