"""Compressors: a gradient of n numbers in fewer bytes, and back.

    TopK(0.01)         the largest 1 %, with their places            biased
    RandomK(0.01)      a random 1 %, the same on all ranks           unbiased, or not (`scale`)
    Quantize(15)       QSGD: a norm, and signs with 16 levels        unbiased
    ternary()          TernGrad: Quantize(1) by the largest number   unbiased
    ScaledSign()       signs, and one scale                          biased
    Block8()           8 bits a number, a scale for each block       biased by less than half a step

A norm or a scale is float32, and so is what is decoded with it. x must be finite: whoever calls refuses NaN first.
A compressor knows one tensor: what is sent to whom, and what becomes of what is left out, is not its business. A new
one has the two methods and `parts` of `Compressor`; the tests take it from the table in their file.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from labkit.optim.compression.payload import Parts, pack, unpack
from labkit.wire.errors import RefusedError


class Compressor(Protocol):
    """summable: encoded on different ranks with the same `draw`, parts may be added up before they are decoded.

    They have the dtype of x then.
    """

    summable: bool

    def parts(self, n: int, dtype: torch.dtype) -> Parts:
        """What a tensor of n numbers becomes: the same on every rank, whatever the numbers are."""
        ...

    def encode(self, x: Tensor, draw: torch.Generator) -> list[Tensor]:
        """x (1-D) -> parts. draw: this rank's random numbers, or everybody's if `summable`."""
        ...

    def decode(self, sent: list[Tensor], n: int, draw: torch.Generator) -> Tensor:
        """parts -> (n). draw: in the state in which `encode` found it."""
        ...


def _count(share: float | int, n: int) -> int:
    """How many of n numbers are sent: a share, rounded up, or a number."""
    if isinstance(share, float):
        return max(1, math.ceil(share * n))
    if share > n:
        raise RefusedError(f"k={share}: a parameter has {n} numbers only. Give a share, such as 0.01")
    return share


def _check_share(share: float | int) -> None:
    fine = 0 < share <= 1 if isinstance(share, float) else type(share) is int and share >= 1
    if not fine:
        raise RefusedError(f"k={share!r}: a share above 0 and up to 1.0 of a parameter's numbers, or a whole number")


class TopK:
    """The k numbers of largest size, with their places (Aji & Heafield 2017). k: a share (float) or a number."""

    summable = False

    def __init__(self, k: float | int) -> None:
        _check_share(k)
        self.k = k

    def parts(self, n: int, dtype: torch.dtype) -> Parts:
        return (torch.int32, _count(self.k, n)), (dtype, _count(self.k, n))

    def encode(self, x: Tensor, draw: torch.Generator) -> list[Tensor]:
        places = x.abs().topk(_count(self.k, len(x)), sorted=False).indices
        return [places.to(torch.int32), x[places]]

    def decode(self, sent: list[Tensor], n: int, draw: torch.Generator) -> Tensor:
        places, values = sent
        return values.new_zeros(n).index_put_((places.long(),), values)


class RandomK:
    """k numbers at places that all ranks draw alike (Stich et al. 2018): no places are sent, and values add up.

    scale: times n / k, so that the expectation is x. With error feedback leave it off.
    """

    summable = True

    def __init__(self, k: float | int, scale: bool = False) -> None:
        _check_share(k)
        self.k, self.scale = k, scale

    def parts(self, n: int, dtype: torch.dtype) -> Parts:
        return ((dtype, _count(self.k, n)),)

    def encode(self, x: Tensor, draw: torch.Generator) -> list[Tensor]:
        return [x[self._places(len(x), draw)]]

    def decode(self, sent: list[Tensor], n: int, draw: torch.Generator) -> Tensor:
        (values,) = sent
        grown = values * (n / len(values)) if self.scale else values
        return values.new_zeros(n).index_put_((self._places(n, draw),), grown)

    def _places(self, n: int, draw: torch.Generator) -> Tensor:
        return torch.randperm(n, generator=draw)[: _count(self.k, n)]


class Quantize:
    """QSGD (Alistarh et al. 2017): |x_i| / norm is rounded to one of the levels 0, 1/s .. 1, up or down at random.

    How likely up is makes the expectation x. norm: "l2" as in the paper, or "max", whose levels are finer.
    """

    summable = False

    def __init__(self, levels: int, norm: str = "l2") -> None:
        if type(levels) is not int or not 1 <= levels <= 255:
            raise RefusedError(f"levels={levels!r}: a whole number, from 1 to 255")
        if norm not in ("l2", "max"):
            raise RefusedError(f"norm={norm!r}: 'l2' or 'max'")
        self.levels, self.norm = levels, norm
        self.bits = 1 + math.ceil(math.log2(levels + 1))

    def parts(self, n: int, dtype: torch.dtype) -> Parts:
        return (torch.float32, 1), (torch.uint8, -(-n * self.bits // 8))

    def encode(self, x: Tensor, draw: torch.Generator) -> list[Tensor]:
        norm = (x.norm() if self.norm == "l2" else x.abs().max()).to(torch.float32)
        exact = x.abs() / norm.to(x.dtype) * self.levels if norm else torch.zeros_like(x)
        up = torch.rand(len(x), generator=draw, dtype=x.dtype) < exact - exact.floor()
        level = (exact.floor() + up).clamp(max=self.levels).to(torch.int32)
        return [norm[None], pack(level * 2 + (x < 0), self.bits)]

    def decode(self, sent: list[Tensor], n: int, draw: torch.Generator) -> Tensor:
        norm, packed = sent
        signed = unpack(packed, self.bits, n)
        return norm / self.levels * (signed >> 1) * (1 - 2 * (signed & 1))


def ternary() -> Quantize:
    """TernGrad (Wen et al. 2017): each number becomes -s, 0 or s, with s the largest of them."""
    return Quantize(1, norm="max")


class ScaledSign:
    """Signs times the mean size (Karimireddy et al. 2019, "EF-signSGD"): one bit a number. 0 counts as positive."""

    summable = False

    def parts(self, n: int, dtype: torch.dtype) -> Parts:
        return (torch.float32, 1), (torch.uint8, -(-n // 8))

    def encode(self, x: Tensor, draw: torch.Generator) -> list[Tensor]:
        return [x.abs().mean().to(torch.float32)[None], pack(x < 0, 1)]

    def decode(self, sent: list[Tensor], n: int, draw: torch.Generator) -> Tensor:
        scale, packed = sent
        return scale * (1 - 2 * unpack(packed, 1, n))


class Block8:
    """127 steps up and down in each block, whose largest number is the last one (Dettmers 2016)."""

    summable = False

    def __init__(self, block: int = 256) -> None:
        if type(block) is not int or block < 1:
            raise RefusedError(f"block={block!r}: a whole number of at least 1")
        self.block = block

    def parts(self, n: int, dtype: torch.dtype) -> Parts:
        return (torch.float32, -(-n // self.block)), (torch.int8, n)

    def encode(self, x: Tensor, draw: torch.Generator) -> list[Tensor]:
        blocks = self._blocks(x)
        scale = blocks.abs().amax(1, keepdim=True).to(torch.float32) / 127
        steps = (blocks / scale.where(scale > 0, 1)).round()
        return [scale[:, 0], steps.to(torch.int8).flatten()[: len(x)]]

    def decode(self, sent: list[Tensor], n: int, draw: torch.Generator) -> Tensor:
        scale, steps = sent
        return (self._blocks(steps) * scale[:, None]).flatten()[:n]

    def _blocks(self, x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, -len(x) % self.block)).view(-1, self.block)
