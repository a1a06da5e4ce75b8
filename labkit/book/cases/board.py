"""A case file on the page: evidence to buy, a verdict to give, and then the truth beside what it could have cost."""

from __future__ import annotations

from html import escape
from typing import Any

from labkit.book.drawing.tables import Row, Table
from labkit.book.forms import Form, to_html
from labkit.book.frontend import await_run_all, live
from labkit.course.casefile import Case, Evidence, Ruling
from labkit.course.errors import CourseError

LETTERS = "abcdefghij"
VERDICT = "verdict"
BUTTONS = [{"id": "submit", "label": "Give the verdict"}, {"id": "reveal", "label": "Close the case and show me"}]


class VerdictFirst(Exception):
    """A cell was run that tells the truth about a case whose reader has not given a verdict. Shown in a few lines."""

    def __init__(self, title: str) -> None:
        super().__init__(
            f"This cell tells who it was. {title} waits for your verdict above,\nor press Close the case and show me.\n"
            "Then go on here: menu Run, Run Selected Cell and All Below."
        )

    def _render_traceback_(self) -> list[str]:
        """What Jupyter shows in place of a traceback."""
        return ["Verdict first.", str(self)]


class CaseFile:
    """What `book.case` returns. Shows its form; headless, the case in words.

    Nothing that was not bought, and not the truth either, is in the page or in an output. After the case is closed,
    whatever was not bought may be looked at for nothing. like: an earlier case with the same symptom, causes and
    offers; a page without a reader then only says so, until something is bought. Raises CourseError if they differ.
    """

    def __init__(self, case: Case, like: Case | None = None) -> None:
        self._case, self._like = case, like
        if like is not None and _offers(case) != _offers(like):
            raise CourseError(f"case {case.title!r}: symptom, causes, ranks or prices are not those of {like.title!r}")
        self._form: Form | None = None
        self._said = ""  # of the last verdict, Markdown
        self._looked = set[str]()  # at evidence that was not bought, after the case was closed

    @property
    def letters(self) -> dict[str, str]:
        """The causes by the letters under which they are shown."""
        return dict(zip(LETTERS, self._case.causes, strict=False))

    def buy(self, *ids: str) -> None:
        """Buy evidence from Python, as the buttons do, and print what it shows."""
        for id in ids:
            e = self._take(id)
            self._refresh(id)
            print(f"{e.name}, {e.minutes:g} min [{e.mark}]\n{e.shows}")

    def accuse(self, rank: int, cause: str) -> Ruling:
        """Give the verdict from Python. cause: its letter or its name."""
        ruling = self._case.accuse(rank, self.letters.get(cause, cause))
        self._said = ruling.text
        self._refresh()
        return ruling

    def require(self) -> None:
        """With a reader there, raise VerdictFirst until the case is closed. Headless, follow the declared path: buy
        the cheapest evidence first, until one suspect is left, and name that one."""
        if self._case.closed:
            return
        if live():
            if self._form is not None:
                self._form.call(VERDICT)
            await_run_all()
            raise VerdictFirst(self._case.title)
        said = self._case.cheapest_first()
        self._said = self._case.rulings[-1][1].text
        self._refresh()
        print(f"declared path: the cheapest evidence first, then the verdict: rank {said.rank}, {said.cause}")

    def story(self) -> Table:
        """What was bought, what it showed, and how many answers, (rank, cause), it left; the truth; and hindsight."""
        case = self._case
        left = case.everyone
        rows: list[Row] = [{"paid for": "nothing yet", "minutes": 0.0, "(rank, cause) pairs left": len(left),
                            "what it showed": f"{case.size} ranks, {len(case.causes)} causes"}]  # fmt: skip
        for id in case.bought:
            left &= case.evidence[id].leaves
            rows.append({"paid for": case.evidence[id].name, "minutes": case.evidence[id].minutes,
                         "(rank, cause) pairs left": len(left), "what it showed": case.evidence[id].line})  # fmt: skip
        for said, ruling in case.rulings:
            word = "right" if ruling.right else "wrong, the fleet was restarted"
            rows.append({"paid for": f"verdict: rank {said.rank}, {said.cause} ({word})", "minutes": ruling.minutes})
        ids, minutes = case.perfect()
        names = " and ".join(case.evidence[id].name for id in ids)
        rows.append({"paid for": "all that", "minutes": case.minutes})
        rows.append({"paid for": f"in hindsight enough: {names}", "minutes": minutes})
        truth = f"rank {case.truth.rank}, {case.truth.cause}: {case.causes[case.truth.cause]}"
        return Table(rows, caption=f"{case.title}. {truth}")

    @property
    def form(self) -> Form:
        """The form, made when first shown."""
        if self._form is None:
            items = [self._item(e) for e in self._case.evidence.values()]
            title = f"{self._case.title}. {self._case.symptom}"
            spec = {"title": title, "items": [*items, self._verdict()], "buttons": []}
            self._form = Form(spec, self._submitted)
        return self._form

    # -- inside ----------------------------------------------------------------------------------------------------

    def _item(self, e: Evidence) -> dict[str, Any]:
        price, bought = _minutes(e.minutes), e.id in self._case.bought
        seen = bought or e.id in self._looked
        word = "Bought" if bought else "Seen, for nothing"
        label = "Look at it now, for nothing" if self._case.closed and not bought else f"Buy for {price}"
        return {
            "id": e.id, "kind": "button", "html": f"<p>{escape(e.name)}: {price}</p>", "locked": seen,
            "state": "done" if seen else "open", "state_text": f"{word} ({e.mark})" if seen else "",
            "feedback": to_html(e.shows) if seen else "", "buttons": [{"id": "buy", "label": label}],
        }  # fmt: skip

    def _take(self, id: str) -> Evidence:
        """Buy it; or look at it, once the case is closed."""
        if self._case.closed and id not in self._case.bought:
            self._looked.add(id)
        return self._case.buy(id)

    def _verdict(self) -> dict[str, Any]:
        case = self._case
        causes = "".join(f"<li>({letter}) {escape(case.causes[name])}</li>" for letter, name in self.letters.items())
        html = (
            f"<p>Which rank is at fault, and why?</p><p>There are {case.size} ranks, and one of them is at fault:</p>"
            f"<ul>{causes}</ul><p>A wrong verdict costs {case.wrong:g} minutes.</p>"
        )
        state = "right" if case.right else "done" if case.closed else "wrong" if case.rulings else "open"
        spent = f"{_minutes(case.minutes)} of the fleet so far: {case.gpu_hours:,.0f} GPU hours."
        value = None
        if case.rulings:
            said = case.rulings[-1][0]
            value = [str(said.rank), next(letter for letter, name in self.letters.items() if name == said.cause)]
        feedback = to_html(" ".join(part for part in (self._said, spent) if part))
        return {
            "id": VERDICT, "kind": "number", "html": html, "value": value, "state": state, "feedback": feedback,
            "boxes": [{"label": "rank"}, {"label": "cause, its letter"}], "buttons": BUTTONS,
            "state_text": "Closed" if state == "done" else "",
        }  # fmt: skip

    def _submitted(self, id: str, action: str, value: Any) -> dict[str, Any]:
        """A button of the form was pressed."""
        if id != VERDICT:
            e = self._take(id)
            self._refresh(VERDICT)
            return self._item(e)
        if action == "reveal":
            self._case.give_up()
            who, cause = self._case.truth
            self._said = f"It was rank {who}: {self._case.causes[cause]}."
            self._refresh()
            return self._verdict()
        try:
            self.accuse(*self._read(value))
        except CourseError as error:
            return {"state": "open", "feedback": f"<p>{escape(str(error))}</p>", "value": value}
        return self._verdict()

    def _read(self, value: Any) -> tuple[int, str]:
        """(rank, cause) from what was typed into the two boxes. Raises CourseError with what to type instead."""
        rank, cause = (str(v).strip().lower() for v in value)
        rank = rank.removeprefix("rank").strip()
        if not rank.isdecimal():
            raise CourseError(f"the rank is a number from 0 to {self._case.size - 1}, not {rank!r}")
        letter = cause.strip("().")
        if letter not in self.letters and letter not in self._case.causes:
            raise CourseError(f"the cause is one of the letters {', '.join(self.letters)}, not {cause!r}")
        return int(rank), self.letters.get(letter, letter)

    def _refresh(self, *ids: str) -> None:
        if self._form is None:
            return
        for id in ids or tuple(self._case.evidence):
            if id in self._case.evidence:
                self._form.update(self._item(self._case.evidence[id]))
        self._form.update(self._verdict())

    @property
    def _short(self) -> str:
        """What stands in a page without a reader in place of all offers; "" for all of them."""
        if self._like is None or self._case.bought or self._case.rulings or self._case.closed:
            return ""
        return (
            f"{self._case.title}. The symptom, the offers, the prices and the causes are those of {self._like.title}."
        )

    def __repr__(self) -> str:
        return self._short or self.form.text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        bundle = self.form._repr_mimebundle_(include, exclude)
        return (
            bundle | {"text/plain": self._short, "text/html": f"<p>{escape(self._short)}</p>"}
            if self._short
            else bundle
        )


def _minutes(n: float) -> str:
    return "1 minute" if n == 1 else f"{n:g} minutes"


def _offers(case: Case) -> tuple[object, ...]:
    """All that a reader sees of a case before anything is bought, but its title."""
    return case.symptom, case.causes, case.size, case.wrong, case.gpus, [(e.id, e.name, e.minutes)
                                                                         for e in case.evidence.values()]  # fmt: skip


def case(of: Case, like: Case | None = None) -> CaseFile:
    """A case file on the page: the last expression of its cell. like: an earlier case with the same offers."""
    return CaseFile(of, like)
