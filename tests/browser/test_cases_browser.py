"""A case file in JupyterLab: evidence bought and a verdict given by keyboard alone, and the truth only afterwards."""

from __future__ import annotations

import re

import pytest

from browser.lab import Lab
from browser.reader import Reader

pytestmark = [pytest.mark.ranks, pytest.mark.browser, pytest.mark.long]

CASE = """
from labkit import book
from labkit.course.casefile import Case, Evidence, Suspect

def some(*pairs):
    return frozenset(Suspect(*pair) for pair in pairs)

causes = {"frozen": "its process has frozen", "lost": "a message never left its card"}
evidence = [
    Evidence("log", "The last line of every log", 1, "- step 5: rank 0\\n- step 6: rank 1",
             some((0, "lost"), (1, "lost"), (1, "frozen"))),
    Evidence("ping", "Which processes answer", 5, "All processes answer.", some((0, "lost"), (1, "lost"))),
    Evidence("card", "A test of the hardware", 30, "The card of rank 1 has failed.",
             some((1, "lost"), (1, "frozen")), "emulated"),
]
file = book.case(Case("Case A", "Everybody waits.", causes, 2, evidence, Suspect(1, "lost")))
"""  # a file beside the notebook: in a cell, the page would have all of it
CELLS = ["from made_up_case import file\nfile", "file.require()\nfile.story()"]
SECRETS = ("step 5: rank 0", "All processes answer", "The card of rank 1 has failed", "It was rank 1")
LOG, PING, CARD, VERDICT = (f".lk-item:nth-of-type({n})" for n in (1, 2, 3, 4))
BUY, RANK, CAUSE = "[data-action=buy]", "input[type=text]", ".lk-row:nth-child(2) input[type=text]"


@pytest.fixture(autouse=True)
def module(lab: Lab) -> None:
    (lab.folder / "made_up_case.py").write_text(CASE)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_evidence_a_verdict_and_the_truth_by_keyboard_alone(lab: Lab, theme: str) -> None:
    reader = Reader(lab, f"case-{theme}.ipynb", notebook=CELLS, dark=theme == "dark")
    page = reader.page
    stopped(reader)
    lab.check_axe(page, ".lk-form")

    reader.goto(0)
    press(reader, f"{LOG} {BUY}", "Enter")
    hears(reader, LOG, "Bought (measured)")
    assert reader.cell(0).locator(f"{LOG} li").all_inner_texts() == ["step 5: rank 0", "step 6: rank 1"]
    assert spent(reader) == "1 minute of the fleet so far: 273 GPU hours."
    assert all(secret not in reader.everything() for secret in SECRETS[1:])
    press(reader, f"{LOG} {BUY}", "Enter")  # it is bought: nothing is paid twice
    press(reader, f"{PING} {BUY}", "Space")
    hears(reader, PING, "Bought (measured)")
    assert spent(reader).startswith("6 minutes")

    types(reader, "one", "b")
    reader.cell(0).locator(VERDICT).get_by_text("the rank is a number from 0 to 1, not 'one'").wait_for()
    types(reader, "0", "(b)")
    hears(reader, VERDICT, "Not right")
    assert spent(reader).startswith("16 minutes") and "It was rank" not in reader.everything()
    types(reader, "1", "a")
    reader.cell(0).locator(VERDICT).get_by_text("The rank is right, the cause is not.").wait_for()
    reader.keep_screen(f"wrong-{theme}")
    types(reader, "rank 1", "b")
    hears(reader, VERDICT, "Right")
    reader.cell(0).locator(VERDICT).get_by_text("It was rank 1: a message never left its card.").wait_for()
    assert spent(reader).startswith("26 minutes") and SECRETS[2] not in reader.everything()

    press(reader, f"{CARD} {BUY}", "Enter")  # the case is closed: what is left may be looked at
    hears(reader, CARD, "Seen, for nothing (emulated)")
    assert SECRETS[2] in reader.cell(0).locator(CARD).inner_text() and spent(reader).startswith("26 minutes")
    assert len(reader.cells()) == 2  # no key has reached the notebook
    reader.run_cell(1)
    told = reader.cell(1).locator(".jp-OutputArea-output").inner_text()
    assert "rank 1, lost: a message never left its card" in told
    assert "verdict: rank 0, lost (wrong, the fleet was restarted)" in told and "in hindsight enough" in told
    assert not reader.console
    lab.check_axe(page)
    reader.keep_screens(f"closed-{theme}")
    page.close()


def test_it_fits_a_narrow_page_stays_calm_and_comes_back_when_the_page_is_loaded_again(lab: Lab) -> None:
    reader = Reader(lab, "case-narrow.ipynb", notebook=CELLS, width=1000, reduced_motion="reduce")
    page = reader.page
    stopped(reader)
    form = reader.cell(0).locator(".lk-form")
    moving = "(box) => [...box.querySelectorAll('*')].filter((e) => e.getAnimations().length).length"
    assert page.evaluate("matchMedia('(prefers-reduced-motion: reduce)').matches") and form.evaluate(moving) == 0
    form.evaluate("(box) => { box.parentElement.style.width = '320px'; }")
    assert form.evaluate("(box) => box.scrollWidth - box.clientWidth") <= 0
    boxes = form.evaluate("(box) => [...box.querySelectorAll('button, input')].map((e) => e.getBoundingClientRect())")
    assert len(boxes) == 7 and min(min(box["width"], box["height"]) for box in boxes) >= 24
    assert max(box["right"] for box in boxes) <= form.bounding_box()["x"] + 320

    reader.goto(0)
    press(reader, f"{PING} {BUY}", "Enter")
    hears(reader, PING, "Bought (measured)")
    reader.keep_screens("narrow")
    page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    page.reload()  # the kernel still runs, and knows what was bought
    lab.wait_idle(page)
    reader.cell(0).locator(f"{PING} .lk-mark", has_text="Bought (measured)").wait_for()
    assert spent(reader).startswith("5 minutes") and reader.cell(0).locator(f"{LOG} .lk-mark").count() == 0

    reader.cell(0).locator(f"{LOG} {BUY}").focus()
    press(reader, f"{VERDICT} [data-action=reveal]", "Enter")
    hears(reader, VERDICT, "Closed")
    reader.cell(0).locator(VERDICT).get_by_text("It was rank 1: a message never left its card.").wait_for()
    page.close()


def stopped(reader: Reader) -> None:
    """Run All stops before the truth, kindly, and leads to the verdict; nothing has been told."""
    reader.run("run-all-cells")
    (error,) = reader.cells()[1].errors
    assert error["ename"] == "VerdictFirst" and "Traceback" not in "\n".join(error["traceback"])
    reader.page.wait_for_function(f"document.activeElement.closest({VERDICT!r}) && true")
    assert reader.page.evaluate("document.activeElement.type") == "text"
    assert [secret for secret in SECRETS if secret in reader.everything()] == []


def press(reader: Reader, selector: str, key: str) -> None:
    """Tab to it inside the case file, and press `key`; the focus stays."""
    reader.tab_to(selector, 0)
    reader.press(key)
    assert reader.page.evaluate(f"document.activeElement.matches({selector!r})")


def types(reader: Reader, rank: str, cause: str) -> None:
    """Give a verdict: into both boxes, and Enter."""
    reader.goto(0)
    for selector, text in ((f"{VERDICT} {RANK}", rank), (f"{VERDICT} {CAUSE}", cause)):
        reader.tab_to(selector, 0)
        reader.press("Control+a")
        reader.page.keyboard.type(text)
    reader.press("Enter")


def hears(reader: Reader, item: str, mark: str) -> None:
    """The item shows its mark, the page announces it to a screen reader, and the focus is still in that item."""
    reader.cell(0).locator(f"{item} .lk-mark", has_text=re.compile(rf"[✓✗●] {re.escape(mark)}$")).wait_for()
    reader.page.wait_for_function(
        "(words) => document.querySelector('.lk-form [role=status]').textContent.includes(words)", arg=mark
    )
    assert reader.cell(0).locator(f"{item} :focus").count() == 1


def spent(reader: Reader) -> str:
    """What the case has cost so far, as the page says it."""
    said = reader.cell(0).locator(f"{VERDICT} .lk-feedback").inner_text()
    return re.search(r"[\d,]+ minutes? of the fleet so far: [\d,]+ GPU hours\.", said)[0]  # type: ignore[index]
