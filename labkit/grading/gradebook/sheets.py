"""CSV as spreadsheets read it: a text that would be a formula there gets an apostrophe before it, and loses it here.

sheet = written(["student", "points"], [{"student": "=1+1", "points": 2}])     # the text of a file
rows = read(path)                                                              # what was written, by column
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.course.errors import did_you_mean
from labkit.grading.gradebook.errors import PolicyError
from labkit.grading.gradebook.text import clean, points

# What a spreadsheet may take for a formula: = + - @, also in full width and behind blanks, and a leading tab.
_FORMULA = re.compile(r"['\s]*[=+\-@＝＋－＠\t\n]")


def guarded(text: str) -> str:
    """The text as it stands in a cell."""
    text = clean(text)
    return f"'{text}" if _FORMULA.match(text) else text


def unguarded(cell: str) -> str:
    """What was guarded: the inverse of `guarded` for every text that is clean."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell[1:]) else cell


def written(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """The sheet. A number is written as such, None as an empty cell, any other value as guarded text."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([guarded(column) for column in columns])
    for row in rows:
        writer.writerow([_cell(row.get(column)) for column in columns])
    return out.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return points(value) if isinstance(value, (int, float)) else guarded(str(value))


def read(path: Path, needs: Sequence[str], may_have: Sequence[str] = ()) -> list[tuple[int, dict[str, str]]]:
    """The rows of a sheet, each with its line number; empty ones are left out.

    Also from a spreadsheet that separates by semicolons or tabs. Columns that are not asked for are ignored, but where
    a needed one is missing, PolicyError names the nearest there is.
    """
    text = text_of(path)
    first = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        header = [unguarded(name).strip() for name in next(reader, [])]
        lines = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise PolicyError(f"{path.name}: line {reader.line_num} is no CSV: {error}") from None
    for name in needs:
        if name not in header:
            raise PolicyError(
                f"{path.name} has no column {name!r}{did_you_mean(name, header)}: it needs {listed(needs)}"
            )
    wanted = {*needs, *may_have}
    found = []
    for line, row in lines:
        if any(cell.strip() for cell in row):
            full = row + [""] * (len(header) - len(row))
            found.append((line, {n: unguarded(c) for n, c in zip(header, full, strict=False) if n in wanted}))
    return found


def listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def text_of(path: Path) -> str:
    """The text of a file that a person wrote, in UTF-8 with or without its mark. Raises PolicyError."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise PolicyError(f"{path}: there is no such file") from None
    except OSError as error:
        raise PolicyError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise PolicyError(f"{path.name} is not in UTF-8: save it as CSV UTF-8 or plain text UTF-8") from None


def number(text: str, where: str) -> float:
    """A number of points, with a point or a comma. Raises PolicyError."""
    try:
        value = float(text.strip().replace(",", "."))
    except ValueError:
        raise PolicyError(f"{where}: points are {text.strip()!r}, which is no number") from None
    if not 0 <= value < 1e6:  # nan is not either
        raise PolicyError(f"{where}: points are {text.strip()}; they are a number from 0 up")
    return value
