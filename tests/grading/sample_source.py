"""A small source notebook with a derivation and a program, and ways to break it."""

import copy
from pathlib import Path

import nbformat

NAME = "03_collectives"
PATH = Path(__file__).parent / "data" / f"{NAME}.ipynb"


def sample():
    """The sample as a notebook of one's own."""
    return nbformat.read(PATH, as_version=4)


def cell(notebook, id):
    return next(cell for cell in notebook.cells if cell.id == id)


def sources(notebook):
    return {cell.id: cell.source for cell in notebook.cells}


def solved(released):
    """A student's copy of a released notebook with the sample's own solutions written into the answer cells."""
    notebook = copy.deepcopy(released)
    for id in ("ring-megabytes-answer", "reduce-scatter-answer"):
        lines = cell(sample(), id).source.split("\n")
        cell(notebook, id).source = "\n".join(line for line in lines if "### " not in line)
    return notebook
