"""`labkit bench grade`: how long grading takes a submission, and whether it judges right, for a class of thirty.

Chapter 3: the solution and its variants, every mutant of the zoo, and answers that attack the grader. Two submissions
are graded at a time, as on two cores. Seconds are those of the wall clock, in a grader that is running already.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from labkit.grading.checks.marks import STATES
from labkit.grading.grader.batch import Batch, Task
from labkit.grading.grader.door import Pace
from labkit.grading.grader.one import How
from labkit.grading.grader.pristine import Pristine
from labkit.grading.grader.results import Result
from labkit.grading.sandbox import open_sandbox

from .grade_class import NAME, ROOT, SECRET, Member, hand_in, members, programs, source
from .ratios import save, table

TARGET = 10.0  # seconds of a submission, the median
LOOT = (
    SECRET,
    "### BEGIN SOLUTION",
    "BEGIN HIDDEN",
    '"labkit": {"exercise"',
    "worker.py",
)  # of files and of the grader


def main(argv: list[str] | None = None) -> int:
    """Grade and print; returns 1 if a mutant was accepted, a variant rejected, or an attack gained something."""
    parser = argparse.ArgumentParser(prog="labkit bench grade", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="take every n-th student only")
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="labkit-bench-") as folder:
        found = measure(Path(folder), options.jobs, options.every)
    print(words(found))
    save(options.json, found)
    return 0 if not (found["mutants accepted"] or found["variants rejected"] or found["attacks that gained"]) else 1


def measure(folder: Path, jobs: int = 2, every: int = 1) -> dict[str, Any]:
    """Numbers about a class that is graded in `folder`: every `every`-th of its students."""
    secret = folder / "secret.txt"
    secret.write_text(SECRET)
    pristine = Pristine(ROOT / "solutions" / f"{NAME}.ipynb")
    secrets = [secret, pristine.path, folder / "submissions" / "solution-01" / f"{NAME}.ipynb"]
    chosen = {member.name: member for member in members(secrets)[::every]}
    book = source()
    for member in chosen.values():
        hand_in(folder / "submissions", member, book)
    with open_sandbox([]) as box:
        tier = box.tier
    batch = Batch(folder / "submissions", folder / "graded", {NAME: pristine}, How(20_26, tier), jobs=jobs)
    results = [done.result for done in batch.run([Task(name, NAME) for name in chosen])]
    return judged(chosen, results, programs(book)) | {"tier": tier, "jobs": jobs}


def judged(chosen: dict[str, Member], results: list[Result], programs: list[str]) -> dict[str, Any]:
    """What came out, against what each student is."""
    accepted, rejected, gained = [], [], []
    seconds: dict[str, list[float]] = {"right": [], "mutant": [], "hostile": []}
    for result in results:
        member = chosen[result.student]
        seconds[member.kind].append(result.seconds)
        for graded in result.exercises:
            place = f"{result.student}: {graded.exercise}"
            attacked = member.kind == "hostile" and graded.exercise in programs
            if member.kind == "mutant" and graded.exercise in member.answers and graded.state == "right":
                accepted.append(place)
            loot = any(word in graded.output for word in LOOT)
            if attacked and (graded.state == "right" or loot or graded.state not in STATES):
                gained.append(place)
            ours = graded.exercise not in member.answers or member.kind == "right"
            if ours and graded.kind != "explanation" and graded.state != "right":
                rejected.append(place)
    return {
        "seconds": seconds, "students": len(results), "mutants accepted": accepted, "variants rejected": rejected,
        "attacks that gained": gained, "limit of a submission": len(programs) * (Pace().together + Pace().run),
    }  # fmt: skip


def words(found: dict[str, Any]) -> str:
    """For a terminal."""
    seconds = found["seconds"]
    rows = [
        {"submissions": kind, "number": len(values), "median s": statistics.median(values), "worst s": max(values)}
        for kind, values in seconds.items() if values
    ]  # fmt: skip
    everything = [second for values in seconds.values() for second in values]
    lines = [
        table(rows), "",
        f"{found['students']} submissions, {found['jobs']} at a time, tier {found['tier']}",
        f"median {statistics.median(everything):.1f} s a submission (target at most {TARGET:g}), "
        f"worst {max(everything):.1f} s",
        f"limit of what the programs of one submission may take: {found['limit of a submission']:g} s",
    ]  # fmt: skip
    for what in ("mutants accepted", "variants rejected", "attacks that gained"):
        lines.append(f"{what}: {len(found[what])} (must be 0) {', '.join(found[what])}".rstrip())
    return "\n".join(lines)
