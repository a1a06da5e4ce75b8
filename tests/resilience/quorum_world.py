"""Replicas as a model: what they hold is a text, so that states can be compared. And what must hold of every quorum.

A step's exchange succeeds for a member only if every member of its quorum took part in it. Everything else may happen
at any time: a member finishes and another does not, processes die, stop, wake up much later and go on where they were.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from labkit.resilience.quorum import NoQuorum, OldIncarnation, Quorum, QuorumState

WEIGHTS = {
    "everybody": 30, "join": 6, "enter": 6, "commit": 4, "fail": 3, "die": 2, "supervise": 4, "end": 2, "stop": 1,
    "wake": 2, "time": 6, "long": 2, "save": 1, "ghost": 4, "glitch": 1,
}  # fmt: skip
OPERATIONS = [name for name, weight in WEIGHTS.items() for _ in range(weight)]


@dataclass
class Process:
    """One life of a replica's leader."""

    replica: int
    incarnation: int
    version: tuple[int, int]
    content: str
    alive: bool = True
    stopped: bool = False
    failed: bool = False
    joined: bool = False
    shrink: bool = False
    quorum: Quorum | None = None
    entered: bool = False

    def give_up(self, failed: bool = True) -> None:
        self.quorum, self.entered, self.failed = None, False, failed


@dataclass
class World:
    """replicas of `state`, and what has happened. explicit: whether replicas tell their lineage."""

    replicas: int = 4
    min_replicas: int = 1
    explicit: bool = True
    now: float = 100.0
    saved: tuple[tuple[int, int], str] = ((0, 0), "built")
    contents: dict[tuple[int, int], str] = field(default_factory=lambda: {(0, 0): "built"})
    took_part: dict[tuple[int, int], set[tuple[int, int]]] = field(default_factory=dict)
    formed: list[Quorum] = field(default_factory=list)
    members_live: list[int] = field(default_factory=list)
    commits: int = 0

    def __post_init__(self) -> None:
        self.state = QuorumState(
            self.replicas, min_replicas=self.min_replicas, join=2.0, first=3.0, heartbeat=1.0, reconnect=0.1
        )
        self.ghosts: list[Process] = []
        self.processes = [self.new(r) for r in range(self.replicas)]
        self.settle()

    def new(self, replica: int) -> Process:
        """A process that has checked in and beats; it loads what was saved, or is built."""
        self.state.register(replica, 0, 1, self.now, ("check in", replica))
        incarnation = self.state.slots[replica].incarnation
        self.state.heard(replica, incarnation, ("rank", 0), self.now)
        version, content = self.saved if self.explicit else ((0, 0), "built")
        return Process(replica, incarnation, version, content)

    def run(self, operations: list[tuple[str, int, int]]) -> None:
        for name, replica, extra in operations:
            getattr(self, name)(self.processes[replica % self.replicas], extra)
            self.settle()

    def random(self, seed: int, count: int) -> None:
        draw = Random(seed)
        self.run([(draw.choice(OPERATIONS), draw.randrange(99), draw.randrange(8)) for _ in range(count)])

    # -- what may happen -----------------------------------------------------------------------------------------

    def everybody(self, _: Process, extra: int) -> None:
        """All that can do the next thing of a step do it; which thing, and whether one falls out, says `extra`."""
        what = (self.join, self.enter, self.commit)[extra % 3]
        for p in self.processes[extra > 5 :]:
            what(p, 1)
            self.settle()

    def join(self, p: Process, extra: int) -> None:
        if not p.alive or p.stopped or p.joined or p.quorum is not None:
            return
        p.joined, p.shrink = True, p.failed and extra % 2 == 0
        until = self.now + 1.5 if extra == 7 else float("inf")
        self.call(
            p, self.state.join, p.version[0], self.now, p, failed=p.failed, shrink_only=p.shrink, until=until,
            lineage=p.version[1] if self.explicit else None,
        )  # fmt: skip

    def enter(self, p: Process, _: int) -> None:
        q = p.quorum
        if not p.alive or p.stopped or q is None or p.entered:
            return
        if not q.is_healthy(p.replica):
            sources = [
                s for s in self.processes
                if s.alive and s.version == q.version and any(m.replica == s.replica for m in q.healthy)
            ]  # fmt: skip
            if not sources:
                return p.give_up()
            p.version, p.content = sources[0].version, sources[0].content
        p.entered = True
        self.took_part.setdefault((q.id, q.step), set()).add((p.replica, p.incarnation))

    def commit(self, p: Process, _: int) -> None:
        q = p.quorum
        if not p.alive or p.stopped or q is None or not p.entered or self.took_part[q.id, q.step] != q.lives:
            return
        trained = ",".join(str(m.replica) for m in q.healthy)
        p.version, p.content = (q.step + 1, q.id), f"{hash(p.content)} {q.step}:{trained}"
        known = self.contents.setdefault(p.version, p.content)
        assert known == p.content, f"two states are called {p.version}"
        self.commits += 1
        p.give_up(failed=False)

    def fail(self, p: Process, _: int) -> None:
        if p.alive and not p.stopped and p.quorum is not None:
            p.give_up()

    def die(self, p: Process, _: int) -> None:
        if p.alive:
            p.alive = p.joined = False
            self.state.withdraw(p)
            self.state.closed(p.replica, p.incarnation, ("rank", 0), self.now)

    def supervise(self, p: Process, extra: int) -> None:
        if p.alive:
            return
        if extra % 3 == 0:
            self.state.dead(p.replica, self.now, p.incarnation)
        else:
            self.state.begin(p.replica, self.now)
            self.settle()
            if extra % 3 == 1:
                self.processes[p.replica] = self.new(p.replica)

    def end(self, p: Process, _: int) -> None:
        if p.stopped:
            self.ghosts.append(p)  # it was not killed first: it may wake up and go on
            self.state.begin(p.replica, self.now)
            self.settle()
            self.processes[p.replica] = self.new(p.replica)

    def ghost(self, _: Process, extra: int) -> None:
        """One that was stopped while its replica began anew goes on where it was."""
        if self.ghosts:
            p = self.ghosts[extra % len(self.ghosts)]
            p.stopped = False
            (self.join, self.enter, self.commit, self.fail)[extra % 4](p, extra)

    def glitch(self, p: Process, _: int) -> None:
        """The connection of a heartbeat breaks, though nobody died."""
        self.state.closed(p.replica, p.incarnation, ("rank", 0), self.now)

    def stop(self, p: Process, _: int) -> None:
        p.stopped = p.alive

    def wake(self, p: Process, _: int) -> None:
        p.stopped = False

    def time(self, _: Process, extra: int) -> None:
        self.now += 0.04 * (extra + 1)
        for p in self.processes:
            if p.alive and not p.stopped:
                self.call(p, self.state.heard, ("rank", 0), self.now)

    def long(self, p: Process, extra: int) -> None:
        for _ in range(10):
            self.time(p, extra)
            self.settle()

    def save(self, p: Process, _: int) -> None:
        if p.alive and not p.stopped:
            self.saved = (p.version, p.content)

    def call(self, p: Process, function: Any, *arguments: Any, **options: Any) -> None:
        try:
            function(p.replica, p.incarnation, *arguments, **options)
        except OldIncarnation:
            p.alive = p.joined = False

    # -- what must hold ------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let the state do what is due, check every quorum, and hand it out."""
        before = self.state.latest
        asked = {s.replica: (s.join, s.since) for s in self.state.slots if s.join is not None}
        self.state.tick(self.now)
        answers = self.state.take()
        found = [q for _, q in answers if isinstance(q, Quorum)]
        for ticket, result in answers:
            if isinstance(ticket, Process):
                ticket.joined = False
                if isinstance(result, Quorum):
                    ticket.quorum = result
                    assert result.member(ticket.replica).incarnation == ticket.incarnation
                elif isinstance(result, OldIncarnation):
                    ticket.alive = False
                else:
                    assert isinstance(result, NoQuorum)
        if found:
            assert all(q is found[0] for q in found), "one round, one quorum"
            assert len(found) == len(found[0].members)
            self.check(found[0], before, asked)
            self.formed.append(found[0])
        self.check_rest()

    def check(self, q: Quorum, before: Quorum | None, asked: dict[int, Any]) -> None:
        joins = [asked[m.replica][0] for m in q.members]  # whoever is in it had asked for it
        processes = [join.ticket for join in joins]
        assert len(q.members) >= self.min_replicas
        assert all(p.alive for p in processes)
        assert len({p.content for p in processes if q.is_healthy(p.replica)}) == 1, "healthy ones hold one state"
        assert q.healthy and q.version == max(m.version for m in q.members)
        if before is None:
            return
        retried = any(j.failed or j.version[0] <= before.step for j in joins)
        if q.id == before.id:
            assert q.lives == before.lives and q.step > before.step and not q.recovering and not retried
        else:
            assert q.id > before.id
        slots = [s for s in self.state.slots if s.phase == "live" and (s.replica, s.incarnation) in before.lives]
        left = [s for s in slots if s.replica not in q.replicas]
        since = [asked[s.replica][1] for s in slots if s.replica in q.replicas]
        if slots:
            assert since, "newcomers formed a quorum beside members that live"
        if left:
            assert self.now - min(since) >= 2.0, f"{[s.replica for s in left]} were not waited for"
        if any(j.shrink_only for j in joins if (j.ticket.replica, j.ticket.incarnation) in before.lives):
            members = [s for s in slots if s.replica in q.replicas]
            assert q.lives <= before.lives or len(members) < self.min_replicas
        held = [s.holds for s in self.state.slots if s.phase == "live" and s.join is None and s.holds is not None]
        assert all(version <= q.version for version in held), "a living replica holds more"

    def check_rest(self) -> None:
        """Nobody waits without a reason, or longer than allowed."""
        state, latest = self.state, self.state.latest
        living = [s for s in state.slots if s.phase == "live"]
        members = [s for s in living if latest is not None and (s.replica, s.incarnation) in latest.lives]
        asking = [s for s in living if s.asks]
        if not asking or len(asking) < self.min_replicas:
            return
        held = [s.holds for s in living if s.join is None and s.holds is not None]
        best = max(s.join.version for s in asking)
        if members:
            begun = [s for s in members if s.asks]
            free = all(version <= max((s.join.version for s in begun), default=best) for version in held)
            assert not (begun and len(begun) == len(members) and free), "a full round has not formed"
            assert not (begun and free) or self.now - min(s.since for s in begun) < 2.0
        elif all(version <= best for version in held):
            assert self.now - min(s.since for s in asking) < 3.0
