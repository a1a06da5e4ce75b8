"""What the appendix shows: the lines of a group as a table with links, and one line taken apart."""

from __future__ import annotations

import re

from labkit.book.drawing.tables import Table, cell
from labkit.course import errata, load
from labkit.course.errata import Erratum, erratum

HEAD = ("line", "where", "what is counted, and why it differs", "it says", "it comes to", "see chapter")


class Lines(tuple[Erratum, ...]):
    """Some errata, each computed when shown. A notebook shows a table with links; `str()` is text."""

    def _repr_markdown_(self) -> str:
        rows = [HEAD, ("---",) * len(HEAD)]
        rows += [(f"`{e.id}`", f"{e.source}, {e.place}", e.what, e.stated, f"**{found(e)}**", link(e)) for e in self]
        return "\n".join(f"| {' | '.join(text.replace('|', chr(92) + '|') for text in row)} |" for row in rows)

    def __repr__(self) -> str:
        return str(
            Table({"line": e.id, "where": str(e.source), "it says": e.stated, "it comes to": found(e)} for e in self)
        )


def lines(kind: str) -> Lines:
    """The lines of one group: "bytes", "memory", "time", "failures" or "order"."""
    return Lines(entry for entry in errata().values() if entry.kind == kind)


def found(entry: Erratum) -> str:
    """What a line comes to, with four digits or as a whole number, and the unit."""
    number = entry.claim().found
    whole = abs(number) >= 1000 or number == round(number)
    return f"{cell(round(number) if whole else number)} {entry.unit}".rstrip()


def link(entry: Erratum) -> str:
    """The chapter where a line matters, as a link to the heading there, if that chapter is written."""
    chapter = load().chapter(entry.chapter)
    if not chapter.written:
        return f"{chapter.number} (to come)"
    words = re.sub(r"^\d+ ", "", entry.heading)
    return f"[{chapter.number}: {words}]({chapter.name}.ipynb#{entry.heading.replace(' ', '-')})"


def apart(id: str) -> str:
    """One line with the expression behind it, ready to paste into a cell."""
    entry = erratum(id)
    given = [f"{name} = {expression}" for name, expression in entry.values.items()]
    told = [f"{entry.source}, {entry.place}: {entry.what}", f"it says {entry.stated}", "", *given, entry.found, ""]
    return "\n".join([*told, f"it comes to {found(entry)}"])
