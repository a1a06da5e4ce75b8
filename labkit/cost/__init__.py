"""Closed forms of the book: what things send and how long they take. Imports no torch.

`collectives` has the bytes, messages, rounds and time of every algorithm of every collective; `fit` finds
alpha and beta of a link from measured messages; `crossover` and `choose` compare algorithms; `bandwidth` is
the field's way to report a measured collective; `textbook` and `slow_sync` recompute numbers of the sources;
`units` writes numbers down.
"""

from . import slow_sync, textbook, units
from .bandwidth import algorithm_bandwidth, bus_bandwidth, bus_factor
from .choose import best_algorithm, rank_algorithms
from .collectives import *  # noqa: F403  (one list of the closed forms, in collectives/__init__)
from .collectives import __all__ as _closed_forms
from .crossover import (
    crossover,
    crossover_by_bisection,
    line_crossing,
    ring_recursive_doubling_crossover,
    ring_tree_crossover,
)
from .fit import LinkFit, fit_alpha_beta, fit_sends, points_of_sends
from .units import format_bandwidth, format_bytes, format_seconds

__all__ = [
    "LinkFit",
    "algorithm_bandwidth",
    "best_algorithm",
    "bus_bandwidth",
    "bus_factor",
    "crossover",
    "crossover_by_bisection",
    "fit_alpha_beta",
    "fit_sends",
    "format_bandwidth",
    "format_bytes",
    "format_seconds",
    "line_crossing",
    "points_of_sends",
    "rank_algorithms",
    "ring_recursive_doubling_crossover",
    "ring_tree_crossover",
    "slow_sync",
    "textbook",
    "units",
]
__all__ += _closed_forms
