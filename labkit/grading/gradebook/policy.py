"""What an instructor decided beforehand: deadlines, what lateness costs, and accommodations of single students.

opens = 2026-11-06T09:00:00+01:00        # only where an extra_time is a factor
[deadlines]
03_collectives = 2026-11-20T23:59:00+01:00
[late]
percent_per_day = 10                     # nothing, unless it is said
[student.ada]
extra_time = 1.5                         # times what lies between `opens` and the deadline
slow_factor = 2                          # times the limits of her runs
[student.bob]
extra_minutes = 2880
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from labkit.course.errors import did_you_mean
from labkit.grading.gradebook.errors import PolicyError
from labkit.grading.gradebook.sheets import text_of

_KEYS = ("opens", "deadlines", "late", "student")
_STUDENT_KEYS = ("extra_time", "extra_minutes", "deadline", "deadlines", "slow_factor")
_LATE_KEYS = ("grace_minutes", "percent_per_day", "most_percent")


@dataclass(frozen=True)
class Accommodation:
    """What one student is granted.

    extra_time: factor of the time from the opening to the deadline. extra_minutes: added to the deadline. deadline: the
    student's own, in place of the common one; deadlines: own ones by notebook. slow_factor: of the limits of runs.
    """

    extra_time: float = 1.0
    extra_minutes: float = 0.0
    deadline: datetime | None = None
    deadlines: Mapping[str, datetime] = field(default_factory=dict)
    slow_factor: float = 1.0

    def due(self, notebook: str, common: datetime | None, opens: datetime | None) -> datetime | None:
        """When this student hands in. An own deadline stands as it is; extra time moves the common one."""
        own = self.deadlines.get(notebook, self.deadline)
        if own is not None or common is None:
            return own
        more = timedelta(minutes=self.extra_minutes)
        if opens is not None and self.extra_time != 1:
            more += (common - opens) * (self.extra_time - 1)
        return common + more


@dataclass(frozen=True)
class LatePolicy:
    """What lateness costs: percent of the points, for each day that has begun. By default nothing; it is only said."""

    grace_minutes: float = 0.0
    percent_per_day: float = 0.0
    most_percent: float = 100.0

    def percent(self, late: timedelta) -> float:
        """The penalty of a submission that came `late` after its deadline."""
        days = math.ceil(late / timedelta(days=1))
        return min(self.most_percent, self.percent_per_day * days) if self.is_late(late) else 0.0

    def is_late(self, late: timedelta) -> bool:
        return late > timedelta(minutes=self.grace_minutes)


@dataclass(frozen=True)
class Policy:
    """A whole file of accommodations."""

    accommodations: Mapping[str, Accommodation] = field(default_factory=dict)
    deadlines: Mapping[str, datetime] = field(default_factory=dict)
    opens: datetime | None = None
    late: LatePolicy = LatePolicy()


def read_accommodations(path: Path) -> dict[str, Accommodation]:
    """The accommodations by student. Raises PolicyError."""
    return dict(read_policy(path).accommodations)


def read_policy(path: Path) -> Policy:
    """The file of accommodations. Raises PolicyError that names the entry, the value and the remedy."""
    table = toml_of(path)
    only(table, _KEYS, path.name)
    opens = _moment(table["opens"], f"{path.name}: opens") if "opens" in table else None
    late = _table(table.get("late", {}), f"{path.name}, [late]")
    only(late, _LATE_KEYS, f"{path.name}, [late]")
    grants = {}
    for student, row in _table(table.get("student", {}), f"{path.name}, [student]").items():
        where = f"{path.name}, student {student!r}"
        grants[student] = _grant(_table(row, where), where, opens)
    return Policy(
        grants,
        _moments(table.get("deadlines", {}), f"{path.name}, [deadlines]"),
        opens,
        LatePolicy(**{key: _number(value, 0, f"{path.name}, [late]: {key}") for key, value in late.items()}),
    )


def _grant(row: dict[str, Any], where: str, opens: datetime | None) -> Accommodation:
    only(row, _STUDENT_KEYS, where)
    granted: dict[str, Any] = {}
    for key, least in (("extra_time", 1), ("extra_minutes", 0), ("slow_factor", 1)):
        if key in row:
            granted[key] = _number(row[key], least, f"{where}: {key}")
    if granted.get("extra_time", 1) != 1 and opens is None:
        raise PolicyError(
            f"{where}: extra_time = {row['extra_time']} is a factor of the time given, and the file does not say when "
            "that began: add `opens = 2026-11-06T09:00:00+01:00` at its top, or use extra_minutes"
        )
    if "deadline" in row:
        granted["deadline"] = _moment(row["deadline"], f"{where}: deadline")
    return Accommodation(**granted, deadlines=_moments(row.get("deadlines", {}), f"{where}: deadlines"))


def read_moment(text: str) -> datetime:
    """A moment in ISO 8601, such as 2026-11-20T23:59; without a zone it is this machine's. Raises PolicyError."""
    try:
        return _moment(datetime.fromisoformat(text) if len(text) > 10 else date.fromisoformat(text), "the deadline")
    except ValueError as error:
        if isinstance(error, PolicyError):
            raise
        raise PolicyError(f"{text!r} is no moment: write it like 2026-11-20T23:59 or 2026-11-20T23:59+01:00") from None


def _moment(value: Any, where: str) -> datetime:
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.astimezone()
    if isinstance(value, date):
        raise PolicyError(f"{where} is the day {value}: say the time too, like {value}T23:59:00")
    raise PolicyError(f"{where} is {value!r}: write a moment without quotes, like 2026-11-20T23:59:00+01:00")


def _moments(value: Any, where: str) -> dict[str, datetime]:
    return {name: _moment(moment, f"{where}: {name}") for name, moment in _table(value, where).items()}


def _number(value: Any, least: float, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < 1e6:
        raise PolicyError(f"{where} = {value!r}: it must be a number from {least} up")
    return float(value)


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PolicyError(f"{where} is {value!r}: it must be a table")
    return value


def toml_of(path: Path) -> dict[str, Any]:
    """A TOML file as a dictionary. Raises PolicyError."""
    try:
        return tomllib.loads(text_of(path))
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(f"{path.name} is not valid TOML: {error}") from None


def only(row: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    """Raise PolicyError for a key that is not known, with the nearest that is."""
    for key in row:
        if key not in known:
            raise PolicyError(f"{where}: {key!r} is no setting{did_you_mean(key, known)}. There is: {', '.join(known)}")
