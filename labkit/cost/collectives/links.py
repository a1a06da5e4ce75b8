"""The links of a run in the alpha-beta model: those inside nodes, and those between."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.cost.collectives.checks import check

__all__ = ["Links"]


@dataclass(frozen=True)
class Links:
    """alpha: seconds a message. beta: seconds a byte (Hockney 1994).

    ranks_per_node: neighbouring ranks that share a node; all of them if it is None. inter_alpha, inter_beta: the same
    of the links between nodes, which are like those inside unless given. Raises ValueError for what cannot be.
    """

    alpha: float
    beta: float
    ranks_per_node: int | None = None
    inter_alpha: float | None = None
    inter_beta: float | None = None

    def __post_init__(self) -> None:
        check(
            alpha=self.alpha, beta=self.beta, ranks_per_node=self.ranks_per_node, inter_alpha=self.inter_alpha,
            inter_beta=self.inter_beta,
        )  # fmt: skip

    def nodes(self, size: int) -> tuple[int, int]:
        """(number of nodes, ranks on each) of a world of `size`; ValueError if the nodes do not fill it."""
        check(size=size, ranks_per_node=self.ranks_per_node)
        k = size if self.ranks_per_node is None else self.ranks_per_node
        return size // k, k

    def layered(self, size: int) -> bool:
        """Whether there is more than one node, and more than one rank on each."""
        return self.ranks_per_node is not None and 1 < self.ranks_per_node < size

    @property
    def between(self) -> tuple[float, float]:
        """(alpha, beta) of the links between nodes."""
        return (
            self.alpha if self.inter_alpha is None else self.inter_alpha,
            self.beta if self.inter_beta is None else self.inter_beta,
        )

    def slowest(self, size: int) -> tuple[float, float]:
        """(alpha, beta) at whose pace an algorithm goes that knows nothing of nodes."""
        nodes, k = self.nodes(size)
        if nodes == 1:
            return self.alpha, self.beta
        alpha, beta = self.between
        return (alpha, beta) if k == 1 else (max(alpha, self.alpha), max(beta, self.beta))
