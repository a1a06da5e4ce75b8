"""Section 6 of chapter 14: one gradient, summed in four ways that send 32, 16 or 8 bits a number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit import Link, Network, book, collectives
from labkit.collectives import all_gather, all_reduce
from labkit.optim.precision import E4M3, from_parts, quantize
from labkit.wire import Group
from labkit.world import World

NUMBERS = 1 << 16
NETWORK = Network(intra=Link(bandwidth=1e9, latency=5e-6))


def all_to_all(x: Tensor, group: Group) -> Tensor:
    """labkit's, by one message to each rank, which sends the fewest bytes; "auto" may choose fewer messages."""
    return collectives.all_to_all(x, group, algorithm="pairwise")


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


WAYS: dict[str, Callable[..., Tensor] | None] = {
    "32 bits": in_thirty_two_bits,
    "16 bits": in_sixteen_bits,
    "8 bits, added at every hop": ring_in_eight_bits,
    "8 bits, summed in 32": None,  # the reader's, which the chapter's cell calls
}


@dataclass(frozen=True)
class Sum:
    """What a way cost: bytes of rank 0, seconds, the root mean square of the error over that of the sum, and whether
    all ranks have the same bits."""

    sent: int
    seconds: float
    off: float
    alike: bool


def gradient(group: Group, numbers: int) -> Tensor:
    """This rank's: numbers of very different sizes, as in the first cell."""
    return _drawn(group.rank, numbers)


def _drawn(rank: int, numbers: int) -> Tensor:
    draw = torch.Generator().manual_seed(rank)
    return torch.randn(numbers, generator=draw) * torch.randn(numbers, generator=draw).exp() * 1e-4


def off(got: Tensor, group: Group) -> tuple[float, Tensor]:
    """How far `got` is from the sum in float64; and a check sum of its bits. Nothing is sent."""
    exact = torch.stack([_drawn(rank, len(got)).double() for rank in range(group.size)]).sum(0)
    return ((got - exact).square().sum() / exact.square().sum()).sqrt().item(), got.double().sum()


def sum_of(run: Any) -> Sum:
    """What a run of a sum says, whose ranks returned what `off` says."""
    bits = {float(one) for _, one in run.results}
    return Sum(run.trace.bytes_sent()[0], run.trace.duration, run.results[0][0], len(bits) == 1)


def race(summed: Callable[..., Any]) -> dict[str, dict[int, Sum]]:
    """Every way with 2, 4 and 8 ranks."""
    found: dict[str, dict[int, Sum]] = {way: {} for way in WAYS}
    for n in book.in_turn((2, 4, 8), "all four ways, {} ranks"):
        with World(n, clock="virtual", network=NETWORK) as ranks:
            for way in WAYS:
                found[way][n] = sum_of(ranks.run(partial(summed, way=way)))
    return found


def small(summed: Callable[..., Any], ranks: int = 8, numbers: int = 1024) -> float:
    """The time of the reader's sum of few numbers, over that of the ring in 32 bits."""
    ways = ("8 bits, summed in 32", "32 bits")
    runs = [partial(summed, way=way, numbers=numbers) for way in ways]
    with World(ranks, clock="virtual", network=NETWORK) as kept:
        eight, wide = (kept.run(run).trace.duration for run in runs)
    return float(eight / wide)
