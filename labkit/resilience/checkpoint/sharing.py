"""Who writes what: ranks tell each other what they hold, and share out the copies, so that each is written once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from labkit import collectives
from labkit.parallel.refusals.agreement import gather_texts
from labkit.wire.group import Group

from .errors import NotSaved
from .pieces import DTYPES, Piece, covered, packed, unpacked


@dataclass
class SavePlan:
    """mine: places in this rank's list of pieces of those it writes. rows: every piece once, in order of names:
    (writer, name, shape, dtype, slices). digest: of what this rank holds."""

    mine: list[int]
    rows: list[tuple[int, str, list[int], str, list[list[int]]]] = field(default_factory=list)
    digest: str = ""


def tell(group: Group, text: str) -> list[str]:
    """The text of every rank, on every rank."""
    lengths = collectives.all_gather(torch.tensor([len(text.encode())], device=group.device), group).tolist()
    return gather_texts(group, text, lengths)


def layout(pieces: Sequence[Piece]) -> str:
    """A digest of what a rank holds, without the values."""
    return hashlib.sha256(json.dumps([piece.words() for piece in pieces]).encode()).hexdigest()[:16]


def share(group: Group, pieces: Sequence[Piece], whole: bool = False) -> SavePlan:
    """Every piece gets a writer among those who hold it: the one with the fewest bytes so far.

    whole: rank 0 will write everything, so whatever it holds itself is its own.

    Sends what each rank holds to all, as names and numbers. Raises NotSaved on every rank if ranks bring different
    tensors under one name, or if all of them together do not have the whole of one.
    """
    told = [json.loads(text) for text in tell(group, json.dumps([p.words() for p in pieces]))]
    kinds: dict[str, tuple[int, Any]] = {}
    holders: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for rank, rows in enumerate(told):
        for place, (name, shape, dtype, slices) in enumerate(rows):
            first, kind = kinds.setdefault(name, (rank, (shape, dtype)))
            if kind != (shape, dtype):
                raise NotSaved(
                    f"{name!r} is {_words(shape, dtype)} on rank {rank} and {_words(*kind)} on rank {first}"
                    ": they are not parts of one tensor"
                )
            holders.setdefault((name, json.dumps(slices)), []).append((rank, place))
    _refuse_holes(kinds, holders)
    plan, load = SavePlan([], digest=layout(pieces)), [0] * group.size
    for (name, slices), held in sorted(holders.items()):
        shape, dtype = kinds[name][1]
        where = json.loads(slices)
        rank, place = min(held, key=lambda one: (0 if whole else load[one[0]], one[0]))
        load[rank] += sum(row[1] * row[2] for row in where) * DTYPES[dtype].itemsize
        plan.rows.append((rank, name, shape, dtype, where))
        if rank == group.rank:
            plan.mine.append(place)
    return plan


def _refuse_holes(kinds: dict[str, tuple[int, Any]], holders: dict[tuple[str, str], list[tuple[int, int]]]) -> None:
    parts: dict[str, list[Any]] = {}
    for name, slices in holders:
        parts.setdefault(name, []).append(unpacked(json.loads(slices)))
    for name, those in parts.items():
        why = covered(kinds[name][1][0], those)
        if why:
            raise NotSaved(
                f"{name!r}: {why}. Make the Checkpointer with the group of all ranks that hold the model, "
                "not of one axis of the mesh"
            )


def whole_pieces(group: Group, pieces: Sequence[Piece], plan: SavePlan) -> list[Piece]:
    """For a full checkpoint: all tensors put together on rank 0, in host memory. Other ranks send, and get nothing."""
    mine = {(p.name, json.dumps(packed(p.slices))): p for p in pieces}
    found: dict[str, Piece] = {}
    for writer, name, shape, dtype, slices in plan.rows:
        size = sum(row[1] * row[2] for row in slices) * DTYPES[dtype].itemsize
        if group.rank == writer != 0 and size:
            values = mine[name, json.dumps(slices)].tensor.contiguous().to(group.device)
            group.send(values.view(torch.uint8), 0)
        if group.rank != 0:
            continue
        if writer == 0:
            values = mine[name, json.dumps(slices)].tensor
        else:
            values = torch.empty(size, dtype=torch.uint8, device=group.device)
            values = (group.recv(values, writer) if size else values).view(DTYPES[dtype])
        if name not in found:
            found[name] = Piece.whole(name, torch.empty(shape, dtype=DTYPES[dtype]))
        found[name].take(Piece(name, tuple(shape), unpacked(slices), values.to("cpu")))
    return list(found.values())


def _words(shape: Sequence[int], dtype: str) -> str:
    return f"{list(shape)} of {dtype}"
