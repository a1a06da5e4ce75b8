"""Which numbers of the sources agree with ours, by the reader's rule or by a percentage?"""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape
from typing import Any

from labkit import book
from labkit.book.frontend import INSIDE, Panel
from labkit.chapters.cA_errata import agreeing
from labkit.chapters.cA_errata.drawing import WIDTH, Page
from labkit.chapters.cA_errata.gating import Said, unchecked
from labkit.course import errata

Agrees = Callable[[str, float], bool]


class Judge(Panel):
    """Numbers of the sources beside ours, and a rule that tells which agree: the reader's, or a percentage."""

    def __init__(self, agrees: Agrees) -> None:
        super().__init__()
        self.agrees = agrees
        self.own = f"{book.whose(agrees)} agrees"
        self.use()

    def use(self, percentage: float | None = None) -> Judge:
        """Another rule: a percentage within which numbers agree, or the reader's function."""
        self.percentage = percentage
        self.rule = self.own if percentage is None else f"within {percentage:g} %"
        self.rows = [
            (one, self.agrees(one.said, one.found) if percentage is None else abs(one.far) <= percentage / 100 + 1e-9)
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
            return f"{said} The {len(listed)} that do not are all findings of this appendix."
        ones = "one" if refused == 1 else "ones"
        said += f" It lets {through} of the {len(listed)} findings through, and refuses {refused} right {ones}."
        right, wrong = (
            [abs(one.far) for one, _ in self.rows if (one.where in listed) is kind] for kind in (False, True)
        )
        apart = f"A right number is up to {max(right):.1%} apart here, and a wrong one as little as {min(wrong):.1%}"
        return f"{said} {apart}, so no percentage separates them." if max(right) > min(wrong) else f"{said} {apart}."

    @property
    def found(self) -> str:
        """What a reader finds who has tried percentages, and why."""
        right = max((one for one in agreeing.numbers() if one.where not in errata()), key=lambda one: abs(one.far))
        wrong = min((one for one in agreeing.numbers() if one.where in errata()), key=lambda one: abs(one.far))
        return (
            f"No percentage judges all of them correctly. A single {right.said} stands for every number from "
            f"{float(right.said) - 0.5} to {float(right.said) + 0.5}, so it agrees with {right.shown}, although the "
            f"two are {agreeing.percent(abs(right.far))} % apart. But {wrong.said} has {len(wrong.said)} digits, and "
            f"does not agree with {wrong.shown}, although they are only {agreeing.percent(abs(wrong.far))} % apart."
        )

    def picture(self) -> str:
        """All numbers by how far apart they are, those that are right above those that are findings, as SVG."""
        said = "Each mark is a number of the sources: the further right, the further it is from ours."
        svg = Page("How far a number is from ours", said)
        left, wide, least, most = 84.0, WIDTH - 108.0, 0.001, 1.0

        def place(part: float) -> float:
            return left + wide * math.log(min(most, max(least, part)) / least) / math.log(most / least)

        if self.percentage is not None:
            edge = place(self.percentage / 100)
            svg.rect(left - 12, 8, edge - left + 12, 82, fill="#e8e8e8", stroke_width=0.5)
            svg.line(edge, 4, edge, 94, dash="6 4", width=2)
        for k, name in enumerate(("right", "findings")):
            svg.text(8, 33 + 40 * k, name, bold=True)
        for one, fits in self.rows:
            wrong = one.where in errata()
            svg.marker(
                place(abs(one.far)), 28 + 40 * wrong, "diamond" if wrong else "circle", "#0072b2" if fits else "#fff", 6
            )
        svg.line(left - 12, 92, left + wide + 12, 92)
        for part, name in ((0.001, "0.1 % or less"), (0.01, "1 %"), (0.1, "10 %"), (1.0, "100 % or more")):
            svg.text(place(part), 110, name, anchor="end" if part == 1 else "start" if part == 0.001 else "middle")
        svg.text(8, 134, "Filled: by this rule the number agrees with ours. A good rule fills the circles alone.")
        return svg.render(144)

    def table(self, deciding: bool) -> book.Table:
        """The numbers that are 1 to 9 % apart, where right and wrong are mixed, or all others; the nearest first."""
        rows = [
            {
                "what": f"{one.what} ({one.unit})",
                "said": float(one.said),
                "we find": one.shown,
                "apart (% of ours)": f"{agreeing.percent(abs(one.far))} %" if abs(one.far) < 1.005 else "over 100 %",
                "agrees": "✓ yes" if fits else "✗ no",
                "a finding": one.where if one.where in errata() else "no",
            }
            for one, fits in self.rows
            if (0.0095 < abs(one.far) < 0.09) is deciding
        ]
        return book.Table(rows)

    def __repr__(self) -> str:
        tables = f"{self.table(True).text()}\n\nThe others:\n{self.table(False).text()}"
        return f"{self.rule}: {self.sentence}\n{tables}\n\nWhat you will have found: {self.found}"

    def _html(self) -> str:
        told = f'<p role="status" aria-live="polite">{escape(self.sentence)}</p>'
        look = (
            "<style>.lk-judged th, .lk-judged td { padding: 1px 8px; line-height: 1.35 } "
            ".lk-judged td + td { white-space: nowrap }</style>"
        )
        first, rest = (
            f'<div class="lk-judged" style="overflow-x: auto">{self.table(one).html()}</div>' for one in (True, False)
        )
        after = f"<details><summary>What you will have found</summary><p>{escape(self.found)}</p></details>"
        return f"{told}{self.picture()}{look}{first}<details><summary>The others</summary>{rest}</details>{after}"

    def _made(self) -> Any:
        from ipywidgets import HTML, FloatSlider, Layout, ToggleButtons, VBox

        rule = ToggleButtons(options=[self.own, "a percentage"], description="rule", style={"button_width": "auto"})
        within = FloatSlider(1, min=0.1, max=25, step=0.1, description="within (%)", readout_format=".1f",
                             layout=Layout(width="480px", max_width=INSIDE))  # fmt: skip
        shown = HTML(self._html(), layout=Layout(max_width=INSIDE))

        def judge_again(_: object) -> None:
            shown.value = self.use(None if rule.value == self.own else within.value)._html()

        def moved(_: object) -> None:
            if rule.value == self.own:
                rule.value = "a percentage"  # a moved slider means this rule
            else:
                judge_again(_)

        rule.observe(judge_again, "value")
        within.observe(moved, "value")
        return VBox([rule, within, shown])


def judge(agrees: Agrees) -> Judge | Said:
    """Which numbers agree, by the function that the reader wrote or by a percentage?"""
    return unchecked(agrees) or Judge(agrees)
