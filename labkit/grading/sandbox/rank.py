"""A rank in the sandbox, from its fork to its result.

Until `_let_go` only labkit's own code runs here; then the answer cells do, and nothing this process says counts as
more than data.
"""

from __future__ import annotations

import builtins
import linecache
import os
import random
import resource
import socket
import struct
import sys
import time
import traceback
import types
from typing import Any

import numpy as np
import torch

from labkit import collectives
from labkit.wire.clock import Clock
from labkit.wire.context import Context
from labkit.wire.errors import PeerLost, WireError
from labkit.wire.group import Group
from labkit.wire.recording import record as rec
from labkit.world.memory_limit import is_shortage

from . import plain_data
from .confine import Walls
from .transport import SwitchTransport

TALK, BELL, SYNC = 3, 4, 5  # descriptors
BASE = struct.Struct("<qq")
MARK = "<answer "  # how the files of answer cells are called
_RECORDS = 1 << 14
_LONGEST_TEXT = 20_000


class Missing(Exception):
    """The answer cells define no such name."""


def live(rank: int, talk: int, bell: int, output: int, sync: int, walls: Walls, parent: int) -> None:
    """Be this rank. Never returns."""
    try:
        _keep_only(talk, bell, output, sync)
        talker = socket.socket(fileno=TALK)
        job = plain_data.read(lambda n: _exactly(talker, n))
        group = _group(job, talker) if job["size"] else None
        random.seed(job["seed"])
        np.random.seed(job["seed"] % 2**32)
        torch.manual_seed(job["seed"])
        walls.put_up(parent)
        talker.sendall(b"H")  # the kernel tells the grader from which process
        _let_go()
        answer = _work(job, group)
        talker.setblocking(True)
        for part in answer:
            talker.sendall(part)
        while talker.recv(4096):  # others may still read from this rank's sockets
            pass
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
        finally:
            os._exit(1)


def _keep_only(talk: int, bell: int, output: int, sync: int) -> None:
    """Have five descriptors and no more: nothing, the output twice, and the three sockets."""
    null = os.open("/dev/null", os.O_RDONLY)
    high = [os.dup(os.dup(fd)) for fd in (null, output, output, talk, bell, sync)]
    moved = []
    for fd in high:
        while fd <= SYNC:
            fd = os.dup(fd)
        moved.append(fd)
    for place, fd in enumerate(moved):
        os.dup2(fd, place, inheritable=False)
    os.closerange(SYNC + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _exactly(sock: socket.socket, n: int) -> bytearray:
    raw = bytearray(n)
    view, at = memoryview(raw), 0
    while at < n:
        got = sock.recv_into(view[at:])
        if not got:
            raise EOFError("the grader is gone")
        at += got
    return raw


def _group(job: dict[str, Any], talk: socket.socket) -> Group:
    rank, size = job["rank"], job["size"]
    page = rec.Page(-1, rank, size, _RECORDS)  # of its own memory: nobody reads it, and no descriptor stays
    transport = SwitchTransport(rank, size, talk, socket.socket(fileno=BELL))
    clock = Clock(time.perf_counter_ns())
    recorder = rec.Recorder(page)
    return Group(
        Context(rank, size, recorder, clock, transport, collectives, job["wait"], ranks_per_node=size), range(size)
    )


def _let_go() -> None:
    """Tell the warden what this process has at its peak so far, and wait until all ranks are this far."""
    sync = socket.socket(fileno=SYNC)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    sync.sendall(BASE.pack(os.getpid(), usage.ru_maxrss * 1024))
    if not sync.recv(1):
        os._exit(1)
    sync.close()


def _work(job: dict[str, Any], group: Group | None) -> list[Any]:
    """Run the answer cells and the call; the answer as buffers."""
    try:
        value = _call(job, group)
        if group is not None:
            group.context.settle()
        del job
        sys.stdout.flush()
        return [b"R", *plain_data.parts(value)]
    except BaseException as error:
        return [b"F", plain_data.encode(_failure(error))]


def _call(job: dict[str, Any], group: Group | None) -> Any:
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    names = module.__dict__
    names["__builtins__"] = builtins
    for number, source in enumerate(job["sources"], 1):
        file = f"{MARK}{number}>"
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        exec(compile(source, file, "exec"), names)
    name = job["name"]
    if name not in names:
        raise Missing(f"there is no {name}: the answer cells do not define it")
    if job["mode"] == "value":
        return names[name]
    if job["mode"] == "run":
        return None
    arguments = job.pop("inputs")
    if group is not None:
        arguments.append(group)
    function = names[name]
    del names
    return function(*arguments, **job["kwargs"])


def _failure(error: BaseException) -> dict[str, str]:
    kind = "raised"
    if isinstance(error, plain_data.NotData):
        kind = "data"
    elif isinstance(error, Missing):
        kind = "missing"
    elif isinstance(error, PeerLost):
        kind = "lost"
    elif isinstance(error, WireError):
        kind = "wire"
    elif isinstance(error, MemoryError) or is_shortage(error):
        kind = "memory"
    try:
        text = str(error)
    except Exception:
        text = "(its message cannot be shown)"
    trace = "" if kind in ("data", "missing") else _own_frames(error)
    return {
        "kind": kind, "error": type(error).__name__[:100], "text": text[:_LONGEST_TEXT],
        "traceback": trace[-_LONGEST_TEXT:],
    }  # fmt: skip


def _own_frames(error: BaseException) -> str:
    """The traceback, with the frames of the answer cells only."""
    story = traceback.TracebackException.from_exception(error, limit=-200)
    seen: traceback.TracebackException | None = story
    for _ in range(5):
        if seen is None:
            break
        seen.stack = traceback.StackSummary.from_list([f for f in seen.stack if f.filename.startswith(MARK)][-20:])
        seen = seen.__cause__ or seen.__context__
    return "".join(story.format())
