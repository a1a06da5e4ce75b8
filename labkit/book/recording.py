"""A recorded collective as a sequence of pictures: which rank holds whose contributions in which chunk, and when.

All of it comes from the messages of the trace: where their data lay in the tensor, when they were sent and had
arrived, and whether the receiver combined them with what it had or wrote over it. The algorithm is not consulted,
so a wrong one is shown as it ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from labkit.book.following import Path, follow
from labkit.book.goals import FOLLOWED, Held, ends, goal, start
from labkit.book.reads import Collective, Message, Trace
from labkit.book.units import listing, plural, seconds_text

if TYPE_CHECKING:
    from labkit.book.figure import Figure

State = tuple[tuple[Held, ...], ...]
IDEMPOTENT = ("min", "max")  # operators for which adding a contribution twice changes nothing


@dataclass(frozen=True)
class Move:
    """One message: `chunks` of rank `dst` received `carried` from rank `src`, added (`combine`) or written over.

    aside: it went into a spare buffer, and the chunks do not change before the end.
    """

    src: int
    dst: int
    chunks: tuple[int, ...]
    carried: tuple[Held, ...]
    combine: bool
    nbytes: int
    start: float
    arrived: float
    aside: bool = False


@dataclass(frozen=True)
class Frame:
    """The state after some messages have arrived. held[i][c]: what the i-th rank of the replay holds in chunk c."""

    time: float
    moves: tuple[Move, ...]
    held: State

    @property
    def state(self) -> tuple[tuple[frozenset[int], ...], ...]:
        """The ranks whose contributions are in each chunk (first index) of each rank (second index)."""
        return tuple(tuple(frozenset(chunk) for chunk in row) for row in self.held)


@dataclass(frozen=True)
class Flaw:
    """A chunk that does not hold what the collective promises. repeated: contributions that are in it too often."""

    rank: int
    chunk: int
    lacks: frozenset[int]
    repeated: frozenset[int]

    def __str__(self) -> str:
        parts = [f"lacks {names(self.lacks)}"] * bool(self.lacks) + [f"repeats {names(self.repeated)}"] * bool(
            self.repeated
        )
        return f"rank {self.rank}, chunk {self.chunk} {' and '.join(parts)}"


@dataclass(frozen=True)
class Replay:
    """A recorded collective, frame by frame.

    ranks: world ranks, in the order of their group. bounds: chunk c holds elements bounds[c] to bounds[c + 1] - 1.
    frames: one for each moment at which data arrived, in the true order. rounds: the same in few steps, where each
    message waits only for what its sender had received before, and a pair of ranks exchanges one message a round.
    promise[i][c]: what should be there at the end, None for "anything".
    assumed: messages that went into a spare buffer. What the rank then did with them no message can show; the replay
    takes them as combined, at once or at the end, whichever keeps the promise. unseen: messages of tensors that the
    replay cannot follow.
    """

    name: str
    algorithm: str
    op: str
    badge: str
    ranks: tuple[int, ...]
    bounds: tuple[int, ...]
    start: float
    end: float
    frames: tuple[Frame, ...]
    rounds: tuple[Frame, ...]
    promise: tuple[tuple[Held | None, ...], ...] = field(repr=False)
    assumed: int = 0
    unseen: int = 0

    @property
    def chunks(self) -> int:
        return len(self.bounds) - 1

    @property
    def messages(self) -> int:
        return sum(len(frame.moves) for frame in self.frames)

    @property
    def flaws(self) -> list[Flaw]:
        """Where the end differs from the promise: empty for a correct run."""
        found = []
        for i, row in enumerate(self.frames[-1].held):
            for c, held in enumerate(row):
                wanted = self.promise[i][c]
                if wanted is None or self.bounds[c] == self.bounds[c + 1]:
                    continue
                lacks = frozenset(wanted) - frozenset(held)
                repeated = frozenset(r for r in held if held.count(r) > wanted.count(r))
                if self.op in IDEMPOTENT:
                    repeated -= frozenset(wanted)
                if lacks or repeated:
                    found.append(Flaw(self.ranks[i], c, lacks, repeated))
        return found

    def complete(self, rank_index: int, chunk: int, held: Held) -> bool:
        """Whether `held` is what that rank should end with in that chunk."""
        return self.promise[rank_index][chunk] == held

    @property
    def sentence(self) -> str:
        """What happened, in words."""
        what = f"{self.name} {self.algorithm}".strip()
        text = f"{what} on {plural(len(self.ranks), 'rank')}, {plural(self.chunks, 'chunk')}: "
        text += f"{plural(self.messages, 'message')} in {plural(sum(bool(f.moves) for f in self.rounds), 'round')}, "
        text += f"{seconds_text(self.end - self.start)}. {self.verdict}"
        if self.assumed:
            text += f" {plural(self.assumed, 'message')} went into spare buffers and are taken as combined."
        if self.unseen:
            text += f" {plural(self.unseen, 'message')} could not be followed."
        return text

    @property
    def verdict(self) -> str:
        """Whether the end is right; if not, which contributions are missing or repeated, and where."""
        flaws = self.flaws
        if not flaws:
            return "At the end every rank holds what it should."
        kinds: dict[tuple[int, frozenset[int], frozenset[int]], list[str]] = {}
        for flaw in flaws:
            kinds.setdefault((flaw.chunk, flaw.lacks, flaw.repeated), []).append(str(flaw.rank))
        told = []
        for (chunk, lacks, repeated), ranks in kinds.items():
            where = f"chunk {chunk} on {'rank' if len(ranks) == 1 else 'ranks'} {listing(ranks)}"
            told.append(f"{where} " + " and ".join(
                [f"lacks the contribution of {names(lacks)}"] * bool(lacks)
                + [f"holds that of {names(repeated)} more than once"] * bool(repeated)
            ))  # fmt: skip
        more = f"; and {len(told) - 4} more" if len(told) > 4 else ""
        opening = "Not as promised, if spare buffers were combined: " if self.assumed else "Wrong at the end: "
        return opening + "; ".join(told[:4]) + more + "."

    def strip(self, frames: Sequence[Frame] | None = None) -> Figure:
        """Pictures side by side, for a page that cannot be stepped through: at most nine of the rounds by default."""
        from labkit.book.strip import strip

        return strip(self, frames)

    def __str__(self) -> str:
        return self.sentence

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, object]:
        return self.strip()._repr_mimebundle_()


def names(ranks: frozenset[int]) -> str:
    """Ranks in a sentence: rank 2; ranks 0 and 3."""
    return ("rank " if len(ranks) == 1 else "ranks ") + listing([str(r) for r in sorted(ranks)])


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
    ranks = tuple(sorted(mine))
    first = calls[mine[ranks[0]]]
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


def _replay(
    calls: list[Collective], ranks: tuple[int, ...], messages: list[Message], badge: str, late: bool
) -> Replay:
    first, shapes = calls[0], [c.shape for c in calls]
    path = follow(first, ranks, _elements(first.name, shapes), messages)
    path.late = late
    begin, end = min(c.start for c in calls), max(c.end for c in calls)
    held = start(first.name, first.root, ranks, path.bounds, shapes)
    initial = Frame(begin, (), tuple(map(tuple, held)))
    arrivals = path.run(held)
    promise = goal(first.name, first.root, ranks, path.bounds, shapes)
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
