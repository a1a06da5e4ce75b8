"""Say what an argument must be, when it is not: for the closed forms that are not about collectives."""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real


def positive(**values: object) -> None:
    """Raise ValueError for the first of `values` (name=value) that is no finite number above 0."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value <= 0:
            raise ValueError(f"{name} must be a number above 0, not {value!r}")


def not_negative(**values: object) -> None:
    """Raise ValueError for the first of `values` (name=value) that is no finite number of at least 0."""
    for name, value in values.items():
        if type(value) is float and 0 <= value < math.inf:
            continue  # a search asks a hundred thousand times, and `Real` is slow to ask
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value < 0:
            raise ValueError(f"{name} must be a number of at least 0, not {value!r}")


def whole(**values: object) -> None:
    """Raise ValueError for the first of `values` (name=value) that is no whole number of at least 1."""
    for name, value in values.items():
        if type(value) is int and value >= 1:
            continue
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")


def probability(**values: object) -> None:
    """Raise ValueError for the first of `values` (name=value) that is no number from 0 to 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
            raise ValueError(f"{name} must be a probability, from 0 to 1, not {value!r}")


def one_of(choices: Collection[object], **values: object) -> None:
    """Raise ValueError for the first of `values` (name=value) that is not among `choices`."""
    for name, value in values.items():
        if isinstance(value, bool) or value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def divides(**values: int) -> None:
    """Raise ValueError unless the first of two `values` (name=value) divides the second; names the nearest that do."""
    (name, part), (whole_name, total) = values.items()
    if total % part:
        fitting = [n for n in range(1, total + 1) if total % n == 0]
        near = [max(n for n in fitting if n < part), *sorted(n for n in fitting if n > part)[:1]]
        raise ValueError(
            f"{name} must divide {whole_name}={total}, and {part} does not; {' and '.join(map(str, near))} do"
        )
