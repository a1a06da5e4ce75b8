"""Three-way merge of a notebook by cell: the edition a copy was made from, the copy, and a new edition.

Pure: dictionaries in, dictionaries out. Cells are the same cell when they have the same id.

A cell's content is its type, source and attachments. What the reader changed stays; what only the edition
changed is replaced. Where both changed a cell, the reader's stays, and the edition's stands below it as text: text
is not run, so "Run All" still runs what the reader wrote. Outputs stay with cells whose content stays.
"""

import copy
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Cell = dict[str, Any]
Notebook = dict[str, Any]

TAG = "labkit-from-edition"
NOTE = (
    "> **From the new edition.** You changed the cell above, and so did the new edition. Your cell stays as it is. "
    "This is the edition's: take from it what you want, then delete this cell."
)
LONGEST_ID = 64  # characters, by the notebook format


@dataclass
class Merged:
    """A merged notebook, and the ids of cells by what happened to them. `lost_base`: there was none to compare with."""

    notebook: Notebook
    replaced: list[str] = field(default_factory=list)  # by the edition's; the reader had not touched them
    added: list[str] = field(default_factory=list)  # new in the edition
    removed: list[str] = field(default_factory=list)  # gone from the edition; the reader had not touched them
    conflicts: list[str] = field(default_factory=list)  # changed by both
    outlived: list[str] = field(default_factory=list)  # gone from the edition; kept, because the reader changed them
    stay_deleted: list[str] = field(default_factory=list)  # deleted by the reader, changed by the edition


def merge(base: Notebook | None, mine: Notebook, new: Notebook) -> Merged:
    """The reader's notebook `mine`, made from `base`, brought to the edition `new`. No argument is changed.

    base: None when it was lost; then every cell that differs is a conflict. When `new` equals `base` the result equals
    `mine`. Merging the result again, with `base` or with `new` as its base, gives the result.
    """
    was, ours, theirs = (_by_id(notebook) for notebook in (base or {"cells": []}, mine, new))
    merged = Merged({})
    kept: dict[str, Cell] = {}
    beside: dict[str, Cell] = {}  # the edition's version of cells in conflict, by the reader's cell's id
    for name, cell in ours.items():
        before, after = was.get(name), theirs.get(name)
        if after is None:
            if before is not None and same(cell, before):
                merged.removed.append(name)
                continue
            if before is not None:
                merged.outlived.append(name)
            kept[name] = cell
            continue
        chosen = cell
        if before is not None and same(cell, before) and not same(cell, after):
            chosen = cleared(after)
            merged.replaced.append(name)
        elif not same(cell, after) and (before is None or not same(after, before)):
            beside[name] = after
            merged.conflicts.append(name)
        metadata = _three_way((before or {}).get("metadata", {}), cell["metadata"], after["metadata"])
        kept[name] = chosen | {"metadata": metadata}
    for name, after in theirs.items():
        if name not in ours and name not in was:
            kept[name] = cleared(after)
            merged.added.append(name)
        elif name not in ours and not same(after, was[name]):
            merged.stay_deleted.append(name)
    order = _order(list(was), list(ours), list(theirs), set(kept))
    order = _place_conflicts(order, kept, beside, was, theirs)
    cells = [copy.deepcopy(kept[name]) for name in order]
    metadata = _three_way((base or {}).get("metadata", {}), mine["metadata"], new["metadata"])
    merged.notebook = mine | {"metadata": copy.deepcopy(metadata), "cells": cells}
    return merged


def same(one: Cell, other: Cell) -> bool:
    """Whether two cells have the same content. Outputs, counts and metadata do not count."""
    return all(one.get(key) == other.get(key) for key in ("cell_type", "source")) and (
        (one.get("attachments") or {}) == (other.get("attachments") or {})
    )


def cleared(cell: Cell) -> Cell:
    """The cell as if it had never run."""
    return cell | {"outputs": [], "execution_count": None} if cell["cell_type"] == "code" else dict(cell)


def from_edition(cell: Cell, name: str) -> Cell:
    """The edition's version of a cell as a text cell with the id `name`, marked as such."""
    text = cell["source"]
    if cell["cell_type"] != "markdown":
        longest = max((len(run) for run in re.findall("`+", text)), default=0)
        fence = "`" * max(3, longest + 1)
        text = f"{fence}{'python' if cell['cell_type'] == 'code' else ''}\n{text}\n{fence}"
    shown: Cell = {
        "id": name, "cell_type": "markdown", "metadata": {"tags": [TAG]}, "source": f"{NOTE}\n\n{text}",
    }  # fmt: skip
    return shown | ({"attachments": cell["attachments"]} if cell.get("attachments") else {})


def _by_id(notebook: Notebook) -> dict[str, Cell]:
    """Cells by id, in order. A second cell of the same id gets one of its own."""
    found: dict[str, Cell] = {}
    for cell in notebook["cells"]:
        name = _fresh(cell["id"], found) if cell["id"] in found else cell["id"]
        found[name] = cell | {"id": name}
    return found


def _fresh(name: str, taken: Iterable[str]) -> str:
    """`name` with the first number behind it that makes it new."""
    taken, number = set(taken), 2
    while (candidate := f"{name[: LONGEST_ID - 8]}-{number}") in taken:
        number += 1
    return candidate


def _three_way(before: dict[str, Any], mine: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Metadata, key by key: the edition's where the reader (or JupyterLab for the reader) changed nothing."""
    chosen = {}
    for key in [*mine, *(key for key in after if key not in mine)]:
        source = after if (key in before) == (key in mine) and before.get(key) == mine.get(key) else mine
        if key in source:
            chosen[key] = source[key]
    return chosen


def _order(was: list[str], ours: list[str], theirs: list[str], kept: set[str]) -> list[str]:
    """The ids of `kept` in order: the edition's order, unless the reader moved cells; then the reader's.

    A cell that only one side has follows the cell that it follows there. Where both added one in the same place,
    the reader's comes first: it stays next to what it was written under.
    """
    common = {*was} & {*ours} & {*theirs}
    moved = [name for name in ours if name in common] != [name for name in was if name in common]
    first, second = (ours, theirs) if moved else (theirs, ours)
    order = [name for name in first if name in kept]
    own = {name for name in ours if name not in theirs}
    for place, name in enumerate(second):
        if name not in kept or name in order:
            continue
        before = next((other for other in reversed(second[:place]) if other in order), None)
        at = order.index(before) + 1 if before is not None else 0
        while moved and at < len(order) and order[at] in own:
            at += 1
        order.insert(at, name)
    return order


def _place_conflicts(
    order: list[str], kept: dict[str, Cell], beside: dict[str, Cell], was: dict[str, Cell], theirs: dict[str, Cell]
) -> list[str]:
    """Put the edition's version under each cell in conflict; take out one that an earlier sync put there.

    An earlier one that the reader changed is the reader's, and stays.
    """
    for name in list(order):
        if name not in theirs or (name in was and same(was[name], theirs[name])):
            continue
        stem = f"{name[: LONGEST_ID - 24]}-from-edition"
        wanted = beside.get(name)
        old = [
            other for other in order
            if re.fullmatch(re.escape(stem) + r"(-\d+)?", other) and TAG in kept[other]["metadata"].get("tags", [])
        ]  # fmt: skip
        if wanted is not None and any(same(kept[other], from_edition(wanted, other)) for other in old):
            continue
        untouched = [other for other in old if name in was and same(kept[other], from_edition(was[name], other))]
        for other in untouched:
            order.remove(other)
            del kept[other]
        if wanted is not None:
            taken = {*kept, *was, *theirs}
            note = stem if stem not in taken else _fresh(stem, taken)
            kept[note] = from_edition(wanted, note)
            order.insert(order.index(name) + 1, note)
    return order
