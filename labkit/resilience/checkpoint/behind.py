"""The thread that writes a checkpoint while training goes on."""

from __future__ import annotations

import threading
import time

from . import writing
from .saving import Order, Writer
from .sharing import tell


class Behind(threading.Thread):
    """Writes an order while training goes on."""

    def __init__(self, writer: Writer, order: Order) -> None:
        super().__init__(name=f"labkit-checkpoint-{order.saved.step}", daemon=True)
        self.writer, self.order, self.problem = writer, order, ""
        self.stopped = threading.Event()
        begun = time.perf_counter()
        self._ready = writer.staging.take(order.pieces)
        order.saved.staging = time.perf_counter() - begun
        order.pieces = []
        self.start()

    def run(self) -> None:
        """Write this rank's part; rank 0 then waits for the others and makes it a checkpoint."""
        try:
            self.problem = self.writer.problem_of(self._write)
        except Exception as why:  # a thread that dies tells nobody
            self.problem = f"{type(why).__name__}: {why}"
        self.order.saved.written = time.perf_counter() - self.order.begun

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
