"""A backward pass that announces its layers: so that what is sent meanwhile can be told from what is sent later.

On one machine the backward pass of a small model is over before a message is under way, and which of the two comes
first is luck. `announce_backward` gives each layer's backward pass the length of some rounds of messages, in which
all ranks keep step. What has been sent when a layer is announced was sent before its gradients were there.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from labkit.wire.group import Group


def announce_backward(model: nn.Module, group: Group, rounds: int | None = None) -> nn.Module:
    """Announce each layer of `model` in the backward pass, before its gradients are computed; returns `model`.

    A layer is a module with parameters of its own that returns a tensor; the first one that `model.modules()` names has
    number 1. Its announcement is `rounds` messages of so many bytes (uint8) to the right neighbour, one after the
    other; by default 4 N, time for two ring all-reduces of 2 (N - 1) rounds. They have sockets of their own, so that
    nothing else waits for them. One rank alone announces nothing.
    """
    if group.size == 1:
        return model
    beside = group.subgroup(range(group.size))
    layers = [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]
    for number, layer in enumerate(layers, 1):
        layer.register_forward_hook(_Announcer(beside, number, 4 * group.size if rounds is None else rounds))
    return model


def announce(group: Group, number: int, rounds: int | None = None) -> None:
    """Announce something of `number`, from 1, by hand: at work that others should be able to hide behind.

    The same messages as of one layer above, on sockets of their own. One rank alone announces nothing.
    """
    if group.size > 1:
        beside = group.subgroup(range(group.size))
        _announce(beside, number, 4 * group.size if rounds is None else rounds, torch.empty(0))


class _Announcer:
    """The forward hook of one layer: its output announces the layer when the backward pass comes to it."""

    def __init__(self, group: Group, number: int, rounds: int):
        self.group, self.number, self.rounds = group, number, rounds

    def __call__(self, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(functools.partial(_announce, self.group, self.number, self.rounds))


def _announce(group: Group, number: int, rounds: int, gradient: Tensor) -> None:
    mine, theirs = torch.zeros(2, number, dtype=torch.uint8)
    for _ in range(rounds):
        group.exchange(mine, to=(group.rank + 1) % group.size, like=theirs, source=(group.rank - 1) % group.size)
