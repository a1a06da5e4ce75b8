"""Who is the odd one: calls that differ, orders that differ, messages that were numbered and never sent.

Ranks of a training job do the same things: where a few of them differ from the rest, those few are suspected. Where
there is no majority, all that disagree are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping

from labkit.wire import record as rec
from labkit.world.explain import ranks_text

from .report import CallId, Made, Report
from .waits import Clue


def mismatch(reports: Mapping[int, Report]) -> Clue | None:
    """The first collective call whose members did not call the same thing, and who of them is the odd one."""
    said: dict[CallId, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    first: dict[CallId, int] = {}
    for rank, report in reports.items():
        for made in report.made:
            said[made.call][made.words].append(rank)
            first[made.call] = min(first.get(made.call, made.nth), made.nth)
    for call in sorted(said, key=lambda c: (first[c], c)):
        words = said[call]
        if len(words) == 1:
            continue
        told = "; ".join(f"{ranks_text(ranks)} called {text}" for text, ranks in words.items())
        ranks = {r for them in words.values() for r in them}
        odd = _minority(words) or odd_roles(reports, ranks, upto=first[call]) or ranks
        return Clue(frozenset(odd), "mismatch", f"{told} (call {call[1]} of the group)")
    return None


def odd_roles(reports: Mapping[int, Report], among: set[int], upto: int | None = None) -> set[int]:
    """Ranks of `among` that did something else than most ranks of the job where `among` first differ from them.

    Compared is the n-th collective call of each rank by its words and the shape of its group, so that groups along the
    same axis of a mesh count as alike. Empty where no role has a majority.
    """
    return _odd_at(reports, among, lambda made: made.role, upto)


def odd_order(reports: Mapping[int, Report], among: set[int]) -> set[int]:
    """Ranks of `among` that came to their groups in another order than most of `among`: the groups themselves."""
    return _odd_at({r: reports[r] for r in among}, among, lambda made: str(made.call))


def _odd_at(
    reports: Mapping[int, Report], among: set[int], name: Callable[[Made], str], upto: int | None = None
) -> set[int]:  # fmt: skip
    by_nth: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, report in reports.items():
        for made in report.made:
            by_nth[made.nth][name(made)].append(rank)
    for nth in sorted(by_nth):
        if upto is not None and nth > upto:
            break
        odd = _minority(by_nth[nth]) & among
        if odd:
            return odd
    return set()


def odd_count(reports: Mapping[int, Report], among: set[int]) -> set[int]:
    """Ranks of `among` that made another number of collective calls than most ranks of the job."""
    totals: dict[str, list[int]] = defaultdict(list)
    for rank, report in reports.items():
        totals[str(report.made[-1].nth + 1 if report.made else 0)].append(rank)
    return _minority(totals) & among


def sent_less(reports: Mapping[int, Report], source: int, to: int) -> bool:
    """Whether `source` sent fewer messages than usual in a call that it has left, of a group that `to` is in.

    Usual is what it sent itself in its other calls with the same words, or else what the others sent in this one. The
    call need not be the one that `to` is in: where messages carry no numbers, it took a later one for the lost one.
    """
    calls = [m for m in reports[source].made if m.ended and to in reports[source].groups.get(m.call[0], ())]
    for made in calls:
        own = {m.sent for m in calls if m.words == made.words and m.call != made.call}
        others = {m.sent for r, report in reports.items() if r not in (source, to)
                  for m in report.made if m.call == made.call and m.ended}  # fmt: skip
        usual = own or others
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


def _minority(said: Mapping[str, list[int]]) -> set[int]:
    """All that did not say what more than half of them did; empty where nothing was said by so many."""
    everyone = [r for ranks in said.values() for r in ranks]
    most = max(said.values(), key=len)
    return set(everyone) - set(most) if 2 * len(most) > len(everyone) else set()
