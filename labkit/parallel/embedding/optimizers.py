"""Update rules of the rows that a step touched. State is kept for the rows that a rank holds, beside each row.

A rule has `state_width(width)`, the numbers of state of a row of `width` columns, and

    update(weight, state, gradient, step, row_mean)

which changes `weight` (u, width) and `state` (u, state_width) of the u touched rows in place. gradient: (u, width),
summed over all ranks. step: 1 in the first. row_mean(x): the mean of each row of (u, width), as (u, 1), over all
columns of the table, also where other ranks hold some of them.

A row that no rank asked for is not read and not written. For SGD and Adagrad that changes nothing, since a gradient of
zero moves nothing. For Adam it does: see there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from labkit.wire.errors import RefusedError

RowMean = Callable[[Tensor], Tensor]


class Rule(Protocol):
    def state_width(self, width: int, /) -> int: ...
    def update(self, weight: Tensor, state: Tensor, gradient: Tensor, step: int, row_mean: RowMean, /) -> None: ...


@dataclass(frozen=True)
class SGD:
    """w -= lr g. No state."""

    lr: float

    def __post_init__(self) -> None:
        _check(self)

    def state_width(self, width: int) -> int:
        return 0

    def update(self, weight: Tensor, state: Tensor, gradient: Tensor, step: int, row_mean: RowMean) -> None:
        weight.sub_(gradient, alpha=self.lr)


@dataclass(frozen=True)
class Adagrad:
    """s += g^2; w -= lr g / (sqrt(s) + eps), element by element (Duchi, Hazan & Singer 2011). As torch's."""

    lr: float
    eps: float = 1e-10

    def __post_init__(self) -> None:
        _check(self)

    def state_width(self, width: int) -> int:
        return width

    def update(self, weight: Tensor, state: Tensor, gradient: Tensor, step: int, row_mean: RowMean) -> None:
        state.addcmul_(gradient, gradient)
        weight.addcdiv_(gradient, state.sqrt().add_(self.eps), value=-self.lr)


@dataclass(frozen=True)
class RowwiseAdagrad:
    """The same with one s a row: s += mean of g^2 over the columns. FBGEMM's "exact row-wise Adagrad".

    State is one number a row in place of `dim` (Mudigere et al. 2022, section 4.1.4). Where ranks hold columns, the
    mean is that of the whole row: one all-reduce of a number for each touched row.
    """

    lr: float
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _check(self)

    def state_width(self, width: int) -> int:
        return 1

    def update(self, weight: Tensor, state: Tensor, gradient: Tensor, step: int, row_mean: RowMean) -> None:
        state.add_(row_mean(gradient.square()))
        weight.addcdiv_(gradient, state.sqrt().add_(self.eps).expand_as(gradient), value=-self.lr)


@dataclass(frozen=True)
class LazyAdam:
    """Adam (Kingma & Ba 2015) of the touched rows only; as torch's `SparseAdam`.

    In dense Adam a row that got no gradient still moves: its moments decay in every step, and it goes on in the
    direction of the first. Here both moments of such a row stay as they are until the row is touched again, while the
    bias is corrected by the number of all steps. A rare row therefore takes longer steps than in dense Adam.
    """

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _check(self)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise RefusedError(f"{self}: betas are from 0 to below 1")

    def state_width(self, width: int) -> int:
        return 2 * width

    def update(self, weight: Tensor, state: Tensor, gradient: Tensor, step: int, row_mean: RowMean) -> None:
        first, second = state.split(weight.shape[1], 1)
        first.lerp_(gradient, 1 - self.betas[0])
        second.lerp_(gradient.square(), 1 - self.betas[1])
        corrected = self.lr * (1 - self.betas[1] ** step) ** 0.5 / (1 - self.betas[0] ** step)
        weight.addcdiv_(first, second.sqrt().add_(self.eps), value=-corrected)


def _check(rule: SGD | Adagrad | RowwiseAdagrad | LazyAdam) -> None:
    if not 0 < rule.lr < float("inf"):
        raise RefusedError(f"{rule}: lr is a number above 0")
    if not getattr(rule, "eps", 1) > 0:
        raise RefusedError(f"{rule}: eps is a number above 0")
