"""A line as a question for a pencil: what the source says, what goes in, and then the arithmetic."""

from __future__ import annotations

import ast
import ctypes
import math
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labkit.chapters.cA_errata.pictures import found
from labkit.cost import units
from labkit.course.errata import Erratum
from labkit.course.file import read_toml

PENCIL = Path(__file__).with_name("pencil.toml")
TIE = 1e-9  # 17.325 is 17.32 or 17.33, whatever the binary digits of a float say
MEANS = {  # where our number comes from, as section 12 calls it, in words that need no explanation
    "right": "",
    "then": " (from the sentence itself)",
    "elsewhere": " (from other numbers of the source)",
}


@dataclass(frozen=True)
class Pencil:
    """label: what the number is. ask: a question with all that goes in. way: the arithmetic, numbers alone.

    why: what the source says instead, and why that cannot be, in sentences that begin with the source.
    hint: what is said of a number that is no known slip. slips: wrong ways, each with what is said of it.
    """

    id: str
    label: str
    ask: str
    way: str
    why: str
    hint: str
    slips: tuple[Mapping[str, str], ...] = ()

    def slip(self, number: float) -> str:
        """What is said of a number that a known slip gives, or nothing."""
        names = {"ceil": math.ceil, "floor": math.floor}
        off = {one["why"]: abs(number / eval(one["way"], names) - 1) for one in self.slips}
        return min((why for why in off if off[why] <= 0.01), key=off.__getitem__, default="")

    @property
    def written(self) -> str:
        """The arithmetic as one writes it."""
        return self.way.replace("*", "×").replace("1e9", "1,000,000,000")


@cache
def pencils() -> Mapping[str, Pencil]:
    """The questions by the ids of their lines."""
    return {row["id"]: Pencil(**row) for row in read_toml(PENCIL)["pencil"]}


def asked(entry: Erratum) -> str:
    """What the source says, and a question with all that a reader needs."""
    said = entry.what.partition(". But ")[0]
    stated = f"Its words: {entry.stated}." if entry.quote else f"Its number: {entry.stated}."
    return "\n".join([f"{entry.source}, {entry.place}. {said}. {stated}", pencils()[entry.id].ask])


def worked(entry: Erratum) -> list[str]:
    """The arithmetic with its result, and what the source says instead."""
    pencil = pencils()[entry.id]
    return [f"{pencil.written} = {found(entry)}{MEANS[entry.comes]}", pencil.why]


def pasted(entry: Erratum) -> str:
    """How a line is computed, as a cell that needs no other."""
    code = "\n".join([*(f"{name} = {value}" for name, value in entry.values.items()), entry.found])
    names = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    of_units, of_math = sorted(names & set(vars(units))), sorted(names & {"log10", "log2", "sqrt", "exp", "ceil"})
    head = [f"from math import {', '.join(of_math)}"] if of_math else []
    head += ["from labkit import cost"] if "cost" in names else []
    head += [f"from labkit.cost.units import {', '.join(of_units)}"] if of_units else []
    return "\n".join([*head, code])


def value(code: str, seconds: float = 5.0) -> float:
    """What the last line of a pasted cell comes to. Raises whatever the code raises, and TimeoutError after `seconds`.

    It runs in a thread of its own. One that sleeps cannot be stopped, and is left behind; one that computes ends.
    """
    came: list[float | BaseException] = []

    def work() -> None:
        try:
            came.append(_value(code))
        except BaseException as why:
            came.append(why)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        raise TimeoutError(f"it had not come to an end after {seconds:.0f} s, and was stopped")
    (one,) = came
    if isinstance(one, BaseException):
        raise one
    return one


def _value(code: str) -> float:
    tree, names = ast.parse(code), dict[str, object]()
    *before, last = tree.body
    if not isinstance(last, ast.Expr):
        raise ValueError("the last line must compute a number, such as 2400 / 50")
    exec(compile(ast.Module(before, []), "line", "exec"), names)
    number = eval(compile(ast.Expression(last.value), "line", "eval"), names)
    if isinstance(number, str) or math.isnan(float(number)):
        raise TypeError(f"it comes to {number!r}")
    return float(number)


def typed_number(entry: Erratum, typed: str) -> str | None:
    """The digits that a reader typed, without the unit, or None where there is no number."""
    digits = typed.replace(entry.unit or " ", "").replace("%", "").replace("times", "")
    digits = digits.strip().removesuffix("x").strip()
    digits = digits.replace(",", "") if re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d*)?", digits) else digits
    return digits if re.fullmatch(r"-?(\d+\.?\d*|\.\d+)", digits) else None


def judged(entry: Erratum, typed: str, agrees: Callable[[str, float], bool]) -> tuple[bool, str]:
    """Whether a reader's number is right, by the rule of section 2, and one sentence about it."""
    digits, ours, pencil = typed_number(entry, typed), entry.claim().found, pencils()[entry.id]
    if digits is None and re.search(r"\d,\d", typed):
        return False, f"Type a point and not a comma: {typed.strip().replace(',', '.')}."
    if digits is None:
        return False, f"{typed!r} is no number: type one such as 12.5." if typed.strip() else "You gave no number yet."
    mine = float(digits)
    if mine == ours or any(agrees(digits, ours * tie) for tie in (1, 1 - TIE, 1 + TIE)):
        few = len(digits.replace(".", "").lstrip("-0")) < 2 and mine != ours
        return not few, "So far it agrees. Give one more digit, because a single one fits many numbers." if few else (
            f"Right: {found(entry)}."
            if mine == ours or found(entry).split()[0].replace(",", "") == digits
            else f"Right: {digits} agrees with {found(entry)}."
        )
    if why := pencil.slip(mine):
        return False, why
    if mine in [float(end) for end in re.findall(r"\d+(?:\.\d+)?", entry.says)]:
        return False, "That is the number of the source. Which one follows from the inputs of the question?"
    if math.isclose(mine, ours, rel_tol=0.03):
        return False, "Very near, but your last digit is another one. Did you round on the way?"
    ratio = abs(mine / ours) or 1.0
    if any(math.isclose(ratio, 10.0**power, rel_tol=0.005) for power in range(-9, 10) if power):
        return False, "Your digits are right, but the decimal point is in the wrong place. Look at the unit once more."
    return False, f"{digits} is not it. {pencil.hint}"
