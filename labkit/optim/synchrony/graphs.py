"""Who averages with whom: mixing matrices, and how fast they mix.

W[i, j] is the weight that rank i gives to the weights of rank j (float64, n x n). Rows that sum to 1 make an average;
columns that sum to 1 keep the mean of all ranks where it is; a connected graph brings every rank to that mean. A graph
that changes is a list of matrices, which take turns: round k uses number k modulo their count.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from labkit.wire.errors import RefusedError

Graph: TypeAlias = Tensor | Sequence[Tensor]
ROUNDING = 1e-9


def ring(size: int) -> Tensor:
    """Each rank and its two neighbours, a third each."""
    return metropolis([(i, (i + 1) % size) for i in range(_whole(size))], size)


def complete(size: int) -> Tensor:
    """Everybody with everybody, 1/n each: one round is an all-reduce."""
    return metropolis([(i, j) for i in range(_whole(size)) for j in range(i)], size)


def bipartite(size: int) -> Tensor:
    """Every even rank with every odd one. AD-PSGD needs a graph with two such sides."""
    return metropolis([(i, j) for i in range(0, _whole(size), 2) for j in range(1, size, 2)], size)


def erdos_renyi(size: int, p: float, seed: int = 0) -> Tensor:
    """Each pair is joined with probability p, by a draw from `seed` that is the same on every rank.

    Such a graph may fall into pieces; `check_mixing` then says which ranks are apart.
    """
    if not 0 < p <= 1:
        raise RefusedError(f"p={p!r}: the probability of an edge, above 0 and up to 1")
    drawn = torch.rand(_whole(size), size, generator=torch.Generator().manual_seed(seed)) < p
    return metropolis([(i, j) for i in range(size) for j in range(i) if drawn[i, j]], size)


def exponential(size: int) -> Tensor:
    """Rank i hears from ranks i - 1, i - 2, i - 4, ... around the circle (Assran et al. 2019; Ying et al. 2021).

    log2 n neighbours, and 1 - mixing rate falls like 1 / log2 n only, where that of a ring falls like 1 / n^2.
    """
    hops = _hops(size)
    return sum((_heard(size, hop) for hop in hops), torch.eye(size, dtype=torch.float64)) / (len(hops) + 1)


def one_peer_exponential(size: int) -> list[Tensor]:
    """The same, one neighbour a round (Ying et al. 2021). If n is a power of 2, log2 n rounds make the exact mean."""
    own = torch.eye(_whole(size), dtype=torch.float64)
    return [(own + _heard(size, hop)) / 2 for hop in _hops(size)] or [own]


def metropolis(edges: Sequence[tuple[int, int]], size: int) -> Tensor:
    """Weights for any undirected graph: 1 / (1 + the larger degree) an edge, the rest to oneself (Xiao & Boyd 2004)."""
    joined = torch.zeros(size, size, dtype=torch.float64)
    for i, j in edges:
        if i != j:
            joined[i, j] = joined[j, i] = 1
    degree = joined.sum(1)
    w = joined / (1 + torch.maximum(degree[:, None], degree))
    return w + torch.diag(1 - w.sum(1))


def matrices(graph: Graph) -> list[Tensor]:
    """The matrices of a graph, in the order of their turns."""
    return [w.to(torch.float64) for w in ([graph] if isinstance(graph, Tensor) else graph)]


def heard(w: Tensor, rank: int) -> list[int]:
    """From whom `rank` hears."""
    return [j for j, weight in enumerate(w[rank].tolist()) if weight and j != rank]


def mixing_rate(graph: Graph) -> float:
    """The second largest |eigenvalue| of W: the factor by which differences between ranks shrink in a round.

    Of matrices that take turns it is the geometric mean over one turn of all. Where W commutes with its transpose, as
    the symmetric and the circulant ones here do, a round leaves at most this part of the consensus distance.
    """
    turns = matrices(graph)
    after = functools.reduce(lambda before, w: w @ before, turns)
    apart = after - 1 / len(after)  # takes away the largest eigenvalue, 1, which belongs to the mean
    return float(torch.linalg.eigvals(apart).abs().max()) ** (1 / len(turns))


def check_mixing(graph: Graph, size: int) -> list[Tensor]:
    """The matrices, if repeated rounds bring `size` ranks to their mean; else RefusedError says what prevents it."""
    turns = matrices(graph)
    for w in turns:
        if tuple(w.shape) != (size, size):
            raise RefusedError(f"the mixing matrix has shape {tuple(w.shape)}: {size} ranks need ({size}, {size})")
        i, j = divmod(int(w.nan_to_num(-math.inf).argmin()), size)
        if not w[i, j] >= 0:
            raise RefusedError(f"weight [{i}, {j}] of the mixing matrix is {float(w[i, j]):g}: it must be 0 or more")
        for name, sums in (("row", w.sum(1)), ("column", w.sum(0))):
            worst = int((sums - 1).abs().argmax())
            if abs(sums[worst] - 1) > ROUNDING:
                raise RefusedError(
                    f"{name} {worst} of the mixing matrix sums to {float(sums[worst]):.6g}: rows and columns must "
                    "each sum to 1, or the mean of the ranks drifts"
                )
    # With such sums as many weights leave a set of ranks as enter it, so whoever can be reached can also reach.
    met, fringe = {0}, [0]
    for rank in fringe:
        new = {j for w in turns for j in heard(w, rank)} - met
        met |= new
        fringe += sorted(new)
    if apart := sorted({*range(size)} - met):
        raise RefusedError(f"the graph is not connected: no path joins rank 0 with {_named(apart)}")
    if mixing_rate(turns) > 1 - ROUNDING:
        raise RefusedError("the ranks only pass their weights around and never agree: give each a weight for its own")
    return turns


def sides(graph: Tensor) -> tuple[set[int], set[int]]:
    """The two sides of a graph all of whose edges go across. Raises RefusedError, with an edge that does not."""
    side = {0: 0}
    fringe = [0]
    for i in fringe:
        for j in heard(graph, i):
            if side.setdefault(j, 1 - side[i]) == side[i]:
                raise RefusedError(
                    f"ranks {min(i, j)} and {max(i, j)} are joined and lie on the same side of the graph: AD-PSGD "
                    "needs two sides with edges between them only (a ring of an even number, or `bipartite`)"
                )
            if j not in fringe:
                fringe.append(j)
    return {r for r, s in side.items() if s == 0}, {r for r, s in side.items() if s == 1}


def _hops(size: int) -> list[int]:
    return [2**k for k in range((_whole(size) - 1).bit_length())]


def _heard(size: int, hop: int) -> Tensor:
    """A one in row i at column i - hop."""
    return torch.eye(size, dtype=torch.float64).roll(-hop, dims=1)


def _whole(size: int) -> int:
    if type(size) is not int or size < 1:
        raise RefusedError(f"size={size!r}: a graph has a whole number of ranks, at least 1")
    return size


def _named(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (" and others" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
