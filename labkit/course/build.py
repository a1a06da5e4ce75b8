"""Write the pages that are made from the course's data files, or check that they are up to date.

python -m labkit.course.build           write notebooks/README.md, syllabus.md, coverage.md, ...
python -m labkit.course.build --check   write nothing; list what is old, and fail if there is any
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from labkit.course.errors import CourseError
from labkit.course.file import load
from labkit.course.pages import pages

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def outdated(folder: Path) -> dict[Path, str]:
    """The pages of `folder` that differ from what the data files say, or are missing, and their new text."""
    new = {folder / name: text for name, text in pages(load()).items()}
    return {path: text for path, text in new.items() if not path.exists() or path.read_text(encoding="utf-8") != text}


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns 0, or 1 where a page is old (`--check`) or a data file breaks a rule."""
    parser = argparse.ArgumentParser(prog="python -m labkit.course.build", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is old")
    parser.add_argument("--folder", type=Path, default=NOTEBOOKS, help="where the pages stand (default: notebooks)")
    options = parser.parse_args(arguments)
    try:
        old = outdated(options.folder)
    except CourseError as error:
        print(error, file=sys.stderr)
        return 1
    for path, text in old.items():
        print(f"{path} is old: run python -m labkit.course.build" if options.check else f"wrote {path}")
        if not options.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return 1 if options.check and old else 0


if __name__ == "__main__":
    sys.exit(main())
