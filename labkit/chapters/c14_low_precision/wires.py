"""Section 5 of chapter 14: one gradient, summed in four ways that send 32, 16 or 8 bits a number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit import Link, Network
from labkit.collectives import all_gather, all_reduce, all_to_all
from labkit.optim.precision import E4M3, from_parts, quantize
from labkit.wire import Group

NUMBERS = 1 << 16
LINKS = {
    "slow: 1 GB/s": Network(intra=Link(bandwidth=1e9, latency=5e-6)),
    "fast: 50 GB/s": Network(intra=Link(bandwidth=50e9, latency=5e-6)),
}


def pack(x: Tensor) -> Tensor:
    """x (n, float32) -> (4 + n) bytes: its scale, and a byte of E4M3 for each number."""
    return torch.cat(quantize(x, E4M3).parts())


def unpack(message: Tensor) -> Tensor:
    """What `pack` made bytes of, as float32 again."""
    scale, codes = message[:4].clone(), message[4:]
    return from_parts([scale, codes], E4M3, torch.Size([len(codes)]), "tensor", "float32").wide()


def ring_in_eight_bits(x: Tensor, group: Group) -> Tensor:
    """A ring all-reduce whose partial sums are bytes on every hop: each rank unpacks, adds, and packs again."""
    n, rank = group.size, group.rank
    parts = list(x.clone().chunk(n))
    right, left = (rank + 1) % n, (rank - 1) % n
    for hop in range(n - 1):
        going, coming = (rank - hop) % n, (rank - hop - 1) % n
        message = pack(parts[going])
        parts[coming] += unpack(group.exchange(message, right, torch.empty_like(message), left))
    whole = all_gather(pack(parts[(rank + 1) % n]), group, algorithm="ring").chunk(n)
    return torch.cat([unpack(whole[(r - 1) % n]) for r in range(n)])


def in_sixteen_bits(x: Tensor, group: Group) -> Tensor:
    return all_reduce(x.bfloat16(), group, algorithm="ring").float()


def in_thirty_two_bits(x: Tensor, group: Group) -> Tensor:
    return all_reduce(x.clone(), group, algorithm="ring")


def through_thirty_two(x: Tensor, group: Group) -> Tensor:
    """The book's own `sum_in_eight_bits`."""
    parts = [pack(part) for part in x.chunk(group.size)]
    came = all_to_all(torch.cat(parts), group, algorithm="pairwise")
    total = sum((unpack(part) for part in came.chunk(group.size)), torch.zeros(()))
    whole = all_gather(pack(total), group, algorithm="ring")
    return torch.cat([unpack(part) for part in whole.chunk(group.size)])


WAYS: dict[str, Callable[..., Tensor] | None] = {
    "32 bits": in_thirty_two_bits,
    "16 bits": in_sixteen_bits,
    "8 bits, added at every hop": ring_in_eight_bits,
    "8 bits, summed in 32": None,  # the reader's
}


@dataclass(frozen=True)
class Sum:
    """What a way cost: seconds of the virtual clock, bytes of rank 0, and the root mean square of the error over that
    of the sum. alike: whether all ranks have the same bits."""

    seconds: float
    sent: int
    off: float
    alike: bool


def gradient(group: Group, numbers: int = NUMBERS) -> Tensor:
    """This rank's: numbers of very different sizes, as in the first cell."""
    draw = torch.Generator().manual_seed(group.rank)
    return torch.randn(numbers, generator=draw) * torch.randn(numbers, generator=draw).exp() * 1e-4


def off(got: Tensor, group: Group) -> tuple[float, bool]:
    """How far `got` is from the sum in float64, and whether it is the same everywhere. Sends nothing that is counted
    before it is called: ranks that call it have returned from the sum."""
    exact = torch.zeros(len(got), dtype=torch.float64)
    for rank in range(group.size):
        draw = torch.Generator().manual_seed(rank)
        exact += (torch.randn(len(got), generator=draw) * torch.randn(len(got), generator=draw).exp() * 1e-4).double()
    alike = all_gather(got.double().sum()[None], group).unique().numel() == 1
    return ((got - exact).square().sum() / exact.square().sum()).sqrt().item(), alike


def sum_of(run: Any) -> Sum:
    """What `run` says of rank 0: it returned (seconds, bytes, off, alike)."""
    result: Sum = run.results[0]
    return result
