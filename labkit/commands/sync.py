"""`labkit sync`: bring the reader's copies to a new edition without losing a word of the reader's."""

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat

from labkit.commands import UsageError
from labkit.commands.chapters import find_chapter, notebooks_dir
from labkit.commands.copies import (
    HIDDEN,
    Copies,
    File,
    edition_files,
    is_newer,
    is_trusted,
    make_copy,
    pristine,
    trust,
    work_folder,
    written,
)
from labkit.commands.merge import Merged, Notebook, merge
from labkit.files import write_atomically

OLDEST = (4, 5)  # the first notebook format whose cells have ids


class LeftAlone(Exception):
    """This copy cannot be merged. The message says why, and what to do."""


def sync(
    wanted: Sequence[str] = (), folder: Path | None = None, dry_run: bool = False, notebooks: Path | None = None
) -> int:
    """Merge the edition into the reader's copies: of the chapters `wanted`, of all when none is named.

    dry_run: only say what would happen. Returns 0, or 1 when a copy was left alone because it cannot be read.
    Raises UsageError for an unknown chapter, a folder that has no copies or cannot be written.
    """
    directory = notebooks or notebooks_dir()
    chapters = [find_chapter(directory, name) for name in wanted]
    copies = work_folder(folder, os.environ, directory)
    if not (copies.folder / HIDDEN).is_dir() and not (copies.folder / "notebooks").is_dir():
        raise UsageError(f"{copies.folder} holds no copies yet: make them with `labkit lab`, or name a --folder")
    files = edition_files(directory)
    if chapters:
        files = [file for file in files if any(file.of(chapter) for chapter in chapters)]
    backups = copies.folder / HIDDEN / "backups" / time.strftime("%Y%m%d-%H%M%S")
    left_alone = touched = 0
    for file in files:
        try:
            lines = _sync_file(copies, file, backups, dry_run)
        except LeftAlone as why:
            left_alone += 1
            print(f"{file.name}: left alone: {why}", file=sys.stderr, flush=True)
            continue
        except OSError as error:
            place = error.filename or copies.folder
            raise UsageError(f"{place}: {error.strerror}; nothing of yours is lost") from error
        touched += bool(lines)
        for line in lines:
            print(line, flush=True)
    if not touched and not left_alone:
        print(f"the copies in {copies.folder} are up to date")
    if dry_run and touched:
        print("nothing was written: this was a dry run")
    elif backups.is_dir():
        print(f"your copies as they were: {backups}\nIf one is open in JupyterLab, choose File > Reload from Disk.")
    return 1 if left_alone else 0


def _sync_file(copies: Copies, file: File, backups: Path, dry_run: bool) -> list[str]:
    """Sync one file and return what to say about it, [] when it was up to date."""
    path = copies.copy(file)
    if not path.exists():
        if not dry_run:
            make_copy(copies, file)
        return [f"{file.name}: new"]
    if not file.is_notebook:
        return _sync_other(copies, file, dry_run)
    mine = read_notebook(path)
    if not is_newer(copies, file):
        return []
    new, base_path = pristine(file.source), copies.base(file)
    base = read_notebook(base_path) if base_path.exists() else None
    merged = merge(base, mine, new)
    changed = merged.notebook != mine
    if not dry_run:
        if changed:
            trusted = is_trusted(mine)
            kept = backups / file.name
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, kept)
            write_atomically(path, written(merged.notebook))
            if trusted:
                trust(merged.notebook)
        base_path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(base_path, written(new))
    return [summary(file.name, merged, lost_base=base is None)] + details(merged, base, mine, new)


def _sync_other(copies: Copies, file: File, dry_run: bool) -> list[str]:
    """A picture: the edition's replaces the old edition's; one that the reader changed stays."""
    path, base = copies.copy(file), copies.base(file)
    if not is_newer(copies, file):
        return []
    untouched = base.exists() and path.read_bytes() == base.read_bytes()
    if not dry_run:
        base.parent.mkdir(parents=True, exist_ok=True)
        if untouched:
            write = path.with_name(f".{path.name}.new")
            shutil.copyfile(file.source, write)
            os.replace(write, path)
        shutil.copyfile(file.source, base)
    return [f"{file.name}: {'replaced' if untouched else 'yours stays, it differs from the edition'}"]


def read_notebook(path: Path) -> Notebook:
    """A notebook whose cells have ids. Raises LeftAlone for anything else."""
    try:
        text = path.read_text(encoding="utf-8")
        found: Any = json.loads(text)
        version = (int(found["nbformat"]), int(found["nbformat_minor"]))
        if version < OLDEST or version[0] > 4:
            raise LeftAlone(
                f"it is in notebook format {version[0]}.{version[1]}, and cells are matched by the ids that came with "
                "4.5: open and save it in JupyterLab, or move it away and run this again for a fresh copy"
            )
        notebook = nbformat.from_dict(found)
        nbformat.validate(notebook)
        joined: Notebook = nbformat.reads(text, as_version=4)
        return joined
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise LeftAlone("it is not valid JSON, so perhaps half written: restore it, or move it away") from None
    except (nbformat.ValidationError, AttributeError, KeyError, TypeError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise LeftAlone(f"it is not a valid notebook ({first}): open and save it, or move it away") from None


def summary(name: str, merged: Merged, lost_base: bool) -> str:
    """One line: how many cells of what kind."""
    counts = {
        "replaced": merged.replaced, "added": merged.added, "removed": merged.removed,
        "changed by you and by the edition": merged.conflicts,
    }  # fmt: skip
    told = [f"{len(names)} {what}" for what, names in counts.items() if names]
    note = " (the edition it was made from is lost, so every difference counts as yours)" if lost_base else ""
    return f"{name}: {'cells: ' + ', '.join(told) if told else 'nothing to change'}{note}"


def details(merged: Merged, base: Notebook | None, mine: Notebook, new: Notebook) -> list[str]:
    """The cells that a reader should look at, a line each."""
    cells = {cell["id"]: cell for notebook in (new, mine) for cell in notebook["cells"]}
    kinds = {
        "you and the edition changed {}: yours stays, the edition's is below it": merged.conflicts,
        "the edition dropped {}: it stays, because you changed it": merged.outlived,
        "the edition changed {}, which you had deleted: it stays deleted": merged.stay_deleted,
    }
    return [f"    {text.format(_name(cells[name]))}" for text, names in kinds.items() for name in names]


def _name(cell: dict[str, Any]) -> str:
    """A cell as a reader finds it: how it begins."""
    first = next((line.strip() for line in cell["source"].splitlines() if line.strip()), "")
    return f"the cell `{first[:60]}`" if first else f"the empty cell {cell['id']}"
