"""Elastic restart: a world that fails is started again, from the last checkpoint, as large as before or smaller.

    def train(group):
        model, optimizer = ...
        with Checkpointer("runs/first", group, model, optimizer, loader=feed) as checkpoints:
            loaded = checkpoints.load()
            for step in range(loaded.step if loaded else 0, 1000):
                ...
                checkpoints.save(step + 1, wait=False)

    run_elastic(train, 4, smaller=[3, 2])            # here: the processes are labkit's
    torchrun --nproc-per-node 4 --max-restarts 3 train.py         # or torchrun's, with the same call in train.py
    torchrun --nnodes 1:2 --nproc-per-node 2 --max-restarts 3 --rdzv-backend c10d ...     # which may lose a node

Under torchrun its agent decides: it ends what is left of a world, and starts a new one of the nodes that it can find.
This call then is `launch`, and a failure ends the process, which is what the agent looks for. Where a node is lost, the
ranks that are left look for a report of those that are gone for `timeout` seconds, so a short one restarts sooner.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from labkit.wire.errors import RefusedError
from labkit.world.engine import start
from labkit.world.job import Failure, RankFailed, Run, plainly
from labkit.world.spec import make_spec
from labkit.world.torchrun import is_torchrun, run_here

Smaller = Sequence[int] | Callable[[int, Sequence[Failure]], int] | None
_COUNT = "LABKIT_RESTARTS"
# A world that was refused something, or whose ranks did different things, would end in the same way again.
_FINAL_KINDS = {"mismatch", "stopped"}
_FINAL_ERRORS = {"RefusedError", "NotSaved", "NotLoaded", "Damaged"}


@dataclass(frozen=True)
class Attempt:
    """One life of the world. failure: how it ended; None for the one that finished. seconds: it lasted."""

    world_size: int
    seconds: float
    failure: Failure | None


@dataclass
class ElasticRun:
    """What became of it. run: the last attempt's."""

    run: Run
    attempts: list[Attempt]

    @property
    def results(self) -> list[Any]:
        """Of the ranks of the attempt that finished."""
        return self.run.results

    def __repr__(self) -> str:
        sizes = ", ".join(str(a.world_size) for a in self.attempts)
        seconds = sum(a.seconds for a in self.attempts)
        return f"ElasticRun({len(self.attempts)} attempts with {sizes} ranks, {seconds:.3f} s)"


class GaveUp(RankFailed):
    """All attempts failed. `attempts` has each; failure and run are those of the last one."""

    def __init__(self, failure: Failure, run: Run, attempts: Sequence[Attempt], why: str) -> None:
        super().__init__(failure, run)
        self.attempts = list(attempts)
        self.args = (f"{why}. The last failure: {self.args[0]}",)


def restarts() -> int:
    """How often the world that this rank belongs to was started anew, by `run_elastic` or by torchrun's agent."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", os.environ.get(_COUNT, "0")))


@plainly
def run_elastic(
    fn: Callable[..., Any], world_size: int, *args: Any, smaller: Smaller = None, max_restarts: int = 3,
    faults: Any = None, **options: Any,
) -> ElasticRun:  # fmt: skip
    """`launch(fn, world_size, *args, **options)`, again and again until it finishes; at most `max_restarts` times more.

    smaller: sizes that will do besides `world_size`. When ranks have died, the next world has as many ranks as are
        left, or fewer: the largest size that will do. Or a function of size and failures that says how many. None: the
        same size always (a process is replaced). A failure without a death leaves the size as it is.
    faults: of the first attempt; or a function of the attempt's number (0 for the first), for more.
    No new attempt is made after a failure that would come again: what was refused, ranks that did different things, and
    an error that was raised twice in the same way without a step between.
    Raises GaveUp, a RankFailed, with all attempts.
    """
    if type(max_restarts) is not int or max_restarts < 0:
        raise RefusedError(f"max_restarts={max_restarts!r}: a whole number, 0 or more")
    if "on_failure" in options:
        raise RefusedError("run_elastic decides what a failure leads to: leave on_failure out")
    if is_torchrun():
        begun = time.perf_counter()
        _join(options)
        run = run_here(fn, world_size, args, options)
        return ElasticRun(run, [Attempt(run.spec.world_size, time.perf_counter() - begun, None)])
    sizes = _sizes(world_size, smaller)
    make_spec(world_size, dict(options))
    attempts: list[Attempt] = []
    size = world_size
    while True:
        number = len(attempts)
        struck = faults(number) if callable(faults) else faults if number == 0 else None
        more = options | ({"faults": struck} if struck else {})
        run = start(_begin, size, number, fn, args, on_failure="return", **more).wait()
        failure = run.failures[0] if run.failures else None
        attempts.append(Attempt(size, run.seconds, failure))
        if failure is None:
            return ElasticRun(run, attempts)
        why = _why_not_again(attempts, max_restarts)
        if not why:
            size = smaller(size, run.failures) if callable(smaller) else _next(size, sizes, run.failures)
            if type(size) is not int or size < 1:
                why = f"no size is left for {attempts[-1].world_size} ranks of which some died: smaller={smaller!r}"
        if why:
            raise GaveUp(failure, run, attempts, why)


def _join(options: dict[str, Any]) -> None:
    """Meet the other ranks of this attempt under torchrun, and not the addresses of an earlier one.

    With --master-port (or nothing said) the agent keeps one store for all attempts, and torch writes the addresses of
    each under the same names. A world that was started again would connect to ranks that are dead.
    """
    import torch.distributed as dist

    if dist.is_initialized() or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    spec = make_spec(size, dict(options))
    limit = timedelta(seconds=spec.timeout + 60)
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=limit)
    anew = dist.PrefixStore(f"attempt-{restarts()}", store)
    dist.init_process_group(spec.backend, store=anew, rank=rank, world_size=size, timeout=limit)


def _begin(group: Any, number: int, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    os.environ[_COUNT] = str(number)
    return fn(group, *args)


def _sizes(world_size: int, smaller: Smaller) -> list[int]:
    if smaller is None or callable(smaller):
        return []
    sizes = list(smaller)
    if not sizes or not all(type(n) is int and 1 <= n < world_size for n in sizes):
        raise RefusedError(f"smaller={sizes}: sizes between 1 and {world_size - 1}, or leave it out")
    return sorted({*sizes, world_size}, reverse=True)


def _next(size: int, sizes: Sequence[int], failures: Sequence[Failure]) -> int:
    """The largest size that will do for the ranks that are left; 0 if none does."""
    left = size - len({f.rank for f in failures if f.kind == "died" and f.rank >= 0})
    return size if not sizes else next((n for n in sizes if n <= left), 0)


def _why_not_again(attempts: Sequence[Attempt], most: int) -> str:
    """Why there is no further attempt; "" if there is one."""
    failure = attempts[-1].failure
    assert failure is not None
    if failure.kind in _FINAL_KINDS or (failure.kind == "raised" and failure.error in _FINAL_ERRORS):
        return "another attempt would end in the same way"
    if len(attempts) > 1 and failure.kind == "raised" and _same(attempts[-2].failure, failure):
        return "the same error was raised twice without a step between"
    if len(attempts) > most:
        return f"it failed {len(attempts)} times, and max_restarts is {most}"
    return ""


def _same(before: Failure | None, now: Failure) -> bool:
    return before is not None and now.step <= before.step and (
        (before.kind, before.error, before.message) == (now.kind, now.error, now.message)  # whichever rank was first
    )  # fmt: skip
