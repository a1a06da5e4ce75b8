"""What grading one notebook of one student came to, and its JSON: OUT/results/STUDENT/NOTEBOOK.json.

    result = from_json(path.read_text())      # ResultError, in words, for anything that is no such record
    result.points, result.of
    for graded in result.exercises: graded.state, graded.marks
    path.write_text(to_json(result))

Everything a student wrote is in here as it was written: `Graded.output`, `Graded.free_response`, sentences, details
and `Handed.problems` must be escaped before they are put into a page.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from labkit.grading.checks.marks import STATES

SCHEMA = 1
TO_MARK = "to mark"  # a free response that waits for a person
GRADED_STATES = (*STATES, TO_MARK)


class ResultError(ValueError):
    """A file that is no result of this version; the text says what is wrong."""


@dataclass(frozen=True)
class Given:
    """The mark that one check gave. hidden: the check is not in the student's notebook. Otherwise as `marks.Mark`."""

    name: str
    kind: str
    points: float
    of: float
    sentence: str
    state: str
    detail: str = ""
    hidden: bool = False


@dataclass(frozen=True)
class Graded:
    """One exercise. state: one of `GRADED_STATES`. seconds: that grading it took.

    free_response: what a student wrote for a person to read; None where nothing is asked. output: the last lines that
    the student's code printed. check_hash: of the checks that ran, "" for none. points of an exercise "to mark" are 0.
    """

    exercise: str
    title: str
    kind: str
    state: str
    points: float
    of: float
    check_hash: str = ""
    seconds: float = 0.0
    free_response: str | None = None
    output: str = ""
    marks: tuple[Given, ...] = ()


@dataclass(frozen=True)
class Handed:
    """The file that was handed in. file: below the folder of submissions. sha256: of its bytes, "" if there is none.

    received: when it was last changed, ISO 8601 with a time zone, or None. problems: a sentence each.
    """

    file: str
    sha256: str = ""
    received: str | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class GraderInfo:
    """What graded it. seed_id: names the seed without telling it. slow_factor: that time limits were multiplied by."""

    labkit: str
    source_sha256: str
    overlay_sha256: str = ""
    seed_id: str = ""
    tier: str = ""
    slow_factor: float = 1.0


@dataclass(frozen=True)
class Result:
    """A student's notebook after grading. exercises: all that the source has, in its order."""

    student: str
    notebook: str
    submission: Handed
    grader: GraderInfo
    exercises: tuple[Graded, ...]
    seconds: float = 0.0

    @property
    def points(self) -> float:
        return sum(graded.points for graded in self.exercises)

    @property
    def of(self) -> float:
        return sum(graded.of for graded in self.exercises)

    def exercise(self, id: str) -> Graded | None:
        """The record of an exercise; None where there is none, which counts as zero points."""
        return next((graded for graded in self.exercises if graded.exercise == id), None)


def to_json(result: Result) -> str:
    """As JSON, the same text for the same result."""
    return json.dumps({"schema": SCHEMA} | asdict(result), indent=1, ensure_ascii=False) + "\n"


def from_json(text: str) -> Result:
    """A result from its JSON. Raises ResultError for an unknown schema, and for what is not in order."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ResultError(f"not JSON: {error}") from None
    if not isinstance(data, dict) or "schema" not in data:
        raise ResultError("not a result of `labkit grade`: it has no schema")
    if data["schema"] != SCHEMA:
        raise ResultError(f"its schema is {data['schema']!r}; this labkit reads {SCHEMA}. Grade again with --fresh")
    try:
        exercises = tuple(_graded(one) for one in data["exercises"])
        handed = data["submission"] | {"problems": tuple(data["submission"]["problems"])}
        return Result(
            data["student"], data["notebook"], Handed(**handed), GraderInfo(**data["grader"]), exercises,
            float(data["seconds"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise ResultError(f"not in order: {type(error).__name__}: {error}") from None


def _graded(data: dict[str, Any]) -> Graded:
    graded = Graded(**data | {"marks": tuple(Given(**mark) for mark in data["marks"])})
    if graded.state not in GRADED_STATES:
        raise ValueError(f"{graded.exercise}: there is no state {graded.state!r}")
    return graded
