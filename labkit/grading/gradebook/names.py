"""How students are called where a marker looks: by name, or by a pseudonym that stays the same from run to run."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from labkit.files import write_atomically
from labkit.grading.gradebook.errors import PolicyError
from labkit.grading.gradebook.sheets import text_of

KEY = ".pseudonyms.json"  # in the folder of grades; only its owner may read it
_LETTERS = "bcdfghjkmnpqrstvwxz"  # no vowels, no digits: neither a word nor a number, and nothing that looks alike


@dataclass(frozen=True)
class Names:
    """pseudonyms: by student, all that were ever given here. anonymous: whether they are shown."""

    pseudonyms: Mapping[str, str]
    anonymous: bool

    def shown(self, student: str) -> str:
        return self.pseudonyms[student] if self.anonymous else student

    def real(self, name: str) -> str:
        """The student behind a pseudonym; any other name is a student's own."""
        return {pseudonym: student for student, pseudonym in self.pseudonyms.items()}.get(name, name)


def names_for(students: Iterable[str], out: Path, anonymous: bool) -> Names:
    """The names of these students in the folder `out`; new ones get a pseudonym, kept in a file of mode 0600.

    Raises PolicyError where that file cannot be read: making it anew would mix students up.
    """
    known = _read(out / KEY)
    if not anonymous:
        return Names(known, False)
    students = sorted(students)
    taken = {*known.values(), *students}
    for student in students:
        if student not in known:
            known[student] = _draw(taken)
            taken.add(known[student])
    write_atomically(out / KEY, json.dumps({"schema": 1, "pseudonyms": known}, indent=1, sort_keys=True) + "\n", 0o600)
    return Names(known, True)


def _draw(taken: set[str]) -> str:
    while True:
        name = "student-" + "".join(secrets.choice(_LETTERS) for _ in range(5))
        if name not in taken:
            return name


def _read(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        data = json.loads(text_of(path))
        known = dict(data["pseudonyms"])
        if data["schema"] != 1 or not all(isinstance(name, str) for name in known.values()):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise PolicyError(
            f"{path} cannot be read. It says which student is behind which pseudonym: restore it; or delete it, and "
            "rubric.csv with it, to give new ones"
        ) from None
    return known
