"""Show lines of labkit itself in a chapter, instead of a copy of them."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

WHOLE = "the whole file"


class Source:
    """The source of a function, with its file and name; a notebook shows it highlighted."""

    def __init__(self, name: str, file: str, code: str) -> None:
        self.name, self.file, self.code = name, file, code

    @property
    def where(self) -> str:
        """File and name, as in `labkit/parallel/data/reducer.py: Reducer._ready`.

        No line numbers: they would be wrong on a stored page as soon as something above is edited.
        """
        return f"{self.file}: {self.name}"

    def __repr__(self) -> str:
        return f"{self.where}\n\n{self.code}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self.html()}

    def html(self) -> str:
        """The code in the colours of the notebook's own editor, light or dark."""
        from pygments import highlight  # type: ignore[import-untyped]
        from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
        from pygments.lexers import PythonLexer  # type: ignore[import-untyped]

        # A notebook would break long lines in the middle of words.
        formatter = HtmlFormatter(
            style=_style(), noclasses=True, nobackground=True, linenos=False, wrapcode=True,
            prestyles="white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere",
        )  # fmt: skip
        code = highlight(self.code, PythonLexer(), formatter)
        code = code.replace("<code>", '<code style="white-space: inherit; word-break: inherit">', 1)
        if self.name == WHOLE:  # long: folded, until somebody wants to read it
            lines = len(self.code.splitlines())
            return f"<details><summary>{self.where}, {lines} lines</summary>{code}</details>"
        return f'<figure style="margin:0"><figcaption><small>{self.where}</small></figcaption>{code}</figure>'


def source(
    fn: Callable[..., Any] | ModuleType, *, decorators: bool = False, docstring: bool = True, only: str = ""
) -> Source:
    """The lines of `fn`, without decorators (unless asked for), and without its docstring if that is not wanted; or the
    whole file of a module. only: the first statement in it that begins so, such as a loop, without the rest."""
    if isinstance(fn, ModuleType):
        return Source(WHOLE, _file(fn), inspect.getsource(fn).rstrip())
    inner = inspect.unwrap(fn)
    try:
        lines, _ = inspect.getsourcelines(inner)
    except (OSError, TypeError) as error:
        raise ValueError(f"the source of {fn!r} is not available: show a function written in Python") from error
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    if only:
        parts = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
        part = next((s for s in parts if lines[s.lineno - 1].strip().startswith(only)), None)
        if part is None:
            raise ValueError(f"no statement of {inner.__qualname__} begins with {only!r}")
        lines = lines[part.lineno - 1 : part.end_lineno]
    elif isinstance(tree, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        if not docstring and ast.get_docstring(tree, clean=False) is not None and len(tree.body) > 1:
            told = tree.body[0]
            del lines[told.lineno - 1 : told.end_lineno]
        if not decorators:
            del lines[: tree.lineno - 1]
    code = re.sub(r"  # type: ignore\[[^]]*\]", "", textwrap.dedent("".join(lines)).rstrip())  # a reader's eyes
    return Source(inner.__qualname__, _file(inner), code)


def _file(fn: Any) -> str:
    """The path from the package on: `labkit/...`; "this notebook" for what was typed in a cell."""
    path = inspect.getsourcefile(fn) or ""
    if path.startswith("<") or "ipykernel" in path or (path in linecache.cache and not Path(path).exists()):
        return "this notebook"
    package = (fn.__name__ if isinstance(fn, ModuleType) else fn.__module__ or "").split(".")
    parts = Path(path).parts
    return "/".join(parts[parts.index(package[0]) :]) if package[0] in parts else parts[-1]


def _style() -> type[Any]:
    """A pygments style made of JupyterLab's own colours, with ones for any background where there are none."""
    from pygments.style import Style  # type: ignore[import-untyped]
    from pygments.token import Comment, Keyword, Name, Number, Operator, String  # type: ignore[import-untyped]

    def editor(name: str, other: str) -> str:
        return f"var(--jp-mirror-editor-{name}-color,{other})"

    class Editor(Style):
        styles = {
            Comment: f"italic {editor('comment', '#4f8a8b')}",
            Keyword: f"bold {editor('keyword', '#2e8b57')}",
            Number: editor("number", "#2e8b57"),
            Name.Function: editor("def", "#3d7fd0"),
            Name.Class: editor("def", "#3d7fd0"),
            Name.Builtin: editor("builtin", "#2e8b57"),
            Name.Decorator: editor("meta", "#a05fd0"),
            Operator: editor("operator", "#a05fd0"),
            Operator.Word: f"bold {editor('keyword', '#2e8b57')}",
            String: editor("string", "#c0504d"),
        }  # fmt: skip

    return Editor
