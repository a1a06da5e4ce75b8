"""Bytes in FP32 and FP8 of each strategy that can send both, and a step of data parallelism over a slow link."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from statistics import mean
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import labkit
from labkit import Link, Network, cost
from labkit.data import batches, text
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.models.moe import MoE, MoEConfig
from labkit.optim.precision import Codec, QuantizedAllReduce, Wire
from labkit.parallel import DataParallel, ExpertParallel, FullyShard, Pipeline, bf16_hook, kernels
from labkit.parallel.pipeline import gpt_stages, one_f_one_b

CONFIG, RATE, LAST = GPTConfig(width=64, layers=2), 3e-3, 10
BUCKET = 100_000
Bytes = tuple[float, float]  # as sent in FP8, and by formula


def traffic(ranks: int) -> list[dict[str, Any]]:
    """kB of rank 0 in a step, in FP32 and in FP8, and the formula of the latter."""
    rows = []
    for name, run in {"gradients": _gradients, "FSDP": _fsdp, "experts": _experts, "pipeline": _pipeline}.items():
        (whole, _), (sent, formula) = run(ranks, None), run(ranks, Codec("E4M3", 128))
        rows.append(
            {"": name, "FP32": whole / 1e3, "FP8": sent / 1e3, "formula": formula / 1e3, "FP8 / FP32": sent / whole}
        )
    return rows


def _tokens(group: labkit.Group) -> tuple[Tensor, Tensor]:
    return next(iter(batches(text().train, 8, CONFIG.context, 0, group.rank, group.size)))


def _sent(work: Callable[[labkit.Group], Any], ranks: int, apart: bool = False) -> tuple[int, Any]:
    """(bytes of rank 0 while its step is 1, what it returned). apart: without collectives."""
    run = labkit.launch(work, ranks, transport="local")
    mine = [m for m in run.trace.sends if m.src == 0 and m.step == 1 and not (apart and m.collective >= 0)]
    return sum(m.nbytes for m in mine), run.results[0]


def _gradients(ranks: int, codec: Codec | None) -> Bytes:
    def work(group: labkit.Group) -> None:
        hook = None if codec is None else QuantizedAllReduce(codec)
        model = DataParallel(GPT(CONFIG), group, hook=hook, first_bucket_bytes=2**30, rebuild=False, algorithm="ring")
        inputs, targets = _tokens(group)
        group.step(1)
        next_token_loss(model(inputs), targets).backward()
        group.step(0)

    return _sent(work, ranks)[0], cost.coded_all_reduce_bytes_by_rank(CONFIG.num_parameters, ranks)[0]


def _fsdp(ranks: int, codec: Codec | None) -> Bytes:
    def work(group: labkit.Group) -> list[int]:
        model = FullyShard(GPT(CONFIG), group, param_wire=codec)
        inputs, targets = _tokens(group)
        group.step(1)
        next_token_loss(model(inputs), targets).backward()
        group.step(0)
        return [f.flat.numel for f in model.flat_params]

    sent, numels = _sent(work, ranks)
    scatter = cost.zero_bytes_per_step_by_rank(numels, ranks, 3, 4)[0] / 3  # a third of a step, if shards are even
    return sent, 2 * cost.coded_all_gather_bytes_by_rank(numels, ranks)[0] + scatter


def _experts(ranks: int, codec: Codec | None) -> Bytes:
    config, width = MoEConfig(2 * ranks, 2), 256

    def work(group: labkit.Group) -> list[int]:
        torch.manual_seed(0)
        layer = MoE(width, config)
        ExpertParallel(group, wire=None if codec is None else Wire(codec, codec)).into(layer)
        x = torch.randn(128, width, generator=torch.Generator().manual_seed(group.rank)).requires_grad_()
        group.step(1)
        layer(x).sum().backward()
        group.step(0)
        assert layer.routing is not None
        counts: list[int] = (
            F.one_hot(layer.routing.experts_nk, config.experts).sum((0, 1)).view(ranks, 2).sum(1).tolist()
        )
        return counts

    run = labkit.launch(work, ranks, transport="local")
    sent = sum(m.nbytes for m in run.trace.sends if m.src == 0 and m.step == 1)
    formula = cost.coded_dispatch_bytes_by_rank(run.results, width, config.experts, 128, passes=2)[0]
    return sent, formula + cost.routing_bytes(ranks, config.experts, 2)


def _pipeline(ranks: int, codec: Codec | None) -> Bytes:
    schedule, config = one_f_one_b(ranks, 8), GPTConfig(width=256, layers=ranks, tied=False)

    def work(group: labkit.Group) -> None:
        wire = None if codec is None else Wire(codec, codec)
        pipeline = Pipeline(gpt_stages(config, schedule, group), group, next_token_loss, wire=wire)
        group.step(1)
        pipeline.execute(schedule, *next(iter(batches(text().train, 8, config.context, 0))))
        group.step(0)

    rows = config.context * cost.pipeline_messages_by_rank(ranks, 8)[0]  # a sequence is a microbatch
    return _sent(work, ranks, apart=True)[0], rows * cost.coded_bytes(config.width)


def by_hook(ranks: int, steps: int, bandwidth: float, computing: float) -> list[dict[str, Any]]:
    """Hooks of `DataParallel`: MB that rank 0 sends in a step, its time in ms and over FP32's, and the last loss."""
    rows: list[dict[str, Any]] = []
    each = partial(cost.coded_all_reduce_bytes_by_rank, size=ranks)
    ring = partial(cost.ring_all_reduce_bytes_by_rank, size=ranks)
    ways: dict[str, tuple[Any, Callable[[int], list[int]]]] = {
        "FP32": (None, lambda n: ring(n, 4)),
        "BF16, summed in BF16": (partial(bf16_hook, algorithm="ring"), lambda n: ring(n, 2)),
        "BF16, summed in FP32": (QuantizedAllReduce(Codec("BF16")), lambda n: each(n, bits=16, scale_bytes=0)),
        "E4M3, a scale for 128": (QuantizedAllReduce(), each),
        "E5M2, a scale for a part": (QuantizedAllReduce(Codec("E5M2", "row")), lambda n: each(n, per="row")),
    }
    for name, (hook, formula) in ways.items():
        took, loss, sent, numels = _linked(hook, ranks, steps, bandwidth, computing)
        rows.append({"": name, "MB": sent / 1e6, "formula": sum(formula(n)[0] for n in numels) / 1e6, "ms": 1e3 * took})
        rows[-1] |= {"ms / FP32's": 1e3 * took / rows[0]["ms"], "loss": loss}
        rows[-1] |= {"loss / FP32's": loss / rows[0]["loss"]}
    return rows


def _linked(
    hook: Any, ranks: int, steps: int, bandwidth: float, computing: float
) -> tuple[float, float, float, Sequence[int]]:
    """(seconds of a step, the mean of the last losses, bytes of rank 0 in a step, numbers in each bucket)."""

    def rank(group: labkit.Group) -> tuple[list[float], list[float], list[int]]:
        model = GPT(CONFIG, 0)
        linear = {name: m.weight.numel() for name, m in model.named_modules() if isinstance(m, nn.Linear)}
        share = computing / 3 / sum(linear.values())
        kernels(model, group, {name: (n * share, 2 * n * share) for name, n in linear.items()})
        wrapped = DataParallel(
            model, group, hook=hook, bucket_bytes=BUCKET, first_bucket_bytes=BUCKET, algorithm="ring"
        )
        adam, times, losses = torch.optim.AdamW(model.parameters(), lr=RATE), [], []
        data = batches(text().train, 8, CONFIG.context, 0, group.rank, group.size)
        for number, (inputs, targets) in enumerate(islice(data, steps), 1):
            group.step(number)
            adam.zero_grad()
            loss = next_token_loss(wrapped(inputs), targets)
            loss.backward()
            adam.step()
            times.append(group.context.clock_here().now() / 1e9)
            losses.append(loss.item())
        group.step(0)
        named = dict(model.named_parameters())
        return times, losses, [sum(named[name].numel() for name in bucket.names) for bucket in wrapped.buckets]

    network = Network(nodes=ranks, ranks_per_node=1, inter=Link(bandwidth, 50e-6))
    run = labkit.launch(rank, ranks, clock="virtual", network=network)
    ends = [max(step) for step in zip(*(times for times, _, _ in run.results), strict=True)]
    sent = sum(m.nbytes for m in run.trace.sends if m.src == 0 and m.step > 1)
    losses = [loss for _, by_step, _ in run.results for loss in by_step[-LAST:]]
    return (ends[-1] - ends[0]) / (steps - 1), mean(losses), sent / (steps - 1), run.results[0][2]
