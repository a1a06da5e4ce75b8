"""From the messages of a trace to a `Replay`: pick the collective, follow its data, take a frame at each arrival."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from labkit.book.drawing.units import plural
from labkit.book.stepping.following import Path, follow
from labkit.book.stepping.goals import FOLLOWED, ends, goal, start
from labkit.book.stepping.recording import Frame, Move, Replay
from labkit.book.timelines.reads import Collective, Message, Trace


def record(trace: Trace, collective: str | None = None, nth: int = 0) -> Replay:
    """The `nth` collective of the run (called `collective`, if given) as a `Replay`.

    Collectives that others call inside themselves do not count. Raises ValueError for a collective that is not
    there, for a native one (its messages are its own), and for all_to_all, which has no common tensor.
    """
    calls = trace.collectives()
    outer = _outermost(calls)
    found: dict[tuple[int, int], dict[int, int]] = {}  # (group, seq) -> rank -> index of the call
    for index, call in enumerate(calls):
        if not call.nested and collective in (None, call.name):
            found.setdefault((call.group, call.seq), {})[call.rank] = index
    whole = sorted(found.values(), key=lambda ranks: min(calls[i].start for i in ranks.values()))
    if not -len(whole) <= nth < len(whole):
        raise ValueError(f"this run has {plural(len(whole), collective or 'collective')}: there is no number {nth}")
    mine = whole[nth]
    first = calls[next(iter(mine.values()))]
    ranks = tuple(r for r in trace.groups.get(first.group, sorted(mine)) if r in mine)
    if first.native:
        raise ValueError(f"{first.name} ran natively: its messages are not recorded, so there is nothing to replay")
    if first.name not in FOLLOWED:
        raise ValueError(f"a replay follows one tensor, and {first.name} has none in common: use timeline, byte_matrix")
    inside = set(mine.values())
    messages = [m for m in trace.sends if m.collective >= 0 and outer[m.collective] in inside]
    members = [calls[mine[rank]] for rank in ranks]
    at_once = _replay(members, ranks, messages, trace.badge, late=False)
    if at_once.assumed and at_once.flaws:
        at_the_end = _replay(members, ranks, messages, trace.badge, late=True)
        return at_once if at_the_end.flaws else at_the_end
    return at_once


def _outermost(calls: Sequence[Collective]) -> list[int]:
    """For each call the index of the call it was made in, in the end; its own index if it was not nested."""
    last: dict[int, int] = {}  # rank -> its latest call that was not nested
    result = []
    for index, call in enumerate(calls):
        if not call.nested:
            last[call.rank] = index
        result.append(last.get(call.rank, index))
    return result


def _replay(calls: list[Collective], ranks: tuple[int, ...], messages: list[Message], badge: str, late: bool) -> Replay:
    first, shapes = calls[0], [c.shape for c in calls]
    root = ranks.index(first.root) if first.root in ranks else -1
    if first.name == "scatter":  # the others need not bring anything
        shapes = [shapes[root]] * len(calls)
    path = follow(first, ranks, _elements(first.name, shapes), messages)
    path.late = late
    begin, end = min(c.start for c in calls), max(c.end for c in calls)
    held = start(first.name, root, ranks, path.bounds, shapes)
    initial = Frame(begin, (), tuple(map(tuple, held)))
    arrivals = path.run(held)
    promise = goal(first.name, root, ranks, path.bounds, shapes)
    return Replay(
        first.name, first.algorithm, str(first.op), badge, ranks, path.bounds, begin, end,
        _frames(initial, path, path.moments(arrivals), end), _frames(initial, path, path.levels(arrivals), end),
        tuple(map(tuple, promise)), path.assumed, path.unseen,
    )  # fmt: skip


def _elements(name: str, shapes: list[Sequence[int]]) -> int:
    """Elements of the tensor that the replay is about."""
    return ends(name, len(shapes), shapes)[-1]


def _frames(initial: Frame, path: Path, groups: Iterable[list[int]], end: float) -> tuple[Frame, ...]:
    """A frame for each group of messages that arrive together."""
    held = [list(row) for row in initial.held]
    frames = [initial]
    for group in groups:
        moves = []
        for number in group:
            path.deliver(number, held)
            one = path.carried[number]
            m, aside = one.message, path.late and one.spare
            moves.append(Move(
                m.src, m.dst, one.chunks, one.content, bool(one.combine), int(m.nbytes), m.start, m.arrived, aside,
            ))  # fmt: skip
        time = max(frames[-1].time, max(m.arrived for m in moves))
        frames.append(Frame(time, tuple(moves), tuple(map(tuple, held))))
    if path.settle(held):
        frames.append(Frame(max(end, frames[-1].time), (), tuple(map(tuple, held))))
    return tuple(frames)
