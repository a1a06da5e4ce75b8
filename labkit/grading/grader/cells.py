"""The sources that run in the sandbox for one exercise: what the setup cell gives, then the student's answer cells.

An exercise runs without the others' answers, so that a mistake in one stays there. Where an answer uses a name that
the answer of another exercise defines, as it may in a notebook, that cell runs before it, and may fail quietly.
"""

from __future__ import annotations

import builtins
import symtable
from collections.abc import Iterable, Mapping, Sequence

from labkit.grading.grader.answers import Answer
from labkit.grading.grader.memory import PROBE
from labkit.grading.source.code import defined, parse


def sources_for(exercise: str, answers: Mapping[str, Sequence[Answer]], preamble: str) -> list[str]:
    """Sources in the order in which they run. preamble: of `labkit.grading.checks.pristine`."""
    own = [python(a.source) for a in answers[exercise] if a.source is not None and a.type == "code"]
    others = [
        python(a.source)
        for id, cells in answers.items()
        for a in cells
        if id != exercise and a.source is not None and a.type == "code" and not a.stub
    ]
    return [preamble, *map(guarded, needed(own, others)), *own, PROBE]


def needed(own: Iterable[str], others: Sequence[str]) -> list[str]:
    """Those of `others` that define a name which `own`, or one of them, uses and does not define. In their order."""
    makes = [_defined(source) for source in others]
    chosen: set[int] = set()
    have = {name for source in own for name in _defined(source)} | set(dir(builtins))
    wanted = {name for source in own for name in _used(source)} - have
    while wanted:
        new = {i for i, names in enumerate(makes) if i not in chosen and names & wanted}
        if not new:
            break
        chosen |= new
        have |= {name for i in new for name in makes[i]}
        wanted = {name for i in chosen for name in _used(others[i])} - have
    return [others[i] for i in sorted(chosen)]


def guarded(source: str) -> str:
    """A cell that defines what it can, and whose failure is not the failure of the cells after it."""
    cell = f"exec(compile({source!r}, '<answer of another exercise>', 'exec'))"
    return f"try:\n    {cell}\nexcept BaseException:\n    pass\n"


def python(source: str) -> str:
    """A cell without lines that only IPython understands (`%time`, `!ls`, `?x`); others are as they were."""
    if parse_safely(source):
        return source
    lines = ["" if line.startswith(("%", "!", "?")) else line for line in source.split("\n")]
    return "\n".join(lines) if parse_safely("\n".join(lines)) else source


def parse_safely(source: str) -> bool:
    try:
        return parse(source) is not None
    except (RecursionError, MemoryError):
        return False


def _defined(source: str) -> set[str]:
    return set(defined(source)) | _imported(source) if parse_safely(source) else set()


def _imported(source: str) -> set[str]:
    table = symtable.symtable(source, "<answer>", "exec")
    return {symbol.get_name() for symbol in table.get_symbols() if symbol.is_imported()}


def _used(source: str) -> set[str]:
    """The global names that a cell refers to, in any function of it."""
    if not parse_safely(source):
        return set()
    found: set[str] = set()
    tables = [symtable.symtable(source, "<answer>", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        top = table.get_type() == "module"
        found |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global())}
    return found
