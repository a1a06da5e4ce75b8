"""A function of a notebook as code that stands alone: with what it imports, and the functions and numbers it uses."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import dis
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

PLAIN = (int, float, str, bool, bytes, type(None), tuple, list, dict)


def standing_alone(fn: Callable[..., Any], *values: object) -> str:
    """Imports, then what `fn` uses of its notebook, then `fn`. values: what else the code will name.

    What has no source and no plain value is made by the statement of the notebook that made it, and by what that needs;
    where there is none, it is named in a comment.
    """
    imports: set[str] = set()
    parts: dict[str, str] = {}
    for value in values:
        imports |= set(_types(value))
    _add(fn, imports, parts)
    head = _joined(imports | {"import labkit"})
    lines, before = ["\n".join(head)], "import"
    for part in filter(None, parts.values()):
        kind = "def" if part.startswith(("def ", "class ", "@")) else "value"
        lines += [*[""] * (2 if "def" in (kind, before) else before == "import"), part]
        before = kind
    return "\n".join(lines) + "\n"


def _joined(imports: set[str]) -> list[str]:
    """As one writes them: `import` first, and one `from` for each module."""
    of: dict[str, list[str]] = {}
    for line in sorted(imports):
        place, _, name = line.partition(" import ")
        of.setdefault(place if name else line, []).extend([name] if name else [])
    lines = [f"{place} import {', '.join(names)}" if names else place for place, names in of.items()]
    return sorted(lines, key=lambda line: (line.startswith("from"), line))


def _add(fn: Callable[..., Any], imports: set[str], parts: dict[str, str]) -> None:
    """What `fn` needs, and then its own lines."""
    own = getattr(fn, "__name__", "run")
    parts[own] = ""  # under way, for what calls itself
    fn = inspect.unwrap(fn)  # the decorator stands in the source
    names, source = getattr(fn, "__globals__", {}), textwrap.dedent(inspect.getsource(fn))
    used = _used(fn.__code__) if isinstance(fn, FunctionType) else ()
    for name in dict.fromkeys([*_before_it(source), *used]):
        if name in names and name not in parts:
            _name(name, names, fn.__module__, imports, parts)
    shown = [line for line in source.rstrip().split("\n") if not line.lstrip().startswith("### ")]  # the book's markers
    del parts[own]  # now it comes after what it needs
    parts[own] = "\n".join(shown)


def _name(name: str, names: Mapping[str, Any], home: str, imports: set[str], parts: dict[str, str]) -> None:
    """What makes `name` stand for its value again. home: the module whose functions are written out."""
    value = names[name]
    if isinstance(value, ModuleType):
        room, _, last = value.__name__.rpartition(".")
        plain = f"import {value.__name__}" + (f" as {name}" if value.__name__ != name else "")
        imports.add(f"from {room} import {name}" if last == name and room else plain)
    elif isinstance(value, FunctionType | type) and value.__module__ == home:
        _add(value, imports, parts)
    elif isinstance(getattr(value, "__wrapped__", None), FunctionType) and value.__module__ == home:  # `@cache`
        _add(value, imports, parts)
    elif isinstance(value, FunctionType | type):
        imports.add(_import(value, name))
    elif isinstance(value, partial) and isinstance(value.func, FunctionType):
        held = [*value.args, *value.keywords.values()]
        imports |= {"from functools import partial", *_types(held)}

        def given(one: Any) -> str:
            if not isinstance(one, FunctionType):
                return written(one)
            if one.__module__ == home:
                _add(one, imports, parts)
                return one.__name__
            imports.add(f"import {_room(one)}")
            return f"{_room(one)}.{one.__name__}"

        named = (f"{key}={given(one)}" for key, one in value.keywords.items())
        parts[name] = f"{name} = partial({', '.join([given(value.func), *map(given, value.args), *named])})"
    elif (type(value) in PLAIN or dataclasses.is_dataclass(value)) and _is_code(written(value)):
        imports |= set(_types(value))
        parts[name] = f"{name} = {written(value)}"
    elif made := _made(name, names.get("In", ())):
        parts |= dict.fromkeys((n.id for n in _names_in(made) if isinstance(n.ctx, ast.Store)), "")
        for one in _names_in(made):
            if one.id in names and one.id not in parts:
                _name(one.id, names, home, imports, parts)
        del parts[name]  # now it comes after what it needs
        parts[name] = ast.unparse(made)
    else:
        parts[name] = f"# {name}: as in the cells above"


def _is_code(text: str) -> bool:
    """Whether Python can read it again: no `<function f at 0x7f>` in a list."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _made(name: str, cells: Sequence[str]) -> ast.stmt | None:
    """The last assignment to `name` in the cells that have run."""
    for cell in reversed(cells):
        with contextlib.suppress(SyntaxError):  # of what IPython alone understands
            for one in reversed(ast.parse(cell).body):
                stored = {n.id for n in _names_in(one) if isinstance(n.ctx, ast.Store)}
                if isinstance(one, ast.Assign | ast.AnnAssign) and name in stored:
                    return one
    return None


def _names_in(tree: ast.AST) -> list[ast.Name]:
    return [one for one in ast.walk(tree) if isinstance(one, ast.Name)]


def written(value: Any) -> str:
    """A value as Python writes it, infinity included; of a dataclass what is not its default."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}({', '.join(f'{name}={written(one)}' for name, one in _given(value))})"
    if type(value) in (list, tuple):
        inside = ", ".join(map(written, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    if type(value) is dict:
        return f"{{{', '.join(f'{written(key)}: {written(one)}' for key, one in value.items())}}}"
    if isinstance(value, float):
        value = float(f"{value:.12g}")  # 2e-05, and not the 1.9999999999999998e-05 of a slider
        if "e" in (said := f"{value:g}".replace("e+0", "e")) and float(said) == value:
            return said
    if isinstance(value, str) and '"' not in (said := repr(value)[1:-1]):
        return f'"{said}"'
    return 'float("inf")' if value == float("inf") else repr(value)


def _given(value: Any) -> list[tuple[str, Any]]:
    """The fields of a dataclass that differ from their defaults."""
    fields = [field for field in dataclasses.fields(value) if field.init]
    return [(f.name, one) for f in fields if (one := getattr(value, f.name)) is not f.default and one != f.default]


def _used(code: CodeType) -> Iterable[str]:
    """The global names of a function, and of those inside it."""
    yield from (op.argval for op in dis.get_instructions(code) if op.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _used(inner)


def _before_it(source: str) -> Iterable[str]:
    """The names that must be there before a function is made: of decorators, annotations and first values."""
    made = ast.parse(source).body[0]
    outside: list[ast.expr | None] = []
    if isinstance(made, ast.FunctionDef):
        every = [*made.args.posonlyargs, *made.args.args, *made.args.kwonlyargs, made.args.vararg, made.args.kwarg]
        outside = [*made.decorator_list, *made.args.defaults, *made.args.kw_defaults, made.returns]
        outside += [one.annotation for one in every if one]
    elif isinstance(made, ast.ClassDef):
        outside = [*made.decorator_list, *made.bases]
    return (one.id for part in outside if part is not None for one in ast.walk(part) if isinstance(one, ast.Name))


def _room(value: Any) -> str:
    """The highest room that offers it."""
    rooms, called = value.__module__.split("."), value.__name__
    places = [".".join(rooms[:depth]) for depth in range(1, len(rooms) + 1)]
    return next((p for p in places if getattr(sys.modules.get(p), called, None) is value), places[-1])


def _import(value: Any, name: str) -> str:
    """The line that gets it, from the highest room that offers it."""
    called = value.__name__
    return f"from {_room(value)} import {called}" + (f" as {name}" if name != called else "")


def _types(value: Any) -> Iterable[str]:
    """Imports for what stands in the repr of a value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        made: Any = type(value)
        yield _import(made, made.__name__)
        for _, one in _given(value):
            yield from _types(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from _types(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from _types(one)
