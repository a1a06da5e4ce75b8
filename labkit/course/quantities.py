"""Reads the numbers that people type: "42", "4.2e1", "1,234.5", "2^30", "2*7/8", "0.042 GB", "43 %", "$3.50".

A number with a unit is converted to the unit that was asked for. What cannot be read is refused, with the reason.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from typing import Any

from labkit.cost import units

LONGEST = 100  # characters of an answer
Kind = tuple[str, float]  # a dimension, and how much of it one unit is

_PREFIX = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BITS = {f"{p}{word}": scale / 8 for p, scale in _PREFIX.items() for word in ("b", "bit", "bits") if p + word != "b"}
_BYTES = {f"{p}B": scale for p, scale in _PREFIX.items()} | {"bytes": 1.0, "byte": 1.0}
_BYTES |= {"KiB": 2.0**10, "kiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40, "PiB": 2.0**50}
_TIME = {"ns": units.NS, "us": units.US, "µs": units.US, "μs": units.US, "ms": units.MS, "s": 1.0, "sec": 1.0}
_TIME |= {word + s: scale for word, scale in (("second", 1.0), ("minute", 60.0), ("hour", 3600.0), ("day", 86400.0))
          for s in ("", "s")}  # fmt: skip
_TIME |= {"min": 60.0, "h": 3600.0, "d": 86400.0, "weeks": 7 * 86400.0, "years": 365 * 86400.0}
_FLOPS = {f"{p}FLOP{s}": scale for p, scale in _PREFIX.items() for s in ("", "s")}

UNITS: dict[str, Kind] = {
    **{name: ("data", scale) for name, scale in (_BYTES | _BITS).items()},
    **{f"{name}/s": ("data rate", scale) for name, scale in (_BYTES | _BITS).items()},
    **{f"{p}{b}ps": ("data rate", scale / (8 if b == "b" else 1)) for p, scale in _PREFIX.items() for b in "bB"},
    **{name: ("time", scale) for name, scale in _TIME.items()},
    **{name: ("arithmetic", scale) for name, scale in _FLOPS.items()},
    **{f"{name}/s": ("arithmetic rate", scale) for name, scale in _FLOPS.items()},
    **{f"{p}FLOPS": ("arithmetic rate", scale) for p, scale in _PREFIX.items()},
    "%": ("share", 0.01), "percent": ("share", 0.01),
    "$": ("money", 1.0), "USD": ("money", 1.0), "dollars": ("money", 1.0), "dollar": ("money", 1.0),
}  # fmt: skip
_COUNTS = {
    "k": 1e3,
    "K": 1e3,
    "M": 1e6,
    "G": 1e9,
    "B": 1e9,
    "T": 1e12,
    "million": 1e6,
    "billion": 1e9,
    "trillion": 1e12,
}
_TIMES_WORDS = ("x", "times", "fold")

_OPS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow, ast.UAdd: operator.pos, ast.USub: operator.neg,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[[float], float]] = {
    "ln": math.log, "log": math.log, "log2": math.log2, "log10": math.log10, "sqrt": math.sqrt, "exp": math.exp,
}  # fmt: skip
_APPLIED = re.compile(r"\b(ln|log2|log10|log|sqrt|exp) +(\d+\.?\d*)")  # "ln 2"
_UNIT = re.compile(r"[ ]*([A-Za-zµμ%$][A-Za-zµμ%$/ -]*)$")
_COMMAS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_SPACES = re.compile(r"(?<![\d.,])\d{1,3}(?: \d{3})+(?!\d)")


class NoNumber(ValueError):
    """What was typed cannot be read as the number that was asked for; the text says why and what to type."""


def kind_of(unit: str) -> Kind | None:
    """(dimension, scale) of a unit, or None for a plain count such as "messages"."""
    return UNITS.get(unit)


def _such(unit: str) -> str:
    """An example: a whole number of what is counted, such as updates, and 12.5 of anything else."""
    return ("12" if unit and kind_of(unit) is None and unit not in _TIMES_WORDS else "12.5") + _with(unit)


def read_number(value: object, unit: str = "") -> float:
    """`value`, a number or a text, as a finite number of `unit`. Raises NoNumber with words for the reader."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise NoNumber(f"{_short(value)} is not a number. Type a number such as {_such(unit)}.")
    if not isinstance(value, str):
        return _finite(lambda: float(value), value if isinstance(value, float) else "This")
    text = _ascii(value)
    if not text:
        raise NoNumber(f"Nothing was typed. Type a number such as {_such(unit)}.")
    if len(text) > LONGEST:
        raise NoNumber(f"That is too long for a number. Type a number such as {_such(unit)}.")
    first, _, rest = text.partition(" ")
    digits, typed = (rest, first) if rest and _same_word(first, unit) else _split(text)  # "rank 3"
    return _finite(lambda: _computed(digits, text, unit) * _factor(typed, unit), text)


def _split(text: str) -> tuple[str, str]:
    """A number and the unit behind it; a dollar sign may stand in front."""
    if text.startswith("$"):
        return text[1:].strip(), "$"
    found = _UNIT.search(text)
    if found is None:
        return text, ""
    return text[: found.start()].strip(), found.group(1).strip()


def _ascii(text: str) -> str:
    """Signs that word processors like, as signs that Python reads."""
    for sign, plain in (("×", "*"), ("·", "*"), ("−", "-"), ("–", "-"), ("÷", "/"), ("\u00a0", " "), ("\u202f", " ")):
        text = text.replace(sign, plain)
    text = re.sub(r"(?<=[\d)]) +x +(?=[\d(])", "*", " ".join(text.split()))
    text = _APPLIED.sub(r"\1(\2)", text)
    return text.removeprefix("≈").removeprefix("~").strip()


def _factor(typed: str, unit: str) -> float:
    """What a number in `typed` must be multiplied by to be in `unit`."""
    wanted, got = UNITS.get(unit), UNITS.get(typed)
    if not typed or typed == unit or _same_word(typed, unit):
        return 1.0
    if wanted is None:
        if got == ("share", 0.01) and unit in ("", *_TIMES_WORDS):
            return 0.01
        if unit in ("", *_TIMES_WORDS) and typed in _TIMES_WORDS:
            return 1.0
        count, _, noun = typed.partition(" ")
        if count in _COUNTS and (not noun or _same_word(noun, unit)):
            return _COUNTS[count]
        raise NoNumber(f"{typed!r} is not a unit here. Type a number{_with(unit, ' of ')}.")
    if got is None:
        near = [name for name in UNITS if name.lower() == typed.lower() and UNITS[name][0] == wanted[0]]
        meant = {UNITS[name][1]: name for name in near}
        if len(meant) > 1:
            choices = " or ".join(sorted(meant.values()))
            raise NoNumber(f"{typed!r} could be {choices}: B is bytes, b is bits. Write the one you mean.")
        if not meant:
            raise NoNumber(f"I do not know the unit {typed!r}. The answer is asked for in {unit}.")
        got = (wanted[0], next(iter(meant)))
    if got[0] != wanted[0]:
        raise NoNumber(f"{typed} measures {got[0]}; the answer is asked for in {unit}, which measures {wanted[0]}.")
    return got[1] / wanted[1]


def _same_word(typed: str, unit: str) -> bool:
    return bool(typed) and typed.lower().rstrip("s") == unit.lower().rstrip("s") and unit not in UNITS


def _computed(digits: str, text: str, unit: str) -> float:
    """A number, or plain arithmetic of numbers with logarithms and roots: `ln` and `log` are natural."""
    digits = _COMMAS.sub(lambda m: m.group().replace(",", ""), digits)
    digits = _SPACES.sub(lambda m: m.group().replace(" ", ""), digits).replace("^", "**").rstrip("=").strip()
    if "," in digits:
        raise NoNumber(
            f"I cannot read the comma in {text!r}. Decimals have a point: 1.5; thousands may have a comma: 1,500."
        )
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", digits, re.ASCII):
        return float(digits)
    try:
        return _walk(ast.parse(digits, mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise NoNumber(f"{_short(text)} is not a number. Type a number such as {_such(unit)}.") from None


def _walk(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return float(node.value)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPS:
        return float(_OPS[type(node.op)](_walk(node.left), _walk(node.right)))  # TypeError for a complex root
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPS:
        return float(_OPS[type(node.op)](_walk(node.operand)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        (x,) = node.args
        return _FUNCTIONS[node.func.id](_walk(x))
    raise ValueError("more than numbers, + - * / ^ and functions such as sqrt")


def _finite(compute: Callable[[], float], text: object) -> float:
    try:
        number = compute()
    except ZeroDivisionError:
        raise NoNumber(f"{_short(text)} divides by zero.") from None
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise NoNumber(f"{_short(text)} is not a finite number.")
    return number


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _with(unit: str, before: str = " ") -> str:
    return f"{before}{unit}" if unit else ""
