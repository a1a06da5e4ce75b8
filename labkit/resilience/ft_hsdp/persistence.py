"""Where a persistent checkpoint plugs in: for the day when no replica is left.

`labkit.resilience.checkpoint` has one; anything with these two methods will do. All ranks of a replica call them.
"""

from __future__ import annotations

from typing import Any, Protocol

from labkit.wire.group import Group

from .state import Snapshot, TrainingState, room_for


class Persistence(Protocol):
    """Keeps states where they survive all processes.

    Rank i of any replica may read what rank i of another one wrote.
    """

    def save(self, inner: Group, snapshot: Snapshot) -> None:
        """Keep this rank's snapshot (`snapshot.header` has step, lineage, positions); may go on in the background.

        Called on all ranks of one replica, between two steps. A state that is not complete must not be restored.
        """
        ...

    def restore(self, inner: Group) -> Snapshot | None:
        """This rank's snapshot of the last complete state, of one and the same step on all ranks; None if none is."""
        ...


def snapshot_of(state: TrainingState) -> Snapshot:
    """A copy of the present state in host memory."""
    snapshot = room_for(state.header())
    state.copy_into(snapshot)
    return snapshot


def restore_into(state: TrainingState, keeper: Any, inner: Group) -> bool:
    """Load the last persistent state, if there is one; whether there was."""
    found = None if keeper is None else keeper.restore(inner)
    if found is None:
        return False
    state.load(found)
    return True
