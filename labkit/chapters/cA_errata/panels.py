"""What is touched in appendix A: a sentence for real ranks, lines for a pencil, the sliders of the case."""

from __future__ import annotations

from html import escape
from typing import Any

from labkit import book, cost
from labkit.book.drawing.units import bytes_text
from labkit.book.frontend import INSIDE, Panel
from labkit.book.workbenches.bench import Workbench
from labkit.chapters.cA_errata import apart as one_line, pictures, suspects
from labkit.chapters.cA_errata.agreeing import by_its_digits
from labkit.chapters.cA_errata.asked_first import ROOM, First
from labkit.chapters.cA_errata.asking import Question
from labkit.chapters.cA_errata.computing import changeable as changeable, computed as computed
from labkit.chapters.cA_errata.gating import unchecked
from labkit.chapters.cA_errata.judging import Agrees, judge as judge
from labkit.chapters.cA_errata.opening import three_ways as three_ways
from labkit.chapters.cA_errata.sliding import efficiency as efficiency, failures as failures, memory as memory
from labkit.course import errata
from labkit.course.errata import Erratum, groups
from labkit.course.errors import did_you_mean
from labkit.course.progress import Progress


class Case(Panel):
    """The size of the message, the speed of the uplinks, and the algorithm: which facts are explained?"""

    algorithms = tuple(suspects.ALGORITHMS)

    def __init__(self, two_level: suspects.TwoLevel) -> None:
        super().__init__()
        self.two_level = two_level
        self.asked: set[str] = set()  # what was refused as long as nothing was found
        self.found: dict[tuple[str, str], tuple[str, float, float]] = {}
        self.set(3, 100)

    def set(self, gigabytes: float, uplinks: float, algorithm: str = algorithms[0]) -> Case:
        """Other settings."""
        self.story = suspects.story(self.two_level, gigabytes, uplinks, algorithm)
        self.at = (algorithm, gigabytes, uplinks / 100)
        if self.story.fits:  # of several the one that comes nearest to the time that was seen
            key = algorithm, self.story.counter
            near = {one: abs(suspects.story(self.two_level, one[1], 100 * one[2], one[0]).seconds - suspects.SEEN)
                    for one in (self.at, self.found.get(key, self.at))}  # fmt: skip
            self.found[key] = min(near, key=lambda one: near[one])
        return self

    @property
    def tally(self) -> str:
        """The explanations that the reader has found, one for each algorithm and meaning of the counter."""
        if not self.found:
            return "No explanation that fits has been found yet."
        each = [
            f"{size:.2f} GB, uplinks at {part:.0%}, {algorithm} ({counter})"
            for (algorithm, counter), (_, size, part) in self.found.items()
        ]
        return f"Found so far: {'; '.join(each)}."

    def __repr__(self) -> str:
        facts = [
            f"  {'fits' if fits else 'does not fit':12}  {what}: {n}" for what, (fits, n) in self.story.facts.items()
        ]
        return "\n".join([pictures.times(self.story).text, *facts, self.story.verdict, self.tally])

    def _html(self) -> str:
        rows = "".join(
            f"<li>{'✓ fits' if fits else '✗ does not fit'}: {escape(what)} ({escape(n)})</li>"
            for what, (fits, n) in self.story.facts.items()
        )
        told = f"<p><b>{escape(self.story.verdict)}</b></p><ul>{rows}</ul><p>{escape(self.tally)}</p>"
        return f'{pictures.times(self.story).svg}<div role="status" aria-live="polite">{told}</div>'

    def _made(self) -> Any:
        from ipywidgets import HTML, FloatSlider, Layout, RadioButtons, VBox

        look = {"style": {"description_width": "130px"}, "layout": Layout(width="480px", max_width=INSIDE)}
        size = FloatSlider(3, min=0.5, max=7, step=0.01, description="message (GB)", **look)
        speed = FloatSlider(
            100, min=20, max=100, step=1, description="uplinks run at (%)", readout_format=".0f", **look
        )
        algorithm = RadioButtons(options=self.algorithms, description="algorithm", **look)
        shown = HTML(self._html())

        def moved(_: object) -> None:
            self.set(size.value, speed.value, algorithm.value)
            shown.value = self._html()

        for control in (size, speed, algorithm):
            control.observe(moved, "value")
        return VBox([size, speed, algorithm, shown])


def slow_sync(two_level: suspects.TwoLevel) -> Case | pictures.Said:
    """What explains the time that was seen, and the counter? By the function that the reader wrote."""
    return unchecked(two_level) or Case(two_level)


class Apart(Panel):
    """Questions for a pencil, by the ids of their lines. Without a reader all of them, with the steps, as words."""

    def __init__(self, entries: list[Erratum], agrees: Agrees) -> None:
        super().__init__()
        self._progress = Progress.of_reader() if book.live() else Progress(None)
        self.questions = {e.id: Question(e, agrees, self._ended) for e in entries}

    def _ended(self, id: str) -> None:
        self._progress.chose(ROOM, f"pencil-{id}", "over")

    def over(self, id: str) -> bool:
        """Whether the steps of a question have been shown, in this session or before."""
        return self.questions[id].over or bool(self._progress.choice(ROOM, f"pencil-{id}"))

    def __repr__(self) -> str:
        entries = [question.entry for question in self.questions.values()]
        return "\n\n".join("\n".join([one_line.asked(e), *(f"  {s}" for s in one_line.worked(e))]) for e in entries)

    def _made(self) -> Any:
        from ipywidgets import Dropdown, Layout, Stack, VBox, jslink

        shown = Stack([question.box() for question in self.questions.values()], selected_index=0)
        names = [(one_line.pencils()[id].label, id) for id in self.questions]
        look = {"style": {"description_width": "initial"}, "layout": Layout(width="480px", max_width=INSIDE)}
        chosen = Dropdown(options=names, description="question", **look)
        jslink((chosen, "index"), (shown, "selected_index"))  # at once: each question has a field of its own
        return VBox([chosen, shown])


def apart(kind: object, agrees: Agrees = by_its_digits) -> Apart | pictures.Said:
    """The lines of a group that need a pencil and nothing else, or a sentence where there is no such group."""
    name = str(kind).strip().lower()
    if name not in groups():
        return pictures.Said(f"There is no group {kind!r}{did_you_mean(name, groups())}.")
    return unchecked(agrees) or Apart([errata()[id] for id in one_line.pencils() if errata()[id].kind == name], agrees)


class Summing(Workbench):
    """A workbench whose code, as a cell, shows what was sent."""

    @property
    def code(self) -> str:
        return f"{super().code}print(run.trace.bytes_sent())  # by each rank\n"


def pieces(gradient_sum: Any) -> First:
    """What a rank sends of a model that is cut into stages and tensor-parallel parts."""
    controls = {"tp": [1, 2, 4], "pp": [1, 2]}
    title = "How much of the gradient does a rank send?"
    bench = Summing(gradient_sum, controls, [pictures.piece], title, 8, {"transport": "local"})
    ask = "Two pieces instead of one whole model: how many bytes does a rank send?"
    whole, half = (cost.ring_all_reduce_bytes(pictures.WHOLE / n, 8 // n) for n in (1, 2))
    return First(
        "two-pieces", ask, {"half": "Half", "less": "Less than half", "more": "More than half"}, bench,
        "A rank with 1/n of the model has 1/n of the bytes to sum. It also sums them with fewer ranks, and a ring "
        "of few ranks sends a smaller part of its bytes than a ring of many. So a rank sends less than 1/n as much "
        f"as before: with two pieces {bytes_text(half)} instead of {bytes_text(whole)}, which is {half / whole:.0%}. "
        "With as many pieces as ranks, no other rank has the same piece, so there is nothing to sum. (A few bytes "
        "more let the ranks agree on their groups.)",
        "less", "It is less than half: a piece has half of the bytes, and its ring has half of the ranks.",
    )  # fmt: skip


def held_by_ranks(state: Any, held_bytes: Any) -> book.Workbench:
    """What real ranks hold of a small model, beside what the reader's function says."""

    def beside(run: Any, stage: int) -> book.Figure:
        return pictures.held(run, held_bytes, stage)

    controls = {"stage": [1, 2, 3], "ranks": [2, 4, 8]}
    return book.workbench(state, controls, [beside], title="What does a real rank hold?", ranks=4)


ALONE, PIPED = "each alone", "pipelined"


def four_stages(batch: Any) -> First:
    """A batch of microbatches through the stages, as the sentence says and as a pipeline does it; asked first."""
    controls = {"schedule": [ALONE, PIPED], "microbatches": (1, 12), "ranks": [2, 4, 8]}
    views: list[Any] = [pictures.stages]
    bench = book.workbench(batch, controls, views, title="When does a stage idle?", ranks=4, clock="virtual")
    ask = "Each alone, with 12 microbatches instead of 4: how does the idle part of the time change?"
    return First(
        "each-alone", ask, {"less": "It shrinks", "same": "It stays", "more": "It grows"}, bench,
        "By the sentence only one of four stages works at a time, so each of them is idle for 75 % of the time, with "
        "any number of microbatches. In a real pipeline a stage that has sent on one microbatch can take the next one "
        "at once. Then the idle part for *p* stages and *m* microbatches is (*p* − 1) / (*m* + *p* − 1), which shrinks "
        "when *m* grows. For 4 stages and 32 microbatches this rounds to 9 %. The source gives that number, too, so "
        "its number contradicts its sentence.",
        "same", "With the barrier it stays at 75 %, because only one of the four stages works at a time.",
    )  # fmt: skip
