"""How many updates and rows a parameter server takes in a second, beside one made of torch.distributed.rpc."""

from __future__ import annotations

import socket
import threading
import time
import warnings
from functools import partial
from statistics import median
from typing import Any

import psutil
import torch
import torch.distributed.rpc as rpc
from torch import Tensor

import labkit
from labkit import cost
from labkit.optim.synchrony import ASP
from labkit.parallel.embedding.optimizers import RowwiseAdagrad
from labkit.parallel.embedding.sharded import ShardedEmbedding
from labkit.parallel.server import Client, Server

from .ratios import alternate, ratio, self_ratio

NUMBERS, TABLE, TOUCHED = 65_536, (100_000, 16), 256  # of a parameter; rows and columns; rows of an update
SGD = partial(torch.optim.SGD, lr=0.1)


def throughput(workers: int, what: str, updates: int, pairs: int) -> dict[str, Any]:
    """what: "update", a whole parameter pulled and pushed, or "rows", some rows of a table. Both sides in turn."""
    ours, theirs = (partial(_seconds, side, workers, what, updates) for side in (_labkits, _rpcs))
    ours(), theirs()  # to warm up
    mine, other = alternate(ours, theirs, pairs)
    each = TOUCHED if what == "rows" else 1
    count = f"{what if what == 'rows' else 'updates'} / s"
    return {
        "workers": workers, "what": count, "labkit": workers * updates * each / median(mine),
        "rpc": workers * updates * each / median(other), "labkit / rpc": ratio(other, mine), "A/A": self_ratio(other),
    }  # fmt: skip


def _seconds(side: Any, workers: int, what: str, updates: int) -> float:
    port = _free_port()
    run = labkit.launch(side, 1 + workers, what, updates, port, transport="local")
    return max(seconds for seconds in run.results if seconds)


def _work(rank: int, what: str, updates: int) -> Any:
    """What each worker asks for: rows and a gradient, drawn before the clock runs."""
    draw = torch.Generator().manual_seed(rank)
    if what == "update":
        return [(None, torch.randn(NUMBERS, generator=draw))] * updates
    return [
        (torch.randperm(TABLE[0], generator=draw)[:TOUCHED], torch.randn(TOUCHED, TABLE[1], generator=draw))
        for _ in range(updates)
    ]


def _start(what: str) -> Tensor:
    return torch.zeros(NUMBERS) if what == "update" else torch.zeros(TABLE)


def _labkits(group: labkit.Group, what: str, updates: int, port: int) -> float:
    named = {"w": _start(what)}
    if group.rank == 0:
        Server(named, group, [0], policy=ASP(), optimizer=SGD).serve()
        return 0.0
    work = _work(group.rank, what, updates)
    with Client(named, group, [0]) as client:
        client.pull("w", work[0][0])
        begin = time.perf_counter()
        for rows, gradient in work:
            client.pull("w", rows)
            client.push("w", gradient, rows)
            client.tick()
    return time.perf_counter() - begin


class RpcServer:
    """The same in torch.distributed.rpc: one process, one lock, one update at a time."""

    weights: Tensor
    lock = threading.Lock()

    @classmethod
    def pull(cls, rows: Tensor | None) -> Tensor:
        with cls.lock:
            return cls.weights.clone() if rows is None else cls.weights[rows]

    @classmethod
    def push(cls, gradient: Tensor, rows: Tensor | None) -> None:
        with cls.lock:
            if rows is None:
                cls.weights.sub_(gradient, alpha=0.1)
            else:
                cls.weights.index_add_(0, rows, gradient, alpha=-0.1)


def _rpcs(group: labkit.Group, what: str, updates: int, port: int) -> float:
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", num_worker_threads=8)
    RpcServer.weights = _start(what)
    warnings.simplefilter("ignore", UserWarning)  # of PyTorch about itself
    rpc.init_rpc(f"rank{group.rank}", rank=group.rank, world_size=group.size, rpc_backend_options=options)
    seconds = 0.0
    if group.rank:
        work = _work(group.rank, what, updates)
        rpc.rpc_sync("rank0", RpcServer.pull, (work[0][0],))
        begin = time.perf_counter()
        for rows, gradient in work:
            rpc.rpc_sync("rank0", RpcServer.pull, (rows,))
            rpc.rpc_sync("rank0", RpcServer.push, (gradient, rows))
        seconds = time.perf_counter() - begin
    rpc.shutdown()
    return seconds


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def held(rows: int, ranks: int, dim: int = 16) -> dict[str, Any]:
    """Bytes of the rank that holds most, by the formula and as the operating system counts them."""

    def rank(group: labkit.Group) -> tuple[int, int]:
        before = psutil.Process().memory_info().rss
        table = ShardedEmbedding(rows, dim, group, RowwiseAdagrad(0.1), by="modulo")
        draw = torch.Generator().manual_seed(group.rank)
        for _ in range(2):
            table(torch.randint(rows, (64, 4), generator=draw)).square().sum().backward()
            table.step()
        return table.nbytes, psutil.Process().memory_info().rss - before

    each = labkit.launch(rank, ranks).results
    nbytes, grown = (max(column) for column in zip(*each, strict=True))
    formula = cost.table_bytes(-(-rows // ranks), dim)
    return {"held MB": nbytes / 1e6, "formula MB": formula / 1e6, "held / formula": nbytes / formula,
            "resident growth MB": grown / 1e6}  # fmt: skip
