"""FSDP over the replicas, and HSDP: every weight is cut among them, and gathered block by block when it is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn

from labkit.parallel.fsdp.flat_parameter import FlatParameter
from labkit.parallel.fsdp.fully_shard import FullyShard
from labkit.parallel.hybrid.moments import Moments
from labkit.parallel.hybrid.part import Part
from labkit.parallel.hybrid.replicas import Held, Place
from labkit.parallel.zero.adamw import AdamW
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

Cut = tuple[Group, Group]  # the ranks that cut, and those that hold the same shard


class Sharded:
    """A unit for each block, and one for the rest. dense, experts: who cuts the one and the other.

    In a pipeline each microbatch gathers and reduces by itself, and the sums are of shards: Llama 3 trains like this
    (Llama Team 2024, section 3.3.2). The matrix that the first and the last stage share is a unit of its own, so that
    both hold the same shard of it.
    """

    def __init__(
        self, parts: Sequence[Part], places: Mapping[int, Place], dense: Cut, experts: Cut, settings: AdamW
    ) -> None:
        self.tied: dict[str, nn.Parameter] = {}
        self._places = [{name: places[id(p)] for name, p in part.named_parameters()} for part in parts]
        self._wrapped = [
            self._wrap(part, named, dense, experts) for part, named in zip(parts, self._places, strict=True)
        ]
        self.modules: Sequence[nn.Module] = self._wrapped
        self._moments = Moments((f.shard for model in self._wrapped for f in model.flat_params), settings)

    def _wrap(self, part: Part, named: Mapping[str, Place], dense: Cut, experts: Cut) -> FullyShard:
        numbers = part.model.layers if isinstance(part.model.blocks, nn.ModuleDict) else range(len(part.model.blocks))
        units = [f"model.blocks.{i}" for i in numbers]
        shared = ("model.tokens" if part.model.first else "model.lm_head") if part.model.tied else None
        if shared:
            units.append(shared)
        apart = experts if experts != dense else None
        model = FullyShard(
            part, dense[0], units=units, strategy="hybrid", replicate_group=dense[1], average="sum",
            elsewhere=lambda name: apart if named[name].expert else None,
        )  # fmt: skip
        if shared:
            (unit,) = (unit for unit in model.units if unit.name == shared)
            self.tied["tokens.weight"] = unit.flat_params[0].shard
        return model

    def expect(self, last: bool) -> None: ...

    def reduce(self) -> None:
        """Every backward pass has reduced its own."""

    def held(self) -> Iterator[Held]:
        for places, flat in self._flat_params():
            momentum, variance = self._moments.of(flat.shard)
            for piece in flat.pieces:
                place, here = places[piece.name], slice(piece.offset, piece.offset + piece.stop - piece.start)
                gradient = None if flat.shard.grad is None else flat.shard.grad[here]
                counted = place.counted and flat.sharding.replicate_group.rank == 0
                yield Held(place, piece.start, piece.stop, flat.shard.detach()[here], gradient, momentum[here],
                           variance[here], counted)  # fmt: skip

    def _flat_params(self) -> Iterator[tuple[Mapping[str, Place], FlatParameter]]:
        for places, model in zip(self._places, self._wrapped, strict=True):
            for flat in model.flat_params:
                yield places, flat

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield from self._moments.tensors()  # and what is gathered, in a backward pass

    def steps(self) -> dict[str, int]:
        return {places[name].name: self._moments.steps[id(flat.shard)]
                for places, flat in self._flat_params() for name in flat.flat.names}  # fmt: skip

    def update(self) -> None:
        self._moments.update()

    def zero_grad(self) -> None:
        for model in self._wrapped:
            model.zero_grad()

    def loaded(self, steps: Mapping[str, int]) -> None:
        for places, flat in self._flat_params():
            found = {places[name].name: steps[places[name].name] for name in flat.flat.names}
            if len(set(found.values())) > 1:
                raise RefusedError(
                    f"a unit is updated as one, and its parameters were updated {found} times: use zero3"
                )
            self._moments.steps[id(flat.shard)] = next(iter(found.values()))
