"""One line taken apart: what the source says, what goes in, and then, step by step, what comes out."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from labkit import cost
from labkit.chapters.cA_errata.pictures import found
from labkit.cost import units
from labkit.course.errata import Erratum
from labkit.course.wording import Words, plain


@dataclass(frozen=True)
class Step:
    """An expression with its numbers put in, what it comes to, and what it is, in the words of its function."""

    written: str
    comes_to: str
    what: str = ""

    def __str__(self) -> str:
        return f"{self.written} = {self.comes_to}" + f"   # {self.what}" * bool(self.what)


def asked(entry: Erratum) -> str:
    """What a reader needs to compute the number."""
    given = [f"{name} = {value}" for name, value in inputs(entry)]
    unit = f", in {entry.unit}" if entry.unit else ""
    lines = [f"{entry.source}, {entry.place}. {entry.what}", f"It says: {entry.stated}."]
    lines += [f"What goes in: {'; '.join(given)}."] if given else []
    return "\n".join([*lines, f"What do you get{unit}?"])


def inputs(entry: Erratum) -> list[tuple[str, str]]:
    """The arguments of the functions behind a line, by name, as they are written there."""
    told: dict[str, list[str]] = {k: [v] for k, v in entry.values.items() if "cost." not in v}
    for expression in [*entry.values.values(), entry.found]:
        for call in _calls(ast.parse(expression, mode="eval").body):
            try:
                bound = inspect.signature(eval(ast.unparse(call.func), {"cost": cost})).bind(
                    *(_typed(a, expression) for a in call.args),
                    **{str(k.arg): _typed(k.value, expression) for k in call.keywords},
                )
            except (TypeError, ValueError, AttributeError, NameError):
                continue
            for name, value in bound.arguments.items():
                if isinstance(value, str) and "cost." not in value and not any(v in value for v in entry.values):
                    told.setdefault(name.replace("_", " "), []).append(value)
    return [(name, " and ".join(dict.fromkeys(values))) for name, values in told.items()]


def steps(entry: Erratum) -> list[Step]:
    """From the inputs to our number: first each function with its numbers put in, then what is done with them."""
    words, told = Words({}, entry.id), list[Step]()
    for name, expression in [*entry.values.items(), ("", entry.found)]:
        tree = ast.parse(expression, mode="eval").body
        for call in _calls(tree):
            value = _value(words, ast.unparse(call))
            if isinstance(value, int | float) and call is not tree:
                told.append(Step(_with_numbers(call, words), plain(value), _what(call)))
        value = words.value(expression)
        if name:
            words = words.using({name: expression})
            told.append(Step(f"{name} = {expression}", _plain(value), _what(tree)))
        else:
            told.append(Step(_with_results(tree, words), found(entry), _what(tree)))
    return told


def pasted(entry: Erratum) -> str:
    """The same as a cell that needs no other."""
    code = "\n".join([*(f"{name} = {value}" for name, value in entry.values.items()), entry.found])
    names = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    of_units, of_math = sorted(names & set(vars(units))), sorted(names & {"log10", "log2", "sqrt", "exp", "ceil"})
    head = [f"from math import {', '.join(of_math)}"] if of_math else []
    head += ["from labkit import cost"] if "cost" in names else []
    head += [f"from labkit.cost.units import {', '.join(of_units)}"] if of_units else []
    return "\n".join([*head, code])


def judged(entry: Erratum, typed: str) -> str:
    """One sentence about a reader's number."""
    number = typed.replace(",", "").replace(entry.unit or " ", "").strip()
    if not number:
        return "You gave no number."
    try:
        mine = float(number)
    except ValueError:
        return f"{typed!r} is no number: type one such as 12.5."
    ours = entry.claim().found
    if abs(mine - ours) <= 0.01 * abs(ours):
        return "Your number is ours."
    ends = [float(end) for end in re.findall(r"\d+(?:\.\d+)?", entry.says)]
    if mine in ends:
        return f"You have what the source says. We get {found(entry)}."
    return f"You have {mine:g}, and we get {found(entry)}. The steps below show where the two part."


def _typed(part: ast.expr, expression: str) -> str:
    """A part of an expression as it is written there: 110e6, and not 110000000.0."""
    return ast.get_source_segment(expression, part) or ast.unparse(part)


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    """The outermost calls of functions of `cost`."""
    if isinstance(tree, ast.Call) and ast.unparse(tree.func).startswith("cost."):
        yield tree
    else:
        for child in ast.iter_child_nodes(tree):
            yield from _calls(child)


def _value(words: Words, expression: str) -> Any:
    try:
        return words.value(expression)
    except Exception:  # it stands in a loop, and needs the loop's variable
        return None


def _with_numbers(call: ast.Call, words: Words) -> str:
    def one(part: ast.expr) -> str:
        value = _value(words, ast.unparse(part))
        return plain(value) if isinstance(value, int | float) and not isinstance(value, bool) else ast.unparse(part)

    given = [one(a) for a in call.args] + [f"{k.arg} = {one(k.value)}" for k in call.keywords]
    return f"{ast.unparse(call.func).rpartition('.')[2]}({'; '.join(given)})"


def _with_results(tree: ast.expr, words: Words) -> str:
    """The expression with what its functions and names come to in their place."""
    if isinstance(tree, ast.Call) and next(_calls(tree), None) is tree:
        return _with_numbers(tree, words)

    class Put(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            value = _value(words, ast.unparse(node))
            if next(_calls(node), None) is node and isinstance(value, int | float):
                return ast.copy_location(ast.Name(plain(value)), node)
            return self.generic_visit(node)

        def visit_Name(self, node: ast.Name) -> ast.AST:
            value = words.values.get(node.id)
            return ast.Name(plain(value)) if isinstance(value, int | float) else node

    return ast.unparse(Put().visit(ast.parse(ast.unparse(tree), mode="eval").body))


def _plain(value: Any) -> str:
    return f"[{', '.join(map(_plain, value))}]" if isinstance(value, list) else plain(value)


def _what(tree: ast.AST) -> str:
    """The first sentence about a function of `cost`."""
    if not (isinstance(tree, ast.Call) and next(_calls(tree), None) is tree):
        return ""
    try:
        told = inspect.getdoc(eval(ast.unparse(tree.func), {"cost": cost})) or ""
    except (AttributeError, NameError):
        return ""
    return re.split(r"(?<=[a-z)])[.:](?:\s|$)", told.replace("\n", " "))[0].rstrip(".")
