"""What the tests of FTAR share: values whose sum depends on the order of addition, and groups that lose a member."""

from __future__ import annotations

import hashlib
import sys

import cloudpickle
import torch

from labkit.resilience.errors import Recoverable
from labkit.resilience.ftar.exchange import ft_all_reduce

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks do not import tests

ADDING = ("float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 complex64 complex128").split()


def values(rank: int, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers of very different sizes, another set on every rank."""
    generator = torch.Generator().manual_seed(1000 + rank)
    if dtype.is_complex:
        return torch.randn(numel, generator=generator, dtype=dtype)
    if not dtype.is_floating_point:
        return torch.randint(0, 100, (numel,), generator=generator).to(dtype)
    sizes = torch.randint(-3, 4, (numel,), generator=generator)
    return (torch.randn(numel, generator=generator) * 10.0**sizes).to(dtype)


def digest(x: torch.Tensor) -> str:
    """The bits of a tensor."""
    return hashlib.sha256(x.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def raised(kinds, call):
    """The error of one of these kinds that `call()` raises. (A rank does without pytest.)"""
    try:
        call()
    except kinds as error:
        return error
    raise AssertionError(f"did not raise {kinds}")


def until_it_breaks(group, numel, rounds=200, **options):
    """All-reduces of ones until one fails: (right ones before it, the error)."""
    for n in range(rounds):
        x = torch.ones(numel)
        try:
            ft_all_reduce(x, group, **options)
        except Recoverable as error:
            return n, error
        if not (x == group.size).all():
            raise AssertionError(f"a wrong sum: {x.unique().tolist()}")
    return rounds, None


def sum_of_ones(group, numel, **options) -> list[float]:
    """The values of an all-reduce of ones."""
    return ft_all_reduce(torch.ones(numel), group, **options).unique().tolist()
