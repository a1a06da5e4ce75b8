"""What a rank does from its birth to its result."""

from __future__ import annotations

import io
import os
import pickle
import random
import signal
import socket
import sys
import tempfile
import traceback
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from labkit.wire import record as rec
from labkit.wire.clock import Clock, VirtualClock
from labkit.wire.context import Context, LinkModel
from labkit.wire.errors import PeerLost, Refused, WireError
from labkit.wire.faults import Fault, RankFaults
from labkit.wire.group import Group
from labkit.wire.plain import record_plain_calls
from labkit.wire.sampler import Sampler
from labkit.wire.transports.local import LocalTransport

from .channel import Channel, Closed
from .process import die_with_parent, name_process
from .spec import Spec

GRACE = 2.0  # a rank's own time-out comes this many seconds after the supervisor's, which has the better story


@dataclass
class Birth:
    """What a rank inherits from its host."""

    rank: int
    spec: Spec
    function: Any
    args: tuple[Any, ...]
    pages: int
    board: Any
    listener: socket.socket
    store: str
    secret: bytes
    epoch: int
    control: Channel
    output: int
    faults: dict[int, Fault]
    link_model: LinkModel | None
    device: int | None = None


def live(birth: Birth, host: int) -> None:
    """Run the function as this rank and tell the host how it ended. Never returns."""
    code = 1
    try:
        _prepare(birth, host)
        code = _run(birth)
    except Closed:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                pass
        os._exit(code)


def _prepare(birth: Birth, host: int) -> None:
    die_with_parent(host)
    name_process(f"labkit rank {birth.rank}")
    os.environ["LABKIT_RANK"] = str(birth.rank)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(birth.output, 1)
    os.dup2(birth.output, 2)
    os.close(birth.output)
    sys.stdout = _LineWriter(1)
    sys.stderr = _LineWriter(2)


class _LineWriter(io.TextIOBase):
    """Writes whole lines in one system call each, so that lines of different ranks never mix."""

    def __init__(self, fd: int):
        self._fd, self._rest = fd, ""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, text: str) -> int:
        lines = self._rest + text
        whole, newline, self._rest = lines.rpartition("\n")
        if newline:
            self._out(whole + newline)
        return len(text)

    def flush(self) -> None:
        if self._rest:
            self._out(self._rest)
            self._rest = ""

    def _out(self, text: str) -> None:
        raw = text.encode("utf-8", "replace")
        while raw:
            raw = raw[os.write(self._fd, raw) :]


def _run(birth: Birth) -> int:
    page = rec.Page(birth.pages, birth.rank, birth.spec.world_size)
    context = None
    try:
        context = make_context(birth, page)
        group = Group(context, range(birth.spec.world_size))
        page.pid, page.state = os.getpid(), rec.RUNNING
        if context.faults is not None:
            context.faults.start()
        result = birth.function(group, *birth.args)
        if context.sampler is not None:
            context.sampler.sample()
        _close_books(context)
        fd, nbytes = _store(result, birth)
        del result
        page.state = rec.FINISHED
        birth.control.send(("result", nbytes, context.sampler.peak() if context.sampler else 0), (fd,))
        _linger(birth)
        return 0
    except BaseException as error:
        page.state = rec.FAILED
        if context is not None:
            _close_books(context)
        kind = "lost" if isinstance(error, PeerLost) else "wire" if isinstance(error, WireError) else "raised"
        if isinstance(error, SystemExit):
            kind = "exit"
        text = "".join(traceback.format_exception(_without_machinery(error)))
        birth.control.send(("failed", kind, type(error).__name__, _words(error), text))
        _linger(birth)
        return 1


def _close_books(context: Context) -> None:
    if context.socket_log is not None:
        context.socket_log.write()


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as why:
        return f"(its message cannot be shown: {why})"


def _without_machinery(error: BaseException) -> BaseException:
    """The error with the frames of this file cut off its traceback: the reader's own code comes first."""
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename == __file__ and tb.tb_next is not None:
        tb = tb.tb_next
    return error.with_traceback(tb)


def _linger(birth: Birth) -> None:
    """Stay until the host has everything: others may still read from this rank's sockets."""
    try:
        while birth.control.receive()[0] != ("leave",):
            pass
    except Closed:
        pass


def make_context(birth: Birth, page: rec.Page) -> Context:
    """The rank's side of everything: process group, transport, clock, faults."""
    import numpy as np
    import torch
    import torch.distributed as dist

    spec, rank = birth.spec, birth.rank
    torch.set_num_threads(1)
    torch.manual_seed(spec.seed)
    random.seed(spec.seed)
    np.random.seed(spec.seed % 2**32)
    recorder = rec.Recorder(page)
    store = dist.FileStore(birth.store, -1)
    timed = spec.clock == "virtual" or spec.network is not None
    device = torch.device("cpu")
    if birth.device is not None:
        device = torch.device("cuda", birth.device)
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if spec.backend == "nccl" else "gloo", store=dist.PrefixStore("world", store), rank=rank,
        world_size=spec.world_size, timeout=timedelta(seconds=spec.timeout + 3600),
    )  # fmt: skip
    limit = spec.timeout + (0 if spec.on_failure == "continue" else GRACE)
    transport: Any
    if spec.transport == "local":
        transport = LocalTransport(rank, birth.listener, birth.board, birth.secret,
                                   _alive(birth) if spec.on_failure == "continue" else None)  # fmt: skip
    elif spec.transport == "nccl":
        from labkit.wire.transports.nccl import NcclTransport

        transport = NcclTransport(rank, timed)
    else:
        from labkit.wire.transports.gloo import GlooTransport

        birth.listener.close()
        transport = GlooTransport(rank, spec.world_size, store, limit + 3600, timed)
    network, per_node = spec.network, spec.per_node
    link_to = (lambda peer: network.link(rank, peer, per_node)) if network is not None else None
    clock = (VirtualClock if spec.clock == "virtual" else Clock)(birth.epoch, link_to)
    context = Context(
        rank, spec.world_size, recorder, clock, transport, limit, spec.backend, device, network, per_node,
        birth.link_model, RankFaults(birth.faults, page, _asker(birth)), Sampler(spec.memory) if spec.memory else None,
        spec.check,
    )  # fmt: skip
    record_plain_calls(context)
    return context


def _alive(birth: Birth) -> Any:
    """A function that tells whether another rank still runs, from its page."""
    pages: dict[int, rec.Page] = {}

    def alive(peer: int) -> bool:
        if peer not in pages:
            pages[peer] = rec.Page(birth.pages, peer, birth.spec.world_size)
        return pages[peer].state in (rec.UNBORN, rec.RUNNING)

    return alive


def _asker(birth: Birth) -> Any:
    """How a rank tells the host that a fault is due; see `RankFaults`."""

    def ask(number: int) -> tuple[bool, dict[int, Fault]]:
        birth.control.send(("fault", number))
        while True:
            message, _ = birth.control.receive()
            if message[0] == "go":
                return message[1], message[2]

    return ask


def _store(result: Any, birth: Birth) -> tuple[int, int]:
    """The pickled result in nameless memory: (descriptor, bytes)."""
    from .parcel import Pickler

    limit = birth.spec.max_result_bytes
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("labkit-result")
    else:
        with tempfile.TemporaryFile() as f:
            fd = os.dup(f.fileno())
    with os.fdopen(os.dup(fd), "wb") as f:
        try:
            Pickler(_Limited(f, limit), protocol=5).dump(result)
        except _TooLarge:
            raise Refused(f"rank {birth.rank} returned more than {limit / 1e9:.3g} GB: return what you need to look at "
                          "(a norm, a slice), or raise max_result_bytes=") from None  # fmt: skip
        except (pickle.PicklingError, TypeError, AttributeError, RuntimeError, ValueError) as why:
            raise Refused(
                f"rank {birth.rank} returned a {type(result).__name__} that cannot be sent to the notebook: {why}. "
                "Return numbers, tensors, or plain containers of them"
            ) from why
    return fd, os.fstat(fd).st_size


class _TooLarge(Exception):
    pass


class _Limited(io.RawIOBase):
    def __init__(self, f: Any, limit: int):
        self._f, self._left = f, limit

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        n = memoryview(data).nbytes
        self._left -= n
        if self._left < 0:
            raise _TooLarge
        self._f.write(data)
        return n
