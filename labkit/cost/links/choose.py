"""Which algorithm the model says is the fastest."""

from __future__ import annotations

from collections.abc import Iterable

from labkit.cost.collectives import ALGORITHMS, cost_of
from labkit.cost.collectives.links import Links

__all__ = ["best_algorithm", "rank_algorithms"]


def rank_algorithms(
    collective: str, nbytes: float, size: int, links: Links, among: Iterable[str] | None = None
) -> list[tuple[float, str]]:
    """(seconds, algorithm), the fastest first; of those equal to nine digits, the first in `ALGORITHMS`.

    nbytes: of the whole tensor. among: only these algorithms. The hierarchical all_reduce takes part only if there is
    more than one node and more than one rank on each.
    Raises ValueError for a name that is not there, or if the nodes do not fill a world of `size`.
    """
    names = list(ALGORITHMS.get(collective, ())) if among is None else list(among)
    if among is None and not links.layered(size):
        names = [name for name in names if name != "hierarchical"]
    if not names:
        cost_of(collective, "")  # says which names there are
    timed = []
    for name in names:
        cost = cost_of(collective, name)
        seconds = cost.seconds_on(nbytes, size, links)
        timed.append((seconds, ALGORITHMS[collective].index(cost.algorithm), cost.algorithm))
    # Nine digits are what the model is good for: rounding must not decide between equals.
    timed.sort(key=lambda entry: (float(f"{entry[0]:.9g}"), entry[1]))
    return [(seconds, name) for seconds, _, name in timed]


def best_algorithm(collective: str, nbytes: float, size: int, links: Links, among: Iterable[str] | None = None) -> str:
    """The name of the fastest algorithm by the model; the same for the same arguments on every machine.

    Arguments as for `rank_algorithms`.
    """
    return rank_algorithms(collective, nbytes, size, links, among)[0][1]
