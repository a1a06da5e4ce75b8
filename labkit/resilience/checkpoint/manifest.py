"""The manifest: what a checkpoint is made of. It is written last, so a directory that has one is a whole checkpoint.

One line says the format and the checksum of the rest, which is JSON:

    labkit checkpoint 1 <SHA-256 of the body>
    {"step": 12, "ranks": 4, "tensors": {name: [shape, dtype]},
     "files": {"rank-0000.data": bytes}, "pieces": [[name, file, offset, bytes, CRC-32, slices], ...],
     "values": ..., "by_rank": ..., "groups": ..., "numbers": ...}

values: settings and states that are plain data, the same on all ranks; by_rank: those that differ, one for each rank.
groups, numbers: see `optimizer_state.py`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit import __version__

from .errors import Damaged, NotLoaded
from .optimizer_state import Groups, merge_groups

FORMAT, VERSION = "labkit checkpoint", 1
NAME = "manifest.json"


@dataclass(frozen=True)
class Stored:
    """A part of a tensor in a file. slices: as rows of numbers (`pieces.packed`)."""

    file: str
    offset: int
    nbytes: int
    crc: int
    slices: list[list[int]]


@dataclass
class Manifest:
    """What the file says. tensors: name -> (shape, dtype). stored: name -> its parts."""

    step: int
    ranks: int
    kind: str
    about: dict[str, str]
    tensors: dict[str, tuple[tuple[int, ...], str]]
    files: dict[str, int]
    stored: dict[str, list[Stored]]
    values: dict[str, Any] = field(default_factory=dict)
    by_rank: dict[str, list[Any]] = field(default_factory=dict)
    groups: Groups = field(default_factory=list)
    numbers: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all data files."""
        return sum(self.files.values())

    def value(self, key: str, rank: int, ranks: int) -> Any:
        """A value for `rank`. Raises NotLoaded where each rank had its own and there are more or fewer ranks now."""
        if key in self.by_rank:
            if ranks != self.ranks:
                raise NotLoaded(
                    f"each of the {self.ranks} ranks that saved had a state of its own for {key!r}, and "
                    f"there are {ranks} ranks now. Keep one that does not depend on ranks, such as a "
                    "checkpoint.Feed for data, or load with as many ranks"
                )
            return self.by_rank[key][rank]
        return self.values.get(key)

    def text(self) -> str:
        """The file."""
        rows = [[n, s.file, s.offset, s.nbytes, s.crc, s.slices] for n, parts in self.stored.items() for s in parts]
        body = json.dumps({
            "step": self.step, "ranks": self.ranks, "kind": self.kind, "about": self.about, "tensors": self.tensors,
            "files": self.files, "pieces": rows, "values": self.values, "by_rank": self.by_rank, "groups": self.groups,
            "numbers": self.numbers,
        })  # fmt: skip
        return f"{FORMAT} {VERSION} {_digest(body)}\n{body}"


def parse(text: str) -> Manifest:
    """A manifest from its file. Raises Damaged if it is not what was written, NotLoaded for another version."""
    head, _, body = text.partition("\n")
    words = head.split(" ")
    if words[:2] != FORMAT.split() or len(words) != 4:
        raise Damaged(f"{NAME} does not begin with '{FORMAT}': it is damaged, or of another program")
    if words[2] != str(VERSION):
        raise NotLoaded(
            f"this checkpoint has format {words[2]}, and labkit {__version__} reads format {VERSION}: load "
            "it with the labkit that wrote it, or a newer one"
        )
    if _digest(body) != words[3]:
        raise Damaged(f"{NAME} is damaged: its checksum is not that of what it says")
    x = json.loads(body)
    stored: dict[str, list[Stored]] = {name: [] for name in x["tensors"]}
    for name, *rest in x.pop("pieces"):
        stored[name].append(Stored(*rest))
    x["tensors"] = {name: (tuple(shape), dtype) for name, (shape, dtype) in x["tensors"].items()}
    return Manifest(stored=stored, **x)


def merge(parts: Sequence[Mapping[str, Any]], step: int, kind: str, about: Mapping[str, str]) -> Manifest:
    """The manifest of a checkpoint from what each rank wrote down (`writing.write_part`), by rank."""
    made = Manifest(step, len(parts), kind, dict(about), {}, {}, {})
    for part in parts:
        if part["bytes"]:
            made.files[part["file"]] = part["bytes"]
        for name, shape, dtype, slices, offset, nbytes, crc in part["pieces"]:
            made.tensors[name] = (tuple(shape), dtype)
            made.stored.setdefault(name, []).append(Stored(part["file"], offset, nbytes, crc, slices))
        for name, numbers in part["numbers"].items():
            made.numbers[name] = numbers
    for key in parts[0]["values"]:
        each = [part["values"][key] for part in parts]
        if all(x == each[0] for x in each):
            made.values[key] = each[0]
        else:
            made.by_rank[key] = each
    made.groups = merge_groups([part["groups"] for part in parts])
    return made


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()
