"""Bytes that somebody handed in, read as the cells of a notebook, whatever they are. Nothing of them is run.

A file is read once, through a descriptor that follows no link and is a regular file; what cannot be read as it should
be is read as well as it can be, and each departure is a sentence.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import stat
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.cost.units import MB

LARGEST = 20 * MB  # bytes of a notebook file; outputs are in it, and are not needed
LONGEST_CELL = 500_000  # characters of a cell that is taken
MOST_CELLS = 5_000
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"),
          (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))  # fmt: skip


class Unreadable(Exception):
    """No notebook can be had from this file; the text is a sentence for the student."""


@dataclass(frozen=True)
class Cell:
    """A cell as it was handed in: type "code", "markdown" or something else, id "" where there is none."""

    type: str
    id: str
    source: str
    metadata: dict[str, Any]


@dataclass(frozen=True)
class Handed:
    """The bytes of a file, their hash, when the file was last changed, and what there was to say about it."""

    raw: bytes
    sha256: str
    received: str
    problems: list[str] = field(default_factory=list)


def take_file(path: Path) -> Handed:
    """The file at `path`. Raises Unreadable for a link, for anything but a file, and for one above `LARGEST`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise Unreadable(f"{path.name} is a link to another place, and no file: hand in the notebook.") from None
        raise Unreadable(f"{path.name} cannot be opened ({error.strerror}).") from None
    with open(fd, "rb") as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise Unreadable(f"{path.name} is no file: hand in the notebook.")
        raw = file.read(LARGEST + 1)
    if len(raw) > LARGEST:
        size = f"{about.st_size / MB:.0f} MB; up to {LARGEST / MB:.0f} MB are read"
        raise Unreadable(f"{path.name} has {size}: clear the outputs, save, and hand it in again.")
    when = datetime.fromtimestamp(about.st_mtime, UTC).isoformat(timespec="seconds")
    return Handed(raw, hashlib.sha256(raw).hexdigest(), when)


def cells_of(raw: bytes, problems: list[str]) -> list[Cell]:
    """The cells of a notebook file of any version; what is odd is told in `problems`. Raises Unreadable."""
    data = _parsed(_decoded(raw, problems), problems)
    if not isinstance(data, dict):
        raise Unreadable("The file is JSON, but no notebook.")
    if data.get("nbformat") != 4:
        problems.append(f"The file says that it is a notebook of format {_short(data.get('nbformat'))}, not 4.")
    found = data.get("cells")
    if not isinstance(found, list):
        sheets = data.get("worksheets")  # format 3
        sheets = [s for s in sheets if isinstance(s, dict)] if isinstance(sheets, list) else []
        found = [c for s in sheets if isinstance(s.get("cells"), list) for c in s["cells"]]
        if not found:
            raise Unreadable("The file is JSON, but no notebook: it has no cells.")
    if len(found) > MOST_CELLS:
        problems.append(f"The notebook has {len(found):,} cells; the first {MOST_CELLS:,} were read.")
    cells = [_cell(c) for c in found[:MOST_CELLS] if isinstance(c, dict)]
    if len(cells) < len(found[:MOST_CELLS]):
        problems.append("Some cells of the notebook are no cells, and were left out.")
    return cells


def _decoded(raw: bytes, problems: list[str]) -> str:
    if not raw.strip(b"\0 \t\r\n"):
        raise Unreadable("The file is empty.")
    for mark, name in _MARKS:
        if raw.startswith(mark):
            if name != "utf-8-sig":
                problems.append(f"The file is written in {name.upper()}; notebooks are UTF-8.")
            return raw.decode(name, "replace")
    for name in ("utf-16-le", "utf-16-be"):  # without a mark: JSON begins with two ASCII characters
        if len(raw) > 3 and raw[:4].replace(b"\0", b"") == raw[:4].decode(name, "replace").encode("ascii", "replace"):
            problems.append("The file is written in UTF-16; notebooks are UTF-8.")
            return raw.decode(name, "replace")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        problems.append("The file is not written in UTF-8; it was read as Latin-1.")
        return raw.decode("latin-1")


def _parsed(text: str, problems: list[str]) -> Any:
    if "\0" in text:
        problems.append("There are null bytes in the file; they were left out.")
        text = text.replace("\0", "")
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        what = getattr(error, "msg", type(error).__name__)
        raise Unreadable(f"The file is not JSON, so it is no notebook ({what}).") from None


def _cell(data: dict[str, Any]) -> Cell:
    source = data.get("source", data.get("input", ""))
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    metadata, id = data.get("metadata"), data.get("id")
    return Cell(
        _text(data.get("cell_type")), _text(id), _clean(source) if isinstance(source, str) else "",
        metadata if isinstance(metadata, dict) else {},
    )  # fmt: skip


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _clean(text: str) -> str:
    """Without halves of characters, which no file can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 30 else text[:27] + "..."
