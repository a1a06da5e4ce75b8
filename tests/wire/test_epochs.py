"""Groups that are formed anew for an epoch, waits that are limited for one call, and messages that were lost."""

from __future__ import annotations

import os
import re
import time

import pytest
import torch
from leftovers import NEVER, eventually
from slices import REBUILDABLE, few

import labkit
from labkit import Drop, Kill, PeerLost, RankFailed, WaitTimeout, collectives
from labkit.wire.errors import MessageLost
from labkit.wire.transports.epoch import Epoch

pytestmark = pytest.mark.ranks


def around(group, value):
    """What the left neighbour holds."""
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    return int(group.exchange(torch.tensor([value]), right, torch.tensor([-1]), left))


def raised(kind, call):
    """The words of the error of this kind that `call()` raises. (A rank does without pytest.)"""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"did not raise {kind}")


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)


# -- epochs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", REBUILDABLE)
def test_ranks_that_have_rebuilt_differently_often_meet_in_an_epoch(transport) -> None:
    def work(group):
        mine = group.subgroup([group.rank])
        for epoch in range(group.rank):  # each has been in another number of epochs, and counted otherwise
            mine = mine.rebuild([group.rank], epoch=epoch + 1).rebuild([group.rank])
        whole = mine.rebuild([2, 0, 1], epoch=9)
        part = whole.subgroup([0, 1]) if whole.rank < 2 else None
        return around(whole, group.rank), part and around(part, group.rank), collectives.all_reduce(
            torch.tensor([1]), whole, algorithm="ring").item()  # fmt: skip

    assert labkit.launch(work, 3, transport=transport).results == [(2, 2, 3), (0, None, 3), (1, 0, 3)]


@pytest.mark.parametrize("transport", few(REBUILDABLE))
def test_an_epoch_is_used_once(transport) -> None:
    def work(group, members):
        group = group.rebuild([0, 1], epoch=4)
        group.rebuild(members, epoch=4)

    with pytest.raises(RankFailed, match=r"rebuild\(\[0, 1\], epoch=4\): rank \d has been in this epoch before"):
        labkit.launch(work, 2, [0, 1], transport=transport)
    assert labkit.launch(lambda g: g.rebuild([0, 1], epoch=4).rebuild([1, 0], epoch=4).rank, 2,
                         transport=transport).results == [1, 0]  # fmt: skip


@pytest.mark.parametrize("epoch", [0, -1, 1 << 62, True, 1.0, "1"])
def test_a_number_that_is_none(epoch) -> None:
    with pytest.raises(RankFailed, match="raised RefusedError: epoch=.*needs a whole number above 0"):
        labkit.launch(lambda group: group.rebuild([0, 1], epoch=epoch), 2, transport="local")


@pytest.mark.parametrize("transport", REBUILDABLE)
def test_bytes_of_an_old_epoch_never_reach_a_new_one(transport) -> None:
    """Rank 0 sends in the old epoch, which rank 1 leaves without taking it; both meet again in the next one."""

    def work(group):
        old = group.rebuild([0, 1], epoch=1)
        around(old, 0)
        if group.rank == 0:
            posted = [old.isend(torch.full((100,), -7), 1) for _ in range(3)]
            time.sleep(0.1)
        new = old.rebuild([0, 1], epoch=2)
        got = [around(new, 10 * n + group.rank) for n in range(5)]
        if group.rank == 0:
            for handle in posted:
                raised(PeerLost, handle.wait)
        return got

    run = labkit.launch(work, 2, transport=transport)
    assert run.results == [[10 * n + 1 for n in range(5)], [10 * n for n in range(5)]]
    assert run.failures == [], "what was left lying in a group that was left is no mistake"


@pytest.mark.parametrize("transport", few(REBUILDABLE))
def test_keys_that_collide_do_not_mix(transport) -> None:
    """The number of the epoch itself is part of the address, beside the key that is made of it."""

    def work(group):
        import zlib

        real, zlib.crc32 = zlib.crc32, lambda raw, *start: 77
        try:
            old = group.rebuild([0, 1], epoch=1)
            if group.rank == 0:
                old.isend(torch.tensor([-7]), 1)
                time.sleep(0.1)
            new = old.rebuild([0, 1], epoch=2)
        finally:
            zlib.crc32 = real
        return old.key == new.key, around(new, group.rank)

    assert labkit.launch(work, 2, transport=transport).results == [(True, 1), (True, 0)]


@pytest.mark.parametrize("transport", REBUILDABLE)
def test_who_means_other_lives_is_turned_away(tmp_path, transport) -> None:
    """Rank 0 has seen rank 2 in one life, rank 1 in the next: they meet, and both learn that it is over."""

    def work(group):
        new = group.rebuild([0, 1, 2], epoch=3)
        if group.rank == 1:
            lane = new._lane
            lane.epoch = Epoch(3, {**lane.epoch.addresses, 2: b"\0another"})
        if group.rank == 2:  # its end is not what the others learn of
            for rank in range(2):
                wait_for(tmp_path / str(rank))
            return None
        other = 1 - group.rank
        words = raised(PeerLost, lambda: new.exchange(torch.ones(1), other, torch.ones(1), other))
        new.leave()
        (tmp_path / str(group.rank)).touch()
        return words

    results = labkit.launch(work, 3, transport=transport, on_failure="continue", timeout=NEVER).results
    assert any("a member of their group was restarted" in words for words in results[:2])


@pytest.mark.parametrize("transport", REBUILDABLE)
def test_a_rank_that_died_before_it_connected_is_missed_although_it_is_back(tmp_path, transport) -> None:
    """Restarted within the tenth of a second between two looks: its page runs again, but it lives elsewhere."""
    first, gate = str(tmp_path / "first"), str(tmp_path / "gate")

    def work(group):
        if group.rank == 1:
            if not os.path.exists(first):
                open(first, "w").close()
                time.sleep(NEVER)
            wait_for(gate)
            return "second life"
        pair = group.rebuild([0, 1], epoch=1)
        words = raised(PeerLost, lambda: pair.recv(torch.zeros(1), 1))
        open(gate, "w").close()
        return words

    job = labkit.start(work, 2, transport=transport, on_failure="continue", timeout=NEVER)
    assert eventually(lambda: os.path.exists(first))
    time.sleep(0.2)
    job.kill(1)
    assert eventually(lambda: any(text == "ended" for _, rank, text in job.events if rank == 1))
    job.restart(1)
    run = job.wait()
    assert run.results == ["rank 0 lost rank 1: it is no longer running", "second life"]


@pytest.mark.parametrize("transport", REBUILDABLE)
def test_leaving_wakes_who_waits(tmp_path, transport) -> None:
    def work(group):
        mine = group.subgroup([0, 1, 2])
        group.barrier()  # ranks do not begin at the same moment
        if group.rank == 0:
            time.sleep(0.2)
            (tmp_path / "0").touch()
            mine.leave()
            mine.leave()
            for rank in (1, 2):  # its end is not what wakes them
                wait_for(tmp_path / str(rank))
            return None
        raised(PeerLost, lambda: mine.recv(torch.zeros(1), 0))
        (tmp_path / str(group.rank)).touch()
        return (tmp_path / "0").exists()

    assert labkit.launch(work, 3, transport=transport, timeout=NEVER).results == [None, True, True]


# -- limits for one call -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", REBUILDABLE)
def test_every_kind_of_wait_can_be_limited(tmp_path, transport) -> None:
    gate = str(tmp_path / "gate")

    def work(group):
        if group.rank == 1:
            wait_for(gate)
            return None
        other, found = 1, {}
        calls = {
            "recv": lambda: group.recv(torch.zeros(1), other),
            "exchange": lambda: group.exchange(torch.zeros(1), other, torch.zeros(1), other),
            "irecv": lambda: group.irecv(torch.zeros(1), other).wait(),
            "collective": lambda: collectives.all_reduce(torch.zeros(1), group, algorithm="ring"),
            "handle": lambda: collectives.all_reduce(torch.zeros(1), group, algorithm="ring", async_op=True).wait(),
        }
        for name, call in calls.items():
            begin = time.perf_counter()
            with group.within(0.15):
                raised(WaitTimeout, call)
            found[name] = time.perf_counter() - begin
        open(gate, "w").close()
        return found

    found = labkit.launch(work, 2, transport=transport, on_failure="continue", timeout=NEVER).results[0]
    assert len(found) == 5 and all(seconds >= 0.15 for seconds in found.values()), found


@pytest.mark.parametrize("transport", REBUILDABLE)
def test_limits_inside_each_other_and_no_longer_than_they_are_asked_for(tmp_path, transport) -> None:
    gate = str(tmp_path / "gate")

    def work(group):
        if group.rank == 1:
            wait_for(gate)
            time.sleep(0.2)
            return group.recv(torch.zeros(1), 0).item()
        with group.within(0.1), group.within(NEVER):
            words = raised(WaitTimeout, lambda: group.subgroup([1, 0]).recv(torch.zeros(1), 0))
        open(gate, "w").close()
        group.send(torch.ones(1), 1)  # no limit any more
        return words

    words, got = labkit.launch(work, 2, transport=transport, timeout=NEVER).results
    assert got == 1.0
    assert re.search(r"waited 0\.(1|0\d+) s for rank 1", words) and "Its limit was set for this call" in words


def test_limits_that_are_none() -> None:
    def work(group, seconds):
        with group.within(seconds):
            pass

    for seconds in (0, -1, True, "1", float("nan")):
        with pytest.raises(RankFailed, match="raised RefusedError: within.*needs a number of seconds above 0"):
            labkit.launch(work, 1, seconds, transport="local")


def test_a_lost_message_has_a_name_of_its_own() -> None:
    def work(group):
        for n in range(3):
            group.exchange(torch.tensor([n]), 1 - group.rank, torch.tensor([-1]), 1 - group.rank)

    run = labkit.launch(work, 2, transport="local", faults=[Drop(0, message=2)], on_failure="continue", timeout=5)
    assert MessageLost.__mro__[1] is labkit.Mismatch
    assert ("MessageLost", "rank 0 sent rank 1 message 3, but message 2 is due: one was lost") in [
        (f.error, f.message) for f in run.failures
    ]


def test_over_gloo_no_message_is_taken_for_the_one_before_it_that_was_lost() -> None:
    """There is no header to tell of it: the receiver waits until its limit, and has what it had."""

    def work(group):
        got = torch.tensor([-1])
        for n in range(4):
            with group.within(2.0 + 2 * group.rank):
                try:
                    group.exchange(torch.tensor([n]), 1 - group.rank, got, 1 - group.rank)
                except (PeerLost, WaitTimeout) as error:
                    return int(got), type(error).__name__
        return int(got), ""

    faults = [Drop(0, message=2)]
    results = labkit.launch(work, 2, transport="gloo", faults=faults, on_failure="continue", timeout=NEVER).results
    assert results == [(1, "WaitTimeout"), (0, "PeerLost")]


@pytest.mark.parametrize("transport", REBUILDABLE)
def test_a_member_that_died_is_missed_in_a_new_epoch_too(transport) -> None:
    def work(group):
        group.step(1)
        pair = group.rebuild([0, 1], epoch=1)
        return raised(PeerLost, lambda: around(pair, 0))

    run = labkit.launch(work, 2, transport=transport, on_failure="continue", faults=[Kill(1, step=1)], timeout=NEVER)
    assert "rank 0 lost rank 1" in run.results[0]
