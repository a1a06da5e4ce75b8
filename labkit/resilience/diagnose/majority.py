"""Who is the odd one: calls that differ, steps that are like no other, messages that were numbered and never sent.

Members of a call must say the same, so where one of them differs from several that agree, it is the one. Beyond that, a
rank is compared with itself (`habits`: it does in a step what it did in its other steps) and with its equals: ranks of
groups of the same shapes that have done the same so far. Ranks whose part in the program differs are never compared.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from labkit.wire.recording import record as rec
from labkit.world.diagnosis.explain import ranks_text

from . import habits
from .report import Made, Report
from .waits import Clue

MOST_TOLD = 4  # mismatches: what comes later follows from what came first
END = "the end"


def mismatches(reports: Mapping[int, Report]) -> list[Clue]:
    """The first collective calls whose members called different things, and messages that are not what is received."""
    said: dict[tuple[int, ...], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    first: dict[tuple[int, ...], int] = {}
    text: dict[tuple[int, ...], dict[str, str]] = defaultdict(dict)
    for rank, report in reports.items():
        for made in report.made:
            place = (*made.call, *made.ends)
            words = f"{made.sent} bytes" if made.ends else made.words
            said[place][words].append(rank)
            text[place][words] = made.words
            first[place] = min(first.get(place, made.nth), made.nth)
    found = []
    for place in sorted((p for p in said if len(said[p]) > 1), key=lambda p: (first[p], p))[:MOST_TOLD]:
        them = said[place]
        ranks = {r for some in them.values() for r in some}
        if len(place) == 4:
            source, to = place[2:]
            told = {r: text[place][words] for words, some in them.items() for r in some}
            why = (f"rank {source} sent rank {to} {told[source]}, but rank {to} receives {told[to]} "
                   f"(message {place[1]} between them)")  # fmt: skip
            found.append(Clue(frozenset(ranks), "mismatch", why, (source, to)))
        else:
            many = [some for some in them.values() if len(some) > 1]
            odd = ranks - set(many[0]) if len(many) == 1 else set()
            why = "; ".join(f"{ranks_text(some)} called {words}" for words, some in them.items())
            found.append(Clue(frozenset(odd if len(odd) == 1 else ranks), "mismatch",
                              f"{why} (call {place[1]} of the group)"))  # fmt: skip
    return found


def judge(reports: Mapping[int, Report], among: Collection[int]) -> tuple[int, bool, str] | None:
    """Which of `among`, where one of them is at fault and evidence has not told which: (the rank, whether it is sure,
    why). Sure is only who did what it did in none of its other steps and none of its equals did. None: it stays open.
    """
    alone: dict[int, tuple[habits.Odd, bool]] = {}
    for rank, (odd, telling) in habits.strange(reports).items():
        alike = _alike(reports, rank, odd.nth, among) if rank in among else True
        if alike is False or (alike is None and telling):
            alone[rank] = odd, alike is False
    unlike = odd_ones(reports, set(among))
    if len(alone) == 1 and unlike <= set(alone):
        ((rank, (odd, sure)),) = alone.items()
        why = f"rank {rank} did otherwise in step {odd.step} than in step {odd.other}: {odd.how}"
        return rank, sure, why + (", and none of its equals did so" if sure else "")
    if len(unlike) == 1 and (not alone or unlike <= set(alone)):
        (rank,) = unlike
        return rank, False, f"rank {rank} did not do as those that had done the same until then"
    return None


def odd_ones(reports: Mapping[int, Report], among: Collection[int]) -> set[int]:
    """Ranks of `among` that did something else than most of their equals, where they first differ from them."""
    for (nth, _, _), said in sorted(_classes(reports).items()):
        most = max(said.values(), key=len)
        everyone = {r for ranks in said.values() for r in ranks}
        # Who sends first and who receives first is nobody's fault, until it was the same for a whole step.
        known = not any(" rank +" in what for what in said) or all(_has_history(reports[r], nth) for r in everyone)
        odd = (everyone - set(most)) & set(among)
        if odd and known and len(most) > 1 and 2 * len(most) > len(everyone):
            return odd
    return set()


def _has_history(report: Report, nth: int) -> bool:
    made = next((m for m in report.made if m.nth == nth), report.made[-1])
    return report.made[0].step < made.step


def _alike(reports: Mapping[int, Report], rank: int, nth: int, among: Collection[int]) -> bool | None:
    """Whether an equal of `rank` did what it did at its nth call; None where it has no equal, outside of `among`."""
    for place, said in _classes(reports).items():
        mine = next((ranks for ranks in said.values() if place[0] == nth and rank in ranks), None)
        if mine is not None:
            if not set(mine) <= set(among):
                return True
            return None if all(r in among for ranks in said.values() for r in ranks) else False
    return None


def _classes(reports: Mapping[int, Report]) -> dict[tuple[int, int, str], dict[str, list[int]]]:
    """(nth call, what was done before, shapes of the groups) -> what was done then -> the ranks."""
    found: dict[tuple[int, int, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, report in reports.items():
        shapes = " ".join(sorted(shape(ranks) for ranks in report.groups.values()))
        for made in report.made:
            found[made.nth, made.past, shapes][f"{made.step} {made.role}"].append(rank)
        if report.state == rec.FINISHED:
            last = report.made[-1] if report.made else None
            place = (0, 0) if last is None else (last.nth + 1, after(last))
            found[(*place, shapes)][END].append(rank)
    return found


def after(made: Made) -> int:
    """A number for all that a rank has done until then, this call included: equal where that is."""
    return zlib.crc32(f"{made.step} {made.role}".encode(), made.past)


def shape(ranks: tuple[int, ...]) -> str:
    """A group without the numbers of its ranks: others along the same axis of a mesh have the same."""
    apart = sorted({b - a for a, b in zip(ranks, ranks[1:], strict=False)})
    return f"{len(ranks)} ranks" + (f" {'/'.join(map(str, apart))} apart" if apart else "")


def sent_less(reports: Mapping[int, Report], source: int, to: int, own: bool = False) -> bool:
    """Whether `source` sent fewer messages than usual in a call that it has left, of a group that `to` is in.

    Usual is what it sent itself in its other calls with the same words, or else, unless `own`, what the others sent in
    this one. The call need not be the one that `to` is in: where messages carry no numbers, it took a later one for the
    lost one.
    """
    done = {r: [m for m in report.made if m.ended and m.sent >= 0 and not m.ends] for r, report in reports.items()}
    calls = [m for m in done[source] if to in reports[source].groups.get(m.call[0], ())]
    for made in calls:
        usual = {m.sent for m in calls if m.words == made.words and m.call != made.call}
        if not usual and not own:
            usual = {m.sent for r in done.keys() - {source, to} for m in done[r] if m.call == made.call}
        if len(usual) == 1 and made.sent < min(usual):
            return True
    return False


def unsent(reports: Mapping[int, Report]) -> dict[tuple[int, int], int]:
    """Messages that a rank numbered and never sent: (sender, receiver) -> how many.

    A sender numbers its messages to each peer and counts those that leave; the two differ where one vanished in between
    and a later one was numbered. Only a transport whose messages carry numbers shows it, and only a page seen whole.
    """
    found: dict[tuple[int, int], int] = {}
    for rank, report in reports.items():
        if report.whole >= 0 or report.transport != "local":
            continue
        numbered: Counter[int] = Counter()
        for kind, peer, _, _, seq, _ in report.begun:
            if kind == rec.SEND:
                numbered[peer] += seq
        for peer, n in numbered.items():
            if n > report.sent.get(peer, 0):
                found[rank, peer] = n - report.sent.get(peer, 0)
    return found
