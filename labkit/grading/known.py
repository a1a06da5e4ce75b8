"""What a public check compares a program with, where to compute it would be to give the program away.

    answers = Answers("07_large_batches")              # in the checks of a chapter
    best = answers.shortest_step(ms, samples)

The functions are in `solutions/NN_name/answers.py`, which no student receives and no graded rank can read. Where that
file is (a clone with its solutions, the grader) they are called. Elsewhere the result is looked up in `known.bin` of
the chapter's room, in which `labkit release` records the calls that public checks make with the seeds `SEEDS`; so
there the inputs of these exercises come from one of the seeds. Arguments and results are plain data.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor

from labkit.grading.sandbox import plain_data

SEEDS = (11, 23, 37)  # of the public checks whose answers are recorded
SOLUTIONS = "LABKIT_SOLUTIONS"  # a folder with NN_name/answers.py in place of the repository's; "" for none
ROOMS = Path(__file__).parents[1] / "chapters"

_recording: dict[str, bytes] | None = None  # while `recorded` listens


class NotKnown(LookupError):
    """A check asked for something that is not recorded: the record is older than the check."""


class Answers:
    """The functions of `answers.py` of one chapter, called or looked up. Raises NotKnown, AttributeError."""

    def __init__(self, chapter: str):
        self._chapter = chapter

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def answer(*args: Any, **kwargs: Any) -> Any:
            module = _module(self._chapter, _solutions())
            key = key_of(name, args, kwargs)
            if module is None:
                results = _record(self._chapter)["results"]
                if key not in results:
                    raise NotKnown(f"{self._chapter} has no record of this {name}: say labkit release")
                return plain_data.decode(results[key])
            result = getattr(module, name)(*args, **kwargs)
            if _recording is not None:
                _recording[key] = plain_data.encode(result)
            return result

        return answer


def seeds(chapter: str, exercise: str) -> tuple[int, ...]:
    """The seeds that public checks of an exercise may use; none if any will do."""
    if _module(chapter, _solutions()) is not None:
        return ()
    record = _record(chapter)
    return tuple(record["seeds"]) if exercise in record["exercises"] else ()


def key_of(name: str, args: Any, kwargs: dict[str, Any]) -> str:
    """A call by its name and arguments; floats count to six digits, as the last ones differ between machines."""
    return hashlib.sha256(repr((name, _plain(args), _plain(kwargs))).encode()).hexdigest()[:20]


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return [str(value.dtype), list(value.shape), _plain(value.flatten().tolist())]
    if isinstance(value, dict):
        return [[key, _plain(value[key])] for key in sorted(value)]
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return f"{value:.6g}"
    if value is None or isinstance(value, (bool, int, str)):
        return value
    raise TypeError(f"an answer is asked for with plain data, not with a {type(value).__name__}")


@contextmanager
def recorded() -> Iterator[dict[str, bytes]]:
    """The answers that are asked for inside, by their keys, encoded."""
    global _recording
    _recording = {}
    try:
        yield _recording
    finally:
        _recording = None


def record_path(chapter: str) -> Path:
    return ROOMS / f"c{chapter}" / "known.bin"


def record_of(exercises: list[str], results: dict[str, bytes], digest: str) -> bytes:
    """The bytes of `known.bin`. exercises: those whose answers are in it. digest: of what it was made from."""
    record = {"seeds": list(SEEDS), "exercises": exercises, "results": results, "digest": digest}
    return zlib.compress(plain_data.encode(record), 9)


def digest_of(chapter: str, source: str) -> str:
    """Of the answers and the checks of a chapter, and of its exercises' `source`; "" where it has no answers.

    Another digest means that the record is old.
    """
    module = _module(chapter, _solutions())
    if module is None:
        return ""
    text = source + Path(module.__file__ or "").read_text()
    text += "".join(made_of(chapter, text).values())
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def made_of(chapter: str, text: str) -> dict[str, str]:
    """The files of the chapter's room that `text` imports, and those that they import: name -> source, sorted."""
    room = ROOMS / f"c{chapter}"
    found: dict[str, str] = {}
    todo = [text]
    while todo:
        imported = re.findall(rf"from labkit\.chapters\.{room.name}(?:\.| import )([\w, ]+)", todo.pop())
        for name in re.findall(r"\w+", " ".join(imported)):
            path = room / f"{name}.py"
            if name not in found and path.is_file():
                found[name] = path.read_text()
                todo.append(found[name])
    return dict(sorted(found.items()))


def recorded_digest(chapter: str) -> str:
    """The digest in the record of a chapter, "" where it has none."""
    return str(_record(chapter)["digest"])


@cache
def _record(chapter: str) -> dict[str, Any]:
    path = record_path(chapter)
    if not path.is_file():
        return {"seeds": [], "exercises": [], "results": {}, "digest": ""}
    record: dict[str, Any] = plain_data.decode(zlib.decompress(path.read_bytes()))
    return record


def _solutions() -> Path | None:
    told = os.environ.get(SOLUTIONS)
    return Path(told) if told else None if told == "" else ROOMS.parents[1] / "solutions"


@cache
def _module(chapter: str, folder: Path | None) -> ModuleType | None:
    path = folder / chapter / "answers.py" if folder else None
    if path is None or not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location(f"labkit_answers_{chapter}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
