"""A batch in microbatches, and how much the loss of each counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from labkit.wire.errors import RefusedError

Count = Callable[[Tensor], int]


def pieces_of(inputs: Sequence[Tensor], sizes: Sequence[int]) -> list[tuple[Tensor, ...]]:
    """The inputs of each microbatch."""
    return list(zip(*(x.split(list(sizes)) for x in inputs), strict=True))


def sizes_of(examples: int, microbatches: int, sizes: Sequence[int] | None = None) -> list[int]:
    """Examples in each microbatch: as even as can be, the first ones larger, or the given `sizes`.

    Raises RefusedError for fewer examples than microbatches, and for sizes that do not add up.
    """
    if sizes is not None:
        sizes = list(sizes)
        if len(sizes) != microbatches or sum(sizes) != examples or min(sizes) < 1:
            raise RefusedError(
                f"sizes={sizes}: needs {microbatches} numbers of at least 1, one per microbatch of the "
                f"schedule, which add up to the batch of {examples}"
            )
        return sizes
    if examples < microbatches:
        raise RefusedError(
            f"a batch of {examples} examples cannot be cut into {microbatches} microbatches: each needs one. "
            f"Make a schedule of {max(1, examples)} microbatches or fewer, or a larger batch"
        )
    whole, more = divmod(examples, microbatches)
    return [whole + (k < more) for k in range(microbatches)]


def shares(targets: Sequence[Tensor], count: Count) -> list[float]:
    """What the loss of each microbatch is multiplied by, so that their sum is the mean over the whole batch.

    The loss of a microbatch is a mean over `count(targets)` things: examples, or tokens that are not masked.
    """
    counts = [int(count(y)) for y in targets]
    total = sum(counts)
    if total < 1 or min(counts) < 0:
        raise RefusedError(
            f"the microbatches count {counts} {'things' if total else 'nothing'} between them: the loss is a "
            "mean over what `count` counts, and needs at least one"
        )
    return [c / total for c in counts]
