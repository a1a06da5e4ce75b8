"""The first screen: a question, the ranks that answer it once the reader has chosen, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from html import escape
from typing import Any

import labkit
from labkit import book, cost
from labkit.book.frontend import Panel
from labkit.book.workbenches.bench import Workbench
from labkit.chapters.cA_errata import pictures

WAYS = [pictures.PLAIN, pictures.TABLE, pictures.TEXT]
ASKED = "Ranks do what the text says. How much do they send, compared with plain data parallelism?"
CHOICES = {"less": "Less", "the same": "The same, as in the table", "more": "More"}


class Sending(Workbench):
    """A workbench whose code, as a cell, shows what was sent."""

    @property
    def code(self) -> str:
        return super().code + "print(run.trace.bytes_sent())  # by each rank\n"


class Opening(Panel):
    """A choice, and below it the workbench, which starts when the reader has chosen."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.chosen: str | None = None
        self._run = run
        self.bench = Sending(run, {"way": WAYS, "ranks": (2, 8)}, [pictures.sent], "What does a step send?", 4, {})

    def __repr__(self) -> str:
        return f"{ASKED} {' / '.join(CHOICES.values())}\n\n{self.bench.text}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        if book.live():
            return super()._repr_mimebundle_()
        return self.bench._repr_mimebundle_() | {"text/plain": repr(self)}

    def _made(self) -> Any:
        from ipywidgets import HTML, ToggleButtons, VBox

        choice = ToggleButtons(options=[(name, id) for id, name in CHOICES.items()], value=None)
        choice.style.button_width = "auto"
        box = VBox([HTML(f"<b>{escape(ASKED)}</b>"), choice])

        def chose(change: dict[str, Any]) -> None:
            self.chosen = self.chosen or change["new"]  # the first one counts
            if len(box.children) < 3:
                box.children = (*box.children, self.bench.panel.box)

        choice.observe(chose, "value")
        return box

    def told(self) -> book.Conclusion:
        """What both programs send, as real ranks did it, and what follows from that."""
        if book.live() and self.chosen is None:
            return book.conclude("First choose an answer above. Then run this cell again.")
        times, ranks = {}, int(self.bench.settings["ranks"])
        for way in WAYS[1:]:
            try:
                run = labkit.launch(partial(self._run, way=way), ranks)
            except labkit.RankFailed as failed:
                return book.conclude("With *{way}* the ranks did not come to an end. {why}", way=way,
                                     why=str(failed).partition("\n")[0])  # fmt: skip
            if not run.trace.calls():
                return book.conclude("With *{way}* no collective was called: has `step` been changed?", way=way)
            times[way] = sum(run.trace.bytes_sent()) / (
                ranks * cost.ring_all_reduce_bytes(pictures.gradient_of(run), ranks)
            )
        table, text = times.values()
        return book.conclude(
            {"text > 1.01 and abs(table - 1) < 0.01": "**The two sentences cannot describe the same program.**",
             "True": ""},
            "On {ranks} ranks the program of the text sends",
            {"abs(text - 1) < 0.001": "exactly as much as plain data parallelism,",
             "True": "{text:.3g} times as much as plain data parallelism,"},
            "and the program of the table",
            {"abs(table - 1) < 0.001": "exactly as much.", "True": "{table:.3g} times as much."},
            {"chosen is None": "", "chosen == truth": "You expected that.", "True": "You expected something else."},
            {"abs(text - 1.5) < 0.001 and abs(table - 1) < 0.001": "It is the same with any number of ranks, because "
             "the program of the table sends $2\\,\\frac{{N-1}}{{N}}$ of the gradient and that of the text "
             "$3\\,\\frac{{N-1}}{{N}}$.", "True": ""},
            {"text > 1.01 and abs(table - 1) < 0.01": "Both programs exist: PyTorch's `ZeroRedundancyOptimizer` under "
             "DDP works as the text says, and the ZeRO paper as the table says.\n\nYou needed no authority for this. "
             "You took two sentences of one source, and computed what follows from each.",
             "True": "So these ranks do not show what the two sentences say: has `step` been changed?"},
            ranks=ranks, table=table, text=text, chosen=self.chosen,
            truth="more" if text > 1.01 else "less" if text < 0.99 else "the same",
        )  # fmt: skip


def three_ways(run: Callable[..., Any]) -> Opening:
    """How the ranks share a gradient and their new weights, and how many they are: asked first, and then shown."""
    return Opening(run)
