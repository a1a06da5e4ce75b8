"""Algorithm bandwidth and bus bandwidth, as the NCCL tests report them (nccl-tests, doc/PERFORMANCE.md).

Algorithm bandwidth is size / time: it falls as ranks are added even if the hardware does as well as before.
Bus bandwidth multiplies it by what the best point-to-point algorithm must move through each rank's link, so
that it can be compared with the link's own bandwidth at any number of ranks. An implementation that sends
more than the best one shows a lower bus bandwidth; in-switch reduction can show more than the link has.

The size is that of the whole tensor: the input of all_reduce, broadcast, reduce, reduce_scatter and scatter,
the result of all_gather and gather, and all that one rank brings to an all_to_all.
"""

from __future__ import annotations

from labkit.cost.collectives.checks import check

__all__ = ["algorithm_bandwidth", "bus_bandwidth", "bus_factor"]

_SHARED = ("reduce_scatter", "all_gather", "all_to_all", "scatter", "gather")


def bus_factor(collective: str, size: int) -> float:
    """Bus bandwidth divided by algorithm bandwidth, for `size` ranks.

    2 (p - 1) / p for all_reduce; (p - 1) / p for reduce_scatter, all_gather, all_to_all, scatter and gather;
    1 for broadcast and reduce. Raises ValueError for others: a barrier moves no bytes.
    """
    check(size=size)
    if collective == "all_reduce":
        return 2 * (size - 1) / size
    if collective in _SHARED:
        return (size - 1) / size
    if collective in ("broadcast", "reduce"):
        return 1.0
    raise ValueError(f"no bus bandwidth is defined for {collective!r}")


def algorithm_bandwidth(nbytes: float, seconds: float) -> float:
    """Bytes per second, size over time. Raises ValueError if `seconds` is not above 0."""
    check(nbytes=nbytes, seconds=seconds)
    if seconds == 0:
        raise ValueError("a bandwidth needs a time above 0 seconds")
    return nbytes / seconds


def bus_bandwidth(collective: str, nbytes: float, seconds: float, size: int) -> float:
    """Bytes per second that each rank's link would have carried under the best point-to-point algorithm.

    nbytes: of the whole tensor. With one rank it is 0 for all but broadcast and reduce, as in the NCCL tests.
    """
    return algorithm_bandwidth(nbytes, seconds) * bus_factor(collective, size)
