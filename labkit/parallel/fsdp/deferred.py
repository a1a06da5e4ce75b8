"""A model that is never whole anywhere: built without values, which are drawn later, one parameter after the other.

    model = FullyShard(deferred(GPT, config, seed=3), group)

holds the same weights, to the bit, as FullyShard(GPT(config, seed=3), group). The constructor runs on the meta device,
where tensors have shapes and no values, and every operation that would have made values is written down. Then each
rank runs the same operations in the same order, with the same random numbers, on one tensor at a time: as soon as
nothing more happens to a parameter, the rank copies what it owns of it and lets it go.

What it costs: every rank draws all random numbers of the model, those of other ranks' shards too, since the
sequence cannot be entered in the middle. That is the time of building the model once; nothing is sent. At its peak a
rank holds its shards, and the few tensors that the constructor works on at once: for a GPT its largest parameter.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from labkit.wire.errors import RefusedError

Deliver = Callable[[Tensor, Tensor], None]
OVERWRITES = {"normal_", "uniform_", "zero_", "fill_", "copy_", "random_", "exponential_", "log_normal_", "cauchy_",
              "geometric_", "bernoulli_", "_no_grad_trunc_normal_", "dirac_", "orthogonal_", "sparse_"}  # fmt: skip
DRAWS = {"normal_", "uniform_", "zero_", "fill_"}
LOOKING = ("_no_grad_trunc_normal_", "dirac_", "orthogonal_", "sparse_")
EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


def deferred(build: Callable[..., nn.Module], *args: Any, **kwargs: Any) -> nn.Module:
    """`build(*args, **kwargs)` without values, for `FullyShard` to draw. Random numbers are drawn only then."""
    recipe = Recipe()
    with torch.device("meta"), recipe.with_initialisers(), recipe:
        module = build(*args, **kwargs)
    module.__dict__["recipe"] = recipe
    return module


@dataclass(frozen=True)
class Place:
    """Where a tensor lies: in which memory (by its identity), and how."""

    memory: int
    nbytes: int  # of the memory
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass
class Step:
    """An operation: `args` and `kwargs` with places for tensors; `results` new tensors. random: the generator that it
    draws from and its state, if that is not what the step before has left."""

    op: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Place]
    changes: bool  # its first argument
    random: bool
    state: tuple[torch.Generator, Tensor] | None = None

    @property
    def touched(self) -> list[Place]:
        """Places that it reads or changes."""
        return [x for x in tree_flatten((self.args, self.kwargs))[0] if isinstance(x, Place)]

    @property
    def written(self) -> set[int]:
        """Memories that it changes or makes."""
        changed = {self.args[0].memory} if self.changes and isinstance(self.args[0], Place) else set()
        return changed | {p.memory for p in self.results}

    @property
    def overwritten(self) -> set[int]:
        """Memories of which nothing is left from before."""
        made = {p.memory for p in self.results}
        if self.name in OVERWRITES and isinstance(first := self.args[0], Place):
            if _numel(first) * first.dtype.itemsize == first.nbytes:
                made.add(first.memory)
        return made


class Recipe(TorchDispatchMode):
    """Writes down, while it is entered, what is done to meta tensors; `replay` does it to real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self._alive: list[Tensor] = []  # so that no identity is used twice
        self._states: dict[torch.Generator, Tensor] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """PyTorch would wrap each operation against its compiler, which takes longer than writing it down."""
        return False

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(op._schema.name).split("::")[1]
        # What only draws numbers changes no shape: PyTorch would look for a long time for what to do without values.
        out = args[0] if name in DRAWS and _is_meta(args[0]) else op(*args, **kwargs)
        given = {_memory(x) for x in tree_flatten((args, kwargs))[0] if _is_meta(x)}
        made = [x for x in tree_flatten(out)[0] if _is_meta(x) and _memory(x) not in given]
        self._alive += made
        if not (made or (given and op._schema.is_mutable)):
            return out  # a view, or nothing of ours
        if name not in EMPTY:
            random = torch.Tag.nondeterministic_seeded in op.tags
            self._write(op, name, args, kwargs, made, op._schema.is_mutable, random)
        return out

    def _write(
        self, op: Any, name: str, args: Any, kwargs: Any, made: list[Tensor], changes: bool, random: bool
    ) -> None:
        args_, kwargs_ = tree_map(lambda x: _place(x) if _is_meta(x) else x, (tuple(args), dict(kwargs)))
        step = Step(op, name, args_, kwargs_, [_place(x) for x in made], changes, random)
        if random:
            source = kwargs.get("generator") or torch.default_generator
            state = source.get_state()  # unchanged by drawing on the meta device: changed only by a new seed
            if source not in self._states or not torch.equal(state, self._states[source]):
                self._states[source], step.state = state, (source, state)
        self.steps.append(step)

    @contextlib.contextmanager
    def with_initialisers(self) -> Iterator[None]:
        """Write down as one step what torch.nn.init leaves out for a meta tensor, since it looks at the values."""
        originals = {name: getattr(nn.init, name) for name in LOOKING}

        def written(name: str, original: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if not tensor.is_meta:
                return original(tensor, *args, **kwargs)
            self._write(original, name, (tensor, *args), kwargs, [], True, True)
            return tensor

        for name, original in originals.items():
            setattr(nn.init, name, functools.partial(written, name, original))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(nn.init, name, original)

    @torch.no_grad()
    def replay(self, deliver: Deliver, module: nn.Module, device: torch.device) -> None:
        """Draw: call `deliver(values, p)` for each parameter `p` of `module` as soon as it is final; fill buffers.

        The caller's random numbers stay as they were. Raises RefusedError for a parameter that nothing gave a value.
        """
        homes: dict[int, list[Tensor]] = {}
        for parameter in module.parameters():
            homes.setdefault(_memory(parameter), []).append(parameter)
        buffers = [(m, n, b) for m in module.modules() for n, b in m._buffers.items() if b is not None and b.is_meta]
        kept, last = self._needed(set(homes) | {_memory(b) for _, _, b in buffers})
        _refuse_without_values(module, last)
        real: dict[int, Tensor] = {}
        with torch.random.fork_rng(devices=[]):
            for i, step in enumerate(self.steps):
                if not (kept[i] or step.random):
                    continue
                if step.state is not None:
                    step.state[0].set_state(step.state[1])
                memories = real if kept[i] else {}  # drawn only to go on in the sequence: into memory of its own
                _run(step, memories)
                if kept[i]:
                    for memory in {p.memory for p in step.touched} | step.written:
                        if last[memory] == i:
                            for p in homes.get(memory, ()):
                                deliver(_real(_place(p), real), p)
                            if not any(_memory(b) == memory for _, _, b in buffers):
                                real.pop(memory, None)
        for m, name, buffer in buffers:
            m._buffers[name] = _real(_place(buffer), real).to(device, copy=True)

    def _needed(self, wanted: set[int]) -> tuple[list[bool], dict[int, int]]:
        """Which steps anything wanted depends on, and at which of them each memory is used last. Found backwards."""
        needed, kept = set(wanted), [False] * len(self.steps)
        last: dict[int, int] = {}
        for i in reversed(range(len(self.steps))):
            step = self.steps[i]
            if step.written & needed:
                kept[i] = True
                for memory in {p.memory for p in step.touched} | step.written:
                    last.setdefault(memory, i)
                gone = step.overwritten
                needed -= gone
                needed |= {p.memory for p in step.touched} - gone
        return kept, last


def _run(step: Step, memories: dict[int, Tensor]) -> None:
    args, kwargs = tree_map(lambda x: _real(x, memories) if isinstance(x, Place) else x, (step.args, step.kwargs))
    if kwargs.get("device") is not None:
        kwargs["device"] = torch.device("cpu")
    out = [x for x in tree_flatten(step.op(*args, **kwargs))[0] if isinstance(x, Tensor)]
    for place, values in zip(step.results, out, strict=False):
        _real(place, memories).copy_(values)


def _real(place: Place, memories: dict[int, Tensor]) -> Tensor:
    """The tensor at `place`; its memory is made when it is first asked for."""
    if place.memory not in memories:
        memories[place.memory] = torch.empty(place.nbytes, dtype=torch.uint8)
    return memories[place.memory].view(place.dtype).as_strided(place.size, place.stride, place.offset)


def _refuse_without_values(module: nn.Module, last: dict[int, int]) -> None:
    for name, p in module.named_parameters():
        if p.numel() and _memory(p) not in last:
            raise RefusedError(
                f"deferred: nothing in the constructor gives {name!r} a value that can be drawn later "
                "(torch.empty, or numbers from a list): initialise it with torch.nn.init"
            )


def _is_meta(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_meta


def _memory(x: Tensor) -> int:
    return int(x.untyped_storage()._cdata)


def _place(x: Tensor) -> Place:
    return Place(_memory(x), x.untyped_storage().nbytes(), x.dtype, tuple(x.shape), x.stride(), int(x.storage_offset()))


def _numel(place: Place) -> int:
    return torch.Size(place.size).numel()
