"""Formulas that students type, read without running them, and compared by value.

A text is parsed to Python's syntax tree, of which only names, numbers, + - * / ^ and a few functions are let through;
from these a sympy expression is built. Length, depth and exponents are bounded, so that no text takes long.
Two formulas are equal if they agree at points of exact rational numbers: two different quotients of polynomials of
this size almost surely differ at one of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

LONGEST, MOST_NODES, LARGEST_POWER = 200, 80, 12
POINTS = 24  # enough to meet both sides of a min or max
_FUNCTIONS = ("log2", "log", "ln", "sqrt", "ceil", "ceiling", "floor", "min", "max")
_SIGNS = (("×", "*"), ("·", "*"), ("−", "-"), ("–", "-"), ("÷", "/"), ("^", "**"), ("\\cdot", "*"), ("\\times", "*"))


class NoFormula(ValueError):
    """A text that is no formula in the names of the task; says what is wrong with it."""


@dataclass(frozen=True)
class Formula:
    """text: as typed. names: the symbols in it. expression: of sympy."""

    text: str
    names: frozenset[str]
    expression: Any


def read_formula(value: object, names: Sequence[str] | None) -> Formula:
    """A formula in `names` (any names, if None). Raises NoFormula."""
    if not isinstance(value, str):
        raise NoFormula(f'Give the formula as text, as in "2*(N-1)/N*M", not as a {type(value).__name__}.')
    text = value.strip()
    if not text:
        raise NoFormula("Nothing was typed.")
    if len(text) > LONGEST:
        raise NoFormula(f"That is too long for a formula: at most {LONGEST} characters.")
    try:
        tree = ast.parse(_pythonic(text, names), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise NoFormula(f'{text!r} cannot be read. Write it as in "2*(N-1)/N*M".') from None
    if sum(1 for _ in ast.walk(tree)) > MOST_NODES:
        raise NoFormula("That formula has too many parts. Write it shorter.")
    found: set[str] = set()
    try:
        expression = _Builder(names, found).build(tree, 0)
    except ZeroDivisionError:
        raise NoFormula(f"{text!r} divides by zero.") from None
    return Formula(text, frozenset(found), expression)


def _pythonic(text: str, names: Sequence[str] | None) -> str:
    """Signs as Python writes them, and a * where it was left out: 2(N-1), (a)(b), 2 M, N M."""
    for sign, plain in _SIGNS:
        text = text.replace(sign, plain)
    text = re.sub(r"(?<![\w.])(\d+\.?\d*)\s*(?=[A-Za-z(])(?![eE][+-]?\d)", r"\1*", text)
    text = re.sub(r"\)\s*(?=[\w(])", ")*", text)
    for name in names or ():
        text = re.sub(rf"\b{re.escape(name)}\s*(?=\()", f"{name}*", text)
        text = re.sub(rf"\b{re.escape(name)}\s+(?=[A-Za-z0-9])", f"{name}*", text)
    return text


class _Builder:
    """A syntax tree as a sympy expression, small enough to be evaluated in no time."""

    def __init__(self, names: Sequence[str] | None, found: set[str]):
        import sympy  # type: ignore[import-untyped]

        self.sympy, self.names, self.found = sympy, names, found

    def build(self, node: ast.AST, powers: int) -> Any:
        """powers: how many powers this stands in. Raises NoFormula."""
        built = self.part(node, powers)
        if built.is_Rational and max(abs(built.p), built.q) > 10**30:
            raise NoFormula("There is a number in it that is too large.")
        return built

    def part(self, node: ast.AST, powers: int) -> Any:
        sp = self.sympy
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and type(node.value) is not bool:
            if not abs(node.value) <= 1e15:
                raise NoFormula("There is a number in it that is too large.")
            return sp.Rational(str(node.value))  # 0.5 is exactly one half
        if isinstance(node, ast.Name):
            if self.names is not None and node.id not in self.names:
                raise NoFormula(f"{node.id!r} is no symbol here. Use {', '.join(self.names)}.")
            self.found.add(node.id)
            return sp.Symbol(node.id, positive=True)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.UAdd, ast.USub)):
            inside = self.build(node.operand, powers)
            return -inside if isinstance(node.op, ast.USub) else inside
        if isinstance(node, ast.BinOp):
            return self.operation(node, powers)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            return self.function(node.func.id, [self.build(a, powers) for a in node.args])
        raise NoFormula("Use numbers, the symbols of the task, + - * / ^, brackets, log2, sqrt, ceil, floor, min, max.")

    def operation(self, node: ast.BinOp, powers: int) -> Any:
        if isinstance(node.op, ast.Pow):
            if powers:
                raise NoFormula("A power inside a power is more than a formula here needs.")
            left, right = self.build(node.left, 1), self.build(node.right, 1)
            if right.is_number and not abs(right) <= LARGEST_POWER:
                raise NoFormula(f"Exponents go up to {LARGEST_POWER} here.")
            return left**right
        left = self.build(node.left, powers)
        right = self.build(node.right, powers)
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Div):
            if right == 0:
                raise ZeroDivisionError
            return left / right
        raise NoFormula("Use + - * / and ^ only.")

    def function(self, name: str, values: list[Any]) -> Any:
        sp = self.sympy
        if name not in _FUNCTIONS:
            raise NoFormula(f"{name!r} is no function here. There are log2, log, sqrt, ceil, floor, min, max.")
        if name in ("min", "max"):
            if not 2 <= len(values) <= 4:
                raise NoFormula(f"{name} needs two to four values.")
            return (sp.Min if name == "min" else sp.Max)(*values)
        if len(values) != 1:
            raise NoFormula(f"{name} needs one value.")
        (value,) = values
        if any(not power.exp.is_number for power in value.atoms(sp.Pow)):
            raise NoFormula(f"{name} of a power such as 2^N is more than a formula here needs.")
        if name == "log2":
            return sp.log(value) / sp.log(2)
        kinds = {"log": sp.log, "ln": sp.log, "sqrt": sp.sqrt, "ceil": sp.ceiling, "ceiling": sp.ceiling}
        return kinds.get(name, sp.floor)(value)


def equal(a: Formula, b: Formula) -> bool:
    """Whether two formulas have the same value at all points tried. Names stand for whole numbers of 2 and more."""
    names = sorted(a.names | b.names)
    random = Random("points")
    for _ in range(POINTS):
        point = {name: random.randint(2, 60) for name in names}
        x, y = _at(a, point), _at(b, point)
        if x is None or y is None:
            return False
        if abs(x - y) > 1e-9 * max(1.0, abs(x), abs(y)):
            return False
    return True


def _at(formula: Formula, point: dict[str, int]) -> float | None:
    """The value at a point; None where there is no finite real one."""
    import sympy

    values = {sympy.Symbol(name, positive=True): sympy.Integer(number) for name, number in point.items()}
    try:
        number = complex(formula.expression.evalf(20, subs=values))
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        return None
    return number.real if abs(number.imag) < 1e-12 and abs(number.real) < 1e300 else None
