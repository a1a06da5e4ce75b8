"""Ranks that exist already, on one host or many: the same call under torchrun.

torchrun starts the processes and says who is who (RANK, WORLD_SIZE, MASTER_ADDR); no host process watches them.
So each rank keeps its own page, waits end at `timeout` in the rank itself, and a rank that fails tells the others
through the store, which all of them see at their next wait or at the end. Rank 0 gets all results and the trace.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import secrets
import socket
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from labkit.wire.context import Context
from labkit.wire.errors import PeerLost, RefusedError, WireError
from labkit.wire.faults import RankFaults
from labkit.wire.group import Group
from labkit.wire.recording import record as rec
from labkit.wire.recording.trace import from_pages
from labkit.wire.transports import Sockets, kinds
from labkit.world.diagnosis.reading import Reader

from .equip import make_context, make_transport, process_groups
from .job import Failure, RankFailed, Run
from .memory_limit import allowance, is_shortage, limited, remedy
from .spec import Spec, make_spec

_launches = 0


def is_torchrun() -> bool:
    """Whether this process was started as one rank of a world."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ and "MASTER_ADDR" in os.environ


def run_here(fn: Callable[..., Any], world_size: int, args: tuple[Any, ...], options: dict[str, Any]) -> Run:
    """`launch` on the ranks that exist; a `world_size` that differs from theirs is noted and theirs is used."""
    global _launches
    import torch
    import torch.distributed as dist

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank == 0 and world_size != size:
        print(f"labkit: the cell asks for {world_size} ranks; torchrun started {size}, and they are used", flush=True)
    spec = make_spec(size, options)
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group(process_groups(spec) or spec.backend, timeout=timedelta(seconds=spec.timeout + 60))
    _launches += 1
    store = dist.PrefixStore(f"labkit-{_launches}", dist.distributed_c10d._get_default_store())
    store.set_timeout(timedelta(seconds=spec.timeout + 5))
    return _Run(fn, args, spec, rank, local_size, store).run()


class _Run:
    """One launch, seen from one of the ranks."""

    def __init__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], spec: Spec, rank: int, local_size: int, store: Any
    ):
        self.fn, self.args, self.spec, self.rank, self.store = fn, args, spec, rank, store
        self.per_node = spec.per_node if spec.network is not None else local_size

    def run(self) -> Run:
        spec, rank = self.spec, self.rank
        fd = rec.create_pages(spec.world_size)  # sparse: only this rank's page is ever touched
        page = rec.Page(fd, rank, spec.world_size)
        os.close(fd)
        begun = time.perf_counter()
        page.pid, page.state = os.getpid(), rec.RUNNING
        context = self._context(page)
        allowed = allowance(spec.memory_limit, spec.world_size)
        report: dict[str, Any] = {"result": None, "failure": None}
        try:
            with limited(allowed):
                result = self.fn(Group(context, range(spec.world_size)), *self.args)
                context.settle()
            context.close_books()
            report["result"] = result
            page.state = rec.FINISHED
        except Exception as error:
            page.state = rec.FAILED
            kind = "lost" if isinstance(error, PeerLost) else "wire" if isinstance(error, WireError) else "raised"
            text = "".join(traceback.format_exception(error))
            words = str(error)
            if allowed is not None and is_shortage(error):
                words = f"{words}\n{remedy(allowed)}"
            context.transport.close()  # the others notice at once, not at their time-out
            report["failure"] = Failure(kind, rank, type(error).__name__, words, text, page.step,
                                        time.perf_counter() - begun)  # fmt: skip
        report["page"] = _used(page)
        report["peak"] = context.sampler.peak() if context.sampler else 0
        run = self._gather(report, time.perf_counter() - begun)
        if report["failure"] is None:  # all are through, and another launch may follow in these processes
            context.transport.close()
        if run.failures and spec.on_failure == "raise":
            raise RankFailed(run.failures[0], run)
        return run

    def _context(self, page: rec.Page) -> Context:
        import torch

        spec, rank = self.spec, self.rank
        if any(f.rank == rank for f in spec.faults):
            raise RefusedError("faults= needs ranks that labkit started itself: under torchrun nobody can strike them")
        epoch = int(time.perf_counter_ns() - self._since_start())  # before the transport, which may wait for every rank
        device = torch.device("cpu")
        if kinds()[spec.transport].device == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
            torch.cuda.set_device(device)
        return make_context(
            spec, rank, page, transport=make_transport(
                spec, rank, self.store, range(spec.world_size), self._runs, self._sockets, spec.timeout
            ),
            timeout=spec.timeout, epoch=epoch, per_node=self.per_node,
            device=device, link_model=None, faults=RankFaults({}, page, lambda n: (False, {})),
        )  # fmt: skip

    def _since_start(self) -> int:
        """Nanoseconds since the launch began on rank 0, by the hosts' clocks (a millisecond apart, or more)."""
        if self.rank == 0:
            self.store.set("epoch", str(time.time_ns()))
        return time.time_ns() - int(self.store.get("epoch"))

    def _sockets(self) -> Sockets:
        """TCP sockets on the address that this host is reached at, announced through the store."""
        host = _own_address()
        listener = socket.create_server((host, 0), backlog=4096)
        if self.rank == 0:
            self.store.set("secret", secrets.token_bytes(16).hex())
        secret = bytes.fromhex(self.store.get("secret").decode())
        self.store.set(f"address-{self.rank}", f"{host} {listener.getsockname()[1]}")
        return Sockets(listener, _Addresses(self.store), secret, self._runs)

    def _runs(self, peer: int) -> bool:
        """Whether another rank is still at work: one that is through has left its report."""
        return not self.store.check([f"report-{peer}"])

    def _gather(self, report: dict[str, Any], seconds: float) -> Run:
        """Everyone leaves its report in the store; rank 0 reads them all."""
        import cloudpickle

        spec, rank = self.spec, self.rank
        raw = cloudpickle.dumps(report)
        if len(raw) > spec.max_result_bytes:
            limit = f"{spec.max_result_bytes / 1e9:.3g} GB"
            raise RefusedError(f"rank {rank} returned more than {limit}: return less, or raise max_result_bytes=")
        self.store.set(f"report-{rank}", raw)
        results: list[Any] = [None] * spec.world_size
        results[rank] = report["result"]
        failures = [report["failure"]] if report["failure"] else []
        if rank != 0:
            with contextlib.suppress(Exception):  # stay until rank 0 has it all: torchrun ends the store with the first
                failures = failures or self._mismatch(self.store.get("read").decode(), seconds)
            return Run(spec, results, failures, [""] * spec.world_size, None, seconds, [], [])
        reports = [report]
        for r in range(1, spec.world_size):
            try:
                reports.append(pickle.load(io.BytesIO(self.store.get(f"report-{r}"))))
            except Exception:
                text = f"rank {r} left no report within {spec.timeout:g} s: it died or hangs"
                failures.append(Failure("died", r, "Died", text, "", -1, seconds, {}))
                reports.append({"result": None, "failure": None, "page": None, "peak": 0})
        results = [r["result"] for r in reports]
        failures = sorted([*failures, *(r["failure"] for r in reports[1:] if r["failure"])], key=_cause)
        pages = self._pages(reports)
        wrong = Reader(pages).picture().mismatch or "" if spec.check and not failures else ""
        self.store.set("read", wrong)
        peaks = [r["peak"] for r in reports] if spec.memory else ()
        trace = from_pages(pages, clock=spec.clock, transport=spec.transport, emulated=spec.network is not None,
                           peaks=peaks, memory=spec.memory or "")  # fmt: skip
        failures = failures or self._mismatch(wrong, seconds)
        return Run(spec, results, failures, [""] * spec.world_size, trace, seconds, [], [])

    def _mismatch(self, wrong: str, seconds: float) -> list[Failure]:
        """What all pages together showed to rank 0, as a failure of every rank; nothing if they agree."""
        return [Failure("mismatch", -1, "Mismatch", wrong, "", -1, seconds)] if wrong else []

    def _pages(self, reports: list[dict[str, Any]]) -> list[rec.Page]:
        fd = rec.create_pages(self.spec.world_size)
        pages = [rec.Page(fd, r, self.spec.world_size) for r in range(self.spec.world_size)]
        os.close(fd)
        for page, report in zip(pages, reports, strict=True):
            if report["page"] is not None:
                page.map[: len(report["page"])] = report["page"]
        return pages


class _Addresses:
    def __init__(self, store: Any):
        self._store = store

    def __getitem__(self, rank: int) -> tuple[str, int]:
        host, port = self._store.get(f"address-{rank}").decode().split()
        return host, int(port)


def _cause(failure: Failure) -> tuple[int, float]:
    return ({"died": 0, "raised": 1, "wire": 2, "lost": 3}.get(failure.kind, 1), failure.seconds)


def _used(page: rec.Page) -> bytes:
    """The part of a page that was written."""
    return page.map[: page._records + min(page.count, page.capacity) * rec.RECORD_BYTES]


def _own_address() -> str:
    """The address by which the host of the rendezvous reaches this one; loopback when it is this very host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((os.environ["MASTER_ADDR"], int(os.environ.get("MASTER_PORT", 29500))))
            return probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
