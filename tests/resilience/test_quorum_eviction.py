"""A replica that holds up the others is ended, and only such a one."""

from __future__ import annotations

import pytest

from labkit.resilience.quorum import OldIncarnation

from .quorum_by_hand import Turned, begun


def tries(t: Turned, count: int, *order: int, step: int = 5) -> None:
    """So many tries of `step` fail; the replicas join in this order, 0.1 s apart."""
    for _ in range(count):
        for r in order:
            t.join(r, step, failed=True, shrink_only=True)
            t.pass_(0.1)


def test_one_that_is_last_in_each_failed_round_is_ended_and_the_others_go_on() -> None:
    t = begun(evict=4)
    tries(t, 3, 0, 2, 1)
    assert t.answers[0].replicas == (0, 1, 2)
    tries(t, 1, 0, 2, 1)
    assert t.answers[0].replicas == t.answers[2].replicas == (0, 2)
    assert isinstance(t.answers[1], OldIncarnation) and "held up 4 rounds" in str(t.answers[1])
    with pytest.raises(OldIncarnation, match="held up 4 rounds"):
        t.join(1, 5, failed=True)
    t.state.begin(1, t.now)
    t.check_in(1)
    t.join(1, 0)
    t.join(0, 6)
    t.join(2, 6)
    assert t.answers[1].replicas == (0, 1, 2), "its next life is as good as any"


def test_most_often_last_counts_and_nobody_is_ended_without_the_rule() -> None:
    t = begun(evict=5)
    for last in (2, 0, 2, 2, 1):
        tries(t, 1, *({0, 1, 2} - {last}), last)
    assert t.answers[0].replicas == (0, 1)
    t = begun(4, evict=4)
    for last in (0, 1, 0, 1):  # of two as bad, the later one
        tries(t, 1, *({0, 1, 2, 3} - {last}), last)
    assert t.answers[0].replicas == (0, 2, 3)
    tries(t, 2, 2, 3, 0)
    assert t.answers[0].replicas == (0, 2, 3), "the count has begun anew"
    t = begun()
    tries(t, 30, 0, 1, 2)
    assert t.answers[0].replicas == (0, 1, 2)


def test_a_commit_by_anybody_begins_the_count_anew() -> None:
    t = begun(evict=3)
    tries(t, 2, 0, 1, 2)
    t.join(0, 6)
    t.join(1, 6)
    t.join(2, 5, failed=True)  # it fetched nothing in time, while the others trained
    assert t.answers[2].replicas == (0, 1, 2)
    tries(t, 2, 0, 1, 2, step=6)
    assert t.answers[2].replicas == (0, 1, 2)


def test_the_only_holder_of_a_state_and_the_last_replicas_are_not_ended() -> None:
    t = Turned(2, evict=2)
    t.check_in(0, 1)
    t.all_join(0, 1, step=0)
    t.all_join(0, step=7)
    t.join(1, 0, failed=True)
    assert t.answers[0].step == 7
    for _ in range(5):
        t.join(1, 0, failed=True)
        t.pass_(0.1)
        t.join(0, 7, failed=True)
        assert t.answers[0].replicas == (0, 1), "with replica 0 all training would be gone"
    t = begun(evict=2, min_replicas=3)
    tries(t, 5, 0, 1, 2)
    assert t.answers[0].replicas == (0, 1, 2)
