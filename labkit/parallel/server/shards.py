"""Which rows of which parameter lie on which server, and the head of a request.

Every parameter is cut along its first dimension, as `torch.tensor_split` cuts, so that each server has some rows of
each. A number without dimensions counts as one row. Every request goes to all servers, also to those that have nothing
of it: so all of them know the clocks of all workers, and block the same pulls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from labkit.collectives.chunks import even_sizes
from labkit.parallel.refusals.same_model import check_same
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

PULL, PUSH, TICK, END = range(4)
# The head of a request: what is asked; the worker's clock; which parameter; how many rows of this server, or WHOLE for
# all; the worker's time in nanoseconds.
WHOLE = -1


class Shards:
    """The rows of `named` parameters on `servers`, which are ranks of `group`; all other ranks are workers.

    All ranks make it together, and raise RefusedError if they brought different parameters or servers.
    """

    def __init__(self, named: Mapping[str, Tensor], group: Group, servers: Sequence[int], serving: bool):
        self.group, self.servers = group, list(servers)
        self.workers = [r for r in range(group.size) if r not in self.servers]
        fine = all(type(r) is int and 0 <= r < group.size for r in self.servers)
        if not (fine and self.servers and self.workers and len(set(self.servers)) == len(self.servers)):
            raise RefusedError(
                f"servers={self.servers}: needs different ranks of this group of {group.size}, at least one, and a "
                "rank that is left to work"
            )
        if serving != (group.rank in self.servers):
            raise RefusedError(
                f"rank {group.rank} made a {'Server' if serving else 'Client'}, but servers={self.servers}"
            )
        words = {f"parameter {name!r}": f"{tuple(x.shape)} {x.dtype}" for name, x in named.items()}
        check_same({"servers": str(self.servers)} | words, group)
        self.names = list(named)
        self.shapes = {name: tuple(x.shape) or (1,) for name, x in named.items()}
        self.outer = {name: tuple(x.shape) for name, x in named.items()}
        self.dtypes = {name: x.dtype for name, x in named.items()}
        self.edges = {
            name: [0, *accumulate(even_sizes(shape[0], len(self.servers)))] for name, shape in self.shapes.items()
        }

    def parts(self, name: str, rows: Tensor | None) -> list[slice]:
        """For each server: where in the whole parameter, or in `rows` (ascending ids), lie the rows that it has."""
        edges = self.edges[name]
        if rows is not None:
            edges = torch.searchsorted(rows, torch.tensor(edges)).tolist()
        return [slice(first, last) for first, last in pairwise(edges)]

    def check_rows(self, name: str, rows: Tensor | None) -> None:
        """Raise RefusedError for a parameter that is not there, or rows that it does not have."""
        if name not in self.edges:
            raise RefusedError(f"rank {self.group.rank}: the servers hold no {name!r}, but {', '.join(self.names)}")
        if rows is None:
            return
        if rows.dtype != torch.int64 or rows.dim() != 1:
            raise RefusedError(
                f"rank {self.group.rank}: rows of {name!r} are ids in 1-D int64, not {rows.dim()}-D {rows.dtype}"
            )
        outside = rows[(rows < 0) | (rows >= self.shapes[name][0])]
        if len(outside):
            raise RefusedError(
                f"rank {self.group.rank}: {name!r} has rows 0 to {self.shapes[name][0] - 1}, and no {int(outside[0])}"
            )


def summed(rows: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Different ids in ascending order, and for each the sum of its `values` (one for each of `rows`), in order."""
    different, place = rows.unique(return_inverse=True)
    return different, values.new_zeros((len(different), *values.shape[1:])).index_add_(0, place, values)
