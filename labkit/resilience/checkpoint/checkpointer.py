"""`Checkpointer`: save and load the state of a run, whatever strategy trains it.

with Checkpointer("runs/first", group, model, optimizer, loader=feed) as checkpoints:
    loaded = checkpoints.load()                       # None at the very beginning
    for step in range(loaded.step if loaded else 0, steps):
        ...
        checkpoints.save(step + 1, wait=False)        # training goes on while it is written
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from labkit.parallel.refusals.agreement import agree
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from . import place
from .behind import Behind
from .loading import Loaded, load_newest
from .saving import Saved, Writer
from .training import Training


class Checkpointer:
    """The checkpoints of a run in `directory`, which all ranks of `group` see. Every rank makes one, alike.

    group: all ranks that hold a part of the model. model: a module, `DataParallel`, `FullyShard`, ZeRO,
        `TensorParallelGPT`, a `Pipeline` or the list of its stages here. The options of `Training` are passed on:
        scheduler, loader, random, stream, extra, identity.
    kind: "sharded": each rank writes what it holds, copies are written once. "full": rank 0 gathers and writes all.
        Both can be loaded by any number of ranks, cut in any way.
    keep: so many of the newest are kept (None: all), and besides those of steps that `keep_every` divides.
    patience: seconds that rank 0 waits for the others' parts, when writing goes on behind training.

    What goes wrong with a save raises NotSaved on every rank, by the time the next call is made; what goes wrong with
    a load raises NotLoaded, and nothing has changed. Leaving the `with` block waits for the writing that goes on.
    """

    def __init__(
        self, directory: str | Path, group: Group, model: Any, optimizer: Any = None, *, kind: str = "sharded",
        keep: int | None = 3, keep_every: int | None = None, patience: float = 600.0, **state: Any,
    ) -> None:  # fmt: skip
        self.directory, self.group = Path(directory).absolute(), group
        problem = None
        try:
            if kind not in ("sharded", "full"):
                raise RefusedError(f"kind={kind!r}: 'sharded' or 'full'")
            for name, value in (("keep", keep), ("keep_every", keep_every)):
                if value is not None and (type(value) is not int or value < 1):
                    raise RefusedError(f"{name}={value!r}: a whole number, 1 or more, or None")
            if not 0 < patience < float("inf"):
                raise RefusedError(f"patience={patience!r}: a number of seconds above 0")
            self.training = Training(model, optimizer, group, **state)
        except RefusedError as why:
            problem = str(why)
        agree(group, problem)
        self._writer = Writer(self.directory, group, kind, keep, keep_every, patience)
        self._behind: Behind | None = None
        self._hooks: list[Any] = []  # on the optimizers: an update waits for the copy

    def save(self, step: int, *, wait: bool = True, beside: bool = False) -> Saved:
        """Save the state after `step` steps. Every rank calls it, between two steps.

        wait: return when it is on the disk. Otherwise return when the state is copied to host memory; the rest is done
        by a thread. A save that is still being written is waited for first.
        beside: with wait=False, do not even wait for the copy: the thread makes it beside the next forward and
        backward. The next `step()` of the optimizer waits for it. Who changes parameters or the optimizer's state by
        other means calls `staged()` before.
        Raises NotSaved on every rank, also for the save before, if that could not be written.
        """
        begun = time.perf_counter()
        self._refuse_beside(wait, beside)
        self.finish()
        order = self._writer.agree(step, lambda: (self.training.pieces(), self.training.plain()))
        if wait:
            self._writer.write_now(order)
            order.saved.written = time.perf_counter() - begun
        else:
            self._behind = Behind(self._writer, order, beside)
        order.saved.stall = time.perf_counter() - begun
        return order.saved

    def finish(self) -> Saved | None:
        """Wait until nothing is being written any more. Every rank calls it. Raises NotSaved on every rank."""
        if self._behind is None:
            return None
        begun, behind = time.perf_counter(), self._behind
        self._behind = None
        try:
            behind.finish()
        finally:
            behind.order.saved.stall += time.perf_counter() - begun
        return behind.order.saved

    def staged(self) -> None:
        """After `beside=True`: wait until the state is copied to host memory, and may change."""
        if self._behind is not None:
            self._behind.wait_staged()

    def _refuse_beside(self, wait: bool, beside: bool) -> None:
        if not beside:
            return
        if wait:
            raise RefusedError("save(beside=True) goes with wait=False: with wait=True training stands still anyway")
        if self.training.inside is not None:
            what = "ZeRO" if self.training.zero is not None else "a hybrid run"
            raise RefusedError(
                f"save(beside=True) is not for {what}: its update does not wait for the copy. Leave it out"
            )
        if not self._hooks:
            self._hooks = [o.register_step_pre_hook(lambda *_: self.staged()) for o in self.training.optimizers]

    @property
    def writing(self) -> bool:
        """Whether this rank still writes."""
        return self._behind is not None and self._behind.is_alive()

    def load(self, step: int | None = None) -> Loaded | None:
        """Go on from the newest checkpoint that is good, or from the newest one of `step`. Every rank calls it.

        Damaged ones are passed over (`Loaded.skipped` says why); None if there is no checkpoint at all. Everything is
        read and checked before anything is changed. Raises NotLoaded on every rank.
        """
        self.finish()
        loaded = load_newest(self.training, self.group, self.directory, step)
        if loaded is not None and loaded.skipped:
            newer = [f.path for f in place.found(self.directory) if f.path.name > loaded.path.name]
            self._writer.damaged |= set(newer)
        return loaded

    def close(self) -> None:
        """Wait for what is being written, and let others write here. Every rank calls it."""
        try:
            self.finish()
        finally:
            self._release()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()
            return
        if self._behind is not None:  # other ranks may be gone: nothing is asked of them
            self._behind.stopped.set()
            self._behind.join()
        self._release()

    def _release(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._writer.release()
