"""Seeded logs of runs of FT-HSDP, sound or spoilt in one way, and what an audit of them finds.

Lines are those of `labkit.resilience.audit`: its own audit finds sound logs clean, and something in each spoilt one.
Nothing in these runs is given up once it is committed: every commit is in the history of the final state.
"""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.grading.checks.fresh import number_from
from labkit.grading.checks.student import Evidence, Student
from labkit.resilience.audit.log import checksum
from labkit.resilience.audit.records import Commit, Fetch, Line, Start, Vote

KINDS = ("no vote", "diverged", "twice", "skipped")
Found = dict[str, int | None]


class _Run:
    """A run that writes its logs. spoil: one of KINDS or "", at the first chance from step `at` on."""

    def __init__(self, random: Random, replicas: int, ranks: int, batch: int, spoil: str, at: int):
        self.random, self.ranks, self.batch, self.spoil, self.at = random, ranks, batch, spoil, at
        self.lines: dict[tuple[int, int], list[Line | str]] = {
            (r, i): [] for r in range(replicas) for i in range(ranks)
        }
        self.life = [1] * replicas
        self.positions = [[0] * replicas for _ in range(replicas)]  # as each replica has them
        self.state = [[f"seed-{i}" for i in range(ranks)] for _ in range(replicas)]
        self.spoilt: int | None = None
        for r in range(replicas):
            self._start(r)

    def _start(self, r: int) -> None:
        self.positions[r] = [0] * len(self.life)
        for i in range(self.ranks):
            self.state[r][i] = f"seed-{i}"
            self._write(r, i, Start, 0, positions=tuple(self.positions[r]), checksum=self.state[r][i])

    def _write(self, r: int, i: int, kind: Any, step: int, **told: Any) -> None:
        self.lines[r, i].append(kind(step, r, i, self.life[r], **told))

    def again(self, r: int) -> None:
        """Replica r was lost, and begins a new life."""
        self.life[r] += 1
        self._start(r)

    def attempt(self, step: int, quorum: int, members: list[int], healthy: list[int], against: set[tuple[int, int]],
                lost: int | None) -> bool:  # fmt: skip
        """One attempt at a step. against: ranks whose exchange failed; lost: a replica that dies before its votes."""
        for r in members:
            if r not in healthy:
                self._fetch(r, step, quorum, healthy[0])
        good = not against and lost is None
        hit = good and self.spoilt is None and step >= self.at
        victim = self.random.choice(healthy)
        hides = self.random.randrange(self.ranks)
        before = {r: list(self.positions[r]) for r in members}
        for r in members:
            if r == lost:
                self._torn(r, step, quorum)
                continue
            first = before[r][r]
            if hit and r == victim and self.spoil in ("twice", "skipped"):
                first += self.batch if self.spoil == "skipped" else -self.batch
                if first < 0:
                    hit, first = False, before[r][r]
                else:
                    self.spoilt = step
            fed = (first, first + self.batch) if r in healthy else (first, first)
            for i in range(self.ranks):
                yes = good or (r, i) not in against and lost is None
                if hit and self.spoil == "no vote" and (r, i) == (victim, hides):
                    self.spoilt = step
                    if self.random.random() < 0.5:
                        continue  # it never voted
                    yes = False
                self._write(r, i, Vote, step, quorum=quorum, samples=fed, yes=yes, why="" if yes else "PeerLost")
        if not good:
            return False
        contributors = tuple(healthy)
        for r in members:
            after = [p + self.batch * (c in healthy) for c, p in enumerate(before[r])]
            if self.spoilt == step and self.spoil in ("twice", "skipped"):
                after[victim] += self.batch if self.spoil == "skipped" else -self.batch
            self.positions[r] = after
            for i in range(self.ranks):
                parent, mark = self.state[r][i], ""
                if hit and self.spoil == "diverged" and (r, i) == (victim, hides) and len(members) > 1:
                    self.spoilt, mark = step, "another"
                self.state[r][i] = checksum(parent, f"{step} {quorum} {after}", mark)
                if hit and self.spoil == "no vote" and (r, i) == (victim, hides):
                    continue  # the others of its replica applied it
                self._write(r, i, Commit, step, quorum=quorum, contributors=contributors, positions=tuple(after),
                            parent=parent, checksum=self.state[r][i], loss=1 / (step + 1),
                            members=tuple(members))  # fmt: skip
        return True

    def _torn(self, r: int, step: int, quorum: int) -> None:
        """Replica r dies; some of its ranks in the middle of a line."""
        for i in range(self.ranks):
            if self.random.random() < 0.6:
                text = Vote(step, r, i, self.life[r], quorum=quorum, samples=(0, 0), yes=True).text()
                self.lines[r, i].append(text[: self.random.randrange(10, 60)])

    def _fetch(self, r: int, step: int, quorum: int, source: int) -> None:
        self.positions[r], self.state[r] = list(self.positions[source]), list(self.state[source])
        for i in range(self.ranks):
            self._write(r, i, Fetch, step, quorum=quorum, source=source, positions=tuple(self.positions[r]),
                        checksum=self.state[r][i], nbytes=1 << 20)  # fmt: skip


def make_log(seed: int, replicas: int, ranks: int, steps: int, spoil: str) -> tuple[list[str], Found]:
    """The lines of all files of a run, one after the other, and for each of KINDS the first step at which it happened.

    At most one replica is away at a time. The line that a replica was at when it died may be torn.
    """
    random = Random(seed)
    run = _Run(random, replicas, ranks, random.choice((2, 4, 8)), spoil, random.randrange(2, steps - 3))
    quorum, away, behind = 1, None, set[int]()
    step = 0
    while step < steps:
        members = [r for r in range(replicas) if r != away]
        healthy = [r for r in members if r not in behind]
        against: set[tuple[int, int]] = set()
        lost = None
        dice = random.random()
        if dice < 0.15 and replicas > 2 and away is None and not behind and step < steps - 2:
            lost = random.choice(members)
        elif dice < 0.3:
            against = {
                (r, random.randrange(ranks)) for r in random.sample(members, random.randrange(1, len(members) + 1))
            }
        if not run.attempt(step, quorum, members, healthy, against, lost):
            quorum += 1
            away = lost if lost is not None else away
            continue
        behind.clear()
        step += 1
        if away is not None and random.random() < 0.5:
            run.again(away)
            behind, away, quorum = {away}, None, quorum + 1
    found: Found = dict.fromkeys(KINDS)
    if run.spoilt is not None:
        found[spoil] = run.spoilt
    lines = [line if isinstance(line, str) else line.text() for each in run.lines.values() for line in each]
    return lines, found


def some_logs(student: Student, n: int, hard: bool) -> list[tuple[list[str], Found]]:
    """By rank: a log and what is wrong with it. hard: replicas die and come back; else two that stay."""
    random = Random(number_from(student.seed, "logs", n, hard))
    spoils = random.sample(KINDS, 4) if n > 1 else [random.choice(("", *KINDS))]
    spoils += ["", *KINDS]
    replicas = random.choice((3, 4)) if hard else 2
    return [make_log(random.randrange(1 << 40), replicas, 2, 14, spoil) for spoil in spoils[:n]]


def expect_findings(student: Student, run: Evidence, logs: list[tuple[list[str], Found]]) -> None:
    """Every rank found in its log what is wrong there, and nothing else."""
    for rank, (got, (lines, want)) in enumerate(zip(run.results, logs, strict=True)):
        fine = isinstance(got, dict) and set(got) == set(KINDS)
        student.expect(fine, f"Rank {rank} did not return a dictionary with the keys {', '.join(KINDS)}.")
        for kind in KINDS:
            if got[kind] == want[kind]:
                continue
            text = "In the log of rank {rank} ({count} lines) you find {kind!r} {got}, and it is {want}. {why}"
            student.expect(False, text, rank=rank, count=len(lines), kind=kind, got=_at(got[kind]),
                           want=_at(want[kind]), why=_why(kind, got[kind], want[kind], want))  # fmt: skip


def _at(step: Any) -> str:
    return "nowhere" if step is None else f"at step {step!r}"


def _why(kind: str, got: Any, want: int | None, truth: Found) -> str:
    other = next((k for k, step in truth.items() if step is not None and k != kind), None)
    if want is None:
        if other in ("twice", "skipped") and kind in ("twice", "skipped"):
            return f"What happened is {other!r}: compare where the samples begin with where the stream stood."
        return {
            "no vote": "A rank that votes no does not commit, and a killed one writes nothing: that is right.",
            "diverged": "Compare commits of one step *and* one quorum *and* one rank number: each rank has a part of "
                        "the state.",
            "twice": "An attempt that was discarded is no training: its samples are taken again, rightly.",
            "skipped": "A discarded attempt moves no position, and a stream waits for its replica.",
        }[kind]  # fmt: skip
    return {
        "no vote": "Every rank of a replica must have voted yes, in the quorum of the commit, before any rank commits.",
        "diverged": "The same rank number of two replicas wrote different checksums after the same update.",
        "twice": "A committed vote began before the end of what this stream had consumed.",
        "skipped": "A committed vote began behind the end of what this stream had consumed.",
    }[kind] + (" You name a later step: which is the first?" if isinstance(got, int) and got > want else "")
