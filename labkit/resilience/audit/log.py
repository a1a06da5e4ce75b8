"""`AuditLog` writes what a rank did to its state; `read` reads all files of a run.

A line is one write to a file opened for appending: what is written survives the death of the process.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.wire.errors import RefusedError

from .records import Commit, Fetch, Line, Start, Vote, parse

if TYPE_CHECKING:
    from torch import Tensor


class AuditLog:
    """The log of one life of one rank; several lives of a rank share the file. sync: wait for the disk at each line."""

    def __init__(
        self, folder: str | Path, replica: int, rank: int, incarnation: int, *, sync: bool = False
    ):  # fmt: skip
        self.place: dict[str, Any] = {"replica": replica, "rank": rank, "incarnation": incarnation}
        self.path = Path(folder) / f"audit-{replica:04d}-{rank:04d}.jsonl"
        self.sync = sync
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as why:
            raise RefusedError(
                f"the audit log {self.path} cannot be written: {why.strerror}. "
                "Name a folder with room in which this process may write"
            ) from why
        end = os.lseek(self._fd, 0, os.SEEK_END)
        if end and os.pread(self._fd, 1, end - 1) != b"\n":  # the life before was killed in the middle of a line
            self._write(b"\n")

    def start(self, step: int, positions: Sequence[int], checksum: str) -> None:
        """The state that this life begins with, made from the seed."""
        self.write(Start(step, **self._now(), positions=tuple(positions), checksum=checksum))

    def fetch(
        self, step: int, quorum: int, source: int, positions: Sequence[int], checksum: str, nbytes: int = 0
    ) -> None:
        """The state at the beginning of `step`, from replica `source`."""
        self.write(Fetch(step, **self._now(), quorum=quorum, source=source, positions=tuple(positions),
                         checksum=checksum, nbytes=nbytes))  # fmt: skip

    def vote(self, step: int, quorum: int, samples: tuple[int, int], yes: bool, why: str = "") -> None:
        """How the exchange went here; samples [first, last) of the own stream went into it."""
        self.write(Vote(step, **self._now(), quorum=quorum, samples=samples, yes=yes, why=why))

    def commit(
        self, step: int, quorum: int, contributors: Iterable[int], positions: Sequence[int], parent: str, checksum: str,
        loss: float | None = None, members: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """The update of `step` is applied. Call it before anybody can fetch what came of it."""
        self.write(Commit(step, **self._now(), quorum=quorum, contributors=tuple(sorted(contributors)),
                          positions=tuple(positions), parent=parent, checksum=checksum, loss=loss,
                          members=tuple(members)))  # fmt: skip

    def _now(self) -> dict[str, Any]:
        return {**self.place, "at": time.monotonic()}

    def write(self, line: Line) -> None:
        """Append a line."""
        self._write(line.text().encode() + b"\n")

    def _write(self, raw: bytes) -> None:
        try:
            done = os.write(self._fd, raw)
            if done != len(raw):
                raise OSError(28, "no room is left")
            if self.sync:
                os.fsync(self._fd)
        except OSError as why:
            raise RefusedError(
                f"the audit log {self.path} cannot be written: {why.strerror}. Without it nobody could tell "
                "which samples were used: make room and start this rank again"
            ) from why

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read(folder: str | Path) -> tuple[list[Line], list[str]]:
    """All lines of all ranks, each rank's in order; and the unfinished lines of ranks that were killed in writing.

    Raises RefusedError for a folder without logs, and for a line in the middle of a file that says nothing.
    """
    paths = sorted(Path(folder).glob("audit-*.jsonl"))
    if not paths:
        raise RefusedError(f"{folder} holds no audit logs (audit-*.jsonl)")
    lines: list[Line] = []
    torn: list[str] = []
    for path in paths:
        for text in path.read_text().splitlines():
            if not text:
                continue
            try:
                lines.append(parse(text))
            except RefusedError:
                if text.endswith("}"):
                    raise
                torn.append(f"{path.name}: {text[:60]}")
    return lines, torn


def checksum(*parts: Tensor | bytes | str) -> str:
    """16 hex digits that change with any bit of the parts, their order, dtypes and shapes (tensors of host memory)."""
    made = hashlib.blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, bytes | str):
            raw = part.encode() if isinstance(part, str) else part
            made.update(b"%d:" % len(raw))
            made.update(raw)
        else:
            import torch

            made.update(f"{part.dtype}{tuple(part.shape)}".encode())
            if part.numel():
                raw_bytes: Any = part.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy()
                made.update(raw_bytes)
    return made.hexdigest()
