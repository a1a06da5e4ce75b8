"""A schedule on real ranks: every instruction done in order, every stage with its neighbours' tensors.

    pipeline = Pipeline(modules, group, loss)              # this rank's stages, one a chunk
    step = pipeline.execute(one_f_one_b(4, 8), inputs, targets)

After a step the gradients of all stages are those of the whole model on the whole batch, and `step.loss` is its loss.
What a rank does is only what its list says: forward and backward are autograd's, messages follow from the list (or are
in it), and each instruction is a span on the timeline, named by its label (`2F0`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from labkit.optim.precision.codec import Wire
from labkit.parallel.pipeline.costs import Costs
from labkit.parallel.pipeline.running.agreement import outside_time
from labkit.parallel.pipeline.running.checks import agree_on_options, agree_on_step
from labkit.parallel.pipeline.running.microbatches import Count
from labkit.parallel.pipeline.running.stage import LossFn, Tensors
from labkit.parallel.pipeline.running.step import Step, StepResult
from labkit.parallel.pipeline.running.tied import Tied
from labkit.parallel.pipeline.running.weights import Stash
from labkit.parallel.pipeline.schedule import Schedule
from labkit.wire.group import Group

Loss = Callable[[Any, Tensor], Tensor]


class Pipeline:
    """This rank's stages of a model, ready to be run by any schedule that fits them.

    stages: a module for each chunk of this rank, from chunk 0; or one module. Each returns a tensor, or a tuple of
        tensors, which the next one is called with: `stage(x, mask)`. Gradients come back for those of floating-point
        or complex numbers; others (masks, positions, lengths) cost their bytes in the forward direction only.
    loss: (output, target) of a microbatch -> its mean loss. Used where the last stage is; `output` is what it returns.
    checkpoint: keep a stage's input only, and compute the rest again when its backward comes.
    seed: of dropout and the like. Every step, stage and microbatch draws its own numbers, so results do not depend on
        the schedule; the caller's random numbers stay as they were. Give replicas of a pipeline different seeds.
    count: how many things the loss of a microbatch is a mean over, from its targets: by default its examples.
    optimizers: one per chunk, for schedules with `Update`.
    tied: weights of this rank that other ranks hold too, by a common name; by default those in `stage.tied`.
    ahead: receives posted before they are needed, from each neighbour.
    wire: how activations and gradients are sent from rank to rank; `Wire()` is FP8. None: as they are.
    Every rank of the group makes one, with the same options; raises RefusedError on all if they differ.
    """

    def __init__(
        self, stages: nn.Module | Sequence[nn.Module], group: Group, loss: Loss, *, checkpoint: bool = False,
        seed: int = 0, count: Count = len, optimizers: Sequence[Optimizer] | None = None,
        tied: Mapping[str, nn.Parameter] | None = None, ahead: int = 2, wire: Wire | None = None,
    ) -> None:  # fmt: skip
        self.modules = [stages] if isinstance(stages, nn.Module) else list(stages)
        self.group, self.loss, self.checkpoint, self.seed = group, loss, checkpoint, seed
        self.count, self.ahead, self.wire, self.steps = count, ahead, wire, 0
        with outside_time(group):
            agree_on_options(group, self.modules, loss, optimizers, checkpoint=checkpoint, seed=seed, ahead=ahead,
                             wire=wire)  # fmt: skip
            if tied is None:
                tied = {n: p for m in self.modules for n, p in getattr(m, "tied", {}).items()}
            self.tied = Tied(tied, group)
        self.stashes = [Stash(m, o) for m, o in zip(self.modules, optimizers or (), strict=False)]
        self.known: dict[Any, Any] = {}  # what was learned about schedules and boundaries (checks.py)

    def execute(
        self, schedule: Schedule, inputs: Tensor | Sequence[Tensor] | None = None, targets: Tensor | None = None, *,
        seconds: Costs | None = None, sizes: Sequence[int] | None = None, check: bool = True, outputs: bool = False,
    ) -> StepResult:  # fmt: skip
        """One step: add the gradients of the mean loss over the batch to `.grad` of this rank's weights.

        inputs, targets: the batch, first dimension examples. `inputs` is used where the first stage is: one tensor, or
            several for a stage that takes several, `(tokens, mask)`. `targets` is used where the last one is. They are
            cut into `schedule.microbatches`, as even as can be, or by `sizes`.
        seconds: what each instruction takes on the virtual clock (`group.compute`); None: what the modules take.
        check: refuse what `validate` refuses. False runs the lists as they are, a deadlock included.
        A schedule with explicit messages is done as written, with blocking sends and receives.
        Raises RefusedError on every rank before anything is computed, if ranks or tensors do not fit together.
        """
        if isinstance(inputs, Tensor):
            inputs = (inputs,)
        with outside_time(self.group):
            plan = agree_on_step(self, schedule, inputs, targets, seconds, sizes, check)
        given = None if inputs is None else tuple(inputs)
        result = Step(self, schedule, plan, given, targets, seconds, outputs).run()
        self.steps += 1
        return result

    def loss_fn(
        self, targets: Sequence[Tensor], shares: Sequence[float], losses: dict[int, Tensor],
        outputs: dict[int, Tensors] | None = None,
    ) -> LossFn:  # fmt: skip
        """What the last stage does with an output: its loss, times its share; both are noted by microbatch."""

        def loss_fn(y: Any, microbatch: int) -> Tensor:
            loss = self.loss(y, targets[microbatch])
            if outputs is not None:
                outputs[microbatch] = tuple(x.detach() for x in (y if isinstance(y, tuple) else (y,)))
            if isinstance(loss, Tensor):
                losses[microbatch] = loss.detach()
            return loss * shares[microbatch]

        return loss_fn


def execute(
    schedule: Schedule, modules: nn.Module | Sequence[nn.Module], group: Group,
    inputs: Tensor | Sequence[Tensor] | None, targets: Tensor | None, loss: Loss, *, seconds: Costs | None = None,
    sizes: Sequence[int] | None = None, check: bool = True, outputs: bool = False, **options: Any,
) -> StepResult:  # fmt: skip
    """One step of `schedule` on this rank's `modules`: `Pipeline(modules, group, loss, **options).execute(...)`."""
    pipeline = Pipeline(modules, group, loss, **options)
    return pipeline.execute(schedule, inputs, targets, seconds=seconds, sizes=sizes, check=check, outputs=outputs)
