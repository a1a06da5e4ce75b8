"""Which numbers of the sources agree with ours, by the reader's rule or by a percentage?"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

from labkit import book
from labkit.book.frontend import INSIDE, Panel
from labkit.chapters.cA_errata import agreeing
from labkit.chapters.cA_errata.gating import Said, unchecked
from labkit.course import errata

Agrees = Callable[[str, float], bool]


class Judge(Panel):
    """Numbers of the sources beside ours, and a rule that tells which agree: the reader's, or a percentage."""

    percentages = {"within 0.1 %": 0.001, "within 1 %": 0.01, "within 5 %": 0.05, "within 20 %": 0.2}

    def __init__(self, agrees: Agrees) -> None:
        super().__init__()
        self.agrees = agrees
        self.rules = {f"{book.whose(agrees)} agrees": 0.0, **self.percentages}
        self.use(next(iter(self.rules)))

    def use(self, rule: str) -> Judge:
        """Another rule."""
        self.rule = rule
        part = self.rules[rule]
        self.rows = [
            (one, self.agrees(one.said, one.found) if not part else abs(one.far) <= part + 1e-9)
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
        return f"{self.rule}: {self.sentence}\n{self.table(True).text()}\n\nThe others:\n{self.table(False).text()}"

    def _html(self) -> str:
        told = f'<p role="status" aria-live="polite">{escape(self.sentence)}</p>'
        look = (
            "<style>.lk-judged th, .lk-judged td { padding: 1px 8px; line-height: 1.35 } "
            ".lk-judged td + td { white-space: nowrap }</style>"
        )
        first, rest = (
            f'<div class="lk-judged" style="overflow-x: auto">{self.table(one).html()}</div>' for one in (True, False)
        )
        return f"{told}{look}{first}<details><summary>The others</summary>{rest}</details>"

    def _made(self) -> Any:
        from ipywidgets import HTML, Layout, ToggleButtons, VBox

        rule = ToggleButtons(options=list(self.rules), description="rule", style={"button_width": "auto"})
        shown = HTML(self._html(), layout=Layout(max_width=INSIDE))
        rule.observe(lambda change: setattr(shown, "value", self.use(change["new"])._html()), "value")
        return VBox([rule, shown])


def judge(agrees: Agrees) -> Judge | Said:
    """Which numbers agree, by the function that the reader wrote or by a percentage?"""
    return unchecked(agrees) or Judge(agrees)
