"""Numbers as a reader meets them: three digits and a unit.

Decimal units throughout: kB is 10^3 bytes, MB 10^6, GB 10^9. Tables keep the exact numbers; these are for labels
and axes. What a single number looks like is decided in `labkit.cost.units`.
"""

from __future__ import annotations

from labkit.cost.units import format_bytes, format_seconds

BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def short(value: float) -> str:
    """`value` with three significant digits and no exponent below a million: 3.5, 0.125, 1230."""
    return f"{float(f'{value:.3g}'):g}"


def bytes_unit(largest: float) -> tuple[float, str]:
    """(bytes in one unit, name of the unit) that suits numbers up to `largest` bytes."""
    return next(((size, name) for size, name in BYTES if abs(largest) >= size), (1.0, "B"))


def seconds_unit(longest: float) -> tuple[float, str]:
    """(seconds in one unit, name of the unit) that suits times up to `longest` seconds."""
    return next(((size, name) for size, name in SECONDS if abs(longest) >= size), (1.0, "s"))


def bytes_text(count: float) -> str:
    """`count` bytes with three digits: 0 B, 512 B, 3.5 MB."""
    return format_bytes(count, digits=3)


def seconds_text(seconds: float) -> str:
    """`seconds` with three digits: 0 s, 12.5 µs, 1.25 ms."""
    return format_seconds(seconds, digits=3)


def plural(count: int, noun: str) -> str:
    """A count with its noun: 1 rank, 4 ranks."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listing(items: list[str]) -> str:
    """Items as in a sentence: a; a and b; a, b and c."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1] if items else "none"
