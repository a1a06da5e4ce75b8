"""Stand-in kernels: on the virtual clock a layer takes the time that it is given, whatever it really takes.

The numbers of a forward and a backward are real, and so are the messages between ranks. Only time is pretend: each
layer takes `forward` seconds when it is called, and `backward` seconds before the gradients of its parameters are
ready. So one laptop shows how communication hides behind the backward of a device that is a thousand times faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from labkit.wire.errors import Refused
from labkit.wire.group import Group

Seconds = Mapping[str, tuple[float, float]] | Callable[[nn.Module], tuple[float, float]] | None


def kernels(module: nn.Module, group: Group, seconds: Seconds = None, *, flops: float | None = None) -> Kernels:
    """From now on the layers of `module` take time on the timeline of `group`; `.remove()` ends that.

    seconds: {name of a submodule: (forward, backward)}; or a function of a leaf module that returns the two.
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
            raise Refused("kernels needs either seconds, by layer, or flops (operations a second of the device)")
        if flops is not None and not flops > 0:
            raise Refused(f"kernels(flops={flops}): operations a second, more than 0")
        self._group, self._flops, self._handles = group, flops, list[RemovableHandle]()
        for layer, times in self._layers(module, seconds):
            self._time(layer, times)

    def _layers(self, module: nn.Module, seconds: Seconds) -> list[tuple[nn.Module, tuple[float, float] | None]]:
        if isinstance(seconds, Mapping):
            known = dict(module.named_modules())
            unknown = [name for name in seconds if name not in known]
            if unknown:
                raise Refused(f"kernels: this module has no part called {unknown[0]!r}. "
                              f"It has {', '.join(repr(n) for n in list(known)[1:6])} ...")  # fmt: skip
            return [(known[name], times) for name, times in seconds.items()]
        leaves = [m for m in module.modules() if not any(m.children())]
        if seconds is None:
            return [(m, None) for m in leaves if multiplies(m)]
        return [(m, times) for m in leaves if any(times := seconds(m))]

    def _time(self, layer: nn.Module, times: tuple[float, float] | None) -> None:
        calls: list[float] = []  # backward seconds of calls whose backward is to come; the last call is first

        def after_forward(layer: nn.Module, inputs: Any, output: Any) -> None:
            forward, backward = times if times is not None else self._product(layer, output)
            if isinstance(output, Tensor) and output.requires_grad:
                calls.append(backward)
            self._group.compute(forward)

        def before_backward(layer: nn.Module, gradients: Any) -> None:
            self._group.compute(calls.pop() if calls else 0.0)

        self._handles.append(layer.register_forward_hook(after_forward))
        self._handles.append(layer.register_full_backward_pre_hook(before_backward))

    def _product(self, layer: nn.Module, output: Any) -> tuple[float, float]:
        """Seconds of a matrix product or a convolution, forward and backward."""
        weight = layer.weight
        assert isinstance(weight, Tensor)
        assert self._flops is not None
        forward = 2 * output.numel() * (weight.numel() // len(weight)) / self._flops
        return forward, 2 * forward

    def remove(self) -> None:
        """Take the hooks off again."""
        while self._handles:
            self._handles.pop().remove()

    def __enter__(self) -> Kernels:
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


def multiplies(layer: nn.Module) -> bool:
    """Whether it is a matrix product or a convolution."""
    weight = getattr(layer, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() >= 2 and not isinstance(layer, nn.Embedding)
