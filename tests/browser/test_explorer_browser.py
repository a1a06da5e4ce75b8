"""An explorer in JupyterLab: a slider that is moved by keyboard, or from Python, and an answer that follows."""

from __future__ import annotations

import pytest

from browser.lab import Lab

pytestmark = [pytest.mark.ranks, pytest.mark.browser, pytest.mark.long]

EXPLORER = """
from labkit import book
def answer(gpus, minutes):
    return f"{gpus} GPUs fail every {minutes / gpus:.2f} minutes.", [{"GPUs": gpus, "minutes": minutes / gpus}]
fleet = book.explorer("Failures", {"gpus": book.Slider("how many", 8, 64, 16, 8),
                                   "minutes": book.Slider("of one GPU", 0, 100, 50, 0.5, "minutes")}, answer)
fleet
"""
MOVED = "fleet.set(gpus=64)\nprint(fleet.settings)"


def test_a_slider_is_moved_and_words_and_table_follow(lab: Lab) -> None:
    page = lab.open("explorer.ipynb", [EXPLORER, MOVED])
    page.evaluate("void window.jupyterapp.commands.execute('notebook:run-cell')")
    form = page.locator(".lk-form")
    said, sliders = form.locator(".lk-feedback").last, form.locator("input[type=range]")
    first, second = sliders.nth(0), sliders.nth(1)
    said.get_by_text("16 GPUs fail every 3.12 minutes.").wait_for()
    assert said.locator("td").all_inner_texts() == ["16", "3.125"]
    assert first.get_attribute("aria-valuetext") == "16" and second.get_attribute("aria-valuetext") == "50 minutes"
    first.focus()
    page.keyboard.press("ArrowRight")
    said.get_by_text("24 GPUs fail every 2.08 minutes.").wait_for()
    assert said.locator("td").all_inner_texts() == ["24", "2.083"]
    assert page.evaluate("document.activeElement.type") == "range"  # the focus is where it was
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")  # half a minute more
    said.get_by_text("24 GPUs fail every 2.10 minutes.").wait_for()
    assert second.get_attribute("aria-valuetext") == "50.5 minutes"
    page.keyboard.press("End")
    said.get_by_text("24 GPUs fail every 4.17 minutes.").wait_for()
    lab.check_axe(page, ".lk-form")
    lab.run_all(page)  # the first cell anew, and then the slider is moved from Python
    said = page.locator(".lk-form .lk-feedback").last
    said.get_by_text("64 GPUs fail every 0.78 minutes.").wait_for()
    assert page.locator(".lk-form input[type=range]").first.input_value() == "64"
    assert "{'gpus': 64, 'minutes': 50}" in page.locator(".jp-Notebook").inner_text()
    page.close()
