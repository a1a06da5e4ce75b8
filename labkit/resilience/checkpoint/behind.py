"""The thread that writes a checkpoint while training goes on, and may copy the state to host memory, too.

The state does not change before the next update. So the copy need not be made while training stands still: it can be
made beside the next forward and backward, if the update then waits for it. What a forward changes (batch statistics,
random numbers) is copied at once, because it is small.
"""

from __future__ import annotations

import threading
import time

from torch import Tensor

from labkit.wire.errors import RefusedError

from . import writing
from .pieces import Piece
from .saving import Order, Writer
from .sharing import tell


class Behind(threading.Thread):
    """Writes an order while training goes on. beside: it also copies what only an update changes."""

    def __init__(self, writer: Writer, order: Order, beside: bool = False) -> None:
        super().__init__(name=f"labkit-checkpoint-{order.saved.step}", daemon=True)
        self.writer, self.order, self.problem = writer, order, ""
        self.stopped, self.staged = threading.Event(), threading.Event()
        begun = time.perf_counter()
        self._ready = writer.staging.room(order.pieces)
        self._later = [one for one in self._ready if beside and not one[0].each]
        writer.staging.copy([one for one in self._ready if not beside or one[0].each])
        self._versions = [piece.tensor._version for piece, _ in self._later]
        self._moment = writer.staging.moment()
        order.saved.staging = time.perf_counter() - begun
        order.pieces = []
        self.start()

    def run(self) -> None:
        """Write this rank's part; rank 0 then waits for the others and makes it a checkpoint."""
        try:
            self.problem = self.writer.problem_of(self._work)
        except Exception as why:  # a thread that dies tells nobody
            self.problem = f"{type(why).__name__}: {why}"
        finally:
            self.staged.set()
        self.order.saved.written = time.perf_counter() - self.order.begun

    def _work(self) -> None:
        self._copy()
        self._write()

    def _copy(self) -> None:
        later, self._later = self._later, []
        if later:
            self.writer.staging.copy(later, self._moment)
            _refuse_changed(later, self._versions)
        del later
        self.staged.set()  # from here on nothing of training is looked at

    def wait_staged(self) -> None:
        """Until the state is copied; counted as a stall."""
        if not self.staged.is_set():
            begun = time.perf_counter()
            self.staged.wait()
            waited = time.perf_counter() - begun
            self.order.saved.staging += waited
            self.order.saved.stall += waited

    def _write(self) -> None:
        self.writer.part(self.order, self._ready)
        if self.writer.group.rank == 0:
            writing.await_parts(self.order.directory, self.writer.group.size, self.writer.patience, self.stopped)
            if not self.stopped.is_set():
                self.writer.commit(self.order)

    def finish(self) -> None:
        """Wait until it is over on all ranks, which all call it. Raises NotSaved on every rank."""
        first = self.writer.group.rank == 0
        if not first:
            self.join()
        problems = tell(self.writer.group, "" if first and self.is_alive() else self.problem)
        if any(problems):
            self.stopped.set()  # rank 0 may wait for a part that will never come
        self.join()
        self.writer.conclude(self.order, problems, self.problem if first else "")


def _refuse_changed(staged: list[tuple[Piece, Tensor]], versions: list[int]) -> None:
    """A copy that was made while its tensor changed is neither of this step nor of the next."""
    for (piece, _), version in zip(staged, versions, strict=True):
        if piece.tensor._version != version:
            raise RefusedError(
                f"{piece.name!r} was changed while it was copied: call staged() of the Checkpointer before "
                "anything but the optimizer changes the state, or save without beside=True"
            )
