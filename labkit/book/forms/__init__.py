"""Questions that a reader answers: native HTML controls in one small widget, and the same in plain words.

    Form(spec, on_submit)   the form: items of kind number, choice, several, order, text, sketch, button, slider
    to_html(markdown)       Markdown with $math$ as safe HTML, for a spec
    to_words(html)          such HTML as plain text

The browser holds only what `spec` says, and `spec` holds no answers: each submission is judged in Python.
"""

from __future__ import annotations

from labkit.book.forms.form import Form
from labkit.book.forms.markdown import to_html, to_words

__all__ = ["Form", "to_html", "to_words"]
