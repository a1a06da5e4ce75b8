"""Lines of a group, to be sorted by the question that finds each; and how many each question finds."""

from __future__ import annotations

from html import escape
from typing import Any

from labkit import book
from labkit.chapters.cA_errata import pictures
from labkit.chapters.cA_errata.panel import Panel
from labkit.course import errata
from labkit.course.errata import Erratum, questions

FINDS = {
    "what": "a percentage or a factor whose base is missing, or has changed on the way",
    "all": "two numbers of which one counts more than the other: one GPU or all, one direction or both",
    "unit": "bits taken for bytes, MB for MiB, or a rate of one thing for the rate of another",
    "sum": "parts that do not make up the whole, or one that was left out of a sum or added without need",
    "itself": "a sentence that other numbers of the same text contradict",
    "small": "what becomes visible when two ranks or four stages go through the events one by one",
}  # what each question is good for, by its id: said of one that does not find a line


class Sort(Panel):
    """A few lines of a group, one after another: which question would find it? Below, all of them as a folded table.

    A line stands there as the source's own sentence. After a first wrong question the reader gets the fact that
    contradicts it, and after a second one the answer.
    """

    def __init__(self, table: pictures.Lines) -> None:
        super().__init__()
        self.table = table
        self.entries = [e for e in table if e.sentence]
        self.at, self.asked, self._missed = 0, dict[str, bool](), set[str]()

    def __repr__(self) -> str:
        return repr(self.table)

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if book.live():
            display(self.box)
        display(self.table)

    @property
    def entry(self) -> Erratum:
        return self.entries[self.at]

    def statement(self) -> str:
        """The source's sentence, as HTML: not what contradicts it, and not the question."""
        e = self.entry
        return (
            f"<p>Line {self.at + 1} of {len(self.entries)}: {escape(f'{e.source}, {e.place}')}.</p>"
            f"<blockquote>{escape(e.sentence)}</blockquote><p>Which question would you ask of it?</p>"
        )

    def ask(self, question: str) -> str:
        """What is said when the reader asks that question of the line, as HTML. The first one of a line counts."""
        e, all_questions = self.entry, questions()
        found, fact = question in e.caught, f"<p>What contradicts the sentence: {escape(pictures.objection(e))}</p>"
        self.asked.setdefault(e.id, found)
        if not found and e.id not in self._missed:
            self._missed.add(e.id)
            said = f"✗ {all_questions[question]} That finds {FINDS[question]}."
            return (
                f'<div role="status" aria-live="polite"><p><b>{escape(said)}</b></p>{fact}<p>Try once more.</p></div>'
            )
        others = [all_questions[one] for one in e.caught if one != question]
        if found:
            said = f"✓ {all_questions[question]}" + (f" It is also found by: {' '.join(others)}" if others else "")
        else:
            said = f"✗ We would ask: {all_questions[e.caught[0]]} It finds {FINDS[e.caught[0]]}."
        caught = f"{sum(self.asked.values())} of {len(self.asked)} found at first try."
        return (
            f'<div role="status" aria-live="polite"><p><b>{escape(said)}</b></p>{fact}'
            f"<p>What we find ({e.comes}): <b>{escape(pictures.told(e))}</b>. {caught}</p></div>"
        )

    def go(self, by: int) -> None:
        """Another line."""
        self.at = (self.at + by) % len(self.entries)

    def _made(self) -> Any:
        from ipywidgets import HTML, Button, HBox, Layout, VBox

        shown, answer = HTML(self.statement()), HTML()
        buttons = [Button(description=name, layout=Layout(width="auto")) for name in questions().values()]
        for id, one in zip(questions(), buttons, strict=True):
            one.on_click(lambda _, id=id: setattr(answer, "value", self.ask(id)))
        back, on = Button(description="Line before"), Button(description="Next line")

        def go(by: int) -> None:
            self.go(by)
            shown.value, answer.value = self.statement(), ""

        back.on_click(lambda _: go(-1))
        on.on_click(lambda _: go(1))
        row = HBox(buttons, layout=Layout(flex_flow="row wrap"))
        return VBox([shown, row, answer, HBox([back, on])])


def counted() -> book.Conclusion:
    """How many lines there are, and on which source."""
    seeds = [e.source.seed for e in errata().values()]
    return book.conclude(
        "There are {lines} lines: {article} on source 001, {paper} on 002, {textbook} on 003, which is by far the "
        "longest, and {short} on 004.",
        lines=len(seeds),
        article=seeds.count("001"),
        paper=seeds.count("002"),
        textbook=seeds.count("003"),
        short=seeds.count("004"),
    )


def lines(kind: str) -> Sort | pictures.Said:
    """The lines of one group, to sort by the question that finds each, and as a table. Or a sentence: no such group."""
    table = pictures.lines(kind)
    return table if isinstance(table, pictures.Said) else Sort(table)


def found_by() -> book.Conclusion:
    """How many lines each question finds first, and what none of them finds."""
    first = [e.caught[0] for e in errata().values() if e.caught]
    most, *others = sorted(questions(), key=first.count, reverse=True)
    left = [e for e in errata().values() if not e.caught]
    return book.conclude(
        "Of the {all} lines these questions find {found}. *{most}* alone finds {many} of them, and it needs no more "
        "than the text itself. The other five find {others}. What none of them finds is this: {left} For that you "
        "have to know the format.",
        all=len(errata()),
        found=len(first),
        most=questions()[most],
        many=first.count(most),
        others=", ".join(f"{first.count(id)} (*{questions()[id]}*)" for id in others),
        left=" ".join(pictures.claimed(e) for e in left),
    )
