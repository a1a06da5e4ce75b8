"""From a call in a cell to processes that run it: the two ways to get ranks from the zygote of this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from labkit.forkserver import zygote as _zygote
from labkit.telling import Telling
from labkit.wire.errors import RefusedError

from .channel import Channel, Closed
from .job import Job, Run, plainly
from .spec import make_spec, needs, refuse_many, sensible_ranks


@plainly
def start(fn: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> Job:
    """Start `fn(group, *args)` on `world_size` ranks and return at once with the `Job`.

    fn may be defined in a cell; closures, lambdas and classes of the notebook travel with it. For the options
    see `labkit.world.Spec`. Raises `RefusedError` (a ValueError) for anything that cannot work, before a rank starts.
    """
    from .torchrun import is_torchrun

    if is_torchrun():
        raise RefusedError("under torchrun the ranks exist already: use launch(), which runs on them")
    if os.environ.get("LABKIT_RANK") is not None:
        raise RefusedError("launch was called inside a rank: a rank cannot start a world of its own")
    if not callable(fn):
        raise RefusedError(f"launch needs a function fn(group, *args), not {type(fn).__name__}")
    spec = make_spec(world_size, options)
    refuse_many(spec)
    call = pack(fn, args)
    telling = Telling(spec.progress)
    if world_size > sensible_ranks():
        telling.say(needs(world_size))
    from .machine import link_model

    channel, theirs = Channel.pair()
    _zygote.host(theirs.fileno(), telling)
    theirs.close()
    path = [p or os.getcwd() for p in sys.path]
    try:
        channel.send(
            {
                "spec": spec,
                "call": call,
                "cwd": os.getcwd(),
                "path": path,
                "environ": dict(os.environ),
                "link_model": link_model(spec.transport),
            }
        )
    except Closed as why:
        raise RuntimeError("labkit's worker process ended before it could start the ranks") from why
    return Job(spec, channel, telling)


@plainly
def launch(fn: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> Run:
    """Run `fn(group, *args)` on `world_size` ranks and return the `Run` (see `start`).

    Raises `RankFailed` with the first failing rank's traceback unless on_failure says otherwise.
    """
    from .torchrun import is_torchrun, run_here

    if is_torchrun():
        return run_here(fn, world_size, args, options)
    return start(fn, world_size, *args, **options).wait()


def warm() -> None:
    """Start the worker process now, so that the first launch is as fast as the others."""
    _zygote.warm()


def pack(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """The function and its arguments as bytes (see `serialization`)."""
    import io

    from .serialization import Pickler

    out = io.BytesIO()
    try:
        Pickler(out, protocol=5).dump((fn, args))
    except Exception as why:
        name = getattr(fn, "__qualname__", repr(fn))
        raise RefusedError(
            f"{name} cannot be sent to the ranks: {why}. It may hold an open file, a lock, a widget or a Run; "
            "create such things inside the function"
        ) from why
    return out.getvalue()
