"""Tensors between stages in few bits: what a `Wire` makes of them, and what the neighbouring stage makes of that.

Only what is sent is encoded: between two stages on the same rank a tensor stays as it is, and so do those that are not
floating-point numbers (masks, positions). The last dimension of a tensor is a row.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from labkit.optim.precision.codec import Codec, Wire
from labkit.parallel.pipeline.running.boundaries import Shapes
from labkit.parallel.pipeline.running.stage import Tensors
from labkit.parallel.pipeline.traffic import ACTIVATION, Payload


def coded_shapes(shapes: Shapes, payload: Payload, wire: Wire | None) -> Shapes:
    """The shapes of the messages for tensors of these shapes."""
    if wire is None:
        return shapes
    codec = _codec(payload, wire)
    return tuple(
        ((rows(shape), codec.row_bytes(numbers(shape))), torch.uint8) if dtype.is_floating_point else (shape, dtype)
        for shape, dtype in shapes
    )


def coded(tensors: Tensors, payload: Payload, wire: Wire | None) -> Tensors:
    """What is sent for them."""
    if wire is None:
        return tensors
    codec = _codec(payload, wire)
    return tuple(
        codec.encode(x.reshape(rows(x.shape), numbers(x.shape))) if x.is_floating_point() else x for x in tensors
    )


def decoded(sent: Tensors, shapes: Shapes, payload: Payload, wire: Wire | None) -> Tensors:
    """Tensors of `shapes` again, from what was sent."""
    if wire is None:
        return sent
    codec = _codec(payload, wire)

    def wide(came: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return codec.decode(came, numbers(shape)).view(shape).to(dtype) if dtype.is_floating_point else came

    return tuple(wide(came, *shape) for came, shape in zip(sent, shapes, strict=True))


def rows(shape: tuple[int, ...]) -> int:
    """One for a tensor without dimensions."""
    return math.prod(shape[:-1])


def numbers(shape: tuple[int, ...]) -> int:
    """In a row."""
    return shape[-1] if shape else 1


def _codec(payload: Payload, wire: Wire) -> Codec:
    return wire.activations if payload.kind == ACTIVATION else wire.gradients
