"""PowerSGD (Vogels, Karimireddy & Jaggi 2019): a gradient matrix as the product of two thin ones, found by the ranks.

Of a matrix M = gradient + residual (n x m), on each rank (algorithms 1 and 2 of the paper):

    P = M Q                     Q: (m x rank), of the step before
    all-reduce P, make its columns orthonormal
    Q = M^T P
    residual = M - P Q^T        with this rank's own Q
    all-reduce Q
    gradient = P Q^T

That is one step of power iteration, and with a warm start the steps of training continue it. All is linear in M: what
is added up is what one device would have computed of the sum of all M. So all-reduces do it, of rank (n + m) numbers
instead of n m, and what a rank sends hardly depends on how many ranks there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.collectives import all_reduce
from labkit.optim.compression.state import HookState
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


class PowerSGD(HookState):
    """The hook. A parameter of more than two dimensions is a matrix of its first one by all others.

    rank: of the product. warm_start: begin with the Q of the step before, else with a random one (the same on all
    ranks). min_compression_rate: a matrix is compressed if it has more than this many times the numbers of P and Q;
    what is not, and every vector, goes whole, in the same message as P. So a bucket takes two all-reduces, by
    `algorithm`; the second one begins in `wait`. feedback: keep residuals, in memory as large as the gradients.

    Bytes that a rank sends for a bucket: `cost.power_sgd_bytes_by_rank`. With a rank of min(n, m) the result is
    the average, to rounding. All ranks hold the same bits.
    """

    def __init__(
        self, rank: int = 4, warm_start: bool = True, min_compression_rate: float = 1.0, feedback: bool = True,
        seed: int = 0, algorithm: str = "auto", check_nan: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(seed, check_nan)
        if type(rank) is not int or rank < 1:
            raise RefusedError(f"rank={rank!r}: a whole number of at least 1")
        if not min_compression_rate >= 0:
            raise RefusedError(f"min_compression_rate={min_compression_rate!r}: a number of at least 0")
        self.rank, self.warm_start, self.min_compression_rate = rank, warm_start, min_compression_rate
        self.feedback, self.algorithm = feedback, algorithm

    def bucket(self, flat: Tensor, gradients: Mapping[str, Tensor], group: Group) -> _Product:
        """P = M Q for each matrix, and start to add up these and what goes whole."""
        matrices = {name: g.flatten(1) for name, g in gradients.items() if self._pays(g)}
        whole = [g.view(-1) for name, g in gradients.items() if name not in matrices]
        ranks = {name: min(self.rank, *g.shape) for name, g in matrices.items()}
        sizes = [*map(len, whole), *(len(g) * ranks[name] for name, g in matrices.items())]
        message = flat.new_empty(sum(sizes))
        parts = message.split(sizes)
        for part, g in zip(parts, whole, strict=False):
            part.copy_(g)
        factors = []
        for part, (name, g) in zip(parts[len(whole) :], matrices.items(), strict=True):
            matrix = self.at("residual", name, g).add_(g) if self.feedback else g
            p, q = part.view(len(g), ranks[name]), self._query(name, g, ranks[name])
            factors.append(_Factors(g, matrix, torch.matmul(matrix, q, out=p), q))
        handle = all_reduce(message, group, algorithm=self.algorithm, async_op=True)
        return _Product(self, group, list(zip(whole, parts, strict=False)), factors, handle)

    def _pays(self, g: Tensor) -> bool:
        if g.dim() < 2:
            return False
        n, m = g.flatten(1).shape
        return n * m > self.min_compression_rate * min(self.rank, n, m) * (n + m)

    def _query(self, name: str, g: Tensor, rank: int) -> Tensor:
        """Q of the step before, or a random one."""
        step = self.steps[name] = self.steps.get(name, 0) + 1
        q = self.at("query", name, g.new_empty(g.shape[1], rank))
        if step == 1 or not self.warm_start:
            q.copy_(torch.randn(q.shape, generator=self.dice(name, step)))
        return q


@dataclass
class _Factors:
    """One matrix. out: its part of the bucket. matrix: M, and afterwards the residual."""

    out: Tensor
    matrix: Tensor
    p: Tensor
    q: Tensor


class _Product:
    """Waits for P, finds Q, waits for its sum, and multiplies."""

    def __init__(
        self, hook: PowerSGD, group: Group, whole: list[tuple[Tensor, Tensor]], factors: list[_Factors], handle: Any
    ) -> None:
        self._hook, self._group, self._whole, self._factors, self._handle = hook, group, whole, factors, handle

    def wait(self) -> None:
        self._handle.wait()
        for out, part in self._whole:
            out.copy_(part)
        for f in self._factors:
            f.p.copy_(orthonormal(f.p))
            torch.matmul(f.matrix.T, f.p, out=f.q)
            if self._hook.feedback:
                f.matrix.addmm_(f.p, f.q.T, alpha=-1)
        if self._factors:
            message = torch.cat([f.q.flatten() for f in self._factors])
            all_reduce(message, self._group, algorithm=self._hook.algorithm)
            for f, q in zip(self._factors, message.split([f.q.numel() for f in self._factors]), strict=True):
                f.q.copy_(q.view_as(f.q))
                torch.matmul(f.p, f.q.T, out=f.out)


def orthonormal(p: Tensor) -> Tensor:
    """A basis of what the columns of p (n x r) span, and further columns where they span less than r dimensions.

    By reflections (Householder 1958), which lose no digits where columns are nearly parallel; the paper's Gram-Schmidt
    does. Numbers of 16 bits are computed in float32.
    """
    wide = p if p.itemsize >= 4 else p.float()
    return torch.linalg.qr(wide).Q.to(p.dtype)
