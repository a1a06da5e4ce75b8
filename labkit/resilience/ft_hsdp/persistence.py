"""Where persistent checkpoints plug in: for the day when no replica is left, and for going on tomorrow.

`Checkpoints(directory)` keeps them with `labkit.resilience.checkpoint`; anything with these three methods will do. One
replica writes, since states are the same everywhere; all ranks of it take part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from .state import Snapshot, TrainingState, room_for


class Persistence(Protocol):
    """Keeps states where they survive all processes. What one replica saved another one may restore."""

    def save(self, inner: Group, state: TrainingState) -> None:
        """Keep `state`; may go on in the background, but not with the tensors of `state`.

        Called on all ranks of one replica, between two steps. Raises RefusedError on all of them if it cannot.
        """
        ...

    def rest(self) -> None:
        """Another replica writes from now on."""
        ...

    def restore(self, inner: Group, state: TrainingState) -> bool:
        """Put the last complete state into `state`, the same one on all ranks; False if there is none."""
        ...


class Checkpoints:
    """Checkpoints in `directory`, sharded; `keep` of the newest. They fit replicas of any number of ranks."""

    def __init__(self, directory: str | Path, keep: int = 3):
        self.directory, self.keep = Path(directory), keep
        self._open: Any = None

    def save(self, inner: Group, state: TrainingState) -> None:
        """Copy to host memory, and write behind training."""
        if self._open is None:
            self._open = self._checkpointer(inner, state)
        self._open.save(state.step, wait=False)

    def rest(self) -> None:
        """Wait for what is being written, and let others write."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def restore(self, inner: Group, state: TrainingState) -> bool:
        """The newest one that is good. Raises RefusedError for one of another model, or of other replicas."""
        checkpointer = self._checkpointer(inner, state)
        try:
            loaded = checkpointer.load()
        finally:
            checkpointer.close()
        if loaded is None:
            return False
        said = loaded.extra
        if len(said["positions"]) != len(state.positions):
            raise RefusedError(
                f"{loaded.path} is of a run with {len(said['positions'])} replicas, and this one has "
                f"{len(state.positions)}: their streams of samples differ"
            )
        state.step, state.lineage = loaded.step, said["lineage"]
        state.positions[:] = said["positions"]
        state.sum_up()
        return True

    def _checkpointer(self, inner: Group, state: TrainingState) -> Any:
        from labkit.resilience.checkpoint import Checkpointer

        def said() -> dict[str, Any]:
            return {"lineage": state.lineage, "positions": list(state.positions)}

        return Checkpointer(
            self.directory, inner, state.model, state.optimizer, keep=self.keep, random=False, extra=said
        )


def snapshot_of(state: TrainingState) -> Snapshot:
    """A copy of the present state in host memory."""
    snapshot = room_for(state.header())
    state.copy_into(snapshot)
    return snapshot
