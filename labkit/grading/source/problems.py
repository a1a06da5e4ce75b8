"""What is wrong with a source notebook, said with the exercise, the cell and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. `cell`: the cell's id; `number`: its place in the notebook, from 1; 0 for no cell."""

    exercise: str
    cell: str
    number: int
    text: str

    def __str__(self) -> str:
        place = [f"exercise {self.exercise!r}"] if self.exercise else []
        place += [f"cell {self.number} ({self.cell})"] if self.number else []
        return f"{', '.join(place) or 'the notebook'}: {self.text}"


class SourceError(ValueError):
    """A source notebook cannot be released or graded with. `problems` holds all that was found."""

    def __init__(self, name: str, problems: Sequence[Problem]) -> None:
        self.name, self.problems = name, tuple(problems)
        super().__init__("\n".join(f"{name}: {problem}" for problem in self.problems))
