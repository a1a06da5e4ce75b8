"""Writing a checkpoint with all ranks: what they say to each other, and the thread that writes behind training."""

from __future__ import annotations

import contextlib
import json
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from labkit import __version__
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from . import files, place, writing
from .errors import NotSaved
from .pieces import Piece, bytes_of
from .sharing import SavePlan, share, tell, whole_pieces
from .staging import Staging, in_place


@dataclass
class Saved:
    """One checkpoint, written or being written. The times are those of this rank.

    path: where it is, or will be. nbytes: of tensors that this rank writes.
    stall: seconds that training waited for it, later waits included. staging: of these, for the copy to host memory.
    written: seconds from the beginning until this rank's part was on the disk (rank 0: until all was).
    """

    step: int
    path: Path
    nbytes: int = 0
    stall: float = 0.0
    staging: float = 0.0
    written: float = 0.0
    whole: bool = False


@dataclass
class Order:
    """What the ranks have agreed to write."""

    saved: Saved
    directory: Path  # where it is written
    pieces: list[Piece]
    plain: Mapping[str, Any]
    begun: float


class Writer:
    """The saving half of a `Checkpointer`. kind: "sharded" or "full"."""

    def __init__(
        self, directory: Path, group: Group, kind: str, keep: int | None, keep_every: int | None, patience: float
    ) -> None:
        self.directory, self.group, self.kind, self.patience = directory, group, kind, patience
        self.keep, self.keep_every = keep, keep_every
        self.damaged: set[Path] = set()
        self.staging = Staging(group.device)
        self._lock: place.Lock | None = None
        self._plan: tuple[Any, SavePlan] | None = None

    # -- before anything is written ----------------------------------------------------------------------------

    def agree(self, step: int, gather: Any) -> Order:
        """All ranks agree on where, what, and who. gather: () -> pieces, plain. Raises NotSaved on every rank."""
        begun, pieces, plain = time.perf_counter(), list[Piece](), {}
        said: dict[str, Any] = {"problem": "", "step": step if type(step) is int else None}
        try:
            if type(step) is not int or step < 0:
                raise RefusedError(f"save({step!r}): the number of steps done, 0 or more")
            pieces, plain = gather()
            said["each"] = {p.name: _crc(p) for p in pieces if p.each}
            if self.group.rank == 0:
                said["writing"], said["whole"] = map(str, self._begin(step))
        except OSError as why:
            said["problem"] = files.in_words(why, "cannot write in", self.directory)
        except RefusedError as why:
            said["problem"] = str(why)
        kinds = [(p.name, p.shape, p.tensor.dtype, p.slices) for p in pieces]
        known = self._plan is not None and self._plan[0][0] == kinds
        told = [json.loads(text) for text in tell(self.group, json.dumps(said | {"known": known}))]
        problem = next((f"on rank {r}: {t['problem']}" for r, t in enumerate(told) if t["problem"]), "")
        if not problem and any(t["step"] != step for t in told):
            problem = f"the ranks save different steps: {', '.join(str(t['step']) for t in told)}"
        if problem:
            self._give_up(told[0].get("writing"))
            raise NotSaved(f"the checkpoint of step {told[0]['step']} was not saved. {problem}")
        pieces, apart = _apart(pieces, [t["each"] for t in told], self.group.rank)
        if self._plan is None or not all(t["known"] for t in told) or self._plan[0][1] != apart:
            try:
                self._plan = (kinds, apart), share(self.group, pieces, self.kind == "full")
            except NotSaved:
                self._give_up(told[0]["writing"])
                raise
        plan = self._plan[1]
        if self.kind == "full":
            pieces = whole_pieces(self.group, pieces, plan)
        else:
            pieces = [pieces[i] for i in plan.mine]
        nbytes = sum(p.nbytes for p in pieces)
        return Order(Saved(step, Path(told[0]["whole"]), nbytes), Path(told[0]["writing"]), pieces, plain, begun)

    def _begin(self, step: int) -> tuple[Path, Path]:
        if self._lock is None:
            self._lock = place.Lock(self.directory)
            place.clear(self.directory)
        return place.begin(self.directory, step)

    def _give_up(self, directory: str | Path | None) -> None:
        if self.group.rank == 0 and directory:
            files.remove(Path(directory))

    # -- writing -----------------------------------------------------------------------------------------------

    def write_now(self, order: Order) -> None:
        """Write and wait. Raises NotSaved on every rank."""
        problem = self.problem_of(lambda: self.part(order, in_place(order.pieces)))
        problems = tell(self.group, problem)
        if not any(problems) and self.group.rank == 0:
            problem = self.problem_of(lambda: self.commit(order))
        self.conclude(order, problems, problem)

    def part(self, order: Order, ready: writing.Ready) -> None:
        """This rank's part. Raises OSError."""
        writing.write_part(order.directory, self.group.rank, ready, order.plain)

    def commit(self, order: Order) -> None:
        """Make the parts a checkpoint, on rank 0. Raises OSError, NotSaved."""
        about = {"labkit": __version__, "torch": torch.__version__, "written": time.strftime("%Y-%m-%d %H:%M:%S")}
        step, size = order.saved.step, self.group.size
        writing.commit(order.directory, order.saved.path, size, step, self.kind, about)
        with contextlib.suppress(OSError):
            place.retain(self.directory, self.keep, self.keep_every, self.damaged)

    def problem_of(self, work: Any) -> str:
        """What went wrong in `work()`, in words; "" if nothing did."""
        try:
            work()
        except OSError as why:
            return files.in_words(why, "cannot write in", self.directory)
        except RefusedError as why:
            return str(why)
        return ""

    def conclude(self, order: Order, problems: Sequence[str], last: str) -> None:
        """After all have written, rank 0 tells what became of it. last: rank 0's problem since."""
        found = [f"on rank {r}: {p}" for r, p in enumerate(problems) if p] + ([f"on rank 0: {last}"] if last else [])
        text = found[0] if found else ""
        if text and self.group.rank == 0:
            self._give_up(order.directory)
            good = [f for f in place.found(self.directory) if f.path not in self.damaged]
            text += f". The newest one is that of step {good[0].step}" if good else ". There is no earlier one"
        outcome = tell(self.group, text if self.group.rank == 0 else "")[0]
        if outcome:
            raise NotSaved(f"the checkpoint of step {order.saved.step} was not saved. {outcome}")
        order.saved.whole = True

    def release(self) -> None:
        """Let others write here."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _crc(piece: Piece) -> int:
    return zlib.crc32(bytes_of(piece.tensor.to("cpu").contiguous()))


def _apart(pieces: list[Piece], told: Sequence[Mapping[str, int]], rank: int) -> tuple[list[Piece], list[Any]]:
    """Pieces that every rank has its own of, and that are not the same on all: renamed on the ranks that differ.

    told: checksums by name, of each rank. Returns the pieces, and which ranks differ in what.
    """
    first: dict[str, int] = {}
    for names in told:
        for name, crc in names.items():
            first.setdefault(name, crc)
    differ = [[r, name] for r, names in enumerate(told) for name, crc in names.items() if crc != first[name]]
    mine = {name for r, name in differ if r == rank}
    return [replace(p, name=f"own/{rank}/{p.name}") if p.name in mine else p for p in pieces], differ
