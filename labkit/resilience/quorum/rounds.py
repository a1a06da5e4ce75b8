"""When a quorum is formed, of whom, and who is waited for: one function of what is known, without side effects.

A *member* is a replica of the latest quorum whose life goes on. A round is in one of two cases.

*Members live.* The round begins when the first of them joins, and is full when all of them have. A full round forms
at once: this is the fast path, it waits for no clock. One that is not full waits for the missing members, at most
`join` seconds from its beginning: a member whose heartbeat goes on while it never joins is left out then. Others that
have joined are added when the round forms. They never begin a round: while members are in the middle of a step, a
newcomer waits for the next one, so that no second quorum is formed beside a quorum that is in use.

*No member lives*: the start, or all died. Then everyone who has asked forms it, and everyone who may come is waited
for, at most `first` seconds from the first join: living replicas, incarnations that were begun, and, if there has
never been a quorum, those of which nothing was heard.

In both cases: no quorum has fewer than `min_replicas` members. If a member asks for `shrink_only`, only members are
taken, unless they alone would be fewer than `min_replicas`. And a state is not thrown away: while a living replica
that has not joined may hold a higher version than all who have, the round waits for it, without limit: until it
joins, or dies, or its supervisor ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .membership import Quorum
from .rules import Rules
from .slots import ABSENT, BEGUN, LIVE, Slot


@dataclass(frozen=True)
class Verdict:
    """members: who forms the quorum now, or None. until: when to look again if nothing happens. why: in words."""

    members: tuple[Slot, ...] | None = None
    until: float = float("inf")
    why: str = ""
    since: float = 0.0


def decide(slots: Sequence[Slot], latest: Quorum | None, rules: Rules, now: float) -> Verdict:
    """What follows from the joins so far."""
    living = [s for s in slots if s.phase == LIVE]
    asking = [s for s in living if s.asks]
    if not asking:
        return Verdict(why="nobody has joined")
    members = [s for s in living if latest is not None and (s.replica, s.incarnation) in latest.lives]
    begun = [s for s in members if s.asks] if members else asking
    if not begun:
        assert latest is not None
        return Verdict(
            why=f"{_names(members)} in step {latest.step} of quorum {latest.id}; newcomers wait for the next"
        )
    absent = [s for s in members if not s.asks] if members else _may_come(slots, latest, rules)
    since = min(s.since for s in begun if s.since is not None)
    end = since + (rules.join if members else rules.first)
    if absent and now < end:
        return Verdict(until=end, since=since, why=f"{_names(absent)} still to join, {end - now:.3g} s are left")
    chosen = asking
    if members and len(begun) >= rules.min_replicas and any(s.join.shrink_only for s in begun if s.join):
        chosen = begun
    elif members and not absent:
        last = max(s.join.at for s in begun if s.join) + rules.linger
        coming = [s for s in living if s.checked_in and s.told is None and s.join is None and s not in members]
        if coming and now < last:
            return Verdict(until=last, since=since, why=f"{_names(coming)} about to join")
    if len(chosen) < rules.min_replicas:
        return Verdict(since=since, why=f"{_count(chosen)} joined, min_replicas is {rules.min_replicas}")
    best = max(s.join.version for s in chosen if s.join)
    holders = [s for s in living if s.join is None and s.holds is not None and s.holds > best]
    if holders:
        return Verdict(since=since, why=f"{_names(holders)} alive with the state of a later step, and not joined yet")
    return Verdict(tuple(sorted(chosen, key=lambda s: s.replica)), since=since)


def _may_come(slots: Sequence[Slot], latest: Quorum | None, rules: Rules) -> list[Slot]:
    phases = (BEGUN, LIVE) if latest is not None else (ABSENT, BEGUN, LIVE)
    return [s for s in slots[: rules.replicas] if s.phase in phases and not s.asks]


def _count(slots: Sequence[Slot]) -> str:
    return f"{len(slots)} {'has' if len(slots) == 1 else 'have'}"


def _names(slots: Sequence[Slot]) -> str:
    numbers = ", ".join(str(s.replica) for s in slots)
    return f"replica {numbers} is" if len(slots) == 1 else f"replicas {numbers} are"
