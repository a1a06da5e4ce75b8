"""From results to a gradebook: what people decided is added to what checks found, and written for people and programs.

    options = read_options(accommodations=..., overrides=..., rubric=..., deadline=...)    # refuses in words
    written = write(out, results, options)
    print(written.summary)

rows.py       the gradebook: students, notebooks, exercises; book.py makes it
policy.py     deadlines, lateness, accommodations
overrides.py  points that an instructor sets; rubric.py: free responses that a person marks; names.py: pseudonyms
weights.py    what chapters count in the course
kept.py       results of other chapters, from earlier runs
tables.py     grades.csv; report.py: grades.json; junit.py: junit.xml; changes.py: changes.csv, changes.txt
sheets.py     CSV that a spreadsheet cannot take for formulas; text.py, files.py: small things
writing.py    all of it

What a person decides is stronger than what a check found: an override over a mark by hand over a check.

Names load when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.grading.gradebook.errors import PolicyError
    from labkit.grading.gradebook.options import GradebookOptions, read_options
    from labkit.grading.gradebook.policy import Accommodation, read_accommodations
    from labkit.grading.gradebook.writing import Written, write

# No module is called like a name in this table: importing a submodule would put it in the place of the function.
_HOME = {
    "Accommodation": "policy", "GradebookOptions": "options", "PolicyError": "errors", "Written": "writing",
    "read_accommodations": "policy", "read_options": "options", "write": "writing",
}  # fmt: skip
__all__ = [
    "Accommodation", "GradebookOptions", "PolicyError", "Written", "read_accommodations", "read_options", "write",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
