"""When a quorum is formed and of whom, rule by rule, with a clock that the test turns."""

from __future__ import annotations

import re
from typing import Any

import pytest

from labkit.resilience.quorum import (
    BadCall,
    Member,
    NoQuorum,
    OldIncarnation,
    Quorum,
    QuorumState,
    WrongVersion,
)

from .quorum_by_hand import BEAT, Turned, begun


def test_a_full_round_forms_at_once_and_keeps_its_id() -> None:
    t = begun()
    first = t.answers[0]
    assert first.id == 1 and first.replicas == (0, 1, 2) and not first.recovering
    for step in (6, 7, 8):
        t.join(2, step)
        t.join(0, step)
        assert 0 not in t.answers
        t.join(1, step)
        assert {r: (t.answers[r].id, t.answers[r].step, t.answers[r].lineage) for r in range(3)} == {
            r: (1, step, 1) for r in range(3)
        }


@pytest.mark.parametrize("step, failed", [(6, True), (6, False), (7, True)])
def test_who_retries_gets_a_new_id_with_the_same_members(step: int, failed: bool) -> None:
    t = begun()
    assert t.all_join(0, 1, 2, step=6).id == 1
    t.join(0, step)
    t.join(1, step)
    t.join(2, step, failed=failed)
    assert (t.answers[0].id, t.answers[0].replicas) == (2, (0, 1, 2))


def test_one_that_committed_is_healthy_and_those_that_did_not_are_behind() -> None:
    t = begun()
    t.join(0, 5, failed=True, shrink_only=True)
    t.join(1, 6)
    t.join(2, 5, failed=True, shrink_only=True)
    q = t.answers[1]
    assert [m.replica for m in q.healthy] == [1] and [m.replica for m in q.recovering] == [0, 2]
    assert (q.step, q.lineage, q.id) == (6, 1, 2)


def test_a_newcomer_waits_while_the_members_are_in_a_step() -> None:
    t = begun(3)
    t.state.begin(2, t.now)
    t.all_join(0, 1, step=6)
    t.check_in(2)
    t.join(2, 0)
    t.pass_(20)  # much longer than `join`: the step is long
    assert 2 not in t.answers
    t.join(0, 7)
    t.join(1, 7)
    q = t.answers[2]
    assert q.id == 3 and [m.replica for m in q.recovering] == [2] and t.answers[0] is q


def test_a_full_round_lingers_for_one_that_is_about_to_join_and_not_for_one_that_was_left_out() -> None:
    t = begun(3, linger=0.5)
    t.state.begin(2, t.now)
    t.check_in(2)
    t.all_join(0, 1, step=6)
    assert 0 not in t.answers
    t.pass_(0.3)
    t.join(2, 0)
    assert t.answers[0].replicas == (0, 1, 2)
    t.all_join(0, 1, step=7)
    t.pass_(2.1)  # replica 2 hangs
    assert t.answers[0].replicas == (0, 1)
    t.all_join(0, 1, step=8)
    assert t.answers[0].step == 8


def test_a_member_that_hangs_is_left_out_after_the_join_time_and_is_behind_when_it_wakes() -> None:
    t = begun()
    t.join(0, 5, failed=True)
    t.pass_(0.5)
    t.join(1, 5, failed=True)
    t.pass_(1.45)
    assert 0 not in t.answers
    t.pass_(0.1)
    assert t.answers[0].replicas == (0, 1) and t.answers[0].waited == pytest.approx(2.0, abs=0.06)
    t.join(2, 6)  # it had finished step 5 in quorum 1; the others do step 5 again in quorum 2
    t.join(0, 6)
    t.join(1, 6)
    q = t.answers[2]
    assert [m.replica for m in q.healthy] == [0, 1] and q.version == (6, 2)
    assert q.member(2) == Member(2, 1, 6, 1)


def test_the_dead_are_not_waited_for_whoever_says_so() -> None:
    for kill in (lambda t: t.state.dead(2, t.now), lambda t: t.state.begin(2, t.now)):
        t = begun()
        t.all_join(0, 1, step=6)
        kill(t)
        t.pass_(0)
        assert t.answers[0].replicas == (0, 1)
    t = begun()
    t.all_join(0, 1, step=6)
    t.died(2)
    t.pass_(0.05)
    assert 0 not in t.answers, "a closed connection is not yet a death"
    t.pass_(0.06)
    assert t.answers[0].replicas == (0, 1)
    t = begun(heartbeat=1.0)
    t.all_join(0, 1, step=6)
    t.pass_(0.9, silent=(2,))
    assert 0 not in t.answers
    t.pass_(0.2, silent=(2,))
    assert t.answers[0].replicas == (0, 1)


def test_a_connection_that_comes_back_in_time_was_no_death() -> None:
    t = begun()
    t.join(2, 6)
    t.state.closed(2, 1, BEAT, t.now)
    t.all_join(0, 1, step=6)
    assert 0 not in t.answers, "nobody knows whether replica 2 lives"
    t.state.heard(2, 1, BEAT, t.now + 0.05)
    t.pass_(0.05)
    assert t.answers[0].id == 1


def test_one_that_joined_and_fell_silent_is_not_taken() -> None:
    t = begun(heartbeat=1.0)
    t.join(2, 6)
    t.pass_(1.1, silent=(2,))
    t.all_join(0, 1, step=6)
    assert t.answers[0].replicas == (0, 1) and 2 not in t.answers


def test_an_incarnation_that_is_over_is_told_so_and_its_late_death_changes_nothing() -> None:
    t = begun()
    t.join(2, 6)
    assert t.state.begin(2, t.now) == 2
    t.pass_(0)
    assert isinstance(t.answers[2], OldIncarnation)
    for call in (
        lambda: t.state.join(2, 1, 6, t.now, "old"),
        lambda: t.state.heard(2, 1, BEAT, t.now),
        lambda: t.state.confirm(2, 1, 1),
        lambda: t.state.register(2, 0, 1, t.now, "old", incarnation=1),
    ):
        with pytest.raises(OldIncarnation, match="incarnation 1 of replica 2 is over: incarnation 2 has begun"):
            call()
    t.check_in(2)
    assert t.state.dead(2, t.now, incarnation=1) is False and t.state.slots[2].phase == "live"
    assert t.state.dead(2, t.now, incarnation=2) is True
    with pytest.raises(OldIncarnation, match="declared dead"):
        t.state.register(2, 0, 1, t.now, "new")


def test_when_all_restart_they_wait_for_each_other_and_nobody_is_behind() -> None:
    t = begun(3)
    for r in range(3):
        t.state.begin(r, t.now)
    for r in (1, 0):
        t.check_in(r)
        t.join(r, 4, lineage=9)
        t.pass_(2.4)  # longer than `join`: here `first` counts
    t.check_in(2)
    t.join(2, 4, lineage=9)
    q = t.answers[2]
    assert q.replicas == (0, 1, 2) and not q.recovering and q.version == (4, 9)
    assert q.id == 10, "above every id that a checkpoint tells of"


def test_when_all_restart_the_highest_checkpoint_is_healthy_and_one_that_never_comes_is_left_out() -> None:
    t = begun(3)
    for r in range(3):
        t.state.begin(r, t.now)
    t.check_in(0, 1)
    t.join(0, 3, lineage=1)
    t.join(1, 4, lineage=1)
    t.pass_(4.9)
    assert 0 not in t.answers
    t.pass_(0.2)
    assert [m.replica for m in t.answers[0].healthy] == [1] and t.answers[0].replicas == (0, 1)
    t = begun(3)
    for r in range(3):
        t.state.begin(r, t.now)
    t.state.dead(2, t.now)  # given up by its supervisor
    t.check_in(0, 1)
    assert t.all_join(0, 1, step=4).replicas == (0, 1)


def test_a_state_is_not_thrown_away_while_one_that_holds_it_lives() -> None:
    t = begun(2, step=5)
    t.state.begin(1, t.now)
    t.check_in(1)
    t.join(1, 0)
    t.join(0, 6)
    assert [m.replica for m in t.answers[1].recovering] == [1]
    t.join(1, 0, failed=True)  # it could not fetch, and replica 0 hangs
    t.pass_(30)
    assert 1 not in t.answers
    assert t.state.verdict.why == "replica 0 is alive with the state of a later step, and not joined yet"
    t.state.dead(0, t.now)  # its supervisor ends it: then what is left has to do
    t.pass_(0)
    assert t.answers[1].replicas == (1,) and t.answers[1].step == 0


def test_who_shrinks_takes_nobody_new_unless_too_few_would_be_left() -> None:
    for least, expected in ((1, (0, 1)), (2, (0, 1)), (3, (0, 1, 2))):
        t = begun(3, min_replicas=least)
        t.state.begin(2, t.now)
        t.check_in(2)
        t.join(2, 0)
        t.join(0, 5, failed=True, shrink_only=True)
        t.join(1, 5, failed=True, shrink_only=True)
        assert t.answers[0].replicas == expected
        if least < 3:
            t.join(0, 6)
            t.join(1, 6)
            assert t.answers[2].replicas == (0, 1, 2), "it waits for the next round"


def test_fewer_than_min_replicas_form_nothing() -> None:
    t = begun(3, min_replicas=2)
    t.state.dead(1, t.now)
    t.state.dead(2, t.now)
    t.join(0, 6, until=t.now + 1)
    t.pass_(1.1)
    assert isinstance(t.answers[0], NoQuorum)
    assert re.search("within 1.* s: 1 has joined, min_replicas is 2", str(t.answers[0]))


def test_the_step_alone_does_not_decide_and_a_later_lineage_does_not_outweigh_a_later_step() -> None:
    t = Turned(3)
    t.check_in(0, 1, 2)
    t.join(0, 7, lineage=3)
    t.join(1, 6, lineage=8)
    t.join(2, 7, lineage=2)
    q = t.answers[0]
    assert q.version == (7, 3) and [m.replica for m in q.healthy] == [0]


def test_without_a_lineage_one_that_may_not_have_fetched_stays_behind() -> None:
    t = begun()
    t.join(0, 5, failed=True)
    t.join(1, 5, failed=True)
    t.pass_(2.1)  # replica 2 hangs with step 5 done; quorum 2 does it again without it
    t.join(2, 6)
    t.all_join(0, 1, step=6)
    assert t.answers[2].recovering[0].version == (6, 1)
    t.join(2, 6, failed=True)  # did it fetch state 6 of quorum 2, or does it still have its own?
    t.join(0, 6, failed=True)
    t.join(1, 6, failed=True)
    assert [m.replica for m in t.answers[2].recovering] == [2]
    t.join(2, 7)
    t.join(0, 7)
    t.join(1, 7)
    assert not t.answers[2].recovering


def test_asking_again_does_not_restart_the_wait_for_a_member_that_hangs() -> None:
    t = begun()
    t.join(0, 6)
    t.join(1, 6, until=t.now + 0.9)
    t.pass_(0.95)
    assert re.search("replica 2 is still to join, 1.[01].* s are left", str(t.answers[1]))
    t.join(0, 6)  # from another connection: the first caller is told
    t.join(1, 6, until=t.now + 0.9)
    t.pass_(0.95)
    t.join(1, 6)
    t.pass_(0.15)
    assert t.answers[0].replicas == (0, 1)


def test_time_in_which_the_service_did_not_run_counts_against_nobody() -> None:
    t = begun()
    t.join(0, 6)
    t.now += 30
    t.state.away(30, t.now)
    t.state.tick(t.now)
    assert [s.phase for s in t.state.slots] == ["live"] * 3 and not t.state.take()
    t.all_join(1, 2, step=6)
    assert t.answers[0].id == 1


def test_a_replica_that_has_left_is_not_waited_for_though_its_heartbeat_goes_on() -> None:
    t = begun()
    t.state.leave(2, 1)
    t.state.heard(2, 1, BEAT, t.now)
    assert t.all_join(0, 1, step=6).replicas == (0, 1)


def test_confirm_knows_the_latest_quorum_and_its_living_members() -> None:
    t = begun()
    assert t.state.confirm(2, 1, 1)
    t.all_join(0, 1, step=6)
    t.pass_(2.1)
    assert t.answers[0].id == 2 and t.state.confirm(0, 1, 2)
    assert not t.state.confirm(2, 1, 1) and not t.state.confirm(2, 1, 2)
    t.died(1)
    t.pass_(0.2)
    assert not t.state.confirm(1, 1, 2), "it counts as lost"


@pytest.mark.parametrize(
    "arguments, words",
    [
        (dict(step=-1), "step=-1"), (dict(step=True), "step=True"), (dict(step=2.0), "step=2.0"),
        (dict(step=1, lineage=-2), "lineage=-2"), (dict(step=1, replica=3), "replica 3: .* 0 to 2"),
        (dict(step=1, incarnation=2), "no incarnation 2"), (dict(step=1, incarnation=0), "no incarnation 0"),
    ],
)  # fmt: skip
def test_a_join_that_makes_no_sense_is_refused(arguments: dict[str, Any], words: str) -> None:
    t = begun()
    given = {"replica": 0, "incarnation": 1, "now": t.now, "ticket": "x"} | arguments
    with pytest.raises(BadCall, match=words):
        t.state.join(**given)
    assert t.all_join(0, 1, 2, step=6).id == 1


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(replicas=0), "replicas=0"), (dict(min_replicas=4), "only 3 replicas"), (dict(join=-1), "join=-1"),
        (dict(heartbeat=float("nan")), "heartbeat=nan"), (dict(heartbeat=0.1), "longer than reconnect=0.1"),
        (dict(spares=-1), "spares=-1"), (dict(first="3"), "first='3'"),
    ],
)  # fmt: skip
def test_rules_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadCall, match=words):
        QuorumState(**({"replicas": 3} | options))


def test_replicas_of_different_code_do_not_train_together() -> None:
    t = Turned(2)
    t.state.register(0, 0, 2, t.now, "a", code="v1")
    with pytest.raises(WrongVersion, match="ranks of one replica run different code: v1, v2"):
        t.state.register(0, 1, 2, t.now, "b", code="v2")
    t.state.register(0, 1, 2, t.now, "b", code="v1")
    with pytest.raises(WrongVersion, match=r"replica 1 runs other code \(v2\) than replicas \[0\] \(v1\)"):
        t.state.register(1, 0, 1, t.now, "c", code="v2")
    t.state.dead(0, t.now)
    t.state.register(1, 0, 1, t.now, "c", code="v2")  # nobody is left of the old


def test_sources_of_a_state_are_spread_over_the_healthy() -> None:
    members = tuple(Member(r, 1, 9 if r < 4 else 0, 3 if r < 4 else 0) for r in range(6))
    q = Quorum(4, 9, 3, members)
    assert [[q.source_of(r, rank).replica for rank in range(4)] for r in (4, 5)] == [[0, 1, 2, 3], [1, 2, 3, 0]]
    assert {q.source_of(4, 2, attempt).replica for attempt in range(4)} == {0, 1, 2, 3}
    with pytest.raises(ValueError, match="replica 1 is not recovering"):
        q.source_of(1, 0)
    assert Quorum.from_json(q.to_json()) == q
