"""Which life of each replica counts, and whether it lives: begin and death, signs of life, check-in."""

from __future__ import annotations

from typing import Any

from .check_in import CheckIn, Waiting
from .errors import BadCall, NoQuorum, OldIncarnation, Trouble, WrongVersion
from .membership import Quorum
from .rounds import Verdict
from .rules import Rules
from .slots import ABSENT, DEAD, LEFT, LIVE, LOST, Slot, Source
from .spares import Spares

Result = dict[str, Any] | Quorum | Trouble


class Lives:
    """The part of `QuorumState` that knows nothing of rounds. answers: see there."""

    def __init__(self, rules: Rules):
        self.rules = rules
        self.slots = [Slot(r) for r in range(rules.numbers)]
        self.answers: list[tuple[Any, Result]] = []
        self.verdict = Verdict(why="nobody has joined")
        self.code = ""
        self._check_ins = [CheckIn() for _ in self.slots]
        self.spares = Spares(self.answers)

    def slot(self, replica: int) -> Slot:
        """The slot of this number. BadCall if there is none."""
        if type(replica) is not int or not 0 <= replica < len(self.slots):
            raise BadCall(f"replica {replica!r}: the service was started for 0 to {len(self.slots) - 1}")
        return self.slots[replica]

    def take(self) -> list[tuple[Any, Result]]:
        """The answers that have come about since the last call."""
        answers = list(self.answers)
        self.answers.clear()  # the same list: the spares have it too
        return answers

    # -- lives that begin and end --------------------------------------------------------------------------------

    def begin(self, replica: int, now: float) -> int:
        """Open the next incarnation; the one before is dead at once. Returns its number."""
        slot = self.slot(replica)
        self._end(slot, f"incarnation {slot.incarnation} of replica {replica} is over: the next one has begun")
        slot.renew()
        slot.called = now
        self._check_ins[replica] = CheckIn()
        return slot.incarnation

    def dead(self, replica: int, now: float, incarnation: int | None = None) -> bool:
        """Its supervisor has seen this life end. Whether that is news: an older life may be reported late."""
        slot = self.slot(replica)
        if incarnation is not None and incarnation != slot.incarnation or slot.phase == DEAD:
            return False
        self.end(slot, "declared dead")
        return True

    def end(self, slot: Slot, why: str) -> None:
        """This life is over, whatever it does: it is told so at its next call."""
        slot.phase, slot.why = DEAD, why
        self._end(slot, slot.over())

    def leave(self, replica: int, incarnation: int) -> None:
        """This life has finished; nobody waits for it."""
        slot = self.slot(replica)
        slot.check(incarnation)
        self._end(slot, f"replica {replica} has left")
        slot.phase, slot.why = LEFT, "finished"

    def _end(self, slot: Slot, why: str) -> None:
        error = OldIncarnation(why)
        if slot.join is not None:
            self.answers.append((slot.join.ticket, error))
            slot.join = slot.since = None
        check_in = self._check_ins[slot.replica]
        if not check_in.complete:
            self.answers += [(call.ticket, error) for call in check_in.calls.values()]
            self._check_ins[slot.replica] = CheckIn()
        slot.heard.clear()
        slot.closed.clear()

    def agree(self, replica: int, code: str) -> None:
        """Raise WrongVersion if others that live run other code. The first that says what it runs decides."""
        if not code:
            return
        others = [s.replica for s in self.slots if s.replica != replica and s.phase == LIVE]
        if self.code and code != self.code and others:
            raise WrongVersion(
                f"replica {replica} runs other code ({code}) than replicas {others} ({self.code}): "
                "start it from the same sources with the same configuration"
            )
        self.code = code

    # -- signs of life -------------------------------------------------------------------------------------------

    def heard(self, replica: int, incarnation: int, source: Source, now: float, age: float = 0.0) -> None:
        """A source of this life gave a sign of life `age` seconds ago (by the clock of who counted them)."""
        slot = self.slot(replica)
        slot.check(incarnation)
        if isinstance(age, bool) or not isinstance(age, int | float) or not 0 <= age < float("inf"):
            raise BadCall(f"a sign of life {age!r} seconds ago: needs a number, 0 or more")
        slot.heard[source] = now - age
        slot.closed.pop(source, None)
        self.revive(slot, now)

    def closed(self, replica: int, incarnation: int, source: Source, now: float) -> None:
        """The connection on which this source beats is closed: it has `reconnect` seconds to come back."""
        slot = self.slots[replica]
        if slot.incarnation == incarnation and source in slot.heard:
            slot.closed.setdefault(source, now)

    def rest(self, replica: int, incarnation: int, source: Source, now: float) -> None:
        """This source stops beating, and says so."""
        slot = self.slot(replica)
        slot.check(incarnation)
        slot.heard.pop(source, None)
        slot.closed.pop(source, None)
        slot.called = now

    def revive(self, slot: Slot, now: float) -> None:
        """One that was not counted as living lives, if nothing speaks against it."""
        if slot.phase == LEFT and slot.join is None:
            return  # a heartbeat that has not stopped yet
        if slot.phase != LIVE and now < slot.ends(self.rules.heartbeat, self.rules.reconnect):
            slot.phase, slot.why = LIVE, ""

    def lose(self, now: float) -> None:
        """Who has been silent for too long is lost."""
        for slot in self.slots:
            if slot.phase == LIVE and now >= slot.ends(self.rules.heartbeat, self.rules.reconnect):
                slot.phase, slot.since = LOST, slot.since if slot.join is not None else None
                slot.why = "its connection closed" if slot.closed else f"silent for {slot.silence(now):.3g} s"

    def away(self, seconds: float, now: float) -> None:
        """The service itself did not run for so long: nobody else can be blamed for that time."""
        for slot in self.slots:
            for times in (slot.heard, slot.closed):
                for source, at in times.items():
                    times[source] = min(now, at + seconds)
            slot.called = min(now, slot.called + seconds)
            if slot.since is not None:
                slot.since = min(now, slot.since + seconds)

    # -- check-in ------------------------------------------------------------------------------------------------

    def register(
        self, replica: int, rank: int, ranks: int, now: float, ticket: Any, *, data: dict[str, Any] | None = None,
        count: int = 1, incarnation: int | None = None, code: str = "", until: float = float("inf"),
    ) -> None:  # fmt: skip
        """Ranks `rank` to `rank + count - 1` of a replica of `ranks` check in; answered when all of them have."""
        slot = self.slot(replica)
        whole = all(type(n) is int for n in (rank, ranks, count))
        if not whole or not (ranks >= 1 and count >= 1 and 0 <= rank <= ranks - count):
            raise BadCall(f"register(rank={rank!r}, ranks={ranks!r}): needs whole numbers with 0 <= rank < ranks")
        self.agree(replica, code)
        again = self._check_ins[replica].complete and slot.phase != DEAD and incarnation is None
        if slot.phase == ABSENT or again:
            self.begin(replica, now)  # nobody supervises: who checks in again was started again
        slot.check(slot.incarnation if incarnation is None else incarnation)
        check_in = self._check_ins[replica]
        if check_in.complete:
            raise BadCall(f"all ranks of incarnation {incarnation} of replica {replica} have checked in already")
        old = check_in.add(Waiting(ticket, rank, count, data or {}, until, code), ranks)
        if old is not None:
            self.answers.append((old.ticket, OldIncarnation(f"another process has checked in as rank {rank}")))
        if check_in.full:
            check_in.complete = slot.checked_in = True
            slot.called = now
            self.revive(slot, now)
            peers = check_in.peers() if any(c.count == 1 for c in check_in.calls.values()) else []
            for call in check_in.calls.values():
                found = {"incarnation": slot.incarnation, "peers": peers if call.count == 1 else []}
                self.answers.append((call.ticket, found))

    # -- callers that wait ---------------------------------------------------------------------------------------

    def withdraw(self, ticket: Any) -> None:
        """The caller of a waiting call is gone."""
        for slot, check_in in zip(self.slots, self._check_ins, strict=True):
            if slot.join is not None and slot.join.ticket == ticket:
                slot.join = slot.since = None
            if not check_in.complete:
                for call in [c for c in check_in.calls.values() if c.ticket == ticket]:
                    check_in.remove(call)
        self.spares.withdraw(ticket)

    def expire(self, now: float) -> None:
        """Tell the callers of `register` and of `standby` whose time is over."""
        for slot, check_in in zip(self.slots, self._check_ins, strict=True):
            late = [] if check_in.complete else [c for c in check_in.calls.values() if now >= c.until]
            for call in late:
                text = f"{check_in.missing()} of replica {slot.replica} did not check in"
                self.answers.append((call.ticket, NoQuorum(text)))
            for call in late:
                check_in.remove(call)
        self.spares.expire(now)

    def due(self) -> float:
        """When the next life is lost, or the next caller's time is over."""
        waits = [c.until for check in self._check_ins if not check.complete for c in check.calls.values()]
        times = (self.rules.heartbeat, self.rules.reconnect)
        return min([self.spares.due(), *waits, *(s.ends(*times) for s in self.slots if s.phase == LIVE)])
