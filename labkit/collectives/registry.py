"""The table of algorithms, and what the `@algorithm` line above each of them does.

    @algorithm("all_reduce", "ring")
    def ring_all_reduce(x, group, op=SUM): ...

puts the function into ALGORITHMS["all_reduce"]["ring"], where `all_reduce(..., algorithm="ring")` finds it,
and wraps it. A call of the wrapped function
  1. checks the arguments and refuses what cannot work before anything is sent (checks.py);
  2. hands the body to `group.run_collective`, which records it on the trace and gives it messages of its own,
     so that it cannot be confused with the reader's; with `async_op=True` it runs in the background and a
     handle comes back;
  3. gives the body what it may rely on (frame.py): dense tensors, no autograd, an `op` that only combines.
So a body holds the algorithm and nothing else, and one algorithm may call another.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from labkit.collectives.checks import check_call
from labkit.collectives.frame import first_row, framed
from labkit.wire.errors import RefusedError
from labkit.wire.ops import resolve

ALGORITHMS: dict[str, dict[str, Callable[..., Any]]] = {}


def algorithm(
    collective: str, name: str, requires: Callable[..., None] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the function below as algorithm `name` of `collective`, and wrap it as the module says.

    `requires(group, x, op)` raises if this algorithm cannot do that.
    """
    if not name.isidentifier():
        raise RefusedError(f"algorithm({collective!r}, {name!r}): records hold its name as one word, such as my_ring")

    def register(body: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(body)

        @functools.wraps(body)
        def call(*args: Any, async_op: bool = False, of: str = "", **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            options = dict(bound.arguments)
            x, group = options.pop("x", None), options.pop("group")
            op = resolve(options["op"]) if "op" in options else None
            check_call(collective, x, group, op, options)
            if requires is not None:
                requires(group, x, op)
            work = framed(collective, body, op)
            return group.run_collective(
                collective, name, work, x, (), options,
                op=op.name if op else "", root=options.get("root", -1), async_op=async_op,
                first_row=first_row(collective, x, group, options), of=of,
            )  # fmt: skip

        call.__signature__ = _with_common(signature)  # type: ignore[attr-defined]
        ALGORITHMS.setdefault(collective, {})[name] = call
        return call

    return register


def find(collective: str, name: str) -> Callable[..., Any]:
    """The function registered as algorithm `name` of `collective`; refuses an unknown name."""
    known = ALGORITHMS[collective]
    if name not in known:
        guess = get_close_matches(str(name), known, n=1)
        hint = f" Did you mean {guess[0]!r}?" if guess else ""
        raise RefusedError(f"{collective} has no algorithm {name!r}. Known: auto, {', '.join(sorted(known))}.{hint}")
    return known[name]


def _with_common(signature: inspect.Signature) -> inspect.Signature:
    flag = inspect.Parameter("async_op", inspect.Parameter.KEYWORD_ONLY, default=False, annotation="bool")
    of = inspect.Parameter("of", inspect.Parameter.KEYWORD_ONLY, default="", annotation="str")
    return signature.replace(parameters=[*signature.parameters.values(), flag, of])
