"""`labkit release`: the students' notebooks in exercises/, generated from the instructors' in solutions/."""

import copy
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nbformat

from labkit.commands import UsageError
from labkit.commands.chapters import Chapter, all_chapters, find_chapter, notebooks_dir
from labkit.commands.environment import answers_in
from labkit.commands.stub_outputs import StubRunFailed, keeping, stub_outputs, with_stub_outputs
from labkit.files import write_atomically
from labkit.grading.source import Source, SourceError, leaks, read_source, release as released
from labkit.grading.source.exercise import Notebook, role


def release(
    wanted: Sequence[str] = (), check: bool = False, bundle: Path | None = None, wheels: Path | None = None,
    run: bool = True, notebooks: Path | None = None,
) -> int:  # fmt: skip
    """Write exercises/ from solutions/, for the chapters `wanted`, all when none is named.

    check: write nothing; say what differs. bundle: also write the archive for a class. wheels: a folder of wheels that
    goes into it. run: run the stubs, for the outputs of the public checks. Returns 0, or 1 when a source is refused, a
    check fails, or something would leak. Raises UsageError.
    """
    if wheels is not None and bundle is None:
        raise UsageError("--wheels belongs to --bundle: add --bundle FILE.zip")
    if check and bundle is not None:
        raise UsageError("--check writes nothing: leave it out, or leave out --bundle")
    directory = notebooks or notebooks_dir()
    sources = directory.parent / "solutions"
    if not sources.is_dir():
        raise UsageError(f"there is no {sources}: only a clone of the repository has the sources of exercises")
    chapters = [find_chapter(sources, name) for name in wanted] or all_chapters(sources)
    exercises = directory.parent / "exercises"
    with answers_in(sources):
        results = [_one(chapter, directory, exercises, check, run) for chapter in chapters]
    well = all(results) and (bool(wanted) or _no_strays(exercises, chapters))
    if well and bundle is not None:
        from labkit.commands.bundle import write_bundle

        well = write_bundle(bundle, directory, wheels)
    return 0 if well else 1


def _one(chapter: Chapter, notebooks: Path, exercises: Path, check: bool, run: bool) -> bool:
    """Release or check one chapter; say how it went. A file that is right already is not written."""
    path = exercises / chapter.path.name
    try:
        source = read(chapter, notebooks)
        made = made_from(source)
        before = _read(path)
        if not _recorded(source, check):
            return False
        if run and check:
            ran = [stub_outputs(made)]
            if _compare(path, keeping(made, ran), last=False):
                return True
            return _compare(path, keeping(made, [*ran, stub_outputs(made)]))  # which outputs differ from run to run?
        if run:
            made = with_stub_outputs(made)
        elif before is not None:
            made = _with_outputs_of(made, before)
        _refuse_leaks(source, made)
        if check:
            return _compare(path, made)
        exercises.mkdir(exist_ok=True)
        text = nbformat.writes(made) + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_atomically(path, text)
    except SourceError as error:
        print(error, file=sys.stderr)
        return False
    except (StubRunFailed, Leaked) as error:
        print(f"{chapter.path.name}: not released: {error}", file=sys.stderr)
        return False
    points = f"{source.points:g} points"
    print(f"exercises/{path.name}: {len(source.exercises)} exercises, {points}", flush=True)
    return True


def _recorded(source: Source, check: bool) -> bool:
    """Bring the record of the chapter's answers up to date, or say that it is not."""
    from labkit.grading import known
    from labkit.grading.checks.recording import NotRecorded, digest, record

    now = digest(source)
    if now in ("", known.recorded_digest(source.name)):
        return True
    path = known.record_path(source.name)
    if check:
        print(
            f"{path.parent.name}/{path.name}: its answers or checks have changed: run labkit release", file=sys.stderr
        )
        return False
    try:
        path.write_bytes(record(source))
    except NotRecorded as error:
        print(f"{path.parent.name}/{path.name}: not written: {error}", file=sys.stderr)
        return False
    return True


class Leaked(Exception):
    """A student would see something of a solution or a hidden check. The message says what, and where."""


def read(chapter: Chapter, notebooks: Path) -> Source:
    """The source of a chapter's exercises, its sections compared with the chapter where that is written."""
    written = notebooks / chapter.path.name
    return read_source(chapter.path, written if written.exists() else None)


def made_from(source: Source) -> Notebook:
    """What students receive, without outputs. Raises Leaked."""
    made = released(source.notebook)
    _refuse_leaks(source, made)
    return made


def _refuse_leaks(source: Source, made: Notebook) -> None:
    if found := leaks(source.notebook, made):
        raise Leaked("\n".join(["a student would see what is secret; change one of the two places:", *map(str, found)]))


def _compare(path: Path, made: Notebook, last: bool = True) -> bool:
    """Whether `path` holds `made`, to the byte; says what differs, unless this is not the last try."""
    there = _read(path)
    if there is not None and nbformat.writes(made) + "\n" == path.read_text(encoding="utf-8"):
        print(f"exercises/{path.name}: is what its source generates", flush=True)
        return True
    if not last:
        return False
    if there is None:
        print(f"exercises/{path.name}: is missing, or no notebook: run labkit release", file=sys.stderr)
        return False
    places = ", ".join(_differences(there, made)) or "the form of the file"
    print(f"exercises/{path.name}: is not what its source generates ({places}): run labkit release", file=sys.stderr)
    return False


def _with_outputs_of(made: Notebook, there: Notebook) -> Notebook:
    """`made` with the outputs that `there` keeps for its public checks."""
    result = copy.deepcopy(made)
    kept = {cell.id: cell for cell in there.cells if cell.get("outputs")}
    for cell in result.cells:
        if role(cell) == "public" and cell.id in kept:
            cell.outputs, cell.execution_count = copy.deepcopy(kept[cell.id].outputs), kept[cell.id].execution_count
    return result


def _differences(a: Notebook, b: Notebook) -> list[str]:
    """Where two notebooks differ, in words: cells by their ids."""
    ours, theirs = ({cell.id: cell for cell in notebook.cells} for notebook in (a, b))
    places = [f"cell {id} is not in the source" for id in ours if id not in theirs]
    places += [f"cell {id} is missing" for id in theirs if id not in ours]
    for id in [id for id in ours if id in theirs]:
        one, other = ours[id], theirs[id]
        keys = sorted(key for key in {*one, *other} if _plain(one.get(key)) != _plain(other.get(key)))
        places += [f"cell {id}: {', '.join(keys)}"] if keys else []
    if not places and list(ours) != list(theirs):
        places = ["the order of the cells"]
    return places + (["the notebook's metadata"] if _plain(a.metadata) != _plain(b.metadata) else [])


def _plain(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _read(path: Path) -> Notebook | None:
    try:
        return nbformat.read(path, as_version=4) if path.exists() else None
    except (nbformat.reader.NotJSONError, UnicodeDecodeError, AttributeError, KeyError, TypeError):
        return None


def _no_strays(exercises: Path, chapters: list[Chapter]) -> bool:
    """Whether every notebook in exercises/ has a source; says which has none."""
    known = {chapter.path.name for chapter in chapters}
    strays = sorted(path.name for path in exercises.glob("*.ipynb") if path.name not in known)
    for name in strays:
        print(f"exercises/{name}: has no source in solutions/: delete it, or restore its source", file=sys.stderr)
    return not strays
