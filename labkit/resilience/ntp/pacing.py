"""Real steps of replicas of different width, whose kernels take as long as their shards: to check `cost.Cluster`.

Ranks, layouts, all-reduces and resharding are those of training. Only the kernels are stand-ins: a rank computes for
each head and each feed-forward column that it holds. On the virtual clock a step then takes exactly what the layouts
make it take, and `network` adds what the messages take, which the model of the cluster leaves out. On the wall clock
the stand-ins sleep, and what Python and real messages take comes on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import torch
from torch import nn

import labkit
from labkit.models.gpt import GPTConfig
from labkit.parallel.tensor.gpt import TensorParallelGPT
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group
from labkit.wire.network import Network

from .replicas import Replicas
from .sync import NonuniformSync


@dataclass(frozen=True)
class Paced:
    """seconds: of a step, from the first rank's begin to the last one's end. samples: that it trains."""

    seconds: float
    samples: int

    @property
    def throughput(self) -> float:
        """Samples a second."""
        return self.samples / self.seconds


def paced_step(
    config: GPTConfig, widths: Sequence[int], batches: Sequence[int], full: int, *, attention: float = 0.4,
    sample: float = 1.0, speeds: Sequence[float] | None = None, network: Network | None = None,
    clock: Literal["virtual", "real"] = "virtual", steps: int = 1,
) -> Paced:  # fmt: skip
    """A training step of replicas of `widths` ranks, each with its own local batch; the median of `steps`.

    full: the width at which one sample takes `sample` seconds of kernels, of which `attention` is cut by heads and the
    rest by feed-forward columns. speeds: of the GPUs of each replica, above 1 with more power. Raises RefusedError
    unless there is a batch, and a speed, for each width, and at least one step.
    """
    speeds = [1.0] * len(widths) if speeds is None else speeds
    if not len(batches) == len(widths) == len(speeds):
        raise RefusedError(
            f"widths {list(widths)} need a batch and a speed each, not {list(batches)} and {list(speeds)}"
        )
    if type(steps) is not int or steps < 1:
        raise RefusedError(f"steps={steps!r}: one or more")
    run = labkit.launch(
        _step, sum(widths), config, tuple(widths), tuple(batches), full, attention, sample, tuple(speeds), steps,
        clock=clock, transport="local", network=network,
    )  # fmt: skip
    seconds = []
    for n in range(steps):
        spans = run.trace.spans(f"step {n}")
        seconds.append(max(s.end for s in spans) - min(s.start for s in spans))
    return Paced(median(seconds), sum(batches))


def _step(
    group: Group, config: GPTConfig, widths: tuple[int, ...], batches: tuple[int, ...], full: int, attention: float,
    sample: float, speeds: tuple[float, ...], steps: int,
) -> None:  # fmt: skip
    replicas = Replicas.of(*widths)
    replica, _ = replicas.place(group.rank)
    inner = group.subgroup(list(replicas.members[replica]))
    model = TensorParallelGPT(config, inner, placement=replicas.computes(config, replica))
    _stand_in(group, inner, model, replicas, replica, full, attention, sample * batches[replica] / speeds[replica])
    sync = NonuniformSync(model, replicas, group, share=batches[replica] / sum(batches))
    tokens = torch.arange(batches[replica] * (config.context + 1)).view(batches[replica], -1) % config.vocab
    for n in range(steps):
        labkit.collectives.barrier(group)  # connections are made before the clock counts
        with group.span(f"step {n}"):
            model(tokens[:, :-1], tokens[:, 1:]).backward()
    sync.remove()


def _stand_in(
    group: Group, inner: Group, model: Any, replicas: Replicas, replica: int, full: int, attention: float,
    seconds: float,
) -> None:  # fmt: skip
    """Before each half of a block the rank computes for the shards of it that it holds."""
    config: GPTConfig = model.config
    kinds = {
        "attention": (config.heads, attention),
        "feed_forward": (config.width * config.expansion, 1 - attention),
    }
    for block in model.blocks:
        for name, (count, part) in kinds.items():
            held = len(replicas.map_of(replica, count).compute[inner.rank])
            takes = seconds * part * held / -(-count // full) / len(model.blocks)
            getattr(block, name).register_forward_pre_hook(_computing(group, takes))


def _computing(group: Group, seconds: float) -> Any:
    def hook(module: nn.Module, inputs: Any) -> None:
        group.compute(seconds)

    return hook
