"""ZeRO over the replicas: the state of AdamW is cut among them, and by stage gradients and weights too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from labkit.collectives import all_reduce
from labkit.parallel.hybrid.part import Part
from labkit.parallel.hybrid.replicas import Held, Place
from labkit.parallel.zero.adamw import AdamW
from labkit.parallel.zero.base import ZeRO
from labkit.parallel.zero.stage3 import ZeRO3
from labkit.parallel.zero.stages import ZeRO1, ZeRO2
from labkit.wire.group import Group

STAGES: dict[str, type[ZeRO]] = {"zero1": ZeRO1, "zero2": ZeRO2, "zero3": ZeRO3}


class Zeroed:
    """As `Plain`; ends: the ranks of the first and the last stage, which hold one matrix, or None.

    Sent: `cost.zero_bytes_per_step_by_rank` for each group of ranks. In a pipeline (stage 1) each rank adds up the
    gradients of all microbatches, and sends when the pipeline has run empty.
    """

    def __init__(
        self, stage: str, parts: Sequence[Part], places: Mapping[int, Place], dense: Group, experts: Group,
        settings: AdamW, ends: Group | None,
    ) -> None:  # fmt: skip
        self.modules: Sequence[nn.Module] = parts
        self.tied: dict[str, nn.Parameter] = {}
        module = parts[0] if len(parts) == 1 else nn.ModuleList(parts)
        self._places = {name: places[id(p)] for name, p in module.named_parameters()}
        self.model = STAGES[stage](
            module, dense, settings, average="sum",
            group_of=lambda name: experts if self._places[name].expert else dense,
        )  # fmt: skip
        self._ends = ends

    def expect(self, last: bool) -> None: ...

    @torch.no_grad()
    def reduce(self) -> None:
        for unit in self.model.units:
            for index, p in enumerate(unit.parameters):
                if p.grad is not None:  # of a weight used outside its module, by a backward in two parts
                    unit.take(index)
                if self._ends is not None and self._places[unit.names[index]].name == "tokens.weight":
                    all_reduce(unit.own_gradient(index), self._ends)
        self.model._reduced()

    def held(self) -> Iterator[Held]:
        for unit in self.model.units:
            assert unit.state is not None
            master, momentum, variance = unit.state.tensors()
            for index, begin, start, length in unit.owned:
                place, here = self._places[unit.names[index]], slice(start, start + length)
                gradient = None if unit.gradient is None else unit.gradient[here]
                yield Held(place, begin, begin + length, master[here], gradient, momentum[here], variance[here],
                           place.counted)  # fmt: skip

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        for unit in self.model.units:
            assert unit.state is not None
            yield from (("parameters", x) for x in (unit.whole, unit.shard))
            yield from (("gradients", x) for x in (unit.whole_gradient, unit.gradient) if x is not None)
            yield from (("optimizer", x) for x in unit.state.tensors()[1:])

    def steps(self) -> dict[str, int]:
        every = [pair for unit in self.model.units for pair in zip(unit.names, unit.steps, strict=True)]
        return {self._places[name].name: step for name, step in every}

    def update(self) -> None:
        self.model.step()

    def zero_grad(self) -> None:
        self.model.zero_grad()

    def loaded(self, steps: Mapping[str, int]) -> None:
        for unit in self.model.units:
            unit.steps = [steps[self._places[name].name] for name in unit.names]
        with torch.no_grad():
            self.model._loaded()
