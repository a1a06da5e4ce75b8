"""One GPU as data: memory, peaks by dtype, watts. And the few figures that say how much of that software reaches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from labkit.cost.refuse import positive
from labkit.cost.topology.domain_job import B200_MEMORY, B200_PEAK
from labkit.cost.training.memory import GPU_MEMORY
from labkit.cost.training.roofline import H100_MEMORY, H100_PEAK
from labkit.cost.units import TB, GiB

__all__ = ["A100", "ASCEND_910C", "B200", "EFFICIENCIES", "Efficiency", "Gpu", "H100"]

FILLED = GPU_MEMORY / (80 * GiB)  # of a card's memory that a plan may fill: 80 GB of the 80 GiB of an A100 or H100
OVERLAPS = ("tensor", "context", "pipeline", "data", "shards")


@dataclass(frozen=True)
class Gpu:
    """memory: bytes. memory_bandwidth: bytes a second. peaks: (dtype, operations a second) pairs. watts: at full load.

    memory is what a plan may fill, `FILLED` of what the card has. An "80 GB" GPU has 80 GiB, 85.9 GB; the rest is a
    reserve for the driver, the buffers of the libraries, and what is lost between tensors (`reserve`).
    """

    name: str
    memory: float
    memory_bandwidth: float
    peaks: tuple[tuple[str, float], ...]
    watts: float

    def __post_init__(self) -> None:
        positive(memory=self.memory, memory_bandwidth=self.memory_bandwidth, watts=self.watts, **dict(self.peaks))

    @property
    def reserve(self) -> float:
        """Bytes of the card that no plan fills."""
        return self.memory * (1 / FILLED - 1)

    def peak(self, dtype: str = "bf16") -> float:
        """Operations a second in a dtype."""
        known = dict(self.peaks)
        if dtype not in known:
            raise ValueError(f"{self.name} has no peak for dtype={dtype!r}: choose {' or '.join(map(repr, known))}")
        return known[dtype]


# NVIDIA's data sheets (SXM, dense, without sparsity), and the numbers that the rest of the package has already.
A100 = Gpu("A100", GPU_MEMORY, 2.039 * TB, (("bf16", 312e12), ("fp32", 19.5e12)), 400)
H100 = Gpu("H100", GPU_MEMORY, H100_MEMORY, (("bf16", H100_PEAK), ("fp8", 2 * H100_PEAK), ("fp32", 67e12)), 700)
B200 = Gpu("B200", FILLED * B200_MEMORY, 8 * TB, (("bf16", B200_PEAK), ("fp8", 2 * B200_PEAK), ("fp32", 80e12)), 1000)
# Zuo et al. 2025 (arXiv 2506.12708), section 3.3.1: two dies of 376 TFLOP/s, 64 GB and 1.6 TB/s each. No watts there:
# those of an H100 are an assumption.
ASCEND_910C = Gpu("Ascend 910C", FILLED * 128e9, 3.2 * TB, (("bf16", 752e12),), 700)


@dataclass(frozen=True)
class Efficiency:
    """What software reaches on a machine, as parts of what the data sheets say, and what it overlaps.

    products: of the peak, in large matrix products. attention: of the peak, in the core of attention. memory: of the
    memory's bandwidth. inside, across: of the links' bandwidth, in a scale-up domain and outside.

    overlaps: which communication runs under computing: any of "tensor", "context", "pipeline", "data", or in place of
    the last "shards": of data parallelism only what ZeRO-3 and HSDP gather and scatter layer by layer, while all else
    is sent when the backward pass is over. How much of it is hidden then is not a choice: only what lies under the
    computing that goes on at that time.
    hierarchical: collectives over several domains are done level by level; without, as one flat ring.
    fused_attention: attention never writes its scores, and skips the masked half (Dao et al. 2022).
    """

    products: float = 0.75
    attention: float = 0.5
    memory: float = 0.8
    inside: float = 0.8
    across: float = 0.8
    overlaps: frozenset[str] = frozenset({"context", "pipeline", "data"})
    fused_attention: bool = True
    hierarchical: bool = True

    def __post_init__(self) -> None:
        for name in ("products", "attention", "memory", "inside", "across"):
            value = getattr(self, name)
            positive(**{name: value})
            if value > 1:
                raise ValueError(f"{name} must be a part of what the machine has, at most 1, not {value!r}")
        if isinstance(self.overlaps, str) or not isinstance(self.overlaps, Iterable):
            raise ValueError(f'overlaps must be a set of names such as {{"data"}}, not {self.overlaps!r}')
        wrong = sorted(set(self.overlaps) - set(OVERLAPS))
        if wrong:
            raise ValueError(f"overlaps can have {', '.join(map(repr, OVERLAPS))}, not {wrong[0]!r}")
        object.__setattr__(self, "overlaps", frozenset(self.overlaps))


# One set for each kind of machine. Only `products` is fitted, to all published runs of that machine at once
# (`published`, `calibrated`); the others are the defaults. No run on B200s or NPUs is at hand: theirs is the H100's.
EFFICIENCIES = {
    "A100": Efficiency(products=0.71, overlaps=frozenset(), fused_attention=False),
    "H100": Efficiency(products=0.6),
    "B200": Efficiency(products=0.6),
    "Ascend 910C": Efficiency(products=0.6),
}
