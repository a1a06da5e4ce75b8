"""A schedule: for each rank of a pipeline, the list of what it does, in order. Data, and nothing else.

The same object is validated, simulated, executed on real ranks, drawn and graded; none of them knows who made it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labkit import pictures
from labkit.parallel.pipeline.instructions import Instruction
from labkit.wire.errors import RefusedError

if TYPE_CHECKING:
    from labkit.parallel.pipeline.costs import Costs

PLACEMENTS = ("loop", "v")


@dataclass(frozen=True)
class Schedule:
    """`ranks[r]` is what rank r of the pipeline does, in order.

    microbatches: how many pieces the batch is cut into. chunks: parts of the model on each rank.
    placement: which stage of the model chunk c of rank r is, among `stages` = ranks x chunks. "loop": c * ranks + r,
        so that the model goes around the ranks once per chunk (Narayanan et al. 2021). "v": every second chunk goes
        back the way it came, so that with two chunks rank 0 has the first and the last stage (Qi et al. 2024).
    name: for people.
    """

    ranks: tuple[tuple[Instruction, ...], ...]
    microbatches: int
    chunks: int = 1
    placement: str = "loop"
    name: str = ""

    def __init__(
        self, ranks: Iterable[Iterable[Instruction]], microbatches: int, chunks: int = 1, placement: str = "loop",
        name: str = "",
    ) -> None:  # fmt: skip
        for word, value in (("microbatches", microbatches), ("chunks", chunks)):
            if type(value) is not int or value < 1:
                raise RefusedError(f"Schedule({word}={value!r}): needs a whole number, 1 or more")
        if placement not in PLACEMENTS:
            raise RefusedError(f"Schedule(placement={placement!r}): choose 'loop' or 'v'")
        lists = tuple(tuple(rank) for rank in ranks)
        if not lists:
            raise RefusedError("Schedule: needs a list of instructions for each rank, and there are no ranks")
        for values in (("ranks", lists), ("microbatches", microbatches), ("chunks", chunks),
                       ("placement", placement), ("name", name)):  # fmt: skip
            object.__setattr__(self, *values)

    @property
    def size(self) -> int:
        """Ranks of the pipeline."""
        return len(self.ranks)

    @property
    def stages(self) -> int:
        """Stages of the model: ranks x chunks."""
        return self.size * self.chunks

    def stage(self, rank: int, chunk: int = 0) -> int:
        """Which stage of the model this chunk of this rank is, from 0."""
        back = self.placement == "v" and chunk % 2 == 1
        return chunk * self.size + (self.size - 1 - rank if back else rank)

    def where(self, stage: int) -> tuple[int, int]:
        """(rank, chunk) of a stage: the inverse of `stage`."""
        chunk, position = divmod(stage, self.size)
        back = self.placement == "v" and chunk % 2 == 1
        return (self.size - 1 - position if back else position), chunk

    def draw(self, costs: Costs | None = None) -> Any:
        """A row per rank and a box per instruction (`labkit.book.schedule`): at equal costs, or at those given."""
        return pictures.draw(self, costs=costs)


def labels(schedule: Schedule) -> list[list[str]]:
    """The schedule in PyTorch's notation, a list per rank: stage, action, microbatch, as in `2F0`, `1I3`, `1W3`.

    F forward, B backward, I gradient of the input, W of the weights; `0SEND_F1` and the like for messages.
    """
    return [[label(schedule, rank, i) for i in instructions] for rank, instructions in enumerate(schedule.ranks)]


def label(schedule: Schedule, rank: int, instruction: Instruction) -> str:
    """One instruction of a rank in that notation."""
    return f"{schedule.stage(rank, instruction.chunk)}{instruction.action}{instruction.microbatch}"
