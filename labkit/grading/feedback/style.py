"""The look of feedback pages, on top of the book's page. Contrast of text is at least 4.5 in both schemes."""

from __future__ import annotations

from labkit.book.page import page
from labkit.grading.feedback.html import Html, el

GENERATOR = "labkit grade"
# A browser that opens the page fetches nothing and runs nothing, whatever is in it.
_HEAD = el("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'") + el(
    "meta", name="generator", content=GENERATOR
)
_STYLE = """
:root { --right: #0b6b2f; --wrong: #a4161a; --partly: #7a4b00; --idle: #505050 }
@media (prefers-color-scheme: dark) { :root { --right: #7fd48c; --wrong: #ff9a94; --partly: #f0c060; --idle: #b8b8b8 } }
.state { white-space: nowrap; font-weight: 600 } .state.right { color: var(--right) }
.state.wrong, .state.error, .state.missing { color: var(--wrong) } .state.partly { color: var(--partly) }
.state.unattempted, .state.to-mark, .state.ungraded { color: var(--idle) }
.sum { font-size: 1.5rem; margin: .5rem 0 } .sum strong { font-size: 2rem }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.25rem; font-size: .9rem; margin: 1rem 0 }
.facts dt { color: var(--soft) } .facts dd { margin: 0; overflow-wrap: anywhere }
@media (max-width: 30rem) { .facts { grid-template-columns: 1fr } .facts dd { margin: 0 0 .4rem } }
.exercise { border-top: 1px solid var(--line); margin-top: 2rem } .exercise h3 { margin: 1rem 0 .25rem }
.exercise > p { margin: .25rem 0 .75rem } .id { color: var(--soft); font-size: .9rem }
.note { border-left: 4px solid var(--link); padding: .1rem 1rem; margin: 1rem 0 }
pre.printed { white-space: pre-wrap; overflow-wrap: anywhere; margin: .5rem 0; unicode-bidi: isolate }
table { width: 100% } th[scope=row] { font-weight: 600 } caption { padding-bottom: .25rem }
summary { cursor: pointer; color: var(--link) } details { margin: .5rem 0 }
.grid table { width: auto } .grid td, .grid th { white-space: nowrap; padding-right: 1.25rem }
.grid th[scope=row] { position: sticky; left: 0; background: var(--page) }
.grid td:last-child { white-space: normal; min-width: 16rem } .grid ul { margin: 0; padding-left: 1.1rem }
.wide { position: relative } .why { display: block; min-width: 14rem }
.heard { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%) }
@media print { .exercise { break-inside: auto } tr, .note, .facts { break-inside: avoid } h2, h3 { break-after: avoid }
  .state.right, .state.wrong, .state.error, .state.partly { color: inherit } .wide { overflow: visible } }
"""


def feedback_page(title: str, body: Html, wide: bool = False) -> str:
    """A whole page. wide: for a table of the class."""
    return page(title, body, _STYLE + ("body { max-width: 90rem }" if wide else ""), head=_HEAD)
