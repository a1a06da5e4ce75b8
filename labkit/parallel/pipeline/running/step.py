"""One step of one rank: its list of instructions, done in order."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from labkit.parallel.pipeline.costs import Costs
from labkit.parallel.pipeline.instructions import (
    Backward,
    Forward,
    InputGradient,
    Instruction,
    Message,
    Update,
    WeightGradient,
)
from labkit.parallel.pipeline.running.boundaries import Shapes
from labkit.parallel.pipeline.running.coded import coded, coded_shapes, decoded
from labkit.parallel.pipeline.running.microbatches import pieces_of, shares
from labkit.parallel.pipeline.running.point_to_point import AsyncPointToPoint, BlockingPointToPoint, room_for
from labkit.parallel.pipeline.running.stage import LossFn, Stage, Tensors, comes_back
from labkit.parallel.pipeline.running.weights import StashingStage
from labkit.parallel.pipeline.schedule import Schedule, label
from labkit.parallel.pipeline.traffic import ACTIVATION, Payload, is_explicit, made_by, needed_by

if TYPE_CHECKING:
    from labkit.parallel.pipeline.running.checks import StepShapes
    from labkit.parallel.pipeline.running.pipeline import Pipeline


@dataclass
class StepResult:
    """What one step has given on this rank.

    loss: the mean over the whole batch, on the rank of the last stage; elsewhere None. losses: of each microbatch.
    in_flight: the most activations that this rank kept at once: microbatches of a chunk, from forward to the end of
        the backward. by_chunk: the same of each chunk alone.
    versions: the most versions of the weights held so far, by chunk (PipeDream).
    outputs: of the last stage, joined, if they were asked for; a tuple, if it returns several.
    """

    loss: Tensor | None = None
    losses: list[Tensor] = field(default_factory=list)
    in_flight: int = 0
    by_chunk: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    outputs: Tensor | Tensors | None = None


class Step:
    """The state of one step of one rank."""

    def __init__(
        self, pipeline: Pipeline, schedule: Schedule, plan: StepShapes, inputs: Tensors | None, targets: Tensor | None,
        seconds: Costs | None, outputs: bool,
    ) -> None:  # fmt: skip
        self.pipeline, self.schedule, self.group, self.seconds = pipeline, schedule, pipeline.group, seconds
        rank, last, cut = self.group.rank, schedule.stages - 1, plan.sizes
        self.mine = schedule.ranks[rank]
        self.updates = any(isinstance(i, Update) for i in self.mine)
        self.inputs: Sequence[Tensors] = ()
        if schedule.where(0)[0] == rank:
            assert inputs is not None
            self.inputs = pieces_of(inputs, cut)
        self.losses: dict[int, Tensor] = {}
        self.outputs: dict[int, Tensors] | None = {} if outputs else None
        self.shares: list[float] = []
        loss_fn: LossFn | None = None
        if schedule.where(last)[0] == rank:
            assert targets is not None
            pieces = targets.split(cut)
            self.shares = [1.0] * len(cut) if self.updates else shares(pieces, pipeline.count)
            loss_fn = pipeline.loss_fn(pieces, self.shares, self.losses, self.outputs)
        self.stages = [self._stage(chunk, loss_fn) for chunk in range(schedule.chunks)]

        def shapes(payload: Payload) -> Shapes:
            both = plan.boundaries[payload.boundary][cut[payload.microbatch]]
            return both if payload.kind == ACTIVATION else tuple(s for s in both if comes_back(s[1]))

        self.shapes, self.wire = shapes, pipeline.wire
        room = room_for(lambda payload: coded_shapes(shapes(payload), payload, pipeline.wire), self.group.device)
        self.messages: AsyncPointToPoint | BlockingPointToPoint = (
            BlockingPointToPoint(schedule, self.group, room)
            if is_explicit(schedule)
            else AsyncPointToPoint(schedule, self.group, room, pipeline.ahead)
        )

    def _stage(self, chunk: int, loss_fn: LossFn | None) -> Stage:
        pipeline = self.pipeline
        index = self.schedule.stage(self.group.rank, chunk)
        loss_fn = loss_fn if index == self.schedule.stages - 1 else None
        seed = pipeline.seed * 1_000_003 + pipeline.steps
        options: dict[str, Any] = {"checkpoint": pipeline.checkpoint, "seed": seed}
        module = pipeline.modules[chunk]
        if self.updates:
            return StashingStage(module, index, loss_fn, pipeline.stashes[chunk], **options)
        split = {i.microbatch for i in self.mine if isinstance(i, InputGradient) and i.chunk == chunk}
        return Stage(module, index, loss_fn, split, **options)

    def run(self) -> StepResult:
        """Do the rank's list, from first to last."""
        result, tied = StepResult(by_chunk=[0] * len(self.stages)), self.pipeline.tied
        if not self.updates:
            tied.begin()
        for instruction in self.mine:
            if isinstance(instruction, Message):
                with self._named(instruction):
                    assert isinstance(self.messages, BlockingPointToPoint)
                    self.messages.do(instruction)
                continue
            self._compute(instruction)
            if isinstance(instruction, Forward):
                each = [stage.in_flight for stage in self.stages]
                result.in_flight = max(result.in_flight, sum(each))
                result.by_chunk = [max(pair) for pair in zip(each, result.by_chunk, strict=True)]
        self.messages.finish()
        if not self.updates:
            tied.finish()
        self._report(result)
        return result

    def _report(self, result: StepResult) -> None:
        if self.losses:
            result.losses = [self.losses[k] for k in sorted(self.losses)]
            parts = [1 / len(result.losses)] * len(result.losses) if self.updates else self.shares
            result.loss = torch.stack([loss * s for loss, s in zip(result.losses, parts, strict=True)]).sum()
        if self.outputs:
            each = zip(*(self.outputs[k] for k in sorted(self.outputs)), strict=True)
            joined = tuple(torch.cat(tensors) for tensors in each)
            result.outputs = joined if len(joined) > 1 else joined[0]
        if self.updates:
            result.versions = [stash.most for stash in self.pipeline.stashes]

    def _compute(self, instruction: Instruction) -> None:
        """Wait for what an instruction needs, do it, pass on what it has made."""
        rank, k = self.group.rank, instruction.microbatch
        stage = self.stages[instruction.chunk]
        needs = needed_by(self.schedule, rank, instruction)
        came = None if needs is None else self._take(*needs)
        made: Tensors | None = None
        with self._named(instruction):
            if isinstance(instruction, Forward):
                made = stage.forward(k, self.inputs[k] if came is None else came)
            elif isinstance(instruction, Backward):
                made = stage.backward(k, came)
            elif isinstance(instruction, InputGradient):
                made = stage.input_gradient(k, came)
            elif isinstance(instruction, WeightGradient):
                stage.weight_gradient(k)
            else:
                stage.update(k)
        gives = made_by(self.schedule, rank, instruction)
        if gives is not None:
            assert made is not None
            self._give(gives[0], made, gives[1])

    def _take(self, payload: Payload, source: int) -> Tensors:
        came = self.messages.take(payload, source)
        return came if source == self.group.rank else decoded(came, self.shapes(payload), payload, self.wire)

    def _give(self, payload: Payload, made: Tensors, to: int) -> None:
        self.messages.give(payload, made if to == self.group.rank else coded(made, payload, self.wire), to)

    @contextlib.contextmanager
    def _named(self, instruction: Instruction) -> Iterator[None]:
        """A span of the instruction's name, as long as it is to take; an error inside says where it happened."""
        stage = self.schedule.stage(self.group.rank, instruction.chunk)
        name = label(self.schedule, self.group.rank, instruction)
        with self.group.span(name):
            try:
                if self.seconds is None or isinstance(instruction, Message):
                    yield
                else:
                    with self.group.compute(self.seconds.seconds(instruction, stage)):
                        yield
            except Exception as error:
                error.add_note(f"in {name}: stage {stage}, microbatch {instruction.microbatch}")
                raise
