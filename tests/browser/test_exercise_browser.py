"""An exercise as a student does it: in the own copy that `labkit lab` makes, with the keyboard alone, in one kernel."""

from __future__ import annotations

from typing import Any

import pytest

from browser.lab import WAIT, Lab
from browser.reader import Reader
from labkit.grading.checks.marks import MARK

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.browser,
    pytest.mark.long,
    pytest.mark.timeout(900),
]  # a loaded machine of two cores takes its time

NAME, EXERCISE = "exercises/03_collectives.ipynb", "reduce-scatter"
WHOLE = """def my_reduce_scatter(x, group):
    n, me = group.size, group.rank
    total = x.clone()
    for shift in range(1, n):
        to, source = (me + shift) % n, (me - shift) % n
        arrived = torch.empty_like(x)
        group.exchange(x, to=to, like=arrived, source=source)
        total += arrived
    return total.tensor_split(n)[me]"""
PARTS = """def my_reduce_scatter(x, group):
    n, me = group.size, group.rank
    parts = x.tensor_split(n)
    total = parts[me].clone()
    for shift in range(1, n):
        to, source = (me + shift) % n, (me - shift) % n
        arrived = torch.empty_like(total)
        group.exchange(parts[to], to=to, like=arrived, source=source)
        total += arrived
    return total"""
KERNEL = "window.jupyterapp.shell.currentWidget.context.sessionContext.session.kernel.id"


def test_from_the_stub_over_a_mistake_to_the_right_answer(copies: Lab) -> None:
    reader = Reader(copies, NAME, kept="exercise", width=1100, height=1300)
    page, kernel = reader.page, reader.page.evaluate(KERNEL)
    index = {cell.id: number for number, cell in enumerate(reader.cells())}
    setup, answer, check = index["setup"], index[f"{EXERCISE}-answer"], index[f"{EXERCISE}-public"]
    assert (copies.folder / NAME).is_file() and reader.cells()[check].outputs == []

    reader.run_cell(setup)
    reader.cell(setup).locator("td", has_text="ring-bytes").wait_for()
    assert judged(reader, check)["state"] == "unattempted"  # the answer's cell has not run
    assert "There is no my_reduce_scatter yet: run the cell of your answer." in said(reader, check)
    reader.run_cell(answer)
    assert judged(reader, check)["state"] == "unattempted"
    assert "not attempted yet, 0 of 5 points" in said(reader, check)
    assert "my_reduce_scatter is still the stub. Write an answer, run its cell, and then this one." in said(
        reader, check
    )
    reader.keep_screen("1-stub")

    answered(reader, answer, WHOLE)
    record = judged(reader, check)
    assert (record["state"], record["points"], record["of"]) == ("partly", 3, 5)
    assert [one["state"] for one in record["checks"]] == ["right", "wrong", "right"]
    told = said(reader, check)
    assert "sends all but its own part (bytes): not right yet, 0 of 2 points" in told
    assert "With 3 ranks rank 0 sent" in told
    assert "You send the whole tensor to everyone: a rank needs its own part only." in told
    look(reader, check, "2-wrong")

    answered(reader, answer, PARTS.replace("(total)", "(mine)"))
    assert judged(reader, check)["state"] == "error"
    told = said(reader, check)
    assert "raised NameError: name 'mine' is not defined." in told and "arrived = torch.empty_like(mine)" in told
    assert told.count("is not defined. Details") == 1 and told.count("For the same reason.") == 2
    look(reader, check, "3-error")
    fits(reader, check, 640, "3-error-zoomed")

    answered(reader, answer, PARTS.replace("(total)", "(total"))
    assert judged(reader, check)["state"] == "error"
    assert "The cell that ran before this one failed. If it was your answer, an older" in said(reader, check)
    reader.keep_screen("4-did-not-run")

    answered(reader, answer, PARTS)
    record = judged(reader, check)
    assert (record["state"], record["points"]) == ("right", 5), said(reader, check)
    told = said(reader, check)
    assert told.startswith("✓ reduce-scatter: right, 5 of 5 points") and "older answer" not in told
    look(reader, check, "5-right")

    assert page.evaluate(KERNEL) == kernel and not reader.console
    page.keyboard.press("Control+s")
    page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty", timeout=WAIT)
    kept = (copies.folder / NAME).read_text(encoding="utf-8")
    assert MARK in kept and "parts[to]" in kept
    page.close()


def answered(reader: Reader, index: int, source: str) -> None:
    """The answer's cell holds `source`, and has run."""
    reader.write_cell(index, source)
    assert reader.cells()[index].source == source
    reader.run_cell(index)


def judged(reader: Reader, index: int) -> dict[str, Any]:
    """Run the check; its record, which is its only output."""
    reader.run_cell(index)
    (output,) = reader.cells()[index].outputs
    return output["data"][MARK]


def said(reader: Reader, index: int) -> str:
    """What the check shows, in words as they stand on the page."""
    return " ".join(reader.cell(index).locator(".jp-OutputArea-output").inner_text().split())


def fits(reader: Reader, index: int, width: int, name: str) -> None:
    """At this width of the window, as at 200 % zoom, nothing of the check's output is cut off."""
    size, files = reader.page.viewport_size, "window.jupyterapp.commands.execute('application:toggle-left-area')"
    reader.page.set_viewport_size({"width": width, "height": 800})
    reader.page.evaluate(files)
    box = reader.cell(index).locator(".jp-OutputArea-output > [role=status]").element_handle()
    reader.page.wait_for_function("(box) => box.scrollWidth <= box.clientWidth", arg=box)
    reader.keep_screen(name)
    reader.page.evaluate(files)
    reader.page.set_viewport_size(size)


def look(reader: Reader, index: int, name: str) -> None:
    """Pictures in both themes, and nothing that axe-core has against the check's output in either."""
    for theme in ("light", "dark"):
        reader.theme(theme)
        reader.keep_screen(f"{name}-{theme}")
        reader.lab.check_axe(reader.page, f".jp-Cell[data-windowed-list-index='{index}'] .jp-OutputArea-output")
