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
)
from labkit.collectives.bruck import bruck_all_gather, bruck_all_to_all
from labkit.collectives.chain import chain_broadcast
from labkit.collectives.choose import choose, explain
from labkit.collectives.dissemination import dissemination_barrier
from labkit.collectives.everyone import everyone_all_reduce
from labkit.collectives.halving_doubling import halving_doubling_all_reduce, halving_reduce_scatter
from labkit.collectives.hierarchical import hierarchical_all_reduce
from labkit.collectives.naive import naive_all_reduce, naive_broadcast, naive_reduce
from labkit.collectives.native import (
    native_all_gather,
    native_all_reduce,
    native_all_to_all,
    native_barrier,
    native_broadcast,
    native_reduce,
    native_reduce_scatter,
)
from labkit.collectives.pairwise import pairwise_all_to_all, pairwise_reduce_scatter
from labkit.collectives.recursive_doubling import recursive_doubling_all_reduce
from labkit.collectives.registry import ALGORITHMS, algorithm
from labkit.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from labkit.collectives.rooted import naive_gather, naive_scatter
from labkit.collectives.tree import tree_all_reduce, tree_broadcast, tree_reduce

__all__ = [
    "ALGORITHMS",
    "algorithm",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "bruck_all_gather",
    "bruck_all_to_all",
    "chain_broadcast",
    "choose",
    "dissemination_barrier",
    "everyone_all_reduce",
    "explain",
    "gather",
    "halving_doubling_all_reduce",
    "halving_reduce_scatter",
    "hierarchical_all_reduce",
    "naive_all_reduce",
    "naive_broadcast",
    "naive_gather",
    "naive_reduce",
    "naive_scatter",
    "native_all_gather",
    "native_all_reduce",
    "native_all_to_all",
    "native_barrier",
    "native_broadcast",
    "native_reduce",
    "native_reduce_scatter",
    "pairwise_all_to_all",
    "pairwise_reduce_scatter",
    "recursive_doubling_all_reduce",
    "reduce",
    "reduce_scatter",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
    "scatter",
    "tree_all_reduce",
    "tree_broadcast",
    "tree_reduce",
]
