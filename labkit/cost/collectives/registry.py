"""One door to every closed form: `cost_of("all_reduce", "ring").bytes_by_rank(1000, 4, 8)`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.cost.collectives.checks import check
from labkit.cost.collectives.forms import FORMS, Form
from labkit.cost.collectives.links import Links

# What the field also calls them.
_ALSO = {
    "root_loop": "naive",
    "everyone_to_everyone": "everyone",
    "recursive_halving": "halving",
}


def _call(function: Callable[..., Any], *args: object, **options: object) -> Any:
    """Call with those options that this algorithm has, and the defaults for those that were not given."""
    known = inspect.signature(function).parameters
    return function(*args, **{k: v for k, v in options.items() if k in known and v is not None})


@dataclass(frozen=True)
class CollectiveCost:
    """What one algorithm of one collective sends, and how long that takes.

    Sizes are those of the whole tensor: what each rank brings to an all_reduce, reduce_scatter or
    all_to_all (its own part included), what all_gather and gather end with, what the root of a broadcast
    or scatter has. Where parts fall between the rows of a tensor and not between its elements, give the
    number of rows as `numel` and the bytes of a row as `itemsize`.

    Options that an algorithm does not have (a root for all_reduce) make no difference, so that the same
    call works for all:
        root            broadcast, reduce, scatter, gather
        ranks_per_node  hierarchical; all ranks are on one node if it is not given (for times it is in `Links`)
        chunks          chain, which cannot count messages or rounds without; its `seconds` are by default
                        those of the best number
        counts          replaces `numel`: elements of each rank's block for all_gather, scatter and gather,
                        counts[r][q] (what rank r has for rank q) for all_to_all
    """

    collective: str
    algorithm: str
    form: Form

    def _needs_chunks(self, chunks: int | None) -> None:
        if self.algorithm == "chain" and chunks is None:
            raise ValueError("how many messages a chain sends depends on its chunks: give chunks=")

    def bytes_by_rank(
        self,
        numel: int,
        itemsize: int,
        size: int,
        root: int = 0,
        ranks_per_node: int | None = None,
        counts: Sequence[Any] | None = None,
    ) -> list[int]:
        """Payload bytes sent by each rank, exact for any element count."""
        check(size=size, root=root)
        options = {"root": root, "ranks_per_node": ranks_per_node, "counts": counts}
        sent: list[int] = _call(self.form.bytes_by_rank, numel, itemsize, size, **options)
        return sent

    def total_bytes(
        self,
        numel: int,
        itemsize: int,
        size: int,
        root: int = 0,
        ranks_per_node: int | None = None,
        counts: Sequence[Any] | None = None,
    ) -> int:
        """Payload bytes sent by all ranks together."""
        return sum(self.bytes_by_rank(numel, itemsize, size, root, ranks_per_node, counts))

    def messages_by_rank(
        self,
        numel: int,
        itemsize: int,
        size: int,
        root: int = 0,
        ranks_per_node: int | None = None,
        counts: Sequence[Any] | None = None,
        chunks: int | None = None,
    ) -> list[int]:
        """Messages sent by each rank, empty ones included; takes what `bytes_by_rank` takes."""
        check(numel=numel, itemsize=itemsize, size=size, root=root)
        self._needs_chunks(chunks)
        options = {"root": root, "ranks_per_node": ranks_per_node, "chunks": chunks}
        sent: list[int] = _call(self.form.messages_by_rank, size, **options)
        return sent

    def rounds(self, size: int, ranks_per_node: int | None = None, chunks: int | None = None) -> int:
        """Messages that must follow one another: the factor of alpha in `seconds`."""
        self._needs_chunks(chunks)
        count: int = _call(self.form.rounds, size, ranks_per_node=ranks_per_node, chunks=chunks)
        return count

    def bytes(self, nbytes: float, size: int, ranks_per_node: int | None = None) -> float:
        """Bytes that the busiest rank sends, for `nbytes` that divide evenly."""
        sent: float = _call(self.form.bytes, nbytes, size, ranks_per_node=ranks_per_node)
        return sent

    def seconds(self, nbytes: float, size: int, alpha: float, beta: float, chunks: int | None = None) -> float:
        """Time in the alpha-beta model where all links are alike, for `nbytes` that divide evenly.

        alpha: seconds a message; beta: seconds a byte.
        """
        return self.seconds_on(nbytes, size, Links(alpha, beta), chunks)

    def seconds_on(self, nbytes: float, size: int, links: Links, chunks: int | None = None) -> float:
        """Time in the alpha-beta model on `links`, for `nbytes` that divide evenly.

        Where links between nodes are slower, an algorithm that does not know of nodes goes at their pace throughout:
        exact for a ring whose links differ in bandwidth only, an upper bound otherwise (latencies of messages that
        follow one another overlap).
        """
        if self.algorithm == "hierarchical":
            options: dict[str, object] = vars(links)
            return float(_call(self.form.time, nbytes, size, **options))
        return float(_call(self.form.time, nbytes, size, *links.slowest(size), chunks=chunks))


def cost_of(collective: str, algorithm: str) -> CollectiveCost:
    """The closed forms of one algorithm, by the names in `ALGORITHMS`.

    Raises ValueError for a name that is not there; `native` is not, for what a library sends is measured.
    """
    if collective not in FORMS:
        raise ValueError(f"no collective {collective!r}; there are {', '.join(FORMS)}")
    forms = FORMS[collective]
    name = algorithm if algorithm in forms else _ALSO.get(algorithm, algorithm)
    if name not in forms:
        raise ValueError(f"no closed form for {collective} by {algorithm!r}; there are {', '.join(forms)}")
    return CollectiveCost(collective, name, forms[name])


def all_costs() -> list[CollectiveCost]:
    """Every algorithm of every collective."""
    return [cost_of(collective, name) for collective, forms in FORMS.items() for name in forms]
