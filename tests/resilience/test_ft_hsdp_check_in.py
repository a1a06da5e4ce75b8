"""Before the first step: what is refused, how the ranks of a replica speak, and spares that take a place."""

from __future__ import annotations

import secrets

import pytest
import torch

import labkit
from labkit import Kill
from labkit.resilience.errors import Recoverable
from labkit.resilience.ft_hsdp import first_step, train
from labkit.resilience.ft_hsdp.protocol import FINISHED, HEALTHY, RECOVERING, Decision, role, sources, world_ranks
from labkit.resilience.ft_hsdp.vote import ROOM, tell, vote
from labkit.resilience.quorum import Member, Quorum, QuorumService
from labkit.resilience.supervising.run import run_ft_hsdp
from labkit.wire.errors import RefusedError

from .ft_hsdp_cases import build_mlp, config
from .test_ft_hsdp_faults import build_slow, proven


def member(replica, step, lineage=0):
    world = [2 * replica, 2 * replica + 1]
    return Member(replica, 1, step, lineage, {"world": world, "servers": [f"h:{w}" for w in world]})


def test_roles_rings_and_sources_follow_from_the_quorum():
    quorum = Quorum(9, 5, 7, (member(0, 5, 7), member(1, 5, 6), member(3, 4, 7), member(4, 5, 7)))
    assert [role(quorum, r, 8) for r in (0, 1, 3, 4)] == [HEALTHY, RECOVERING, RECOVERING, HEALTHY]
    assert role(quorum, 0, 5) == FINISHED and role(quorum, 1, 5) == RECOVERING
    assert world_ranks(quorum, 1) == [1, 3, 7, 9]
    asked = {(r, i): sources(quorum, r, i) for r in (1, 3) for i in (0, 1)}
    assert all({replica for replica, _ in found} == {0, 4} for found in asked.values())
    assert {found[0] for found in asked.values()} == {(0, "h:0"), (0, "h:1"), (4, "h:8"), (4, "h:9")}  # spread
    assert Decision.from_json(Decision(quorum).to_json()) == Decision(quorum)


@pytest.mark.ranks
@pytest.mark.parametrize("size", [1, 3])
def test_ranks_hear_what_their_leader_says_and_vote(size):
    def on_rank(group):
        said = []
        for n in (0, ROOM, 3 * ROOM):  # in one message, and in two
            found = {"text": "x" * n, "n": n}
            said.append(tell(group, found if group.rank == 0 else None, 30) == found)
        return all(said), [vote(group, yes, 30) for yes in (True, group.rank != size - 1, group.rank == 0, False)]

    for heard, votes in labkit.launch(on_rank, size, transport="local").results:
        assert heard and votes == [-1, size - 1, 1 if size > 1 else -1, 0]


@pytest.mark.ranks
def test_a_vote_without_a_voter_is_an_error_in_time():
    """The leader does not wait for a rank that is gone; and not for ever for one that is silent."""

    def on_rank(group, absent):
        if group.rank == 1:
            if absent:
                return "gone"
            group.recv(torch.zeros(1), 0)
        try:
            vote(group, True, 0.3)
        except labkit.WireError as error:
            if not absent:
                group.send(torch.zeros(1), 1)
            return type(error).__name__

    for absent, name in ((True, "PeerLost"), (False, "WaitTimeout")):
        job = labkit.start(on_rank, 2, absent, transport="local", on_failure="continue", deadline=30)
        assert job.wait(60).results[0] == name


def test_who_waits_for_its_peers_says_whom_it_misses():
    class Transport:
        def alive(self, rank):
            return rank in living

    from types import SimpleNamespace

    group, living = SimpleNamespace(context=SimpleNamespace(rank=2, transport=Transport())), {3}
    first_step.wait_for_peers(group, [2, 3], 0.01)
    with pytest.raises(Recoverable, match=r"ranks \[4\]"):
        first_step.wait_for_peers(group, [2, 3, 4], 0.01)


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("size", "options", "words"),
    [
        (3, {}, "2 processes, and this group has 3"),
        (2, {"transport": "nccl-stand-in"}, "FT-HSDP needs transport='local' or 'gloo'"),
        (2, {"steps": -1}, "steps=-1"),
    ],
)
def test_a_world_that_does_not_fit_is_refused(size, options, words, tmp_path):
    c, steps = config(2), options.pop("steps", 3)

    def on_rank(group):
        with pytest.raises(RefusedError) as caught:
            train(group, c, "127.0.0.1:1", "t", build_mlp, steps, log_dir=tmp_path)
        return str(caught.value)

    for said in labkit.launch(on_rank, size, **{"transport": "local", **options}).results:
        assert words in said


@pytest.mark.ranks
@pytest.mark.parametrize("wrong", ["address", "token", "code"])
def test_a_service_that_is_not_ours_is_named(wrong, tmp_path):
    service = QuorumService.start(2, first=0.2)
    address, token = service.address, service.token
    if wrong == "address":
        service.stop()
    elif wrong == "token":
        token = secrets.token_hex(16)
    c = config(2, warm_up=False)

    def on_rank(group):
        mine = c if wrong != "code" or group.rank == 0 else config(2, warm_up=False, batch=5)
        if wrong == "code" and group.rank:  # so that both live at a time
            group.recv(torch.zeros(1), 0)

        def build(inner, seed):
            if wrong == "code" and group.rank == 0:
                group.isend(torch.zeros(1), 1)
            return build_mlp(inner, seed)

        try:
            train(group, mine, address, token, build, 3, log_dir=tmp_path)
        except Exception as error:
            return type(error).__name__
        return "trained"

    try:
        run = labkit.start(on_rank, 2, transport="local", on_failure="continue", deadline=60).wait()
    finally:
        service.stop()
    named = {"address": "Unanswered", "token": "WrongToken", "code": "WrongVersion"}[wrong]
    assert named in run.results, run.results


@pytest.mark.long
@pytest.mark.ranks
def test_a_spare_takes_the_place_of_a_replica_that_died(tmp_path):
    c = config(2, 2, spares=1)
    run = run_ft_hsdp(c, slow_fsdp, 25, log_dir=tmp_path, faults=[Kill(3, at="forward", nth=3)])
    proven(run, tmp_path, slow_fsdp)
    (incident,) = run.incidents
    assert (incident.replica, incident.by) == (1, 2)
    assert [r.replica for r in run.results[4:]] == [1, 1] and all(r.finished for r in run.results[4:])
    assert all(r is None or not r.finished for r in run.results[2:4])  # they are the spare now


def slow_fsdp(inner, seed):
    import time

    from .ft_hsdp_cases import build_fsdp

    model, optimizer, loss = build_fsdp(inner, seed)

    def slow(model, numbers):
        time.sleep(0.1)
        return loss(model, numbers)

    return model, optimizer, slow


@pytest.mark.ranks
def test_spares_that_nobody_needs_end_with_the_others(tmp_path):
    run = run_ft_hsdp(config(2, spares=1), build_slow, 3, log_dir=tmp_path).require()
    assert [r.finished for r in run.results] == [True, True, False] and run.results[2].first_step > 0
