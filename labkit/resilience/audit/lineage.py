"""The surviving lineage of a run, found in its logs, and the samples behind it.

A state is known by (rank in its replica, step, checksum). Commits are the edges between states, so the logs are a tree
for each rank number; the lineage is the way back from the final state to the first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from .lives import RankLife
from .records import Commit, same
from .report import Report, Update


def trace_lineage(
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
            Update(one.step, one.quorum, one.contributors, before, one.positions, sums, commits[0][2], one.members)
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
        # Where all replicas were lost and began anew, they came to the same states once more: the last time counts.
        latest = max(found, key=lambda c: c.quorum)
        way.append((latest, tuple(sorted({c.replica for c in found if c.quorum == latest.quorum}))))
        step, state = step - 1, latest.parent
    before = begun.get((rank, step, state), ())
    out = []
    for commit, who in reversed(way):
        out.append((commit, before, who))
        before = commit.positions
    return out


def exactly_once(known: list[RankLife], batch: int | None, report: Report) -> None:
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
