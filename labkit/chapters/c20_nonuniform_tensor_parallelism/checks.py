"""What the run of chapter 20's explanation must show, worked out on paper: who computes with what, and what moves.

Two replicas of three ranks each train a small GPT. Rank `lost` is killed in the backward pass of step `step`, and its
replica goes on with two. Everything here is counted with sets of shards, and not by `labkit.resilience.ntp`, which the
run itself uses; tests hold the two against each other.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.models import GPTConfig

WIDTH, IDS, CONTEXT, COLUMNS_OF_A_HEAD, EXPANSION = 3, 256, 16, 4, 4
STATE_BYTES = 3 * 8  # a weight and the two moments of AdamW, in float64
REPAIR = 2  # steps that a lost rank is away, at least


def own_model(heads: int) -> GPTConfig:
    """The GPT of the run: one layer, heads of 4 columns."""
    from labkit.models import GPTConfig

    width = COLUMNS_OF_A_HEAD * heads
    return GPTConfig(vocab=IDS, context=CONTEXT, layers=1, heads=heads, width=width, expansion=EXPANSION)


def sizes_of(heads: int) -> list[tuple[int, int]]:
    """(shards, parameters of each): of the heads, of the columns of the feed-forward part, of the vocabulary."""
    width = COLUMNS_OF_A_HEAD * heads
    one_head = COLUMNS_OF_A_HEAD * (4 * width + 3)  # queries, keys and values with their biases, and rows of the output
    return [(heads, one_head), (EXPANSION * width, 2 * width + 1), (IDS, width)]


def stretch(count: int, ranks: int, position: int) -> set[int]:
    """The shards of one of `ranks` stretches, the longer ones first."""
    short, long = divmod(count, ranks)
    first = position * short + min(position, long)
    return set(range(first, first + short + (position < long)))


def of_the_whole(count: int, position: int) -> set[int]:
    """The shards with which a position of the replica of three computes, while the other one has two ranks.

    Positions 0 and 1 keep the beginning of their stretch of two, as much as a third of all; position 2 has the rest.
    """
    if position == WIDTH - 1:
        return set(range(count)) - of_the_whole(count, 0) - of_the_whole(count, 1)
    keeps = len(stretch(count, WIDTH, position))
    return set(sorted(stretch(count, WIDTH - 1, position))[:keeps])


def ranks_of(lost: int) -> tuple[list[int], list[int]]:
    """World ranks of the whole replica, and those that are left of the narrow one, by position."""
    replicas = [list(range(WIDTH)), list(range(WIDTH, 2 * WIDTH))]
    narrow = replicas.pop(lost // WIDTH)
    return replicas[0], [rank for rank in narrow if rank != lost]


def shards_before(rank: int, count: int) -> set[int]:
    """What a world rank computed with before the loss."""
    return stretch(count, WIDTH, rank % WIDTH)


def shards_after(lost: int, rank: int, count: int) -> set[int]:
    """What a world rank computes with while `lost` is away."""
    whole, narrow = ranks_of(lost)
    if rank in whole:
        return of_the_whole(count, whole.index(rank))
    return stretch(count, WIDTH - 1, narrow.index(rank))


def state_moved(lost: int, heads: int) -> Counter[tuple[int, int]]:
    """Bytes of state by (sender, receiver) when the rank is lost. What a rank lacks comes from its own replica, if
    somebody there has it."""
    living = [rank for rank in range(2 * WIDTH) if rank != lost]
    found: Counter[tuple[int, int]] = Counter()
    for count, numel in sizes_of(heads):
        for rank in living:
            for shard in shards_after(lost, rank, count) - shards_before(rank, count):
                holders = [other for other in living if shard in shards_before(other, count)]
                near = [other for other in holders if other // WIDTH == rank // WIDTH]
                (source,) = near or holders
                found[source, rank] += STATE_BYTES * numel
    return found


def examples_of(lost: int, batch: int) -> tuple[int, int]:
    """Examples of a step while the rank is away: of the whole replica, and of the narrow one.

    As many a rank as whole examples allow. A tie would have to be broken: the batches of the exercise have none.
    """
    parts = 2 * WIDTH - 1
    narrow, twice = divmod(2 * batch * (WIDTH - 1) + parts, 2 * parts)  # rounded to the nearest
    assert twice, "a tie"
    return batch - narrow, narrow


def ends_with(lost: int, rank: int, heads: int) -> list[int]:
    """Which ranks must not be lost in the same step as `rank`, while `lost` is away: a shard would be nowhere."""
    whole, narrow = ranks_of(lost)
    left = [*whole, *narrow]

    def gone(pair: set[int]) -> bool:
        kept = [other for other in left if other not in pair]
        return any(
            set(range(count)) != set().union(*(shards_after(lost, other, count) for other in kept))
            for count, _ in sizes_of(heads)
        )

    return [other for other in left if other != rank and gone({rank, other})]


def moved_while_arranging(run: Any) -> Counter[tuple[int, int]]:
    """Bytes of state by (sender, receiver) that moved after the first loss in an NtpRun, from its trace.

    The state moves in the span "arrange" of the step that was given up, in messages that belong to no collective.
    """
    given_up = next(attempt.step for attempt in run.attempts if attempt.loss is None)
    trace = run.run.trace
    spans = [span for span in trace.spans("arrange") if span.step == given_up]
    found: Counter[tuple[int, int]] = Counter()
    for m in trace.sends:
        if m.collective < 0 and any(span.rank == m.src and span.start <= m.start <= span.end for span in spans):
            found[m.src, m.dst] += m.nbytes
    return found
