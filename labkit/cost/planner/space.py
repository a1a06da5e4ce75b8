"""Which plans are looked at: all factorisations of the GPUs, and what the software at hand can do with each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from labkit.cost.planner.cluster import Cluster
from labkit.cost.planner.model import Model
from labkit.cost.planner.plan import why_not_cut
from labkit.cost.refuse import whole

__all__ = ["Space", "cuts"]


@dataclass(frozen=True)
class Space:
    """What may be chosen.

    tensor_limit: the widest tensor parallelism, twice the scale-up domain if 0. shortest: tokens of a sequence that a
    context rank has at least. Schedules that another one beats in time and memory are not looked at: GPipe (1F1B), and
    "naive". Nor is plain data parallelism where ZeRO-1 may be chosen, which sends the same and holds less.
    """

    microbatch: tuple[int, ...] = (1, 2, 4, 8)
    schedules: tuple[str, ...] = ("one_f_one_b", "interleaved", "zb_h1", "zb_h2")
    sharding: tuple[str, ...] = ("plain", "zero1", "zero2", "zero3", "hsdp")
    recompute: tuple[str, ...] = ("all", "selective", "full")
    sequence_parallel: bool = True
    gradient_bytes: int = 4
    tensor_limit: int = 0
    context_limit: int = 1024
    pipeline_limit: int = 1024
    shortest: int = 512

    def kinds(self, model: Model, cluster: Cluster, cut: tuple[int, int, int, int, int]) -> list[tuple[str, int]]:
        """(sharding, shard) worth looking at for a cut. HSDP cuts the state among the holders in one domain."""
        t, _, c, e, d = cut
        holders, found = d * e * c, []
        for kind in self.sharding:
            if kind == "hsdp":
                shard = cluster.domain // t
                if 1 < shard < holders and holders % shard == 0:
                    found.append((kind, shard))
            elif holders == 1:
                found += [(kind, 0)] if not found else []
            elif kind != "plain" or "zero1" not in self.sharding:
                found.append((kind, 0))
        return found

    def runs(self, model: Model, pipeline: int, m: int) -> list[tuple[str, int]]:
        """(schedule, chunks) that go with so many stages and microbatches."""
        if pipeline == 1:
            return [("one_f_one_b", 1)]
        found = []
        for schedule in self.schedules:
            if schedule == "interleaved":
                found += [] if m % pipeline else [(schedule, v) for v in chunk_counts(model.layers, pipeline)]
            elif schedule != "zb_h2" or m >= 2 * pipeline - 1:
                found.append((schedule, 1))
        return found


@lru_cache
def divisors(number: int) -> tuple[int, ...]:
    """All that divide it, ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


@lru_cache
def chunk_counts(layers: int, pipeline: int) -> tuple[int, ...]:
    """Chunks a rank, from 2 on, that leave at most two of the p v parts with a layer less than the others.

    Those two are the first and the last, which have the embeddings as well (Llama Team 2024, section 3.3.2).
    """
    return tuple(
        v for v in range(2, layers // pipeline + 2)
        if -(-layers // (pipeline * v)) * pipeline * v - layers <= 2
    )  # fmt: skip


def cuts(
    model: Model, cluster: Cluster, space: Space, gpus: int
) -> Iterator[tuple[tuple[int, int, int, int, int], str]]:
    """All factorisations of `gpus` within the limits, each with why the model cannot be cut so, or ""."""
    whole(gpus=gpus)
    widest = min(space.tensor_limit or 2 * cluster.domain, model.heads)
    for t in divisors(gpus):
        if t > widest:
            break
        for p in divisors(gpus // t):
            if p > min(model.layers, space.pipeline_limit):
                break
            for c in divisors(gpus // (t * p)):
                if c > space.context_limit or (c > 1 and model.sequence < c * space.shortest):
                    break
                for e in divisors(gpus // (t * p * c)):
                    if e > max(1, model.experts):
                        break
                    yield (t, p, c, e, gpus // (t * p * c * e)), why_not_cut(model, t, p, c, e)
