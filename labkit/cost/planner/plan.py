"""A plan: how many ways each axis cuts a training job, and the choices that go with it.

Ranks are tensor * context * expert * data * pipeline, each axis cutting something else. The batch is cut among data and
expert ranks: an expert rank is a data-parallel rank that also shares out the experts, so it counts for the batch and
not for the sequence. On the machine tensor ranks are neighbours, then context, expert and data ranks; stages are
furthest apart, because they send least (the order of Megatron-LM).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from labkit.cost.parallel.pipeline import PIPELINE_SCHEDULES
from labkit.cost.planner.model import Model
from labkit.cost.refuse import one_of, whole
from labkit.cost.training.memory import ACTIVATION_STRATEGIES

__all__ = ["DATA_KINDS", "Plan"]

# Each kind of data parallelism, and the stage of ZeRO by which it cuts the state.
DATA_KINDS = {"plain": 0, "zero1": 1, "zero2": 2, "zero3": 3, "hsdp": 3}
_SHORT = {"plain": "plain DP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3", "hsdp": "HSDP"}


@dataclass(frozen=True)
class Plan:
    """One way to train.

    tensor, pipeline, context, expert, data: sizes of the axes. microbatch: sequences that pass through at a time.
    microbatches: how many of them a replica works on in a step. schedule: of the pipeline, with `chunks` parts of the
    model on a rank ("interleaved"). sharding: "plain", "zero1", "zero2", "zero3" (FSDP), or "hsdp", which cuts the
    state among `shard` neighbouring data ranks only. recompute: "all" keeps all activations; "selective" and "full".
    sequence_parallel: norms and dropout are cut among the tensor ranks too. gradient_bytes: of one gradient.
    """

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    data: int = 1
    microbatch: int = 1
    microbatches: int = 1
    schedule: str = "one_f_one_b"
    chunks: int = 1
    sharding: str = "plain"
    shard: int = 0
    recompute: str = "selective"
    sequence_parallel: bool = True
    gradient_bytes: int = 4

    def __post_init__(self) -> None:
        whole(tensor=self.tensor, pipeline=self.pipeline, context=self.context, expert=self.expert, data=self.data,
              microbatch=self.microbatch, microbatches=self.microbatches, chunks=self.chunks)  # fmt: skip
        one_of(PIPELINE_SCHEDULES, schedule=self.schedule)
        one_of(tuple(DATA_KINDS), sharding=self.sharding)
        one_of(ACTIVATION_STRATEGIES, recompute=self.recompute)
        one_of((2, 4), gradient_bytes=self.gradient_bytes)
        if self.schedule != "interleaved" and self.chunks != 1:
            raise ValueError(
                f"chunks must be 1 for {self.schedule}, not {self.chunks}: take schedule='interleaved', or one chunk"
            )
        if self.sharding == "hsdp":
            whole(shard=self.shard)
            if self.holders % self.shard:
                raise ValueError(
                    f"shard must divide the {self.holders} ranks that hold the same parameters, and {self.shard} does "
                    f"not: take {near(self.holders, self.shard)}"
                )
        elif self.shard:
            raise ValueError(f"shard={self.shard} has a meaning for 'hsdp' only, not for {self.sharding!r}: leave it 0")

    @property
    def gpus(self) -> int:
        """The product of the axes."""
        return self.tensor * self.pipeline * self.context * self.expert * self.data

    @property
    def replicas(self) -> int:
        """Ranks among which the batch is cut: data * expert."""
        return self.data * self.expert

    @property
    def holders(self) -> int:
        """Ranks that hold the same parameters (not experts), and share their state under ZeRO: d e c."""
        return self.replicas * self.context

    @property
    def batch(self) -> int:
        """Sequences of one step."""
        return self.replicas * self.microbatch * self.microbatches

    @property
    def stage(self) -> int:
        """Of ZeRO."""
        return DATA_KINDS[self.sharding]

    @property
    def cut(self) -> tuple[int, int, int, int, int]:
        """(tensor, pipeline, context, expert, data)."""
        return self.tensor, self.pipeline, self.context, self.expert, self.data

    def __str__(self) -> str:
        axes = [
            ("TP", self.tensor), ("PP", self.pipeline), ("CP", self.context), ("EP", self.expert), ("DP", self.data)
        ]  # fmt: skip
        text = " ".join(f"{name}{size}" for name, size in axes if size > 1) or "one GPU"
        schedule = f"interleaved in {self.chunks} chunks" if self.chunks > 1 else self.schedule
        kind = f"HSDP over {self.shard}" if self.sharding == "hsdp" else _SHORT[self.sharding]
        parts = [text, f"{_several(self.microbatches, 'microbatch', 'es')} of {_several(self.microbatch, 'sequence')}"]
        parts += [schedule] if self.pipeline > 1 else []
        kept = {"all": "all activations kept", "selective": "attention recomputed", "full": "all recomputed"}
        return ", ".join([*parts, kind, kept[self.recompute]])

    def differs(self, other: Plan) -> dict[str, tuple[object, object]]:
        """What is not alike: name -> (mine, the other's)."""
        names = [one.name for one in fields(self)]
        return {n: (getattr(self, n), getattr(other, n)) for n in names if getattr(self, n) != getattr(other, n)}

    def layers_on_a_rank(self, model: Model) -> int:
        """Layers of the fullest rank of the pipeline: v ceil(L / (p v))."""
        return self.chunks * math.ceil(model.layers / (self.pipeline * self.chunks))

    def refuse(self, model: Model, gpus: int | None = None) -> None:
        """Raise ValueError with `why_impossible`, if there is a reason."""
        why = self.why_impossible(model, gpus)
        if why:
            raise ValueError(why)

    def why_impossible(self, model: Model, gpus: int | None = None) -> str:
        """Why no machine could run it with this model (on so many GPUs), and the remedy; "" if it could."""
        if gpus is not None and self.gpus != gpus:
            names = "tensor", "pipeline", "context", "expert", "data"
            sizes = " x ".join(f"{name} {size}" for name, size in zip(names, self.cut, strict=True) if size > 1)
            model_ranks = self.gpus // self.data
            remedy = f"take data={gpus // model_ranks}"
            if gpus % model_ranks:
                remedy = f"the {model_ranks} that hold the model once do not divide {gpus}, so change tensor, pipeline"
                remedy += " or context"
            return f"{sizes or 'nothing cut'} = {self.gpus} ranks do not fill {gpus} GPUs: {remedy}"
        return why_not_cut(model, self.tensor, self.pipeline, self.context, self.expert) or why_not_scheduled(
            model, self.pipeline, self.schedule, self.chunks, self.microbatches
        )


def _several(count: int, what: str, ending: str = "s") -> str:
    return f"{count} {what}{ending * (count != 1)}"


def why_not_cut(model: Model, tensor: int, pipeline: int, context: int, expert: int) -> str:
    """Why the model cannot be cut so, and the remedy; "" if it can."""
    if model.heads % tensor:
        return (
            f"tensor={tensor} does not divide the {model.heads} heads of {model.name}: take {near(model.heads, tensor)}"
        )
    if model.inside % tensor or (model.expert_inside and model.expert_inside % tensor):
        return f"tensor={tensor} does not divide the feed-forward width of {model.name}: take a power of two"
    if pipeline > model.layers:
        return (
            f"pipeline={pipeline} is more than the {model.layers} layers of {model.name}: take at most {model.layers}"
        )
    if context > 1 and model.sequence % (2 * context):
        return (
            f"context={context} cuts a sequence into {2 * context} chunks, and {model.sequence} tokens do not divide: "
            f"take {near(model.sequence // 2, context)}"
        )
    if expert > 1 and not model.experts:
        return f"expert={expert} needs experts, and {model.name} has none: take expert=1"
    if model.experts and model.experts % expert:
        return f"expert={expert} does not divide the {model.experts} experts: take {near(model.experts, expert)}"
    return ""


def why_not_scheduled(model: Model, pipeline: int, schedule: str, chunks: int, microbatches: int) -> str:
    """Why the pipeline cannot go so, and the remedy; "" if it can."""
    if pipeline * chunks > model.layers + 2:
        return (
            f"pipeline * chunks = {pipeline * chunks} parts are more than {model.layers} layers and two embeddings: "
            f"take chunks={max(1, model.layers // pipeline)}"
        )
    if schedule == "interleaved" and microbatches % pipeline:
        return (
            f"interleaved goes in rounds of {pipeline} microbatches, and {microbatches} are no multiple: "
            f"take {max(1, round(microbatches / pipeline)) * pipeline}, or one_f_one_b"
        )
    if schedule == "zb_h2" and microbatches < 2 * pipeline - 1:
        return f"zb_h2 needs {2 * pipeline - 1} microbatches on {pipeline} stages, not {microbatches}: take zb_h1"
    return ""


def near(total: int, part: int) -> int:
    """The largest divisor of `total` that is not above `part`."""
    return max(n for n in range(1, part + 1) if total % n == 0)
