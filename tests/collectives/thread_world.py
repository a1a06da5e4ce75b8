"""A world in one process: each rank is a thread, each message a hand-over between two of them.

It has the `Group` methods that collectives use, with their meaning: a send returns when the receiver has taken the
message, an exchange cannot block itself, what arrives may be combined. It is stricter than a network: dtype, shape,
contiguity and overlap are checked at every message, and a deadlock is seen at once, because a world in which every
thread waits for something that cannot happen stands still. Bytes and messages are counted by rank.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from labkit.wire.errors import Mismatch, RefusedError
from labkit.wire.ops import ReduceOp


class Deadlock(RuntimeError):
    """Every thread waits; the message says for what."""


class Stopped(RuntimeError):
    """Another rank failed."""


@dataclass
class Call:
    """One rank's call of a collective."""

    rank: int
    name: str
    algorithm: str
    op: str
    root: int
    nested: bool
    is_async: bool


@dataclass
class Run:
    """What came of a run: results, bytes and messages by rank; bytes_between[source][to]; the calls of collectives."""

    results: list[Any]
    bytes_sent: list[int]
    messages: list[int]
    bytes_between: list[list[int]]
    calls: list[Call]


@dataclass(eq=False)
class Parcel:
    """A message that waits for its receiver."""

    x: Tensor
    taken: bool = False


@dataclass
class World:
    """What the threads share. All of it is guarded by one condition."""

    size: int
    ranks_per_node: int
    link_model: Any
    has_native: bool
    changed: threading.Condition = field(default_factory=threading.Condition)
    mail: dict[Any, deque[Parcel]] = field(default_factory=lambda: defaultdict(deque))
    boards: dict[Any, dict[int, Any]] = field(default_factory=lambda: defaultdict(dict))
    waiting: dict[int, tuple[Callable[[], bool], str]] = field(default_factory=dict)
    alive: int = 0
    failure: BaseException | None = None
    between: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    calls: list[Call] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def spawn(self, work: Callable[[], None]) -> None:
        """A thread that counts as alive until `work` returns; the first error in any of them ends the world."""

        def run() -> None:
            try:
                work()
            except BaseException as why:
                with self.changed:
                    if self.failure is None:
                        self.failure = why
            with self.changed:
                self.alive -= 1
                self._look_for_deadlock()
                self.changed.notify_all()

        with self.changed:
            self.alive += 1
            thread = threading.Thread(target=run, daemon=True)
            self.threads.append(thread)
        thread.start()

    def wait(self, until: Callable[[], bool], what: str) -> None:
        """Block until `until()`; call it with the condition held."""
        me = threading.get_ident()
        while not until():
            if self.failure is not None:
                raise Stopped(f"{what}: another rank failed")
            self.waiting[me] = (until, what)
            self._look_for_deadlock()
            if self.failure is None:
                self.changed.wait(timeout=60)
            del self.waiting[me]

    def _look_for_deadlock(self) -> None:
        stuck = self.alive and len(self.waiting) == self.alive and not any(f() for f, _ in self.waiting.values())
        if stuck and self.failure is None:
            self.failure = Deadlock("; ".join(what for _, what in self.waiting.values()))
            self.changed.notify_all()


class Handle:
    """The end of something that another thread does."""

    def __init__(self, world: World, what: str):
        self._world, self._what, self._over, self._result = world, what, False, None

    def finish(self, result: Any) -> None:
        with self._world.changed:
            self._over, self._result = True, result
            self._world.changed.notify_all()

    def done(self) -> bool:
        return self._over

    def wait(self) -> Any:
        with self._world.changed:
            self._world.wait(lambda: self._over, self._what)
        return self._result


class ThreadGroup:
    """One rank's view of a group of threads."""

    device, backend, transport = torch.device("cpu"), "gloo", "threads"

    def __init__(self, world: World, members: Sequence[int], rank: int, channel: tuple[Any, ...], inner: bool = False):
        self.world, self.global_ranks, self.channel, self.inner = world, tuple(members), channel, inner
        self.rank, self.size = self.global_ranks.index(rank), len(self.global_ranks)
        self._lane: ThreadGroup | None = None
        self._last: Handle | None = None
        self._subgroups: dict[tuple[int, ...], ThreadGroup] = {}
        self._meetings = 0

    @property
    def link_model(self) -> Any:
        return self.world.link_model

    @property
    def ranks_per_node(self) -> int:
        nodes = [r // self.world.ranks_per_node for r in self.global_ranks]
        return next((i for i, node in enumerate(nodes) if node != nodes[0]), self.size)

    @property
    def native(self) -> Any:
        return ThreadNative(self) if self.world.has_native else None

    def send(self, x: Tensor, to: int) -> None:
        parcel = self._post(x, to)
        self._await_taken(parcel, to)

    def recv(self, like: Tensor, source: int, op: ReduceOp | None = None) -> Tensor:
        me, them = self.global_ranks[self.rank], self._peer(source)
        _check_message(like)
        with self.world.changed:
            box = self.world.mail[them, me, self.channel]  # here: two threads may both make the missing one
            self.world.wait(lambda: len(box) > 0, f"rank {me} receives from {them}")
            parcel = box.popleft()
        if parcel.x.dtype != like.dtype or parcel.x.shape != like.shape:
            raise Mismatch(f"rank {them} sent {_describe(parcel.x)}, rank {me} expects {_describe(like)}")
        like.copy_(parcel.x) if op is None else op.combine_(like, parcel.x)
        with self.world.changed:
            parcel.taken = True
            self.world.changed.notify_all()
        return like

    def exchange(self, x: Tensor, to: int, like: Tensor, source: int, op: ReduceOp | None = None) -> Tensor:
        if _overlap(x, like):
            raise RefusedError("x and like overlap")
        parcel = self._post(x, to)
        self.recv(like, source, op)
        self._await_taken(parcel, to)
        return like

    def isend(self, x: Tensor, to: int) -> Handle:
        return self._begin(lambda: self.send(x, to), "isend")

    def irecv(self, like: Tensor, source: int, op: ReduceOp | None = None) -> Handle:
        return self._begin(lambda: self.recv(like, source, op), "irecv")

    def subgroup(self, ranks: Sequence[int]) -> ThreadGroup:
        ranks = tuple(ranks)
        if ranks not in self._subgroups:
            members = [self.global_ranks[r] for r in ranks]
            channel = (*self.channel, ranks)
            self._subgroups[ranks] = ThreadGroup(self.world, members, self.global_ranks[self.rank], channel, self.inner)
        return self._subgroups[ranks]

    def run_collective(
        self, name: str, algorithm: str, body: Callable[..., Any], x: Any, args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None, *, op: str = "", root: int = -1, async_op: bool = False,
        first_row: int = 0, of: str = "",
    ) -> Any:  # fmt: skip
        me = self.global_ranks[self.rank]
        self.world.calls.append(Call(me, name, algorithm, op, root, self.inner, async_op))
        if self._lane is None:
            self._lane = ThreadGroup(self.world, self.global_ranks, me, (*self.channel, "collectives"), inner=True)
        lane = self if self.inner else self._lane

        def work() -> Any:
            return body(x, lane, *args, **(kwargs or {}))

        before = self._last
        if self.inner or (not async_op and (before is None or before.done())):
            return work()
        self._last = self._begin(lambda: (before.wait() if before else None, work())[1], name)
        return self._last if async_op else self._last.wait()

    def work_on(self, whole: Tensor, first_row: int = 0) -> None:
        """Only records depend on it, and there are none here."""

    def copy_of(self, part: Tensor) -> Tensor:
        return part.clone()

    def stands_for(self, copy: Tensor, part: Tensor) -> None:
        """Only records depend on it."""

    def meet(self, value: Any) -> list[Any]:
        """The values of all members, in rank order. Not a message: the library's own business."""
        self._meetings += 1
        board = self.world.boards[self.channel, self._meetings]
        with self.world.changed:
            board[self.rank] = value
            self.world.changed.notify_all()
            self.world.wait(lambda: len(board) == self.size, f"rank {self.rank} in a native collective")
        return [board[r] for r in range(self.size)]

    def _begin(self, work: Callable[[], Any], what: str) -> Handle:
        handle = Handle(self.world, what)
        self.world.spawn(lambda: handle.finish(work()))
        return handle

    def _peer(self, rank: int) -> int:
        if not 0 <= rank < self.size or rank == self.rank:
            raise RefusedError(f"rank {self.rank} has no other rank {rank} in a group of {self.size}")
        return self.global_ranks[rank]

    def _post(self, x: Tensor, to: int) -> Parcel:
        me, them = self.global_ranks[self.rank], self._peer(to)
        _check_message(x)
        parcel = Parcel(x)
        with self.world.changed:
            self.world.between[me, them].append(x.nbytes)
            self.world.mail[me, them, self.channel].append(parcel)
            self.world.changed.notify_all()
        return parcel

    def _await_taken(self, parcel: Parcel, to: int) -> None:
        me, them = self.global_ranks[self.rank], self.global_ranks[to]
        with self.world.changed:
            self.world.wait(lambda: parcel.taken, f"rank {me} sends to {them}")


class ThreadNative:
    """Stands for the collectives of a library: every rank sees what all ranks brought."""

    def __init__(self, group: ThreadGroup):
        self._group, self._meet = group, group.meet

    def all_reduce(self, x: Tensor, op: ReduceOp) -> Tensor:
        vectors = self._meet(x.clone())
        x.copy_(vectors[0])
        for vector in vectors[1:]:
            op.combine_(x, vector)
        return x

    def broadcast(self, x: Tensor, root: int) -> Tensor:
        return x.copy_(self._meet(x.clone())[root])

    def reduce(self, x: Tensor, root: int, op: ReduceOp) -> Tensor:
        total = self.all_reduce(x.clone(), op)
        return x.copy_(total) if self._group.rank == root else x

    def all_gather(self, out: Tensor, x: Tensor) -> Tensor:
        return out.copy_(torch.cat(self._meet(x.clone())).view(out.shape))

    def reduce_scatter(self, out: Tensor, x: Tensor, op: ReduceOp) -> Tensor:
        return out.copy_(self.all_reduce(x.clone(), op).chunk(self._group.size)[self._group.rank])

    def all_to_all(self, out: Tensor, x: Tensor) -> Tensor:
        mine = [v.chunk(self._group.size)[self._group.rank] for v in self._meet(x.clone())]
        return out.copy_(torch.cat(mine))

    def barrier(self) -> None:
        self._meet(None)


def run(
    fn: Callable[..., Any], size: int, *args: Any, ranks_per_node: int | None = None, link_model: Any = None,
    native: bool = True,
) -> Run:  # fmt: skip
    """Call `fn(group, *args)` on `size` threads. Raises the first error of any of them."""
    world = World(size, ranks_per_node or size, link_model, native)
    results: list[Any] = [None] * size

    def rank(r: int) -> None:
        results[r] = fn(ThreadGroup(world, range(size), r, ("world",)), *args)

    with world.changed:  # nobody is looked at before all are alive
        for r in range(size):
            world.spawn(lambda r=r: rank(r))
    for thread in world.threads:  # the list grows while ranks start asynchronous work
        thread.join()
    if world.failure is not None:
        raise world.failure
    left = [key for key, box in world.mail.items() if box]
    assert not left, f"sent and never received: {left}"
    sent = [[world.between[a, b] for b in range(size)] for a in range(size)]
    return Run(
        results,
        [sum(map(sum, row)) for row in sent],
        [sum(map(len, row)) for row in sent],
        [[sum(cell) for cell in row] for row in sent],
        world.calls,
    )


def lone_group(rank: int, size: int, on_message: Callable[[], None] = lambda: None) -> Any:
    """A group of one rank whose peers are silent: receiving leaves `like` as it is. For looking at one rank's steps."""

    def recv(like: Tensor, source: int, op: ReduceOp | None = None) -> Tensor:
        on_message()
        return like

    group = SimpleNamespace(rank=rank, size=size, device=torch.device("cpu"), link_model=None, ranks_per_node=size)
    group.recv = recv
    group.send = lambda x, to: on_message()
    group.exchange = lambda x, to, like, source, op=None: recv(like, source, op)
    group.copy_of = Tensor.clone
    group.stands_for = lambda copy, part: None
    group.run_collective = lambda name, algorithm, body, x, args, kwargs, **_: body(x, group, *args, **kwargs)
    return group


def _check_message(x: Tensor) -> None:
    if not x.is_contiguous() or x.is_conj() or x.is_neg():
        raise RefusedError("messages must be contiguous")
    if x.requires_grad:
        raise RefusedError("messages are numbers; this one requires grad")


def _overlap(a: Tensor, b: Tensor) -> bool:
    start_a, start_b = a.data_ptr(), b.data_ptr()
    return a.numel() > 0 and b.numel() > 0 and start_a < start_b + b.nbytes and start_b < start_a + a.nbytes


def _describe(x: Tensor) -> str:
    return f"{x.dtype} {list(x.shape)}"
