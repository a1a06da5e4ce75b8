"""Grades one submission: the public and hidden checks of the pristine notebook, and what was handed in, in a sandbox.

The checks and this process see data only. An exercise whose answers are the stub is not run at all. What went wrong
on the grader's side is no mark: such a record has no `check_hash`, and the next run of the batch takes it up again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import labkit
from labkit.grading.checks.exercises import Exercises
from labkit.grading.checks.fresh import number_from
from labkit.grading.checks.judge import hash_of
from labkit.grading.checks.marks import state_of
from labkit.grading.checks.pristine import preamble
from labkit.grading.grader.answers import Answer, is_free_response
from labkit.grading.grader.cells import sources_for
from labkit.grading.grader.door import Pace, SandboxStudent
from labkit.grading.grader.pristine import Pristine
from labkit.grading.grader.results import TO_MARK, Given, Graded, GraderInfo, Handed, Result
from labkit.grading.grader.submissions import Submission
from labkit.grading.sandbox import Sandbox, Unavailable, open_sandbox
from labkit.grading.source.exercise import Exercise

STUB = "Not attempted: the answer is still the stub, or is not there."
TROUBLE = "grader"  # the name of the mark that stands for trouble on the grader's side


@dataclass(frozen=True)
class How:
    """How to grade. seed: private. own_numbers: the numbers of `given` follow from the student's name, as they do in
    a notebook where LABKIT_STUDENT is set; otherwise everybody has those of an empty name."""

    seed: int
    tier: str = "best"
    untrusted_ok: bool = False
    own_numbers: bool = False
    factor: float = 1.0

    @property
    def seed_id(self) -> str:
        """Names the seed, and does not tell it."""
        return f"{number_from('the seed', self.seed, self.own_numbers):016x}"[-8:]

    def seed_for(self, notebook: str, exercise: str) -> int:
        """The seed of an exercise's inputs: the same for everybody, so that equal answers get equal marks."""
        return number_from(self.seed, notebook, exercise) % 2**31


def info(pristine: Pristine, how: How) -> GraderInfo:
    """What is written down about the grader."""
    return GraderInfo(
        labkit.__version__, pristine.sha256, pristine.overlay_sha256, how.seed_id, how.tier, float(how.factor)
    )


def grade_one(
    submission: Submission, pristine: Pristine, how: How, only: Collection[str] = (), before: Result | None = None,
    condemned: Mapping[str, str] | None = None, begun: Callable[[str], None] = lambda exercise: None,
) -> Result:  # fmt: skip
    """The result of one submission. how.tier must be a tier that stands, by name.

    only: grade these exercises and take the others from `before`. condemned: exercises at which a grader ended, with
    the reason; they are not tried again. begun: called before each exercise.
    """
    start = time.monotonic()
    exercises = pristine.checks(submission.student if how.own_numbers else "")
    one = _One(submission, pristine, exercises, how)
    graded, stale = [], False
    for exercise in pristine.source.exercises:
        old = before.exercise(exercise.id) if before is not None and only and exercise.id not in only else None
        if old is not None:
            stale |= old.check_hash != one.version(exercise)
            graded.append(old)
            continue
        begun(exercise.id)
        reason = (condemned or {}).get(exercise.id)
        graded.append(one.grade(exercise) if reason is None else one.failed(exercise, reason, 0.0))
    about = info(pristine, how)
    if stale:  # marks of other checks are among them: the next full run grades all again
        about = GraderInfo(about.labkit, "", "", about.seed_id, about.tier, about.slow_factor)
    seconds = round(time.monotonic() - start, 2)
    return Result(submission.student, submission.notebook, submission.handed, about, tuple(graded), seconds)


def could_not(student: str, pristine: Pristine, how: How, reason: str) -> Result:
    """The result of a submission at which the grader ended before it began with an exercise."""
    handed = Handed("", problems=(f"This could not be graded: {reason}",))
    one = _One(Submission(student, pristine.name, handed), pristine, pristine.checks(""), how)
    graded = tuple(one.failed(exercise, reason, 0.0) for exercise in pristine.source.exercises)
    return Result(student, pristine.name, handed, info(pristine, how), graded)


def is_trouble(graded: Graded) -> bool:
    """Whether the grader, and not the student, is why there is no mark."""
    return any(mark.name == TROUBLE and mark.state == "error" for mark in graded.marks)


@dataclass
class _One:
    submission: Submission
    pristine: Pristine
    exercises: Exercises
    how: How
    _preamble: str = field(init=False)

    def __post_init__(self) -> None:
        self._preamble = preamble(self.pristine.source, self.exercises)

    def version(self, exercise: Exercise) -> str:
        checks = self.exercises.checks(exercise.id)
        return hash_of(checks) if checks else ""

    def grade(self, exercise: Exercise) -> Graded:
        """One exercise, by its checks, and as a free response where a person marks it."""
        begin = time.monotonic()
        answers = self.submission.answers[exercise.id]
        checks = self.exercises.checks(exercise.id)
        written = any(not answer.stub for answer in answers)
        marks, output = self._unattempted(exercise), ""
        if checks and written:
            try:
                marks, output = self._judged(exercise)
            except (Unavailable, OSError, RuntimeError) as error:
                return self.failed(exercise, f"{type(error).__name__}: {error}", time.monotonic() - begin)
            trouble = next((mark.sentence for mark in marks if mark.name == TROUBLE), None)
            if trouble is not None:
                return self.failed(exercise, trouble, time.monotonic() - begin)
        free = (_text_of(answers) or None) if is_free_response(exercise) else None
        state = state_of(tuple(marks)) if checks else "unattempted"  # type: ignore[arg-type]
        if free:
            state = TO_MARK
        return Graded(
            exercise.id, exercise.title, exercise.kind, state, sum(m.points for m in marks),
            self._of(exercise), self.version(exercise), round(time.monotonic() - begin, 2), free, output, tuple(marks),
        )  # fmt: skip

    def failed(self, exercise: Exercise, reason: str, seconds: float) -> Graded:
        """The record of an exercise that could not be graded: no points yet, and no version."""
        mark = Given(TROUBLE, "result", 0, 0, f"This could not be graded: {reason}", "error", "", False)
        return Graded(
            exercise.id, exercise.title, exercise.kind, "error", 0, self._of(exercise), "", round(seconds, 2),
            marks=(mark,),
        )  # fmt: skip

    def _of(self, exercise: Exercise) -> float:
        checks = self.exercises.checks(exercise.id)
        if checks and not is_free_response(exercise):
            return sum(check.points for check in checks)  # an overlay may have changed it
        return exercise.points

    def _unattempted(self, exercise: Exercise) -> list[Given]:
        return [
            Given(c.name, c.evidence, 0, c.points, STUB, "unattempted", "", self.pristine.hidden(exercise, c.name))
            for c in self.exercises.checks(exercise.id)
        ]

    def _judged(self, exercise: Exercise) -> tuple[list[Given], str]:
        """The marks of the checks, and what was printed. Trouble of the grader's is a mark called TROUBLE."""
        how, pace = self.how, Pace(self.how.factor)
        with self._sandbox(exercise, pace) as box:
            seed = how.seed_for(self.submission.notebook, exercise.id)
            student = SandboxStudent(box, seed, exercise.id, pace)
            outcome = self.exercises.judge(exercise.id, student)
        marks = [
            Given(m.name, m.kind, m.points, m.of, m.sentence, m.state, m.detail, self.pristine.hidden(exercise, m.name))
            for m in outcome.marks
        ]
        if student.trouble:
            marks.append(Given(TROUBLE, "result", 0, 0, student.trouble, "error"))
        return marks, student.output

    def _sandbox(self, exercise: Exercise, pace: Pace) -> Sandbox:
        sources = sources_for(exercise.id, self.submission.answers, self._preamble)
        return open_sandbox(sources, pace.limits(), self.how.tier, self.how.untrusted_ok)


def _text_of(answers: list[Answer]) -> str:
    return "\n\n".join(a.source for a in answers if a.source is not None and not a.stub)
