"""Cells of a notebook as HTML: Markdown, code, and of each output the form that stands still."""

import html
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from labkit.book.workbenches.recorded import GRID
from labkit.commands.html.math import formula
from labkit.commands.html.recorded import recorded_html

# Colours of code, for JupyterLab's names: contrast at least 4.5 on the page and on the grey of code.
STYLE = """
:root { --jp-mirror-editor-keyword-color: #00622b; --jp-mirror-editor-operator-color: #6f2da8;
  --jp-mirror-editor-string-color: #a31515; --jp-mirror-editor-number-color: #005a4a;
  --jp-mirror-editor-comment-color: #4c5f5f; --jp-mirror-editor-def-color: #0040c0;
  --jp-mirror-editor-builtin-color: #00622b; --jp-mirror-editor-variable-color: var(--ink);
  --jp-mirror-editor-punctuation-color: var(--ink); --jp-mirror-editor-error-color: #b00020;
  --jp-mirror-editor-property-color: #0040c0; --jp-mirror-editor-meta-color: #6f2da8 }
@media (prefers-color-scheme: dark) { :root { --jp-mirror-editor-keyword-color: #7fd48c;
  --jp-mirror-editor-operator-color: #d0a3f5; --jp-mirror-editor-string-color: #f2a08f;
  --jp-mirror-editor-number-color: #7fd4c4; --jp-mirror-editor-comment-color: #a3b3b3;
  --jp-mirror-editor-def-color: #9cc4ff; --jp-mirror-editor-builtin-color: #7fd48c;
  --jp-mirror-editor-error-color: #ff8a8a; --jp-mirror-editor-property-color: #9cc4ff;
  --jp-mirror-editor-meta-color: #d0a3f5 } }
.input pre { white-space: pre-wrap; overflow-wrap: anywhere; border-left: 4px solid var(--link) }
.output .input pre { background: var(--code); padding: .75rem 1rem }
.drawing { overflow-x: auto } .drawing svg { min-width: 34rem; max-width: none; width: 100% }
"""
# The first of these that an output has is shown. What needs a script is none of them.
FORMS = ("image/svg+xml", "text/html", "text/markdown", "image/png", "image/jpeg", "text/latex", "text/plain")
NARROW = 24  # characters of text output that fit on a page 320 pixels wide

Link = Callable[[str], str | None]  # the address a link or picture of the notebook has on the page; None for no link


def cell_html(cell: Any, link: Link, number: int = 0) -> str:
    """One cell, `number` of its page. `link` says where addresses of the notebook lead on the page."""
    if cell.cell_type == "markdown":
        return markdown(cell.source, link, cell.get("attachments"))
    if cell.cell_type != "code":
        return ""
    parts = []
    if cell.source.strip() and not cell.metadata.get("jupyter", {}).get("source_hidden"):
        parts.append(f'<div class="input">{code(cell.source)}</div>')
    shown = [output_html(output, link, number) for output in cell.get("outputs", [])]
    if any(shown):
        parts.append(f'<div class="output">{"".join(shown)}</div>')
    return "\n".join(parts)


def output_html(output: Any, link: Link, number: int = 0) -> str:
    """The still form of one output; of an error its text."""
    if output.output_type == "stream":
        return text(output.text)
    if output.output_type == "error":
        return text("\n".join(output.traceback) or f"{output.ename}: {output.evalue}")
    if GRID in output.data:
        return _wide_tables(recorded_html(output.data[GRID], number))
    form = next((form for form in FORMS if form in output.data), None)
    if form is None:
        return ""
    data = output.data[form]
    alt = output.get("metadata", {}).get(form, {}).get("alt", "")
    match form:
        case "image/svg+xml":
            return _drawing(data, alt or output.data.get("text/plain", ""))
        case "image/png" | "image/jpeg":
            words = alt or output.data.get("text/plain", "Picture")
            packed = re.sub(r"\s", "", data)
            return f'<figure><img src="data:{form};base64,{packed}" alt="{html.escape(words)}"></figure>'
        case "text/html":
            return _rich(re.sub('<p class="lk-said">.*?</p>', "", data))  # the drawing before it has these words inside
        case "text/markdown":
            return markdown(data, link)
        case "text/latex":
            return formula(data.strip().strip("$"), block=True)
        case _:
            return text(data)


def markdown(source: str, link: Link, attachments: Any = None) -> str:
    """Markdown with formulas as HTML; headings get the ids that JupyterLab links to."""
    from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

    class Renderer(IPythonRenderer):
        def heading(self, text: str, level: int, **attrs: Any) -> str:
            name = html.unescape(re.sub(r"<[^>]+>", "", text)).replace(" ", "-")
            return f'<h{level} id="{html.escape(name)}">{text}</h{level}>\n'

        def inline_math(self, body: str) -> str:
            return formula(body)

        def block_math(self, body: str) -> str:
            return formula(body, block=True)

        def latex_environment(self, name: str, body: str) -> str:
            return formula(f"\\begin{{{name}}}{body}\\end{{{name}}}", block=True)

        def link(self, text: str, url: str, title: str | None = None) -> str:
            place = link(url)
            return text if place is None else str(super().link(text, place, title))

        def image(self, text: str, url: str, title: str | None = None) -> str:
            place = url if url.startswith("attachment:") else link(url)
            return html.escape(text) if place is None else str(super().image(text, place, title))

        def block_code(self, code_text: str, info: str | None = None) -> str:
            return code(code_text) if info and info.split()[0] in ("python", "py") else text(code_text)

    renderer = Renderer(escape=False, attachments=attachments)
    return _wide_tables(str(MarkdownWithMath(renderer=renderer).render(source)))


def code(source: str) -> str:
    """Python in the colours of JupyterLab's editor."""
    from pygments import highlight  # type: ignore[import-untyped]
    from pygments.lexers import PythonLexer  # type: ignore[import-untyped]

    return str(highlight(source, PythonLexer(), _formatter()))


def code_style() -> str:
    return str(_formatter().get_style_defs(".highlight"))


@cache
def _formatter() -> Any:
    from jupyterlab_pygments import JupyterStyle  # type: ignore[import-untyped]
    from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]

    return HtmlFormatter(style=JupyterStyle, wrapcode=True)


def text(printed: str) -> str:
    """Printed text without colour codes. Long lines scroll, also from the keyboard."""
    from nbconvert.filters.ansi import strip_ansi

    plain = strip_ansi(printed).rstrip("\n")
    long = max(map(len, plain.split("\n")), default=0) > NARROW
    scrolls = ' tabindex="0" role="group" aria-label="Output, scrolls sideways"' if long else ""
    return f"<pre{scrolls}>{html.escape(plain, quote=False)}</pre>\n"


def _drawing(svg: str, words: str) -> str:
    """A picture of ours carries its own title and description; any other gets the words that came with it."""
    svg = re.sub(r"^\s*(<\?xml[^>]*\?>|<!DOCTYPE[^>]*>)\s*", "", svg)
    if "<title" not in svg:
        opening = f'<svg role="img" aria-label="{html.escape(words or "Picture")}"'
        svg = re.sub(r"<svg\b", lambda _: opening, svg, count=1)
    scrolls = 'tabindex="0" role="group" aria-label="Figure, scrolls sideways on a narrow page"'
    return f'<figure class="drawing" {scrolls}>{svg}</figure>'


def _rich(data: str) -> str:
    """HTML that labkit displayed, without scripts; code in it wraps as that of cells does."""
    data = re.sub(r"<script\b.*?</script\s*>", "", data, flags=re.DOTALL | re.IGNORECASE)
    data = data.replace('<div class="highlight">', '<div class="highlight input">')
    return _wide_tables(re.sub(r"<th\b[^>]*>\s*</th>", "<td></td>", data))  # an empty heading names nothing


def _wide_tables(body: str) -> str:
    """A table scrolls by itself, so that the page does not; nested ones do not occur."""
    opening = '<div class="wide" tabindex="0" role="group" aria-label="Table, scrolls sideways on a narrow page"><table'
    return body.replace("<table", opening).replace("</table>", "</table></div>")


def ordered_headings(body: str) -> str:
    """The body with one h1, the first heading, and no level left out on the way down."""
    last = 0

    def level(match: re.Match[str]) -> str:
        nonlocal last
        if match[1]:
            return f"</h{last}>"
        wanted = int(match[2])
        last = 1 if last == 0 else max(2, min(wanted, last + 1))
        return f"<h{last}"

    return re.sub(r"<(/?)h([1-6])\b>?", lambda m: level(m) + (">" if not m[1] and m[0].endswith(">") else ""), body)
