"""Strategies: how ranks share the training of one model, written against `Group` and `labkit.collectives` only.

    DataParallel(module, group)      every rank holds the model, and a part of the batch: `labkit.parallel.data`
    Sampler(count, group, batch=8)   which examples a rank sees
    FullyShard(module, group)        every rank holds a stretch of each block: `labkit.parallel.fsdp`
    ZeRO1, ZeRO2, ZeRO3              the same with the training state cut among ranks: `labkit.parallel.zero`
    Mesh(group, {"dp": 2, "tp": 2})  names for the axes along which ranks work together, a group for each
    Layout({"dp": 2, "tp": 2})       the same as numbers only: coordinates, groups, nodes
    TensorParallelGPT(config, group) every rank holds a part of each matrix: `labkit.parallel.tensor`, whose layers are
    ColumnParallelLinear, RowParallelLinear, TensorParallelBlock
    VocabParallelEmbedding(...)      a vocabulary cut among ranks, and the loss of scores that are cut along it,
    vocab_parallel_cross_entropy     which no rank ever holds as a whole
    Pipeline(modules, group, loss)   every rank holds some layers, and runs a schedule: `labkit.parallel.pipeline`
    checkpoint(function, *inputs)    activations computed again in backward, in place of kept
    kernels(module, group, seconds)  stand-in kernels: layers that take a given time on the virtual clock

Below them: `flat` (many tensors side by side), `same` and `agree` (ranks that brought different things), `unfit`
(gradients that no strategy may use), `reach` (what an output depends on).

Names load when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.parallel.checkpointing import checkpoint, checkpoint_blocks
    from labkit.parallel.data.buckets import Bucket
    from labkit.parallel.data.hooks import all_reduce_hook, bf16_hook
    from labkit.parallel.data.sampler import Sampler
    from labkit.parallel.data.wrapper import DataParallel
    from labkit.parallel.flat import Flat, Piece
    from labkit.parallel.fsdp.deferred import deferred
    from labkit.parallel.fsdp.fully_shard import FullyShard
    from labkit.parallel.layout import Layout
    from labkit.parallel.mesh import Mesh
    from labkit.parallel.pipeline.running.pipeline import Pipeline
    from labkit.parallel.stand_in import Kernels, kernels
    from labkit.parallel.tensor.block import TensorParallelBlock
    from labkit.parallel.tensor.gpt import TensorParallelGPT
    from labkit.parallel.tensor.linear import ColumnParallelLinear, RowParallelLinear
    from labkit.parallel.vocab import VocabParallelEmbedding
    from labkit.parallel.vocab_loss import vocab_parallel_cross_entropy
    from labkit.parallel.zero.adamw import AdamW
    from labkit.parallel.zero.stage3 import ZeRO3
    from labkit.parallel.zero.stages import ZeRO1, ZeRO2

__all__ = [
    "AdamW", "Bucket", "ColumnParallelLinear", "DataParallel", "Flat", "FullyShard", "Kernels", "Layout", "Mesh",
    "Piece", "Pipeline", "RowParallelLinear", "Sampler", "TensorParallelBlock", "TensorParallelGPT",
    "VocabParallelEmbedding", "ZeRO1", "ZeRO2", "ZeRO3",
    "all_reduce_hook", "bf16_hook", "checkpoint", "checkpoint_blocks", "deferred", "kernels",
    "vocab_parallel_cross_entropy",
]  # fmt: skip

# No module is called like a name in this table: importing a submodule would put it in the place of the function.
_HOME = {
    "Bucket": "data.buckets", "DataParallel": "data.wrapper", "Sampler": "data.sampler",
    "all_reduce_hook": "data.hooks", "bf16_hook": "data.hooks",
    "Flat": "flat", "Piece": "flat",
    "AdamW": "zero.adamw", "ZeRO1": "zero.stages", "ZeRO2": "zero.stages", "ZeRO3": "zero.stage3",
    "checkpoint": "checkpointing", "checkpoint_blocks": "checkpointing",
    "Layout": "layout", "Mesh": "mesh",
    "ColumnParallelLinear": "tensor.linear", "RowParallelLinear": "tensor.linear",
    "TensorParallelBlock": "tensor.block", "TensorParallelGPT": "tensor.gpt",
    "VocabParallelEmbedding": "vocab", "vocab_parallel_cross_entropy": "vocab_loss",
    "FullyShard": "fsdp.fully_shard", "deferred": "fsdp.deferred",
    "Pipeline": "pipeline.running.pipeline",
    "Kernels": "stand_in", "kernels": "stand_in",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
