"""When the buckets of a data-parallel step are ready, sent and done, and how much of that the backward pass hides.

Gradients become ready one after the other, last layer first. They are packed into buckets in that order; a full bucket
is all-reduced while the backward pass goes on (Li et al. 2020, "PyTorch Distributed", section 3.2). Buckets go over the
wire one at a time, in order:

    start of bucket i = the later of: its last gradient is ready; bucket i - 1 has ended
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.cost.collectives.links import Links
from labkit.cost.collectives.registry import cost_of
from labkit.cost.refuse import not_negative, positive, whole
from labkit.cost.units import MiB

__all__ = [
    "BUCKET_BYTES",
    "Bucket",
    "DataParallelStep",
    "FIRST_BUCKET_BYTES",
    "data_parallel_step",
    "fill_buckets",
    "global_batch",
]

BUCKET_BYTES, FIRST_BUCKET_BYTES = 25 * MiB, 1 * MiB  # as in PyTorch's DistributedDataParallel


@dataclass(frozen=True)
class Bucket:
    """One bucket on the timeline of a step. Times in seconds since the backward pass began.

    gradients: positions of its gradients in the order in which they become ready.
    """

    gradients: tuple[int, ...]
    nbytes: float
    ready: float
    start: float
    end: float

    @property
    def waiting(self) -> float:
        """How long it was full before its turn came."""
        return self.start - self.ready


@dataclass(frozen=True)
class DataParallelStep:
    """A step by the model: forward pass, backward pass, and the buckets. In seconds."""

    forward: float
    backward: float
    buckets: tuple[Bucket, ...]

    @property
    def communication(self) -> float:
        """What all buckets take on the wire."""
        return sum(bucket.end - bucket.start for bucket in self.buckets)

    @property
    def exposed(self) -> float:
        """What of it goes on after the backward pass: the devices wait."""
        return max(0.0, self.buckets[-1].end - self.backward) if self.buckets else 0.0

    @property
    def hidden(self) -> float:
        """What of it goes on during the backward pass."""
        return sum(max(0.0, min(bucket.end, self.backward) - bucket.start) for bucket in self.buckets)

    @property
    def overlap(self) -> float:
        """The hidden part of the communication, 0 to 1; 1 if there is none."""
        return self.hidden / self.communication if self.communication else 1.0

    @property
    def seconds(self) -> float:
        """The step: forward, backward, and the exposed communication. The optimizer is not counted."""
        return self.forward + self.backward + self.exposed

    @property
    def seconds_without_overlap(self) -> float:
        """The same step if all buckets were sent after the backward pass."""
        return self.forward + self.backward + self.communication


def fill_buckets(
    nbytes: Sequence[int], bucket_bytes: float = BUCKET_BYTES, first_bucket_bytes: float = FIRST_BUCKET_BYTES
) -> list[tuple[int, ...]]:
    """Which gradients go into which bucket. nbytes: of each gradient, in the order in which they become ready.

    A bucket is closed once it holds at least its size, so it can be larger than that by almost one gradient; the last
    one holds what is left. The first is small, so that the wire is busy soon.
    """
    not_negative(**{f"nbytes[{i}]": size for i, size in enumerate(nbytes)})
    positive(bucket_bytes=bucket_bytes, first_bucket_bytes=first_bucket_bytes)
    buckets: list[tuple[int, ...]] = []
    inside: list[int] = []
    for index in range(len(nbytes)):
        inside.append(index)
        if sum(nbytes[i] for i in inside) >= (bucket_bytes if buckets else first_bucket_bytes):
            buckets.append(tuple(inside))
            inside = []
    return [*buckets, tuple(inside)] if inside else buckets


def data_parallel_step(
    backward: Sequence[float],
    nbytes: Sequence[int],
    size: int,
    links: Links,
    *,
    forward: float = 0.0,
    bucket_bytes: float = BUCKET_BYTES,
    first_bucket_bytes: float = FIRST_BUCKET_BYTES,
    algorithm: str = "ring",
) -> DataParallelStep:
    """The timeline of one step on `size` ranks.

    backward: seconds until each gradient is ready, counted from the one before; a layer with two parameters is (its
    seconds, 0). nbytes: of each gradient. Both in the order in which gradients become ready, last layer first.
    links: of the all-reduce by `algorithm`. Every rank is taken to be equally fast.
    """
    whole(size=size)
    not_negative(forward=forward, **{f"backward[{i}]": seconds for i, seconds in enumerate(backward)})
    if len(backward) != len(nbytes):
        raise ValueError(f"a time and a size for each gradient: backward has {len(backward)}, nbytes {len(nbytes)}")
    ready = [sum(backward[: i + 1]) for i in range(len(backward))]
    all_reduce = cost_of("all_reduce", algorithm)
    timeline: list[Bucket] = []
    for gradients in fill_buckets(nbytes, bucket_bytes, first_bucket_bytes):
        full = sum(nbytes[i] for i in gradients)
        last_ready = ready[gradients[-1]]
        start = max(last_ready, timeline[-1].end) if timeline else last_ready
        end = start + all_reduce.seconds_on(full, size, links)
        timeline.append(Bucket(gradients, full, last_ready, start, end))
    return DataParallelStep(forward, ready[-1] if ready else 0.0, tuple(timeline))


def global_batch(per_rank: int, size: int, accumulation: int = 1) -> int:
    """Samples that one update of the weights sees: per_rank * size * accumulation. 16 on 8 ranks, 4 times: 512."""
    whole(per_rank=per_rank, size=size, accumulation=accumulation)
    return per_rank * size * accumulation
