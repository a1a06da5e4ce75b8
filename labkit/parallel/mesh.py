"""A mesh: names for the axes along which ranks work together, and a `Group` for each of them.

mesh = Mesh(group, {"dp": 2, "pp": 2, "tp": 2})
mesh["tp"]          the ranks that differ from this one in "tp" only
mesh["dp", "tp"]    the ranks that differ from it in both
mesh.coordinates    {"dp": 1, "pp": 0, "tp": 1} on rank 5
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from labkit import collectives, pictures
from labkit.parallel.fitting import check_fits, named
from labkit.parallel.layout import Layout
from labkit.parallel.refusals.agreement import gather_texts
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

__all__ = ["Layout", "Mesh"]


class Mesh:
    """Named axes over the ranks of `group`.

    sizes: ranks along each axis. The first axis is the outermost, the last one the innermost: its ranks are neighbours.
    Their product must be `group.size`. Every rank of the group makes the mesh, with the same sizes in the same order;
    what one of them brings wrongly, all refuse. That costs one all-gather of 16 bytes a rank. Groups of axes are made
    when first asked for, without a message, and kept.
    """

    def __init__(self, group: Group, sizes: Mapping[str, int]) -> None:
        problem, layout = "", None
        try:
            layout = Layout(sizes)
            check_fits(layout.sizes, group.size)
        except RefusedError as refusal:
            problem = str(refusal)
        _agree_on(group, problem, problem or named(layout.sizes if layout else {}))
        assert layout is not None
        self.group, self.layout = group, layout
        self.coordinates = layout.coordinates(group.rank)

    @property
    def sizes(self) -> dict[str, int]:
        """Ranks along each axis, outermost first."""
        return self.layout.sizes

    def __getitem__(self, axes: str | tuple[str, ...]) -> Group:
        """The group of the ranks that differ from this one in `axes` only.

        Over one axis, `mesh[axis].rank` is this rank's coordinate. Over several, the one named first is the outermost.
        """
        names = (axes,) if isinstance(axes, str) else tuple(axes)
        return self.group.subgroup(self.layout.group_of(self.group.rank, *names))

    def rank(self, **coordinates: int) -> int:
        """The rank with these coordinates; along axes that are not given, this rank's own."""
        return self.layout.rank(**{**self.coordinates, **coordinates})

    @property
    def nodes(self) -> list[int]:
        """The node of each rank of the group."""
        return [r // self.group.context.ranks_per_node for r in self.group.global_ranks]

    def crosses_nodes(self, *axes: str) -> bool:
        """Whether some group along `axes` has ranks on more than one node of this run."""
        nodes = self.nodes
        return any(len({nodes[rank] for rank in group}) > 1 for group in self.layout.groups(*axes))

    def draw(self, **options: Any) -> Any:
        """The mapping onto the nodes of this run as a figure: `labkit.book.mesh`."""
        return pictures.draw(self, **options)

    def __repr__(self) -> str:
        return f"Mesh({named(self.sizes)}; rank {self.group.rank} is {named(self.coordinates)})"


def _agree_on(group: Group, problem: str, text: str) -> None:
    """Raise `RefusedError` on every rank if one has a problem, or if they do not all bring the same text."""
    data = text.encode()
    digest = int.from_bytes(hashlib.sha256(data).digest()[:7], "big")
    table = collectives.all_gather(torch.tensor([[digest, len(data)]], device=group.device), group).tolist()
    if all(row == table[0] for row in table):
        if problem:
            raise RefusedError(problem)
        return
    lengths = [length for _, length in table]
    texts = gather_texts(group, text, lengths)
    other = next(rank for rank, theirs in enumerate(texts) if theirs != texts[0])
    raise RefusedError(
        f"the ranks did not bring the same mesh: rank 0 has ({texts[0]}), rank {other} ({texts[other]}). "
        "Give every rank the same axes, in the same order"
    )
