"""A trace made by hand: ranks are clocks, messages are records, and no process is started.

The rules are those of the real thing: a message moves when both ends are there, and takes latency + bytes / bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from types import SimpleNamespace
from typing import Any

from labkit.parallel.pipeline import ScheduleError, Wait

LATENCY, BANDWIDTH = 20e-6, 1e9  # seconds, bytes per second
FLOAT = 4  # bytes of one element


@dataclass
class Message:
    src: int
    dst: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]
    start: float
    end: float
    arrived: float
    recv_start: float
    seq: int
    offset: int
    recv_offset: int
    collective: int
    recv_collective: int
    combine: bool
    index: int = 0
    recv_index: int = 0
    group: int = 0
    lane: int = 0
    step: int = 0


@dataclass
class Collective:
    rank: int
    name: str
    algorithm: str
    op: str
    shape: tuple[int, ...]
    root: int
    start: float
    end: float
    seq: int
    dtype: str = "float32"
    group: int = 0
    step: int = 0
    native: bool = False
    is_async: bool = False
    nested: bool = False

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * FLOAT


@dataclass
class Span:
    rank: int
    name: str
    start: float
    end: float
    attrs: dict[str, Any] = field(default_factory=dict)
    step: int = 0


class Trace:
    transport, clock = "fake", "virtual"

    def __init__(self, world_size: int, badge: str = "emulated") -> None:
        self.world_size, self.badge = world_size, badge
        self.now = [0.0] * world_size
        self.sends: list[Message] = []
        self.recvs: list[Message] = []
        self._collectives: list[Collective] = []
        self._spans: list[Span] = []
        self._open: dict[int, int] = {}

    # What figures read

    @property
    def duration(self) -> float:
        return max(self.now)

    @property
    def groups(self) -> dict[int, tuple[int, ...]]:
        return {0: tuple(range(self.world_size))}

    def collectives(self, name: str | None = None) -> list[Collective]:
        return [c for c in self._collectives if name in (None, c.name)]

    def spans(self, name: str | None = None) -> list[Span]:
        return [s for s in self._spans if name in (None, s.name)]

    def bytes_between(self) -> list[list[int]]:
        matrix = [[0] * self.world_size for _ in range(self.world_size)]
        for m in self.sends:
            matrix[m.src][m.dst] += m.nbytes
        return matrix

    def step_breakdown(self, step: int | None = None) -> list[dict[str, float]]:
        rows = []
        for rank in range(self.world_size):
            compute = sum(s.end - s.start for s in self.spans("compute") if s.rank == rank)
            transfer = sum(m.end - max(m.start, m.recv_start) for m in self.sends if m.src == rank)
            rows.append({
                "rank": rank, "compute": compute, "transfer": transfer, "overlapped": 0.0, "other": 0.0,
                "waiting": self.duration - compute - transfer, "total": self.duration,
            })  # fmt: skip
        return rows

    # What a run does

    def compute(self, rank: int, seconds: float, name: str = "compute") -> None:
        self._spans.append(Span(rank, name, self.now[rank], self.now[rank] + seconds))
        self.now[rank] += seconds

    @contextmanager
    def collective(self, name: str, algorithm: str, *counts: int, root: int = -1, seq: int = 0,
                   op: str = "sum") -> Iterator[None]:  # fmt: skip
        """A collective on all ranks. counts: elements of each rank's input, or one number for all."""
        for rank in range(self.world_size):
            self._open[rank] = len(self._collectives)
            start = self.now[rank]
            shape = (counts[rank % len(counts)],)
            self._collectives.append(Collective(rank, name, algorithm, op, shape, root, start, start, seq))
        yield
        for rank, index in self._open.items():
            self._collectives[index].end = self.now[rank]
        self._open = {}

    def round(self, *moves: tuple[int, int, int, int, int, bool]) -> None:
        """Messages that their ranks start together: (src, dst, offset at src, offset at dst, elements, combine)."""
        before, records = list(self.now), 2 * len(self.sends)
        for k, (src, dst, read, write, count, combine) in enumerate(moves):
            nbytes = count * FLOAT
            done = max(before[src], before[dst]) + LATENCY + nbytes / BANDWIDTH
            seq = sum((m.src, m.dst) == (src, dst) for m in self.sends)
            sent = Message(src, dst, nbytes, "float32", (count,), before[src], done, done, before[dst], seq,
                           read, write, self._open.get(src, -1), self._open.get(dst, -1), combine,
                           records + k, records + len(moves) + k)  # fmt: skip
            self.sends.append(sent)
            self.recvs.append(replace(sent, start=before[dst]))
            self.now[src], self.now[dst] = max(self.now[src], done), max(self.now[dst], done)


def part(count: int, size: int, index: int) -> tuple[int, int]:
    """(first element, elements) of part `index` of `count` elements over `size` ranks, as torch.tensor_split cuts."""
    small, longer = divmod(count, size)
    return index * small + min(index, longer), small + (index < longer)


def ring(size: int = 4, count: int = 1000, skip: tuple[int, int] | None = None, skew: float = 0.0) -> Trace:
    """A ring all-reduce. skip=(step, rank): there the add was forgotten and the incoming chunk overwrites.

    skew: seconds that rank r computes before, times r.
    """
    trace = Trace(size)
    for rank in range(size if skew else 0):
        trace.compute(rank, skew * (rank + 1))
    with trace.collective("all_reduce", "ring", count):
        for step in range(size - 1):
            trace.round(*(
                (r, (r + 1) % size, *[part(count, size, (r - step) % size)[0]] * 2,
                 part(count, size, (r - step) % size)[1], (step, (r + 1) % size) != skip)
                for r in range(size)
            ))  # fmt: skip
        for step in range(size - 1):
            trace.round(*(
                (r, (r + 1) % size, *[part(count, size, (r - step + 1) % size)[0]] * 2,
                 part(count, size, (r - step + 1) % size)[1], False)
                for r in range(size)
            ))  # fmt: skip
    return trace


def naive(size: int = 4, count: int = 1000) -> Trace:
    """Everyone sends to rank 0, which sends the sum back to each in turn."""
    trace = Trace(size)
    with trace.collective("all_reduce", "naive", count):
        for rank in range(1, size):
            trace.round((rank, 0, 0, 0, count, True))
        for rank in range(1, size):
            trace.round((0, rank, 0, 0, count, False))
    return trace


def recursive_doubling(size: int = 4, count: int = 1000) -> Trace:
    """Partners swap everything they have; what is sent is a copy, outside the tensor."""
    trace = Trace(size)
    with trace.collective("all_reduce", "recursive_doubling", count):
        distance = 1
        while distance < size:
            trace.round(*((r, r ^ distance, -1, 0, count, True) for r in range(size)))
            distance *= 2
    return trace


def halving_doubling(size: int = 4, count: int = 1000) -> Trace:
    """Recursive halving, then recursive doubling, for a power of two that divides `count`."""
    trace = Trace(size)
    window = [(0, count)] * size
    with trace.collective("all_reduce", "halving_doubling", count):
        for combine, distances in ((True, [size >> k for k in range(1, size.bit_length())]),
                                   (False, [1 << k for k in range(size.bit_length() - 1)])):  # fmt: skip
            for distance in distances:
                moves = []
                for r in range(size):
                    lo, n = window[r]
                    if combine:  # give away the half that the partner keeps
                        half = n // 2
                        moves.append((r, r ^ distance, *[lo if r & distance else lo + half] * 2, half, True))
                    else:
                        moves.append((r, r ^ distance, lo, lo, n, False))
                trace.round(*moves)
                window = [
                    ((lo + n // 2 if r & distance else lo), n // 2) if combine
                    else (min(lo, window[r ^ distance][0]), 2 * n)
                    for r, (lo, n) in enumerate(window)
                ]  # fmt: skip
    return trace


def chain_broadcast(size: int = 4, count: int = 1000, chunks: int = 4, root: int = 0) -> Trace:
    """Chunks travel from rank to rank; a chunk moves on while the next one comes in."""
    trace = Trace(size)
    with trace.collective("broadcast", "chain", count, root=root):
        for beat in range(chunks + size - 2):
            moves = []
            for hop in range(size - 1):
                if 0 <= beat - hop < chunks:
                    first, n = part(count, chunks, beat - hop)
                    moves.append(((root + hop) % size, (root + hop + 1) % size, first, first, n, False))
            trace.round(*moves)
    return trace


def ring_all_gather(size: int = 4, count: int = 1000) -> Trace:
    """Each rank's part travels around; `count` is the length of the result."""
    trace = Trace(size)
    with trace.collective("all_gather", "ring", *(part(count, size, r)[1] for r in range(size))):
        for step in range(size - 1):
            trace.round(*(
                (r, (r + 1) % size, *[part(count, size, (r - step) % size)[0]] * 2,
                 part(count, size, (r - step) % size)[1], False)
                for r in range(size)
            ))  # fmt: skip
    return trace


def pairwise_reduce_scatter(size: int = 4, count: int = 1000) -> Trace:
    """Each part goes straight to its owner, which adds it into a spare buffer (outside the tensor)."""
    trace = Trace(size)
    with trace.collective("reduce_scatter", "pairwise", count):
        for step in range(1, size):
            trace.round(*(
                (r, (r + step) % size, part(count, size, (r + step) % size)[0], -1,
                 part(count, size, (r + step) % size)[1], True)
                for r in range(size)
            ))  # fmt: skip
    return trace


def everyone(size: int = 4, count: int = 1000) -> Trace:
    """Everyone sends its own to everyone, into spare buffers that are added at the end."""
    trace = Trace(size)
    with trace.collective("all_reduce", "everyone", count):
        for step in range(1, size):
            trace.round(*((r, (r + step) % size, 0, -1, count, False) for r in range(size)))
    return trace


def spare_doubling(size: int = 4, count: int = 1000) -> Trace:
    """Recursive doubling that receives into a spare buffer and adds that at once."""
    trace = Trace(size)
    with trace.collective("all_reduce", "recursive_doubling", count):
        distance = 1
        while distance < size:
            trace.round(*((r, r ^ distance, 0, -1, count, False) for r in range(size)))
            distance *= 2
    return trace


def stuck(size: int = 2, count: int = 1000) -> Trace:
    """Rank 0 sends and nobody receives; rank 1 waits for a message that never comes."""
    trace = Trace(size)
    trace.compute(0, 1e-3)
    nan = float("nan")
    trace.sends.append(
        Message(0, 1, count * FLOAT, "float32", (count,), 2e-4, 1e-3, nan, nan, 1, -1, -1, -1, -1, False)
    )
    trace.recvs.append(
        Message(0, 1, count * FLOAT, "float32", (count,), 3e-4, 1e-3, nan, 3e-4, 2, -1, -1, -1, -1, False)
    )
    return trace


def deadlock(ranks: int, circle: int) -> ScheduleError:
    """`circle` ranks that wait for one another, and others that wait for the rank before them."""
    waits = [Wait(r, f"{r}F1", (r + 1) % circle if r < circle else r - 1, f"{r}F0") for r in range(ranks)]
    return ScheduleError("a deadlock", waits, waits[:circle])


def failed(size: int, dead: int) -> Any:
    """What is read of a RankFailed: rank `dead` was killed, and every other rank waits for the one on its left.

    dead: -1 for ranks that wait in a circle.
    """
    awaits = {rank: [(rank - 1) % size] for rank in range(size) if rank != dead}
    words = f"rank {dead} was killed by SIGKILL" if dead >= 0 else f"ranks 0 to {size - 1} wait for each other\n  more"
    waiting = {rank: f"receive (waits for rank {on[0]})" for rank, on in awaits.items()}
    failure = SimpleNamespace(kind="died", rank=dead, message=words, awaits=awaits, waiting=waiting)
    return SimpleNamespace(failure=failure, run=SimpleNamespace(spec=SimpleNamespace(world_size=size)))
