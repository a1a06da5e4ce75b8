"""A fault-tolerant run in words and rows: what a reader who does not see the picture is told."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import listing, plural, seconds_text, short
from labkit.book.fault_tolerant.story import Phase, Story


def sentence(story: Story) -> str:
    """How far it is, how fast, and what it lost, in a few sentences."""
    if not story.steps:
        return "No step is committed yet."
    last = story.steps[-1]
    said = [f"{plural(len(story.steps), 'step')} with {story.samples} samples are committed"
            f" after {seconds_text(story.now)}"]  # fmt: skip
    if story.lost:
        many = len(story.lost) > 1
        said.append(f"{len(story.lost)} more {'were' if many else 'was'} trained and lost, with all who had "
                    f"{'their' if many else 'its'} state")  # fmt: skip
    losses = [s.loss for s in story.steps if s.loss is not None]
    if losses:
        said.append(f"The loss went from {short(losses[0])} to {short(losses[-1])}")
    fewest = min(len(s.trained) for s in story.steps)
    if fewest < story.replicas:
        few = sum(len(s.trained) < story.replicas for s in story.steps)
        said.append(f"{plural(few, 'step')} had fewer than {story.replicas} replicas, at least {fewest}")
    if story.usual is not None:
        still = story.stills()
        told = f"A usual step takes {seconds_text(story.usual)}"
        if still:
            told += (f"; {plural(len(still), 'step')} took more than twice that: {seconds_text(story.standing)} longer "
                     f"than usual{', in all' if len(still) > 1 else ''}")  # fmt: skip
        said.append(told)
    if not story.over:
        said.append(f"Step {last.step} was trained by {replicas_text(last.trained)}")
    return ". ".join(said) + "."


def replicas_text(replicas: Sequence[int]) -> str:
    """The replicas by number: replica 1; replicas 0, 1 and 3; none."""
    if not replicas:
        return "none"
    return ("replica " if len(replicas) == 1 else "replicas ") + listing([str(r) for r in replicas])


def rows(story: Story) -> list[Row]:
    """A row for each step."""
    return [
        {"step": s.step, "at, s": round(s.at, 3), "took, s": None if s.seconds is None else round(s.seconds, 3),
         "samples a second": None if s.rate is None else round(s.rate, 1),
         "trained by": ", ".join(map(str, s.trained)), "zeros from": ", ".join(map(str, s.zeros)) or "-",
         "quorum": s.quorum, "loss": None if s.loss is None else round(s.loss, 4)}
        for s in story.steps
    ]  # fmt: skip


def membership_rows(story: Story) -> list[Row]:
    """A row for each stretch of steps with the same members."""
    return [
        {"steps": str(a) if a == b else f"{a} to {b}", "trained by": ", ".join(map(str, trained)),
         "zeros from": ", ".join(map(str, zeros)) or "-"}
        for a, b, trained, zeros in story.memberships()
    ]  # fmt: skip


def happenings(story: Story) -> list[str]:
    """What was lost and what came back, oldest first."""
    told = [(m.at, f"{m.at:.2f} s  replica {m.replica}: {m.text}") for m in story.marks]
    for r in range(story.replicas):
        for (before, _, last), (role, first, _) in _turns(story, r):
            if role == "trains" and before != "trains":
                told.append((first.at, f"{first.at:.2f} s  replica {r}: trains again from step {first.step}"))
            if role == "is away" and before == "trains":
                told.append((last.at, f"{last.at:.2f} s  replica {r}: its last step for now is {last.step}"))
    if story.lost and story.steps[0].at > story.lost[0].at:
        first = story.steps[0]
        told.append((first.at, f"{first.at:.2f} s  all replicas: nobody was left with a state, so step {first.step} is "
                     "trained anew"))  # fmt: skip
    return [text for _, text in sorted(told)]


def _turns(story: Story, replica: int) -> list[tuple[Phase, Phase]]:
    found = story.phases(replica)
    return list(zip(found, found[1:], strict=False))
