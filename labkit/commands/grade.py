"""`labkit grade`: marks and feedback for a folder of submissions, whose code runs in a sandbox and nowhere else."""

import os
import secrets
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from labkit.commands import UsageError
from labkit.commands.chapters import all_chapters, find_chapter, notebooks_dir
from labkit.commands.environment import answers_in
from labkit.commands.grade_options import Wanted

if TYPE_CHECKING:
    from labkit.grading.gradebook import GradebookOptions
    from labkit.grading.grader.batch import Done, Task
    from labkit.grading.grader.pristine import Pristine
    from labkit.grading.grader.results import Result

SEED = ".seed"  # in the folder of results; only its owner may read it


def grade(wanted: Wanted, notebooks: Path | None = None) -> int:
    """Grade, and write results, gradebook and feedback below `wanted.out`.

    Returns 0; 1 if something could not be graded, for which the same command tries again; 130 if interrupted, when all
    that is finished is kept. Raises UsageError.
    """
    with answers_in(_solutions(notebooks)):
        return _grade(wanted, notebooks)


def _grade(wanted: Wanted, notebooks: Path | None) -> int:
    from labkit.grading.gradebook import PolicyError, write
    from labkit.grading.grader.batch import Batch, cores
    from labkit.grading.grader.one import How, is_trouble

    students = _students(wanted)
    options = _options(wanted)
    pristine = _pristine(wanted, students, notebooks)
    tier = _tier(wanted)
    how = How(_seed(wanted), tier, wanted.untrusted_ok, wanted.own_numbers)
    tasks = _tasks(wanted, students, pristine, options)
    jobs = wanted.jobs or min(cores(), max(len(tasks), 1))
    batch = Batch(wanted.submissions, wanted.out, pristine, how, overlay=wanted.overlay, jobs=jobs, fresh=wanted.fresh)
    print(f"{len(students)} students, {', '.join(pristine)}: {len(tasks)} notebooks, {jobs} at a time", flush=True)
    results: list[Result] = []
    with Progress(len(tasks), anonymous=wanted.anonymous) as progress:
        try:
            for done in batch.run(tasks):
                results.append(done.result)
                progress.tell(done)
        except KeyboardInterrupt:
            progress.close()
            print(f"Stopped: {len(results)} of {len(tasks)} are graded and kept in {wanted.out / 'results'}. "
                  "Give the same command again to go on.", file=sys.stderr)  # fmt: skip
            return 130
    results.sort(key=lambda result: (result.student, result.notebook))
    try:
        print(write(wanted.out, results, options).summary)
    except PolicyError as error:
        raise UsageError(str(error)) from None
    troubles = [(r, g) for r in results for g in r.exercises if is_trouble(g)]
    for result, graded in troubles:
        who = "a student" if wanted.anonymous else result.student
        print(f"{who}, {result.notebook}, {graded.exercise}: {graded.marks[-1].sentence}", file=sys.stderr)
    if troubles:
        print("These have no points yet: give the same command again, or mark them by an override.", file=sys.stderr)
    return 1 if troubles else 0


def _students(wanted: Wanted) -> list[str]:
    from labkit.grading.grader.submissions import students_in

    folder, out = wanted.submissions.resolve(), wanted.out.resolve()
    if not folder.is_dir():
        raise UsageError(f"there is no folder {wanted.submissions}: give the one that holds a folder for each student")
    if out == folder or folder in out.parents or out in folder.parents:
        raise UsageError("--out and the submissions lie in one another: choose a folder of its own for the results")
    students = students_in(folder)
    if not students:
        raise UsageError(f"{wanted.submissions} holds no folder: each student's notebooks lie in one of their own")
    return students


def _options(wanted: Wanted) -> "GradebookOptions":
    from labkit.grading.gradebook import PolicyError, read_options

    try:
        return read_options(
            accommodations=wanted.accommodations, overrides=wanted.overrides, rubric=wanted.rubric,
            deadline=wanted.deadline, anonymous=wanted.anonymous, roster=wanted.roster,
        )  # fmt: skip
    except (PolicyError, OSError) as error:
        raise UsageError(str(error)) from None


def _solutions(notebooks: Path | None) -> Path:
    return (notebooks or notebooks_dir()).parent / "solutions"


def _pristine(wanted: Wanted, students: Sequence[str], notebooks: Path | None) -> dict[str, "Pristine"]:
    """The sources to grade against, by notebook: those asked for, or those of which anybody handed in something."""
    from labkit.grading.grader.pristine import OverlayError, Pristine
    from labkit.grading.grader.submissions import find_notebook
    from labkit.grading.source import SourceError

    folder = _solutions(notebooks)
    if not folder.is_dir():
        raise UsageError(f"there is no {folder}: only a clone of the repository has the sources of exercises")
    chapters = [find_chapter(folder, name) for name in wanted.chapters]
    if not chapters:
        chapters = [
            chapter for chapter in all_chapters(folder)
            if any(find_notebook(wanted.submissions, student, chapter.path.stem, []) for student in students)
        ]  # fmt: skip
    if not chapters:
        names = ", ".join(chapter.path.name for chapter in all_chapters(folder))
        raise UsageError(f"nobody handed in one of {names} in {wanted.submissions}: files keep the names they had")
    if wanted.overlay is not None and not wanted.overlay.is_dir():
        raise UsageError(f"--overlay {wanted.overlay}: there is no such folder")
    try:
        found = {chapter.path.stem: Pristine(chapter.path, wanted.overlay) for chapter in chapters}
        for pristine in found.values():
            pristine.checks("")
    except (SourceError, OverlayError) as error:
        raise UsageError(str(error)) from None
    ids = {id for pristine in found.values() for id in pristine.source.ids}
    if unknown := sorted(set(wanted.only) - ids):
        raise UsageError(f"--only {unknown[0]}: there is no such exercise; there are {', '.join(sorted(ids))}")
    return found


def _tier(wanted: Wanted) -> str:
    """The tier that will be in force, by name; says it. Raises UsageError where no wall stands."""
    from labkit.grading.sandbox import Unavailable, open_sandbox, tier_report
    from labkit.wire.errors import RefusedError

    try:
        with open_sandbox([], tier=wanted.tier, untrusted_ok=wanted.untrusted_ok) as box:
            tier = box.tier
    except (Unavailable, RefusedError) as error:
        raise UsageError(str(error)) from None
    print(tier_report(tier), flush=True)
    return tier


def _seed(wanted: Wanted) -> int:
    """The private seed: the one given, or the one that is kept beside the results."""
    if wanted.seed is not None:
        return wanted.seed
    path = wanted.out / SEED
    wanted.out.mkdir(parents=True, exist_ok=True)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        try:
            return int(path.read_text(encoding="ascii"))
        except ValueError:
            raise UsageError(f"{path} holds no number: delete it, and all is graded again with a new one") from None
    with open(fd, "w", encoding="ascii") as file:
        seed = secrets.randbits(62)
        file.write(f"{seed}\n")
    return seed


def _tasks(
    wanted: Wanted, students: Sequence[str], pristine: dict[str, "Pristine"], options: "GradebookOptions"
) -> list["Task"]:
    from labkit.grading.grader.batch import Task

    found = []
    for student in students:
        granted = options.accommodations.get(student)
        factor = granted.slow_factor if granted is not None else 1.0
        for name, book in pristine.items():
            only = [id for id in book.source.ids if id in wanted.only]
            if only or not wanted.only:
                found.append(Task(student, name, factor, only))
    return found


class Progress:
    """A bar on a terminal, a line for each notebook elsewhere. anonymous: without names."""

    def __init__(self, total: int, anonymous: bool = False, to: TextIO | None = None):
        self.total, self.anonymous, self.to = total, anonymous, to or sys.stdout
        self.done = self.kept = 0
        self.begin, self.bar = time.monotonic(), self.to.isatty()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tell(self, done: "Done") -> None:
        """One more is done."""
        self.done += 1
        self.kept += done.kept
        result = done.result
        who = f"{self.done} of {self.total}" if self.anonymous else f"{result.student} {result.notebook}"
        how = "kept from before" if done.kept else f"{result.seconds:.1f} s"
        text = f"{who}: {result.points:g} of {result.of:g} points, {how}"
        if not self.bar:
            print(text, file=self.to, flush=True)
            return
        full = 20 * self.done // max(self.total, 1)
        line = f"[{'#' * full}{'.' * (20 - full)}] {self.done}/{self.total}  {text}"
        width = shutil.get_terminal_size().columns - 1
        print(f"\r{line[:width]:<{width}}", end="", file=self.to, flush=True)

    def close(self) -> None:
        """End the line of the bar."""
        if self.bar and self.done:
            print(file=self.to)
        self.bar = False
