"""The dashboard of a fault-tolerant run in JupyterLab: by keyboard, in words, with little motion."""

from __future__ import annotations

import re

import pytest

from browser.lab import WAIT, Lab
from browser.watched import REPLICAS

pytestmark = [pytest.mark.ranks, pytest.mark.browser, pytest.mark.long]

THREADS = 'import threading; print("threads:", [t.name for t in threading.enumerate() if "dashboard" in t.name])'
COUNT = """() => {
  window.drawn = 0;
  const watch = new MutationObserver(() => { window.drawn += 1; });
  watch.observe(document.querySelector('.lk-picture'), { childList: true });
}"""


def test_a_replica_is_killed_by_keyboard_seen_and_told_and_the_run_goes_on(lab: Lab) -> None:
    page = lab.open("replicas.ipynb", [REPLICAS, THREADS])
    lab.run_all(page)
    panel = page.locator(".lk-panel")
    panel.locator(".lk-picture svg").wait_for(timeout=WAIT)
    lab.check_axe(page, ".lk-panel")
    panel.locator("select").focus()
    page.keyboard.press("ArrowDown")
    assert panel.locator("select").input_value() == "1"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Kill"
    page.keyboard.press("Enter")
    panel.locator("li", has_text="replica 1: rank 1 was lost").wait_for(timeout=WAIT)
    assert page.evaluate("document.activeElement.textContent") == "Kill"  # the focus is where it was
    panel.locator("[role=status]", has_text=re.compile("rank 1 was lost|started again")).wait_for(state="attached")
    panel.locator("li", has_text="replica 1: trains again").wait_for(timeout=WAIT)
    summary = panel.locator("summary", has_text="The picture in words")
    summary.focus()
    page.keyboard.press("Enter")
    panel.locator("details td", has_text="1").first.wait_for()
    lab.check_axe(page, ".lk-panel")
    panel.get_by_text("Pause the picture").press("Space")
    page.evaluate(COUNT)
    page.wait_for_timeout(1500)
    assert page.evaluate("window.drawn") == 0
    panel.get_by_text("Pause the picture").press("Space")
    page.wait_for_function("() => window.drawn > 1")
    panel.get_by_text("Stop the run").press("Space")
    panel.locator("caption", has_text="was stopped").wait_for(timeout=WAIT)
    page.evaluate("window.jupyterapp.shell.currentWidget.content.activeCellIndex = 1")
    page.evaluate("void window.jupyterapp.commands.execute('notebook:run-cell')")
    page.get_by_text("threads: []").wait_for(timeout=WAIT)
    page.close()


def test_who_asks_for_little_motion_gets_a_picture_in_two_seconds(lab: Lab) -> None:
    page = lab.open("calm.ipynb", [REPLICAS])
    page.emulate_media(reduced_motion="reduce")
    lab.run_all(page)
    panel = page.locator(".lk-panel")
    panel.locator(".lk-picture svg").wait_for(timeout=WAIT)
    page.evaluate(COUNT)
    page.wait_for_timeout(3500)
    assert 1 <= page.evaluate("window.drawn") <= 2
    panel.get_by_text("Stop the run").press("Space")
    panel.locator("caption", has_text="was stopped").wait_for(timeout=WAIT)
    page.close()
