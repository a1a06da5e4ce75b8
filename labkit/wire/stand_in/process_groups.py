"""The stand-in as a backend of torch.distributed: `dist.all_reduce` and the others under the contract of NCCL.

A collective first compares what its members call, which NCCL does not; then gloo does it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.wire.dtypes import CODES, NAMES

from .communicator import FOREVER, Communicator, Work
from .contract import ContractBroken

NAME = "nccl_stand_in"
_REDUCE = ("SUM", "PRODUCT", "MIN", "MAX", "AVG")
_WORDS = 128  # bytes of the sentence in which a member says what it calls


def register() -> str:
    """Let torch.distributed make its process groups of the stand-in's communicators; returns the backend's name."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _make, devices=["cpu"])
    return NAME


def _make(store: Any, rank: int, size: int, timeout: timedelta) -> Collectives:
    return Collectives(store, rank, size, "the process group")


class Collectives(Communicator):
    """A communicator with the collectives that torch.distributed asks for."""

    def _together(self, name: str, x: Tensor, key: str, run: Callable[[], Any], *more: Tensor) -> Work:
        """A collective. key: what has to be the same on all members besides count and type."""

        def body() -> None:
            mine = f"{name} of {x.numel()} {NAMES[CODES[x.dtype]]}{key}"
            self._compare(mine)
            run().wait(FOREVER)

        work = self._call(name, x, -1, body, *more)
        assert work is not None
        return work

    def _compare(self, mine: str) -> None:
        room = torch.zeros(_WORDS, dtype=torch.uint8)
        raw = mine.encode()[:_WORDS]
        room[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        rooms = [torch.zeros_like(room) for _ in range(self._size)]
        self._gloo.allgather([rooms], [room]).wait(FOREVER)
        calls = [bytes(r.tolist()).rstrip(b"\0").decode() for r in rooms]
        if len(set(calls)) > 1:
            told = ", ".join(f"rank {r} {call}" for r, call in enumerate(calls))
            names = {call.split()[0] for call in calls}
            rule = "order" if len(names) > 1 else "same count and type"
            raise ContractBroken(rule, f"the members of {self.title} call different collectives: {told}")

    def _reduction(self, opts: Any) -> str:
        name = str(opts.reduceOp.op).rsplit(".", 1)[-1]
        if name not in _REDUCE:
            raise ContractBroken("types", f"rank {self._rank} reduces with {name}")
        return f" by {name.lower()}"

    def allreduce(self, tensors: list[Tensor], opts: Any) -> Work:  # type: ignore[override]
        x, key = tensors[0], self._reduction(opts)
        return self._together("all_reduce", x, key, lambda: self._gloo.allreduce([x], opts))

    def broadcast(self, tensors: list[Tensor], opts: Any) -> Work:  # type: ignore[override]
        x, key = tensors[0], f" from rank {opts.rootRank}"
        return self._together("broadcast", x, key, lambda: self._gloo.broadcast([x], opts))

    def reduce(self, tensors: list[Tensor], opts: Any) -> Work:  # type: ignore[override]
        x, key = tensors[0], f"{self._reduction(opts)} to rank {opts.rootRank}"
        return self._together("reduce", x, key, lambda: self._gloo.reduce([x], opts))

    def allgather(self, outs: list[list[Tensor]], ins: list[Tensor], opts: Any = None) -> Work:  # type: ignore[override]
        def run() -> Any:
            return self._gloo.allgather(outs, ins)

        return self._together("all_gather", outs[0][0], "", run, *outs[0][1:], *ins)

    def reduce_scatter(self, outs: list[Tensor], ins: list[list[Tensor]], opts: Any) -> Work:  # type: ignore[override]
        key = self._reduction(opts)
        return self._together(
            "reduce_scatter", outs[0], key, lambda: self._gloo.reduce_scatter(outs, ins, opts), *ins[0]
        )

    def all_to_all_single(self, out: Tensor, x: Tensor, outs: Any, ins: Any, opts: Any = None) -> Work:  # type: ignore[override]
        return self._together("all_to_all", out, "", lambda: self._gloo.alltoall_base(out, x, outs, ins), x)

    alltoall_base = all_to_all_single  # type: ignore[assignment]  # its name before PyTorch 2.13

    def barrier(self, opts: Any = None) -> Work:  # type: ignore[override]
        """An all-reduce of one number, as ProcessGroupNCCL has it. Only this one blocks the host."""
        x = torch.zeros(1)
        work = self._together("barrier", x, "", lambda: self._gloo.allreduce([x]))
        work.wait()
        return work

    def getBackendName(self) -> str:
        return "nccl-stand-in"
