"""The proof at the end of a fault-tolerant run, from its audit logs.

Four promises: every sample was consumed exactly once along the surviving lineage; replicas that committed the same
step are bitwise equal; no update was applied that was not agreed; commits off the lineage are named and led nowhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from .lineage import exactly_once, trace_lineage
from .lives import RankLife, lives
from .records import Commit, Line, same
from .report import AuditFailed, Branch, Report, Update

if TYPE_CHECKING:
    from labkit.resilience.quorum import Quorum

__all__ = ["AuditFailed", "Branch", "Report", "Update", "check"]


def check(
    lines: Sequence[Line], *, ranks: int | None = None, steps: int | None = None,
    survivors: Iterable[tuple[int, int]] | None = None, quorums: Mapping[tuple[int, int], Quorum] | None = None,
    batch: int | None = None, torn: Sequence[str] = (),
) -> Report:  # fmt: skip
    """Audit the lines of a run (as `audit.read` gives them).

    ranks: of a replica. steps: how many the final state must have behind it. survivors: the (replica, incarnation)
    that ended well; without them, those that came furthest. quorums: what the quorum service issued, by (id, step).
    batch: samples of one replica's step.
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
        _agreed_outside(known, quorums, report)
    trace_lineage(known, ranks, steps, survivors, report)
    exactly_once(known, batch, report)
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


def _agreed_outside(known: list[RankLife], issued: Mapping[tuple[int, int], Quorum], report: Report) -> None:
    """Who commits a step is a member of a quorum for it, and the contributors are those that held the state."""
    for life in known:
        for c in life.all_commits:
            quorum = issued.get((c.quorum, c.step))
            if quorum is None:
                report.problems.append(
                    f"{life} committed step {c.step} under quorum {c.quorum}, which was never issued"
                )
                continue
            if (c.replica, c.incarnation) not in quorum.lives:
                report.problems.append(f"{life} committed step {c.step} under quorum {c.quorum}, and is not in it")
            if c.contributors != (healthy := tuple(m.replica for m in quorum.healthy)):
                report.problems.append(f"{life} applied gradients of {c.contributors} in step {c.step}, and those of "
                                       f"quorum {c.quorum} that held its state are {healthy}")  # fmt: skip
