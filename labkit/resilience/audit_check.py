"""The proof at the end of a fault-tolerant run, from its audit logs.

Four promises: every sample was consumed exactly once along the surviving lineage; replicas that committed the same
step are bitwise equal; no update was applied that was not agreed; commits off the lineage are named and led nowhere.

A state is known by (rank in its replica, step, checksum). Commits are the edges between states, so the logs are a tree
for each rank number; the lineage is the way back from the final state to the first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .audit_lives import RankLife, lives
from .audit_records import Commit, Line, same
from .audit_report import AuditFailed, Branch, Report, Update

__all__ = ["AuditFailed", "Branch", "Report", "Update", "check"]

Members = Iterable[tuple[int, int, int]]  # (replica, incarnation, step) of each member of a quorum


def check(
    lines: Sequence[Line], *, ranks: int | None = None, steps: int | None = None,
    survivors: Iterable[tuple[int, int]] | None = None, quorums: Mapping[int, Members] | None = None,
    batch: int | None = None, torn: Sequence[str] = (),
) -> Report:  # fmt: skip
    """Audit the lines of a run (as `audit.read` gives them).

    ranks: of a replica. steps: how many the final state must have behind it. survivors: the (replica, incarnation)
    that ended well; without them, those that came furthest. quorums: what the quorum service issued, by id. batch:
    samples of one replica's step.
    """
    report = Report(torn=list(torn))
    known = lives(lines)
    if not known:
        report.problems.append("the logs are empty")
        return report
    ranks = ranks if ranks is not None else 1 + max(life.rank for life in known)
    report.lives = len(known)
    report.commits = sum(len(life.all_commits) for life in known)
    report.fetches = sum(len(life.fetches) for life in known)
    report.transferred = sum(f.nbytes for life in known for f in life.fetches)
    report.refused = sum(not v.yes for life in known for v in life.votes.values())
    for life in known:
        report.problems += life.problems
    _one_beginning(known, report)
    _bitwise_equal(known, report)
    _agreed_inside(known, ranks, report)
    if quorums is not None:
        _agreed_outside(known, {q: list(m) for q, m in quorums.items()}, report)
    _lineage(known, ranks, steps, survivors, report)
    _exactly_once(known, batch, report)
    on = {(u.step, u.checksums) for u in report.lineage}
    for life in known:
        if life.rank == 0:
            for c in life.all_commits:
                if not any(s == c.step and sums[0] == c.checksum for s, sums in on):
                    report.branches.append(
                        Branch(c.step, c.quorum, c.replica, c.incarnation, c.contributors, c.checksum)
                    )
    return report


def _one_beginning(known: list[RankLife], report: Report) -> None:
    """All states that were made from the seed are the same; what was fetched had been committed or made."""
    states = {(x.rank, s.step, s.checksum) for x in known for s in x.starts}
    states |= {(x.rank, c.step + 1, c.checksum) for x in known for c in x.all_commits}
    first: dict[tuple[int, int], tuple[str, RankLife]] = {}
    for life in known:
        for start in life.starts:
            state, other = first.setdefault((life.rank, start.step), (start.checksum, life))
            if state != start.checksum:
                report.problems.append(
                    f"{life} starts at step {start.step} from {start.checksum}, {other} from {state}"
                )
        for fetch in life.fetches:
            if (life.rank, fetch.step, fetch.checksum) not in states:
                report.problems.append(f"{life} fetched a state of step {fetch.step} ({fetch.checksum}) from replica "
                                       f"{fetch.source} that nobody committed")  # fmt: skip


def _bitwise_equal(known: list[RankLife], report: Report) -> None:
    """Rank i of every replica that committed one exchange made the same of the same."""
    first: dict[tuple[int, int, int], tuple[Commit, RankLife]] = {}
    for life in known:
        for c in life.all_commits:
            other, whose = first.setdefault((life.rank, c.step, c.quorum), (c, life))
            if wrong := same(c, other, "replica", "incarnation", "loss"):
                report.problems.append(
                    f"step {c.step} of quorum {c.quorum} differs between {life} and {whose}: {wrong}"
                )


def _agreed_inside(known: list[RankLife], ranks: int, report: Report) -> None:
    """Where one rank of a replica committed, all its ranks had voted for it, and committed it unless killed."""
    together: dict[tuple[int, int], dict[int, RankLife]] = defaultdict(dict)
    for life in known:
        together[life.replica, life.incarnation][life.rank] = life
    for (replica, incarnation), members in together.items():
        who = f"replica {replica} (incarnation {incarnation})"
        for step in sorted({s for life in members.values() for s in life.commits}):
            found = {i: life.commits[step] for i, life in members.items() if step in life.commits}
            one = next(iter(found.values()))
            for i, c in found.items():
                if wrong := same(c, one, "rank", "parent", "checksum", "loss"):
                    report.problems.append(f"{who}: step {step} differs between its ranks {one.rank} and {i}: {wrong}")
            for i in range(ranks):
                vote = members[i].votes.get((step, one.quorum)) if i in members else None
                if vote is None or not vote.yes:
                    report.problems.append(f"{who} committed step {step} of quorum {one.quorum}, and its rank {i} "
                                           f"had {'not voted' if vote is None else 'voted against it'}")  # fmt: skip
            if len(found) < ranks and any(s > step for life in members.values() for s in life.commits):
                report.problems.append(f"{who}: only ranks {sorted(found)} committed step {step}, and it went on")


def _agreed_outside(known: list[RankLife], quorums: dict[int, list[tuple[int, int, int]]], report: Report) -> None:
    """Who commits is a member of the quorum, and contributors are members that were at the step."""
    for life in known:
        for c in life.all_commits:
            members = quorums.get(c.quorum)
            if members is None:
                report.problems.append(
                    f"{life} committed step {c.step} under quorum {c.quorum}, which was never issued"
                )
                continue
            if (c.replica, c.incarnation) not in {(r, i) for r, i, _ in members}:
                report.problems.append(f"{life} committed step {c.step} under quorum {c.quorum}, and is not in it")
            if strangers := set(c.contributors) - {r for r, _, step in members if step <= c.step}:
                report.problems.append(f"{life} applied gradients of {sorted(strangers)} in step {c.step}, which "
                                       f"quorum {c.quorum} does not have at that step")  # fmt: skip


def _lineage(
    known: list[RankLife], ranks: int, steps: int | None, survivors: Iterable[tuple[int, int]] | None, report: Report
) -> None:
    """The way back from the final state. All that survived must stand there."""
    chosen = set(survivors) if survivors is not None else None
    top = max(life.step for life in known)
    last = [x for x in known if (x.step == top if chosen is None else (x.replica, x.incarnation) in chosen)]
    if chosen is not None and (missing := chosen - {(x.replica, x.incarnation) for x in last}):
        report.problems.append(f"nothing in the logs is of the survivors {sorted(missing)}")
    ends: dict[int, set[tuple[int, str]]] = defaultdict(set)
    for life in last:
        ends[life.rank].add((life.step, life.state))
    for i, found in sorted(ends.items()):
        if len(found) > 1:
            names = ", ".join(f"{x}: step {x.step}, {x.state}" for x in last if x.rank == i)
            report.problems.append(f"the final states differ on rank {i} of the replicas: {names}")
        if steps is not None and any(step != steps for step, _ in found):
            report.problems.append(f"rank {i} ended after {sorted(s for s, _ in found)} steps, not {steps}")
    if set(ends) != set(range(ranks)):
        report.problems.append(f"no final state is known of ranks {sorted(set(range(ranks)) - set(ends))}")
        return
    into: dict[tuple[int, int, str], list[Commit]] = defaultdict(list)
    for life in known:
        for c in life.all_commits:
            into[life.rank, c.step + 1, c.checksum].append(c)
    begun = {(x.rank, s.step, s.checksum): s.positions for x in known for s in x.starts}
    ways = [_way_back(i, *max(ends[i]), into, begun, report) for i in range(ranks)]
    for commits in zip(*ways, strict=False):
        one, before, _ = commits[0]
        for c, _, _ in commits[1:]:
            if wrong := same(c, one, "rank", "replica", "incarnation", "parent", "checksum", "loss"):
                report.problems.append(
                    f"the lineages of ranks {one.rank} and {c.rank} differ at step {one.step}: {wrong}"
                )
        sums = tuple(c.checksum for c, _, _ in commits)
        report.lineage.append(
            Update(one.step, one.quorum, one.contributors, before, one.positions, sums, commits[0][2])
        )
    if report.lineage:
        report.consumed = report.lineage[-1].after


def _way_back(
    rank: int, step: int, state: str, into: Mapping[tuple[int, int, str], list[Commit]],
    begun: Mapping[tuple[int, int, str], tuple[int, ...]], report: Report,
) -> list[tuple[Commit, tuple[int, ...], tuple[int, ...]]]:  # fmt: skip
    """(commit, positions before it, replicas that committed it), oldest first."""
    way: list[Any] = []
    while (rank, step, state) not in begun:
        found = into.get((rank, step, state))
        if not found:
            report.problems.append(f"the state {state} of rank {rank} at step {step} came from nowhere")
            break
        way.append((found[0], tuple(sorted({c.replica for c in found}))))
        step, state = step - 1, found[0].parent
    before = begun.get((rank, step, state), ())
    out = []
    for commit, who in reversed(way):
        out.append((commit, before, who))
        before = commit.positions
    return out


def _exactly_once(known: list[RankLife], batch: int | None, report: Report) -> None:
    """What each contributor says it fed to a step is what the lineage counts as consumed; the others fed nothing."""
    votes: dict[tuple[int, int, int], list[Any]] = defaultdict(list)
    for life in known:
        for (step, quorum), vote in life.votes.items():
            votes[step, quorum, life.replica].append(vote)
    for u in report.lineage:
        if not u.before:
            continue
        for r in range(len(u.after)):
            said = votes.get((u.step, u.quorum, r), [])
            if r not in u.contributors:
                for v in said:
                    if v.samples[0] != v.samples[1]:
                        report.problems.append(f"step {u.step}: replica {r} rank {v.rank} fed samples {v.samples} and "
                                               "is no contributor: they are lost")  # fmt: skip
                continue
            report.unwitnessed += not said
            taken = (u.before[r], u.after[r])
            for v in said:
                if tuple(v.samples) != taken:
                    report.problems.append(f"step {u.step}: replica {r} rank {v.rank} fed samples {v.samples}, and the "
                                           f"state counts {taken}")  # fmt: skip
            if batch is not None and taken[1] - taken[0] != batch:
                report.problems.append(f"step {u.step} took {taken[1] - taken[0]} samples of replica {r}, not {batch}")
