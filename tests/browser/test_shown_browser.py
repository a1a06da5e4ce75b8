"""The stepper, the dashboard and the data of a figure, in JupyterLab and by keyboard."""

from __future__ import annotations

import re

import pytest

from browser.lab import WAIT, Lab
from browser.watched import TRAIN

pytestmark = [pytest.mark.ranks, pytest.mark.browser, pytest.mark.long]

STEPPER = """
import torch, labkit
from labkit import book
run = labkit.launch(lambda g: labkit.collectives.all_reduce(torch.ones(8), g, algorithm="ring"), 4, clock="virtual")
book.replay(run.trace, by="round")
"""
THREADS = 'import threading; print("threads:", [t.name for t in threading.enumerate() if "dashboard" in t.name])'


def test_the_stepper_by_keyboard_and_the_data_of_a_figure(lab: Lab) -> None:
    page = lab.open("stepper.ipynb", [STEPPER, "book.byte_matrix(run.trace)"])
    lab.run_all(page)
    panel = page.locator(".lk-panel")
    panel.locator("input[type=range]").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    panel.locator("[role=status]", has_text="Step 2 of 6").wait_for(state="attached")
    assert "Step 2 of 6" in panel.locator("svg desc").text_content()
    page.keyboard.press("Shift+Tab")  # to Next
    page.keyboard.press("Space")
    panel.locator("output", has_text="3 of 6").wait_for()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    panel.locator("output", has_text="2 of 6").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "← Previous"
    lab.check_axe(page, ".lk-panel")

    summaries = page.locator("details > summary", has_text="Data as a table")
    assert summaries.count() == 2  # of the stepper and of the matrix
    table = page.locator("details table").nth(1)
    assert not table.is_visible()
    summaries.nth(1).focus()
    page.keyboard.press("Enter")
    table.wait_for()
    assert "Bytes from rank to rank (emulated)" in table.locator("caption").inner_text()
    lab.check_axe(page, "details")
    page.close()


def test_the_dashboard_lives_while_other_cells_run_and_stops_the_run(lab: Lab) -> None:
    page = lab.open("board.ipynb", [TRAIN, THREADS])
    lab.run_all(page)  # which is over while the job still runs
    panel = page.locator(".lk-panel")
    panel.locator("td", has_text=re.compile("running|waiting")).first.wait_for()
    lab.check_axe(page, ".lk-panel")
    page.wait_for_function("() => Number(document.querySelector('.lk-panel tbody td:nth-child(3)').textContent) > 3")
    panel.locator("select").focus()
    page.keyboard.press("ArrowDown")
    assert panel.locator("select").input_value() == "1"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Hang"
    page.keyboard.press("Enter")
    panel.locator("td", has_text="stopped").first.wait_for()
    panel.locator("li", has_text="rank 1: fault: Hang").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "Hang"  # the focus is where it was
    panel.get_by_text("Stop the run").press("Space")
    panel.locator("caption", has_text="was stopped").wait_for()
    page.evaluate("window.jupyterapp.shell.currentWidget.content.activeCellIndex = 1")
    page.evaluate("void window.jupyterapp.commands.execute('notebook:run-cell')")
    page.get_by_text("threads: []").wait_for(timeout=WAIT)
    page.close()
