"""What the three stages of ZeRO share: a model in units, and a step that updates the shards that a rank owns.

Source: Rajbhandari, Rasley, Ruwase & He 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models".
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit import collectives
from labkit.parallel.groups import Grouped, ParamGroups
from labkit.parallel.refusals.same_model import broadcast_all, check_same_by_group, describe
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from .adamw import AdamW
from .elementwise import Pieces, over_pieces, state_keys
from .inspect import Inspect
from .state import State
from .unit import Named, ZeroUnit


class ZeRO(Inspect):
    """A model whose training state is cut among the ranks of `group`: the base of ZeRO1, ZeRO2 and ZeRO3.

    module: the same on every rank (checked); rank 0's values count. Every rank calls forward, backward and `step`
        alike, each on its part of the global batch; gradients are averaged over ranks.
    optimizer: settings of AdamW; or what makes a torch optimizer of parameter groups, such as torch.optim.SGD or
        functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), whose state is then made here, for this rank's
        pieces of the parameters (`elementwise.py`). `model.optimizer` is what a schedule of learning rates works on.
    param_groups: as for a torch optimizer, over the module's own parameters (`labkit/parallel/groups.py`), whose
        settings override the optimizer's. What is in no group has the optimizer's own.
    precision: "single" leaves all in the dtype of the model: 4 + 4 + 8 bytes a parameter with float32. "mixed" holds
        parameters and gradients in bfloat16, and with the optimizer's state a float32 master copy: 2 + 2 + 12 bytes.
        Losses need no scaling: bfloat16 has the range of float32. Floating inputs are rounded to bfloat16, floating
        outputs come back in float32. Gradients of several backward passes are added in bfloat16.
    offload: keep master, momentum and variance in host memory (labkit/parallel/offload.py).
    find_unused_parameters: allow some that get no gradient in a step. Ranks then tell each other which, at one byte a
        parameter and step; one that no rank reached stays as it is. Without it such a parameter is refused by name.
    check_nan: look at each gradient before it is sent (one sum), and refuse NaN and infinity by rank and name.
    average: "ranks", or "sum" where the ranks' losses are shares of one loss, and their gradients are summed.
    group_of: by a parameter's name, the ranks that hold it too, where these are not all of `group`: an expert has
        copies on some of the ranks only. What is cut is cut among them. These groups lie in `group`, and together
        they are all of it.

    Frozen parameters (requires_grad=False) have no gradient and no optimizer's state. A tied weight counts once.
    """

    def __init__(
        self, module: nn.Module, group: Group, optimizer: AdamW | Callable[..., torch.optim.Optimizer] | None = None,
        precision: str = "single", *, param_groups: ParamGroups = None, offload: bool = False,
        find_unused_parameters: bool = False, check_nan: bool = True, average: str = "ranks",
        group_of: Callable[[str], Group] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        _check(module, optimizer, precision, offload, average)
        self._op = "avg" if average == "ranks" else "sum"
        if group_of is not None and find_unused_parameters:
            raise RefusedError("find_unused_parameters=True asks all ranks, and group_of names parameters of some only")
        self._group_of = group_of or (lambda name: group)
        self.module, self.group, self.precision = module, group, precision
        self._made_of = AdamW() if optimizer is None else optimizer
        self.groups = Grouped(module, param_groups)
        self.find_unused_parameters, self.check_nan = find_unused_parameters, check_nan
        check_same_by_group(describe(module) | self.groups.words, module, [group], self._group_of)
        broadcast_all(module.buffers(), group)
        own = next(module.parameters()).dtype
        self.dtype = torch.bfloat16 if precision == "mixed" else own  # of parameters, gradients and messages
        kind: Any = State
        if offload:
            from labkit.parallel.offload import HostState as kind  # it is written with State
        elif not isinstance(self._made_of, AdamW):
            kind = partial(Pieces, keys=state_keys(self._made_of, self.groups.settings))
        self._make_state = partial(kind, dtype=torch.float32 if precision == "mixed" else own)
        self._settings()  # refuses what AdamW has not
        self.units: list[ZeroUnit] = []

    def _add(self, named: Named, cut: bool, of: str = "") -> list[ZeroUnit]:
        """Make units of these parameters: those that are trained, those that are frozen, each of one group of ranks."""
        kinds: dict[tuple[bool, int], list[tuple[str, nn.Parameter]]] = {}
        for name, p in named:
            kinds.setdefault((not p.requires_grad, id(self._group_of(name))), []).append((name, p))
        made = []
        for some in (kinds[kind] for kind in sorted(kinds, key=lambda kind: kind[0])):
            holders, groups = self._group_of(some[0][0]), [self.groups.of[id(p)] for _, p in some]
            made.append(ZeroUnit(some, holders, self.dtype, self._make_state, cut, groups, of, self._op))
        for unit in made:
            for index, p in enumerate(unit.parameters if unit.trained else ()):
                p.register_post_accumulate_grad_hook(_telling(self, unit, index))
        self.units += made
        return made

    @functools.cached_property
    def optimizer(self) -> Any:
        """AdamW's settings, to be changed between steps; or the torch optimizer over this rank's pieces."""
        if isinstance(self._made_of, AdamW):
            return self._made_of
        trained = [unit for unit in self.units if unit.trained]
        return over_pieces(self._made_of, trained, self.groups.settings)

    def _settings(self) -> list[AdamW]:
        """AdamW for each parameter group; none under a torch optimizer, which has groups of its own."""
        if not isinstance(self._made_of, AdamW):
            return []
        try:
            return [dataclasses.replace(self._made_of, **settings) for settings in self.groups.settings]
        except TypeError as error:
            raise RefusedError(f"param_groups: {error}. AdamW has lr, betas, eps and weight_decay") from None

    # -- where the stages differ -------------------------------------------------------------------------------

    def _arrived(self, unit: ZeroUnit, index: int) -> None:
        """During backward, when the gradient of parameter `index` of `unit` is there."""
        raise NotImplementedError

    def _reduced(self) -> None:
        """Have the mean gradient in `unit.gradient` of every trained unit, if it is not there already."""
        raise NotImplementedError

    # -- training ----------------------------------------------------------------------------------------------

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's output for this rank's inputs."""
        if self.precision == "single":
            return self.module(*args, **kwargs)
        output = self.module(*_cast(args, self.dtype), **{name: _cast(x, self.dtype) for name, x in kwargs.items()})
        return _cast(output, torch.float32)

    @torch.no_grad()
    def step(self) -> None:
        """Update every parameter that got a gradient since `zero_grad`. Every rank calls it.

        Stages 1 and 2 then all-gather what was updated, a unit at a time, while the next one is being updated.
        """
        self._reduced()
        self._agree_on_used()
        under_way: list[tuple[ZeroUnit, Any]] = []
        optimizer = self._settings() or self.optimizer
        for unit in self.units:
            unit.update(optimizer)
            if unit.trained and not unit.cut:
                under_way.append((unit, unit.all_gather(async_op=True)))
            if len(under_way) > 1:
                _land(*under_way.pop(0))
        for unit, handle in under_way:
            _land(unit, handle)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and give their memory back."""
        for unit in self.units:
            unit.forget()

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float) -> float:
        """Scale the mean gradient down to the norm `max_norm`; returns the norm it had, that of the whole model.

        Every rank adds up the squares of its shards, and 8 bytes are summed over the ranks. Once before a step.
        """
        self._reduced()
        mine = [unit.gradient for unit in self.units if unit.gradient is not None]
        square = torch.zeros((), dtype=torch.float64, device=self.group.device)
        for g in mine:
            square += g.double().square().sum()
        norm = float(collectives.all_reduce(square, self.group)) ** 0.5
        for g in mine:
            g.mul_(min(1.0, max_norm / (norm + 1e-6)))
        return norm

    def _agree_on_used(self) -> None:
        trained = [unit for unit in self.units if unit.trained]
        here = [(unit, i, i in unit.used) for unit in trained for i in range(len(unit.names))]
        if self.find_unused_parameters:
            flags = torch.tensor([used for *_, used in here], dtype=torch.uint8, device=self.group.device)
            anywhere = collectives.all_reduce(flags, self.group, "max").tolist()
            for (unit, i, _), used in zip(here, anywhere, strict=True):
                if used:
                    unit.used.add(i)
            return
        missing = [repr(unit.names[i]) for unit, i, used in here if not used]
        if missing:
            raise RefusedError(
                f"rank {self.group.rank}: no gradient for {', '.join(missing[:3])}"
                f"{f' and {len(missing) - 3} others' if len(missing) > 3 else ''} since zero_grad(). Call "
                "backward() before step(), freeze what is not trained, or pass "
                "find_unused_parameters=True"
            )


def _land(unit: ZeroUnit, handle: Any) -> None:
    unit.publish(handle.wait())


def _cast(x: Any, dtype: torch.dtype) -> Any:
    """Floating tensors, and those in tuples and lists, in `dtype`; all else as it is."""
    if type(x) in (tuple, list):
        return type(x)(_cast(y, dtype) for y in x)
    return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x


def _check(module: nn.Module, optimizer: Any, precision: str, offload: bool, average: str) -> None:
    if average not in ("ranks", "sum"):
        raise RefusedError(f"average={average!r}: 'ranks' (the mean), or 'sum' (the losses are shares of one)")
    if precision not in ("mixed", "single"):
        raise RefusedError(
            f"precision={precision!r}: choose 'mixed' (2 + 2 + 12 bytes a parameter) or 'single' (4 + 4 + 8)"
        )
    if optimizer is not None and not isinstance(optimizer, AdamW):
        if not callable(optimizer) or isinstance(optimizer, torch.optim.Optimizer):
            raise RefusedError(
                f"optimizer={type(optimizer).__name__}: pass settings, as labkit.parallel.AdamW(lr=1e-3), "
                "or what makes one, as functools.partial(torch.optim.SGD, lr=0.1). The optimizer's "
                "state is made here, for a shard of the parameters"
            )
        if offload:
            raise RefusedError("offload=True works with labkit.parallel.AdamW, not with a torch optimizer")
    kinds: Sequence[str] = sorted({str(p.dtype) for p in module.parameters()})
    if len(kinds) != 1 or not next(module.parameters()).is_floating_point():
        raise RefusedError(f"the parameters have dtypes {kinds}, and one floating dtype is needed: call module.float()")


def _telling(wrapper: Any, unit: ZeroUnit, index: int) -> Callable[[Tensor], None]:
    """A hook that tells the wrapper. Held by a parameter, it holds neither: such a circle would never be collected."""
    me, of = weakref.ref(wrapper), weakref.ref(unit)

    def arrived(_: Tensor) -> None:
        if (alive := me()) is not None:
            alive._arrived(of(), index)

    return arrived
