"""A case file: what may have happened, evidence that costs time of the whole fleet, and a verdict.

Each piece of evidence leaves some suspects and rules out the others. While it is gathered the fleet stands still, so
it costs minutes; so does a wrong verdict, after which the fleet is restarted and stands still again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from labkit.course.errors import CourseError, did_you_mean


class Suspect(NamedTuple):
    """A rank, and what it may have done."""

    rank: int
    cause: str


@dataclass(frozen=True)
class Evidence:
    """What can be bought. shows: what is then seen, Markdown. leaves: who may still be at fault, going by it alone.

    minutes: for which the fleet stands still meanwhile. mark: how it came about, "measured" or "emulated". brief: what
    it shows that matters, in a line; "" if that is all of it.
    """

    id: str
    name: str
    minutes: float
    shows: str
    leaves: frozenset[Suspect]
    mark: str = "measured"
    brief: str = ""

    @property
    def line(self) -> str:
        """What it shows, in one line of plain words."""
        return self.brief or "; ".join(line.removeprefix("- ").replace("*", "") for line in self.shows.splitlines())


@dataclass(frozen=True)
class Ruling:
    """What became of a verdict. minutes: that it cost."""

    right: bool
    minutes: float
    text: str


class Case:
    """One case, and what its reader has bought and said so far.

    causes: what each of them is, in words, by its name. size: ranks. truth: who it was. wrong: minutes that a wrong
    verdict costs. gpus: of the fleet that stands still. Raises CourseError for evidence that would rule out the
    truth, or that all together leaves somebody else.
    """

    def __init__(
        self, title: str, symptom: str, causes: Mapping[str, str], size: int, evidence: Iterable[Evidence],
        truth: Suspect, wrong: float = 10.0, gpus: int = 16_384,
    ) -> None:  # fmt: skip
        self.title, self.symptom, self.causes, self.size = title, symptom, dict(causes), size
        self.evidence = {e.id: e for e in evidence}
        self.wrong, self.gpus = wrong, gpus
        self._truth = truth
        self.everyone = frozenset(Suspect(rank, cause) for rank in range(size) for cause in self.causes)
        for e in self.evidence.values():
            if truth not in e.leaves:
                raise CourseError(f"case {title!r}: evidence {e.id!r} rules out the truth {tuple(truth)}")
        if self._left(self.evidence) != {truth}:
            left = sorted(self._left(self.evidence))
            raise CourseError(f"case {title!r}: all evidence together leaves {left}, not the truth alone")
        self.bought: list[str] = []
        self.rulings: list[tuple[Suspect, Ruling]] = []
        self.given_up = False

    # -- what a reader does ----------------------------------------------------------------------------------------

    def buy(self, id: str) -> Evidence:
        """A piece of evidence; what was bought before is free. After the case is closed nothing is paid."""
        if id not in self.evidence:
            raise CourseError(
                f"there is no evidence {id!r}{did_you_mean(id, self.evidence)}: {', '.join(self.evidence)}"
            )
        if id not in self.bought and not self.closed:
            self.bought.append(id)
        return self.evidence[id]

    def accuse(self, rank: int, cause: str) -> Ruling:
        """The verdict: who it was, and what it did. A wrong one costs `wrong` minutes, and the case stays open."""
        if self.closed:
            raise CourseError(f"case {self.title!r} is closed")
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < self.size:
            raise CourseError(f"there is no rank {rank!r}: they are 0 to {self.size - 1}")
        if cause not in self.causes:
            raise CourseError(
                f"there is no cause {cause!r}{did_you_mean(cause, self.causes)}: {', '.join(self.causes)}"
            )
        said = Suspect(rank, cause)
        ruling = self._judged(said)
        self.rulings.append((said, ruling))
        return ruling

    def give_up(self) -> None:
        """Close the case without a verdict."""
        self.given_up = True

    def cheapest_first(self) -> Suspect:
        """What somebody does who buys the cheapest evidence first, until one suspect is left; then the verdict."""
        for e in sorted(self.evidence.values(), key=lambda e: (e.minutes, e.id)):
            if len(self.left) > 1:
                self.buy(e.id)
        said = next(iter(self.left))
        self.accuse(*said)
        return said

    # -- where it stands -------------------------------------------------------------------------------------------

    @property
    def left(self) -> frozenset[Suspect]:
        """Who may still be at fault, going by all that was bought."""
        return self._left(self.bought)

    @property
    def minutes(self) -> float:
        """For which the fleet has stood still so far."""
        return sum(self.evidence[id].minutes for id in self.bought) + sum(r.minutes for _, r in self.rulings)

    @property
    def gpu_hours(self) -> float:
        """The same, as hours of GPUs."""
        return self.minutes * self.gpus / 60

    @property
    def right(self) -> bool:
        """Whether the right verdict was given."""
        return any(ruling.right for _, ruling in self.rulings)

    @property
    def closed(self) -> bool:
        return self.right or self.given_up

    @property
    def truth(self) -> Suspect:
        """Who it was. Raises CourseError while the case is open."""
        if not self.closed:
            raise CourseError(f"case {self.title!r} is open: give a verdict first, or give up")
        return self._truth

    def perfect(self) -> tuple[tuple[str, ...], float]:
        """The cheapest evidence that leaves nobody but the truth, and its minutes: (ids, minutes). For a closed case.

        That is hindsight: who buys this has known what it would show.
        """
        self.truth  # noqa: B018 - raises while the case is open
        choices = [chosen for n in range(len(self.evidence) + 1) for chosen in combinations(self.evidence, n)
                   if self._left(chosen) == {self._truth}]  # fmt: skip
        priced = [(sum(self.evidence[id].minutes for id in chosen), len(chosen), chosen) for chosen in choices]
        minutes, _, chosen = min(priced)
        return chosen, minutes

    # -- inside ----------------------------------------------------------------------------------------------------

    def _left(self, ids: Iterable[str]) -> frozenset[Suspect]:
        return self.everyone.intersection(*(self.evidence[id].leaves for id in ids))

    def _judged(self, said: Suspect) -> Ruling:
        if said == self._truth:
            return Ruling(True, 0.0, f"It was rank {said.rank}: {self.causes[said.cause]}.")
        text = f"The fleet was restarted, and stands still again: {self.wrong:g} minutes."
        if said not in self.left:
            text += " What you have bought had ruled that out already."
        if self._truth.rank == said.rank:
            text += " The rank is right, the cause is not."
        return Ruling(False, self.wrong, text)
