"""Emulated links: what a slower wire would do to the same messages.

A message of n bytes over a link costs `latency + n / bandwidth` (the alpha-beta model of Hockney 1994).
Each rank has one sending and one receiving port for each kind of link, full duplex: messages that share
a port follow one another. Links inside a node and between nodes differ, as NVLink and InfiniBand do.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.cost.collectives.links import Links

from .errors import RefusedError


@dataclass(frozen=True)
class Link:
    """A link by `bandwidth` in bytes per second and `latency` in seconds."""

    bandwidth: float = float("inf")
    latency: float = 0.0

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise RefusedError(f"a link's bandwidth must be above 0 bytes/s, not {self.bandwidth}")
        if not 0 <= self.latency < float("inf"):
            raise RefusedError(f"a link's latency must be 0 s or more, not {self.latency}")

    def seconds(self, nbytes: int) -> float:
        """Time for one message of `nbytes` on an idle link."""
        return self.latency + nbytes / self.bandwidth


@dataclass(frozen=True)
class Network:
    """`nodes` machines of `ranks_per_node` ranks; rank r lives on node r // ranks_per_node."""

    nodes: int = 1
    ranks_per_node: int | None = None
    intra: Link = Link()
    inter: Link = Link()

    def __post_init__(self) -> None:
        for name in ("nodes", "ranks_per_node"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise RefusedError(f"Network({name}={value!r}): must be a whole number of at least 1")
        for name in ("intra", "inter"):
            if not isinstance(getattr(self, name), Link):
                raise RefusedError(f"Network({name}={getattr(self, name)!r}): must be a labkit.Link")

    def per_node(self, world_size: int) -> int:
        """Ranks on each node for a world of `world_size`; refuses a world that does not fit."""
        k = self.ranks_per_node or -(-world_size // self.nodes)
        if k * self.nodes != world_size:
            raise RefusedError(
                f"Network(nodes={self.nodes}, ranks_per_node={k}) holds {k * self.nodes} ranks, "
                f"but the world has {world_size}: make nodes * ranks_per_node equal to world_size"
            )
        return k

    def link(self, a: int, b: int, per_node: int) -> Link:
        """The link between two world ranks."""
        return self.intra if a // per_node == b // per_node else self.inter


def emulated_links(machine: Links | None, network: Network, per_node: int) -> Links:
    """What the cost model is told of `network` on a machine with such links: an emulated link is never faster."""
    alpha, beta = (machine.alpha, machine.beta) if machine is not None else (0.0, 0.0)
    (a, b), (c, d) = (
        (max(alpha, link.latency), max(beta, 1 / link.bandwidth)) for link in (network.intra, network.inter)
    )
    return Links(a, b, per_node, c, d)
