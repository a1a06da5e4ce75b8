"""Which parameters does an output depend on? The autograd graph knows, before backward runs.

A parameter that took no part in a forward gets no gradient, and the bucket it lies in would wait for it for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from labkit.wire.errors import RefusedError


def tensors_in(output: Any) -> list[Tensor] | None:
    """The tensors in `output`: itself, or inside lists, tuples, mappings and dataclasses, nested.

    None if there is something in it that cannot be looked into: then nobody knows what the loss may depend on.
    """
    try:
        return list(_tensors(output))
    except TypeError:
        return None


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, (list, tuple)):
        for value in output:
            yield from _tensors(value)
    elif is_dataclass(output) and not isinstance(output, type):
        for field in fields(output):
            yield from _tensors(getattr(output, field.name))
    elif not isinstance(output, (int, float, complex, str, bytes, type(None))):
        raise TypeError(f"tensors cannot be looked for in {type(output).__name__}")


def examples_in(inputs: Any) -> int:
    """How many examples a batch has: the first dimension of the first tensor in `inputs`. Refused if there is none."""
    found = next((x for x in tensors_in(inputs) or () if x.dim()), None)
    if found is None:
        raise RefusedError(
            "average='examples' counts the first dimension of the first tensor in the inputs, and there is "
            "none in these: build the model with average='weights', and say model.weight(n)"
        )
    return len(found)


def reached(tensors: Iterable[Tensor]) -> set[int]:
    """The `id` of every leaf that backward from `tensors` would reach. Cost: one visit to each node of the graph."""
    leaves, seen = set(), set()
    nodes = [t.grad_fn if t.grad_fn is not None else t for t in tensors if t.requires_grad]
    while nodes:
        node: Any = nodes.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, Tensor):  # an output that is a parameter itself
            leaves.add(id(node))
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)  # the node at which a gradient is added to `.grad`
        if leaf is not None:
            leaves.add(id(leaf))
        nodes.extend(next_node for next_node, _ in node.next_functions)
    return leaves
