"""Does anything of a solution or of a hidden check stand in what a student receives?

A secret is a line between solution markers, of a hidden cell or a rubric, or between hidden-test markers, that nobody
would write without having seen it. What it says decides: `if group.rank == 0:` stands in half of all programs and is
no secret by itself, but several such lines in a row are one. Secrets are looked for in every string of a notebook
(cells, outputs, metadata, attachments, decoded where they are base64), in any text file, and in archives inside
archives, with all white space taken out first.
"""

from __future__ import annotations

import base64
import binascii
import bisect
import io
import json
import keyword
import re
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from labkit.grading.source.exercise import PRIVATE, Notebook, label, role
from labkit.grading.source.markers import HIDDEN_TESTS, SOLUTION, inside, without

TRIVIAL = 16  # characters without white space: shorter lines, such as `return total`, say nothing by themselves
DISTINCT = 5  # words (see `_words`) that make a line distinctive; a stretch of lines that are not needs twice as many
ANSWER = re.compile(r"""\s*\w+\s*=\s*([-+.\d_e]+|(["']).*\2)\s*(#.*)?""")  # `why_one_more = "b"` is short and says all


@dataclass(frozen=True)
class Secret:
    """A line, or a stretch of lines, that a student must not see, as it stands in the source, and where.

    hidden: of a check, not of a solution.
    """

    exercise: str
    cell: str
    line: str
    hidden: bool = False

    @property
    def bare(self) -> str:
        return bare(self.line)


@dataclass(frozen=True)
class Leak:
    """A secret that was found, and where: a file, a cell, a place in it."""

    secret: Secret
    where: str

    def __str__(self) -> str:
        secret = self.secret
        return f"{self.where}: shows {secret.line.strip()!r} of {secret.cell} (exercise {secret.exercise!r})"


def bare(text: str) -> str:
    """`text` without any white space: a line that was wrapped, indented or escaped is still the same line."""
    return "".join(text.split())


def secrets_of(source: Notebook) -> list[Secret]:
    """The secret lines of a source notebook, in order.

    A line that the author also shows on purpose is none: in the setup cell, or in a part of a code cell that is
    released as it stands (what is given of an answer; for lines of hidden checks, also the public checks).
    """
    given, public = set(), set()
    for cell in source.cells:
        if role(cell) in ("answer", "setup") and cell.cell_type == "code":
            given |= _bare_lines(without(cell.source, SOLUTION))
        if role(cell) == "public":
            public |= _bare_lines(without(cell.source, HIDDEN_TESTS))
    found = []
    for cell in source.cells:
        told = (str(label(cell).get("exercise", "")), cell.id)
        solved = inside(cell.source, SOLUTION) if role(cell) == "answer" else []
        hidden = inside(cell.source, HIDDEN_TESTS) if role(cell) == "public" else []
        if role(cell) in PRIVATE:
            hidden = cell.source.split("\n")
        found += [Secret(*told, line) for line in _distinctive(solved, given)]
        found += [Secret(*told, line, True) for line in _distinctive(hidden, given | public)]
    return found


def _bare_lines(text: str) -> set[str]:
    return {bare(line) for line in text.split("\n")}


def _distinctive(lines: list[str], shown: set[str]) -> Iterator[str]:
    """The lines that say something by themselves, and the shortest stretches of the others that do so together.

    shown: what the author shows on purpose, without white space; it is in no stretch. Where everything together says
    little, as `return x.view_as(x)`, all of it is one stretch.
    """
    stretches: list[list[str]] = [[]]
    told = False
    for line in lines:
        if bare(line) in shown or SOLUTION.mentioned(line) or HIDDEN_TESTS.mentioned(line):
            stretches.append([])
        elif len(bare(line)) >= TRIVIAL and (len(_words(line)) >= DISTINCT or ANSWER.fullmatch(line)):
            stretches.append([])
            told = True
            yield line
        elif bare(line):
            stretches[-1].append(line)
    for stretch in stretches:
        for begin in range(len(stretch)):
            end = begin + 2
            while end < len(stretch) and len(_words("\n".join(stretch[begin:end]))) < 2 * DISTINCT:
                end += 1
            joined = "\n".join(stretch[begin:end])
            if end <= len(stretch) and len(_words(joined)) >= 2 * DISTINCT:
                told = True
                yield joined
    whole = max(("\n".join(stretch) for stretch in stretches), key=len)
    if not told and len(bare(whole)) >= TRIVIAL:
        yield whole


def _words(text: str) -> list[str]:
    """Names, cut at their underscores, numbers and operators: what is left without Python's keywords and brackets."""
    return [word for word in re.findall(r"[^\W_]+|[-+*/%@=<>!&|^~]+", text) if not keyword.iskeyword(word)]


def leaks(source: Notebook, received: Notebook) -> list[Leak]:
    """The secrets of `source` that stand anywhere in the notebook `received`: cells, outputs, metadata, attachments."""
    return list(_search(secrets_of(source), notebook_texts(received)))


def leaks_in_file(secrets: Iterable[Secret], name: str, data: bytes, shared: bool = False) -> list[Leak]:
    """The secrets in a file, by its content: a notebook, an archive, a text, anything with text in it.

    shared: a text of the book, which may have lines in common with a solution. There a solution leaks when all its
    lines are present; a line of a hidden check is one too many anywhere.
    """
    secrets = list(secrets)
    found = []
    for texts in _files(name, data):
        hits = list(_search(secrets, texts))
        present = {leak.secret for leak in hits}
        whole = {cell for cell in {s.cell for s in present if not s.hidden} if _solution_of(cell, secrets) <= present}
        found += [leak for leak in hits if not shared or leak.secret.hidden or leak.secret.cell in whole]
    return found


def _solution_of(cell: str, secrets: list[Secret]) -> set[Secret]:
    return {secret for secret in secrets if secret.cell == cell and not secret.hidden}


def _search(secrets: Iterable[Secret], texts: Iterable[tuple[str, str]]) -> Iterator[Leak]:
    lines = sorted(((secret.bare, secret) for secret in secrets), key=lambda each: len(each[0]))
    lengths = [len(line) for line, _ in lines]
    found: dict[str, list[Secret]] = {}  # most texts of a notebook are short, and there many times
    for where, text in texts:
        squeezed = bare(text)
        if squeezed not in found:
            fit = lines[: bisect.bisect_right(lengths, len(squeezed))]
            found[squeezed] = [secret for line, secret in fit if line in squeezed]
        for secret in found[squeezed]:
            yield Leak(secret, where)


def notebook_texts(notebook: Notebook, name: str = "") -> Iterator[tuple[str, str]]:
    """Every string of a notebook with its place, lists of lines joined, and what is base64 also decoded."""
    parts = {key: value for key, value in notebook.items() if key != "cells"}
    places = [(name or "the notebook", parts)]
    places += [(f"{name} cell {cell.get('id', '?')}".strip(), dict(cell)) for cell in notebook.get("cells", [])]
    for where, value in places:
        for text in _strings(value):
            yield where, text
            yield from ((f"{where}, decoded", decoded) for decoded in _decoded(text))


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from _strings(item)
    elif isinstance(value, list):
        if value and all(isinstance(item, str) for item in value):
            yield "".join(value)
        for item in value:
            yield from _strings(item)


def _decoded(text: str) -> Iterator[str]:
    """The text inside base64 and inside JSON in a string, where it is one."""
    squeezed = bare(text)
    if len(squeezed) >= TRIVIAL and len(squeezed) % 4 == 0:
        try:
            yield base64.b64decode(squeezed, validate=True).decode("utf-8", "ignore")
        except (binascii.Error, ValueError):
            pass
    if text.lstrip()[:1] in ("{", "["):
        try:
            yield from _strings(json.loads(text))
        except ValueError:
            pass


def _files(name: str, data: bytes) -> Iterator[list[tuple[str, str]]]:
    """The texts of a file: of a notebook its strings; of an archive (as a wheel) those of each of its files in turn."""
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for inner in archive.namelist():
                yield from _files(f"{name}/{inner}", archive.read(inner))
        return
    text = data.decode("utf-8", "ignore")
    value = None
    if name.endswith((".ipynb", ".json")):
        try:
            value = json.loads(text)
        except ValueError:
            pass
    yield list(notebook_texts(value, name)) if isinstance(value, dict) else [(name, text)]
