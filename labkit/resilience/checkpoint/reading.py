"""Reading a checkpoint: the parts that overlap with what is wanted, each checked before any of it is used."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from . import files, manifest
from .errors import Damaged, NotLoaded
from .manifest import Manifest, Stored
from .pieces import DTYPES, copy_common, unpacked
from .slices import StridedSlice, common, everything, numel


def read_text(checkpoint: Path) -> str:
    """The manifest's text. Raises Damaged if it cannot be read."""
    try:
        return (checkpoint / manifest.NAME).read_text()
    except (OSError, UnicodeDecodeError) as why:
        raise Damaged(f"{checkpoint}: {manifest.NAME} cannot be read: {why}") from None


def open_manifest(checkpoint: Path) -> Manifest:
    """The manifest. Raises Damaged or NotLoaded, naming the checkpoint."""
    try:
        return manifest.parse(read_text(checkpoint))
    except Damaged as why:
        raise Damaged(f"{checkpoint.name}: {why}") from None
    except NotLoaded as why:
        raise NotLoaded(f"{checkpoint.name}: {why}") from None


def read_part(checkpoint: Path, saved: Manifest, name: str, wanted: tuple[StridedSlice, ...]) -> Tensor:
    """This part of tensor `name`, 1-D in host memory. Raises Damaged, naming file and tensor."""
    _, dtype = saved.tensors[name]
    values = torch.empty(numel(wanted), dtype=DTYPES[dtype])
    copied = 0
    for stored in saved.stored[name]:
        held = unpacked(stored.slices)
        if common(held, wanted):
            copied += copy_common(read_stored(checkpoint, name, stored, dtype), held, values, wanted)
    if copied != len(values):
        raise Damaged(
            f"{checkpoint.name}: {len(values) - copied:,} of {len(values):,} elements of {name!r} are missing"
        )
    return values


def read_stored(checkpoint: Path, name: str, stored: Stored, dtype: str) -> Tensor:
    """A part as it was written. Raises Damaged if a byte of it is not as it was."""
    path = checkpoint / stored.file
    try:
        data = files.read_range(path, stored.offset, stored.nbytes)
    except OSError as why:
        raise Damaged(f"{checkpoint.name}: {stored.file} cannot be read, where {name!r} is: {why}") from None
    if len(data) < stored.nbytes:
        raise Damaged(
            f"{checkpoint.name}: {stored.file} was cut short: it ends {stored.nbytes - len(data):,} bytes "
            f"before the end of {name!r}"
        )
    if zlib.crc32(data) != stored.crc:
        raise Damaged(
            f"{checkpoint.name}: {stored.file} is damaged: bytes {stored.offset:,} to "
            f"{stored.offset + stored.nbytes - 1:,}, {name!r}, are not what was written"
        )
    if not data:
        return torch.empty(0, dtype=DTYPES[dtype])
    return torch.frombuffer(data, dtype=torch.uint8).view(DTYPES[dtype])


def read_whole(checkpoint: Path, saved: Manifest, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """(name without the prefix, whole tensor) of all that begin with it."""
    for name, (shape, _) in saved.tensors.items():
        if name.startswith(prefix):
            whole = read_part(checkpoint, saved, name, everything(int(torch.Size(shape).numel())))
            yield name.removeprefix(prefix), whole.view(shape)


def problems(checkpoint: Path) -> list[str]:
    """Everything that is wrong with a checkpoint: all of it is read."""
    try:
        saved = open_manifest(checkpoint)
    except NotLoaded as why:
        return [str(why)]
    found = []
    for name, parts in saved.stored.items():
        for stored in parts:
            try:
                read_stored(checkpoint, name, stored, saved.tensors[name][1])
            except Damaged as why:
                found.append(str(why))
    return found
