"""The data behind a figure, as a table that reads well in a terminal, a notebook and a screen reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape

Row = Mapping[str, object]


def cell(value: object) -> str:
    """One value as text: whole numbers exact, with commas; other numbers with four significant digits."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return str(value)


class Table(list[Row]):
    """A list of rows (mappings from column name to value); `str(table)` is aligned text, a notebook shows HTML.

    Columns appear in the order of their first use; a row that lacks a column shows "-".
    """

    def __init__(self, rows: Iterable[Row] = (), caption: str = "") -> None:
        super().__init__(rows)
        self.caption = caption

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(name for row in self for name in row))

    def _right_aligned(self, name: str) -> bool:
        """Numbers line up at the right, words at the left."""
        return all(isinstance(row.get(name), (int, float, type(None))) for row in self)

    def text(self, limit: int | None = None) -> str:
        """The table as aligned text; with `limit`, the first and last rows and a line saying what is left out."""
        names = self.columns
        body = [[cell(row.get(name)) for name in names] for row in self]
        widths = [max(len(name), *(len(line[i]) for line in body)) for i, name in enumerate(names)]
        right = [self._right_aligned(name) for name in names]
        lines = [
            "  ".join(t.rjust(w) if r else t.ljust(w) for t, w, r in zip(line, widths, right, strict=True)).rstrip()
            for line in [names, ["-" * w for w in widths], *body]
        ]
        if limit is not None and len(body) > limit:
            kept = limit // 2
            hidden = len(body) - 2 * kept
            lines[2 + kept : len(lines) - kept] = [f"... {hidden} more rows: see .table()"]
        return "\n".join(lines) if names else "(no rows)"

    def __str__(self) -> str:
        return f"{self.caption}\n{self.text()}" if self.caption else self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self.html()

    def html(self, limit: int | None = None) -> str:
        """The table as HTML; with `limit`, its first rows, and the caption counts the rest."""
        names = self.columns
        align = ["right" if self._right_aligned(name) else "left" for name in names]
        head = "".join(
            f'<th scope="col" style="text-align:{a}">{escape(n)}</th>' if n else "<td></td>"
            for n, a in zip(names, align, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(
                f'<td style="text-align:{a}">{escape(cell(row.get(n)))}</td>' for n, a in zip(names, align, strict=True)
            )
            + "</tr>"
            for row in self[:limit]
        )
        rest = 0 if limit is None else max(0, len(self) - limit)
        more = f"the first {limit} rows; {rest} more are in .table()" if rest else ""
        words = ": ".join(part for part in (self.caption, more) if part)
        caption = f"<caption>{escape(words)}</caption>" if words else ""
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
