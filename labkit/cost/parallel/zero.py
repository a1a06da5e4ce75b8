"""ZeRO: what a rank holds of the training state, and what it sends in a step, stage by stage.

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models". Stage 0 is plain data
parallelism: every rank holds all. Stage 1 cuts the optimizer's state among the ranks, stage 2 the gradients too, stage
3 the parameters too. In bytes a parameter with Adam in mixed precision, on N ranks (section 5):

    stage 0: 16        stage 1: 4 + 12/N        stage 2: 2 + 14/N        stage 3: 16/N

Only what lasts is counted: not activations, and not what is gathered for a moment (`gathered_unit_bytes`). Functions
`..._by_rank` are exact: a flat tensor of n elements is cut as `torch.tensor_split` does, where the first n mod N ranks
own one element more; nothing is padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

from labkit.cost.collectives.parts import split_sizes
from labkit.cost.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from labkit.cost.refuse import not_negative, one_of, whole
from labkit.cost.training.memory import StateBytes, state_parts

__all__ = [
    "zero1_by_all_reduce_bytes",
    "zero_bytes_per_step",
    "zero_bytes_per_step_by_rank",
    "zero_saving",
    "zero_saving_limit",
    "zero_state_bytes",
    "zero_state_bytes_by_rank",
    "zero_state_parts",
]

STAGES = (0, 1, 2, 3)


def zero_state_parts(params: float, size: int, stage: int, precision: str = "mixed") -> StateBytes:
    """Bytes of parameters, gradients and Adam's state that one of `size` ranks holds, if they divide evenly.

    precision: "mixed" (2 + 2 + 12 bytes a parameter) or "single" (4 + 4 + 8).
    """
    whole(size=size)
    one_of(STAGES, stage=stage)
    all_of = state_parts(params, precision)
    return StateBytes(
        parameters=all_of.parameters / (size if stage >= 3 else 1),
        gradients=all_of.gradients / (size if stage >= 2 else 1),
        optimizer=all_of.optimizer / (size if stage >= 1 else 1),
    )


def zero_state_bytes(params: float, size: int, stage: int, precision: str = "mixed") -> float:
    """Bytes of training state on each of `size` ranks, if `params` divides evenly.

    7B on 64 ranks: 112 GB at stage 0, 29.3 GB at 1, 15.5 GB at 2, 1.75 GB at 3.
    """
    return zero_state_parts(params, size, stage, precision).total


def zero_state_bytes_by_rank(params: int | Sequence[int], size: int, stage: int, precision: str = "mixed") -> list[int]:
    """Bytes of training state on each rank, exact for any number of parameters.

    params: how many there are; or a number for each unit, if units are cut one by one (as FSDP cuts its blocks).
    """
    whole(size=size)
    one_of(STAGES, stage=stage)
    each = state_parts(1, precision)
    held = [0] * size
    for unit in _units(params):
        for rank, own in enumerate(split_sizes(unit, size)):
            held[rank] += int(
                each.parameters * (own if stage >= 3 else unit)
                + each.gradients * (own if stage >= 2 else unit)
                + each.optimizer * (own if stage >= 1 else unit)
            )
    return held


def zero_saving(size: int, stage: int, precision: str = "mixed") -> float:
    """How many times less state a rank holds than under plain data parallelism, on `size` ranks.

    On 64 ranks 3.82 at stage 1, 7.21 at stage 2, 64 at stage 3.
    """
    return zero_state_bytes(1, 1, 0, precision) / zero_state_bytes(1, size, stage, precision)


def zero_saving_limit(stage: int, precision: str = "mixed") -> float:
    """What `zero_saving` tends to with ever more ranks: 1, 4, 8 and infinity for stages 0 to 3 ("mixed").

    With everything in 32 bits ("single") 2 and 4: half of the 16 bytes are Adam's there, and not three quarters.
    """
    one_of(STAGES, stage=stage)
    each = state_parts(1, precision)
    replicated = (each.parameters if stage < 3 else 0) + (each.gradients if stage < 2 else 0)
    replicated += each.optimizer if stage < 1 else 0
    return each.total / replicated if replicated else float("inf")


def zero_bytes_per_step(params: float, size: int, stage: int, itemsize: int = 2) -> float:
    """Bytes that each rank sends in a step, if `params` divides evenly; M = params * itemsize.

    Stage 0: an all-reduce of the gradients, 2 (N-1)/N M. Stages 1 and 2: a reduce-scatter of the gradients and an
    all-gather of the new parameters, 2 (N-1)/N M as well. Stage 3: the parameters are gathered for the forward pass
    and again for the backward pass, gradients reduce-scattered, 3 (N-1)/N M (ZeRO, section 7). The sources write 2M
    and 3M: the limit of many ranks.
    """
    not_negative(params=params)
    whole(size=size, itemsize=itemsize)
    one_of(STAGES, stage=stage)
    nbytes = params * itemsize
    if stage == 0:
        return ring_all_reduce.bytes(nbytes, size)
    gathers = 2 if stage == 3 else 1
    return ring_reduce_scatter.bytes(nbytes, size) + gathers * ring_all_gather.bytes(nbytes, size)


def zero_bytes_per_step_by_rank(
    params: int | Sequence[int], size: int, stage: int, itemsize: int = 2, grad_itemsize: int | None = None
) -> list[int]:
    """Bytes that each rank sends in a step, exact: reduce-scatter as ring or pairwise, all-gather as a ring.

    params: how many there are; or a number for each unit, if units are sent one by one. grad_itemsize: bytes of a
    gradient on the wire, if it is not that of a parameter (FSDP's reduce_dtype). Stage 0 is a ring all-reduce.
    """
    whole(size=size, itemsize=itemsize)
    one_of(STAGES, stage=stage)
    grad = itemsize if grad_itemsize is None else grad_itemsize
    whole(grad_itemsize=grad)
    sent = [0] * size
    for unit in _units(params):
        if stage == 0:
            parts = [ring_all_reduce.bytes_by_rank(unit, grad, size)]
        else:
            parts = [ring_reduce_scatter.bytes_by_rank(unit, grad, size)]
            parts += [ring_all_gather.bytes_by_rank(unit, itemsize, size)] * (2 if stage == 3 else 1)
        sent = [sum(column) for column in zip(sent, *parts, strict=True)]
    return sent


def zero1_by_all_reduce_bytes(params: float, size: int, itemsize: int = 2) -> float:
    """Bytes that a rank sends in a step of ZeRO-1 as the textbook chapter describes it: 3 (N-1)/N M, not 2.

    "After gradient AllReduce, each GPU updates only its shard of parameters, then broadcasts updates": an all-reduce,
    2 (N-1)/N M, and each shard sent to all others, (N-1)/N M in sum. Its table says "None (same as DDP)" all the
    same, which holds for a reduce-scatter in place of the all-reduce: `zero_bytes_per_step(..., stage=1)`.
    """
    not_negative(params=params)
    whole(size=size, itemsize=itemsize)
    nbytes = params * itemsize
    return ring_all_reduce.bytes(nbytes, size) + ring_all_gather.bytes(nbytes, size)


def _units(params: int | Sequence[int]) -> list[int]:
    units = list(params) if isinstance(params, Sequence) else [params]
    for unit in units:
        if isinstance(unit, bool) or not isinstance(unit, Integral) or unit < 0:
            raise ValueError(f"params must be a whole number of at least 0, or a list of such, not {params!r}")
    return units
