"""What chapter 2 shows and plays with: words of letters and steps, and the telephone's misunderstandings."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit import book
from labkit.cost.units import format_seconds


def letters(run: Any) -> str:
    """Who holds whose letter."""
    held = ", ".join(f"rank {rank} that of rank {x:g}" for rank, x in enumerate(run.results))
    return f"All have the letter of their left neighbour: {held}."


def timeline(run: Any) -> book.Figure:
    """The whole run, from its first message to its last."""
    return book.timeline(run.trace, title="Who sends when")


# Everyday words, one or more for each first letter that the sentence of the chapter has.
WORDS = """
apples are arriving breakfast breaks brilliant bring cakes cases cats cost cousins dogs eagles eat elephants
enough extra flowers foxes grandmothers green horses ice in jam kitchens lemons mice never nice noodles not
old oranges parrots penguins quiet rain raw red roof rolls royal ruin sausages secret silly snow socks soup
special spoons submarines the three tigers tired to toast tomatoes tractors umbrellas vegetables wait warm
whales yellow zebras
""".split()


def mishear(text: str, rank: int, seed: int) -> str:
    """The text with another word of the same first letter in place of one of its words."""
    dice, words = Random(f"{seed} {rank}"), text.rstrip(".").split(" ")
    k = dice.randrange(len(words))
    other = [word for word in WORDS if word[0] == words[k][0].lower() and word != words[k].lower()] or ["what"]
    word = dice.choice(other)
    words[k] = word.capitalize() if words[k][0].isupper() else word
    return " ".join(words) + "."


def took(run: Any) -> str:
    """How long the run took, beside the formula that came with its results."""
    formula = run.results[0]
    return (
        f"The run took {format_seconds(run.trace.duration, 3)}; by the formula it takes {format_seconds(formula, 3)} "
        f"({run.trace.badge})."
    )


def in_messages(run: Any) -> str:
    """How long the run took, in times of one message: what the ranks returned is the time of one."""
    sends, one = run.trace.sends, run.results[0]
    begun = max(min([m.start for m in sends if m.src == r] + [m.recv_start for m in sends if m.dst == r])
                for r in range(run.trace.world_size))  # fmt: skip
    took = max(m.arrived for m in sends) - begun
    return (
        f"From the moment when all ranks had begun to the end of the last message: {format_seconds(took, 3)}, "
        f"{took / one:.1f} times as long as one message of {format_seconds(one, 3)} ({run.trace.badge})."
    )
