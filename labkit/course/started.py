"""Which cells of a notebook show what ranks did, told from its text: nothing is executed.

evidence(notebook)   ids of the code cells that start ranks, or use what was got from ranks before
"""

from __future__ import annotations

import ast
import json
from functools import cache
from pathlib import Path

# What starts ranks, and where it is to be found (a test asks that it is).
DOORS = {
    "launch": "labkit", "start": "labkit", "world": "labkit", "start_ft_hsdp": "labkit.resilience",
    "run_ft_hsdp": "labkit.resilience", "run_ntp": "labkit.resilience.ntp", "run_elastic": "labkit.resilience.elastic",
    "run_trials": "labkit.resilience.fleet_trial", "paced_step": "labkit.resilience.ntp.pacing",
    "emulate": "labkit.resilience.quorum.emulate", "strike": "labkit.book.cases.struck",
    "investigate": "labkit.book.cases.hung", "workbench": "labkit.book",
}  # fmt: skip
MODULES = {"labkit", "book", "hung", "struck", "fleet_trial"}  # by which chapters name them
PANELS = "panels"  # of a chapter's room: each function there is a workbench of the chapter
CHANGES = {"append", "extend", "update", "setdefault", "insert", "add"}  # methods by which a statement fills a name


@cache
def evidence(notebook: Path) -> frozenset[str]:
    """The ids of cells that show what ranks did: they start some, or use a name that came from such a statement.

    An exercise counts, by the id of its statement, if one of its checks runs the student's function on ranks.
    """
    found, known, statements = set[str](), set[str](), dict[str, str]()
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source, about = "".join(cell["source"]), cell["metadata"].get("labkit", {})
        if about.get("role") == "statement":
            statements[about["exercise"]] = cell["id"]
        if cell["cell_type"] != "code":
            continue
        if "student.run(" in source and about.get("exercise") in statements:
            found.add(statements[about["exercise"]])
        for statement in ast.parse(source).body:
            uses, sets, fills = _names(statement)
            if uses & (known | set(DOORS)):
                found.add(cell["id"])
                known |= sets | fills
            else:
                known -= sets
    return frozenset(found)


def _names(statement: ast.stmt) -> tuple[set[str], set[str], set[str]]:
    """(names that it uses, and labkit's attributes; names that it assigns; names whose contents it changes)."""
    nodes = list(ast.walk(statement))
    uses = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    sets = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    fills = {_root(n.value) for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store)}
    fills |= {_root(n.value) for n in nodes if isinstance(n, ast.Attribute) and n.attr in CHANGES}
    uses |= {n.attr for n in nodes if isinstance(n, ast.Attribute) and _root(n.value) in MODULES}
    if any(isinstance(n, ast.Call) and _root(n.func) == PANELS for n in nodes):
        uses.add("workbench")
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        inside = {a.arg for n in nodes if isinstance(n, ast.arguments) for a in (*n.args, *n.kwonlyargs)}
        return uses - inside - sets, {statement.name}, set()
    return uses - sets, sets, fills - {""}  # what it assigns itself, in loops too, is not what was there before


def _root(node: ast.expr) -> str:
    """The name in which `a.b[c].d` begins, or ""."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
