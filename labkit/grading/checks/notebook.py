"""The door to a student's work in the student's own notebook: its functions, run on real ranks by `labkit.launch`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import labkit
from labkit.grading.checks.data import NotData, as_data
from labkit.grading.checks.order import order_of_trace
from labkit.grading.checks.rounds import rounds_of
from labkit.grading.checks.student import Evidence, Failed, Student, StudentError, Unattempted
from labkit.grading.checks.wording import cleaned
from labkit.wire import Group
from labkit.world import Failure

RUN_SECONDS = 2.0  # the longest that one run of a student's function may take
SLOW = "LABKIT_SLOW_MACHINE"  # a factor on every limit, for machines (and readers) that need more time


def limit_seconds() -> float:
    """The limit of one run, here."""
    try:
        factor = float(os.environ.get(SLOW, "1"))
    except ValueError:
        factor = 1.0
    return RUN_SECONDS * min(max(factor, 1.0), 100.0)


class OnRank:
    """What a rank of a check does: fn(its own input, group, **kwargs)."""

    def __init__(self, fn: Callable[..., Any], inputs: Sequence[Any] | None, kwargs: dict[str, Any], memory: bool):
        self.fn, self.inputs, self.kwargs, self.memory = fn, inputs, kwargs, memory

    def __call__(self, group: Group) -> Any:
        if self.memory:
            _look_at_messages(group)
        if self.inputs is None:
            return self.fn(group, **self.kwargs)
        mine = _own(self.inputs[group.rank])
        self.inputs = None
        return self.fn(mine, group, **self.kwargs)


def _own(value: Any) -> Any:
    """A copy that counts as this rank's own memory, of tensors in lists and dictionaries too."""
    if type(value) in (list, tuple):
        return type(value)(map(_own, value))
    if type(value) is dict:
        return {key: _own(item) for key, item in value.items()}
    return value.clone() if hasattr(value, "clone") else value


def _look_at_messages(group: Group) -> None:
    """Count tensors at messages and collectives too: between two marks a copy could come and go unseen."""
    sampler = group.context.sampler

    def looking(do: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if sampler is not None:
                sampler.sample()
            return do(*args, **kwargs)

        return call

    for word in ("send", "recv", "exchange", "isend", "irecv", "run_collective"):
        setattr(group, word, looking(getattr(group, word)))


class NotebookStudent(Student):
    """Functions and variables of a notebook's namespace. patience: how many times the usual limit a run may take."""

    patience = 1.0

    def __init__(self, names: Mapping[str, Any], seed: int, exercise: str, worlds: Sequence[int] | None = None):
        super().__init__(seed, exercise, worlds)
        self._names = names

    def _value(self, name: str) -> Any:
        if name not in self._names:
            raise Unattempted(f"There is no {name} yet: run the cell of your answer.")
        try:
            return as_data(self._names[name])
        except NotData as error:
            raise StudentError(f"{name}: {error}.".replace("it returned", "it is")) from None

    def _call(
        self, name: str, world_size: int, inputs: Sequence[Any] | None, kwargs: dict[str, Any], memory: bool
    ) -> Evidence:
        fn = self._names.get(name)
        if fn is None:
            raise Unattempted(f"There is no {name} yet: run the cell of your answer.")
        if not callable(fn):
            raise StudentError(f"{name} should be a function. Here it is of type {type(fn).__name__}.")
        limit = self.patience * limit_seconds()
        run = labkit.launch(
            OnRank(fn, inputs, kwargs, memory), world_size, transport="local", on_failure="return", deadline=limit,
            timeout=limit, seed=self.seed, memory="resident" if memory else None,
        )  # fmt: skip
        if run.failures:
            return Evidence(failure=failed(run.failures[0], limit))
        try:
            results = [as_data(result) for result in run.results]
        except NotData as error:
            return Evidence(failure=Failed("data", f"{error}."))
        trace = run.trace
        return Evidence(
            results, trace.bytes_sent(), trace.bytes_between(), trace.messages(), rounds_of(trace),
            trace.peak_bytes() if memory else [], sorted({c.name for c in trace.collectives()}),
            [] if memory else order_of_trace(trace),
        )  # fmt: skip


def failed(failure: Failure, limit: float) -> Failed:
    """A failure of a launch, for the student."""
    detail = cleaned(failure.traceback)
    if failure.kind == "deadline" or failure.kind == "timeout":
        doing = sorted({f"rank {r} {what}" for r, what in failure.waiting.items()})
        where = "\n".join(doing)
        return Failed("limit", f"it did not end within {limit:g} s. Is there a loop that never stops?", where)
    if failure.kind in ("deadlock", "mismatch", "lost"):
        first, _, rest = failure.message.partition("\n")
        return Failed(failure.kind, f"{_sentence(first)}", "\n".join(part for part in (rest, detail) if part))
    if failure.kind in ("raised", "exit", "wire"):
        who = f"rank {failure.rank}" if failure.rank >= 0 else "a rank"
        text = f"{who} raised {failure.error}: {failure.message}"
        return Failed(failure.kind, _sentence(text), detail, failure.error)
    return Failed(failure.kind, _sentence(f"{failure.error}: {failure.message}"), detail, failure.error)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else text + "."
