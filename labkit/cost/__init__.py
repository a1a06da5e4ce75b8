"""Closed forms of the book: what things send and how long they take. Imports no torch.

    links         alpha and beta of a link, the wires of clusters, which algorithm they favour
    collectives   bytes, messages, rounds and time of every algorithm of every collective
    training      a step on one device and on N: memory, batch, time, energy
    parallel      what each strategy holds and sends
    alignment     several models at once, generating and training in turn
    failures      how often what breaks, what it costs, what helps
    simulators    what is drawn by the thousand; NumPy, loaded with the first of its names
    topology      the machines of the sources, what is where on them, and how well large ones are used
    planner       what a plan of parallel training holds, sends and takes, and a search over all of them

Every name is offered here: `cost.ring_all_reduce_bytes`. A module says in its `__all__` what it offers; nothing else
lists names; those of `topology` and `planner` stay in their rooms. `textbook` and `slow_sync` recompute numbers of a
source, `claims` holds such a number beside ours; `shapes` has the transformers that all this is computed for,
`estimates` a mean and how far to trust it, `units` writes numbers down, `refuse` refuses arguments.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import slow_sync, textbook, topology, units
from .alignment import *
from .claims import *
from .collectives import *
from .estimates import *
from .failures import *
from .failures import ftar, stalls
from .links import *
from .parallel import *
from .shapes import *
from .training import *
from .units import *

if TYPE_CHECKING:
    from . import planner
    from .simulators import *


def __getattr__(name: str) -> Any:
    if name == "planner":
        return import_module("labkit.cost.planner")
    if not name.startswith("_") and name != "simulators":
        simulators = import_module("labkit.cost.simulators")
        if hasattr(simulators, name):
            return getattr(simulators, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(import_module("labkit.cost.simulators"))})
