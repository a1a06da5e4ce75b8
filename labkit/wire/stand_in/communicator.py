"""A communicator that keeps the contract of NCCL over gloo: what NCCL does not allow raises here, or hangs as there.

It has the calls of `torch.distributed.ProcessGroupNCCL` that labkit uses, so the code above cannot tell. Work runs on
a stream of its own, in the order of the calls, a group of calls at once. Where NCCL compares nothing, each message
carries a header here; what is found so becomes the communicator's error, which `get_error` gives to those who wait.
What hangs, hangs, until it is aborted; `hang.py` says why. The collectives are in `process_groups.py`.
"""

from __future__ import annotations

import functools
import os
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.wire.dtypes import CODES, NAMES, as_bytes
from labkit.wire.errors import PeerLost

from . import memory
from .contract import SHARED_GPU, SHARING_SWITCH, ContractBroken
from .streams import Event, Stream, current_stream

FOREVER = timedelta(days=1)  # nothing that NCCL does ends by itself
LOOK = 0.005  # seconds between two looks at whether all members have come
_TYPES = "float32 float64 float16 bfloat16 uint8 int8 int32 int64 bool float8_e4m3fn float8_e5m2".split()


class Call:
    """One call: what it does to which tensor, with whom. run: moves the bytes."""

    def __init__(self, name: str, x: Tensor, peer: int, run: Callable[[], None]):
        self.name, self.x, self.peer, self.run = name, x, peer, run

    def __str__(self) -> str:
        way = {"send": " to", "recv": " from"}.get(self.name, "")
        to = f"{way} rank {self.peer}" if way else ""
        return f"{self.name}{to} of {self.x.numel()} {NAMES[CODES[self.x.dtype]]}"


class Work:
    """What a call or a group of calls returns."""

    def __init__(self, event: Event):
        self._event = event

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Let the current stream wait. The host goes on."""
        current_stream().wait_event(self._event)
        return True


class Communicator(dist.ProcessGroup):
    """One rank's side. name: the same on all members, used once. gpu: which one this rank is on, by host.

    version: the NCCL that is played, in numbers. parent: what it is split from, with the same members.
    """

    def __init__(
        self, store: Any, rank: int, size: int, name: str, gpu: str = "", version: tuple[int, ...] = (2, 30),
        parent: Communicator | None = None,
    ):  # fmt: skip
        super().__init__(rank, size)  # type: ignore[call-arg]
        self.title, self._rank, self._size, self.version = name, rank, size, version
        self.gpu = gpu or f"gpu {rank}"
        self.store = dist.PrefixStore(f"stand-in/{name}", store)
        self.stream = Stream(name)
        self._ready, self._aborted, self._over = threading.Event(), threading.Event(), threading.Event()
        self.error: Exception | None = None
        self._group: list[Call] | None = None
        self._caller: tuple[int, Any] = (0, None)  # the thread and the stream that issued last
        self._counting = threading.Lock()
        self.issued: list[list[Call]] = []  # what the stream is at, and what is queued behind it
        self._sent = dict.fromkeys(range(size), 0)
        self._gloo: Any = None
        self._begun = False
        if parent is not None and not parent._is_initialized():
            raise ContractBroken("split", f"rank {rank} splits {parent.title} before it was made")
        if parent is not None and parent.issued:
            raise ContractBroken("split", f"rank {rank} splits {parent.title} while {parent.at()} is under way on it")

    # -- making and ending it ------------------------------------------------------------------------------------

    def eager_connect_single_device(self, device: Any = None) -> None:
        """Begin to make it; returns at once (as with `config.blocking = 0`)."""
        self._begun = True
        if self.store.check([f"here {self._rank}"]):
            raise ContractBroken("init", f"rank {self._rank} makes the communicator {self.title} a second time")
        self.store.set(f"here {self._rank}", self.gpu)
        threading.Thread(target=self._meet, name=f"labkit-stand-in-init-{self.title}", daemon=True).start()

    def _meet(self) -> None:
        """Wait for all members, for ever, and connect them."""
        keys = [f"here {r}" for r in range(self._size)]
        while not self.store.check(keys):
            if self._aborted.wait(LOOK):
                return
        gpus = [self.store.get(key).decode() for key in keys]
        twice = next((g for g in gpus if gpus.count(g) > 1), None)
        if twice is not None and (self.version < SHARED_GPU or os.environ.get(SHARING_SWITCH) != "1"):
            ranks = [r for r, g in enumerate(gpus) if g == twice]
            what = f"ranks {ranks} of {self.title} are both on {twice}, with NCCL {'.'.join(map(str, self.version))}"
            self.error = ContractBroken("shared GPU", what)
            return
        try:
            self._gloo = _gloo(self.store, self._rank, self._size)
        except RuntimeError as why:
            self.error = self._said(why)
            return
        # A member that is through at once would close its sockets while others still connect theirs to it.
        self.store.set(f"connected {self._rank}", "")
        while not self.store.check([f"connected {r}" for r in range(self._size)]):
            if self._aborted.wait(LOOK):
                return
        self._ready.set()

    def _is_initialized(self) -> bool:
        return self._ready.is_set()

    def abort(self) -> None:
        """End it from any thread: what is under way ends without its data, and what is issued is refused."""
        self._aborted.set()
        self._over.set()

    def at(self) -> str:
        """The calls that the stream is at, in words."""
        return " and ".join(map(str, next(iter(self.issued), []))) or "nothing"

    def get_error(self) -> Exception | None:
        """What went wrong in queued work, None for nothing yet."""
        return self.error

    # -- calls ---------------------------------------------------------------------------------------------------

    def _start_coalescing(self, device: Any = None) -> None:
        if self._group is not None:
            raise ContractBroken("group call", f"rank {self._rank} begins a group call inside another one")
        self._group = []

    def _end_coalescing(self, device: Any = None) -> Work:  # type: ignore[override]
        if self._group is None:
            raise ContractBroken("group call", f"rank {self._rank} ends a group call that it did not begin")
        calls, self._group = self._group, None
        return self._issue(calls)

    def send(self, tensors: list[Tensor], peer: int, tag: int = 0) -> Work | None:  # type: ignore[override]
        return self._message("send", tensors[0], peer, tag, self._send)

    def recv(self, tensors: list[Tensor], peer: int, tag: int = 0) -> Work | None:  # type: ignore[override]
        return self._message("recv", tensors[0], peer, tag, self._recv)

    def _message(self, name: str, x: Tensor, peer: int, tag: int, move: Callable[[Tensor, int], None]) -> Work | None:
        if tag:
            raise ContractBroken("no tags", f"rank {self._rank}: {name} with tag={tag}")
        if not 0 <= peer < self._size:
            raise ValueError(f"rank {self._rank}: {name} with rank {peer} of {self._size}")
        if peer == self._rank:
            raise NotImplementedError("the stand-in has no messages of a rank with itself")
        return self._call(name, x, peer, lambda: move(x, peer))

    def _call(self, name: str, x: Tensor, peer: int, run: Callable[[], None], *more: Tensor) -> Work | None:
        for y in (x, *more):
            self._check(name, y)
        if not self._begun:  # PyTorch makes what was not made eagerly at the first call
            self.eager_connect_single_device()
        call = Call(name, x, peer, run)
        if self._group is not None:
            self._group.append(call)
            return None
        return self._issue([call], *more)

    def _check(self, name: str, x: Tensor) -> None:
        if self._aborted.is_set():
            raise ContractBroken("abort", f"rank {self._rank}: {name} on {self.title}, which was aborted")
        if self.error is not None:
            raise ContractBroken("dead member", f"rank {self._rank}: {name} on {self.title}, after: {self.error}")
        if memory.on_host(x):
            raise ContractBroken("device memory", f"rank {self._rank}: {name} of a tensor of the CPU")
        if not x.is_contiguous():
            raise ContractBroken("device memory", f"rank {self._rank}: {name} of a tensor with strides {x.stride()}")
        if NAMES[CODES[x.dtype]] not in _TYPES:
            raise ContractBroken("types", f"rank {self._rank}: {name} of {x.dtype}")

    def _issue(self, calls: list[Call], *more: Tensor) -> Work:
        """Queue the calls as one, behind what the current stream has to do."""
        here, thread = current_stream(), threading.get_ident()
        if self.issued and self._caller[0] != thread and self._caller[1] is not here:
            raise ContractBroken(
                "one thread", f"rank {self._rank} issues {calls[0]} on {self.title} from a second thread and stream, "
                f"while {self.at()} of another one is under way",
            )  # fmt: skip
        self._caller = thread, here
        words = " and ".join(map(str, calls))
        used = [(call.x, call.name != "send") for call in calls] + [(x, False) for x in more]
        for x, writes in used:
            # What a receive brings may come only because the buffer's send was taken, which no stream can tell: so it
            # may be queued beside that send.
            memory.touch(x, writes and calls[0].peer < 0, words, here)
        self.stream.wait_stream(here)
        with self._counting:
            self.issued.append(calls)
        place = self.stream.put(lambda: self._run(calls))
        for x, writes in used:
            memory.queued(x, self.stream, place, writes, f"{words} of rank {self._rank}")
        return Work(self.stream.record_event())

    # -- on the stream's thread ----------------------------------------------------------------------------------

    def _run(self, calls: list[Call]) -> None:
        """Carry out a group of calls; if one fails, stay until the communicator is aborted."""
        while not self._ready.is_set() and not self._aborted.wait(LOOK):
            pass
        lines: dict[tuple[str, int], list[Call]] = {}  # calls that go on side by side
        for call in calls:
            lines.setdefault((call.name, call.peer), []).append(call)
        left = [len(lines)]

        def carry_out(line: list[Call]) -> None:
            try:
                for call in line:
                    call.run()
            except Exception as why:
                self.error = self.error or self._said(why)
                return
            with self._counting:
                left[0] -= 1
                if not left[0]:
                    self._over.set()

        if not self._aborted.is_set():
            self._over.clear()
            for line in lines.values():  # each may be blocked in gloo for ever: then it is left behind
                threading.Thread(target=carry_out, args=(line,), name=f"labkit-stand-in-{line[0]}", daemon=True).start()
        while not self._over.wait(1) and not self._aborted.is_set():
            pass
        with self._counting:
            self.issued.remove(calls)

    def _said(self, why: Exception) -> Exception:
        if isinstance(why, ContractBroken):
            return why
        if not isinstance(why, RuntimeError):
            traceback.print_exception(why)
        words = str(why).splitlines()[0].split("] ", 1)[-1]
        return PeerLost(f"rank {self._rank} lost a member of {self.title}: {words}")

    def _send(self, x: Tensor, peer: int) -> None:
        self._sent[peer] += 1
        head = torch.tensor([self._sent[peer], CODES[x.dtype], x.numel()])
        for part in (head, as_bytes(x)):
            self._gloo.send([part], peer, 0).wait(FOREVER)
        self._gloo.recv([head], peer, 1).wait(FOREVER)  # taken: a send may not count on any buffer

    def _recv(self, x: Tensor, peer: int) -> None:
        head = torch.zeros(3, dtype=torch.int64)
        self._gloo.recv([head], peer, 0).wait(FOREVER)
        place, code, count = head.tolist()
        here = Call("recv", x, peer, lambda: None)
        if (code, count) != (CODES[x.dtype], x.numel()):
            raise ContractBroken(
                "same count and type", f"rank {self._rank} is in {here} on {self.title}, and rank {peer} sent "
                f"{count} {NAMES[code]} (message {place} of this pair)",
            )  # fmt: skip
        came = torch.empty_like(as_bytes(x))
        self._gloo.recv([came], peer, 0).wait(FOREVER)
        if not self._aborted.is_set():
            as_bytes(x).copy_(came)
        self._gloo.send([head], peer, 1).wait(FOREVER)


@functools.cache
def _device() -> Any:
    return dist.ProcessGroupGloo.create_default_device(lazy_init=False)


def _gloo(store: Any, rank: int, size: int) -> Any:
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout, options._devices = FOREVER, [_device()]
    return dist.ProcessGroupGloo(store, rank, size, options)
