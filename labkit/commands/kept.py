"""The executed notebook that `labkit run` leaves behind: which cell failed, and why."""

import re
from pathlib import Path
from typing import Any

import nbformat

LINES = 12  # of an error message: enough for the reason, the notebook has the rest


def failing_cell(kept: Path) -> str:
    """Say which cell failed, and clean the notebook when none did.

    A cell tagged `raises-exception` is meant to fail, and those after it ran. papermill marks such a
    notebook as failed all the same, so its marks are taken out again. Returns "" in that case.
    """
    from papermill.execute import remove_error_markers

    notebook = nbformat.read(kept, as_version=4)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            meant = "raises-exception" in cell.metadata.get("tags", [])
            if output.output_type == "error" and not meant:
                return f"{_name(cell)} failed: {short(f'{output.ename}: {output.evalue}')}"
    nbformat.write(remove_error_markers(notebook), kept)
    return ""


def mark_stopped(kept: Path, reason: str) -> str:
    """Write `reason` under the cell that was running, as its error, and return it as a sentence.

    papermill records that cell, and those after it, as completed, which would mislead a reader of the file.
    """
    if not kept.exists():
        return f"the run {reason} before its first cell"
    notebook = nbformat.read(kept, as_version=4)
    running = None
    for cell in notebook.cells:
        if cell.cell_type == "code" and _record(cell).get("start_time"):
            running = cell
        elif "papermill" in cell.metadata:
            _record(cell).update(status="pending")
    if running is None:
        return f"the run {reason} before its first cell"
    _record(running).update(status="failed", exception=True)
    sentence = f"this cell {reason}"
    running.outputs.append(nbformat.v4.new_output("error", ename="Stopped", evalue=sentence, traceback=[sentence]))
    nbformat.write(notebook, kept)
    return f"{_name(running)} {reason}"


def short(message: str) -> str:
    """The first lines of a message, without colour codes."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", message).strip().splitlines()
    more = [f"    ... {len(lines) - LINES} more lines in the notebook"] if len(lines) > LINES else []
    return "\n".join(lines[:LINES] + more)


def _record(cell: Any) -> Any:
    """What papermill noted about a cell: status, times, whether it raised."""
    return cell.metadata.get("papermill", {})


def _name(cell: Any) -> str:
    """A cell as a reader finds it: its number if it has one, and how it begins."""
    number = f" [{cell.execution_count}]" if cell.execution_count else ""
    first = next((line.strip() for line in cell.source.splitlines() if line.strip()), "")
    return f"cell{number} `{first[:60]}`"
