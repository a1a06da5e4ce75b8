"""From clues to a verdict: the culprit, or the smallest set of ranks that must hold it.

Each clue is a set of ranks one of which is at fault. The fewest ranks that account for all clues are the verdict, if
there is one such choice; if there are several, all ranks that appear in them are suspects.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations
from typing import Any

from labkit import pictures
from labkit.wire.recording import record as rec
from labkit.world.diagnosis.explain import ranks_text

from . import majority
from .failures import Failed, roots
from .report import Report
from .waits import Clue, Waits

MOST_CULPRITS, MOST_TRIED = 3, 40  # culprits that are looked for at once, among so many: else everybody is suspected
MOST_TOLD = 4  # clues, in words
KINDS = {
    "absent": "has not joined",
    "finished": "has finished too early or too late",
    "dead": "died",
    "raised": "raised",
    "inside": "stands still inside an operation",
    "between": "a message between two ranks stands still",
    "lost": "a message was lost",
    "native": "stands still inside a native collective",
    "circle": "ranks wait for each other",
    "mismatch": "ranks called different things",
    "slow": "the others wait for it",
    "corrupt": "computed, sent or holds wrong numbers",
    "not finite": "made a NaN or an infinity first",
    "spike": "the loss jumped",
    "nothing": "nothing is wrong",
}


@dataclass(frozen=True)
class Verdict:
    """What a diagnosis found.

    kind: a key of `KINDS`. suspects: the culprits if `exact`, else the smallest set of ranks that is sure to hold them,
    or one of these that did otherwise than in its other steps, or than its equals, which is a guess.
    way: (sender, receiver), where a message between them is what went wrong. clues: the evidence. waits: both levels of
    the wait-for graph, to draw.
    """

    kind: str
    suspects: tuple[int, ...]
    exact: bool
    clues: tuple[Clue, ...] = ()
    way: tuple[int, int] | None = None
    waits: Waits | None = field(default=None, repr=False, compare=False)

    @property
    def culprit(self) -> int | None:
        """The one rank at fault; None where several are, or where that cannot be told."""
        return self.suspects[0] if self.exact and len(self.suspects) == 1 else None

    def __str__(self) -> str:
        if self.kind == "nothing":
            why = self.clues[0].why if self.clues else "no rank waits for one that makes no progress"
            return f"Nothing is wrong: {why}."
        who = ranks_text(self.suspects)
        head = who if self.exact else f"one of {who}" if len(self.suspects) > 1 else f"probably {who}"
        more = f"\n  and {len(self.clues) - MOST_TOLD} more like these" if len(self.clues) > MOST_TOLD else ""
        return f"{head}: {KINDS[self.kind]}.\n" + "\n".join(f"  {clue.why}" for clue in self.clues[:MOST_TOLD]) + more

    def draw(self) -> Any:
        """The two-level graph as a figure: `labkit.book.diagnosis`."""
        return pictures.draw(self)


def diagnose(
    reports: Mapping[int, Report], failures: Iterable[Failed] = (), silent: Collection[int] = (),
    moving: Collection[int] = (),
) -> Verdict:  # fmt: skip
    """Why the ranks of `reports` do not go on.

    To be asked of a job that stands still, or has failed: a rank that is only on its way is taken for one that does not
    come. failures: of ranks, as a `Run` has them. silent: ranks that were not heard of for too long; it decides only
    between ranks that are suspected alike. moving: ranks that make progress, and are not suspected.
    """
    waits = Waits(reports)
    finished = [rank for rank, report in reports.items() if report.state == rec.FINISHED]
    clues = roots(failures, finished) or [c for c in waits.clues if not c.ranks.issubset(moving)]
    clues = [_aborted(c, reports) for c in clues]
    wrong = majority.mismatches(reports)
    if wrong and not any(c.kind == "dead" and "SIGABRT" not in c.why for c in clues):
        clues = wrong  # which may well have been why a rank raised, or why a library ended it
    clues = [_counted(clue, reports) for clue in clues]
    if not clues:
        return Verdict("nothing", (), True, (), None, waits)
    suspects, exact = fewest([c.ranks for c in clues], frozenset(silent))
    telling = [c for c in clues if c.ranks & suspects] or clues
    if not exact and (judged := majority.judge(reports, suspects)) is not None:
        rank, exact, why = judged
        suspects = frozenset({rank})
        telling = [replace(c, why=f"{c.why}; {why}") for c in telling if rank in c.ranks][:1]
    return Verdict(telling[0].kind, tuple(sorted(suspects)), exact, tuple(telling),
                   next((c.way for c in telling if c.way), None), waits)  # fmt: skip


def fewest(sets: Sequence[frozenset[int]], silent: frozenset[int] = frozenset()) -> tuple[frozenset[int], bool]:
    """The ranks of the smallest choices that take one of every set, and whether there is only one such choice."""
    forced = frozenset(r for s in sets if len(s) == 1 for r in s)
    rest = [s for s in dict.fromkeys(sets) if not s & forced]
    if not rest:
        return forced, True
    choices = _choices(rest)
    choices = [c for c in choices if c <= silent] or choices
    return (forced.union(*choices), len(choices) == 1) if choices else (forced.union(*rest), False)


def _choices(sets: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """The smallest sets of ranks that take one of each of `sets`; [] where that would take too long to find."""
    common = frozenset[int].intersection(*sets)
    if common:
        return [frozenset({r}) for r in sorted(common)]
    everyone = sorted(frozenset[int]().union(*sets))
    for n in range(2, MOST_CULPRITS + 1 if len(everyone) <= MOST_TRIED else 0):
        found = [frozenset(c) for c in combinations(everyone, n) if all(s.intersection(c) for s in sets)]
        if found:
            return found
    return []


def _aborted(clue: Clue, reports: Mapping[int, Report]) -> Clue:
    """A library ends a process that receives something else than it expects: then its senders are suspected, too."""
    if clue.kind != "dead" or "SIGABRT" not in clue.why:
        return clue
    (rank,) = clue.ranks
    senders = {peer for kind, peer, *_ in reports[rank].under_way if kind == rec.RECV} if rank in reports else set()
    return replace(clue, ranks=clue.ranks | senders)


def _counted(clue: Clue, reports: Mapping[int, Report]) -> Clue:
    """The same clue with the one rank that did not send a message, where a count tells that."""
    pairs = [pair for pair in permutations(sorted(clue.ranks), 2) if clue.kind != "native"]
    vanished = [pair for pair in majority.unsent(reports) if pair in pairs]
    if vanished:
        source, to = min(vanished)
        return Clue(frozenset({source}), "lost", f"{clue.why}; rank {source} has numbered a message to rank {to} that "
                    "it never sent", (source, to))  # fmt: skip
    if clue.kind == "mismatch":
        return clue
    fewer = [pair for pair in pairs if majority.sent_less(reports, *pair, own=pair != clue.way)]
    if len({source for source, _ in fewer}) == 1:
        source, to = clue.way if clue.way in fewer else fewer[0]
        return Clue(frozenset({source}), "lost", f"{clue.why}; rank {source} sent fewer messages in it than is usual",
                    (source, to))  # fmt: skip
    return clue
