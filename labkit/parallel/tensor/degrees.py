"""By how many ranks a layer can be divided, and what is said where it cannot."""

from __future__ import annotations

import math
from collections.abc import Mapping

from labkit.wire.errors import RefusedError


def degrees(dimensions: Mapping[str, int]) -> list[int]:
    """All numbers of ranks by which every one of `dimensions` (name: length) divides."""
    common = math.gcd(*dimensions.values())
    return [n for n in range(1, common + 1) if common % n == 0]


def check_divides(what: str, dimensions: Mapping[str, int], size: int) -> None:
    """Raise `RefusedError` unless all `dimensions` divide by `size`; names those that do not, and what would."""
    wrong = [f"{name} = {length}" for name, length in dimensions.items() if length % size]
    if not wrong:
        return
    fit = degrees(dimensions)
    below, above = [n for n in fit if n < size][-1:], [n for n in fit if n > size][:1]
    near = " and ".join(map(str, below + above))
    raise RefusedError(
        f"{what} over {size} ranks: {' and '.join(wrong)} {'does' if len(wrong) == 1 else 'do'} not divide by {size}. "
        f"The nearest {'degree' if len(below + above) == 1 else 'degrees'} of tensor parallelism that "
        f"{'divides' if len(below + above) == 1 else 'divide'} {_listed(dimensions)}: {near}"
    )


def _listed(dimensions: Mapping[str, int]) -> str:
    words = [f"{name} = {length}" for name, length in dimensions.items()]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
