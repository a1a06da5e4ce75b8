"""What the kernel of `labkit lab` does when it starts, also after a restart: nothing of the chapter has run yet.

The worker of its ranks is started, and PyTorch loaded. A name that no cell has made yet is told with the cell that
makes it, which is what a reader needs to know who restarted the kernel, or left a cell out. And what a cell asserts of
the chapter's parameters is told as a sentence.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from labkit import forkserver
from labkit.book.frontend import namespace


def begin() -> None:
    """Called by the kernel's own command line. Does nothing where nobody reads."""
    if os.environ.get("LABKIT_HEADLESS") == "1":
        return
    forkserver.begin()
    sys.modules["IPython"].get_ipython().set_custom_exc((NameError, AssertionError), _tell)


def _tell(
    shell: Any, kind: type[Exception], error: Exception, frames: TracebackType, tb_offset: int | None = None
) -> None:
    if isinstance(error, NameError):
        said = missing(error, shell.user_ns.get("In", [""])[-1])
    else:
        said = str(error) if _raised_in(frames) == "<module>" else ""
    if said:
        error._render_traceback_ = lambda: [said]  # type: ignore[attr-defined]
    shell.showtraceback((kind, error, frames), tb_offset=tb_offset)


def _raised_in(frames: TracebackType) -> str:
    """The function in which it was raised: "<module>" for a line of the cell itself."""
    while frames.tb_next is not None:
        frames = frames.tb_next
    return frames.tb_frame.f_code.co_name


def missing(error: NameError, cell: str = "") -> str:
    """Which cell of this notebook, above `cell` if given, makes what is missing; "" where that is not what is wrong."""
    if error.name in namespace():
        return ""
    return not_run(error.name or "", cell, _notebook())


def not_run(name: str, cell: str, notebook: list[dict[str, Any]]) -> str:
    """Which cell of a notebook above `cell` makes `name`, and how to run it; "" where there is none.

    notebook: its cells. A cell that was changed since it was saved is taken to be the last one.
    """
    from labkit.book.reading.writing import sets

    heading, found = "", ""
    for one in notebook:
        source = "".join(one["source"])
        if one["cell_type"] == "markdown":
            titles = [line.strip("# ") for line in source.splitlines() if line.startswith("##")]
            heading = titles[-1] if titles else heading
        elif one["cell_type"] == "code":
            if source.strip() == cell.strip():
                break
            if name in sets(source, imports=True):
                where = f"in the section “{heading}”" if heading else "before the first section"
                found = f"The cell that makes it is {where}, and begins with:\n\n    "
                found += next((line for line in source.splitlines() if line.strip()), "")
    if not found:
        return ""
    return (
        f"{name} does not exist yet.\n\n{found}\n\nIt has not come to its end since the kernel was started. If an "
        "error stands below that cell, it comes first.\nOtherwise choose Run > Run All Above Selected Cell in the "
        "menu, answer what it asks, then run this cell again."
    )


def _notebook() -> list[dict[str, Any]]:
    """The cells of the notebook that this kernel serves, as it was last saved; [] where nobody knows which it is."""
    path = Path(os.environ.get("JPY_SESSION_NAME", ""))
    try:
        cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    except (OSError, ValueError, KeyError):
        return []
    return cells
