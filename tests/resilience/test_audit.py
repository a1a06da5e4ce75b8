"""The audit of a run: a right log passes, and each broken promise is found and named."""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch

from labkit.resilience.audit import AuditFailed, AuditLog, Commit, Fetch, Line, Start, Vote, check, checksum, read
from labkit.resilience.quorum import Member, Quorum
from labkit.wire.errors import RefusedError

BATCH = 4


class Story:
    """Logs of a run as it should be, line by line; a test spoils one of them.

    The state after a step is named by the exchanges behind it, so equal histories are equal states.
    """

    def __init__(self, replicas: int = 2, ranks: int = 2):
        self.replicas, self.ranks = replicas, ranks
        self.lines: list[Line] = []
        self.incarnation = [1] * replicas
        self.state = [""] * replicas  # the exchanges behind it, as text
        self.positions = [(0,) * replicas] * replicas
        self.step = [0] * replicas
        for r in range(replicas):
            self.born(r)

    def place(self, r: int, i: int) -> dict:
        return {"replica": r, "rank": i, "incarnation": self.incarnation[r]}

    def born(self, r: int) -> None:
        self.state[r], self.positions[r], self.step[r] = "", (0,) * self.replicas, 0
        for i in range(self.ranks):
            self.lines.append(Start(0, **self.place(r, i), positions=self.positions[r], checksum=f"{i}:"))

    def die(self, r: int) -> None:
        self.incarnation[r] += 1
        self.born(r)

    def fetch(self, r: int, source: int, quorum: int) -> None:
        self.state[r], self.positions[r], self.step[r] = self.state[source], self.positions[source], self.step[source]
        for i in range(self.ranks):
            self.lines.append(
                Fetch(self.step[r], **self.place(r, i), quorum=quorum, source=source, positions=self.positions[r],
                      checksum=f"{i}:{self.state[r]}", nbytes=100)
            )  # fmt: skip

    def exchange(self, quorum: int, contributors, committing, refusing=(), silent=()) -> None:
        """One exchange: who gave a gradient, who committed it, who voted against it, who died before the vote."""
        n = max(self.step[c] for c in contributors)
        before = self.positions[contributors[0]]
        after = tuple(p + BATCH * (r in contributors) for r, p in enumerate(before))
        for r in [*committing, *refusing]:
            if r in silent:
                continue
            used = (before[r], after[r]) if r in contributors else (before[r], before[r])
            for i in range(self.ranks):
                yes = r in committing
                self.lines.append(
                    Vote(n, **self.place(r, i), quorum=quorum, samples=used, yes=yes, why="" if yes else "late")
                )
        for r in committing:
            was, now = self.state[r], f"{self.state[r]}/{quorum}{''.join(map(str, contributors))}"
            for i in range(self.ranks):
                self.lines.append(
                    Commit(n, **self.place(r, i), quorum=quorum, contributors=tuple(contributors), positions=after,
                           parent=f"{i}:{was}", checksum=f"{i}:{now}", loss=1.0, members=tuple(range(self.replicas)))
                )  # fmt: skip
            self.state[r], self.positions[r], self.step[r] = now, after, n + 1

    def spoil(self, kind: type, **changes) -> None:
        """Change the last line of a kind."""
        at = max(i for i, line in enumerate(self.lines) if type(line) is kind)
        self.lines[at] = dataclasses.replace(self.lines[at], **changes)


def usual(steps: int = 3) -> Story:
    story = Story()
    for n in range(steps):
        story.exchange(n + 1, (0, 1), (0, 1))
    return story


def problems(story: Story, **options) -> str:
    return "\n".join(check(story.lines, batch=BATCH, **options).problems)


def test_a_run_without_failures() -> None:
    report = check(usual().lines, ranks=2, steps=3, batch=BATCH).require()
    assert (report.consumed, report.commits, report.branches) == ((12, 12), 12, [])
    assert [u.samples for u in report.lineage] == [{0: (4 * n, 4 * n + 4), 1: (4 * n, 4 * n + 4)} for n in range(3)]
    assert [(u.committed, u.members) for u in report.lineage] == [((0, 1), (0, 1))] * 3
    assert "nothing wrong" in str(report)


def test_a_replica_that_is_lost_and_comes_back() -> None:
    story = usual()
    story.die(1)
    story.exchange(4, (0,), (0,))
    story.fetch(1, 0, 5)
    story.exchange(5, (0,), (0, 1))  # 1 has weight 0
    story.exchange(5 + 1, (0, 1), (0, 1))
    report = check(story.lines, ranks=2, steps=6, batch=BATCH).require()
    assert report.consumed == (24, 16) and report.fetches == 2 and report.transferred == 200
    assert [u.contributors for u in report.lineage] == [(0, 1)] * 3 + [(0,), (0,), (0, 1)]


def test_a_branch_that_died_is_named_and_harmless() -> None:
    story = usual(1)
    story.exchange(2, (0, 1), (0,), refusing=(1,))  # only 0 has it, and dies
    story.die(0)
    story.exchange(3, (1,), (1,))
    story.fetch(0, 1, 4)
    story.exchange(4, (1,), (0, 1))
    report = check(story.lines, ranks=2, steps=3, batch=BATCH).require()
    assert [(b.step, b.quorum, b.replica, b.incarnation) for b in report.branches] == [(1, 2, 0, 1)]
    assert report.consumed == (4, 12) and report.refused == 2


def test_samples_of_an_exchange_that_another_committed_are_not_used_again() -> None:
    story = usual(1)
    story.exchange(2, (0, 1), (0,), refusing=(1,))
    story.fetch(1, 0, 3)
    story.exchange(3, (0,), (0, 1))
    assert check(story.lines, ranks=2, steps=3, batch=BATCH).require().consumed == (12, 8)
    story.spoil(Vote, samples=(4, 8))  # 1 trained them once more, and nobody counts it
    assert "fed samples (4, 8) and is no contributor" in problems(story)


def test_a_contributor_that_was_killed_before_its_vote_is_believed_and_counted() -> None:
    story = usual(1)
    story.exchange(2, (0, 1), (0,), silent=(1,))
    story.die(1)
    report = check(story.lines, ranks=2, steps=2, batch=BATCH).require()
    assert report.unwitnessed == 1 and report.consumed == (8, 8)


def test_a_run_that_begins_anew_comes_to_the_same_states_and_the_last_time_counts() -> None:
    story = usual(1)
    story.exchange(2, (0, 1), (0, 1))
    story.lines = [x for x in story.lines if not (isinstance(x, Commit) and x.step == 1 and x.rank == 1)]
    story.die(0)  # all ranks 1 were killed before they applied step 1, and all replicas ended
    story.die(1)
    story.exchange(3, (0, 1), (0, 1))
    story.exchange(4, (0, 1), (0, 1))
    same = {"/3": "/1", "/4": "/2"}
    for i, line in enumerate(story.lines):
        if isinstance(line, Commit) and line.incarnation == 2:
            parent, now = line.parent, line.checksum
            for a, b in same.items():
                parent, now = parent.replace(a, b), now.replace(a, b)
            story.lines[i] = dataclasses.replace(line, parent=parent, checksum=now)
    report = check(story.lines, ranks=2, steps=2, batch=BATCH).require()
    assert [u.quorum for u in report.lineage] == [3, 4] and report.consumed == (8, 8)


def test_replicas_that_differ_after_the_same_exchange() -> None:
    story = usual()
    story.spoil(Commit, checksum="1:other")
    found = problems(story)
    assert "step 2 of quorum 3 differs between replica 1 rank 1" in found
    assert "the final states differ on rank 1" in found


def test_a_commit_that_a_rank_of_the_replica_did_not_agree_to() -> None:
    story = usual()
    story.spoil(Vote, yes=False, why="late")
    assert "committed step 2 of quorum 3, and its rank 1 had voted against it" in problems(story)
    assert "though it voted against it (late)" in problems(story)
    story = usual()
    at = max(i for i, line in enumerate(story.lines) if isinstance(line, Vote))
    del story.lines[at]
    assert "and its rank 1 had not voted" in problems(story)


def test_half_a_replica_may_commit_only_if_it_ends() -> None:
    story = usual()
    del story.lines[-1]  # rank 1 of replica 1 was killed before it applied the last step
    report = check(story.lines, ranks=2, batch=BATCH, survivors=[(0, 1)])
    assert report.ok, report.problems
    story = usual()
    del story.lines[[i for i, x in enumerate(story.lines) if isinstance(x, Commit) and x.step == 1][-1]]
    assert "only ranks [0] committed step 1, and it went on" in problems(story)


def test_samples_that_are_lost_doubled_or_not_where_the_state_says() -> None:
    story = usual()
    story.spoil(Vote, samples=(12, 16))
    assert "used samples 12 to 16 in step 2, and its state says that 8 are consumed" in problems(story)
    assert "fed samples (12, 16), and the state counts (8, 12)" in problems(story)
    story = usual()
    for i, line in enumerate(story.lines):
        if isinstance(line, Commit) and line.step == 2:
            story.lines[i] = dataclasses.replace(line, positions=(12, 16))
    assert "step 2 took 8 samples of replica 1, not 4" in problems(story)
    for i, line in enumerate(story.lines):
        if isinstance(line, Commit) and line.step == 2:
            story.lines[i] = dataclasses.replace(line, contributors=(0,))
    assert "moved replica 1, which did not contribute, from 8 to 16" in problems(story)
    story = usual()
    for i, line in enumerate(story.lines):
        if isinstance(line, Commit) and line.step == 2:
            story.lines[i] = dataclasses.replace(line, positions=(12, 8))
    assert "took no samples of replica 1, which contributed" in problems(story)


def test_states_that_come_from_nowhere() -> None:
    story = usual()
    story.spoil(Commit, parent="1:something")
    assert "committed step 2 on state 1:something, and the one it had was" in problems(story)
    story = usual()
    story.die(1)
    story.fetch(1, 0, 4)
    story.spoil(Fetch, checksum="1:invented")
    assert "fetched a state of step 3 (1:invented) from replica 0 that nobody committed" in problems(story)
    story = usual()
    story.lines = [x for x in story.lines if not isinstance(x, Start) or x.replica]
    assert "committed step 0 on a state from nowhere" in problems(story)
    story = usual()
    story.lines[0] = dataclasses.replace(story.lines[0], checksum="0:elsewhere")
    assert "starts at step 0 from" in problems(story)


def test_two_lineages_that_both_live() -> None:
    story = usual(1)
    story.exchange(2, (0,), (0,))
    story.exchange(3, (1,), (1,))  # never heard of each other
    assert "the final states differ on rank 0" in problems(story, steps=2)
    assert check(story.lines, batch=BATCH, steps=2, survivors=[(1, 1)]).ok


def test_who_survives_must_be_at_the_end() -> None:
    story = usual()
    assert "rank 0 ended after [3] steps, not 4" in problems(story, steps=4)
    assert "nothing in the logs is of the survivors [(0, 9)]" in problems(story, survivors=[(0, 9), (1, 1)])


def test_votes_and_lives_in_order() -> None:
    story = usual()
    votes = [x for x in story.lines if isinstance(x, Vote)]
    story.lines.insert(story.lines.index(votes[-1]), votes[-1])
    assert "voted twice on step 2 in quorum 3" in problems(story)
    story = usual()
    story.spoil(Commit, step=7)
    assert "committed step 7 while it was at step 2" in problems(story)
    story = usual()
    story.fetch(0, 0, 9)
    assert "fetched step 3 from itself" in problems(story)


def issued(*members: tuple[int, int, int], q: int) -> dict:
    """Quorum `q` for step q - 1 of members (replica, incarnation, step)."""
    return {(q, q - 1): Quorum(q, q - 1, 0, tuple(Member(r, i, step) for r, i, step in members))}


def test_commits_against_the_quorums_that_were_issued() -> None:
    story = usual()
    known = {k: v for q in (1, 2, 3) for k, v in issued((0, 1, q - 1), (1, 1, q - 1), q=q).items()}
    assert check(story.lines, quorums=known).ok
    found = problems(story, quorums=known | issued((0, 1, 2), (1, 2, 0), q=3))
    assert "replica 1 rank 0 (incarnation 1) committed step 2 under quorum 3, and is not in it" in found
    assert "applied gradients of (0, 1) in step 2, and those of quorum 3 that held its state are (0,)" in found
    assert "which was never issued" in problems(story, quorums=issued((0, 1, 0), (1, 1, 0), q=1))


def test_the_audit_raises_with_all_it_found() -> None:
    story = usual()
    story.spoil(Commit, checksum="1:other")
    with pytest.raises(AuditFailed, match="differs between") as caught:
        check(story.lines).require()
    assert caught.value.report.problems and "problems" in str(caught.value.report)
    assert check([]).problems == ["the logs are empty"]


def test_what_is_written_is_read(tmp_path) -> None:
    story = usual()
    logs = {}
    for line in story.lines:
        place = (line.replica, line.rank, line.incarnation)
        log = logs.setdefault(place, AuditLog(tmp_path, *place))
        log.write(line)
    lines, torn = read(tmp_path)
    assert sorted(map(repr, lines)) == sorted(map(repr, story.lines)) and torn == []
    for log in logs.values():
        log.close()
    log = AuditLog(tmp_path, 0, 0, 1)
    log.vote(3, 4, (12, 16), True)
    log.commit(3, 4, {1, 0}, [16, 16], "a", "b", 0.25)
    log.fetch(5, 6, 1, [1, 2], "c", 77)
    log.start(0, [0, 0], "d")
    log.close()
    vote, commit, fetch, start = [x for x in read(tmp_path)[0] if (x.replica, x.rank) == (0, 0)][-4:]
    assert (commit.contributors, commit.positions, commit.loss) == ((0, 1), (16, 16), 0.25)
    assert (vote.samples, vote.yes, fetch.nbytes, start.checksum) == ((12, 16), True, 77, "d")
    assert vote.at <= commit.at <= fetch.at and vote.at > 0


def test_a_line_that_was_never_finished_spoils_nothing(tmp_path) -> None:
    log = AuditLog(tmp_path, 0, 0, 1)
    log.start(0, [0], "d")
    log._write(b'{"kind":"vote","step":0,"repl')  # killed here
    log.close()
    again = AuditLog(tmp_path, 0, 0, 2)
    again.start(0, [0], "d")
    lines, torn = read(tmp_path)
    assert [x.incarnation for x in lines] == [1, 2] and len(torn) == 1
    again._write(b'{"kind":"nonsense"}\n')
    with pytest.raises(RefusedError, match="no line of an audit log"):
        read(tmp_path)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RefusedError, match="cannot be written"):
        AuditLog(tmp_path / "file", 0, 0, 1)
    with pytest.raises(RefusedError, match="holds no audit logs"):
        read(tmp_path)
    log = AuditLog(tmp_path, 0, 0, 1)
    os.close(log._fd)
    log._fd = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(RefusedError, match="No space left on device|no room"):
        log.start(0, [0], "d")
    log.close()


def test_a_checksum_sees_every_bit() -> None:
    x = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    sums = {
        checksum(x),
        checksum(x.reshape(4, 3)),
        checksum(x.double()),
        checksum(x, "a"),
        checksum("a", x),
        checksum(x.T),
    }
    y = x.clone()
    y.view(torch.int32)[2, 1] ^= 1
    sums.add(checksum(y))
    assert len(sums) == 7
    assert checksum(x) == checksum(x.clone()) == checksum(x.T.contiguous().T) and len(checksum(x)) == 16
    assert checksum(torch.tensor(1.0)) != checksum(torch.tensor(-1.0)) and checksum(torch.zeros(0)) != checksum()
    assert checksum("ab", "c") != checksum("a", "bc")
