"""A plain job of torch.distributed that stands still, its dumps as rows to read, and four verdicts on it."""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from labkit import book
from labkit.book.cases.hung import blind
from labkit.book.frontend import INSIDE, Panel
from labkit.resilience.diagnose import Verdict, from_pytorch
from labkit.resilience.diagnose.dumping import (
    Call,
    analyzed,
    dump_when_asked as dump_when_asked,
    dumped,
    stand_still as stand_still,
)
from labkit.resilience.diagnose.dumps import Dump, Entry, read_dumps
from labkit.wire.errors import RefusedError
from labkit.world.diagnosis.explain import ranks_text

CHANGES = ("stands still", "sends another size", "leaves one call out")  # what the odd rank does


def drawn(seed: int, size: int) -> tuple[int, str]:
    """Who does otherwise, and how: the same for the same seed and size."""
    return blind(seed, size, "recorder"), random.Random(f"recorder {seed} {size}").choice(CHANGES)


@dataclass(frozen=True)
class Recorded:
    """dumps: of each rank. verdict: of `from_pytorch`. own: of labkit's own records of the same run. calls: what
    PyTorch's analyzer says. unnamed: how that ends on the files as gloo writes them."""

    odd: int
    change: str
    dumps: dict[int, Dump]
    verdict: Verdict
    own: Verdict
    calls: list[Call]
    unnamed: str

    def last(self, count: int = 2) -> book.Table:
        """The last entries of every rank."""
        rows = [
            {"rank": str(rank), "call": entry.seq, "operation": entry.name, "size": _size(entry), "state": entry.state,
             "has ended": entry.ended, "where": _where(entry)}
            for rank, dump in self.dumps.items() for entry in dump.entries[-count:]
        ]  # fmt: skip
        return book.Table(rows, caption="The last entries of each rank's flight recorder (measured)")

    def verdicts(self, suspect: int | None) -> book.Table | None:
        """Whom the reader, both of labkit's tools and PyTorch's analyzer suspect; with a reader, after the reader."""
        if suspect is None and book.live():
            print("Read the table first, and write the number of a rank in place of None.")
            return None
        if suspect is not None and (not isinstance(suspect, int) or not 0 <= suspect < len(self.dumps)):
            raise RefusedError(f"suspect={suspect!r}: write one of the ranks 0 to {len(self.dumps) - 1}")
        print(self.told(suspect))
        you = {"who says it": "you", "suspects": "nobody" if suspect is None else f"rank {suspect}", "why": "-"}
        return book.Table(
            [you, *self.tools], caption="One job that stands still, and whom each one suspects (measured)"
        )

    @property
    def tools(self) -> list[dict[str, object]]:
        """Whom each tool suspects, as rows."""
        rows: list[dict[str, object]] = []
        for who, verdict in (("diagnose.from_pytorch", self.verdict), ("labkit's own records", self.own)):
            why = str(verdict).splitlines()[0].partition(": ")[2]
            rows.append({"who says it": who, "suspects": ranks_text(verdict.suspects), "why": why})
        number, missing, differ = self.calls[0]
        why = f"call {number}: {'missing' if missing else 'not like the first one'}"
        rows.append({"who says it": "PyTorch's analyzer", "suspects": ranks_text(sorted(missing | differ)), "why": why})
        return rows

    def told(self, suspect: int | None) -> str:
        """Whether the reader was right, and what PyTorch's analyzer makes of it if the first rank is the odd one."""
        truth = f"Rank {self.odd} {self.change}."
        said = {None: f"You named nobody. {truth}", self.odd: f"Right. {truth}"}
        line = said.get(suspect, f"Not rank {suspect}: it does what most of the others do. {truth}")
        return f"{line} {self.reversed}".rstrip()

    @property
    def reversed(self) -> str:
        """Why PyTorch's analyzer accuses the innocent, in a sentence; "" where it does not."""
        _, missing, differ = self.calls[0]
        if missing or self.odd in differ:
            return ""
        return ("PyTorch's analyzer accuses all the others, because it compares each rank with the first one that it "
                "has read, and here that is the odd one. labkit asks what most ranks did.")  # fmt: skip


def run(program: Callable[..., Any], size: int, odd: int, change: str) -> Recorded:
    """Let `program(group, odd, change, folder)` stand still on `size` ranks of gloo, and read what it left."""
    if change not in CHANGES or not 0 <= odd < size:
        raise RefusedError(f"run(odd={odd!r}, change={change!r}): a rank below {size} does one of {', '.join(CHANGES)}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own, died = dumped(folder, program, size, odd, change, str(folder))
        pickles = folder / "pickle"
        return Recorded(odd, change, read_dumps(pickles), from_pytorch(pickles, dead=died), own, analyzed(pickles),
                        _unnamed(pickles))  # fmt: skip


class Mistakes(Panel):
    """Two lists, a rank and what it does, and a button that runs the job with them and shows rows and verdicts."""

    def __init__(self, program: Callable[..., Any], size: int) -> None:
        super().__init__()
        self.program, self.size = program, size

    def __repr__(self) -> str:
        return f"Choose the odd rank, 0 to {self.size - 1}, and what it does: {', '.join(CHANGES)}. Then run the job."

    def _made(self) -> Any:
        from ipywidgets import HTML, Button, Dropdown, HBox, Layout, VBox

        look = {"style": {"description_width": "initial"}, "layout": Layout(width="260px", max_width=INSIDE)}
        rank = Dropdown(options=list(range(self.size)), description="odd rank", **look)
        change = Dropdown(options=CHANGES, description="what it does", **look)
        button, shown = Button(description="Run the job"), HTML()

        def clicked(_: object) -> None:
            button.disabled = True
            try:
                job = run(self.program, self.size, rank.value, change.value)
                tools = book.Table(job.tools, caption="Whom each tool suspects (measured)")
                told = f'<p role="status" aria-live="polite">{escape(job.reversed)}</p>'
                shown.value = f"{told}{tools.html()}{job.last().html()}"
            except RefusedError as why:
                shown.value = f'<p role="status" aria-live="polite">{escape(str(why))}</p>'
            finally:
                button.disabled = False

        button.on_click(clicked)
        return VBox([HBox([rank, change, button], layout=Layout(flex_flow="row wrap")), shown])


def mistakes(program: Callable[..., Any], size: int) -> Mistakes:
    """The reader's own mistakes in `program`: the last expression of its cell."""
    return Mistakes(program, size)


def _unnamed(folder: Path) -> str:
    """How PyTorch's analyzer ends without the names that are put in for it; "" where it does not mind."""
    try:
        analyzed(folder, named=False)
    except KeyError as why:
        return f"KeyError: {why}"
    return ""


def _size(entry: Entry) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for dtype, shape in _tensors(entry))


def _tensors(entry: Entry) -> Iterable[tuple[str, tuple[int, ...]]]:
    return entry.inputs or entry.outputs


def _where(entry: Entry) -> str:
    """The line of the program; a cell is a file with a number for a name."""
    cell = re.fullmatch(r"\d+\.py:(\d+)", entry.where)
    return f"line {cell[1]} of the cell" if cell else entry.where
