"""Heartbeats that come through a host's aggregator, and the emulation of many hosts."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st
from leftovers import NEVER, eventually, zombies

from labkit.resilience.quorum import Aggregator, BadCall, QuorumClient, QuorumService
from labkit.resilience.quorum.emulate import emulate
from labkit.resilience.quorum.emulated_blocks import blocks
from labkit.resilience.quorum.member_beats import MemberBeat


class Host:
    """An aggregator on a thread, and members that beat until they are silenced."""

    def __init__(self, service: QuorumService, name: str, parts: list[tuple[int, int, int, int]]):
        self.told: list[tuple[int, int]] = []
        self.aggregator = Aggregator(
            service.address, service.token, name, every=0.05, on_quorum=lambda q: self.told.append((q.id, q.step))
        )
        self.parts, self.silent = parts, set[tuple[int, int]]()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> Host:
        self._thread.start()
        return self

    def _run(self) -> None:
        self.aggregator.check_in(self.parts)
        beats = {replica: MemberBeat(self.aggregator.folder, replica, 1) for replica, *_ in self.parts}
        while not self._stop.is_set():
            for replica, first, count, _ in self.parts:
                for rank in range(first, first + count):
                    if (replica, rank) not in self.silent:
                        beats[replica].beat(rank)
            self.aggregator.step(0.02)
        for beat in beats.values():
            beat.close()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        self.aggregator.close()


@pytest.fixture
def two(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Two replicas of four ranks on two hosts, which have half of each, and a client. The parameter: `heartbeat`."""
    heartbeat = getattr(request, "param", 0.6)
    with QuorumService.start(2, heartbeat=heartbeat) as service, QuorumClient(service.address, service.token) as client:
        hosts = [Host(service, f"h{i}", [(0, 2 * i, 2, 4), (1, 2 * i, 2, 4)]).start() for i in range(2)]
        assert eventually(lambda: client.status()["living"] == 2)
        yield service, client, hosts
        for host in hosts:
            host.end()


def join(client: QuorumClient, step: int, *replicas: int) -> list[Any]:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda r=r: found.append(client.join(r, 1, step, timeout=20))) for r in replicas]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_every_member_counts_and_hosts_are_told_of_quorums(two) -> None:
    _, client, hosts = two
    assert {q.replicas for q in join(client, 0, 0, 1)} == {(0, 1)}
    assert eventually(lambda: all(h.told == [(1, 0)] for h in hosts))
    time.sleep(1.0)
    assert client.status()["living"] == 2
    hosts[1].silent.add((1, 3))  # one of eight
    assert {q.replicas for q in join(client, 1, 0)} == {(0,)}
    found = client.status()["replicas"][1]
    assert found["phase"] == "lost" and found["why"].startswith("silent for 0.6")
    hosts[1].silent.clear()
    assert eventually(lambda: client.status()["living"] == 2), "it was only slow"


@pytest.mark.parametrize("two", [NEVER], indirect=True)
def test_a_member_that_a_host_saw_die_is_gone_though_no_silence_is_too_long(two) -> None:
    _, client, hosts = two
    join(client, 0, 0, 1)
    hosts[0].aggregator.gone(1, 1)
    assert {q.replicas for q in join(client, 1, 0)} == {(0,)}
    time.sleep(0.3)
    assert client.status()["replicas"][1]["phase"] == "lost", "further messages of the host do not revive it"
    with pytest.raises(BadCall, match="rank 3 of replica 1 is not on host h0"):
        hosts[0].aggregator.gone(1, 3)


def test_a_new_incarnation_is_not_kept_alive_by_beats_of_the_old(two) -> None:
    _, client, hosts = two
    assert client.begin(1) == 2
    assert eventually(lambda: all(1 not in h.aggregator._parts for h in hosts))
    assert client.status()["replicas"][1]["phase"] == "begun"
    assert client.status()["replicas"][0]["phase"] == "live"


def test_an_aggregator_finds_a_service_that_took_the_place_of_a_lost_one(two) -> None:
    service, client, hosts = two
    join(client, 0, 0, 1)
    service.stop()
    port = int(service.address.rpartition(":")[2])
    with QuorumService.start(2, port=port, token=service.token, first_id=50, incarnations=[1, 1], heartbeat=0.6):
        assert eventually(lambda: client.status()["living"] == 2)
        assert {q.id for q in join(client, 1, 0, 1)} == {50}
        assert eventually(lambda: all(h.told == [(1, 0), (50, 1)] for h in hosts))


def test_members_find_their_memory_and_nobody_elses() -> None:
    with QuorumService.start(1) as service:
        aggregator = Aggregator(service.address, service.token, "a", every=0.05)
        assert os.stat(aggregator.folder).st_mode & 0o777 == 0o700
        aggregator.check_in([(0, 0, 2, 2)])
        part = aggregator._parts[0]
        beat, begin = MemberBeat(aggregator.folder, 0, 1), part.quietest()
        beat.beat(0)
        assert part.quietest() == begin, "rank 1 is still silent"
        beat.beat(1)
        assert part.quietest() > begin
        for rank in (-1, 2):
            with pytest.raises(BadCall, match="on this host are ranks 0 to 1"):
                beat.beat(rank)
        with pytest.raises(BadCall, match="incarnation 2 of replica 0 has no members on this host"):
            MemberBeat(aggregator.folder, 0, 2)
        beat.close(), aggregator.close()
        assert not os.path.exists(aggregator.folder)


@given(st.integers(1, 300), st.integers(1, 20), st.integers(1, 60))
def test_every_rank_of_every_replica_is_on_one_host(members: int, replicas: int, hosts: int) -> None:
    seen = [
        (r, first + i) for here in blocks(members, replicas, hosts) for r, first, count in here for i in range(count)
    ]
    assert len(seen) == len(set(seen)) == members
    ranks = [sum(1 for r, _ in seen if r == replica) for replica in range(replicas)]
    assert max(ranks) - min(ranks) <= 1
    assert all(
        sorted(rank for r, rank in seen if r == replica) == list(range(ranks[replica])) for replica in range(replicas)
    )


def test_an_emulation_measures_every_kind_of_quorum_and_leaves_nothing() -> None:
    found = emulate(120, 3, hosts=5, rounds=3, beat=1.0, every=0.2, idle=0.5)
    assert len(found["same"]) == len(found["new"]) == 3 and found["hosts"] == 5
    for seconds in [*found["same"], *found["new"], found["death"], found["again"], found["rejoin"], found["check in"]]:
        assert seconds > 0
    assert not zombies()
    with pytest.raises(BadCall, match="1 members in 12 replicas"):
        emulate(1)
    with pytest.raises(BadCall, match="8 hosts"):  # no host would begin with a member of the last replica
        emulate(120, 12, hosts=8, rounds=1, beat=1.0, every=0.2)
    with pytest.raises(BadCall, match="idle=0"):
        emulate(120, 3, idle=0)
