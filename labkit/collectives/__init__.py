"""Collectives, built from send and receive: a file for each family of algorithms.

    all_reduce(x, group, op="sum", algorithm="auto")        any of them by name
    ring_all_reduce(x, group)                               an algorithm itself: read its source
    ALGORITHMS["all_reduce"]                                all there are
    explain("all_reduce", 4_000_000, 8)                     what "auto" would choose, and why

    broadcast        naive.py, tree.py, chain.py
    reduce           naive.py, tree.py
    all_reduce       naive.py, everyone.py, ring.py, recursive_doubling.py, halving_doubling.py, tree.py,
                     hierarchical.py
    reduce_scatter   ring.py, halving_doubling.py, pairwise.py
    all_gather       ring.py, bruck.py
    all_to_all       pairwise.py, bruck.py
    scatter, gather  rooted.py
    barrier          dissemination.py

native.py has what the transport's own library offers. The algorithms stand on chunks.py
(cutting tensors), folding.py (numbers of ranks that are not a power of two), registry.py with checks.py and
frame.py (what the `@algorithm` line does), and choose.py ("auto").
Bytes, messages, rounds and seconds of each are functions in `labkit.cost.collectives`.

In the docstrings N is the number of ranks (`n` in the code) and M the bytes of the tensor (of
the joined one where blocks are gathered).
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from labkit.collectives.api import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)  # fmt: skip
from labkit.collectives.choose import choose, explain
from labkit.collectives.registry import ALGORITHMS, algorithm

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """An algorithm: a function of any file here that has `@algorithm` above it."""


for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")

_algorithms = {one.__name__: one for of_collective in ALGORITHMS.values() for one in of_collective.values()}
globals().update(_algorithms)
__all__ = [
    "ALGORITHMS", "algorithm", "all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "choose", "explain",
    "gather", "reduce", "reduce_scatter", "scatter", *_algorithms,
]  # fmt: skip
