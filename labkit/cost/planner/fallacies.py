"""What the textbook chapter says of plans in figures, and what the planner finds when it computes them.

Each function sets up the case from the numbers that the chapter gives, and returns what follows as `Claim`s. Where the
chapter leaves something open (batch, sequence), the arguments say what was taken.
"""

from __future__ import annotations

from dataclasses import replace

from labkit.cost.claims import Claim
from labkit.cost.parallel.pipeline import bubble_overhead
from labkit.cost.parallel.tensor_memory import model_parallel_state_bytes
from labkit.cost.planner.cluster import Cluster, a100_cluster, h100_cluster
from labkit.cost.planner.explain import why_lost
from labkit.cost.planner.gpus import A100
from labkit.cost.planner.model import MODELS, Model
from labkit.cost.planner.plan import Plan
from labkit.cost.planner.predicted import Estimate, estimate
from labkit.cost.planner.search import search
from labkit.cost.planner.space import Space
from labkit.cost.units import GB

__all__ = [
    "configurations_a_b_c", "network_worth", "optimizer_choice", "pipeline_or_tensor", "pipeline_over_tensor",
    "sharding_overhead", "static_memory",
]  # fmt: skip

GPT3 = MODELS["GPT-3 175B"]
TEXTBOOK = "textbook chapter"


def static_memory() -> list[Claim]:
    """175B at TP8 PP16 in two conventions, neither with gradients; and with them, by the planner's own count."""
    ours = estimate(GPT3, h100_cluster(16_384), Plan(8, 16, 1, 1, 128, 1, 32, gradient_bytes=2))
    return [
        Claim(TEXTBOOK, "10 bytes a parameter", "13.7", model_parallel_state_bytes(175e9, 8, 16, bytes_per_parameter=10)
              / GB, "GB"),
        Claim(TEXTBOOK, "14 bytes a parameter", "19.1", model_parallel_state_bytes(175e9, 8, 16, bytes_per_parameter=14)
              / GB, "GB"),
        Claim(TEXTBOOK, "16 bytes a parameter, on the fullest rank", "", ours.held.state / GB, "GB",
              why="with gradients, and the embedding that a first stage holds besides its layers"),
    ]  # fmt: skip


def configurations_a_b_c(sequences: int = 1024) -> dict[str, Estimate]:
    """The 175B model on 1,024 H100s: A is data parallelism alone, B TP8 x DP128, C TP8 x PP4 x DP32, all with ZeRO-1.

    sequences: of a batch; the chapter gives 32 microbatches for C, so 1,024 with one sequence each.
    """
    cluster = h100_cluster(1024)
    plans = {
        "A": Plan(1, 1, 1, 1, 1024, 1, sequences // 1024, sharding="zero1"),
        "B": Plan(8, 1, 1, 1, 128, 1, sequences // 128, sharding="zero1"),
        "C": Plan(8, 4, 1, 1, 32, 1, sequences // 32, sharding="zero1"),
    }
    return {name: estimate(GPT3, cluster, plan) for name, plan in plans.items()}


def pipeline_or_tensor(sequences: int = 512) -> tuple[Estimate, Estimate, Claim]:
    """ "23 percent higher throughput" of a pipeline of 8 over tensor parallelism of 8: 175B on 64 A100s.

    Both with ZeRO-3 over the other 8 ranks, without which neither comes near 80 GB, and with full recomputation.
    Returns (tensor, pipeline, claim); whether they fit is in each estimate.
    """
    cluster = a100_cluster(64)
    tensor = estimate(GPT3, cluster, Plan(8, 1, 1, 1, 8, 1, sequences // 8, sharding="zero3", recompute="full",
                                          gradient_bytes=2))  # fmt: skip
    pipeline = estimate(GPT3, cluster, Plan(1, 8, 1, 1, 8, 1, sequences // 8, sharding="zero3", recompute="full",
                                            gradient_bytes=2))  # fmt: skip
    gain = 100 * (tensor.seconds / pipeline.seconds - 1)
    slower, faster = (tensor, pipeline) if gain > 0 else (pipeline, tensor)
    return tensor, pipeline, Claim(
        TEXTBOOK, "PP8 over TP8 on 64 GPUs", "23", gain, "%", why=why_lost(slower, faster)
    )  # fmt: skip


def pipeline_over_tensor(microbatch: int = 1, hidden: bool = False, sequences: int = 512) -> float:
    """Percent by which the throughput of the pipeline of `pipeline_or_tensor` is higher.

    microbatch: sequences. hidden: what is gathered and scattered goes on under computing, where there is enough of it.
    """
    cluster = a100_cluster(64)
    if hidden:
        overlaps = frozenset({"context", "pipeline", "data"})
        cluster = replace(cluster, efficiency=replace(cluster.efficiency, overlaps=overlaps))
    tensor, pipeline = (
        estimate(GPT3, cluster, Plan(t, p, 1, 1, 8, microbatch, sequences // 8 // microbatch, sharding="zero3",
                                     recompute="full", gradient_bytes=2)).seconds
        for t, p in ((8, 1), (1, 8))
    )  # fmt: skip
    return 100 * (tensor / pipeline - 1)


def sharding_overhead(model: Model | None = None, gpus: int = 8, microbatch: int = 4) -> list[Claim]:
    """FSDP against DDP for a 7B model on A100s at batch 4: "19 percent slower", "10 to 25 percent overhead".

    The time by which a step with ZeRO-3 is longer than with replicas; and the bytes that the replica would need, which
    no 80 GB GPU has.
    """
    seven = Model("7B", 32, 4096, 32, inside=11_008, gated=True, vocabulary=32_000, tied=False)
    seven = seven if model is None else model
    cluster = a100_cluster(gpus)
    plain, sharded = (
        estimate(seven, cluster, Plan(data=gpus, microbatch=microbatch, sharding=kind, gradient_bytes=2))
        for kind in ("plain", "zero3")
    )
    return [
        Claim(TEXTBOOK, "samples a second lost by FSDP", "19", 100 * (1 - plain.seconds / sharded.seconds), "%",
              why="inside a node half as many bytes again take little time, and each rank updates a part only"),
        Claim(TEXTBOOK, "a GPU under DDP", f"at most {A100.memory / GB:.0f}", plain.held.total / GB, "GB",
              why="it does not fit, so its 145 samples a second were not measured like this"),
    ]  # fmt: skip


def optimizer_choice(gpus: int = 8192, sequences: int = 2048) -> list[Claim]:
    """ "TP8, PP8, DP128", "a projected 25.9 MFU": what the planner takes for 175B on as many GPUs, and its MFU.

    The chapter's search applies its bubble as a factor 1 + b with one microbatch: b = 7 for 8 stages. MFU is divided by
    it and not multiplied: at most 50 percent / 8.
    """
    cluster = h100_cluster(gpus)
    best = search(GPT3, cluster, sequences, keep=1).winner
    theirs = search(GPT3, cluster, sequences, Space(), cut=(8, 8, 1, 1, gpus // 64), keep=1).winner
    return [
        Claim(TEXTBOOK, "MFU of TP8 PP8 DP128", "25.9", 100 * theirs.mfu, "%", why=str(theirs.plan)),
        Claim(TEXTBOOK, "at most, with its one microbatch", "25.9", 50 / (1 + bubble_overhead(8, 1)), "%"),
        Claim(TEXTBOOK, "MFU of the planner's choice", "", 100 * best.mfu, "%", why=str(best.plan)),
    ]  # fmt: skip


def network_worth(
    model: Model, cluster: Cluster, batch: int, factor: float = 0.5, share: float = 0.125
) -> dict[str, float]:
    """Is a slower network a saving? The network is "10 to 15 percent of total system cost".

    factor: of the bandwidth between domains; the network's price is taken to go with it. share: of the network in the
    price. Returns the part of the price that is saved, the part of the throughput that is lost with the best plan for
    each, and by how much a token gets more expensive (below 0: cheaper).
    """
    whole, part = search(model, cluster, batch, keep=1), search(model, cluster.with_network(factor), batch, keep=1)
    saved = share * (1 - factor)
    lost = 1 - whole.winner.seconds / part.winner.seconds
    return {"saved": saved, "lost": lost, "a token costs more": (1 - saved) / (1 - lost) - 1}
