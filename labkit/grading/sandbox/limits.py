"""How much a submission may take. Every limit is kept outside the submission's own processes or by the kernel."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from labkit.cost.units import MB, MiB

MAX_RANKS = 32


@dataclass(frozen=True)
class Limits:
    """Limits of one call. Sizes in bytes, times in seconds.

    seconds: from the moment at which the ranks have their inputs, without those in which others had the cores. wait:
    the longest single wait for another rank, by the clock.
    memory: what a rank may map above what it was born with (it was born with PyTorch loaded). threads: of a rank,
    its first included. file: the longest file. disk: all files of a rank together, in memory. output: what all ranks
    may print. result: what one rank may return. traffic: payload of all messages; messages: their number.
    """

    seconds: float = 10.0
    wait: float = 5.0
    memory: int = 1024 * MiB
    threads: int = 32
    file: int = 16 * MB
    disk: int = 32 * MB
    output: int = 1 * MB
    result: int = 256 * MB
    traffic: int = 4000 * MB
    messages: int = 200_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) not in (int, float) or not 0 < value < 1 << 50:
                raise ValueError(f"Limits({field.name}={value!r}): needs a number above 0")

    def as_data(self) -> dict[str, Any]:
        """For the other side of the wall."""
        return asdict(self)
