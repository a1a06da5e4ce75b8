"""Results of earlier runs in the same folder: chapter 3 is graded weeks after chapter 2, into one gradebook."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from labkit.grading.grader.results import Result, ResultError, from_json


def with_kept(out: Path, results: Sequence[Result]) -> tuple[list[Result], list[str]]:
    """The results, and those in `out`/results of other notebooks; what could not be read, in sentences."""
    here = {result.notebook for result in results}
    found, problems = list(results), []
    for path in sorted((out / "results").glob("*/*.json")):
        if path.stem not in here:
            try:
                found.append(from_json(path.read_text(encoding="utf-8")))
            except (OSError, UnicodeDecodeError, ResultError) as error:
                problems.append(f"{path.relative_to(out)}: {error}")
    return found, problems
