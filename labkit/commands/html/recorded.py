"""A workbench on a static page: its controls choose among runs that were recorded, by CSS alone."""

from html import escape
from typing import Any

STYLE = """
.recorded { border: 1px solid; border-left-width: .4rem; padding: .2rem 1rem 1rem; margin: 1rem 0 }
.recorded fieldset { display: inline-block; border: 1px solid; margin: .3rem .6rem .3rem 0; padding: .1rem .7rem .3rem }
.recorded label { margin-right: .8rem; white-space: nowrap }
.recorded .run { display: none }
"""


def recorded_html(grid: dict[str, Any], number: int) -> str:
    """Radio buttons for each control, and the run of every combination, of which the page shows the chosen one.

    grid: what `labkit.book.workbenches.recorded.record` returned. number: which workbench of its page it is.
    """
    name = f"grid{number}"
    controls = "".join(
        f"<fieldset><legend>{escape(label)}</legend>"
        + "".join(
            f'<label><input type="radio" name="{name}-{c}" id="{name}-{c}-{k}"{" checked" * (k == grid["start"][c])}> '
            f"{escape(value)}</label>"
            for k, value in enumerate(values)
        )
        + "</fieldset>"
        for c, (label, values) in enumerate(grid["controls"])
    )
    rules, runs = [], []
    for run in grid["runs"]:
        chosen = "".join(f":has(#{name}-{c}-{k}:checked)" for c, k in enumerate(run["at"]))
        place = f"run-{'-'.join(map(str, run['at']))}"
        rules.append(f"#{name}{chosen} .{place} {{ display: block }}")
        runs.append(f'<div class="run {place}">{run["html"]}</div>')
    return (
        f'<section class="recorded" id="{name}" aria-label="{escape(grid["title"])}"><style>{" ".join(rules)}</style>'
        f"<p><strong>{escape(grid['title'])}</strong> ({len(runs)} real runs, <em>recorded</em>; in JupyterLab each "
        f"change starts a new one)</p>{controls}{''.join(runs)}</section>"
    )
