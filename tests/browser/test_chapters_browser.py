"""Each chapter as its reader meets it: opened by `labkit lab`, in Chromium, answered with the keyboard alone."""

from __future__ import annotations

import contextlib
import re
import textwrap
from typing import Any

import pytest
from chapters.test_you_write import WRONG, solved
from slices import LONG, changed_last

from browser.lab import Lab
from browser.reader import Cell, Reader
from browser.secrets_of import items_in, plain_run, shown_number, spoilers, told_too_early
from browser.stories import STORIES, Story
from browser.watched import TRAIN
from labkit import cost
from labkit.book.cases.board import VERDICT
from labkit.book.cases.exhibits import MINUTES
from labkit.book.explorers import SEEN
from labkit.cost import wires
from labkit.course import load
from labkit.course.chapter_file import ChapterFile, load_chapter
from labkit.course.errors import CourseError
from labkit.course.questions import Choices, Numeric, Order, Question

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.browser,
    pytest.mark.timeout(1800),
]  # a loaded machine of two cores takes its time

VIEW, PLOTLY = "application/vnd.jupyter.widget-view+json", "application/vnd.plotly.v1+json"


# Tables, code and pictures may be scrolled, as in JupyterLab's own cells.
CUT_OFF = """(box) => [...box.querySelectorAll(":not(table, pre[aria-label], .lk-scroll)")]
  .filter((one) => one.clientWidth && one.scrollWidth > one.clientWidth + 1)
  .filter((one) => getComputedStyle(one).overflowX === "auto")
  .map((one) => one.className || one.outerHTML.slice(0, 200))"""
# What a cell displays as a widget of its own.
SHOWN = ".lk-form, .lk-bench, .lk-own, .lk-panel:not(:is(.lk-bench, .lk-own) .lk-panel)"


def test_every_chapter_has_its_story() -> None:
    assert [*STORIES] == [chapter.name for chapter in load().written()]


@pytest.mark.parametrize("name", changed_last(STORIES))
def test_a_chapter_from_the_first_cell_to_the_last_quiz(copies: Lab, name: str) -> None:
    story, file = STORIES[name], load_chapter(name)
    reader = Reader(copies, f"notebooks/{name}.ipynb", width=1100, height=1300)
    predict_and_run(reader, story, file)
    everything_is_shown(reader)
    values = parameters(reader)
    nothing_is_told(reader, file, values)
    for id in story.asked:
        answer_wrongly_then_rightly(reader, story, file, file.question(id, values, values["seed"]))
    if name == "03_collectives":
        step_through_the_replay(reader)
    if name == "21_hundred_thousand_gpus":
        explore_the_fleet(reader)
    for theme in ("light", "dark") if LONG else ("dark",):
        reader.theme(theme)
        figures_have_room(reader)
        reader.keep_screens(theme)
        copies.check_axe(reader.page, impacts=("serious", "critical"))
    if name == "00_start_here":
        forms_fit(reader, 640)
    assert not reader.console
    reader.page.close()


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in STORIES if load_chapter(name).to_write])
def test_every_function_is_written_and_every_workbench_operated_by_keyboard(other_copies: Lab, name: str) -> None:
    """In a narrow window: a wrong version first, its sentence, a solution unfolded, then a right one."""
    file, right = load_chapter(name), solved(name)
    reader = Reader(other_copies, f"notebooks/{name}.ipynb", kept=f"{name}_by_hand", width=900, height=1300)
    reader.page.evaluate("window.jupyterapp.commands.execute('application:toggle-left-area')")
    predict_and_run(reader, Story((), ()), file)
    for what in right:
        write_wrongly_then_rightly(reader, what, next(iter(WRONG[name, what])), right[what])
    benches = [i for i, cell in enumerate(reader.cells()) if reader.cell(i).locator(".lk-bench").count()]
    assert len(benches) >= 2
    for index in benches:
        operate(reader, index)
        reader.cell(index).scroll_into_view_if_needed()
        reader.keep_screen(f"bench-{index}")
        assert reader.cell(index).locator(".lk-bench").evaluate(CUT_OFF) == []
    other_copies.check_axe(reader.page, ".lk-bench", excluded=[".js-plotly-plot"])
    assert not reader.console
    reader.page.close()


def write_wrongly_then_rightly(reader: Reader, what: str, wrong: str, right: str) -> None:
    """Function `what` of the chapter, in its own cell, and the check in the cell below it."""
    cells = reader.cells()
    checked = next(i for i, cell in enumerate(cells) if f'chapter.check("{what}")' in cell.source)
    mine = next(i for i in range(checked, -1, -1) if f"def {what}(" in cells[i].source)
    said = reader.cell(checked).locator(".jp-OutputArea-output [role=status]")
    for source, mark in ((wrong, "✗ Not right yet."), (right, "✓ Right.")):
        reader.write_cell(mine, textwrap.dedent(source).strip())
        reader.run_cell(mine)
        reader.run_cell(checked)
        said.get_by_text(mark).wait_for()
        reader.goto(checked)
        reader.tab_to("details:last-of-type > summary", checked)
        reader.press("Enter")
        said.locator("details[open]", has_text=f"def {what}").wait_for()


def operate(reader: Reader, index: int) -> None:
    """Each control of a workbench to another place, and back; pin, and see the code. Every run ends in words."""
    bench = reader.cell(index).locator(".lk-bench")
    controls = bench.locator(":is(select, .noUi-handle, input[type=checkbox]):not(.lk-panel *)")
    for number in range(controls.count()):
        control = controls.nth(number)
        control.evaluate("(node, k) => { node.dataset.stop = k; }", f"{index}-{number}")
        keys = ("Space", "Space") if control.get_attribute("type") == "checkbox" else ("ArrowDown", "ArrowUp")
        reader.goto(index)
        reader.tab_to(f"[data-stop='{index}-{number}']", index)
        for key in keys if control.evaluate("(node) => !node.selectedIndex") else reversed(keys):
            reader.press(key)
            rests(reader, bench)
    for button in ("Pin", "As code"):
        reader.goto(index)
        bench.get_by_role("button", name=button, exact=True).evaluate("(node) => { node.dataset.stop = 'button'; }")
        reader.tab_to("[data-stop=button]", index)
        reader.press("Enter")
        bench.evaluate("(box) => box.querySelectorAll('[data-stop=button]').forEach((n) => delete n.dataset.stop)")
    bench.get_by_text("Pinned (").first.wait_for()
    bench.get_by_label("The same run as a cell").wait_for()


def rests(reader: Reader, bench: Any) -> None:
    """Until the run of the last change is over; its words are those of a run, a refusal, or a failure of ranks."""
    reader.page.wait_for_timeout(150)  # a message to the kernel and its answer
    status = bench.locator("[role=status]").first
    status.filter(has_not_text=re.compile("^(starting|running|drawing)")).wait_for()
    said = status.inner_text()
    assert not re.match(r"\w+(Error|Exception): ", said), said


def predict_and_run(reader: Reader, story: Story, file: ChapterFile) -> None:
    """Run All; at each stop predict or skip with the keyboard, or close a case, and go on from there."""
    stops = []
    reader.run("run-all-cells")
    while stopped := [i for i, cell in enumerate(reader.cells()) if cell.errors]:
        cells, at = reader.cells(), stopped[0]
        stops_kindly(cells, at)
        reader.page.wait_for_function("document.activeElement.closest('.lk-item') && true")  # the stop leads to it
        form = asked_in(reader)
        said = reader.cell(at).locator(".jp-OutputArea-output").text_content()
        assert said.strip() == "\n".join(cells[at].errors[0]["traceback"])
        assert form < at
        if cells[at].errors[0]["ename"] == "VerdictFirst":
            close_the_case(reader, form)
            reader.run("run-all-below")
            continue
        asked = reader.cell(form).locator(".lk-form").text_content()
        runs = {name: plain_run(entry["prompt"]) for name, entry in file.predictions.items()}
        id = max((name for name, run in runs.items() if run in asked), key=lambda name: len(runs[name]))
        assert len(stops) < len(file.predictions)
        stops.append(id)
        if len(stops) == 1:
            reader.keep_screen("stopped")
        predict(reader, form, cells[form], file.predictions[id]["kind"] if id in story.predicts else "skip")
        reader.run("run-all-below")
    assert stops == list(file.predictions), "Run All did not stop at every prediction"


def asked_in(reader: Reader) -> int:
    """The cell of the form that has the focus, where the stop has put it."""
    return int(reader.page.evaluate("document.activeElement.closest('.jp-Cell').dataset.windowedListIndex"))


def stops_kindly(cells: list[Cell], at: int) -> None:
    """One message, no traceback, and nothing after it has run."""
    (error,) = cells[at].errors
    assert error["ename"] in ("PredictFirst", "VerdictFirst") and len(cells[at].outputs) == 1
    said, begins = "\n".join(error["traceback"]), error["ename"].replace("First", " first.")
    assert said.startswith(begins) and "Traceback" not in said and max(map(len, said.split("\n"))) <= 70
    ran = [cell.id for cell in cells[at + 1 :] if cell.code and (cell.count or cell.outputs)]
    assert not ran, f"these have run before the prediction of {cells[at].id}: {ran}"


def predict(reader: Reader, index: int, cell: Cell, kind: str) -> None:
    """From the cell by Tab into its form; type, choose, draw, or skip; Enter."""
    reader.goto(index)
    match kind:
        case "number":
            boxes = reader.cell(index).locator("input[type=text]").count()
            for box in range(boxes):
                reader.tab_to(f".lk-row:nth-child({box + 1}) input[type=text]", index)
                reader.page.keyboard.type(f"{box + 3}")
        case "choice":
            reader.tab_to("input[type=radio]", index)
            reader.press("ArrowDown")
        case "sketch":
            reader.tab_to("input[type=range]", index)
            for _ in range(reader.cell(index).locator("input[type=range]").count()):
                reader.press("ArrowUp", 2)
                reader.press("Tab")
            reader.press("Shift+Tab")
        case "skip":
            reader.tab_to("[data-action=skip]", index)
    reader.press("Enter")
    mark = "Skipped" if kind == "skip" else "Predicted"
    reader.cell(index).locator(".lk-mark", has_text=mark).wait_for()


def close_the_case(reader: Reader, index: int) -> None:
    """Buy the cheapest evidence of a case file, accuse somebody, and if it was somebody else have the case closed."""
    verdict = ".lk-item:last-of-type"
    reader.goto(index)
    reader.tab_to(".lk-item:first-of-type [data-action=buy]", index)
    reader.press("Enter")
    reader.cell(index).locator(".lk-item:first-of-type .lk-mark", has_text="Bought").wait_for()
    for box, text in ((1, "0"), (2, "a")):
        reader.tab_to(f"{verdict} .lk-row:nth-child({box}) input", index)
        reader.page.keyboard.type(text)
    reader.press("Enter")
    mark = reader.cell(index).locator(f"{verdict} .lk-mark")
    mark.wait_for()
    if "Not right" in mark.inner_text():
        reader.tab_to(f"{verdict} [data-action=reveal]", index)
        reader.press("Enter")
        reader.cell(index).locator(f"{verdict} .lk-mark", has_text="Closed").wait_for()


def everything_is_shown(reader: Reader) -> None:
    """All cells have run without an error; each figure and each form is there, and no box of excuses."""
    cells = reader.cells()
    assert [cell.id for cell in cells if cell.code and not cell.count] == []
    assert [(cell.id, cell.errors) for cell in cells if cell.errors] == []
    for index, cell in enumerate(cells):
        if figures := cell.shows(PLOTLY):
            main = reader.cell(index).locator(".js-plotly-plot .main-svg >> nth=0")
            main.wait_for(state="attached")
            drawn = reader.cell(index).locator(".js-plotly-plot:has(.main-svg)").count()
            assert drawn == figures, f"{cell.id}: {drawn} of {figures} figures"
        if widgets := cell.shows(VIEW):
            reader.cell(index).locator(SHOWN).first.wait_for(state="attached")
            assert reader.cell(index).locator(SHOWN).count() == widgets, cell.id
    text = reader.page.locator(".jp-Notebook").text_content()
    for excuse in ("Error displaying widget", "Loading widget", "Javascript Error"):
        assert excuse not in text


def figures_have_room(reader: Reader) -> None:
    """Each figure is as high as its drawing, also after a change of theme."""
    reader.page.wait_for_function(
        """() => [...document.querySelectorAll(".js-plotly-plot")].every((box) =>
        box.offsetHeight > 100 && box.offsetHeight >= box.querySelector(".main-svg").height.baseVal.value)"""
    )


def forms_fit(reader: Reader, width: int) -> None:
    """At this width of the window, as at 200 % zoom, nothing of a form or a panel is cut off."""
    reader.page.set_viewport_size({"width": width, "height": 800})
    reader.page.evaluate("window.jupyterapp.commands.execute('application:toggle-left-area')")
    reader.page.wait_for_function(
        """() => [...document.querySelectorAll(".lk-form, .lk-panel")]
        .every((box) => box.scrollWidth <= box.clientWidth)"""
    )
    reader.keep_screens("zoomed")


def parameters(reader: Reader) -> dict[str, Any]:
    """What the chapter's questions know from its cell of parameters."""
    values: dict[str, Any] = {}
    (cell,) = (cell for cell in reader.cells() if cell.id == "parameters")
    exec(cell.source, {}, values)
    return values | {"wires": wires}


def nothing_is_told(reader: Reader, file: ChapterFile, values: dict[str, Any]) -> None:
    """No answer, no reason, no explanation has come to the page."""
    secrets, all = spoilers(file), reader.everything()
    assert len(secrets) > 2 * len(file.questions)
    assert {run: where for run, where in secrets.items() if run in all} == {}
    seen = set()
    for item in items_in(reader.received):
        if item["id"] in {*MINUTES, VERDICT} - {*file.questions, *file.predictions}:  # of a case file
            assert item["id"] == VERDICT or bool(item["feedback"]) == (item["state"] == "done"), item
            continue
        if item["kind"] == "slider" or item["id"] == SEEN:  # of an explorer, which asks nothing
            continue
        seen.add(item["id"])
        question = None
        with contextlib.suppress(CourseError):  # it waits for a number of the run
            question = file.question(item["id"], values, values["seed"])
        if item["id"] not in file.predictions or item["state"] == "open":
            assert told_too_early(item, question) == ""
    assert seen == {*file.questions, *file.predictions}


def answer_wrongly_then_rightly(reader: Reader, story: Story, file: ChapterFile, question: Question) -> None:
    """The first answer brings its reason and nothing else; the second brings the explanation."""
    wrong, right = answers(question, story)
    index = next(i for i, item in enumerate(reader.page.locator(".jp-Notebook .jp-Cell").all()) if has(item, question))
    item = item_of(reader, index, question)
    reader.goto(index)
    fill(reader, index, question, wrong)
    item.locator(".lk-mark", has_text="✗ Not right").wait_for()
    said, everything = question.mark(wrong).why, reader.everything()
    assert plain_run(said) and plain_run(said) in item.locator(".lk-feedback").text_content()
    explanation = plain_run(file.questions[question.id]["explanation"])
    assert explanation and explanation not in everything
    assert [run for run in others(file, question, said) if run in everything] == []
    if isinstance(question, Numeric) and (number := shown_number(question)):
        assert number not in item.text_content()
    fill(reader, index, question, right)
    item.locator(".lk-mark", has_text="✓ Right").wait_for()
    assert explanation in item.locator(".lk-feedback").text_content()
    assert item.locator(":focus").count() == 1, "the focus is lost after an answer"


def others(file: ChapterFile, question: Question, said: str) -> dict[str, str]:
    """What the page must not know yet of this question, apart from what it is told in `said`."""
    mine = {run: where for run, where in spoilers(file).items() if where.endswith(f", {question.id}")}
    return {run: where for run, where in mine.items() if run not in said}


def answers(question: Question, story: Story) -> tuple[Any, Any]:
    """A wrong and a right answer, as a form sends them."""
    match question:
        case Choices(kind="choice"):
            rights = [choice.right for choice in question.choices]
            return rights.index(False), rights.index(True)
        case Choices():
            rights = [i for i, choice in enumerate(question.choices) if choice.right]
            return [i for i in range(len(question.choices)) if i not in rights][:1], rights
        case Numeric():
            return [f"{question.slips[0].value:g}"], [f"{question.answer:.6g}"]
        case Order():
            places = list(range(len(question.items)))
            return places, [question.shown_items.index(item) for item in question.items]
    return story.texts[question.id]


def has(cell: Any, question: Question) -> bool:
    return bool(question_in(cell, question).count())


def question_in(cell: Any, question: Question) -> Any:
    """The form of the question: its legend begins with a plain part of the prompt."""
    return cell.locator(".lk-item", has_text=plain_run(question.prompt))


def item_of(reader: Reader, index: int, question: Question) -> Any:
    return question_in(reader.cell(index), question)


def fill(reader: Reader, index: int, question: Question, value: Any) -> None:
    """Tab to the controls of the question and give the answer; Enter."""
    nth = item_of(reader, index, question).evaluate("(item) => [...item.parentElement.children].indexOf(item) + 1")
    item = f".lk-item:nth-child({nth})"
    if item_of(reader, index, question).locator(":focus").count():
        reader.goto(index)
    match question:
        case Choices(kind="choice"):
            reader.tab_to(f"{item} input[type=radio]", index)
            while not reader.page.evaluate(f"document.activeElement.value === '{value}'"):
                reader.press("ArrowDown")
            reader.press("Space")
        case Choices():
            for i in range(len(question.choices)):
                reader.tab_to(f"{item} input[value='{i}']", index)
                if reader.page.evaluate("document.activeElement.checked") != (i in value):
                    reader.press("Space")
        case Order():
            sort(reader, index, item, value)
            reader.tab_to(f"{item} [type=submit]", index)
        case _:
            reader.tab_to(f"{item} input[type=text]", index)
            reader.press("Control+a")
            reader.page.keyboard.type(value if isinstance(value, str) else value[0])
    reader.press("Enter")


def sort(reader: Reader, index: int, item: str, wanted: list[int]) -> None:
    """With the Up buttons, the first place first."""
    now = list(range(len(wanted)))
    for place, one in enumerate(wanted):
        while now.index(one) > place:
            at = now.index(one)
            reader.goto(index)
            reader.tab_to(f"{item} li:nth-child({at + 1}) button:first-of-type", index)
            reader.press("Enter")
            now[at - 1], now[at] = now[at], now[at - 1]


def step_through_the_replay(reader: Reader) -> None:
    """With arrow keys and with buttons: each step has another picture, and says so in words."""
    index = next(i for i, cell in enumerate(reader.cells()) if cell.id == "ring-picture")
    panel = reader.cell(index).locator(".lk-panel")
    seen = [panel.locator("svg").inner_html()]

    def stepped(step: int) -> None:
        panel.locator("output", has_text=re.compile(rf"^{step} of")).wait_for()
        panel.locator("[role=status]", has_text=f"Step {step} of").wait_for(state="attached")
        seen.append(panel.locator("svg").inner_html())

    reader.goto(index)
    reader.tab_to("input[type=range]", index)
    reader.press("ArrowRight")
    stepped(2)
    reader.press("ArrowRight")
    stepped(3)
    reader.press("Shift+Tab")
    reader.press("Space")
    stepped(4)
    reader.press("Shift+Tab")
    reader.press("Enter")
    stepped(3)
    assert len(set(seen)) == 4 and seen[2] == seen[4]


def explore_the_fleet(reader: Reader) -> None:
    """With arrow keys: failures come less often, and the answer follows in words and in the table."""
    index = next(i for i, cell in enumerate(reader.cells()) if cell.id == "fleet-explorer")
    said = reader.cell(index).locator(".lk-feedback").last
    reader.goto(index)
    reader.tab_to("input[type=range]", index)
    for between in (18, 19, 20):  # minutes
        goes_on = cost.random_fault_tolerant_effective_time(between, 10, 3, 12, 100 / 60)
        worth = 100 * (goes_on - cost.random_synchronous_effective_time(between, 10))
        said.get_by_text(f"Going on is worth {worth:.1f} points").wait_for()
        assert said.locator("td").nth(1).inner_text() == f"{100 * (between - 10) / between:.4g}"
        reader.press("ArrowRight")


BUSY = """
while job.poll() is None:
    time.sleep(0.05)
print("the job is over")
"""


def test_a_job_is_watched_and_ended_while_another_cell_runs(copies: Lab) -> None:
    reader = Reader(copies, "notebooks/watched.ipynb", notebook=[TRAIN, BUSY])
    page, board = reader.page, reader.cell(0).locator(".lk-panel")
    page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")
    board.locator("tbody tr").nth(2).wait_for()
    for more in (3, 6):  # of the steps: the table goes on while the second cell keeps the kernel busy
        page.wait_for_function(
            f"() => Number(document.querySelector('.lk-panel tbody td:nth-child(3)').textContent) > {more}"
        )
        assert reader.cell(1).locator(".jp-InputPrompt").text_content().strip() == "[*]:"
    reader.keep_screens("running")
    page.keyboard.press("Escape")
    reader.goto(0)
    reader.tab_to("select", 0)
    reader.press("ArrowDown")
    reader.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Kill"
    reader.press("Enter")
    board.locator("li", has_text="rank 1").first.wait_for()
    board.locator("tbody tr:nth-child(2)[data-state=failed]").wait_for()
    board.locator("button[aria-disabled=true]", has_text="Kill").wait_for()  # the run is over
    reader.cell(1).locator(".jp-OutputArea-output", has_text="the job is over").wait_for()
    reader.keep_screens("over")
    copies.check_axe(page, ".lk-panel")
    assert not reader.console
    page.close()
