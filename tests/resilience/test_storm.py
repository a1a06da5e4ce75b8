"""Plans of failures: the same from the same seed, possible in their world, and all there is to strike is struck."""

from __future__ import annotations

import pytest

from labkit import Drop, Hang, Kill, Raise
from labkit.resilience.storm import RETURN, SHAPES, STEP, Strike, draw, table
from labkit.wire.errors import RefusedError
from labkit.wire.faults import check_faults

PLANS = [draw(seed) for seed in range(500)]


def test_a_seed_is_a_plan() -> None:
    assert [draw(seed) for seed in range(500)] == PLANS
    assert len({p.strikes for p in PLANS}) > 400


def test_plans_are_possible_in_their_world() -> None:
    for plan in PLANS:
        assert (
            2 <= plan.replicas <= 4
            and plan.replicas * plan.ranks <= 6
            and (plan.ranks == 1) == (plan.inside == "plain")
        )
        assert check_faults(plan.faults(), plan.replicas * plan.ranks) == plan.faults() and plan.strikes
        assert all(1 <= s.nth and 0 <= s.thaw <= 1.0 for s in plan.strikes)
        assert {f.rank // plan.ranks for f in plan.faults()} == {s.replica for s in plan.strikes}


def test_one_replica_is_left_untouched_unless_all_are_lost() -> None:
    for plan in PLANS:
        lost = {s.replica for s in plan.strikes if s.what != "freeze"}
        assert len(lost) < plan.replicas or plan.shape == "all", plan


def test_everything_is_struck() -> None:
    counts = table(PLANS)
    assert set(counts["shape"]) == set(SHAPES) and min(counts["shape"].values()) > 30
    assert set(counts["what"]) == {"kill", "hang", "freeze", "raise", "drop"}
    assert set(counts["at"]) == {*STEP, *RETURN, "serve", "birth", "message"} and min(counts["at"].values()) > 10
    assert {k.split()[-1] for k in counts["inside"]} == {"plain", "fsdp", "tp"}


def test_all_but_one_means_all_but_one() -> None:
    some = [draw(seed, ["all but one"]) for seed in range(50)]
    assert all(len({s.replica for s in p.strikes}) == p.replicas - 1 for p in some)


def test_the_message_that_is_dropped_is_the_last_of_a_step() -> None:
    for plan in (draw(seed, ["branch", "twin"]) for seed in range(40)):
        lost, then = plan.strikes  # with two replicas a rank sends twice in a step, and asks once for a quorum
        assert (plan.replicas, plan.ranks) == (2, 1) and lost.nth == 2 * (then.nth - 1) and then.at == "quorum"
        assert lost.replica == then.replica and then.nth < plan.steps


def test_the_source_is_the_one_that_the_quorum_names() -> None:
    from labkit.resilience.quorum import Member, Quorum

    for seed in range(50):
        plan = draw(seed, ["source"])
        lost, giver = plan.strikes
        members = tuple(Member(r, 1, 0 if r == lost.replica else 5) for r in range(plan.replicas))
        assert Quorum(1, 5, 0, members).source_of(lost.replica, giver.rank).replica == giver.replica


def test_strikes_become_faults() -> None:
    assert Strike("kill", 1, 1, "vote", 3).fault(2) == Kill(3, at="vote", nth=3)
    assert Strike("hang", 0, 1, "commit").fault(2) == Hang(1, at="commit")
    assert Strike("raise", 2, 0, "birth").fault(2) == Raise(4)
    assert Strike("drop", 1, 0, "message", 9).fault(1) == Drop(1, message=9)
    (plan,) = [p for p in (draw(s, ["freeze"]) for s in range(1))]
    (key,), (thaw,) = plan.thaws().keys(), plan.thaws().values()
    (fault,) = plan.faults()
    assert key == f"{fault.rank}: fault: Hang at {fault.at!r} number {fault.nth}" and 0 < thaw <= 1


def test_strikes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(RefusedError, match="what='melt'"):
        Strike("melt", 0, 0, "vote")
    with pytest.raises(RefusedError, match="a drop hits a message"):
        Strike("drop", 0, 0, "vote")
    with pytest.raises(RefusedError, match="a drop hits a message"):
        Strike("kill", 0, 0, "message", 3)
