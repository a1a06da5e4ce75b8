"""How many lines there are, and under which question each stands."""

from __future__ import annotations

from labkit import book
from labkit.chapters.cA_errata import pictures
from labkit.course import errata
from labkit.course.errata import questions


def counted() -> book.Conclusion:
    """How many lines there are, and on which source."""
    seeds = [e.source.seed for e in errata().values()]
    return book.conclude(
        "There are {lines} findings: {article} on source 001, {paper} on 002, {textbook} on 003, which is by far the "
        "longest, and {short} on 004.",
        lines=len(seeds),
        article=seeds.count("001"),
        paper=seeds.count("002"),
        textbook=seeds.count("003"),
        short=seeds.count("004"),
    )


def found_by() -> book.Conclusion:
    """To how many lines each question is the first that we would put, and which line none of them finds."""
    first = [e.caught[0] for e in errata().values() if e.caught]
    ranked = sorted(questions(), key=first.count, reverse=True)
    left = [e for e in errata().values() if not e.caught]
    return book.conclude(
        "We put {all} of the {whole} findings under the question that would have found them, or under the first one if "
        "there are several:\n\n{listed}\n\nWe did that after they were found, so it is no proof that you would "
        "have found them. No question finds the one that is left: *{left}* For that you have to know the format of the "
        "numbers.",
        all=len(first),
        whole=len(errata()),
        listed="\n".join(f"- {first.count(id)}: *{questions()[id]}*" for id in ranked),
        left=" ".join(pictures.claimed(e) for e in left),
    )
