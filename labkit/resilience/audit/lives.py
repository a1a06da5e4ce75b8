"""One life of one rank, read line by line: does each line follow from the one before?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .records import Commit, Fetch, Line, Start, Vote


@dataclass
class RankLife:
    """A rank from its start to its end. step, state: where it stood in the end, and the checksum of that."""

    replica: int
    rank: int
    incarnation: int
    step: int = -1
    state: str = ""
    positions: tuple[int, ...] = ()
    starts: list[Start] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    votes: dict[tuple[int, int], Vote] = field(default_factory=dict)  # by (step, quorum)
    commits: dict[int, Commit] = field(default_factory=dict)  # by step, the last one
    all_commits: list[Commit] = field(default_factory=list)
    before: dict[tuple[int, str], tuple[int, ...]] = field(default_factory=dict)  # (step, state) -> positions
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"replica {self.replica} rank {self.rank} (incarnation {self.incarnation})"

    def wrong(self, text: str) -> None:
        self.problems.append(f"{self}: {text}")

    # -- one line ------------------------------------------------------------------------------------------------

    def take(self, line: Line) -> None:
        """The next line of this life."""
        if isinstance(line, Start):
            if self.step >= 0:
                self.wrong(f"started a second time, at step {line.step}")
            self.starts.append(line)
            self._stand(line.step, line.checksum, line.positions)
        elif isinstance(line, Fetch):
            if line.source == self.replica:
                self.wrong(f"fetched step {line.step} from itself")
            if line.step < self.step:
                self.wrong(f"fetched step {line.step} while it was at step {self.step}: a state that is older")
            self.fetches.append(line)
            self._stand(line.step, line.checksum, line.positions)
        elif isinstance(line, Vote):
            self._vote(line)
        elif isinstance(line, Commit):
            self._commit(line)

    def _stand(self, step: int, state: str, positions: tuple[int, ...]) -> None:
        self.step, self.state, self.positions = step, state, positions
        self.before[step, state] = positions

    def _vote(self, vote: Vote) -> None:
        key = (vote.step, vote.quorum)
        if key in self.votes:
            self.wrong(f"voted twice on step {vote.step} in quorum {vote.quorum}")
        if vote.yes and vote.step != self.step:
            self.wrong(f"voted for step {vote.step} while it was at step {self.step}")
        first, last = vote.samples
        if first > last or (first < last and self.positions and first != self.positions[self.replica]):
            self.wrong(f"used samples {first} to {last} in step {vote.step}, and its state says that "
                       f"{self.positions[self.replica]} are consumed")  # fmt: skip
        self.votes[key] = vote

    def _commit(self, commit: Commit) -> None:
        step = commit.step
        if self.step < 0:
            self.wrong(f"committed step {step} on a state from nowhere")
        elif step != self.step:
            self.wrong(f"committed step {step} while it was at step {self.step}")
        elif commit.parent != self.state:
            self.wrong(f"committed step {step} on state {commit.parent}, and the one it had was {self.state}")
        vote = self.votes.get((step, commit.quorum))
        if vote is None or not vote.yes:
            what = "without a vote" if vote is None else f"though it voted against it ({vote.why})"
            self.wrong(f"committed step {step} of quorum {commit.quorum} {what}")
        if self.positions:
            self._moved(commit)
        self.commits[step] = commit
        self.all_commits.append(commit)
        self._stand(step + 1, commit.checksum, commit.positions)

    def _moved(self, commit: Commit) -> None:
        """Whether the positions moved for the contributors and for nobody else."""
        if not commit.contributors:
            self.wrong(f"committed step {commit.step} to which nobody contributed")
        for r, (before, after) in enumerate(zip(self.positions, commit.positions, strict=True)):
            if r in commit.contributors and after <= before:
                self.wrong(
                    f"step {commit.step} took no samples of replica {r}, which contributed ({before} to {after})"
                )
            if r not in commit.contributors and after != before:
                self.wrong(f"step {commit.step} moved replica {r}, which did not contribute, from {before} to {after}")


def lives(lines: Sequence[Line]) -> list[RankLife]:
    """The lives of all ranks, each read in order."""
    found: dict[tuple[int, int, int], RankLife] = {}
    for line in lines:
        place = (line.replica, line.rank, line.incarnation)
        if place not in found:
            found[place] = RankLife(*place)
        found[place].take(line)
    return list(found.values())
