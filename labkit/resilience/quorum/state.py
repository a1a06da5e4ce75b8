"""The quorum service without sockets, processes and clocks: every call says what time it is.

`now` is any clock that does not run backwards; clocks of other machines play no part, replicas never send a time.
Calls that wait (`register`, `join`, `spares.standby`) take a *ticket*, anything; their answers are put into `answers`
as (ticket, result or error), maybe by a later call. Call `tick(now)` after every call and when `deadline()` has come.

What is handed out, and what that promises (proved by tests that try all orders of events they can reach):
- A round forms one quorum, and every member gets the same one. Ids grow; the same id twice means: the same lives,
  all healthy, nothing failed, a later step. So whoever joins after a failed exchange gets a new id, whoever is in it.
- There is one latest quorum. A new one takes it over from *all* living members: each of them has joined again (and
  has given the old one up by that), or was waited for and is left out. One that is left out holds a quorum that can
  do no harm: its group's key has the old id, and the members it would need have left that group. It can only finish a
  step for which it had everything before; that state is a branch with a version of its own, which `healthy` never
  mixes up with another of the same step. One that needs nobody else to finish asks `confirm` first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from .errors import BadCall, NoQuorum
from .lives import Lives
from .membership import Member, Quorum
from .rounds import decide
from .rules import Rules
from .slots import LIVE, Join, Slot


class QuorumState(Lives):
    """replicas and the other options: see `Rules`. first_id: of the first quorum, above all of an earlier service."""

    def __init__(self, replicas: int, *, first_id: int = 1, **options: Any):
        super().__init__(Rules(replicas, **options))
        self.latest: Quorum | None = None
        self.next_id = first_id
        self.formed = self.unchanged = 0  # rounds, and those of them that kept the id
        self._last: list[int] = []  # of each round since the last one without a failed try, who joined last

    def join(
        self, replica: int, incarnation: int, step: int, now: float, ticket: Any, *, lineage: int | None = None,
        failed: bool = False, shrink_only: bool = False, data: dict[str, Any] | None = None, code: str = "",
        until: float = float("inf"),
    ) -> None:  # fmt: skip
        """The leader asks with whom to train `step`. A second question of the same life replaces the first."""
        slot = self.slot(replica)
        slot.check(incarnation)
        for name, value in (("step", step), ("lineage", 0 if lineage is None else lineage)):
            if type(value) is not int or value < 0:
                raise BadCall(f"join({name}={value!r}): needs a whole number, 0 or more")
        self.agree(replica, code)
        if slot.join is not None:
            self.answers.append((slot.join.ticket, NoQuorum(f"replica {replica} has joined again, with another call")))
        version = slot.version_of(step, lineage)
        self.next_id = max(self.next_id, version[1] + 1)  # a checkpoint of an earlier service may have come further
        slot.join = Join(ticket, now, until, version, bool(failed), bool(shrink_only), data or {})
        slot.since = now if slot.since is None else slot.since
        slot.told = slot.holds = version
        slot.called = now
        self.revive(slot, now)

    def tick(self, now: float) -> None:
        """Do what is due: lose who is silent, tell who has waited too long, form a quorum if the time has come."""
        self.lose(now)
        while (verdict := decide(self.slots, self.latest, self.rules, now)).members is not None:
            late = self._holds_up(verdict.members)
            if late is None:
                self._form(verdict.members, verdict.since, now)
            else:
                self.end(late, f"it held up {len(self._last)} rounds in a row")
                self._last.clear()
        self.verdict = verdict
        for slot in self.slots:
            if slot.join is not None and now >= slot.join.until:
                waited = now - slot.join.at
                text = f"no quorum for replica {slot.replica} within {waited:.3g} s: {verdict.why}"
                self.answers.append((slot.join.ticket, NoQuorum(text)))
                slot.join = None
        self.expire(now)

    def deadline(self) -> float:
        """When `tick` is due if nothing else happens."""
        return min([self.verdict.until, self.due(), *(s.join.until for s in self.slots if s.join is not None)])

    def confirm(self, replica: int, incarnation: int, quorum: int) -> bool:
        """Whether `quorum` is the latest, and this life a member of it that counts as living."""
        slot = self.slot(replica)
        slot.check(incarnation)
        q = self.latest
        return q is not None and q.id == quorum and (replica, incarnation) in q.lives and slot.phase == LIVE

    def _holds_up(self, chosen: Sequence[Slot]) -> Slot | None:
        """Whom the others are to be rid of before this round forms: never the only one that holds the best state."""
        joins = {slot.replica: slot.join for slot in chosen if slot.join is not None}
        best = max(join.version for join in joins.values())
        if self.latest is None or best > self.latest.version or not any(join.failed for join in joins.values()):
            self._last.clear()
            return None
        self._last.append(max(joins, key=lambda replica: joins[replica].at))
        if not self.rules.evict or len(self._last) < self.rules.evict or len(chosen) <= self.rules.min_replicas:
            return None
        replica, _ = Counter(reversed(self._last)).most_common(1)[0]  # of two with as many, the later one
        others = [join.version for r, join in joins.items() if r != replica]
        return self.slot(replica) if replica in joins and others and max(others) == best else None

    def _form(self, chosen: tuple[Any, ...], since: float, now: float) -> None:
        joins: list[Join] = [slot.join for slot in chosen]
        step, lineage = max(join.version for join in joins)
        members = tuple(
            Member(slot.replica, slot.incarnation, *join.version, join.data)
            for slot, join in zip(chosen, joins, strict=True)
        )
        latest = self.latest
        lives = frozenset((m.replica, m.incarnation) for m in members)
        keep = (
            latest is not None and lives == latest.lives and not any(join.failed for join in joins)
            and all(m.version == (step, latest.id) for m in members) and step > latest.step
        )  # fmt: skip
        number = latest.id if keep and latest is not None else self.next_id
        self.next_id = max(self.next_id, number + 1)
        self.latest = quorum = Quorum(number, step, lineage, members, now - since)
        self.formed += 1
        self.unchanged += keep
        for slot, join in zip(chosen, joins, strict=True):
            slot.quorum, slot.join, slot.since, slot.called = quorum, None, None, now
            slot.holds = max(join.version, quorum.version)
            self.answers.append((join.ticket, quorum))

    def status(self, now: float) -> dict[str, Any]:
        """What is known, as plain data. "silent" is in seconds before now."""
        rows = [
            {
                "replica": s.replica, "incarnation": s.incarnation, "phase": s.phase, "why": s.why,
                "step": None if s.told is None else s.told[0], "joined": s.join is not None,
                "silent": None if s.phase != LIVE else s.silence(now), "checked_in": s.checked_in,
            }
            for s in self.slots
        ]  # fmt: skip
        return {
            "replicas": rows, "quorum": None if self.latest is None else self.latest.to_json(),
            "waiting": self.verdict.why, "formed": self.formed, "unchanged": self.unchanged,
            "rules": self.rules.to_json(),
        }  # fmt: skip
