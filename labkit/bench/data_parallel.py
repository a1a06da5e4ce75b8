"""`labkit bench data-parallel`: a training step of labkit's strategies against PyTorch's own, on the same ranks.

One world for each cell trains two equal models in turn, labkit's and PyTorch's; the slowest rank's time counts. Peak
memory is that of a world of its own for each of the two, since one process has only one high-water mark.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import labkit
from labkit import collectives
from labkit.data import batches, text
from labkit.models import GPT, GPTConfig, next_token_loss

from .ratios import geometric_mean, ratio, save, self_ratio, table

CONFIG = GPTConfig(context=64, layers=12, heads=8, width=256)  # 9.6 million parameters
TARGETS = {"DDP": 1.05, "ZeRO-1": 1.10, "FSDP": 1.10, "PowerSGD": 1.10}  # labkit's time over PyTorch's, at most
MIB = 1 << 20
RANK = 4  # of PowerSGD's products
# One bucket: PyTorch's hook begins a second all-reduce as soon as the first is over on its rank, and over gloo those of
# several buckets cross.
ONE_BUCKET = 100  # MiB

Step = Callable[[torch.Tensor, torch.Tensor], None]


def main(argv: list[str] | None = None) -> int:
    """Measure and print; returns 0."""
    parser = argparse.ArgumentParser(prog="labkit bench data-parallel", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--batches", default="1,4", help="sequences a rank, of 64 bytes each")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--strategies", default=",".join(TARGETS))
    parser.add_argument("--transport", default="local", help="what carries labkit's messages; PyTorch's go over gloo")
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    ranks, sizes = [[int(v) for v in words.split(",")] for words in (options.ranks, options.batches)]
    print(f"a GPT of {CONFIG.num_parameters / 1e6:.1f} million parameters; labkit over {options.transport}")
    result: dict[str, Any] = {}
    for name in options.strategies.split(","):
        rows = [cell(name, n, batch, options.pairs, options.transport) for n in ranks for batch in sizes]
        mean = geometric_mean([row["time ratio"] for row in rows])
        noise = geometric_mean([row["A/A"] for row in rows])
        memory = geometric_mean([row["memory ratio"] for row in rows])
        print(f"\n{name}, labkit's over PyTorch's\n{table(rows)}")
        print(f"geometric mean: time {mean:.2f} (target at most {TARGETS[name]:g}; A/A {noise:.2f}), "
              f"peak memory {memory:.2f} (target at most 1)", flush=True)  # fmt: skip
        result[name] = {"rows": rows, "mean": mean, "A/A": noise, "memory": memory}
    save(options.json, result)
    return 0


def cell(name: str, size: int, batch: int, pairs: int, transport: str) -> dict[str, Any]:
    """One row: times of both, and their peaks."""
    options: dict[str, Any] = {"transport": transport, "timeout": 300}
    times = labkit.launch(compare, size, name, batch, pairs, **options).results
    ours, theirs = ([max(r[k][i] for r in times) for i in range(pairs)] for k in (0, 1))
    peaks = [
        max(labkit.launch(train, size, name, which, batch, memory="peak", **options).trace.peak_bytes())
        for which in ("labkit", "PyTorch")
    ]
    return {
        "ranks": size, "batch": batch, "labkit ms": 1e3 * statistics.median(ours),
        "PyTorch ms": 1e3 * statistics.median(theirs), "time ratio": ratio(ours, theirs), "A/A": self_ratio(theirs),
        "labkit MiB": peaks[0] / MIB, "PyTorch MiB": peaks[1] / MIB, "memory ratio": peaks[0] / peaks[1],
    }  # fmt: skip


def compare(group: labkit.Group, name: str, batch: int, pairs: int) -> tuple[list[float], list[float]]:
    """Seconds of a step of labkit's and of PyTorch's, `pairs` times in turn (on this rank)."""
    data = batches(text().train, batch, CONFIG.context, rank=group.rank, world=group.size)
    steps = MAKERS[name, "labkit"](group), MAKERS[name, "PyTorch"](group)
    times: tuple[list[float], list[float]] = [], []
    for i in range(-2, pairs):  # two steps to warm up: buckets are built anew after the first
        inputs, targets = next(data)
        for which in (0, 1) if i % 2 else (1, 0):
            collectives.barrier(group, algorithm="dissemination")
            begin = time.perf_counter()
            steps[which](inputs, targets)
            if i >= 0:
                times[which].append(time.perf_counter() - begin)
    return times


def train(group: labkit.Group, name: str, which: str, batch: int) -> None:
    """A few steps of one of the two, for its peak of memory."""
    data = batches(text().train, batch, CONFIG.context, rank=group.rank, world=group.size)
    step = MAKERS[name, which](group)
    for _ in range(4):
        step(*next(data))


def loop(model: nn.Module, optimizer: Any) -> Step:
    """The step that everybody writes. optimizer: what has `zero_grad` and `step`; ZeRO is model and optimizer."""

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> None:
        optimizer.zero_grad()
        next_token_loss(model(inputs), targets).backward()
        optimizer.step()

    return step


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-4)


def labkit_ddp(group: labkit.Group) -> Step:
    from labkit.parallel.data import DataParallel

    model = DataParallel(GPT(CONFIG), group)
    return loop(model, adamw(model.parameters()))


def torch_ddp(group: labkit.Group) -> Step:
    model = nn.parallel.DistributedDataParallel(GPT(CONFIG), gradient_as_bucket_view=True)
    return loop(model, adamw(model.parameters()))


def labkit_power_sgd(group: labkit.Group) -> Step:
    from labkit.optim.compression import PowerSGD
    from labkit.parallel.data import DataParallel

    size = ONE_BUCKET * MIB
    model = DataParallel(GPT(CONFIG), group, hook=PowerSGD(RANK), bucket_bytes=size, first_bucket_bytes=size)
    return loop(model, adamw(model.parameters()))


def torch_power_sgd(group: labkit.Group) -> Step:
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    model = nn.parallel.DistributedDataParallel(GPT(CONFIG), gradient_as_bucket_view=True, bucket_cap_mb=ONE_BUCKET)
    state = powerSGD_hook.PowerSGDState(None, RANK, start_powerSGD_iter=2, min_compression_rate=1)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return loop(model, adamw(model.parameters()))


def labkit_zero(group: labkit.Group) -> Step:
    from labkit.parallel.zero import AdamW, ZeRO1

    model = ZeRO1(GPT(CONFIG), group, AdamW(lr=3e-4), precision="single")
    return loop(model, model)


def labkit_fsdp(group: labkit.Group) -> Step:
    from labkit.parallel.fsdp.fully_shard import FullyShard

    model = FullyShard(GPT(CONFIG), group)
    return loop(model, adamw(model.parameters()))


def torch_zero(group: labkit.Group) -> Step:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(GPT(CONFIG), gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=3e-4)
    return loop(model, optimizer)


def torch_fsdp(group: labkit.Group) -> Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = GPT(CONFIG)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return loop(model, adamw(model.parameters()))


MAKERS: dict[tuple[str, str], Callable[[labkit.Group], Step]] = {
    ("DDP", "labkit"): labkit_ddp, ("DDP", "PyTorch"): torch_ddp,
    ("ZeRO-1", "labkit"): labkit_zero, ("ZeRO-1", "PyTorch"): torch_zero,
    ("FSDP", "labkit"): labkit_fsdp, ("FSDP", "PyTorch"): torch_fsdp,
    ("PowerSGD", "labkit"): labkit_power_sgd, ("PowerSGD", "PyTorch"): torch_power_sgd,
}  # fmt: skip
