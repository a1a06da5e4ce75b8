"""What the command line of `labkit grade` says."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Wanted:
    """What to grade and how. seed: None for the one kept in `out`, made at the first run. jobs: None for the cores."""

    submissions: Path
    out: Path
    chapters: Sequence[str] = ()
    only: Sequence[str] = ()
    seed: int | None = None
    overlay: Path | None = None
    accommodations: Path | None = None
    overrides: Path | None = None
    rubric: Path | None = None
    roster: Path | None = None
    deadline: str | None = None
    anonymous: bool = False
    own_numbers: bool = False
    jobs: int | None = None
    tier: str = "best"
    untrusted_ok: bool = False
    fresh: bool = False

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> "Wanted":
        """From the words of a command line."""
        return cls(**{field.name: getattr(arguments, field.name) for field in fields(cls)})


def add_grade(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command's own words, for the parser of `labkit`."""
    grade = commands.add_parser(
        "grade",
        help="for instructors: marks and feedback for a folder of submissions",
        description="Grade a folder that holds a folder for each student, with notebooks by the names of exercises/. "
        "Only their answer cells are taken; they run in a sandbox, whose kind is said first. Writes marks, a page for "
        "each student, and tables. What was graded already is kept: give the same command again to go on.",
        epilog="example: labkit grade submissions --out graded --chapter 3",
    )
    grade.add_argument("submissions", type=Path, metavar="SUBMISSIONS", help="a folder with a folder for each student")
    grade.add_argument("--out", type=Path, required=True, metavar="DIR", help="where results, tables and feedback go")
    grade.add_argument(
        "--chapter", dest="chapters", action="append", default=[], metavar="N", help="number or name; may be repeated"
    )
    grade.add_argument(
        "--only", action="append", default=[], metavar="EXERCISE", help="grade this exercise again, keep the others; "
        "may be repeated",
    )  # fmt: skip
    grade.add_argument(
        "--seed", type=_seed, metavar="N", help="of all inputs (default: a private one, kept in DIR/.seed)"
    )
    grade.add_argument("--overlay", type=Path, metavar="DIR", help="private checks, in files named like the notebooks")
    for word, help in (
        ("accommodations", "TOML: who has more time, a later deadline, a slow machine"),
        ("overrides", "TOML: points that you set, with a reason"),
        ("rubric", "CSV: your marks of free responses"),
        ("roster", "CSV with a column student_id: who is in the class"),
    ):
        grade.add_argument(f"--{word}", type=Path, metavar="FILE", help=help)
    grade.add_argument("--deadline", metavar="ISO", help="when all is due, such as 2026-11-20T18:00+01:00")
    grade.add_argument("--anonymous", action="store_true", help="pseudonyms in place of names, for those who mark")
    grade.add_argument(
        "--own-numbers", action="store_true", help="LABKIT_STUDENT was the folder's name where students worked"
    )
    grade.add_argument(
        "--jobs", type=_jobs, metavar="N", help="notebooks at the same time (default: one for each core)"
    )
    grade.add_argument("--tier", default="best", help="root, userns, landlock or none (default: the best that stands)")
    grade.add_argument("--untrusted-ok", action="store_true", help="grade without walls, where none stands")
    grade.add_argument("--fresh", action="store_true", help="keep nothing of earlier runs")


def _jobs(word: str) -> int:
    if not word.isdecimal() or not 1 <= int(word) <= 256:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of notebooks: 1 to 256")
    return int(word)


def _seed(word: str) -> int:
    if not word.isdecimal() or len(word) > 18:
        raise argparse.ArgumentTypeError(f"{word!r} is not a seed: a whole number of at most 18 digits")
    return int(word)
