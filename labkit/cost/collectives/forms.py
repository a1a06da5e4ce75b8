"""What a closed form is: one class for each algorithm of each collective, and the table of them.

    class RingAllReduce(Form): ...

    ring_all_reduce = RingAllReduce("all_reduce", "ring")

is found in FORMS["all_reduce"]["ring"], and its methods are offered as `cost.ring_all_reduce_bytes` and the like.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.cost.collectives.checks import check

COLLECTIVES = (
    "broadcast", "reduce", "all_reduce", "reduce_scatter", "all_gather", "scatter", "gather", "all_to_all", "barrier",
)  # fmt: skip
FORMS: dict[str, dict[str, Form]] = {collective: {} for collective in COLLECTIVES}


class Form:
    """What one algorithm of one collective sends, and how long that takes; p is the number of ranks.

    An algorithm has `rounds`, `bytes` and `bytes_by_rank`; the others follow, where it does not say otherwise. Each
    may have parameters more (root, counts, chunks, ranks_per_node).
    """

    rounds: Callable[..., int]
    bytes: Callable[..., float]
    bytes_by_rank: Callable[..., list[int]]

    def __init__(self, collective: str, algorithm: str):
        self.collective, self.algorithm = collective, algorithm
        FORMS[collective][algorithm] = self

    def messages_by_rank(self, size: int) -> list[int]:
        """One a round from every rank; an empty one is still a message."""
        return [self.rounds(size)] * size

    def time(self, nbytes: float, size: int, alpha: float, beta: float) -> float:
        """rounds * alpha + bytes * beta seconds."""
        check(alpha=alpha, beta=beta)
        return self.rounds(size) * alpha + self.bytes(nbytes, size) * beta


def offered() -> dict[str, Any]:
    """Every method of every form by its full name, `ring_all_reduce_bytes`."""
    return {
        f"{made.algorithm}_{made.collective}_{what}": getattr(made, what)
        for algorithms in FORMS.values()
        for made in algorithms.values()
        for what in dir(made)
        if not what.startswith("_") and callable(getattr(made, what))
    }
