"""The stand-in device behind the door of `labkit.wire.accelerator`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.wire.accelerator import Accelerator

from . import memory, streams
from .communicator import Communicator
from .hang import explain
from .memory import DEVICE


class StandIn(Accelerator):
    """Streams, memory and communicators of the stand-in. gpu: which one the rank is on, by host and number."""

    device = DEVICE

    def __init__(self, gpu: str = "", version: tuple[int, ...] = (2, 30)):
        self.gpu, self.version = gpu, version

    def holds(self, x: Tensor) -> bool:
        return x.device.type == "cpu" and not memory.on_host(x)

    def stream(self) -> streams.Stream:
        return streams.Stream("side")

    def current_stream(self) -> streams.Stream:
        return streams.current_stream()

    def use(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        return streams.use(stream)

    def event(self, timing: bool = False) -> streams.Event:
        event = streams.Event(timing)
        event.record()
        return event

    def launch(self, call: Callable[..., Any], into: Tensor, *args: Any) -> None:
        """Queue `call(into, *args)`, which writes `into` and reads the tensors among `args`."""
        here, name = streams.current_stream(), getattr(call, "__name__", "a kernel")
        used = [(into, True), *((x, False) for x in args if isinstance(x, Tensor))]
        for x, writes in used:
            memory.touch(x, writes, name, here)
        place = here.put(lambda: call(into, *args))
        for x, writes in used:
            memory.queued(x, here, place, writes, name)

    def synchronize(self, device: torch.device) -> None:
        streams.DEFAULT.synchronize()

    def choose(self, device: torch.device) -> None:
        """There is one."""

    def host_room(self, nbytes: int) -> Tensor:
        return memory.to_host(torch.empty(nbytes, dtype=torch.uint8))

    def communicator(self, store: Any, rank: int, size: int, name: str, parent: Any = None) -> Communicator:
        made = Communicator(store, rank, size, name, self.gpu, self.version, parent)
        made.eager_connect_single_device()
        return made

    def backend(self, group: Any) -> Any:
        return group

    def failure(self, communicator: Communicator) -> Exception | None:
        return communicator.get_error()

    def explain(self, communicator: Communicator) -> str:
        return explain(communicator)
