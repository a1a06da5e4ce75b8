"""Which algorithm the model says is the fastest."""

from __future__ import annotations

from collections.abc import Iterable

from .collectives.registry import ALGORITHMS, cost_of


def rank_algorithms(
    collective: str,
    nbytes: float,
    size: int,
    alpha: float,
    beta: float,
    ranks_per_node: int | None = None,
    inter_alpha: float | None = None,
    inter_beta: float | None = None,
    among: Iterable[str] | None = None,
) -> list[tuple[float, str]]:
    """(seconds, algorithm), the fastest first; of those equal to nine digits, the first in `ALGORITHMS`.

    nbytes: of the whole tensor. (alpha, beta): the links, or those inside nodes of `ranks_per_node` when the
    ones between nodes, (inter_alpha, inter_beta), are slower. `among`: only these algorithms. The
    hierarchical all_reduce takes part only if there is more than one node and more than one rank on each.
    Raises ValueError for a name that is not there, or if `ranks_per_node` does not divide `size`.
    """
    names = list(ALGORITHMS.get(collective, ())) if among is None else list(among)
    if among is None and not (ranks_per_node is not None and 1 < ranks_per_node < size):
        names = [name for name in names if name != "hierarchical"]
    if not names:
        cost_of(collective, "")  # says which names there are
    timed = []
    for name in names:
        cost = cost_of(collective, name)
        seconds = cost.seconds(nbytes, size, alpha, beta, ranks_per_node, inter_alpha, inter_beta)
        timed.append((seconds, ALGORITHMS[collective].index(cost.algorithm), cost.algorithm))
    # Nine digits are what the model is good for: rounding must not decide between equals.
    timed.sort(key=lambda entry: (float(f"{entry[0]:.9g}"), entry[1]))
    return [(seconds, name) for seconds, _, name in timed]


def best_algorithm(
    collective: str,
    nbytes: float,
    size: int,
    alpha: float,
    beta: float,
    ranks_per_node: int | None = None,
    inter_alpha: float | None = None,
    inter_beta: float | None = None,
    among: Iterable[str] | None = None,
) -> str:
    """The name of the fastest algorithm by the model; the same for the same arguments on every machine.

    Arguments as for `rank_algorithms`.
    """
    ranked = rank_algorithms(collective, nbytes, size, alpha, beta, ranks_per_node, inter_alpha, inter_beta, among)
    return ranked[0][1]
