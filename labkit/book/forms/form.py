"""`Form`: a few questions in one display."""

from __future__ import annotations

import threading
from collections.abc import Callable
from html import escape
from typing import Any

from labkit.book.forms import words
from labkit.book.forms.items import Item, checked
from labkit.book.frontend import VIEW, live

OnSubmit = Callable[[str, str, Any], "dict[str, Any] | None"]
SUBMIT = [{"id": "submit", "label": "Submit"}]


class Form:
    """Questions with native controls where a reader is there, in words where nobody is.

    spec: {"title", "items": [...], "buttons": [{"id", "label"}]}, plain JSON without answers. `buttons` stand under
    each item that has none of its own (default: Submit); a button's id is its action. Items have an id, a kind, html
    (the prompt), value, state ("open", "right", "wrong", "done"), feedback (HTML), and by kind:

        number    boxes [{label, unit}]   value: a list of texts as typed, one a box; without boxes one text
        text                              value: a text
        choice    choices [html or {html}]   value: the index of one
        several   choices                 value: a list of indices, in rising order
        order     items [html or {html}]  value: a list of indices, in the reader's order
        sketch    x, y, x_label, y_label  value: one of the levels y for each column x
        slider    min, max, step, label, unit   value: a number; each move is the action "change"
        button                            value: None; one button per action

    Optional in every item: buttons, locked (default: in the states right and done; its controls then stay as
    they are), state_text (in place of "Right", "Not right", "Answered").

    on_submit(id, action, value): judges; returns the item's new dict, or the keys that change, or None. It may be
    called on a thread other than the main one, never twice at a time.
    """

    def __init__(self, spec: dict[str, Any], on_submit: OnSubmit) -> None:
        self.title = str(spec.get("title") or "")
        self.buttons = list(spec.get("buttons") or SUBMIT)
        self._items = {item["id"]: item for item in map(checked, spec.get("items") or ())}
        if not self._items:
            raise ValueError(f"form {self.title!r} has no items: give at least one")
        if len(self._items) < len(spec["items"]):
            raise ValueError(f"form {self.title!r}: two of its items have the same id")
        self._on_submit = on_submit
        self._lock = threading.RLock()
        self._view: Any = None

    @property
    def items(self) -> list[Item]:
        """The items as they are now, in order."""
        return [dict(item) for item in self._items.values()]

    def item(self, name: str) -> Item:
        """The item called `name` as it is now."""
        if name not in self._items:
            raise ValueError(f"this form has no item {name!r}: it has {', '.join(self._items)}")
        return dict(self._items[name])

    def submit(self, name: str, value: Any) -> Item:
        """Answer item `name` from Python, as the Submit button does; return the item as it is then."""
        return self.act(name, "submit", value)

    def act(self, name: str, action: str, value: Any = None) -> Item:
        """Do what the button `action` of item `name` does; return the item as it is then."""
        item = self.item(name)
        allowed = {button["id"] for button in item.get("buttons") or self.buttons} | {"submit"}
        if item["kind"] == "slider":
            allowed.add("change")
        if action not in allowed:
            raise ValueError(f"item {name!r} has no action {action!r}: it has {', '.join(sorted(allowed))}")
        with self._lock:
            if action in ("submit", "change"):  # what was typed is kept even if judging it fails
                self._items[name] = checked({**self._items[name], "value": value})
            changed = self._on_submit(name, action, value)
            if changed is not None:
                self.update({"id": name, **changed})
            return self.item(name)

    def update(self, item: dict[str, Any]) -> None:
        """Change an item: its new dict, or `id` and the keys that change. Safe from any thread."""
        with self._lock:
            new = checked({**self.item(item["id"]), **item})
            self._items[new["id"]] = new
            if self._view is not None:
                self._view.items = self.items

    def call(self, name: str) -> None:
        """Bring item `name` into the reader's view, with the focus on it: something waits for its answer."""
        with self._lock:
            if self._view is not None:
                self._view.called = self.item(name)["id"]

    @property
    def text(self) -> str:
        """The form in plain words: questions, what there is to choose from, what was answered, what was said to it."""
        return words.text(self.title, self.items)

    @property
    def widget(self) -> Any:
        """The interactive form (an anywidget), made when first asked for."""
        with self._lock:
            if self._view is None:
                from labkit.book.forms.view import FormView

                self._view = FormView(title=self.title, buttons=self.buttons, items=self.items)
                self._view.on_msg(self._received)
            return self._view

    def _received(self, _: Any, content: Any, __: Any) -> None:
        """A message of the front end: {"id", "action", "value"}."""
        if not isinstance(content, dict) or content.get("id") not in self._items:
            return
        name = content["id"]
        try:
            self.act(name, str(content.get("action")), content.get("value"))
        except Exception as why:  # it would vanish into the kernel's log
            self.update({"id": name, "feedback": f"<p>This did not work: {escape(str(why))}</p>"})

    def close(self) -> None:
        """Take the controls away."""
        with self._lock:
            if self._view is not None:
                self._view.close()
                self._view = None

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/plain": self.text, "text/html": words.static_html(self.title, self.items)}
        if live():
            bundle[VIEW] = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        return bundle
