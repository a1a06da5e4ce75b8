"""`Student`: the only door from a check to a student's work, and `Evidence`, what a run of it left.

A check is written against the methods below and nothing else, so that the same lines run where the student's
functions are at hand (a notebook) and where they are behind a wall (a grader that has only data and counted bytes).
Who implements a door writes `_call` and `_value`; everything else is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from labkit.grading.answers import Key
from labkit.grading.checks.fresh import Fresh
from labkit.grading.checks.order import Order
from labkit.grading.checks.wording import difference, fill

Slips = dict[str, Sequence[object]]  # a wrong result, by rank, under the sentence that explains it


class NotRight(Exception):
    """A check is not satisfied; the text is the sentence for the student."""


class Unattempted(Exception):
    """There is nothing to judge yet: a stub, `answer = None`, or a cell that was not run."""


class StudentError(Exception):
    """The student's own code failed. detail: its traceback, or the diagnosis of a hang."""

    def __init__(self, sentence: str, detail: str = ""):
        super().__init__(sentence)
        self.detail = detail


@dataclass(frozen=True)
class Failed:
    """Why a run failed. kind: as `labkit.Failure.kind`, "limit" (too slow) or "data" (a result that is no data)."""

    kind: str
    sentence: str
    detail: str = ""
    error: str = ""  # the name of the exception


def is_stub(failure: Failed) -> bool:
    """Whether this is the stub's own NotImplementedError, and none of PyTorch's, which has a few of them."""
    torchs = ("not implemented for", "Could not run", "missing the required")
    return failure.error == "NotImplementedError" and not any(words in failure.sentence for words in torchs)


@dataclass(frozen=True)
class Evidence:
    """What a run of a student's function left, by rank. There are no seconds: wall time is never graded.

    results: what each rank returned, as data. bytes_sent, messages: payload bytes and messages that each rank sent.
    bytes_between: bytes from each rank (row) to each rank. rounds: messages that had to follow one another.
    peak_bytes: memory that tensors took at most, the input included; empty unless asked for.
    library: labkit's own collectives that were called ("all_reduce"). order: what each rank began and ended, and in
    which order (checks/order.py); empty where memory was asked for. failure: None, or why there is nothing else.
    """

    results: list[Any] = field(default_factory=list)
    bytes_sent: list[int] = field(default_factory=list)
    bytes_between: list[list[int]] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    rounds: int = 0
    peak_bytes: list[int] = field(default_factory=list)
    library: list[str] = field(default_factory=list)
    order: list[Order] = field(default_factory=list)
    failure: Failed | None = None


class Student(ABC):
    """A student's work, as a check sees it. seed: of this run of the checks; all inputs follow from it."""

    def __init__(self, seed: int, exercise: str, worlds: Sequence[int] | None = None):
        self.seed = seed
        self._fresh = Fresh(seed, exercise, worlds)
        self._runs: list[tuple[tuple[Any, ...], Evidence]] = []
        self._stubs: set[str] = set()  # functions that are known to be stubs: not run again
        self._over: Failed | None = None  # a run that reached its limit: nothing else is started

    # -- what a door must do -------------------------------------------------------------------------------------

    @abstractmethod
    def _call(
        self, name: str, world_size: int, inputs: Sequence[Any] | None, kwargs: dict[str, Any], memory: bool
    ) -> Evidence:
        """Call the function `name` as fn(inputs[rank], group, **kwargs) on every rank; fn(group, **kwargs) if None."""

    @abstractmethod
    def _value(self, name: str) -> Any:
        """The value of a variable of the student's, as data. Raises Unattempted or StudentError."""

    # -- what a check says ---------------------------------------------------------------------------------------

    def run(
        self, name: str, world_size: int, inputs: Sequence[Any] | None = None, *, memory: bool = False, **kwargs: Any
    ) -> Evidence:
        """Run a function of the student's on `world_size` real ranks, rank r with inputs[r].

        The same call is made once for all checks of an exercise. memory: also watch the memory of tensors.
        Raises Unattempted for a stub, and StudentError where a rank raises, hangs, disagrees or takes too long.
        """
        if name in self._stubs:
            raise Unattempted(f"{name} is still the stub.")
        question = (name, world_size, inputs, memory, kwargs)
        known = next((e for q, e in self._runs if same(q, question)), None)
        if known is None:
            if self._over is not None:
                raise StudentError("Not run: a run before this one did not end in time.")
            known = self._call(name, world_size, inputs, kwargs, memory)
            self._runs.append((question, known))
        failure = known.failure
        if failure is None:
            return known
        if is_stub(failure):
            self._stubs.add(name)
            raise Unattempted(f"{name} is still the stub.")
        if failure.kind == "limit":
            self._over = failure
        ranks = f"{world_size} rank{'s' * (world_size != 1)}"
        raise StudentError(f"With {ranks}: {failure.sentence}", failure.detail)

    def value(self, name: str) -> Any:
        """The value of a variable. Raises Unattempted where it is None or not there."""
        found = self._value(name)
        if found is None:
            raise Unattempted(f"{name} is still None.")
        return found

    def sizes(self, worlds: Sequence[int] = (1, 3, 5), **ranges: Sequence[int]) -> Iterator[Any]:
        """World sizes with fresh numbers: `for n, rows in student.sizes((1, 3, 5), rows=(7, 64))`."""
        return self._fresh.sizes(worlds, **ranges)

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A fresh tensor of small whole numbers: their sums are exact, so that results may be compared exactly."""
        return self._fresh.tensor(*shape, dtype=dtype)

    def expect(self, holds: Any, sentence: str, **values: Any) -> None:
        """Go on if `holds`; else the check ends with `sentence`. Raises NotRight."""
        if not bool(holds):
            raise NotRight(fill(sentence, values))

    def expect_by_rank(self, got: Sequence[Any], expected: Sequence[Any], sentence: str, **values: Any) -> None:
        """Go on if the lists are equal; else end with `sentence` on the rank that is furthest off.

        The sentence may name {rank}, {got}, {expected} and `values`; {got:bytes} writes a number of bytes. A value
        may be a function of (got, expected): a likely cause.
        """
        if list(got) == list(expected):
            return
        off = [abs(g - e) for g, e in zip(got, expected, strict=True)]
        rank = off.index(max(off))
        said = {k: v(got[rank], expected[rank]) if callable(v) else v for k, v in values.items()}
        raise NotRight(fill(sentence, {"rank": rank, "got": got[rank], "expected": expected[rank], **said}).strip())

    def expect_results(
        self, run: Evidence, expected: Sequence[Any], slips: Slips | None = None, within: float = 0.0
    ) -> None:
        """Go on if every rank returned what is expected. Else say the slip that explains it, or what differs where.

        within: how far an entry may be off, as a part of the largest of its tensor. For averages, which round
        differently in each order.
        """
        results = [near_is_equal(got, want, within) for got, want in zip(run.results, expected, strict=True)]
        if same(results, list(expected)):
            return
        for sentence, wrong in (slips or {}).items():
            if len(wrong) == len(results) and same(near_is_equal(run.results, list(wrong), within), list(wrong)):
                raise NotRight(sentence)
        n = len(expected)
        for rank, (got, want) in enumerate(zip(results, expected, strict=True)):
            if not same(got, want):
                raise NotRight(f"With {n} rank{'s' * (n != 1)}: {difference(rank, got, want)}")

    def expect_answer(self, name: str, key: Key) -> None:
        """Judge the variable `name` by a key of `labkit.grading.answers`."""
        feedback = key.mark(self.value(name))
        if not feedback.right:
            raise NotRight(feedback.why)

    def begin_check(self) -> None:
        """Called before each check: it gets the same fresh tensors as the one before."""
        self._fresh.restart()


def near_is_equal(got: Any, want: Any, within: float) -> Any:
    """`got`, where entries at most `within` (of the largest of `want`) away from those of `want` become them."""
    if isinstance(got, (list, tuple)) and type(got) is type(want) and len(got) == len(want):
        return type(got)(near_is_equal(g, w, within) for g, w in zip(got, want, strict=True))
    both = isinstance(got, Tensor) and isinstance(want, Tensor)
    if not within or not both or got.dtype != want.dtype or got.shape != want.shape or not want.is_floating_point():
        return got
    largest = float(want.abs().max()) if want.numel() else 0.0
    return torch.where((got - want).abs() <= within * max(1.0, largest), want, got)


def same(a: Any, b: Any) -> bool:
    """Equal data: tensors by dtype, shape and every entry; True is not 1, a list is not a tuple."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        both = isinstance(a, Tensor) and isinstance(b, Tensor)
        return both and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return bool(a == b)
