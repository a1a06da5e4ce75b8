"""A reader in front of a notebook: runs cells, goes about with the keyboard, and keeps all that reached the page."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

from browser.lab import WAIT, Lab

ARTIFACTS = Path(os.environ.get("LABKIT_ARTIFACTS") or Path(__file__).parents[2] / "build" / "browser")
CELLS = """() => window.jupyterapp.shell.currentWidget.content.widgets.map(({model}) => ({
  id: model.id, source: model.sharedModel.getSource(), code: model.type === "code", count: model.executionCount ?? 0,
  outputs: model.type === "code" ? model.outputs.toJSON() : []}))"""
RUN = """(command) => { window.lkRan = null; window.jupyterapp.commands.execute(command)
  .then((fine) => { window.lkRan = String(fine); }, (why) => { window.lkRan = `failed: ${why}`; }); }"""
PAINTED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
FOCUS = """() => { const cell = document.activeElement.closest(".jp-Cell");
  return cell && { cell: Number(cell.dataset.windowedListIndex), inside: document.activeElement !== cell }; }"""
RESTS = f"""async (wanted) => {{  // the cell with the focus, once it is `wanted` or has stayed for half a second
  let seen, since = performance.now();
  while (performance.now() - since < 500) {{
    const now = ({FOCUS})()?.cell ?? null;
    if (now === wanted) return now;
    if (now !== seen) [seen, since] = [now, performance.now()];
    await new Promise((done) => setTimeout(done, 20));
  }}
  return seen; }}"""
SCREEN = """(top) => { const all = document.querySelector(".jp-Notebook .jp-WindowedPanel-outer");
  all.scrollTop = top; return [all.scrollTop, all.scrollHeight, all.clientHeight]; }"""


class Cell(NamedTuple):
    """A cell as the page has it. count: its execution number, 0 before it has run."""

    id: str
    source: str
    code: bool
    count: int
    outputs: list[dict[str, Any]]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [output for output in self.outputs if output["output_type"] == "error"]

    def shows(self, mime: str) -> int:
        """How many of its outputs are of this MIME type, among others."""
        return sum(mime in output.get("data", {}) for output in self.outputs)


LATE_WORDS = "[anywidget] Failed to initialize model."  # a busy machine; forms/make.js heals it, and a test shows that


class Reader:
    """One notebook in one page. `received`: every message of the kernel; `console`: errors of the page.

    kept: the folder of its pictures, called as the notebook when empty.
    """

    def __init__(self, lab: Lab, name: str, kept: str = "", **options: Any) -> None:
        self.name = kept or Path(name).stem
        self.received: list[bytes] = []
        self.console: list[str] = []
        self.page = lab.open(name, watch=self._watch, **options)
        self.lab = lab

    def _watch(self, page: Any) -> None:
        def came(payload: str | bytes) -> None:
            self.received.append(payload.encode() if isinstance(payload, str) else payload)

        page.on("websocket", lambda socket: socket.on("framereceived", came))
        page.on("pageerror", lambda why: None if LATE_WORDS in f"{why}" else self.console.append(f"{why}"))
        page.on("console", lambda said: self.console.append(f"{said.text} ({said.location.get('url', '')})")
                if said.type == "error" else None)  # fmt: skip

    def cells(self) -> list[Cell]:
        return [Cell(**cell) for cell in self.page.evaluate(CELLS)]

    def run(self, what: str) -> None:
        """Run "run-all-cells" or "run-all-below" (from the active cell on), until the last has ended or one failed."""
        self.page.evaluate(RUN, f"notebook:{what}")
        self.page.wait_for_function("window.lkRan", timeout=4 * WAIT)
        assert self.page.evaluate("window.lkRan") in ("true", "false")

    def run_cell(self, index: int) -> None:
        """Go to cell `index` and press Shift+Enter; until it has run, well or not."""
        before = self.cells()[index].count
        self.goto(index)
        self.press("Shift+Enter")
        self.page.wait_for_function(f"({CELLS})()[{index}].count > {before}")
        self.lab.wait_idle(self.page)

    def write_cell(self, index: int, source: str) -> None:
        """Go to cell `index` and put `source` in the place of what it holds."""
        self.goto(index)
        self.press("Enter")
        self.press("Control+a")
        self.page.keyboard.insert_text(source)  # as from the clipboard: typed, it would be indented twice
        self.press("Escape")

    def goto(self, index: int) -> None:
        """With arrow keys to cell `index`, from wherever the focus is in the notebook."""
        here = self.page.evaluate(FOCUS)
        assert here, "the focus is not in the notebook"
        for _ in range(60):
            if not here["inside"]:
                break
            self.page.keyboard.press("Shift+Tab")  # out of a form, back to its cell
            here = self.page.evaluate(FOCUS) or {"inside": True}
        assert not here["inside"], "Shift+Tab does not lead out of this cell"
        for _ in range(60):  # a busy page may miss a key among many: look where it comes to rest, and go on from there
            for _ in range(abs(index - here["cell"])):
                self.page.keyboard.press("ArrowDown" if index > here["cell"] else "ArrowUp")
            at = self.page.evaluate(RESTS, index)
            if at == index:
                return
            if at is None:  # keys that a busy page took late lead beyond the last cell, to the button below it
                self.page.keyboard.press("ArrowUp")
                at = self.page.evaluate(RESTS, index)
            here = {"cell": here["cell"] if at is None else at}
        raise AssertionError(f"{self.name}: arrow keys lead to cell {here['cell']}, and not to {index}")

    def tab_to(self, selector: str, cell: int, most: int = 80) -> None:
        """Press Tab until an element of `selector` in cell `cell` has the focus."""
        wanted = f"document.activeElement.matches({json.dumps(selector)}) && ({FOCUS})()?.cell === {cell}"
        for _ in range(most):
            if self.page.evaluate(wanted):
                return
            self.page.keyboard.press("Tab")
        raise AssertionError(f"{self.name}: Tab does not lead to {selector} in cell {cell}")

    def press(self, key: str, times: int = 1) -> None:
        for _ in range(times):
            self.page.keyboard.press(key)

    def cell(self, index: int) -> Any:
        """The cell's part of the page."""
        return self.page.locator(f".jp-Notebook .jp-Cell[data-windowed-list-index='{index}']")

    def theme(self, name: str) -> None:
        """The system turns "light" or "dark", and JupyterLab with it."""
        self.page.emulate_media(color_scheme=name)
        self.page.wait_for_function(f"document.body.dataset.jpThemeName === 'JupyterLab {name.title()}'")

    def keep_screen(self, name: str) -> None:
        """A picture of what is seen now, kept in the folder of artifacts."""
        self.page.evaluate(PAINTED)
        self.page.screenshot(path=ARTIFACTS / self.name / f"{name}.png")

    def keep_screens(self, name: str) -> None:
        """A picture of every screenful."""
        for old in (ARTIFACTS / self.name).glob(f"{name}-*.png"):
            old.unlink()
        top, number = 0.0, 0
        while number < 80:
            at, whole, shown = self.page.evaluate(SCREEN, top)
            self.keep_screen(f"{name}-{number:02}")
            if at + shown >= whole - 5:
                return
            top, number = at + shown - 60, number + 1

    def everything(self) -> str:
        """All that the page has got from the kernel, and all that it shows."""
        shown = self.page.evaluate("document.querySelector('.jp-Notebook').textContent")
        return "\n".join([*(message.decode(errors="replace") for message in self.received), shown])


def content_of(message: bytes) -> dict[str, Any]:
    """What a kernel's message says, from a frame of the protocol v1.kernel.websocket.jupyter.org."""
    (count,) = struct.unpack_from("<Q", message)
    offsets = struct.unpack_from(f"<{count}Q", message, 8)
    return json.loads(message[offsets[4] : offsets[5]])
