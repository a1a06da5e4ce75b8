"""The door from a check to a submission: its functions run in the sandbox, and come back as data and counted bytes.

Both doors (this one and that of a student's notebook) give a check the same evidence and so the same marks. What is
seen differently is brought together here:

limits     A run that does not end is a "limit" for both. Here it has twice the notebook's time, because other
           submissions are graded beside it, and more while its ranks stand in line for a core (sandbox/call.py); and
           all runs of an exercise together have `TOGETHER`.
rounds     The switch delivers in rounds. A notebook computes them from what each rank had waited for (see
           checks/rounds.py), and there a receive that begins after a send of the same rank has ended counts as
           later too: it may find more rounds, so that what passes there passes here.
library    The collectives of labkit that were called, by what the headers of their messages name.
order      What had begun and ended when a rank announced something: rounds here, records there (checks/order.py).
memory     See memory.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.cost.units import MiB, format_bytes
from labkit.grading.checks.notebook import RUN_SECONDS
from labkit.grading.checks.order import order_of_rounds
from labkit.grading.checks.student import Evidence, Failed, Student, StudentError, Unattempted, is_stub
from labkit.grading.grader import memory as peaks
from labkit.grading.sandbox import Evidence as Seen, Failure, Limits, NotData, Sandbox
from labkit.wire.message import name_operation

PATIENCE = 2.0  # times the notebook's limit for one run
TOGETHER = 20.0  # seconds for all runs of one exercise (`Evidence.seconds`); the run in which they pass is the last
TAIL_LINES, TAIL = 20, 2000  # of what was printed
_CELL = re.compile(r'File "<answer [^>]*>"')


@dataclass(frozen=True)
class Pace:
    """How long things may take. factor: of a student who has more time, or of a slow machine."""

    factor: float = 1.0

    @property
    def run(self) -> float:
        return RUN_SECONDS * PATIENCE * self.factor

    @property
    def together(self) -> float:
        return TOGETHER * self.factor

    def limits(self) -> Limits:
        """A rank that waits for a message gives up before the run is over, so that a deadlock is seen as one."""
        return Limits(seconds=self.run, wait=self.run / 2, memory=1024 * MiB, result=64 * MiB)


class SandboxStudent(Student):
    """Functions and variables of answer cells that run behind walls. trouble: what went wrong on the grader's side."""

    def __init__(self, box: Sandbox, seed: int, exercise: str, pace: Pace, worlds: Sequence[int] | None = None):
        super().__init__(seed, exercise, worlds)
        self._box, self._pace = box, pace
        self._spent = 0.0
        self._values: dict[str, Any] = {}
        self.trouble, self.output = "", ""

    def _value(self, name: str) -> Any:
        if self._over is not None:
            raise StudentError("Not run: a run before this one did not end in time.")
        seen = self._ask(lambda: self._box.value(name, seed=self.seed % 2**31))
        if seen.failure is None:
            return seen.results[0]
        failure = self._failed(seen.failure, name)
        if failure.kind == "limit":
            self._over = failure
        if is_stub(failure):
            raise Unattempted(f"{name} is still the stub.")
        said = failure.sentence if failure.kind != "data" else f"{name}: {failure.sentence}"
        raise StudentError(said[:1].upper() + said[1:], failure.detail)

    def _call(
        self, name: str, world_size: int, inputs: Sequence[Any] | None, kwargs: dict[str, Any], memory: bool
    ) -> Evidence:
        if self._spent > self._pace.together:
            return Evidence(failure=Failed("limit", f"all runs together took longer than {self._pace.together:g} s."))
        called, given = peaks.watched(name, kwargs) if memory else (name, kwargs)
        seed = self.seed % 2**31
        try:
            seen = self._ask(lambda: self._box.call(called, world_size, inputs, given, seed=seed, rounds=not memory))
        except NotData as error:  # of the check's own
            self.trouble = f"a check gives {name} what is no data: {error}"
            return Evidence(failure=Failed("sandbox", self.trouble))
        if seen.failure is not None:
            return Evidence(failure=self._failed(seen.failure, name))
        results, peak = peaks.unpacked(seen) if memory else (list(seen.results), [])
        return Evidence(
            results, seen.bytes_sent, [list(row) for row in seen.bytes_between], list(seen.messages), seen.rounds,
            peak, library_of(seen), [] if memory else order_of_rounds(seen.order, world_size),
        )  # fmt: skip

    def _ask(self, question: Callable[[], Seen]) -> Seen:
        """Ask the sandbox; once more if that failed by no fault of the submission's."""
        seen = question()
        if seen.failure is not None and seen.failure.kind == "sandbox":
            seen = question()
        self._spent += seen.seconds
        if seen.output.strip():
            self.output = tail(seen.output)
        return seen

    def _failed(self, failure: Failure, name: str) -> Failed:
        """A failure of the sandbox, in the words that the notebook's door has for it. Raises Unattempted."""
        text = _sentence(failure.text)
        if failure.kind == "missing":
            raise Unattempted(f"There is no {name}: the answer cell does not define it.")
        if failure.kind == "sandbox":
            self.trouble = failure.text
            return Failed("sandbox", f"this could not be run here: {text}")
        if failure.kind == "time":
            return Failed("limit", f"it did not end within {self._pace.run:g} s. Is there a loop that never stops?")
        if failure.kind == "memory":
            most = format_bytes(self._box.limits.memory)
            return Failed("memory", f"a rank needed more memory than the {most} that it may take.", _own(failure))
        if failure.kind in ("wire", "lost"):
            first, _, rest = failure.text.partition("\n")
            return Failed("wire", _sentence(first), "\n".join(p for p in (rest, _own(failure)) if p), failure.error)
        if failure.kind == "raised":
            who = f"rank {failure.rank}" if failure.rank >= 0 else "a rank"
            said = _sentence(f"{who} raised {failure.error}: {failure.text}")
            if failure.error == "NameError":
                said += " Only the answer cells are run: what an answer needs must stand in it."
            return Failed("raised", said, _own(failure), failure.error)
        return Failed(failure.kind, text, _own(failure), failure.error)


def library_of(seen: Seen) -> list[str]:
    """labkit's own collectives, by name, as the headers of messages claim."""
    return sorted({name_operation(m.operation, 0).partition(" (")[0] for m in seen.order if m.operation})


def tail(text: str) -> str:
    """The last lines of what was printed."""
    return "\n".join(text.rstrip().splitlines()[-TAIL_LINES:])[-TAIL:]


def _own(failure: Failure) -> str:
    """The student's own traceback, with the cell called a cell."""
    return _CELL.sub("File your cell", peaks.without_probe(failure.traceback)).strip()


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else text + "."
