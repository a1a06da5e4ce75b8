"""`replicas`: what happened to the replicas of a fault-tolerant run, as a figure."""

from __future__ import annotations

from labkit.book.drawing.figure import Figure
from labkit.book.drawing.tables import Table
from labkit.book.fault_tolerant.picture import picture
from labkit.book.fault_tolerant.story import Story, tell
from labkit.book.fault_tolerant.words import happenings, membership_rows, rows, sentence
from labkit.resilience.supervising.outcome import FtRun


def replicas(run: FtRun, title: str = "A run in which ranks are lost", badge: str = "measured") -> ReplicaFigure:
    """Throughput, loss and membership of `run`, which `run_ft_hsdp` or `FtJob.wait` returned, over time.

    badge: "emulated" for a run whose steps are stretched by a stand-in (`group.compute`). Who trained is measured.

    The figure's rows are its steps. `.members()` is a table of who trained which steps, `.story` all of it as data.
    """
    if not isinstance(run, FtRun):
        raise TypeError(
            f"replicas needs a fault-tolerant run, as run_ft_hsdp(...) or job.wait() returns it: got {run!r}"
        )
    told = tell(run.lines, run.incidents, run.config.replicas, run.config.batch, run.zero, run.run.seconds, over=True)
    return drawn(told, title, badge)


def drawn(story: Story, title: str, badge: str = "measured") -> ReplicaFigure:
    """The figure of a story."""
    said = sentence(story)
    return ReplicaFigure(title, badge, said, rows(story), svg=picture(story, title, badge, said), story=story)


class ReplicaFigure(Figure):
    """A figure that also knows the story it shows."""

    story: Story

    def __init__(self, *args: object, story: Story, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        object.__setattr__(self, "story", story)

    def members(self) -> Table:
        """Who trained which steps, and who took part with a gradient of zeros."""
        return Table(membership_rows(self.story), caption="Who trained which steps (measured)")

    @property
    def text(self) -> str:
        """The figure for a reader who does not see it: the sentence, what happened, who trained, and the steps."""
        told = happenings(self.story)
        parts = [super().text.partition("\n\n")[0], *told, "", str(self.members()), "", self.table().text(24)]
        return "\n".join(parts)
