"""A recorded collective as a sequence of pictures: which rank holds whose contributions in which chunk, and when.

All of it comes from the messages of the trace: where their data lay in the tensor, when they were sent and had
arrived, and whether the receiver combined them with what it had or wrote over it. The algorithm is not consulted,
so a wrong one is shown as it ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from labkit.book.drawing.units import listing, plural, seconds_text
from labkit.book.stepping.goals import REDUCTIONS, Held

if TYPE_CHECKING:
    from labkit.book.drawing.figure import Figure

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

    def cut(self, most: int) -> Move:
        """The same with the chunks below number `most` only."""
        kept = [i for i, c in enumerate(self.chunks) if c < most]
        return replace(self, chunks=tuple(self.chunks[i] for i in kept), carried=tuple(self.carried[i] for i in kept))


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
    message waits only for what its sender had received before, and a rank sends and receives one message a round.
    promise[i][c]: what should be there at the end, None for "anything".
    assumed: messages that went into a spare buffer. What the rank then did with them no message can show; the replay
    takes them as combined, at once or at the end, whichever keeps the promise. unseen: messages of tensors that the
    replay cannot follow. mark: stands before the number of a rank where a chunk is told by whose it is, such as "r" in
    r0+r1, if bare numbers could be taken for the contents.
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
    mark: str = ""

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

    def whole(self, chunk: int, held: Held) -> bool:
        """Whether `held` only has to move: nothing is added here, and some rank should end with it in that chunk."""
        return bool(held) and self.name not in REDUCTIONS and any(row[chunk] == held for row in self.promise)

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
            everywhere = len(ranks) == len(self.ranks) > 1
            which = "every rank" if everywhere else f"rank{'s' * (len(ranks) > 1)} {listing(ranks)}"
            where = f"chunk {chunk} on {which}"
            told.append(f"{where} " + " and ".join(
                [f"lacks the contribution of {names(lacks)}"] * bool(lacks)
                + [f"counts what {names(repeated)} brought more than once"] * bool(repeated)
            ))  # fmt: skip
        more = f"; and {len(told) - 4} more" if len(told) > 4 else ""
        opening = "Wrong at the end: "
        if self.unseen:
            opening = "Not as promised, as far as messages could be followed: "
        elif self.assumed:
            opening = "Not as promised, if spare buffers were combined: "
        return opening + "; ".join(told[:4]) + more + "."

    def crop(self, most: int) -> Replay:
        """The same with the first `most` ranks and chunks only: what fits into a picture."""
        if len(self.ranks) <= most and self.chunks <= most:
            return self
        kept = self.ranks[:most]

        def cut(frame: Frame) -> Frame:
            moves = tuple(m.cut(most) for m in frame.moves if m.src in kept and m.dst in kept and m.chunks[0] < most)
            return Frame(frame.time, moves, tuple(row[:most] for row in frame.held[:most]))

        return replace(
            self, ranks=kept, bounds=self.bounds[: most + 1], frames=tuple(map(cut, self.frames)),
            rounds=tuple(map(cut, self.rounds)), promise=tuple(row[:most] for row in self.promise[:most]),
        )  # fmt: skip

    def strip(self, frames: Sequence[Frame] | None = None) -> Figure:
        """Pictures side by side, for a page that cannot be stepped through: at most nine of the rounds by default."""
        from labkit.book.drawing.strip import strip

        return strip(self, frames)

    def __str__(self) -> str:
        return self.sentence

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.strip()._repr_mimebundle_()


def names(ranks: frozenset[int]) -> str:
    """Ranks in a sentence: rank 2; ranks 0 and 3."""
    return ("rank " if len(ranks) == 1 else "ranks ") + listing([str(r) for r in sorted(ranks)])
