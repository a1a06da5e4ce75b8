"""Checkpoints: the state of a run on the disk, whole or not at all, for any number of ranks, cut in any way.

    Checkpointer(directory, group, model, optimizer)      save(step), load(); sharded or full, at once or behind
    Feed(count, group, batch=8)                           data whose place in an epoch can be saved
    available(directory)                                  what is there, the newest first; no rank is needed for these
    read(directory)                                       whole tensors by name
    check(directory)                                      everything that is wrong with a checkpoint

Every strategy is seen through one small interface (`pieces.py`): a piece is the name and shape of a whole tensor, which
slices of it a rank holds, and the elements. `holdings.py` gives them for each strategy, `slices.py` computes what
two cuts have in common, `sharing.py` who writes what, `writing.py` in which order, `reading.py` reads and checks.
"""

from .checkpointer import Checkpointer
from .errors import Damaged, NotLoaded, NotSaved
from .feed import Feed
from .loading import Loaded
from .looking import available, check, read
from .pieces import Piece
from .place import Found
from .saving import Saved
from .slices import StridedSlice

__all__ = [
    "Checkpointer", "Damaged", "Feed", "Found", "Loaded", "NotLoaded", "NotSaved", "Piece", "Saved", "StridedSlice",
    "available", "check", "read",
]  # fmt: skip
