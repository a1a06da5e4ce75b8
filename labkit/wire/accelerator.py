"""What labkit asks of a GPU: streams, events, page-locked memory, communicators. One door, and CUDA behind it.

`labkit.wire.stand_in` has another one behind the same door, for machines without a GPU. Nothing else in `wire` calls
`torch.cuda`. CUDA's has never run: no machine with a GPU was at hand.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from .errors import PeerLost

FOREVER = timedelta(days=1)  # labkit has deadlines of its own, and PyTorch's may not come before them
PAUSE = 20e-6, 1e-3  # seconds between two looks at an event: at first, and at most
LOOK = 0.05  # seconds between two looks at what else there may be


def poll(over: Callable[[], bool], until: float, look: Callable[[], object]) -> bool:
    """Wait until `over()` or the time `until` (of time.monotonic); whether it is over. `look` is called now and then.

    Never by blocking in the driver: a peer that died would hold the thread for ever.
    """
    pause, next_look = PAUSE[0], time.monotonic() + LOOK
    while not over():
        now = time.monotonic()
        if now > until:
            return False
        if now > next_look:
            look()
            next_look = now + LOOK
        time.sleep(pause)
        pause = min(2 * pause, PAUSE[1])
    return True


class Accelerator(Protocol):
    """A kind of device. Streams have `wait_stream`, `wait_event` and `synchronize`, events `query`, as in `torch.cuda`.

    device: where tensors live, if there is only one.
    """

    device: torch.device | None = None

    def holds(self, x: Tensor) -> bool:
        """Whether `x` lies in its memory."""
        ...

    def stream(self) -> Any:
        """A new stream."""

    def current_stream(self) -> Any:
        """Where the calling thread queues its work."""

    def use(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """Within it the calling thread queues its work on `stream`."""
        ...

    def event(self, timing: bool = False) -> Any:
        """An event on the current stream: it happens when all that is queued there now is over."""

    def launch(self, call: Callable[..., Any], into: Tensor, *args: Any) -> None:
        """Call `call(into, *args)`, which writes `into`, so that its work is queued on the current stream."""

    def synchronize(self, device: torch.device) -> None:
        """Block until the device is through with all that is queued."""

    def choose(self, device: torch.device) -> None:
        """Make it the calling thread's own."""

    def host_room(self, nbytes: int) -> Tensor:
        """Host memory from and to which the device copies while the host goes on: page-locked. dtype: uint8."""
        ...

    def communicator(self, store: Any, rank: int, size: int, name: str, parent: Any = None) -> Any:
        """Begin to make a communicator, without blocking: it is there when `_is_initialized()`.

        Every member calls it. store: where they meet. name: used once. parent: one with the same members, all of whom
        call this now and have nothing under way on it; then it is split from that one.
        It has the calls of `dist.ProcessGroupNCCL`.
        """

    def backend(self, group: Any) -> Any:
        """The communicators of a process group of torch.distributed, as one with `abort` that `failure` takes."""

    def failure(self, communicator: Any) -> Exception | None:
        """What went wrong in the communicator's queued work, None for nothing that is known."""
        ...

    def explain(self, communicator: Any) -> str:
        """Why the communicator hangs, as far as it can be told."""
        ...


class Cuda(Accelerator):
    """NVIDIA's GPUs by PyTorch. Communicators as `torch.distributed._dist2` makes them: not registered anywhere."""

    def holds(self, x: Tensor) -> bool:
        return x.is_cuda

    def stream(self) -> Any:
        return torch.cuda.Stream()

    def current_stream(self) -> Any:
        return torch.cuda.current_stream()

    def use(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def event(self, timing: bool = False) -> Any:
        event = torch.cuda.Event(enable_timing=timing)
        event.record()
        return event

    def launch(self, call: Callable[..., Any], into: Tensor, *args: Any) -> None:
        call(into, *args)

    def synchronize(self, device: torch.device) -> None:
        torch.cuda.synchronize(device)

    def choose(self, device: torch.device) -> None:
        torch.cuda.set_device(device)

    def host_room(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def communicator(self, store: Any, rank: int, size: int, name: str, parent: Any = None) -> Any:
        # labkit aborts by itself: with PyTorch's own handling on, its watchdog would end the process
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        options = dist.ProcessGroupNCCL.Options()
        options.config.blocking = 0
        options._timeout = FOREVER
        if parent is not None:
            options.split_from, options.split_color = parent, 0
        made: Any = dist.ProcessGroupNCCL(dist.PrefixStore(name, store), rank, size, options)
        made._set_sequence_number_for_group()
        made.eager_connect_single_device(torch.device("cuda", torch.cuda.current_device()))
        return made

    def backend(self, group: Any) -> Any:
        return group._get_backend(torch.device("cuda"))

    def failure(self, communicator: Any) -> Exception | None:
        error = communicator.get_error()
        return None if error.name == "SUCCESS" else PeerLost(f"NCCL says {error.name}")

    def explain(self, communicator: Any) -> str:
        return "see NCCL's own record of it with TORCH_NCCL_TRACE_BUFFER_SIZE and TORCH_NCCL_DUMP_ON_TIMEOUT"


CUDA = Cuda()
_stand_in: Accelerator | None = None


def install(stand_in: Accelerator) -> Accelerator:
    """From now on this process has a stand-in device."""
    global _stand_in
    _stand_in = stand_in
    return stand_in


def of(device: torch.device) -> Accelerator | None:
    """The accelerator that `device` is one of; None for the CPU."""
    if device.type == "cuda":
        return CUDA
    return _stand_in if _stand_in is not None and device == _stand_in.device else None


def holding(x: Tensor) -> Accelerator | None:
    """The accelerator in whose memory `x` lies; None for host memory."""
    return next((one for one in (_stand_in, CUDA) if one is not None and one.holds(x)), None)
