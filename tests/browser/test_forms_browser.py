"""Every kind of question, answered with the keyboard alone in JupyterLab, in both themes."""

from __future__ import annotations

from typing import Any

import pytest

from browser.lab import Lab
from browser.reader import LATE_WORDS

pytestmark = [pytest.mark.ranks, pytest.mark.browser, pytest.mark.long]

CELL = """
from labkit.book.forms import Form, to_html

RIGHT = {"number": ["7", "1.5"], "choice": 1, "several": [0, 2], "order": [1, 0, 2], "text": "ring",
         "sketch": [50, 75, 0], "slider": 6, "button": None}
calls = []

def judge(name, action, value):
    calls.append((name, action, value))
    if action == "skip":
        return {"state": "done", "state_text": "Not predicted"}
    right = RIGHT[name] == value
    said = "Because of $2(N - 1)/N$." if right else "Look at the **formula** again."
    return {"state": "right" if right else "wrong", "feedback": to_html(said)}

form = Form({"title": "Before you run it", "buttons": [{"id": "submit", "label": "Submit"}, {"id": "skip", "label": "Skip"}],
  "items": [
    {"id": "number", "kind": "number", "html": to_html("How many bytes leave a rank?\\n\\nCount `payload` only."),
     "boxes": [{"label": "sent", "unit": "MB"}, {"label": "received", "unit": "MB"}]},
    {"id": "choice", "kind": "choice", "html": to_html("Rank 2 is slow. Who waits?"),
     "choices": ["Rank 3", to_html("All, within $N - 1$ steps", inline=True), "Nobody"]},
    {"id": "several", "kind": "several", "html": "Which are true?", "choices": ["Two neighbours", "Rank 0", "No growth"]},
    {"id": "order", "kind": "order", "html": "Bring into order.", "items": ["all-gather", "reduce-scatter", "step"]},
    {"id": "text", "kind": "text", "html": "Which algorithm?"},
    {"id": "sketch", "kind": "sketch", "html": "Draw it.", "x": [1, 2, 4], "y": [0, 25, 50, 75, 100],
     "x_label": "ranks", "y_label": "% of time"},
    {"id": "slider", "kind": "slider", "html": "The link", "label": "Bandwidth", "min": 1, "max": 10, "unit": "GB/s",
     "value": 4, "buttons": [{"id": "submit", "label": "Use it"}]},
    {"id": "button", "kind": "button", "html": "Again", "buttons": [{"id": "submit", "label": "Run it"}]},
  ]}, judge)
form
"""  # noqa: E501


LATE = "const real = AbortSignal.timeout; AbortSignal.timeout = (ms) => real.call(AbortSignal, ms === 2000 ? 0 : ms);"


def test_a_widget_that_was_late_to_be_ready_still_hears_the_kernel(lab: Lab) -> None:
    """anywidget gives it two seconds, which a busy browser may need for other things. Here it gets none."""
    errors: list[str] = []

    def watch(page: Any) -> None:
        page.add_init_script(LATE)
        page.on("pageerror", lambda why: errors.append(str(why)))

    page = lab.open("late.ipynb", [CELL], watch=watch)
    lab.run_all(page)
    item = page.locator(".lk-item").first
    item.locator("input").nth(0).fill("7")
    item.locator("input").nth(1).fill("1.5")
    item.locator("[data-action=submit]").click()
    item.locator(".lk-mark", has_text="✓ Right").wait_for(timeout=20_000)
    assert LATE_WORDS in " ".join(errors)
    page.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_kind_of_question_by_keyboard_alone(lab: Lab, dark: bool) -> None:
    page = lab.open(f"forms-{dark}.ipynb", [CELL, "calls"], dark=dark)
    lab.run_all(page)
    lab.check_axe(page, ".lk-form")
    assert page.locator("[data-action=submit]").count() == 8
    items = page.locator(".lk-item")
    keys = page.keyboard

    def answered(index: int, mark: str) -> None:
        """The item says so in words and with a mark, the page announces it, and the focus is still in that item."""
        items.nth(index).locator(".lk-mark", has_text=mark).wait_for()
        page.wait_for_function(
            "(words) => document.querySelector('.lk-form [role=status]').textContent.includes(words)", arg=mark
        )
        assert items.nth(index).locator(":focus").count() == 1

    items.nth(0).locator("input").first.focus()
    keys.press("Enter")  # nothing is filled in: said at once, and not sent
    items.nth(0).get_by_text("Fill in every box first.").wait_for()
    keys.type("7")
    keys.press("Tab")
    keys.type("2")
    keys.press("Enter")
    answered(0, "✗ Not right")
    after = "getComputedStyle(document.querySelector('.lk-item .lk-mark'), '::after').content"
    assert page.evaluate(after) == "none", "the verdict is that of the answer that stands there"
    keys.press("Backspace")
    keys.type("1.5")
    assert "the answer before" in page.evaluate(after), "and now it is not"
    keys.press("Enter")
    answered(0, "✓ Right")
    assert page.evaluate(after) == "none"
    assert items.nth(0).locator("input").nth(1).input_value() == "1.5"
    keys.type("9")  # it is answered: nothing changes any more
    assert items.nth(0).locator("input").nth(1).input_value() == "1.5"

    tab_to(page, "input[type=radio]")
    keys.press("ArrowDown")
    keys.press("Enter")
    answered(1, "✓ Right")
    keys.press("ArrowDown")
    assert items.nth(1).locator("input:checked").get_attribute("value") == "1"

    tab_to(page, "input[type=checkbox]")
    keys.press("Space")
    keys.press("Tab")
    keys.press("Tab")
    keys.press("Space")
    keys.press("Enter")
    answered(2, "✓ Right")

    tab_to(page, "[aria-label='Down: all-gather']")
    keys.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Down: all-gather"
    tab_to(page, ".lk-item [type=submit]")
    keys.press("Enter")
    answered(3, "✓ Right")

    tab_to(page, ".lk-item > fieldset input[type=text]")
    keys.type("aabb dd")  # letters that are commands of the notebook elsewhere
    for _ in range(7):
        keys.press("Backspace")
    keys.type("ring")
    keys.press("Enter")
    answered(4, "✓ Right")

    tab_to(page, "input[type=range]")
    for steps, says in ((2, "50"), (3, "75")):
        for _ in range(steps):
            keys.press("ArrowUp")
        assert page.evaluate("document.activeElement.getAttribute('aria-valuetext')") == says
        keys.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-valuetext')") == "0, not moved yet"
    points = page.locator("polyline.lk-trace").get_attribute("points")
    assert points == "0.5,50 1.5,25 2.5,100"  # the line is seen while it is drawn: y counts downwards
    keys.press("Enter")
    answered(5, "✓ Right")

    tab_to(page, "input.lk-wide[type=range]")
    keys.press("ArrowRight")
    keys.press("ArrowRight")
    assert items.nth(6).locator("output").inner_text() == "6 GB/s"
    keys.press("Enter")
    answered(6, "✓ Right")

    tab_to(page, ".lk-item:nth-of-type(8) button")
    keys.press("Space")
    answered(7, "✓ Right")

    lab.check_axe(page, ".lk-form")
    assert page.locator(".jp-CodeCell").count() == 2  # no key reached the notebook
    page.evaluate("window.jupyterapp.shell.currentWidget.content.activeCellIndex = 1")
    page.evaluate("void window.jupyterapp.commands.execute('notebook:run-cell')")
    lab.wait_idle(page)
    said = page.locator(".jp-CodeCell").nth(1).locator(".jp-OutputArea-output").inner_text()
    assert "('sketch', 'submit', [50, 75, 0])" in said and "('order', 'submit', [1, 0, 2])" in said
    page.close()


def test_a_curve_is_drawn_in_one_stroke_and_shift_enter_goes_to_the_next_cell(lab: Lab) -> None:
    page = lab.open("stroke.ipynb", [CELL, "1"])
    lab.run_all(page)
    field = page.locator(".lk-ranges")
    field.scroll_into_view_if_needed()
    box = field.bounding_box()
    assert box is not None

    def at(column: float, level: float) -> tuple[float, float]:
        return box["x"] + box["width"] * column / 3, box["y"] + box["height"] - 10 - (box["height"] - 20) * level / 100

    page.mouse.move(*at(0.5, 50))
    page.mouse.down()
    page.mouse.move(*at(1.5, 75), steps=4)
    page.mouse.move(*at(2.6, 0), steps=5)
    page.mouse.up()
    assert page.locator("polyline.lk-trace").get_attribute("points") == "0.5,50 1.5,25 2.5,100"
    page.keyboard.press("Enter")  # the focus is on the point where the stroke began
    item = page.locator(".lk-item").nth(5)
    item.locator(".lk-mark", has_text="✓ Right").wait_for()
    page.locator(".lk-item").nth(4).locator("input").focus()
    page.keyboard.press("Shift+Enter")
    page.locator(".jp-CodeCell").nth(1).and_(page.locator(".jp-mod-active")).wait_for()
    page.close()


def tab_to(page: Any, selector: str) -> None:
    """Press Tab until an element of `selector` that had no focus before has it."""
    start = page.evaluate_handle("document.activeElement")
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("([start, selector]) => document.activeElement !== start && document.activeElement.matches(selector)", [start, selector]):  # fmt: skip  # noqa: E501
            return
    raise AssertionError(f"Tab does not reach {selector}")


def test_it_fits_a_narrow_page_and_comes_back_when_the_page_is_loaded_again(lab: Lab) -> None:
    page = lab.open("narrow.ipynb", [CELL], width=1000)
    lab.run_all(page)
    form = page.locator(".lk-form")
    page.evaluate("document.querySelector('.lk-form').parentElement.style.width = '320px'")
    assert form.evaluate("(box) => box.scrollWidth - box.clientWidth") <= 0
    small = "(box) => [...box.querySelectorAll('button, input')].map((e) => e.getBoundingClientRect())"
    sizes = form.evaluate(f"{small}.map((r) => Math.min(r.width, r.height))")
    assert min(sizes) >= 16  # radio buttons and boxes: 18 px with margins of 3
    items = page.locator(".lk-item")
    items.nth(4).locator("input").fill("ring")
    items.nth(4).locator("input").press("Enter")
    items.nth(4).locator(".lk-mark").wait_for()
    page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    page.reload()  # the kernel still runs, and knows what was answered
    lab.wait_idle(page)
    page.locator(".lk-item").nth(4).locator(".lk-mark", has_text="✓ Right").wait_for()
    assert page.locator(".lk-item").nth(4).locator("input").input_value() == "ring"
    page.close()
