"""What `algorithm="auto"` means: the algorithm that the cost model of this machine finds fastest.

The model is the closed form of each algorithm in `labkit.cost.collectives`, with alpha (seconds a message)
and beta (seconds a byte) measured once on this machine and the same on all ranks. The choice is a function of
bytes, world size, dtype and that model only, so all ranks choose alike without a word.

The model is coarse. When several algorithms are within 10 % of the fastest, the one that stands first in the
table of `labkit.cost.collectives` is taken: that is the one with fewer copies in memory and only neighbours
to talk to.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from labkit.cost import chain_broadcast_best_chunks, rank_algorithms
from labkit.cost.collectives import ALGORITHMS as MODELLED

ALPHA, BETA = 70e-6, 1 / 1.5e9  # of a laptop's Unix sockets: seconds a message, seconds a byte
CLOSE_ENOUGH = 1.10


class Choice(NamedTuple):
    """The algorithm, modelled seconds of every candidate, and why not the fastest ("" if it is)."""

    algorithm: str
    seconds: dict[str, float]
    why: str


def choose(
    collective: str,
    nbytes: int,
    size: int,
    link_model: Any = None,
    dtype: torch.dtype | None = None,
    ranks_per_node: int | None = None,
) -> Choice:
    """The algorithm for `nbytes` on `size` ranks.

    nbytes: of the tensor that every rank brings; for all_gather and gather, of the joined result.
    link_model: an object with `alpha` (s) and `beta` (s/byte), or None for those of a typical laptop.
    ranks_per_node: ranks on each node; makes the hierarchical algorithm a candidate if there are several
    nodes.
    """
    return _choose(collective, nbytes, size, *_links(link_model), dtype, ranks_per_node)


@functools.lru_cache(maxsize=4096)  # a training step asks the same few questions again and again
def _choose(
    collective: str,
    nbytes: int,
    size: int,
    alpha: float,
    beta: float,
    dtype: torch.dtype | None,
    ranks_per_node: int | None,
) -> Choice:
    nodes = ranks_per_node if ranks_per_node and size % ranks_per_node == 0 else None
    ranked = rank_algorithms(collective, nbytes, size, alpha, beta, nodes)
    seconds = {name: time for time, name in ranked}
    fastest = ranked[0][1]
    close = [name for name in seconds if seconds[name] <= CLOSE_ENOUGH * seconds[fastest]]
    first = min(close, key=MODELLED[collective].index)
    if collective == "reduce_scatter" and first == "ring" and dtype in (torch.float16, torch.bfloat16):
        return Choice("pairwise", seconds, "it adds 16-bit floats in 32 bits, at the bytes of the ring")
    why = "" if first == fastest else f"{fastest} is less than 10 % faster, and heavier on memory or links"
    return Choice(first, seconds, why)


def explain(
    collective: str,
    nbytes: int,
    size: int,
    link_model: Any = None,
    dtype: torch.dtype | None = None,
    ranks_per_node: int | None = None,
) -> str:
    """In a sentence, what `auto` chooses for these arguments (those of `choose`) and why."""
    choice = choose(collective, nbytes, size, link_model, dtype, ranks_per_node)
    alpha, beta = _links(link_model)
    others = sorted((s, name) for name, s in choice.seconds.items() if name != choice.algorithm)
    text = (
        f"{collective} of {nbytes:,} bytes on {size} rank{'s' if size > 1 else ''}: {choice.algorithm}, "
        f"{_time(choice.seconds[choice.algorithm])} by the model "
        f"({_time(alpha)} a message" + (f", {1 / beta / 1e9:.3g} GB/s)" if beta else ")")
    )
    if others:
        text += "; next " + ", ".join(f"{name} {_time(s)}" for s, name in others[:2])
    return text + (f". Taken because {choice.why}." if choice.why else ".")


def chain_chunks(nbytes: int, size: int, link_model: Any = None) -> int:
    """In how many chunks a chain broadcast goes fastest: sqrt((p - 2) n beta / alpha), at least 1."""
    alpha, beta = _links(link_model)
    return chain_broadcast_best_chunks(nbytes, size, alpha, beta, limit=max(1, nbytes))


def _links(link_model: Any) -> tuple[float, float]:
    return (ALPHA, BETA) if link_model is None else (link_model.alpha, link_model.beta)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
