"""A GPT cut into stages: each rank builds its own part, with the weights that the whole model would have.

The names of a stage's weights are those of `labkit.models.GPT`, so that the states of all stages together are the
state of the model: stage 1 of 2 of a model of four layers has `blocks.2...`, `blocks.3...`, `norm...`, and
`lm_head.weight`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.models.gpt import GPT, GPTConfig, check_positions
from labkit.parallel.fsdp.deferred import Recipe, deferred
from labkit.parallel.pipeline.schedule import Schedule
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

TIED = "tokens.weight"


class GPTStage(nn.Module):
    """Some neighbouring layers of a GPT; the first stage embeds tokens as well, the last one scores them.

    Takes tokens (b, t) int64 as the first stage, else (b, t, d); gives logits (b, t, v) as the last, else (b, t, d).
    tied: its weights that another rank's stage holds too.
    """

    def __init__(self, model: GPT, layers: range, first: bool, last: bool) -> None:
        """Takes parts of `model` as they are."""
        super().__init__()
        self.config = model.config
        self.first, self.last = first, last
        if first:
            self.tokens, self.positions = model.tokens, model.positions
        self.blocks = nn.ModuleDict({str(i): model.blocks[i] for i in layers})
        if last:
            self.norm, self.lm_head = model.norm, model.lm_head

    @property
    def tied(self) -> dict[str, nn.Parameter]:
        """The matrix that both embeds and scores, where this stage has one end of it only."""
        if not self.config.tied or self.first == self.last:
            return {}
        weight = self.tokens.weight if self.first else self.lm_head.weight
        assert isinstance(weight, nn.Parameter)
        return {TIED: weight}

    def forward(self, x: Tensor) -> Tensor:
        """This stage's part of `GPT.forward`."""
        if self.first:
            check_positions(x.shape[1], self.config)
            t = x.shape[1]
            x = self.tokens(x)
            if self.positions is not None:
                x = x + self.positions(torch.arange(t, device=x.device))
            x = F.dropout(x, self.config.dropout, self.training)
        for block in self.blocks.values():
            x = block(x)
        return self.lm_head(self.norm(x)) if self.last else x


def gpt_stages(
    config: GPTConfig, schedule: Schedule | tuple[int, int], rank: int | Group, *, seed: int = 0,
    layers: Sequence[int] | None = None,
) -> list[GPTStage]:  # fmt: skip
    """The stages of GPT(config, seed) that belong to `rank`, one a chunk, with the weights of that model.

    schedule: says which stages are the rank's; or (ranks, chunks) for a model that goes around the ranks.
    layers: of each stage, from the first; by default as even as can be, the first stages having one more, since the
        last one scores tokens besides. A stage may have none if it is said so.
    Only this rank's weights are kept; all of the model's random numbers are drawn for that.
    Where one rank has both ends of a tied model, they share the matrix.
    """
    if isinstance(schedule, tuple):
        ranks, chunks = schedule
        schedule = Schedule([()] * ranks, 1, chunks)
    rank = rank if isinstance(rank, int) else rank.rank
    if not 0 <= rank < schedule.size:
        raise RefusedError(f"gpt_stages(rank={rank}): the schedule has ranks 0 to {schedule.size - 1}")
    counts = layers_of(config.layers, schedule.stages, layers)
    model = deferred(GPT, config, seed=seed)
    assert isinstance(model, GPT)
    parts = []
    for chunk in range(schedule.chunks):
        stage = schedule.stage(rank, chunk)
        start = sum(counts[:stage])
        parts.append(GPTStage(model, range(start, start + counts[stage]), stage == 0, stage == schedule.stages - 1))
    _draw(model.__dict__["recipe"], model, parts)
    return parts


def layers_of(layers: int, stages: int, given: Sequence[int] | None = None) -> list[int]:
    """How many of a model's layers each stage has."""
    if given is None:
        if stages > layers:
            raise RefusedError(
                f"{stages} stages for a model of {layers} layers: a stage needs at least one. Use {layers} "
                f"stages or fewer (ranks times chunks), or a model of {stages} layers"
            )
        whole, more = divmod(layers, stages)
        return [whole + (s < more) for s in range(stages)]
    found = [*given]
    if len(found) != stages or sum(found) != layers or min(found) < 0:
        raise RefusedError(
            f"layers={found}: needs {stages} numbers, one per stage, which add up to the model's {layers} layers"
        )
    return found


def _draw(recipe: Recipe, model: GPT, parts: Sequence[GPTStage]) -> None:
    """Give the parts' weights their values; those of other ranks are drawn too, one at a time, and dropped."""
    wanted = {id(p) for part in parts for p in part.parameters()}
    made: dict[int, Tensor] = {}

    def deliver(values: Tensor, p: Tensor) -> None:
        if id(p) in wanted:
            made[id(p)] = values.clone()

    recipe.replay(deliver, model, torch.device("cpu"))
    real = {number: nn.Parameter(values) for number, values in made.items()}
    for part in parts:
        for module in part.modules():
            for name, p in module._parameters.items():
                if p is not None and id(p) in real:  # a weight that two parts share is done by its first one
                    module._parameters[name] = real[id(p)]
