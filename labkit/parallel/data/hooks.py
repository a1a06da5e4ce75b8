"""Communication hooks: how a full bucket is summed over the ranks.

    hook(bucket: Tensor, group: Group) -> handle

bucket: 1-D, this rank's gradients, already multiplied by what they count for (1 / N, or weight / total). The hook
starts the communication and returns at once. After `handle.wait()` the bucket must hold the sum over all ranks, the
same on every rank. Hooks are called in bucket order, so whatever they start is in the same order on all ranks.

A hook that treats each parameter by itself is a `NamedHook`: it gets the gradients in the bucket by name. Buckets are
made anew after the first step, so what such a hook remembers it must remember by name, not by bucket. Those of
`labkit.optim.compression` are of this kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from labkit.collectives import all_reduce
from labkit.wire.group import Group


class Handle(Protocol):
    """What an asynchronous collective returns."""

    def wait(self) -> Any: ...


class Hook(Protocol):
    def __call__(self, bucket: Tensor, group: Group, /) -> Handle: ...


@runtime_checkable
class NamedHook(Protocol):
    """A hook that is told which parameters lie in a bucket. Its `repr` must say all its options: ranks compare it.

    check_nan: have the gradients looked at before they come here, as `DataParallel(check_nan=True)` does.
    feedback: whether it sends later what it kept back earlier; a parameter that no rank used may then have a gradient.
    """

    check_nan: bool
    feedback: bool

    def bucket(self, flat: Tensor, gradients: Mapping[str, Tensor], group: Group, /) -> Handle:
        """As a plain hook's call with `flat`; `gradients` are views of it in the parameters' shapes, in order."""
        ...


AnyHook = Hook | NamedHook


def said(hook: AnyHook | None) -> str:
    """How ranks compare their hooks."""
    return repr(hook) if isinstance(hook, NamedHook) else getattr(hook, "__name__", type(hook).__name__)


def all_reduce_hook(bucket: Tensor, group: Group, algorithm: str = "auto") -> Handle:
    """Sum the bucket as it is, in its own dtype. What `DataParallel` does if no hook is given."""
    return all_reduce(bucket, group, algorithm=algorithm, async_op=True)


def bf16_hook(bucket: Tensor, group: Group, algorithm: str = "auto") -> Handle:
    """Sum the bucket in bfloat16: half the bytes of float32.

    bfloat16 keeps 8 bits of a number, so each rounding is off by at most 2^-8 of it. A ring rounds once on every
    rank and once at every hop; a difference of about N * 2^-8 of the largest partial sum is the worst case.
    `QuantizedAllReduce(Codec("BF16"))` of `labkit.optim.precision` sends the same bytes and adds in float32.
    The range is that of float32: nothing overflows, and no loss scaling is needed.
    """
    small = bucket.to(torch.bfloat16)
    return _WideAgain(bucket, all_reduce(small, group, algorithm=algorithm, async_op=True))


class _WideAgain:
    """Waits for a narrow sum and writes it into the bucket."""

    def __init__(self, bucket: Tensor, handle: Handle):
        self._bucket, self._handle = bucket, handle

    def wait(self) -> Tensor:
        return self._bucket.copy_(self._handle.wait())
