"""The first screen: a question, the ranks that answer it once the reader has chosen, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

import labkit
from labkit import book, collectives, cost
from labkit.book.workbenches.bench import Workbench
from labkit.book.workbenches.source import standing_alone
from labkit.chapters.cA_errata import pictures
from labkit.chapters.cA_errata.asked_first import First

Program = Callable[..., Any]
PROGRAMS = [pictures.PLAIN, pictures.TABLE, pictures.TEXT]
ASKED = "Ranks do what the text says. How much do they send, compared with plain data parallelism?"
CHOICES = {"less": "Less", "the same": "The same, as in the table", "more": "More"}


def plain(group: Any) -> None:
    """Data parallelism: one all-reduce of the gradient."""
    collectives.all_reduce(torch.ones(840_000), group, algorithm="ring")


def as_the_table_says(group: Any) -> None:
    """ZeRO-1 that sends no more: each rank gets the sum of its part alone, and then all get the new weights."""
    part = collectives.reduce_scatter(torch.ones(840_000), group, algorithm="ring")
    collectives.all_gather(part, group, algorithm="ring")


def programs(text: Program) -> Mapping[str, Program]:
    """What a rank does, by the name of each program. text: the program of the page."""
    return {pictures.PLAIN: plain, pictures.TABLE: as_the_table_says, pictures.TEXT: text}


class Sending(Workbench):
    """A workbench whose code, as a cell, is that of one program alone, and shows what was sent."""

    def __init__(self, text: Program) -> None:
        self.programs = named = programs(text)

        def step(group: Any, program: str = pictures.TEXT) -> None:
            named[program](group)

        super().__init__(step, {"program": PROGRAMS, "ranks": (2, 8)}, [pictures.sent], "What does a step send?", 4, {})

    @property
    def code(self) -> str:
        program, ranks = self.programs[self.settings["program"]], self.settings["ranks"]
        run = f"run = labkit.launch({program.__name__}, {ranks})\nprint(run.trace.bytes_sent())  # by each rank\n"
        return f"{standing_alone(program)}\n\n{run}"


class Opening(First):
    """The choice of the first screen, and what follows from the runs."""

    shown: Sending

    def __init__(self, text: Program) -> None:
        super().__init__("zero1-sends", ASKED, CHOICES, Sending(text))

    @property
    def bench(self) -> Sending:
        """The workbench below the choice."""
        return self.shown

    def told(self) -> book.Conclusion:
        """What both programs send, as real ranks did it, and what follows from that."""
        if book.live() and self.chosen is None:
            return book.conclude("First choose an answer above. Then run this cell again.")
        times, ranks = {}, int(self.bench.settings["ranks"])
        for name in PROGRAMS[1:]:
            try:
                run = labkit.launch(partial(self.bench._run, program=name), ranks)
            except labkit.RankFailed as failed:
                return book.conclude("With *{name}* the ranks did not come to an end. {why}", name=name,
                                     why=str(failed).partition("\n")[0])  # fmt: skip
            if not run.trace.calls():
                return book.conclude("With *{name}* no collective was called: has `step` been changed?", name=name)
            times[name] = sum(run.trace.bytes_sent()) / (
                ranks * cost.ring_all_reduce_bytes(pictures.gradient_of(run), ranks)
            )
        table, text = times.values()
        return book.conclude(
            {"text > 1.01 and abs(table - 1) < 0.01": "**The two sentences cannot describe the same program.**",
             "True": ""},
            "On {ranks} ranks the program of the text sends",
            {"abs(text - 1) < 0.001": "exactly as much as plain data parallelism.",
             "True": "{text:.3g} times as much as plain data parallelism."},
            {"chosen is None": "", "chosen == truth": "You expected that.", "True": "Your answer: *{answer}*."},
            "The table is right for another program: a reduce-scatter of the gradients and an all-gather of the new "
            "weights send",
            {"abs(table - 1) < 0.001": "exactly as much as plain data parallelism.",
             "True": "{table:.3g} times as much."},
            {"abs(text - 1.5) < 0.001 and abs(table - 1) < 0.001": "The factor of 1.5 does not depend "
             "on the number $N$ of ranks. A ring all-reduce is a reduce-scatter and an all-gather, so with its "
             "broadcast the text has three collectives instead of two. Each of them sends $\\frac{{N-1}}{{N}}$ of "
             "the gradient, because the weights have as many bytes here.",
             "True": ""},
            {"text > 1.01 and abs(table - 1) < 0.01": "Both programs exist: PyTorch's `ZeroRedundancyOptimizer` under "
             "DDP works as the text says, and the ZeRO paper as the table says.\n\nYou did not have to ask who is "
             "right: the bytes of the program for the text are not those of the table.",
             "True": "So these ranks do not show what the two sentences say: has `step` been changed?"},
            ranks=ranks, table=table, text=text, chosen=self.chosen, answer=CHOICES.get(self.chosen or "", ""),
            truth="more" if text > 1.01 else "less" if text < 0.99 else "the same",
        )  # fmt: skip


def three_ways(text: Program) -> Opening:
    """How the ranks share a gradient and their new weights, and how many they are: asked first, and then shown."""
    return Opening(text)
