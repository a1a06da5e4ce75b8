"""What a rank does from its birth to its result."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from labkit.wire.context import Context, LinkModel
from labkit.wire.errors import PeerLost, WireError
from labkit.wire.faults import Fault, RankFaults
from labkit.wire.group import Group
from labkit.wire.plain import record_plain_calls
from labkit.wire.recording import record as rec
from labkit.wire.transports import Sockets, kinds
from labkit.wire.transports.board import Board

from .channel import Channel, Closed
from .devices import process_group_backend
from .equip import make_context, make_transport, process_groups
from .memory_limit import allowance, is_shortage, limited, remedy
from .output import LineWriter
from .process import die_with_parent, name_process
from .result import store_result
from .spec import Spec
from .threads import watch_threads

GRACE = 2.0  # a rank's own time-out comes this many seconds after the supervisor's, which has the better story


@dataclass
class Birth:
    """What a rank inherits from its host."""

    rank: int
    spec: Spec
    function: Any
    args: tuple[Any, ...]
    pages: int
    addresses: Any
    listener: socket.socket
    store: str
    board: str
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
    sys.stdout = LineWriter(1)
    sys.stderr = LineWriter(2)


def _run(birth: Birth) -> int:
    page = rec.Page(birth.pages, birth.rank, birth.spec.world_size)
    context = None
    allowed = allowance(birth.spec.memory_limit, birth.spec.world_size)
    try:
        with limited(allowed):
            context = _make_context(birth, page)
            group = Group(context, range(birth.spec.world_size))
            page.pid, page.state = os.getpid(), rec.RUNNING
            if context.faults is not None:
                context.faults.start()
            result = birth.function(group, *birth.args)
            context.settle()
            if context.sampler is not None:
                context.sampler.sample()
            context.close_books()
            fd, nbytes = store_result(result, birth.rank, birth.spec.max_result_bytes)
        del result
        page.state = rec.FINISHED
        birth.control.send(("result", nbytes, context.sampler.peak() if context.sampler else 0), (fd,))
        _linger(birth)
        return 0
    except BaseException as error:
        page.state = rec.FAILED
        if context is not None:
            context.close_books(failed=True)
        kind = "lost" if isinstance(error, PeerLost) else "wire" if isinstance(error, WireError) else "raised"
        if isinstance(error, SystemExit):
            kind = "exit"
        text = "".join(traceback.format_exception(_without_machinery(error)))
        words = _words(error)
        if allowed is not None and is_shortage(error):
            words = f"{words}\n{remedy(allowed)}"
        birth.control.send(("failed", kind, type(error).__name__, words, text, getattr(error, "peer", -1)))
        _linger(birth)
        return 1


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as why:
        return f"(its message cannot be shown: {why})"


def _without_machinery(error: BaseException) -> BaseException:
    """The error with the frames above the reader's function cut off its traceback: its own code comes first."""
    tb, above = error.__traceback__, (__file__, str(Path(__file__).with_name("kept.py")))
    while tb is not None and tb.tb_frame.f_code.co_filename in above and tb.tb_next is not None:
        tb = tb.tb_next
    return error.with_traceback(tb)


def _linger(birth: Birth) -> None:
    """Stay until the host has everything: others may still read from this rank's sockets."""
    try:
        while birth.control.receive()[0] != ("leave",):
            pass
    except Closed:
        pass


def _make_context(birth: Birth, page: rec.Page) -> Context:
    """The default process group of torch, and this rank's side of everything else."""
    import torch
    import torch.distributed as dist

    spec, rank = birth.spec, birth.rank
    store = dist.FileStore(birth.store, -1)
    device = torch.device("cpu")
    if birth.device is not None:
        device = torch.device("cuda", birth.device)
        torch.cuda.set_device(device)
    goes_on = spec.on_failure == "continue"
    if goes_on:  # a rank that comes back finds peers that will not connect to it again before it talks to them
        os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    dist.init_process_group(
        process_groups(spec) or process_group_backend(spec.backend), store=dist.PrefixStore("world", store),
        rank=rank, world_size=spec.world_size, timeout=timedelta(seconds=spec.timeout + 3600),
    )  # fmt: skip
    limit = spec.timeout + (0 if goes_on else GRACE)

    alive = _alive(birth) if goes_on else None

    def sockets() -> Sockets:
        return Sockets(birth.listener, birth.addresses, birth.secret, alive)

    if not kinds()[spec.transport].own_sockets:
        birth.listener.close()
    transport = make_transport(spec, rank, Board(birth.board), birth.addresses, alive, sockets, limit + 3600)
    context = make_context(
        spec, rank, page, transport=transport, timeout=limit,
        epoch=birth.epoch, per_node=spec.per_node, device=device, link_model=birth.link_model,
        faults=RankFaults(birth.faults, page, _asker(birth)),
    )  # fmt: skip
    record_plain_calls(context)
    watch_threads(context)
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

    asking = threading.Lock()  # streams have threads of their own, and each answer belongs to one question

    def ask(number: int) -> tuple[bool, dict[int, Fault]]:
        with asking:
            birth.control.send(("fault", number))
            while True:
                message, _ = birth.control.receive()
                if message[0] == "go":
                    return message[1], message[2]

    return ask
