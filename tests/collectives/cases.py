"""What the tests of collectives run over, and what must come out. Nothing here knows what a rank is made of.

Inputs are small whole numbers in every dtype, so that sums and products are exact in any order and results can be
compared bit by bit. What depends on the order of addition is tested apart (test_order.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.collectives import ALGORITHMS
from labkit.collectives.choose import chain_chunks
from labkit.cost.collectives import cost_of

WORLD_SIZES = (1, 2, 3, 4, 5, 6, 8)
ODD_SIZES = (1, 2, 3, 5, 8)
SHAPES = [(), (0,), (1,), (7,), (64,), (3, 5), (8, 2), (0, 3), (3, 0), (2, 3, 4)]
ROW_SHAPES = [shape for shape in SHAPES if shape]  # for what cuts the first dimension

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
COMPLEX = [torch.complex64, torch.complex128]
EIGHT_BIT = [torch.float8_e4m3fn, torch.float8_e5m2]
REDUCIBLE = [
    *(("sum", d) for d in FLOATS + INTEGERS + COMPLEX),
    *(("prod", d) for d in FLOATS + INTEGERS + COMPLEX),
    *(("avg", d) for d in FLOATS + COMPLEX),
    *((op, d) for op in ("min", "max") for d in [*FLOATS, *INTEGERS, torch.bool]),
]
MOVABLE = FLOATS + INTEGERS + COMPLEX + EIGHT_BIT + [torch.bool, torch.uint16, torch.uint32, torch.uint64]

REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("broadcast", "reduce", "scatter", "gather")
CUTTING = ("reduce_scatter", "scatter", "all_to_all")
DATA = ("broadcast", "reduce", "all_reduce", "reduce_scatter", "all_gather", "scatter", "gather", "all_to_all")


def algorithms(*collectives: str, native: bool = True) -> list[tuple[str, str]]:
    """(collective, algorithm) for every one in the table; of these collectives only, if any are named."""
    return [
        (collective, name)
        for collective in collectives or (*DATA, "barrier")
        for name in sorted(ALGORITHMS[collective])
        if native or name != "native"
    ]


def fits(algorithm: str, size: int, ranks_per_node: int) -> bool:
    """Whether this algorithm can run on such a world."""
    return algorithm != "hierarchical" or size % ranks_per_node == 0


def native_can(op: str, dtype: torch.dtype) -> bool:
    """Whether a library's collectives know this reduction."""
    return dtype != torch.int16 and not (dtype.is_complex and op == "prod")


def small_numbers(rank: int, shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """What `rank` brings: numbers from -2 to 2 without 0, so that products of eight of them stay exact."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    if dtype in EIGHT_BIT:
        return torch.randint(0, 120, tuple(shape), generator=generator, dtype=torch.uint8).view(dtype)
    values = torch.tensor([-2, -1, 1, 2])[torch.randint(0, 4, tuple(shape), generator=generator)]
    if dtype.is_complex:
        imaginary = torch.randint(-1, 2, tuple(shape), generator=generator)
        return torch.complex(values.double(), imaginary.double()).to(dtype)
    return (values > 0) if dtype == torch.bool else values.to(dtype)


def reduced(inputs: Sequence[Tensor], op: str) -> Tensor:
    """The reduction of all inputs, by torch's own means."""
    stack, dtype = torch.stack(list(inputs)), inputs[0].dtype
    if op == "sum":
        return stack.sum(0, dtype=dtype)
    if op == "avg":
        return stack.sum(0, dtype=dtype) / len(inputs)
    if op == "prod":
        return stack.prod(0, dtype=dtype)
    return stack.amin(0) if op == "min" else stack.amax(0)


def joined(blocks: Sequence[Tensor]) -> Tensor:
    """Blocks one after the other along the first dimension; scalars as rows."""
    return torch.cat([b.reshape(1) if b.dim() == 0 else b for b in blocks])


def expected(collective: str, inputs: Sequence[Tensor], op: str = "sum", root: int = 0) -> list[Tensor | None]:
    """The result of each rank; None where a rank returns None or its result is not defined."""
    n = len(inputs)
    if collective == "broadcast":
        return [inputs[root]] * n
    if collective == "all_reduce":
        return [reduced(inputs, op)] * n
    if collective == "reduce":
        return [reduced(inputs, op) if r == root else None for r in range(n)]
    if collective == "reduce_scatter":
        return list(torch.tensor_split(reduced(inputs, op), n))
    if collective == "all_gather":
        return [joined(inputs)] * n
    if collective == "scatter":
        return list(torch.tensor_split(inputs[root], n))
    if collective == "gather":
        return [joined(inputs) if r == root else None for r in range(n)]
    if collective == "all_to_all":
        return [torch.cat([torch.tensor_split(x, n)[r] for x in inputs]) for r in range(n)]
    raise AssertionError(collective)


def call(collective: str, algorithm: str, x: Tensor, group: Any, op: str = "sum", root: int = 0) -> Any:
    """What this rank returns when it calls the collective with `x` (for scatter: everyone knows its shape)."""
    function = ALGORITHMS[collective][algorithm]
    if collective == "scatter":
        like = torch.empty_like(torch.tensor_split(x, group.size)[group.rank])
        return function(x if group.rank == root else None, group, root=root, like=like)
    options: dict[str, Any] = {}
    if collective in REDUCING:
        options["op"] = op
    if collective in ROOTED:
        options["root"] = root
    return function(x, group, **options)


def same(result: Tensor | None, wanted: Tensor | None) -> bool:
    """Equal in dtype, shape and every bit (but for the sign of zero)."""
    if result is None or wanted is None:
        return result is wanted
    if result.dtype != wanted.dtype or result.shape != wanted.shape:
        return False
    bits = (lambda x: x.view(torch.uint8)) if result.dtype in EIGHT_BIT else (lambda x: x)
    return torch.equal(bits(result), bits(wanted))


def bytes_and_messages(
    collective: str, algorithm: str, shape: Sequence[int], itemsize: int, size: int, root: int = 0,
    ranks_per_node: int | None = None,
) -> tuple[list[int], list[int]]:  # fmt: skip
    """What `labkit.cost` says each rank sends when every rank calls it with a tensor of this shape."""
    numel, per_row = 1, itemsize
    for length in shape:
        numel *= length
    if collective in CUTTING:  # parts fall between rows
        per_row = itemsize * (numel // shape[0] if shape[0] else 0)
        numel = shape[0]
    elif collective in ("all_gather", "gather"):
        numel *= size
    cost = cost_of(collective, algorithm)
    chunks = chain_chunks(numel * itemsize, size) if algorithm == "chain" else None
    return (
        cost.bytes_by_rank(numel, per_row, size, root=root, ranks_per_node=ranks_per_node),
        cost.messages_by_rank(numel, per_row, size, root=root, ranks_per_node=ranks_per_node, chunks=chunks),
    )
