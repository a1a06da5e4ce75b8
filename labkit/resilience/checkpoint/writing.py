"""From pieces to a whole checkpoint on the disk: each rank writes its part, rank 0 makes the parts a checkpoint.

    rank r:   rank-000r.data        all pieces, one after the other; on the disk before the next line
              rank-000r.json        what is in it, with the checksum of each piece
    rank 0:   manifest.json         when the parts of all ranks are there
              000007-step-12        the directory gets its name: from now on it is a checkpoint

A crash before the last line leaves something that is never read, and is removed by the next one who writes.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from . import files, manifest
from .errors import NotSaved
from .pieces import Piece, bytes_of

Ready = Iterable[tuple[Piece, Tensor]]  # a piece, and its values in host memory, 1-D and contiguous


def write_part(directory: Path, rank: int, ready: Ready, plain: Mapping[str, Any]) -> int:
    """Write what rank `rank` has to write; returns the bytes of tensors. Raises OSError."""
    name, rows, nbytes = f"rank-{rank:04d}.data", [], 0
    out: files.Output | None = None
    try:
        for piece, values in ready:
            out = out or files.Output(directory / name)
            data = bytes_of(values)
            offset, crc = out.add(data)
            rows.append([*piece.words(), offset, len(data), crc])
            nbytes += len(data)
        if out is not None:
            out.finish()
    finally:
        if out is not None:
            out.close()
    part = {"file": name, "bytes": 0 if out is None else out.size, "pieces": rows, **plain}
    files.write_text(directory / f"rank-{rank:04d}.json", json.dumps(part))
    return nbytes


def await_parts(directory: Path, ranks: int, patience: float, stopped: threading.Event) -> None:
    """Return when the parts of all ranks are there.

    A file system that many hosts share tells nobody of new files, so it looks for them, more and more rarely. Raises
    NotSaved after `patience` seconds, or when `stopped` is set.
    """
    missing, end, pause = list(range(ranks)), time.monotonic() + patience, 0.002
    while True:
        missing = [r for r in missing if not (directory / f"rank-{r:04d}.json").exists()]
        if not missing:
            return
        if stopped.wait(min(pause, max(0.0, end - time.monotonic()))):
            raise NotSaved("the checkpoint was given up before all ranks had written their part")
        if time.monotonic() >= end:
            raise NotSaved(
                f"rank {', '.join(map(str, missing[:4]))} had not written its part of the checkpoint after "
                f"{patience:g} s: it died, hangs, or sees another directory"
            )
        pause = min(0.05, 1.5 * pause)


def commit(writing: Path, whole: Path, ranks: int, step: int, kind: str, about: Mapping[str, str]) -> None:
    """Make a checkpoint of the parts that all ranks have written. Raises OSError, and NotSaved."""
    names = [writing / f"rank-{r:04d}.json" for r in range(ranks)]
    parts = [json.loads(name.read_text()) for name in names]
    made = manifest.merge(parts, step, kind, about)
    for file, size in made.files.items():
        there = (writing / file).stat().st_size
        if there != size:
            raise NotSaved(f"{writing / file} has {there} bytes, and {size} were written: is the disk shared?")
    files.write_text(writing / manifest.NAME, made.text())
    for name in names:
        os.unlink(name)
    files.sync_directory(writing)
    os.rename(writing, whole)
    files.sync_directory(whole.parent)
