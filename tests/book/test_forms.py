"""Forms without a browser: what they say in words, what they accept, and that no answer is in them."""

from __future__ import annotations

import json
import re
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import labkit
from labkit.book import frontend
from labkit.book.forms import Form, to_html, to_words
from labkit.book.forms.mathtext import math_html
from labkit.book.frontend import VIEW

NUMBER = {"id": "n", "kind": "number", "html": "<p>How much?</p>", "boxes": [{"label": "sent", "unit": "MB"}]}
CHOICE = {"id": "c", "kind": "choice", "html": "Who?", "choices": ["rank 1", "ring<sup>2</sup>"]}
SKETCH = {"id": "s", "kind": "sketch", "html": "Draw", "x": [1, 2], "y": [0, 50], "x_label": "ranks", "y_label": "%"}
ORDER = {"id": "o", "kind": "order", "html": "Order", "items": ["b", "a"]}
SEVERAL = {"id": "v", "kind": "several", "html": "All?", "choices": ["x", "y"]}
SLIDER = {"id": "l", "kind": "slider", "html": "", "min": 0, "max": 4, "value": 2, "label": "link", "unit": "GB/s"}


def form(*items: dict[str, Any], judge: Any = lambda *_: None, **spec: Any) -> Form:
    return Form({"title": "Questions", "items": list(items), **spec}, judge)


def press(one: Form, name: str, action: str, value: Any = None) -> None:
    """What the page does when a button is pressed."""
    one.widget._handle_custom_msg({"id": name, "action": action, "value": value}, [])


def test_a_form_reads_as_plain_words() -> None:
    text = form(NUMBER, CHOICE, SKETCH, ORDER, SEVERAL, SLIDER).text
    for part in ("Questions\n", "How much?\n  sent: ... MB", "Who?\nChoose one:\n  (a) rank 1\n  (b) ring²",
                 "ranks: 1, 2\n  %, one level for each: 0, 50", "Bring into order:\n  (a) b\n  (b) a",
                 "All?\nChoose all that apply:", "link: from 0 to 4 GB/s"):  # fmt: skip
        assert part in text, part
    assert "<" not in text


@pytest.mark.parametrize(("item", "value", "words"), [
    (NUMBER, ["7"], "7 MB"), (NUMBER, ["7 MB"], "7 MB"), (CHOICE, 1, "ring²"), (SKETCH, [0, 50], "1: 0, 2: 50"),
    (ORDER, [1, 0], "a, b"), (SEVERAL, [], "none of them"), (SEVERAL, [0, 1], "x, y"),
])  # fmt: skip
def test_an_answer_from_python_is_judged_kept_and_told(item: dict[str, Any], value: Any, words: str) -> None:
    calls = []

    def judge(*call: Any) -> dict[str, Any]:
        calls.append(call)
        return {"state": "wrong", "feedback": to_html("Look **again**.")}

    one = form(item, judge=judge)
    view = one.widget
    after = one.submit(item["id"], value)
    assert calls == [(item["id"], "submit", value)]
    assert (after["state"], after["value"]) == ("wrong", value)
    assert one.text.endswith(f"Answered: {words}\nNot right. Look again.")
    assert view.items == one.items  # the page has it, too


def test_the_page_submits_skips_and_cannot_do_what_no_button_does() -> None:
    calls: list[Any] = []
    buttons = [{"id": "submit", "label": "Submit"}, {"id": "skip", "label": "Skip"}]
    one = form(NUMBER, SLIDER, judge=lambda *call: calls.append(call), buttons=buttons)
    press(one, "n", "submit", ["4"])
    press(one, "n", "skip")
    press(one, "l", "change", 3)
    assert calls == [("n", "submit", ["4"]), ("n", "skip", None), ("l", "change", 3)]
    assert one.item("n")["value"] == ["4"] and one.item("l")["value"] == 3
    press(one, "n", "reveal")
    press(one, "nobody", "submit", 1)
    assert len(calls) == 3
    assert "no action &#x27;reveal&#x27;" in one.item("n")["feedback"]


def test_a_judge_that_fails_says_so_in_the_form() -> None:
    def judge(*_: Any) -> dict[str, Any]:
        raise ValueError("4 <b> is no number")

    one = form(NUMBER, judge=judge)
    press(one, "n", "submit", ["4 <b>"])
    assert one.item("n")["feedback"] == "<p>This did not work: 4 &lt;b&gt; is no number</p>"
    assert one.item("n")["value"] == ["4 <b>"]


@pytest.mark.parametrize(("item", "word"), [
    ({**CHOICE, "answer": 1}, "answer would show"),
    ({**CHOICE, "choices": [{"html": "a", "right": True}, "b"]}, "choices: right"),
    ({**CHOICE, "choices": [{"html": "a", "why": "because"}]}, "choices: why"),
    ({"id": "c", "kind": "choice"}, "needs choices"),
    ({"id": "c", "kind": "essay"}, "'essay' does not exist"),
    ({"kind": "text"}, "needs an id"),
    ({**SKETCH, "y": [1]}, "two levels"),
    ({**NUMBER, "state": "maybe"}, "'maybe' does not exist"),
    ({**NUMBER, "value": {1}}, "not plain JSON"),
])  # fmt: skip
def test_what_cannot_be_shown_or_must_not_be_is_refused(item: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        form(item)


def test_items_have_names_of_their_own_and_a_form_has_items() -> None:
    with pytest.raises(ValueError, match="same id"):
        form(NUMBER, NUMBER)
    with pytest.raises(ValueError, match="no items"):
        form()
    with pytest.raises(ValueError, match="has no item 'x'"):
        form(NUMBER).submit("x", 1)


def test_update_changes_some_keys_from_any_thread() -> None:
    inside, most = 0, 0

    def judge(*_: Any) -> dict[str, Any]:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.01)
        inside -= 1
        return {"state": "done"}

    one = form(NUMBER, CHOICE, judge=judge)
    threads = [threading.Thread(target=one.submit, args=("n", [str(i)])) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1  # one submission at a time
    one.update({"id": "c", "feedback": "later"})
    assert one.item("c")["feedback"] == "later" and one.item("c")["choices"] == CHOICE["choices"]


def test_headless_it_makes_no_widget_and_live_it_makes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    one = form(NUMBER)
    monkeypatch.setenv("LABKIT_HEADLESS", "1")
    bundle = one._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"} and one._view is None
    assert "How much?" in bundle["text/html"] and "<input" not in bundle["text/html"]
    monkeypatch.setenv("LABKIT_HEADLESS", "0")
    assert one._repr_mimebundle_()[VIEW]["model_id"] == one.widget.model_id
    state = {k: v for k, v in one.widget.get_state().items() if not k.startswith("_")}
    assert len(json.dumps(state, default=str)) < 2000
    assert len(one.widget._esm) < 25_000 and len(one.widget._css) < 15_000  # a notebook may save them
    one.close()


def test_nobody_is_there_when_the_request_allows_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython

    class Kernel:
        allowed: Any = True

        def get_parent(self, _: str) -> dict[str, Any]:
            return {"content": {"allow_stdin": self.allowed}, "metadata": {"cellId": "ring-bytes"}}

    class Shell:
        kernel = Kernel()

    monkeypatch.delenv("LABKIT_HEADLESS", raising=False)
    monkeypatch.setattr(IPython, "get_ipython", Shell)
    assert not frontend.live()  # pytest is in the environment
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    assert frontend.live() and frontend.cell_id() == "ring-bytes"
    monkeypatch.setattr(Kernel, "allowed", False)
    assert not frontend.live()
    monkeypatch.setattr(Shell, "kernel", object())  # another kernel, which does not say
    assert frontend.live() and frontend.cell_id() == ""


@pytest.mark.parametrize(("markdown", "html"), [
    ("a **b** `c<d`", "<p>a <strong>b</strong> <code>c&lt;d</code></p>"),
    ("<script>x</script>", "<p>&lt;script&gt;x&lt;/script&gt;</p>"),
    ("$N-1$ ranks", '<p><span class="lk-math"><i>N</i> − 1</span> ranks</p>'),
])  # fmt: skip
def test_markdown_becomes_safe_html(markdown: str, html: str) -> None:
    assert to_html(markdown) == html
    assert "javascript:" not in to_html("[x](javascript:alert(1))")


def test_one_paragraph_can_stand_in_a_line_and_more_keep_their_marks() -> None:
    assert to_html("a *b*", inline=True) == "a <em>b</em>"
    assert to_html("a\n\nb", inline=True).count("<p>") == 2
    assert to_words(to_html("a\n\n- b\n- c\n\nd")) == "a\n\n- b\n- c\n\nd"


@pytest.mark.parametrize(("latex", "words"), [
    (r"2\frac{N-1}{N}b", "2((N − 1) / N)b"), (r"\alpha + \frac{b}{\beta}", "α + b / β"), ("a_i^2", "aᵢ²"),
    ("10^{-6}", "10⁻⁶"), (r"x^{P}", "x^P"), (r"\sqrt{N+1}", "√(N + 1)"), (r"\text{all ranks} \le 4", "all ranks ≤ 4"),
    ("T = (m-1)", "T = (m − 1)"), ("-3", "−3"), (r"\unknown", r"\unknown"), ("a<b", "a < b"), (r"50\%", "50%"),
    (r"\lambda = \frac13 + \frac23\cos x", "λ = 1 / 3 + (2 / 3)cos x"), (r"x - \bar x", "x − x̄"),
    (r"\ln 10", "ln 10"), (r"\log P", "log P"), (r"\log(P)", "log(P)"),
])  # fmt: skip
def test_formulas_read_without_a_typesetter(latex: str, words: str) -> None:
    assert to_words(math_html(latex)) == words


def test_every_formula_of_the_questions_is_read_to_its_end() -> None:
    """What `math_html` does not know it shows as it was written, with its backslash."""

    def strings(found: Any) -> Iterator[str]:
        if isinstance(found, str):
            yield found
        elif isinstance(found, (dict, list)):
            for inner in found.values() if isinstance(found, dict) else found:
                yield from strings(inner)

    seen = 0
    for path in sorted((Path(labkit.__file__).parent / "chapters").glob("*/questions.toml")):
        for text in strings(tomllib.loads(path.read_text())):
            for formula in re.findall(r"\$([^$]+)\$", text):
                filled = re.sub(r"(?<!\{)\{[^{}]*\}(?!\})", "1", formula).replace("{{", "{").replace("}}", "}")
                assert "\\" not in to_words(math_html(filled)), (path.parent.name, formula)
                seen += 1
    assert seen > 50
