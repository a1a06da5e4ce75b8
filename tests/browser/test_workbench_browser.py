"""A workbench in JupyterLab, by keyboard: a control moves, ranks run, plot and words follow; other cells can run."""

from __future__ import annotations

import pytest

from browser.lab import Lab

pytestmark = [pytest.mark.ranks, pytest.mark.browser, pytest.mark.long]

BENCH = """
import time, torch, labkit
from labkit import book
from labkit.collectives import all_reduce

def reduce_once(group, algorithm, n, pause):
    time.sleep(pause)
    all_reduce(torch.ones(n), group, algorithm=algorithm)

def race(world, algorithm, n, pause):
    return world.run(reduce_once, algorithm, n, pause)

bench = book.workbench(
    race, {"ranks": [2, 3, 4], "algorithm": ["ring", "tree"], "n": (100, 1000, 100), "pause": (0, 100)},
    [lambda run: book.timeline(run.trace), lambda run: f"{sum(run.trace.bytes_sent()):,} bytes were sent"],
    title="Who sends what", ranks=2, transport="local",
)
bench.set(pause=0)
bench
"""
MEANWHILE = 'print("meanwhile", bench.said)'


def test_ranks_follow_the_keyboard(lab: Lab, tmp_path) -> None:
    page = lab.open("workbench.ipynb", [BENCH, MEANWHILE])
    page.evaluate("void window.jupyterapp.commands.execute('notebook:run-cell')")
    output = page.locator(".jp-OutputArea-output").first
    status, plot = output.get_by_role("status"), output.locator(".js-plotly-plot")
    status.get_by_text("run on 2 processes").wait_for()
    plot.get_by_text("rank 1", exact=True).wait_for()
    assert output.get_by_text("4,000 bytes were sent").count() == 1  # n = 500
    output.get_by_label("ranks", exact=True).focus()
    page.keyboard.press("4")
    status.get_by_text("run on 4 processes").wait_for()
    plot.get_by_text("rank 3", exact=True).wait_for()
    output.get_by_text("12,000 bytes were sent").wait_for()
    numbers, pause = (output.get_by_role("slider", name=name, exact=True) for name in ("n", "pause"))
    numbers.focus()
    page.keyboard.press("ArrowRight")
    output.get_by_text("14,400 bytes were sent").wait_for()
    output.get_by_role("button", name="Pin").press("Enter")
    output.get_by_text("Pinned (ranks 4, algorithm ring, n 600, pause 0)").first.wait_for()
    page.keyboard.press("Tab")  # to Unpin, which is there now
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert 'race(world, algorithm="ring", n=600, pause=0)' in output.get_by_label("The same run as a cell").inner_text()
    page.screenshot(path=tmp_path / "workbench.png")
    lab.check_axe(page, ".jp-OutputArea-output .widget-vbox", excluded=[".js-plotly-plot"])
    pause.focus()
    page.keyboard.press("End")  # a run of 100 s: the kernel is free all the same
    status.get_by_text("running ...").wait_for()
    page.locator(".jp-CodeCell").nth(1).click()
    page.evaluate("void window.jupyterapp.commands.execute('notebook:run-cell')")
    page.get_by_text("meanwhile running ...").wait_for()
    pause.focus()
    page.keyboard.press("Home")
    status.get_by_text("run on 4 processes").wait_for()
    page.keyboard.press("Shift+Enter")  # from a control: as from any other place of its cell
    page.locator(".jp-CodeCell").nth(1).and_(page.locator(".jp-mod-active")).wait_for()
    page.close()


LATE = """Object.defineProperty(window, "lkPlotly", {
  get() { return this.came; }, set(module) {
  const wait = () => { if (this.go) this.came = module; else setTimeout(wait, 50); }; wait(); } })"""


def test_a_plot_whose_module_comes_late_shows_what_was_told_meanwhile(lab: Lab) -> None:
    """A busy browser may need long for plotly's five million characters, of which there is one copy for all plots."""
    page = lab.open("late_plot.ipynb", [BENCH], watch=lambda page: page.add_init_script(LATE))
    lab.run_all(page)
    page.get_by_text("run on 2 processes").wait_for()
    page.get_by_label("ranks", exact=True).select_option("4")
    page.get_by_text("run on 4 processes").wait_for()
    assert page.locator(".js-plotly-plot .main-svg").count() == 0
    page.evaluate("window.go = true")
    page.locator(".js-plotly-plot").get_by_text("rank 3", exact=True).wait_for()
    page.get_by_label("ranks", exact=True).select_option("2")
    page.get_by_text("run on 2 processes").wait_for()
    page.wait_for_function(
        "![...document.querySelectorAll('.js-plotly-plot text')].some((t) => t.textContent == 'rank 3')"
    )
    page.close()


def test_after_a_restart_the_page_says_what_to_run(lab: Lab) -> None:
    played = "from labkit import book\nbook.play([('<svg/>', 'one'), ('<svg/>', 'two')], title='Two', badge='measured')"
    page = lab.open("restarted.ipynb", [f"# make it\nthing = 3\n{played}", BENCH.replace("500", "600"), "thing + 1",
                                      "other + 1", 'assert 1 > 2, "two ranks or more"'])  # fmt: skip
    lab.run_all(page)
    page.get_by_text("run on 2 processes").wait_for()
    page.evaluate("window.jupyterapp.shell.currentWidget.context.save()")
    page.evaluate("window.jupyterapp.shell.currentWidget.context.sessionContext.restartKernel()")
    lab.wait_idle(page)
    told = "getComputedStyle(document.querySelector('.lk-bench'), '::before').content"
    page.wait_for_function(f"{told}.includes('The kernel was restarted')")
    page.wait_for_function(f"{told.replace('.lk-bench', ':has(> .lk-panel)')}.includes('The kernel was restarted')")
    for number in (2, 3, 4):
        page.evaluate(f"window.jupyterapp.shell.currentWidget.content.activeCellIndex = {number}")
        page.evaluate("window.jupyterapp.commands.execute('notebook:run-cell').catch(() => null)")  # until it has ended
    asked, unknown = (page.locator(".jp-CodeCell").nth(n).locator(".jp-OutputArea-output") for n in (2, 3))
    asked.get_by_text("thing does not exist yet.").wait_for()
    assert "begins with:\n\n    # make it" in asked.inner_text() and "Traceback" not in asked.inner_text()
    assert "name 'other' is not defined" in unknown.inner_text()
    assert page.locator(".jp-CodeCell").nth(4).locator(".jp-OutputArea-output").inner_text() == "two ranks or more"
    page.close()


BURST = """
import torch, labkit
from labkit import book
from labkit.collectives import all_reduce

def where(group, way="a", one=1, two=0):
    for _ in range(3):
        all_reduce(torch.ones(1000), group)
    return way, one, two

book.workbench(where, {"way": list("abcd"), "one": (0, 7), "two": (0, 13)}, [
    lambda run: book.replay(run.trace), lambda run: f"this is {run.results[0]}", lambda run: book.timeline(run.trace),
], title="Where", ranks=8, transport="local", clock="virtual")
"""


def test_after_a_burst_of_keys_the_words_are_those_of_the_controls(lab: Lab) -> None:
    page = lab.open("burst.ipynb", [BURST])
    page.evaluate("void window.jupyterapp.commands.execute('notebook:run-cell')")
    output = page.locator(".jp-OutputArea-output").first
    output.get_by_text("this is ('a', 1, 0)").wait_for()
    one, two = (output.get_by_role("slider", name=name, exact=True) for name in ("one", "two"))
    for way, first, second in [("c", 0, 13), ("d", 7, 0), ("b", 0, 13), ("a", 7, 0)] * 2:
        output.get_by_label("way", exact=True).focus()
        output.get_by_label("way", exact=True).select_option(way)
        two.focus()
        page.keyboard.press("End" if second else "Home")
        one.focus()
        page.keyboard.press("End" if first else "Home")
        output.get_by_text(f"this is ('{way}', {first}, {second})").wait_for(timeout=15_000)
    page.close()
