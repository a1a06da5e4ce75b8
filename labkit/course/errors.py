"""What goes wrong in a file of the course: said with the file, the entry and the rule."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class CourseError(ValueError):
    """A data file of the course breaks a rule, or needs a value that it was not given."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ " (did you mean 'x'?)" where a known name is close to `name`, else ""."""
    close = get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
