"""Stage 3 of ZeRO: the parameters are cut too, and a block of the model is whole only while it computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook

from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from .stages import Scattered
from .unit import Named, ZeroUnit


class ZeRO3(Scattered):
    """Stage 3: every rank holds 1/N of everything. Arguments as for `ZeRO`.

    blocks: names of the submodules that are gathered one at a time; by default the members of every `nn.ModuleList`.
        What lies outside of them is whole during all of a pass, and so is a parameter that two of them share.

    A block is all-gathered before its forward pass and freed after it, gathered again before its backward pass and
    freed when that is over; gradients are reduce-scattered as in stage 2. Nothing is fetched ahead (`FullyShard` can).
    All ranks must run the same blocks in the same order, `find_unused_parameters` or not: others are a mismatch.
    A pass with `create_graph=True` (a gradient penalty) leaves a graph that needs the weights again, and nobody can
    tell when: blocks that it used stay whole until `step()` or `zero_grad()`.
    Between passes the parameters are empty: look at values with `state_dict()`, at gradients with `gradients()`.
    """

    def __init__(
        self, module: nn.Module, group: Group, *args: Any, blocks: Sequence[str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(module, group, *args, **kwargs)
        names = members_of_lists(module) if blocks is None else list(blocks)
        self._blocks: list[Block] = []
        self._block_of: dict[ZeroUnit, Block] = {}
        for name, named in reversed(divide(module, names)):  # the order in which backward comes by; "" is the last
            block = Block(self, module.get_submodule(name), self._add(named, True, name or "root"))
            self._blocks.append(block)
            self._block_of |= dict.fromkeys(block.units, block)

    def _begin_backward(self) -> None:
        if not self._running:
            for block in self._blocks:
                block.due = sum(len(unit.names) for unit in block.units if unit.trained)
        super()._begin_backward()

    def _arrived(self, unit: ZeroUnit, index: int) -> None:
        super()._arrived(unit, index)
        block = self._block_of[unit]
        block.due -= 1
        block.free_if_over()

    @torch.no_grad()
    def step(self) -> None:
        """As for `ZeRO`."""
        self._let_go()
        super().step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and give their memory back."""
        self._let_go()
        super().zero_grad(set_to_none)

    def _let_go(self) -> None:
        """Free what a graph of gradients has kept whole."""
        for block in self._blocks:
            block.held = False
            block.free()

    def _end_backward(self) -> None:
        super()._end_backward()
        for block in self._blocks:
            block.free()
            block.calls = 0


class Block:
    """A module whose parameters come and go together, by hooks on its forward pass and on what goes in and out.

    due: gradients of its parameters that this backward pass still has to make. calls: forward passes whose inputs
    have no gradient yet. When there are none of either, nothing in backward needs the parameters any more.
    held: a graph of gradients (create_graph=True) needs them again, so they are not freed.
    """

    def __init__(self, model: ZeRO3, module: nn.Module, units: list[ZeroUnit]) -> None:
        self.units, self.due, self.calls, self.held, self._told_by_inputs = units, 0, 0, False, False
        self._model = [model]  # in a list: a module is not to be found in its own parts
        module.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        module.register_forward_hook(self._after_forward)

    def free(self) -> None:
        """Free all parameters, unless they are held."""
        for unit in () if self.held else self.units:
            unit.free()

    def free_if_over(self) -> None:
        """Free what this backward pass is done with.

        A frozen weight makes no gradient whose arrival could tell: it waits for that of the inputs, or else for the
        end of the pass.
        """
        if self.due == 0 and self.calls == 0 and not self.held:
            for unit in self.units:
                if unit.trained or self._told_by_inputs:
                    unit.free()

    def _gather(self) -> None:
        for unit in self.units:
            unit.gather()

    def _before_forward(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._gather()
        # not leaves: where their gradient is asked for by torch.autograd.grad, PyTorch cannot say whether it will come
        inputs = [x for x in tensors((args, kwargs)) if x.requires_grad and not x.is_leaf]
        if inputs and torch.is_grad_enabled() and not self._model[0]._running:
            self.calls, self._told_by_inputs = self.calls + 1, True
            register_multi_grad_hook(inputs, self._after_backward)

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._model[0]._running:  # an activation checkpoint computes it again: backward comes at once
            return
        self.free()
        for x in tensors(output):
            if x.requires_grad:
                x.register_hook(self._before_backward)

    def _before_backward(self, gradient: Tensor) -> None:
        self._model[0]._begin_backward()
        self._gather()
        self.held = self.held or torch.is_grad_enabled()  # create_graph=True

    def _after_backward(self, gradients: Any) -> None:
        self.calls -= 1
        self.free_if_over()


def tensors(x: Any) -> Iterator[Tensor]:
    """The tensors in `x`: itself, or those in tuples, lists and dicts."""
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, dict | tuple | list):
        for y in x.values() if isinstance(x, dict) else x:
            yield from tensors(y)


def members_of_lists(module: nn.Module) -> list[str]:
    """The names of the members of every `nn.ModuleList` that is not in a member itself."""
    found: list[str] = []
    for name, part in module.named_modules():
        if isinstance(part, nn.ModuleList) and not any(name.startswith(f"{member}.") for member in found):
            found += [f"{name}.{i}" if name else str(i) for i in range(len(part))]
    return found


def divide(module: nn.Module, names: Sequence[str]) -> list[tuple[str, Named]]:
    """The parameters of the whole module that belong to no block, under the name "", and then those of each block."""
    parts = dict(module.named_modules(remove_duplicate=False))
    wrong = [name for name in names if name not in parts or not name]
    if wrong:
        raise RefusedError(f"blocks={list(names)!r}: the model has no submodule {wrong[0]!r}")
    inside = {name: [n for n in parts if n == name or n.startswith(f"{name}.")] for name in names}
    nested = [n for name in names for n in inside[name] if n != name and n in inside]
    if nested or len(set(names)) < len(names):
        raise RefusedError(
            f"blocks={list(names)!r}: {(nested or list(names))[0]!r} is named twice, or lies inside another"
        )
    owners: dict[nn.Parameter, set[str]] = {}
    for name, part in parts.items():
        home = next((block for block in names if name in inside[block]), "")
        for p in part.parameters(recurse=False):
            owners.setdefault(p, set()).add(home)
    homes: dict[str, list[tuple[str, nn.Parameter]]] = {name: [] for name in ("", *names)}
    for name, p in module.named_parameters():
        homes[min(owners[p]) if len(owners[p]) == 1 else ""].append((name, p))
    return [(name, named) for name, named in homes.items() if named]
