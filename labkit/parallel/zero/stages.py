"""The three stages of ZeRO. Each cuts one thing more among the ranks, and differs from the one before in that only.

                     parameters   gradients   optimizer's state   bytes a parameter   a rank sends
    ZeRO1            whole        whole       cut                 4 + 12/N            2 (N-1)/N M
    ZeRO2            whole        cut         cut                 2 + 14/N            2 (N-1)/N M
    ZeRO3            cut          cut         cut                 16/N                3 (N-1)/N M

N ranks; M bytes of parameters in the dtype of messages; mixed precision. ZeRO3 is in stage3.py.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from torch import nn
from torch.autograd import Variable

from labkit.cost.units import MiB
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from .base import ZeRO
from .unit import Named, ZeroUnit

BUCKET = 2 * MiB  # small buckets take little memory beside the state; over a network with a large latency take more
IN_FLIGHT = 2  # buckets whose reduction is under way; more would be whole gradients again


class ZeRO1(ZeRO):
    """Stage 1: the optimizer's state is cut. Arguments as for `ZeRO`.

    Every rank keeps its whole gradient, of all backward passes since `zero_grad`, until `step` reduce-scatters it.
    So accumulating over microbatches sends nothing. bucket_bytes: at most so much is reduced in one collective.
    """

    def __init__(self, module: nn.Module, group: Group, *args: Any, bucket_bytes: int = BUCKET, **kwargs: Any) -> None:
        super().__init__(module, group, *args, **kwargs)
        for bucket in buckets(module, bucket_bytes, self.dtype.itemsize):
            self._add(bucket, cut=False)

    def _arrived(self, unit: ZeroUnit, index: int) -> None:
        if unit.gradient is not None:
            raise RefusedError(
                "backward() after the gradients were reduced by step(), gradients() or clip_grad_norm_(): "
                "call zero_grad() first"
            )
        unit.take(index)

    def _reduced(self) -> None:
        due = [unit for unit in self.units if unit.trained and unit.gradient is None]
        for unit in due if self.check_nan else ():
            unit.check_finite()
        under_way: deque[tuple[ZeroUnit, Any]] = deque()
        for unit in due:
            under_way.append((unit, unit.reduce()))
            if len(under_way) == IN_FLIGHT:
                self._keep(*under_way.popleft())
        while under_way:
            self._keep(*under_way.popleft())

    def _keep(self, unit: ZeroUnit, handle: Any) -> None:
        """The mean comes to lie in the whole gradient, where this rank's own was."""
        assert unit.whole_gradient is not None
        unit.gradient = unit.flat.part(unit.whole_gradient, unit.group.rank)
        unit.gradient.copy_(handle.wait())


class Scattered(ZeRO):
    """Gradients that are cut while backward makes them: what stages 2 and 3 share.

    A unit is reduce-scattered as soon as all its gradients are there, and its whole gradient freed when that is done.
    All ranks do this in the order of `units`. With several backward passes to a step each of them sends its gradients,
    and the means are added. A pass sends something for every unit, whether it reached the unit or not.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._running = self._arriving = False  # in a backward pass; and gradients of parameters have come
        self._waiting: deque[ZeroUnit] = deque()
        self._under_way: deque[tuple[ZeroUnit, Any]] = deque()

    def _arrived(self, unit: ZeroUnit, index: int) -> None:
        self._begin_backward()
        if not self._arriving:  # torch.autograd.grad for the inputs has none, and sends none
            self._arriving, self._waiting = True, deque(unit for unit in self.units if unit.trained)
        unit.take(index)
        while self._waiting and self._waiting[0].complete:
            self._reduce(self._waiting.popleft())

    def _reduce(self, unit: ZeroUnit) -> None:
        if self.check_nan:
            unit.check_finite()
        if len(self._under_way) == IN_FLIGHT:
            self._settle()
        self._under_way.append((unit, unit.reduce()))

    def _settle(self) -> None:
        """Wait for the oldest reduction; keep the shard, free the rest."""
        unit, handle = self._under_way.popleft()
        mean = handle.wait()
        unit.gradient = mean if unit.gradient is None else unit.gradient.add_(mean)
        unit.drop_whole_gradient()

    def _begin_backward(self) -> None:
        if not self._running:
            self._running, self._arriving, self._waiting = True, False, deque()
            Variable._execution_engine.queue_callback(self._end_backward)

    def _end_backward(self) -> None:
        while self._waiting:  # these lack a gradient, and will not get it any more
            self._reduce(self._waiting.popleft())
        while self._under_way:
            self._settle()
        self._running = False

    def _reduced(self) -> None:
        """Backward has seen to it."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and give their memory back."""
        self._running = False  # in case a backward pass has raised
        self._under_way.clear()
        super().zero_grad(set_to_none)


class ZeRO2(Scattered):
    """Stage 2: the gradients are cut too. Arguments as for `ZeRO`.

    bucket_bytes: of a bucket of gradients. While backward runs at most three are in memory: one is being filled, and
    two are on their way.
    """

    def __init__(self, module: nn.Module, group: Group, *args: Any, bucket_bytes: int = BUCKET, **kwargs: Any) -> None:
        super().__init__(module, group, *args, **kwargs)
        for bucket in buckets(module, bucket_bytes, self.dtype.itemsize):
            self._add(bucket, cut=False)


def buckets(module: nn.Module, nbytes: int, itemsize: int) -> list[Named]:
    """The parameters in runs of at most `nbytes`, from the last to the first: about the order of their gradients."""
    if nbytes < 1:
        raise RefusedError(f"bucket_bytes={nbytes}: a bucket needs at least one byte")
    found: list[list[tuple[str, nn.Parameter]]] = []
    room = 0
    for name, p in reversed(list(module.named_parameters())):
        if p.numel() * itemsize > room:
            found.append([])
            room = nbytes
        found[-1].append((name, p))
        room -= p.numel() * itemsize
    return list[Named](found)
