"""What chapter 2 shows and plays with: words of letters and steps, and the telephone's misunderstandings."""

from __future__ import annotations

import re
from functools import cache
from random import Random
from typing import Any

from labkit import book
from labkit.cost.units import MS, format_seconds
from labkit.data import language_reference


def letters(run: Any) -> str:
    """Who holds whose letter."""
    held = ", ".join(f"rank {rank} that of rank {x:g}" for rank, x in enumerate(run.results))
    return f"All have the letter of their left neighbour: {held}."


def timeline(run: Any) -> book.Figure:
    """The whole run, from its first message to its last."""
    return book.timeline(run.trace, title="Who sends when")


@cache
def _dictionary() -> list[str]:
    """The words of Python's own reference."""
    return sorted(set(re.findall(r"\b[a-z]{3,}\b", language_reference())))


def mishear(text: str, rank: int, seed: int) -> str:
    """The text with another word of the same first letter in place of one of its words."""
    dice, words = Random(f"{seed} {rank}"), text.split(" ")
    k = dice.randrange(len(words))
    words[k] = dice.choice([word for word in _dictionary() if word[0] == words[k][0].lower()] or ["what"])
    return " ".join(words)


def took(run: Any) -> str:
    """How long the run took, beside the formula that came with its results."""
    formula = run.results[0]
    return (
        f"The run took {format_seconds(run.trace.duration, 3)}; by the formula it takes {format_seconds(formula, 3)} "
        f"({run.trace.badge})."
    )


def in_messages(run: Any) -> str:
    """How long the run took, in times of one message: what the ranks returned is the time of one."""
    sends = [m for m in run.trace.sends if m.collective < 0]
    took, one = max(m.arrived for m in sends) - min(m.start for m in sends), run.results[0]
    return (
        f"From the first message to the end of the last: {format_seconds(took, 3)}, {took / one:.1f} times as long as "
        f"one message of {format_seconds(one, 3)} ({run.trace.badge})."
    )


def curve(kernels: list[float], steps: dict[str, list[float]]) -> book.Figure:
    """Milliseconds of a step by those of its computing, a line for each way."""
    lines = {name: [(c / MS, s / MS) for c, s in zip(kernels, took, strict=True)] for name, took in steps.items()}
    said = "One after the other, the two times add up. Overlapped, the step takes the longer of the two."
    return book.lines(lines, x="ms of computing", y="ms for the step", title="A step with a message", badge="emulated",
                      sentence=said)  # fmt: skip
