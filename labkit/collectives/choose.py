"""What `algorithm="auto"` means: the algorithm that the cost model of this machine finds fastest.

The model is the closed form of each algorithm in `labkit.cost.collectives`, with alpha (seconds a message)
and beta (seconds a byte) measured once on this machine and the same on all ranks; with an emulated `Network` its
links count too, and the links between its nodes. The choice is a function of
bytes, world size, dtype and that model only, so all ranks choose alike without a word.

The model is coarse. When several algorithms are within 10 % of the fastest, the one that stands first in the
table of `labkit.cost.collectives` is taken: that is the one with fewer copies in memory and only neighbours
to talk to.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from labkit.cost import Links, chain_broadcast_best_chunks, rank_algorithms
from labkit.cost.collectives import ALGORITHMS as MODELLED

ALPHA, BETA = 70e-6, 1 / 1.5e9  # of a laptop's Unix sockets: seconds a message, seconds a byte
CLOSE_ENOUGH = 1.10
SMALLEST = 4096  # bytes of a chunk: with less, a link without latency would be fed single bytes


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
    among: Sequence[str] | None = None,
) -> Choice:
    """The algorithm for `nbytes` on `size` ranks.

    nbytes: of the tensor that every rank brings; for all_gather and gather, of the joined result.
    link_model: a `labkit.cost.Links`, or anything with `alpha` (s) and `beta` (s/byte); None for a typical laptop.
    ranks_per_node: ranks on each node, if `link_model` does not say; makes the hierarchical algorithm a candidate if
    there are several nodes. among: only these algorithms are candidates.
    """
    links = _links(link_model, size, ranks_per_node)
    return _choose(collective, nbytes, size, links, dtype, None if among is None else tuple(among))


@functools.lru_cache(maxsize=4096)  # a training step asks the same few questions again and again
def _choose(
    collective: str, nbytes: int, size: int, links: Links, dtype: torch.dtype | None, among: tuple[str, ...] | None
) -> Choice:
    ranked = rank_algorithms(collective, nbytes, size, links, among)
    seconds = {name: time for time, name in ranked}
    fastest = ranked[0][1]
    close = [name for name in seconds if seconds[name] <= CLOSE_ENOUGH * seconds[fastest]]
    first = min(close, key=MODELLED[collective].index)
    halves = collective == "reduce_scatter" and dtype in (torch.float16, torch.bfloat16)
    if halves and first != "pairwise" and "pairwise" in seconds:
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
    among: Sequence[str] | None = None,
) -> str:
    """In a sentence, what `auto` chooses for these arguments (those of `choose`) and why."""
    choice = choose(collective, nbytes, size, link_model, dtype, ranks_per_node, among)
    alpha, beta = _links(link_model, size, ranks_per_node).slowest(size)
    others = [(s, name) for name, s in choice.seconds.items() if name != choice.algorithm]  # the fastest first
    text = (
        f"{collective} of {nbytes:,} bytes on {size} rank{'s' if size > 1 else ''}: {choice.algorithm}, "
        f"{_time(choice.seconds[choice.algorithm])} by the model "
        f"({_time(alpha)} a message" + (f", {1 / beta / 1e9:.3g} GB/s)" if beta else ")")
    )
    if choice.why:
        fastest, name = others[0]
        return f"{text}. The fastest is {name}, {_time(fastest)}, but {choice.algorithm} is taken because {choice.why}."
    return text + ("; next " + ", ".join(f"{name} {_time(s)}" for s, name in others[:2]) if others else "") + "."


def chain_chunks(nbytes: int, size: int, link_model: Any = None) -> int:
    """In how many chunks a chain broadcast goes fastest: sqrt((N - 2) M beta / alpha), at least 1."""
    alpha, beta = _links(link_model, size).slowest(size)
    return chain_broadcast_best_chunks(nbytes, size, alpha, beta, limit=max(1, nbytes // SMALLEST))


def _links(link_model: Any, size: int, ranks_per_node: int | None = None) -> Links:
    """What the caller has, as links that fit a world of `size`."""
    if link_model is None:
        link_model = Links(ALPHA, BETA)
    if not isinstance(link_model, Links):
        link_model = Links(link_model.alpha, link_model.beta)
    if link_model.ranks_per_node is None and ranks_per_node:
        link_model = replace(link_model, ranks_per_node=ranks_per_node)
    if link_model.ranks_per_node is None or size % link_model.ranks_per_node == 0:
        return link_model
    between = link_model.between  # nodes of different sizes: nothing is gained by them
    return Links(max(link_model.alpha, between[0]), max(link_model.beta, between[1]))


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
