"""The evidence of a job that stands still: what each piece shows, and whom it leaves. All from the ranks' reports.

Every rule says what a piece of evidence proves by itself. So a piece may leave nobody but the culprit in one case, and
nearly everybody in another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from labkit.course.casefile import Evidence, Suspect
from labkit.resilience.diagnose import majority
from labkit.resilience.diagnose.operations import Operation
from labkit.resilience.diagnose.report import Report
from labkit.resilience.diagnose.waits import Waits
from labkit.world.diagnosis.explain import ranks_text

CAUSES = {
    "frozen": "its process has frozen: alive, sockets open, and it does nothing any more",
    "storage": "it waits for its data, and would go on if they came",
    "skipped": "its program left out the last collective of the step, the norm, and went on",
    "order": "its program asked for the norm before it asked for the average of the gradients",
    "lost": "a message that it sent never left its network card",
}
# Minutes for which a fleet stands still meanwhile: this book's assumption, roughly what people report.
MINUTES = {"log": 1.0, "joined": 3.0, "counts": 4.0, "ping": 5.0, "calls": 6.0, "burn-in": 30.0}

Reports = Mapping[int, Report]


def exhibits(reports: Reports, stopped: Collection[int], truth: Suspect) -> list[Evidence]:
    """All evidence of a job that stands still. truth: only the test of the hardware, which is emulated, asks for it."""
    return [log(reports), joined(reports), counts(reports), ping(reports, stopped), calls(reports),
            burn_in(reports, truth)]  # fmt: skip


def log(reports: Reports) -> Evidence:
    """In which step each rank is. Who skips a call runs ahead; whom a message did not reach is left behind."""
    steps = {rank: report.step for rank, report in reports.items()}
    told = Counter(steps.values())
    usual = told.most_common(1)[0][0]
    ahead = [r for r, step in steps.items() if step > usual]
    behind = [r for r, step in steps.items() if step < usual]
    if ahead:
        leaves = _each(ahead, "skipped")
    elif behind:
        leaves = _each(reports.keys() - set(behind), "lost") | _each(behind, "frozen")
    else:
        leaves = _each(reports, "frozen", "storage", "order")
    shows = _listed(f"step {step}: {ranks_text([r for r in steps if steps[r] == step])}" for step in sorted(told))
    return Evidence("log", "The last line of every rank's log", MINUTES["log"], shows, leaves)


def joined(reports: Reports) -> Evidence:
    """The first level of the wait-for graph: each operation that is not complete, and who has joined it."""
    waits = Waits(reports)
    lines = []
    for op in waits.operations.values():
        words = [f"{what} {ranks_text(sorted(ranks))}" for what, ranks in
                 (("in it", op.inside), ("asked for it", op.posted), ("not joined", op.absent), ("through", op.left))
                 if ranks]  # fmt: skip
        lines.append(f"{op.name}: {'; '.join(words)}")
    free = [r for r, report in reports.items() if not report.threads]
    if free:
        lines.append(f"in no operation at all: {ranks_text(free)}")
    told = [f"{_words(op)} waits for nobody, and {ranks_text(sorted(op.absent))} has not joined it" if op.absent else
            f"{_words(op)} waits for nobody, and all have joined it" for op in waits.leaves]  # fmt: skip
    leaves: frozenset[Suspect] = frozenset()
    for op in waits.leaves:
        if outside := [r for r in op.absent if r in free]:
            leaves |= _each(outside, "frozen", "storage")
        elif not op.absent:
            leaves |= _each(op.inside, "frozen") | _each(op.left or op.inside, "lost")
    for clue in waits.clues:
        if clue.kind == "circle":
            leaves |= _each(clue.ranks, "skipped", "order")
            told.append(f"operations wait for each other, through {ranks_text(sorted(clue.ranks))}")
    told += lines[len(waits.operations) :]
    return Evidence("joined", "Who has joined which collective", MINUTES["joined"], _listed(lines), leaves,
                    brief="; ".join(told))  # fmt: skip


def counts(reports: Reports) -> Evidence:
    """Messages sent in each call, beside what is usual: a sender that has left a call, and sent less."""
    short = [(source, to) for source in reports for to in reports
             if source != to and majority.sent_less(reports, source, to)]  # fmt: skip
    senders = sorted({source for source, _ in short} | {source for source, _ in majority.unsent(reports)})
    if senders:
        shows = f"{ranks_text(senders)} sent fewer messages in its last complete call than it usually does."
        leaves = _each(senders, "lost")
    else:
        shows = "In calls that are complete, every rank has sent as many messages as always."
        leaves = _each(reports, *(cause for cause in CAUSES if cause != "lost"))
    return Evidence("counts", "Messages sent, counted by call", MINUTES["counts"], shows, leaves)


def ping(reports: Reports, stopped: Collection[int]) -> Evidence:
    """Which processes answer: one that only waits does, one that has frozen does not."""
    if stopped:
        shows = f"No answer from {ranks_text(sorted(stopped))}. All others answer."
        leaves = _each(stopped, "frozen")
    else:
        shows = "Every process answers."
        leaves = _each(reports, *(cause for cause in CAUSES if cause != "frozen"))
    return Evidence("ping", "Which processes answer", MINUTES["ping"], shows, leaves)


def calls(reports: Reports) -> Evidence:
    """The collective calls of each rank, in order: where one did something else than most, for the first time."""
    odd = majority.odd_ones(reports, set(reports))  # who only came further has made more calls, not other ones
    lines: list[str] = []
    leaves: frozenset[Suspect] = frozenset()
    for rank in sorted(odd):
        nth, theirs, usual = _first_odd(reports, rank)
        lines.append(f"call {nth} of rank {rank} is *{theirs}*; of most others it is *{usual}*")
        later = any(m.role == theirs for r, report in reports.items() if r != rank
                    for m in report.made if m.nth == nth + 1)  # fmt: skip
        leaves |= _each([rank], "order" if later else "skipped")
    if not odd:
        lines.append("every rank made the same calls in the same order, as far as it came")
        leaves = _each(reports, "frozen", "storage", "lost")
    return Evidence("calls", "The calls of all ranks, compared in order", MINUTES["calls"], _listed(lines), leaves)


def burn_in(reports: Reports, truth: Suspect) -> Evidence:
    """A test of the hardware of every host, which this machine can only emulate."""
    if truth.cause in ("frozen", "lost"):
        shows = f"The host of rank {truth.rank} fails its test. All others pass."
        leaves = _each([truth.rank], "frozen", "lost")
    else:
        shows = "Every host passes."
        leaves = _each(reports, "storage", "skipped", "order")
    return Evidence("burn-in", "A test of every host's hardware", MINUTES["burn-in"], shows, leaves, "emulated")


def _first_odd(reports: Reports, rank: int) -> tuple[int, str, str]:
    """The first call of `rank` that most others made otherwise: (its number, what it was, what theirs was)."""
    for made in reports[rank].made:
        others = Counter(m.role for r, report in reports.items() if r != rank for m in report.made if m.nth == made.nth)
        if others and others.most_common(1)[0][0] != made.role:
            return made.nth, made.role, others.most_common(1)[0][0]
    raise ValueError(f"rank {rank} made the same calls as the others")


def _each(ranks: Collection[int], *causes: str) -> frozenset[Suspect]:
    return frozenset(Suspect(rank, cause) for rank in ranks for cause in causes)


def _words(op: Operation) -> str:
    """An operation in a few words: what it is, and of whom."""
    return f"{op.name.split(' on ')[0]} of {ranks_text(sorted(op.members))}"


def _listed(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)
