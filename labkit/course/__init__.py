"""The course around the chapters: what each one is for, its questions, its words. No widgets and no PyTorch here.

    load()             the course file: chapters, objectives, minutes, prerequisites, sources
    header(3)          the first cell of a chapter
    glossary()         terms in English and Chinese
    notation()         letters of formulas, with units, and where the sources use them otherwise
    coverage()         which chapter answers which question, fallacy or system of the sources

Names load when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# No module is called like a name in this table: importing a submodule would put it in the place of the function.
_HOME = {
    "Chapter": "file", "Course": "file", "CourseError": "errors", "load": "file", "header": "headers",
    "glossary": "words", "notation": "words", "coverage": "covered",
}  # fmt: skip
__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
