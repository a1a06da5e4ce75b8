"""`make outputs`: execute the repository's chapters in place, so that they are committed with their outputs.

For maintainers: `python -m labkit.commands.outputs 3`, or without a number for all chapters. With `--text` it prints
the chapter as plain text, for somebody to mark what has to be read twice.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat

from labkit.commands import UsageError
from labkit.commands.chapters import Chapter, all_chapters, find_chapter, notebooks_dir
from labkit.commands.environment import using_our_kernel
from labkit.commands.kept import short
from labkit.files import write_atomically

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
WIDGET = "application/vnd.jupyter.widget-view+json"
NOISE = ("execution", "papermill", "trusted", "collapsed", "scrolled")  # of a cell: times and states of a window


class CellFailed(Exception):
    """A chapter cannot be committed as it is. The message names the cell and what it raised."""


def main(argv: Sequence[str] | None = None, notebooks: Path | None = None) -> int:
    """Execute the named chapters, all when none is named. Returns 0, 1 if any failed, 2 if wrongly asked."""
    parser = argparse.ArgumentParser(prog="make outputs", description="Execute chapters in place.")
    parser.add_argument("chapters", nargs="*", metavar="CHAPTER", help="number or name; all when none is given")
    parser.add_argument("--timeout", type=int, default=300, metavar="SECONDS", help="limit for each cell")
    parser.add_argument(
        "--text", action="store_true", help="execute nothing; print what a reader sees, for proof-reading"
    )
    arguments = parser.parse_args(argv)
    try:
        directory = notebooks or notebooks_dir()
        chapters = [find_chapter(directory, wanted) for wanted in arguments.chapters] or all_chapters(directory)
    except UsageError as error:
        print(f"outputs: {error}", file=sys.stderr)
        return 2
    if arguments.text:
        print("\n".join(in_words(chapter.path.read_text(encoding="utf-8")) for chapter in chapters))
        return 0
    failed = False
    for chapter in chapters:
        failed |= not _refresh(chapter, arguments.timeout)
    return int(failed)


def _refresh(chapter: Chapter, timeout: int) -> bool:
    """Execute one chapter and replace its file; say how it went. The file is as before when it failed."""
    began = time.monotonic()
    before = chapter.path.read_bytes()
    try:
        after = executed(before.decode(), chapter.path, timeout)
        if chapter.path.read_bytes() != before:
            raise CellFailed("the file was changed while it ran: run this again")
    except CellFailed as error:
        print(f"{chapter.path.name}: left as it was: {error}", file=sys.stderr, flush=True)
        return False
    if after.encode() != before:
        write_atomically(chapter.path, after)
    for place in _machine_paths(after, chapter.path):
        print(f"{chapter.path.name}: an output shows a path of this machine: {place}", file=sys.stderr)
    print(f"{chapter.path.name}: executed in {time.monotonic() - began:.1f} s", flush=True)
    return True


def executed(text: str, path: Path, timeout: int = 300) -> str:
    """The notebook `text`, formatted by ruff, executed with its default parameters, without noise.

    path: where it lies; cells run in that folder. Cell ids stay. Raises CellFailed for text that is no notebook
    or cannot be formatted, a cell that raises without the tag `raises-exception`, takes longer than `timeout`
    seconds, or loses its kernel.
    """
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = _read(_formatted(text, path))
    metadata = {key: value for key, value in notebook.metadata.items() if key not in ("widgets", "papermill")}
    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
    )
    try:
        with using_our_kernel():
            os.environ["LABKIT_RECORD"] = "1"  # workbenches keep runs for pages on which nothing runs
            client.execute()
    except CellExecutionError as error:
        raise CellFailed(short(f"{error.ename}: {error.evalue} in\n{_failing_source(notebook)}")) from None
    except CellTimeoutError:
        raise CellFailed(f"a cell ran longer than {timeout} s") from None
    except DeadKernelError:
        raise CellFailed("the kernel died") from None
    notebook.metadata = nbformat.from_dict(metadata | {"kernelspec": KERNEL, "language_info": {"name": "python"}})
    for cell in notebook.cells:
        _clean(cell)
    return nbformat.writes(notebook) + "\n"


def in_words(text: str) -> str:
    """The notebook `text` as a reader meets it: Markdown, code that is not folded, and of every output its words."""
    parts: list[str] = []
    for number, cell in enumerate(_read(text).cells):
        parts.append(f"===== cell {number} ({cell.cell_type})")
        if not cell.metadata.get("jupyter", {}).get("source_hidden"):
            parts.append(cell.source)
        shown = [o.get("data", {}).get("text/plain") or o.get("text", "") for o in cell.get("outputs", [])]
        parts += [f"-- shown below it:\n{words}" for words in shown if words and not words.startswith("<")]
    return "\n\n".join(parts)


def _read(text: str) -> Any:
    try:
        notebook = nbformat.reads(text, as_version=4)
        nbformat.validate(notebook)
    except (nbformat.reader.NotJSONError, nbformat.ValidationError, KeyError, AttributeError) as error:
        raise CellFailed(f"it is not a valid notebook: {short(str(error))}") from None
    return notebook


def _formatted(text: str, path: Path) -> str:
    """`text` as `ruff format` writes it, with the rules that hold where the chapter lies."""
    ruff = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", str(path), "-"]
    done = subprocess.run(ruff, input=text, capture_output=True, text=True)
    if done.returncode != 0:
        raise CellFailed(f"ruff cannot format it: {short(done.stderr)}")
    return done.stdout


def _clean(cell: Any) -> None:
    """Take out what differs from run to run and says nothing to a reader."""
    for key in NOISE:
        cell.metadata.pop(key, None)
    kept = []
    for output in cell.get("outputs", []):
        if "data" in output:
            # A view without its model shows as an error; the words and the picture beside it remain.
            output.data.pop(WIDGET, None)
            if not output.data:
                continue
        output.get("metadata", {}).pop("execution", None)
        kept.append(output)
    if "outputs" in cell:
        cell.outputs = kept


def _failing_source(notebook: Any) -> str:
    """The cell whose last output is an error that was not meant."""
    for cell in notebook.cells:
        meant = "raises-exception" in cell.metadata.get("tags", [])
        if not meant and any(output.output_type == "error" for output in cell.get("outputs", [])):
            return f"cell {cell.get('id', '?')}: {cell.source}"
    return "a cell that raised"


def _machine_paths(text: str, path: Path) -> list[str]:
    """Folders of this machine whose names stand in the notebook; nobody else has them."""
    places = {str(path.parent.parent.resolve()), str(Path.home()), tempfile.gettempdir() + "/ipykernel"}
    return sorted(place for place in places if len(place) > 1 and f"{place}/" in text)


if __name__ == "__main__":
    sys.exit(main())
