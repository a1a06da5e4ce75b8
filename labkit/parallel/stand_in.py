"""Stand-in kernels: on the virtual clock a layer takes the time that it is given, whatever it really takes.

The numbers of a forward and a backward are real, and so are the messages between ranks. Only time is pretend: each
layer takes `forward` seconds when it is called, and `backward` seconds before the gradients of its parameters are
ready. So one laptop shows how communication hides behind the backward of a device that is a thousand times faster.

A layer that communicates inside its backward (a tensor-parallel one) must take its time in two steps, since what it
sends hides behind the second: the gradient of its inputs, then that of its weights. Such a layer has an attribute
`product` that makes both, and here gets a `TimedProduct`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from labkit.parallel.tensor.products import Product
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

Times = tuple[float, float] | tuple[float, float, float]
Seconds = Mapping[str, Times] | Callable[[nn.Module], Times] | None


def kernels(module: nn.Module, group: Group, seconds: Seconds = None, *, flops: float | None = None) -> Kernels:
    """From now on the layers of `module` take time on the timeline of `group`; `.remove()` ends that.

    seconds: {name of a submodule: (forward, backward)}; or a function of a leaf module that returns the two. In place
    of backward there can be two numbers, (forward, input gradient, weight gradient); one number is half of each.
    flops: instead, floating-point operations a second of the device. A leaf with a weight then takes 2 operations
    for each weight that each of its outputs is made of, and twice as long backward (a product for the gradient of its
    inputs, one for that of its weights); Embeddings and norms, which multiply little, take none.
    Under `clock="real"` the process waits that long.
    """
    return Kernels(module, group, seconds, flops)


class Kernels:
    """The hooks that `kernels` put on a module. Use as a context manager, or call `remove()`."""

    def __init__(self, module: nn.Module, group: Group, seconds: Seconds, flops: float | None):
        if (seconds is None) == (flops is None):
            raise RefusedError("kernels needs either seconds, by layer, or flops (operations a second of the device)")
        if flops is not None and not flops > 0:
            raise RefusedError(f"kernels(flops={flops}): operations a second, more than 0")
        self._group, self._flops, self._handles = group, flops, list[RemovableHandle]()
        self._told = list[nn.Module]()
        for layer, times in self._layers(module, seconds):
            self._time(layer, times)

    def _layers(self, module: nn.Module, seconds: Seconds) -> list[tuple[nn.Module, Times | None]]:
        if isinstance(seconds, Mapping):
            known = dict(module.named_modules())
            unknown = [name for name in seconds if name not in known]
            if unknown:
                raise RefusedError(
                    f"kernels: this module has no part called {unknown[0]!r}. "
                    f"It has {', '.join(repr(n) for n in list(known)[1:6])} ..."
                )
            return [(known[name], times) for name, times in seconds.items()]
        leaves = [m for m in module.modules() if not any(m.children())]
        if seconds is None:
            return [(m, None) for m in leaves if multiplies(m)]
        return [(m, times) for m in leaves if any(times := seconds(m))]

    def _time(self, layer: nn.Module, times: Times | None) -> None:
        if hasattr(layer, "product"):
            layer.product = TimedProduct(self._group, times, self._flops)  # type: ignore[assignment]
            self._told.append(layer)
            return
        calls: list[float] = []  # backward seconds of calls whose backward is to come; the last call is first

        def after_forward(layer: nn.Module, inputs: Any, output: Any) -> None:
            inputs = cast(Tensor, layer.weight)[0].numel() if times is None else 0
            seconds = taken(times, inputs, output, self._flops)
            if isinstance(output, Tensor) and output.requires_grad:
                calls.append(seconds.backward)
            self._group.compute(seconds.forward)

        def before_backward(layer: nn.Module, gradients: Any) -> None:
            self._group.compute(calls.pop() if calls else 0.0)

        self._handles.append(layer.register_forward_hook(after_forward))
        self._handles.append(layer.register_full_backward_pre_hook(before_backward))

    def remove(self) -> None:
        """Take the hooks off again."""
        while self._handles:
            self._handles.pop().remove()
        while self._told:
            self._told.pop().product = Product()  # type: ignore[assignment]

    def __enter__(self) -> Kernels:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


@dataclass(frozen=True)
class Taken:
    """Seconds of one call of a layer."""

    forward: float
    input_gradient: float
    weight_gradient: float

    @property
    def backward(self) -> float:
        """Both gradients."""
        return self.input_gradient + self.weight_gradient


def taken(times: Times | None, inputs: int, output: Any, flops: float | None) -> Taken:
    """What was said (two numbers or three); or, with `flops`, the time of the product or convolution that it is.

    inputs: of each number of the `output`.
    """
    if times is None:
        assert flops is not None
        seconds = 2 * output.numel() * inputs / flops
        return Taken(seconds, seconds, seconds)
    return Taken(times[0], times[1] / 2, times[1] / 2) if len(times) == 2 else Taken(*times)


class TimedProduct(Product):
    """The products of a layer, each of which takes its time when it is there (and before it is communicated)."""

    def __init__(self, group: Group, times: Times | None, flops: float | None):
        self._group, self._times, self._flops = group, times, flops

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        y = super().forward(x, weight, bias)
        self._group.compute(self._taken(y, x.shape[-1]).forward)
        return y

    def input_gradient(self, gradient: Tensor, weight: Tensor) -> Tensor:
        found = super().input_gradient(gradient, weight)
        self._group.compute(self._taken(gradient, weight.shape[1]).input_gradient)
        return found

    def weight_gradient(self, gradient: Tensor, x: Tensor) -> Tensor:
        found = super().weight_gradient(gradient, x)
        self._group.compute(self._taken(gradient, x.shape[-1]).weight_gradient)
        return found

    def _taken(self, output: Tensor, inputs: int) -> Taken:
        return taken(self._times, inputs, output, self._flops)


def multiplies(layer: nn.Module) -> bool:
    """Whether it is a matrix product or a convolution."""
    weight = getattr(layer, "weight", None)
    looks_up = isinstance(layer, nn.Embedding) or getattr(layer, "looks_up", False)
    return isinstance(weight, Tensor) and weight.dim() >= 2 and not looks_up
