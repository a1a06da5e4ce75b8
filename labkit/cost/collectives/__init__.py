"""What every collective sends and how long it takes, in closed form, algorithm by algorithm.

For each algorithm of each collective there are five functions, by the names `{algorithm}_{collective}_...`:

    ..._bytes(nbytes, size)                      bytes sent by the busiest rank, if nbytes divides evenly
    ..._bytes_by_rank(numel, itemsize, size)     bytes sent by each rank, exact for any element count
    ..._messages_by_rank(size)                   messages sent by each rank, empty ones included
    ..._rounds(size)                             messages that must follow one another
    ..._time(nbytes, size, alpha, beta)          seconds in the alpha-beta model

with `root`, `counts`, `chunks` or `ranks_per_node` where the algorithm has them: the methods of one class an algorithm
(forms.py). `cost_of(collective, algorithm)` is one door to all. Bytes are payload. alpha is the latency of a message in
seconds, beta the seconds a byte takes; a rank sends one message and receives one at the same time (Hockney 1994;
Thakur, Rabenseifner & Gropp 2005).
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from .forms import COLLECTIVES, FORMS, offered
from .links import Links
from .parts import split_sizes
from .registry import CollectiveCost, all_costs, cost_of

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """The methods of the forms."""


# Every file is looked into. Of two algorithms that cost the same `best_algorithm` takes the one that was there first.
_FIRST = ("ring", "doubling", "tree", "chain", "hierarchical", "pairwise")
for _name in (*_FIRST, *sorted({module.name for module in iter_modules(__path__)} - {*_FIRST})):
    import_module(f"{__name__}.{_name}")

from .hierarchical import flat_ring_all_reduce_time  # noqa: E402
from .tree import tree_children  # noqa: E402

ALGORITHMS: dict[str, tuple[str, ...]] = {collective: tuple(forms) for collective, forms in FORMS.items()}
globals().update(offered())
__all__ = [
    "ALGORITHMS", "COLLECTIVES", "CollectiveCost", "Links", "all_costs", "cost_of", "flat_ring_all_reduce_time",
    "split_sizes", "tree_children", *offered(),
]  # fmt: skip
