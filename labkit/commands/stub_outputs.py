"""Runs a released notebook, to keep what its public checks say about the stubs."""

from __future__ import annotations

import copy
import os
import tempfile
from pathlib import Path
from typing import Any

from labkit.commands.environment import using_our_kernel
from labkit.grading.source.exercise import Cell, Notebook, role

TIMEOUT = 120  # seconds a cell: a stub fails at once, but the first check starts PyTorch


class StubRunFailed(Exception):
    """The released notebook could not be run. The message says which cell, and why."""


Outputs = dict[str, list[Any]]  # of public cells, by id


def with_stub_outputs(notebook: Notebook, runs: int = 2) -> Notebook:
    """A copy of a released notebook with the outputs of its public checks, of `runs` runs of the stubs.

    Nothing of other cells is kept. Raises StubRunFailed.
    """
    return keeping(notebook, [stub_outputs(notebook) for _ in range(runs)])


def stub_outputs(notebook: Notebook) -> Outputs:
    """The outputs of one run, with a folder and a home of its own; errors, and what names a place, are left out.

    Raises StubRunFailed when a cell outside the answers and checks fails, or the kernel is lost.
    """
    with tempfile.TemporaryDirectory(prefix="labkit-release-") as folder:
        ran = run_notebook(copy.deepcopy(notebook), Path(folder))
        return {
            cell.id: [output for output in cell.outputs if _says_the_same_everywhere(output, folder)]
            for cell in ran.cells
            if role(cell) == "public"
        }


def keeping(notebook: Notebook, runs: list[Outputs]) -> Notebook:
    """A copy of the notebook with the outputs that are the same in all runs, as on every machine.

    Such a cell gets a count too, its place among the code cells: nbval refuses outputs of a cell that never ran.
    """
    result = copy.deepcopy(notebook)
    for count, cell in enumerate([cell for cell in result.cells if cell.cell_type == "code"], 1):
        first = runs[0].get(cell.id, [])
        if first and all(run[cell.id] == first for run in runs):
            cell.outputs = first
            cell.execution_count = count
            for output in first:
                if output.output_type == "execute_result":
                    output.execution_count = count
    return result


def run_notebook(notebook: Notebook, folder: Path) -> Notebook:
    """Run a notebook in `folder`, as nobody in particular and with one seed, and return it. Raises StubRunFailed."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    client = NotebookClient(
        notebook, timeout=TIMEOUT, kernel_name="python3", resources={"metadata": {"path": str(folder)}},
        allow_errors=True, record_timing=False, store_widget_state=False, coalesce_streams=True,
    )  # fmt: skip
    try:
        with using_our_kernel():  # which puts the environment back afterwards
            os.environ |= {"LABKIT_HOME": str(folder / "home"), "LABKIT_GRADING_SEED": "0"}
            for name in ("PYTEST_CURRENT_TEST", "NBGRADER_EXECUTION", "LABKIT_STUDENT"):
                os.environ.pop(name, None)  # a check cell would fail, or say a person's name
            client.execute()
    except CellTimeoutError:
        raise StubRunFailed(f"a cell ran longer than {TIMEOUT} s") from None
    except DeadKernelError:
        raise StubRunFailed("the kernel died") from None
    for cell in notebook.cells:
        if role(cell) not in ("answer", "public") and (error := _error(cell)):
            raise StubRunFailed(f"cell {cell.id} failed: {error}")
    return notebook


def _error(cell: Cell) -> str:
    errors = [output for output in cell.get("outputs", []) if output.output_type == "error"]
    return f"{errors[0].ename}: {errors[0].evalue}" if errors else ""


def _says_the_same_everywhere(output: Any, folder: str) -> bool:
    if output.output_type == "error":
        return False
    text = str(output)
    return not any(place in text for place in (folder, str(Path.home()) + os.sep, tempfile.gettempdir() + os.sep))
