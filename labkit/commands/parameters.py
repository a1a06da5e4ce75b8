"""Parameters of a chapter: read from its cell tagged `parameters`, checked before anything runs.

papermill alone would only warn of an unknown name, and would hand text to a chapter that counts ranks.
"""

import ast
import difflib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from labkit.commands import UsageError


class Parameter(NamedTuple):
    """One line of the parameters cell: `name: type = default  # help`, each as its source text."""

    name: str
    type: str  # "int", "float", "bool", "str", "list", "tuple", "dict", or "" for anything
    optional: bool  # may be None
    default: str
    help: str

    def __str__(self) -> str:
        note = f"  # {self.help}" if self.help else ""
        kind = f": {self.type}" if self.type else ""
        return f"{self.name}{kind} = {self.default}{note}"


def known_parameters(notebook: Path) -> dict[str, Parameter]:
    """What the chapter's parameters cell declares, in its order. Starts no kernel.

    Raises UsageError for a notebook that does not say what language it is in.
    """
    from papermill import inspect_notebook  # slow to import

    try:
        found = inspect_notebook(str(notebook))
    except ValueError as error:
        raise UsageError(
            f"{notebook} names no kernel, so its parameters cannot be read: "
            f"open it in JupyterLab, choose the Python 3 kernel and save it"
        ) from error
    return {name: _declared(parameter) for name, parameter in found.items()}


def _declared(found: dict[str, str]) -> Parameter:
    annotation, default = found["inferred_type_name"], found["default"]
    inner = re.fullmatch(r"Optional\[(.*)\]", annotation)
    kind = re.sub(r"\[.*", "", inner[1] if inner else annotation)  # list[int] is checked as a list
    value = _literal(default)
    if kind not in READERS:  # no annotation, or one that is not checked: the default's own type, if it has one
        kind = type(value).__name__ if type(value).__name__ in READERS else ""
    return Parameter(found["name"], kind, bool(inner) or default == "None", default, found["help"])


def parse_parameters(given: Sequence[str], notebook: Path) -> dict[str, object]:
    """["world_size=8", ...] -> {"world_size": 8, ...}, each with the declared type.

    Raises UsageError for a missing "=", a name that the chapter does not have or that was given twice,
    and a value of the wrong type.
    """
    if not given:
        return {}
    known = known_parameters(notebook)
    values: dict[str, object] = {}
    for item in given:
        name, equals, value = item.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(f"-p {item}: write a parameter as name=value, such as -p world_size=8")
        if name not in known:
            raise UsageError(_unknown(name, known, notebook))
        if name in values:
            raise UsageError(f"-p {item}: {name} was given twice; keep one")
        values[name] = _read(known[name], value.strip(), notebook)
    return values


def _unknown(name: str, known: dict[str, Parameter], notebook: Path) -> str:
    if not known:
        return f"{notebook.name} has no parameters, so {name!r} cannot be set: leave out -p"
    close = difflib.get_close_matches(name, known, n=1)
    guess = f" Did you mean {close[0]}?" if close else ""
    lines = "\n".join(f"    {parameter}" for parameter in known.values())
    return f"{notebook.name} has no parameter {name!r}.{guess} It has these, with their defaults:\n{lines}"


def _read(parameter: Parameter, value: str, notebook: Path) -> object:
    if parameter.optional and value == "None":
        return None
    if not parameter.type:
        return _literal(value)
    try:
        return READERS[parameter.type](value)
    except ValueError:
        raise UsageError(
            f"{parameter.name}={value}: {notebook.name} wants {MEANING[parameter.type]} here, "
            f"as in its default: -p '{parameter.name}={parameter.default}'"
        ) from None


def _literal(source: str) -> object:
    """The Python value that `source` spells, or `source` itself when it spells none."""
    try:
        return ast.literal_eval(source)
    except (ValueError, SyntaxError):
        return source


def _bool(value: str) -> bool:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if value.lower() not in words:
        raise ValueError(value)
    return words[value.lower()]


def _str(value: str) -> str:
    """Text as typed; quotes around the whole of it, as the default is shown, are taken off."""
    quoted = _literal(value)
    return quoted if isinstance(quoted, str) else value


def _collection(kind: type) -> Callable[[str], object]:
    def read(value: str) -> object:
        result = _literal(value)
        if not isinstance(result, kind):
            raise ValueError(value)
        return result

    return read


READERS: dict[str, Callable[[str], object]] = {
    "int": int,
    "float": float,
    "bool": _bool,
    "str": _str,
    "list": _collection(list),
    "tuple": _collection(tuple),
    "dict": _collection(dict),
}
MEANING = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "list": "a list",
    "tuple": "a tuple",
    "dict": "a dictionary",
}
