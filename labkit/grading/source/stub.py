"""What stands in a student's notebook in place of a solution.

A derivation's stub sets to None what the checks ask for. A program's stub raises NotImplementedError with
the sentence in the cell's metadata, `"labkit": {..., "stub": "exchange one chunk a round"}`. An explanation in a
Markdown cell is replaced by an invitation to write. Lines of code of your own go into `"stub_code"` instead.
"""

from __future__ import annotations

import json
import textwrap

from labkit.grading.source.code import defined
from labkit.grading.source.exercise import Cell, Exercise, label, solution_lines
from labkit.grading.source.markers import SOLUTION, replaced

INVITATION = "*Write your answer here, in place of this line.*"


def stub_lines(cell: Cell, exercise: Exercise) -> list[str]:
    """The lines that replace each solution region of an answer cell of `exercise`."""
    told = label(cell)
    if told.get("stub_code"):
        return str(told["stub_code"]).split("\n")
    if cell.cell_type == "markdown":
        return [str(told.get("stub") or INVITATION)]
    if exercise.kind != "program":
        solved = defined(textwrap.dedent("\n".join(solution_lines(cell))))
        names = [name for name in solved if name in exercise.names] or ["answer"]
        return [f"{name} = None" for name in names]
    sentence = str(told.get("stub") or "write this function")
    return [f"raise NotImplementedError({json.dumps(sentence, ensure_ascii=False)})"]


def stubbed(cell: Cell, exercise: Exercise) -> str:
    """The source of an answer cell as a student receives it."""
    return replaced(cell.source, SOLUTION, stub_lines(cell, exercise))
