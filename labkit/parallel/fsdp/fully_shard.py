"""`FullyShard`: train a model of which every rank keeps one part in N, weights, gradients and optimizer state alike.

model = FullyShard(GPT(config), group)
optimizer = torch.optim.AdamW(model.parameters())       # over this rank's shards
loss = next_token_loss(model(tokens), targets)          # gathers block after block, and lets each go again
loss.backward()                                         # gathers them again, reduce-scatters the gradients
model.clip_grad_norm_(1.0)
optimizer.step()                                        # no communication: every rank has all that it needs
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from labkit.collectives import all_reduce
from labkit.optim.precision.codec import Codec
from labkit.parallel.fsdp import states
from labkit.parallel.fsdp.building import Elsewhere, build, check_options
from labkit.parallel.fsdp.clipping import clip_by_norm
from labkit.parallel.fsdp.flat_parameter import FlatParameter
from labkit.parallel.fsdp.join import Join
from labkit.parallel.fsdp.reducing import Reducer
from labkit.parallel.fsdp.saved import SavedReferences
from labkit.parallel.fsdp.schedule import Schedule, Unit
from labkit.parallel.fsdp.strategies import sharding
from labkit.parallel.fsdp.units import Choice
from labkit.parallel.groups import Grouped, ParamGroups
from labkit.parallel.reach import examples_in, tensors_in
from labkit.parallel.refusals.gradients import refuse_empty_batch, refuse_unreduced, watch_steps
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


class FullyShard(nn.Module):
    """`module`, cut unit by unit among the ranks of `group`. Its own parameters are gone; the shards replace them.

    units: what is gathered together, see `units.choose_units`. param_groups: as for a torch optimizer, over the
    module's own parameters (`labkit/parallel/groups.py`); no shard then belongs to two of them, and
    `model.param_groups` is what to give the optimizer. strategy, replicate_group: see `strategies.py`.
    reshard_after_forward: let a unit go between forward and backward; None for the strategy's own habit. prefetch: how
    many units are fetched before their turn, forward and backward; 0 for none. param_dtype: in which units are
    gathered and computed; floating-point inputs are cast to it. param_wire: a `Codec` in which they are gathered: FP8
    in place of param_dtype, while the shards keep all their bits. reduce_dtype: of gradients on the wire, param_dtype
    if None. output_dtype: to which floating-point outputs are cast. average: every rank counts the same ("ranks"), or
    as much as it says ("weights"), or as its batch has examples ("examples": the first dimension of the first tensor in
    the inputs); "sum": the ranks' losses are shares of one loss. elsewhere: by a parameter's name, the ranks that cut
    it and those that hold the same shard, where these are not those of all others (an expert has fewer copies); None
    for the others. check_nan: refuse a gradient that is not finite, by rank and name, before it is
    sent. algorithm: of the collectives; a ring's reduce-scatter of 16-bit gradients becomes pairwise, which adds them
    up in 32 bits.

    A unit that one forward uses twice is gathered twice, and its gradients are reduced twice and added up. A parameter
    of which a forward made no use has a gradient of zeros if its unit was used; a unit that no rank used has none.
    What is checkpointed in a unit is computed again while the unit is gathered for its backward.
    Buffers stay whole, and each rank's own. All ranks must use the same units in the same order.
    Bytes that a rank sends in a step: `cost.zero_bytes_per_step_by_rank(numels, N, 3)`, numels of `model.flat_params`;
    with a `param_wire` each of the two gathers is `cost.coded_all_gather_bytes_by_rank`.
    Raises RefusedError, on every rank, if the ranks bring different models (values too), units or options.
    """

    def __init__(
        self, module: nn.Module, group: Group, *, units: Choice = None, param_groups: ParamGroups = None,
        strategy: str = "full_shard", replicate_group: Group | None = None,
        reshard_after_forward: bool | None = None, prefetch: int = 1,
        param_dtype: torch.dtype | None = None, reduce_dtype: torch.dtype | None = None,
        output_dtype: torch.dtype | None = None, average: str = "ranks", check_nan: bool = False,
        algorithm: str = "ring", elsewhere: Elsewhere = None, param_wire: Codec | None = None,
    ):  # fmt: skip
        super().__init__()
        check_options(module, prefetch, average, param_dtype, reduce_dtype, output_dtype)
        self.sharding = sharding(strategy, group, replicate_group, reshard_after_forward, algorithm, param_wire)
        self.module, self.group = module, group
        self._average, self._param_dtype, self._output_dtype = average, param_dtype, output_dtype
        self._weight, self._in_backward = math.nan, False
        self._join: Join | None = None
        self._claims = SavedReferences()
        options = f"{strategy}, reshard={self.sharding.reshard}, prefetch={prefetch}, {param_dtype}, {reduce_dtype}"
        self._groups = Grouped(module, param_groups)
        lent = self._claims.lent
        built = build(module, units, self.sharding, param_dtype, lent, f"{options}, {average}, {param_wire}",
                      self._groups, elsewhere)  # fmt: skip
        self.units: list[Unit] = built.units
        self.keys = built.keys  # of the plain model's state dict, with the name of the parameter or buffer behind each
        op = "sum" if average == "sum" else "avg"
        self._reducer = Reducer(self.sharding, reduce_dtype, check_nan, self._begin_backward, op)
        self._schedule = Schedule(self.units, prefetch, self.sharding.reshard)
        for unit in self.units:
            unit.uninstall()
            unit.module.forward = functools.partial(self._forward_of, unit, unit.module.forward)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The shards of this rank in the groups that were asked for, for any elementwise torch optimizer."""
        return [
            {"params": [s.shard for s in self.flat_params if s.group == number and s.shard.requires_grad], **settings}
            for number, settings in enumerate(self._groups.settings)
        ]

    @property
    def flat_params(self) -> list[FlatParameter]:
        """Those of all units. A unit has one, or one for each dtype, parameter group, and what is trained or frozen."""
        return [flat_param for unit in self.units for flat_param in unit.flat_params]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What `module` returns. Every rank calls it equally often."""
        self._reducer.abandon()  # of a backward that was broken off; else there is nothing
        self._in_backward = False
        if torch.is_grad_enabled():
            if self._join is not None:
                self._join.begin((args, kwargs))
            self._reducer.share = self._share((args, kwargs))
            if self._reducer.share:
                refuse_empty_batch(self.group.context.rank, tensors_in((args, kwargs)) or (),
                                   "build the model with average='examples', or with 'weights' and run this "
                                   "step in `with model.weighted(0):`")  # fmt: skip
        args, kwargs = _cast((args, kwargs), self._param_dtype)
        self._schedule.begin()
        with self._claims.instead_of_weights() if self.sharding.reshard else contextlib.nullcontext():
            output = self.module(*args, **kwargs)
        self._schedule.end()
        return _cast(output, self._output_dtype)

    def _forward_of(self, unit: Unit, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The forward of one unit: what stands in place of its module's own."""
        self._schedule.before_forward(unit)
        try:
            with self.group.span(f"forward {unit.name or 'root'}", kind="fsdp"):
                unit.install(self._reducer)
                output = forward(*args, **kwargs)
        finally:
            unit.uninstall()
        watched = self._schedule.after_forward(unit)
        if watched is not None:
            for x in tensors_in(output) or ():
                if x.grad_fn is not None:
                    x.register_hook(functools.partial(self._before_backward, *watched))
        return output

    # -- gradient accumulation, weights, clipping --------------------------------------------------------------

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward inside adds up gradients on this rank only, of whole units; the first one outside reduces all sums.

        For accumulation with fewer bytes, at the price of memory: the gradients of the whole model. Without it every
        microbatch reduces its own, and only shards are summed. `optimizer.step()` refuses what was not reduced.
        """
        if self._join is not None:
            raise RefusedError(
                "no_sync() inside of join(): a rank without data could not know which microbatch the others "
                "reduce. Without no_sync every microbatch reduces its own"
            )
        watch_steps(self)
        before, self._reducer.sync = self._reducer.sync, False
        try:
            yield
        finally:
            self._reducer.sync = before

    def refuse_step(self, parameters: set[int]) -> None:
        """Raise RefusedError if one of these (by `id`) waits for gradients that were never reduced (`unfit.py`)."""
        refuse_unreduced(self.flat_params, parameters)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients, those of no_sync that were never reduced too."""
        super().zero_grad(set_to_none)
        for flat_param in self.flat_params:
            flat_param.unreduced = None

    @contextlib.contextmanager
    def weighted(self, n: float) -> Iterator[None]:
        """In the step inside this rank's gradient counts n / (sum of n over ranks): n samples, or n tokens.

        For a loss that is a mean over these n. With n = 0 the rank adds nothing, whatever its loss is; it takes part
        all the same, with a batch of any size, none included.
        """
        self.weight(n)
        try:
            yield
        finally:
            self._weight = math.nan

    def weight(self, n: float) -> None:
        """`weighted(n)` for the next forward and its backward."""
        if self._average != "weights":
            raise RefusedError("this model counts every rank the same: build it with average='weights' to use weights")
        if not 0 <= n < math.inf:
            raise RefusedError(f"weight({n!r}): the number of samples or tokens of this rank's batch, 0 or more")
        self._weight = float(n)

    def join(self, step: Callable[[], object], divide: str = "world") -> Join:
        """A context around an epoch in which ranks may have different numbers of steps: see `join.py`."""
        return Join(self, step, divide)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale all gradients so that their norm over the whole model is at most `max_norm`; returns what it was."""
        return clip_by_norm(self.flat_params, self.sharding.shard_group, max_norm, norm_type)

    def gradients(self) -> dict[str, Tensor]:
        """The gradients of the plain model, whole, by name: to look at and to compare. See `states.gradients`."""
        return states.gradients(self)

    # -- state dicts -------------------------------------------------------------------------------------------

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The plain model's state dict, whole, on the CPU of every rank; see `states.whole`."""
        return states.whole(self)

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True, assign: bool = False) -> None:
        """Take this rank's shards out of a state dict of the plain model. Refused, on every rank, for another."""
        states.load_whole(self, state)

    def sharded_state_dict(self, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
        """What this rank keeps, to be written by each rank into a file of its own; see `states.part`."""
        return states.part(self, optimizer)

    def load_sharded_state_dict(
        self, parts: Sequence[Mapping[str, Any]], optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Take this rank's shards out of the parts of all ranks of the world that saved, of whatever size it was."""
        states.load_parts(self, parts, optimizer)

    # -- inside ------------------------------------------------------------------------------------------------

    def _before_backward(self, ends: list[Unit], place: int, gradient: Tensor) -> None:
        """Backward reaches the unit at `place` of `ends`."""
        self._begin_backward()
        self._schedule.before_backward(ends, place)
        with torch.enable_grad():  # a part of the unit that is checkpointed is computed again, and needs its weights
            ends[place].install(self._reducer)

    def _begin_backward(self) -> None:
        if not self._in_backward:
            self._in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)

    def _after_backward(self) -> None:
        self._reducer.finish(self.flat_params)
        self._schedule.reshard_all()
        self._in_backward = False

    def _share(self, inputs: Any) -> float:
        """What this rank's gradient counts, times the number of ranks (the plain average divides by it)."""
        if self._average in ("ranks", "sum"):
            return 1.0 if self._join is None else self._join.share()
        if self._join is not None and self._join.standing_in:
            self._weight = 0.0
        elif self._average == "examples":
            self._weight = float(examples_in(inputs))
        weight, self._weight = self._weight, math.nan
        if math.isnan(weight):
            raise RefusedError(
                f"rank {self.group.context.rank}: average='weights', and nobody said what this batch counts: "
                "call model.weight(n) before the forward, or use `with model.weighted(n):`"
            )
        total = torch.tensor([weight], dtype=torch.float64, device=self.group.device)
        for group in (self.sharding.shard_group, self.sharding.replicate_group):
            all_reduce(total, group)
        if not total:
            raise RefusedError("the weights of all ranks are 0: this step has no example to average over")
        return weight * self.sharding.ranks / float(total)


def _cast(things: Any, dtype: torch.dtype | None) -> Any:
    if dtype is None:
        return things
    return tree_map(lambda x: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x, things)
