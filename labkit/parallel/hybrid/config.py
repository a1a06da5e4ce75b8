"""What a hybrid run is made of: how many ranks along each axis, and how each axis works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from labkit.parallel.pipeline.schedule import Schedule
from labkit.parallel.pipeline.schedules import gpipe, interleaved, naive, one_f_one_b
from labkit.parallel.pipeline.zero_bubble import v_half, zb_h1, zb_h2, zb_v

DATA = ("plain", "zero1", "zero2", "zero3", "fsdp", "hsdp")
AXES = ("dp", "pp", "cp", "tp")
DP = ("dp_replicate", "dp_shard", "ep")  # what "dp" is on the mesh
DENSE = (*DP, "cp")  # along these, ranks hold the same weights
EXPERTS = ("dp_replicate", "dp_shard", "cp")  # and along these the same experts
SCHEDULES: dict[str, Callable[[int, int], Schedule]] = {
    "naive": naive, "gpipe": gpipe, "one_f_one_b": one_f_one_b, "zb_h1": zb_h1, "zb_h2": zb_h2, "zb_v": zb_v,
    "v_half": v_half,
}  # fmt: skip
SPLIT = ("zb_h1", "zb_h2", "zb_v", "v_half")  # their backward comes in two parts


@dataclass(frozen=True)
class HybridConfig:
    """dp x pp x cp x tp ranks. Everything is 1, and off, by default.

    dp: parts of the batch. data: how those who hold the same weights share out the training state: "plain" (all have
        all), "zero1", "zero2", "zero3", "fsdp", or "hsdp". Ranks along cp hold the same weights too, so the state is
        cut among dp x cp ranks.
    shard: for "hsdp", along dp, how many neighbours cut the state; dp / shard sets of them hold the same.
    tp, sequence_parallel: see `TensorParallelGPT`.
    pp, schedule, chunks, microbatches: see `Pipeline`. schedule: "naive", "gpipe", "one_f_one_b", "interleaved"
        (chunks of 2 or more), "zb_h1", "zb_h2", "zb_v" and "v_half" (chunks=2). microbatches: of each dp rank's part of
        the batch; with pp=1 their gradients are added up one after the other.
    cp, layout, ulysses: see `ContextParallel`.
    ep: of the dp ranks so many neighbours share the experts out (it divides dp, as in DeepSpeed-MoE and Megatron-LM).
    order: the axes, outermost first. The ranks of the last one are neighbours: tensor parallelism, which sends most.
    algorithm: of the all-reduces of "plain", of tensor parallelism, and of the loss.
    """

    dp: int = 1
    data: str = "plain"
    shard: int | None = None
    tp: int = 1
    sequence_parallel: bool = False
    pp: int = 1
    schedule: str = "one_f_one_b"
    chunks: int = 1
    microbatches: int = 1
    cp: int = 1
    layout: str = "zigzag"
    ulysses: int = 1
    ep: int = 1
    order: tuple[str, ...] = AXES
    algorithm: str = "auto"

    @property
    def size(self) -> int:
        """The ranks that it needs."""
        return self.dp * self.pp * self.cp * self.tp

    @property
    def mesh(self) -> dict[str, int]:
        """The axes of the mesh, outermost first: "dp" is three of them, copies of a cut, the cut, and experts."""
        cut = self.dp if self.shard is None else self.shard
        dp = dict(zip(DP, (self.dp // cut, cut // self.ep, self.ep), strict=True))
        sizes: dict[str, int] = {}
        for axis in self.order:
            sizes |= dp if axis == "dp" else {axis: getattr(self, axis)}
        return sizes

    def pipeline_schedule(self) -> Schedule:
        """What each rank along pp does in a step."""
        if self.schedule == "interleaved":
            return interleaved(self.pp, self.microbatches, self.chunks)
        return SCHEDULES[self.schedule](self.pp, self.microbatches)
