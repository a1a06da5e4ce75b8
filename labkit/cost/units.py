"""Units of the book: GB is 10^9 bytes, GiB is 2^30 bytes, Gb is 10^9 bits. Times are in seconds.

`3 * GB` is a number of bytes, `25 * GB` a bandwidth in bytes per second, `200 * Gb` the same bandwidth by the
name that network vendors give it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["format_bandwidth", "format_bytes", "format_seconds"]

KB, MB, GB, TB, PB = 10**3, 10**6, 10**9, 10**12, 10**15
KiB, MiB, GiB, TiB = 2**10, 2**20, 2**30, 2**40
Kb, Mb, Gb, Tb = 125, 125 * 10**3, 125 * 10**6, 125 * 10**9  # bits, counted in bytes

MS, US, NS = 1e-3, 1e-6, 1e-9
MINUTE, HOUR, DAY = 60, 3600, 86400

_DECIMAL = [(1, "B"), (KB, "kB"), (MB, "MB"), (GB, "GB"), (TB, "TB"), (PB, "PB")]
_BINARY = [(1, "B"), (KiB, "KiB"), (MiB, "MiB"), (GiB, "GiB"), (TiB, "TiB")]
_TIME = [(NS, "ns"), (US, "µs"), (MS, "ms"), (1.0, "s"), (MINUTE, "min"), (HOUR, "h"), (DAY, "days")]


def _format(value: float, units: Sequence[tuple[float, str]], digits: int) -> str:
    if not math.isfinite(value) or value == 0:
        unit = "s" if units is _TIME else "B"
        return f"{value:g} {unit}"
    # The largest unit in which the rounded number is at least 1: 999.96 kB is 1 MB, not 1000 kB.
    rounded = [(float(f"{value / scale:.{digits}g}"), name) for scale, name in units]
    number, name = next((pair for pair in reversed(rounded) if abs(pair[0]) >= 1), rounded[0])
    text = f"{number:.{digits}g}"
    return f"{number:.0f} {name}" if "e+" in text else f"{text} {name}"


def format_bytes(nbytes: float, digits: int = 4, binary: bool = False) -> str:
    """`nbytes` with at most `digits` significant digits: "0 B", "5.812 GB"; with `binary`, "64 MiB"."""
    return _format(nbytes, _BINARY if binary else _DECIMAL, digits)


def format_seconds(seconds: float, digits: int = 4) -> str:
    """`seconds` with at most `digits` significant digits: "11.67 ms", "2.8 h"."""
    return _format(seconds, _TIME, digits)


def format_bandwidth(bytes_per_second: float, digits: int = 4) -> str:
    """`bytes_per_second` with at most `digits` significant digits: "25 GB/s"."""
    return format_bytes(bytes_per_second, digits) + "/s"
