"""What an exercise refers to: objectives of the course file, and sections of the chapter."""

from __future__ import annotations

import re

from labkit.course.file import load
from labkit.grading.source.exercise import Notebook


def objectives(name: str) -> dict[str, str]:
    """The objectives of a chapter, text by id. name: "03_collectives"; an unknown chapter has none."""
    for chapter in load().chapters:
        if chapter.name == name:
            return {objective.id: objective.text for objective in chapter.objectives}
    return {}


def anchors(notebook: Notebook) -> set[str]:
    """The anchors of a notebook's headings, as Jupyter forms them: the heading with a hyphen for each space."""
    found = set()
    for cell in notebook.cells:
        fenced = False
        for line in cell.source.split("\n") if cell.cell_type == "markdown" else []:
            fenced ^= line.startswith("```")
            heading = re.fullmatch(r"#{1,6}\s+(.*?)\s*", line)
            if heading and not fenced:
                found.add(heading[1].replace(" ", "-"))
    return found
