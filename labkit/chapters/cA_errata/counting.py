"""How many lines each question finds."""

from __future__ import annotations

from labkit import book
from labkit.chapters.cA_errata import pictures
from labkit.course import errata
from labkit.course.errata import questions


def found_by() -> book.Conclusion:
    """To how many lines each question is the first that we would put, and which line none of them finds."""
    first = [e.caught[0] for e in errata().values() if e.caught]
    ranked = sorted(questions(), key=first.count, reverse=True)
    left = [e for e in errata().values() if not e.caught]
    return book.conclude(
        "These questions find {all} of the {whole} findings. Each finding is counted under the first question that "
        "finds it:\n\n{listed}\n\nNo question finds the one that is left: *{left}* For that you have to know the "
        "format of the numbers. (We counted after the findings were made, so this is no proof that you would have made "
        "them.)",
        all=len(first),
        whole=len(errata()),
        listed="\n".join(f"- {first.count(id)}: *{questions()[id]}*" for id in ranked),
        left=" ".join(pictures.claimed(e) for e in left),
    )
