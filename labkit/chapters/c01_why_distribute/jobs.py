"""What the second part of chapter 1 gives to ranks: a step that is shared, links, and steps with something wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit import Link, Network, Slow, cost
from labkit.cost.units import MB, MS
from labkit.models import GPT
from labkit.parallel import kernels
from labkit.wire import Group

LINKS = {"10 MB/s": 10 * MB, "100 MB/s": 100 * MB, "1 GB/s": 1000 * MB}
LATENCY = 0.1 * MS
SPEEDS = {"fast": (1000 * MB, 0.01 * MS), "slow": (5 * MB, 0.5 * MS)}  # bandwidth and latency of a link
FLOPS = 4e9  # of a make-believe GPU, in a second


@dataclass(frozen=True)
class Job:
    """A step that one rank computes in `compute` seconds, its gradient, and the links between ranks."""

    compute: float
    nbytes: int
    latency: float
    bandwidth: float

    def step(self, ranks: int) -> float:
        """Seconds of the step on so many ranks, by the formula, with nothing hidden."""
        messages = cost.ring_all_reduce_time(self.nbytes, ranks, self.latency, 1 / self.bandwidth)
        return cost.step_seconds(self.compute, ranks, messages)

    def network(self, ranks: int) -> Network:
        """So many machines, with a link of this job between any two."""
        return Network(nodes=ranks, ranks_per_node=1, inter=Link(self.bandwidth, self.latency))


def network(link: str, ranks: int) -> Network:
    """So many machines, with a link of that name between any two."""
    return Network(nodes=ranks, ranks_per_node=1, inter=Link(LINKS[link], LATENCY))


def job(compute_ms: float, megabytes: float, link: str) -> Job:
    """The job that the controls of the workbench describe; its gradient is whole float32 numbers."""
    return Job(compute_ms * MS, 4 * round(250_000 * megabytes), LATENCY, LINKS[link])


def on_a_small_gpu(model: GPT, group: Group) -> GPT:
    """The model, whose layers take the time on the virtual clock that a make-believe GPU would need."""
    kernels(model, group, flops=FLOPS)
    return model


def conditions(ranks: int, link: str, slow_rank: int | str) -> dict[str, Any]:
    """Options of a launch: the virtual clock, links of that speed, and a rank that computes at a third of its speed."""
    bandwidth, latency = SPEEDS[link]
    faults = [] if slow_rank == "nobody" else [Slow(int(slow_rank) % ranks, factor=3.0)]
    return {
        "clock": "virtual",
        "network": Network(nodes=ranks, ranks_per_node=1, inter=Link(bandwidth, latency)),
        "faults": faults,
    }


PATIENTS: dict[str, tuple[str, int | str]] = {  # the links of each, and the rank that is slow (-1: the last)
    "A": ("slow", 0), "B": ("fast", -1), "C": ("slow", "nobody"),
}  # fmt: skip


def illness(patient: str, ranks: int) -> dict[str, Any]:
    """Options of the launch of a run that the reader is to diagnose: slow links, a slow rank, or both."""
    link, slow_rank = PATIENTS[patient]
    return conditions(ranks, link, slow_rank)
