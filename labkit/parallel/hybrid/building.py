"""This rank's stages, with their values, and the way in which their training state is shared out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from labkit.models.gpt import GPTConfig
from labkit.parallel.context.parallel import ContextParallel
from labkit.parallel.hybrid.config import DENSE, EXPERTS, HybridConfig
from labkit.parallel.hybrid.experts import Experts
from labkit.parallel.hybrid.part import Part
from labkit.parallel.hybrid.plain import Plain
from labkit.parallel.hybrid.replicas import Place, Replicas, places
from labkit.parallel.hybrid.sharded import Sharded
from labkit.parallel.hybrid.zeroed import Zeroed
from labkit.parallel.mesh import Mesh
from labkit.parallel.pipeline.running.stages import layers_of
from labkit.parallel.pipeline.schedule import Schedule
from labkit.parallel.tensor.gpt import TensorParallelGPT
from labkit.parallel.zero.adamw import AdamW
from labkit.wire.group import Group


def build_parts(
    model: GPTConfig, config: HybridConfig, mesh: Mesh, schedule: Schedule | None, context: ContextParallel | None,
    seed: int, dtype: torch.dtype,
) -> list[Part]:  # fmt: skip
    """The stages of GPT(model, seed) that are this rank's, one a chunk, cut along tp and ep."""
    counts = layers_of(model.layers, config.pp * config.chunks)
    chunks = range(config.chunks)
    stages = [0] if schedule is None else [schedule.stage(mesh["pp"].rank, chunk) for chunk in chunks]
    built = []
    for stage in stages:
        start = sum(counts[:stage])
        gpt = TensorParallelGPT(
            model, mesh["tp"], sequence=config.sequence_parallel, seed=seed, algorithm=config.algorithm,
            layers=range(start, start + counts[stage]),
        ).to(dtype)  # fmt: skip
        if model.moe is not None:
            Experts(mesh["ep"], mesh[DENSE]).into(gpt)
        if context is not None:
            context.into(gpt)
        built.append(gpt)
    if len(built) > 1 and built[0].tied and built[-1].tied:  # both ends of the model are here
        built[-1].lm_head.weight = built[0].tokens.weight
    return [Part(gpt, context) for gpt in built]


def build_replicas(
    model: GPTConfig, config: HybridConfig, mesh: Mesh, schedule: Schedule | None, parts: Sequence[Part],
    optimizer: AdamW,
) -> Replicas:  # fmt: skip
    """`parts` with the ranks that hold the same ones, by `config.data`."""
    held: dict[int, Place] = {}
    for part in parts:
        held = places(part, mesh["tp"]) | held  # a matrix that two parts share is the first one's
    dense, experts, copies = mesh[DENSE], mesh[EXPERTS], mesh["dp_replicate"]
    if config.data == "plain":
        return Plain(parts, held, dense, experts, optimizer, config.algorithm)
    if config.data in ("fsdp", "hsdp"):
        cut_experts = mesh["dp_shard", "cp"], copies
        return Sharded(parts, held, (mesh["dp_shard", "ep", "cp"], copies), cut_experts, optimizer)
    return Zeroed(config.data, parts, held, dense, experts, optimizer, _ends(model, schedule, mesh["pp"]))


def _ends(model: GPTConfig, schedule: Schedule | None, pp: Group) -> Group | None:
    """The ranks of the first and the last stage, where this is one of them and both hold the tied matrix."""
    if schedule is None or not model.tied:
        return None
    first, last = schedule.where(0)[0], schedule.where(schedule.stages - 1)[0]
    return pp.subgroup([first, last]) if first != last and pp.rank in (first, last) else None
