"""What is touched in appendix A: a sentence for real ranks, lines for a pencil and to sort, the sliders of the case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from html import escape
from typing import Any

from labkit import book
from labkit.book.frontend import VIEW
from labkit.book.workbenches.bench import Workbench
from labkit.chapters.cA_errata import agreeing, apart as one_line, pictures, suspects
from labkit.chapters.cA_errata.agreeing import by_its_digits
from labkit.course import errata
from labkit.course.errata import Erratum, erratum, groups, questions
from labkit.course.errors import CourseError, did_you_mean

Agrees = Callable[[str, float], bool]


def three_ways(run: Callable[..., Any]) -> Workbench:
    """How the ranks share a gradient and their new weights, and how many they are."""
    ways = ["plain data parallelism", "ZeRO-1, as the table has it", "ZeRO-1, as the text has it"]
    return book.workbench(
        run, {"way": ways, "ranks": (2, 8)}, [pictures.sent], title="What does a step of ZeRO-1 send?", ranks=4
    )


class Panel:
    """A widget, made when first shown; without a reader, its words."""

    def __init__(self) -> None:
        self._box: Any = None

    def _made(self) -> Any:
        raise NotImplementedError

    @property
    def box(self) -> Any:
        if self._box is None:
            self._box = self._made()
        return self._box

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        told: dict[str, Any] = {"text/plain": repr(self)}
        return told | {VIEW: self.box._repr_mimebundle_()[VIEW]} if book.live() else told


class Case(Panel):
    """The size of the message, the speed of the uplinks, and the recipe: which facts are explained?"""

    recipes = tuple(suspects.RECIPES)

    def __init__(self, two_level: suspects.TwoLevel) -> None:
        super().__init__()
        self.two_level = two_level
        self.set(3, 100)

    def set(self, gigabytes: float, uplinks: float, recipe: str = recipes[0]) -> Case:
        """Other settings."""
        self.story = suspects.story(self.two_level, gigabytes, uplinks, recipe)
        return self

    def __repr__(self) -> str:
        facts = [
            f"  {'fits' if fits else 'does not fit':12}  {what}: {n}" for what, (fits, n) in self.story.facts.items()
        ]
        return "\n".join([pictures.times(self.story).text, *facts])

    def _html(self) -> str:
        rows = "".join(
            f"<li>{'✓ fits' if fits else '✗ does not fit'}: {escape(what)} ({escape(n)})</li>"
            for what, (fits, n) in self.story.facts.items()
        )
        return f'{pictures.times(self.story).svg}<ul role="status" aria-live="polite">{rows}</ul>'

    def _made(self) -> Any:
        from ipywidgets import HTML, FloatSlider, Layout, RadioButtons, VBox

        look = {"style": {"description_width": "130px"}, "layout": Layout(width="480px", max_width="100%")}
        size = FloatSlider(3, min=1, max=8, step=0.05, description="message (GB)", **look)
        speed = FloatSlider(
            100, min=20, max=100, step=1, description="uplinks run at (%)", readout_format=".0f", **look
        )
        recipe = RadioButtons(options=self.recipes, description="recipe", **look)
        shown = HTML(self._html())

        def moved(_: object) -> None:
            self.set(size.value, speed.value, recipe.value)
            shown.value = self._html()

        for control in (size, speed, recipe):
            control.observe(moved, "value")
        return VBox([size, speed, recipe, shown])


def slow_sync(two_level: suspects.TwoLevel) -> Case:
    """What explains the time that was seen, and the counter? By the function that the reader wrote."""
    return Case(two_level)


class Apart(Panel):
    """Questions for a pencil, a box for the reader's number, and then ours. Without a reader all of it, as words.

    A first wrong number gets a hint, a second one the steps. agrees: the rule by which a number is right.
    """

    def __init__(self, entries: list[Erratum], agrees: Agrees) -> None:
        super().__init__()
        self.entries, self.entry, self.agrees = entries, entries[0], agrees
        self._wrong, self._verdict = dict.fromkeys((e.id for e in entries), 0), ""

    def __repr__(self) -> str:
        return "\n\n".join(
            "\n".join([one_line.asked(e), *(f"  {s}" for s in one_line.worked(e))]) for e in self.entries
        )

    def choose(self, id: str) -> None:
        """Another line."""
        self.entry, self._verdict = erratum(id), ""
        if self._box is not None:
            self._question.value, self._answer.value = self._asked(), ""

    def compare(self, typed: str) -> str:
        """What is said of the reader's number, as HTML; with the arithmetic where it is right, or wrong again."""
        right, said = one_line.judged(self.entry, typed, self.agrees)
        self._verdict = f'<p role="status" aria-live="polite">{"✓" if right else "✗"} {escape(said)}</p>'
        if one_line.typed_number(self.entry, typed) is None:
            return self._verdict
        self._wrong[self.entry.id] += not right
        return self._verdict + (self.worked() if right or self._wrong[self.entry.id] > 1 else "")

    def worked(self) -> str:
        """The arithmetic, and why the sentence cannot be, as HTML."""
        way, why = one_line.worked(self.entry)
        return f"<p><code>{escape(way)}</code></p><p>{escape(why)}</p>"

    def _asked(self) -> str:
        said, ask = one_line.asked(self.entry).split("\n")
        return f"<p>{escape(said)}</p><p><b>{escape(ask)}</b></p>"

    def _made(self) -> Any:
        from ipywidgets import HTML, Button, Dropdown, HBox, Layout, Text, VBox

        wide, style = Layout(width="480px", max_width="100%"), {"description_width": "initial"}
        names = [(one_line.pencils()[e.id].label, e.id) for e in self.entries]
        chosen = Dropdown(options=names, value=self.entry.id, description="question", style=style, layout=wide)
        self._question, self._answer = HTML(self._asked()), HTML()
        self._typed = Text(description="your number", continuous_update=False, style=style)
        button, give_up = Button(description="Compare"), Button(description="Show the steps")
        chosen.observe(lambda change: self.choose(change["new"]), "value")

        def compare(_: object = None) -> None:
            self._answer.value = self.compare(self._typed.value)
            if "✓" in self._answer.value:
                self._typed.value = ""  # here and not with the next question, when a number may be under way

        button.on_click(compare)
        give_up.on_click(lambda _: setattr(self._answer, "value", self._verdict + self.worked()))
        row = HBox([self._typed, button, give_up], layout=Layout(flex_flow="row wrap"))
        return VBox([*[chosen] * (len(self.entries) > 1), self._question, row, self._answer])


def apart(kind: object, agrees: Agrees = by_its_digits) -> Apart | pictures.Said:
    """The lines of a group that need a pencil and nothing else, or a sentence where there is no such group."""
    name = str(kind).strip().lower()
    if name not in groups():
        return pictures.Said(f"There is no group {kind!r}{did_you_mean(name, groups())}.")
    return Apart([errata()[id] for id in one_line.pencils() if errata()[id].kind == name], agrees)


FINDS = {
    "what": "a percentage or a factor whose base is missing, or has changed on the way",
    "all": "two numbers of which one counts more than the other: one GPU or all, one direction or both",
    "unit": "bits taken for bytes, MB for MiB, or a rate of one thing for the rate of another",
    "sum": "parts that do not make up the whole, or a part that was left out of a sum",
    "itself": "a sentence that other numbers of the same text contradict",
    "small": "what becomes visible when two ranks or four stages go through the events one by one",
}  # what each question is good for, by its id: said of one that does not find a line


class Sort(Panel):
    """The other lines of a group, one after another: which question finds it? Below, all of them as a folded table.

    A line stands there with what contradicts it. A first wrong question gets a hint, and a second one the answer.
    """

    def __init__(self, table: pictures.Lines) -> None:
        super().__init__()
        self.table = table
        self.entries = [e for e in table if e.id not in one_line.pencils()]
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
        """What the line says, and what contradicts it, as HTML: not our number, and not the question."""
        e = self.entry
        return (
            f"<p>Line {self.at + 1} of {len(self.entries)}: {escape(f'{e.source}, {e.place}')}. "
            f"<b>{escape(pictures.claimed(e))}</b></p><p>What contradicts it: {escape(pictures.objection(e))}</p>"
            "<p>Which question leads from the sentence to this contradiction?</p>"
        )

    def ask(self, question: str) -> str:
        """What is said when the reader asks that question of the line, as HTML. The first one of a line counts."""
        again = self._missed
        e, all_questions = self.entry, questions()
        first = all_questions[e.caught[0]] if e.caught else ""
        self.asked.setdefault(e.id, question in e.caught)
        if not e.caught:
            said = "✗ None of the six finds this one: it takes knowledge of the field."
        elif question == e.caught[0]:
            said = f"✓ {first}"
        elif question in e.caught:
            said = f"✓ This one finds it too; we would ask first: {first}"
        elif e.id in again:
            said = f"✗ We would ask: {first} It finds {FINDS[e.caught[0]]}."
        else:
            again.add(e.id)
            said = f"✗ {all_questions[question]} That finds {FINDS[question]}. This contradiction is of another kind."
            return f'<p role="status" aria-live="polite"><b>{escape(said)}</b> Try once more.</p>'
        caught = f"{sum(self.asked.values())} of {len(self.asked)} found at first try."
        return (
            f'<p role="status" aria-live="polite"><b>{escape(said)}</b> What we find ({e.comes}): '
            f"<b>{escape(pictures.told(e))}</b>. {caught}</p>"
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


def lines(kind: str) -> Sort | pictures.Said:
    """The lines of one group, to sort by the question that finds each, and as a table. Or a sentence: no such group."""
    table = pictures.lines(kind)
    return table if isinstance(table, pictures.Said) else Sort(table)


class Judge(Panel):
    """Numbers of the sources beside ours, and a rule that tells which agree: the reader's, or a percentage."""

    rules = {"your agrees": 0.0, "within 0.1 %": 0.001, "within 1 %": 0.01, "within 5 %": 0.05, "within 20 %": 0.2}

    def __init__(self, agrees: Agrees) -> None:
        super().__init__()
        self.agrees = agrees
        self.use(next(iter(self.rules)))

    def use(self, rule: str) -> Judge:
        """Another rule."""
        self.rule = rule
        part = self.rules[rule]
        self.rows = [
            (one, self.agrees(one.said, one.found) if not part else abs(one.far) <= part)
            for one in sorted(agreeing.numbers(), key=lambda one: abs(one.far))
        ]
        return self

    @property
    def sentence(self) -> str:
        """How many agree, and what the rule gets wrong."""
        listed = {one.where for one, _ in self.rows} & set(errata())
        agree = [one.where for one, fits in self.rows if fits]
        said = f"By this rule {len(agree)} of {len(self.rows)} numbers agree."
        through = len([where for where in agree if where in listed])
        refused = len([1 for one, fits in self.rows if not fits and one.where not in listed])
        if not through and not refused:
            return f"{said} Those that do not are exactly the {len(listed)} that are lines of this appendix."
        ones = "one" if refused == 1 else "ones"
        said += f" It lets {through} of the {len(listed)} lines through, and refuses {refused} right {ones}."
        right, wrong = (
            [abs(one.far) for one, _ in self.rows if (one.where in listed) is kind] for kind in (False, True)
        )
        apart = f"A right number is up to {max(right):.1%} apart here, and a wrong one as little as {min(wrong):.1%}"
        return f"{said} {apart}, so no percentage separates them." if max(right) > min(wrong) else f"{said} {apart}."

    def table(self) -> book.Table:
        """The numbers, the nearest first."""
        rows = [
            {
                "what": f"{one.what} ({one.unit})",
                "said": float(one.said),
                "we find": float(one.found),
                "apart": f"{100 * abs(one.far):.2g} %" if abs(one.far) < 0.995 else "by far",
                "": "✓ agrees" if fits else "✗ does not",
                "a line of this appendix": one.where in errata(),
            }
            for one, fits in self.rows
        ]
        return book.Table(rows)

    def __repr__(self) -> str:
        return f"{self.rule}: {self.sentence}\n{self.table().text()}"

    def _html(self) -> str:
        told = f'<p role="status" aria-live="polite">{escape(self.sentence)}</p>'
        look = "<style>.lk-judged th, .lk-judged td { padding: 1px 10px }</style>"
        return (
            f'{told}{look}<div class="lk-judged" style="max-height: 560px; overflow: auto">{self.table().html()}</div>'
        )

    def _made(self) -> Any:
        from ipywidgets import HTML, ToggleButtons, VBox

        rule, shown = ToggleButtons(options=list(self.rules), description="rule"), HTML(self._html())
        rule.observe(lambda change: setattr(shown, "value", self.use(change["new"])._html()), "value")
        return VBox([rule, shown])


def judge(agrees: Agrees) -> Judge:
    """Which numbers agree, by the function that the reader wrote or by a percentage?"""
    return Judge(agrees)


def factors() -> book.Figure:
    """How far off the lines with a question are, where both numbers are of the same thing."""
    return pictures.factors({id: (one.label, one.against) for id, one in one_line.pencils().items()})


FIXED = {"hierarchical-both", "no-infinity", "one-of-678", "power-of-the-failed"}  # no input stands in their arithmetic


def changeable() -> list[tuple[str, str]]:
    """The lines whose arithmetic has an input to change, group by group: what each is called, and its id."""
    return [
        (f"{name}: {e.id.replace('-', ' ')}", e.id)
        for kind, name in groups().items()
        for e in errata().values()
        if e.kind == kind and e.id not in FIXED
    ]


class Computed(Panel):
    """Any line, with the code that computes it: to change and to run, without a cell."""

    def __init__(self, entry: Erratum) -> None:
        super().__init__()
        self.entry = entry

    def words(self) -> str:
        """What the line says, and why that cannot be."""
        e = self.entry
        return f"{e.source}, {e.place}. {e.what}\nIt says: {e.stated}."

    def ours(self) -> str:
        return f"{pictures.COMES[self.entry.comes]}: {pictures.told(self.entry)}"

    def __repr__(self) -> str:
        return f"{self.words()}\n\n{one_line.pasted(self.entry)}\n\n{self.ours()}"

    def run(self, code: str) -> str:
        """What a reader's version of the code comes to, and whether the source would be right, or what is wrong."""
        if not code.strip():
            return "The box is empty. Press Reset to have the arithmetic back."
        try:
            number = one_line.value(code)
        except TypeError as wrong:
            return f"The last line must be a number. (TypeError: {wrong})"
        except Exception as wrong:
            return f"{type(wrong).__name__}: {wrong}"
        e, right = self.entry, replace(self.entry.claim(), found=number).agrees
        verdict = f"With that the source {'would be right' if right else 'is not right'}: it says {e.stated}"
        needs = f", which needs {e.says} {e.unit}".replace(" {}", "").rstrip() if e.quote else ""
        return f"It comes to this: {pictures.told(e, number)}. {verdict}{needs}."

    def _made(self) -> Any:
        from ipywidgets import HTML, Button, Dropdown, HBox, Layout, Textarea, VBox

        wide = Layout(width="100%", max_width="740px")
        chosen = Dropdown(options=changeable(), value=self.entry.id, description="line", layout=Layout(width="420px"))
        words, code, came = HTML(), Textarea(layout=wide, rows=6), HTML()
        button, reset = Button(description="Run"), Button(description="Reset")

        def show(id: str) -> None:
            self.entry = erratum(id)
            words.value = f"<p>{escape(self.words())}</p>"
            code.value, came.value = one_line.pasted(self.entry), f"<p>{escape(self.ours())}</p>"

        def run(_: object) -> None:
            came.value = f'<p role="status" aria-live="polite">{escape(self.run(code.value))}</p>'

        chosen.observe(lambda change: show(change["new"]), "value")
        button.on_click(run)
        reset.on_click(lambda _: show(self.entry.id))
        show(self.entry.id)
        return VBox([chosen, words, code, HBox([button, reset]), came])


def computed(id: object) -> Computed | pictures.Said:
    """A line with the code that computes it, or a sentence where there is none of that id."""
    try:
        return Computed(erratum(id))
    except CourseError as wrong:
        return pictures.Said(str(wrong))


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
