"""Four models on the ranks of a fleet, simulated and measured on the virtual clock; a policy that changes layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import labkit
from labkit import Link, Network
from labkit.align.fleet import PPO, Fleet, ppo_step
from labkit.align.reshard import Reshard, training_stage
from labkit.align.rollout import Sample, Sampling
from labkit.cost import ChunkLoad, Placement, WorkSeconds, simulate_placement
from labkit.models import GPT, GPTConfig, ScalarGPT
from labkit.models.threads import one_thread

CONFIG = GPTConfig(vocab=32, context=40, layers=1, heads=2, width=32)
PROMPTS = {i: tuple((3 * i + j) % 32 for j in range(8)) for i in range(32)}
HOW, PPO_STEP = Sampling(24, end=5), PPO(chunk=2)
SECONDS = WorkSeconds(decode=2e-3, read=5e-5, train=2e-4, host_bandwidth=2e7)
LINK = Link(1e9, 20e-6)


def placements(ranks: int) -> list[dict[str, Any]]:
    """A step of PPO on the same ranks: utilization as simulated and as measured, and what moves."""
    quarter = max(1, ranks // 4)
    ways = {
        "colocated": Placement.colocated(ranks), "time-multiplexed": Placement.colocated(ranks, offload=True),
        "separate": Placement.separate(ranks - 3 * quarter, quarter, quarter, quarter),
        "separate, one reader each": Placement.separate(ranks - 3, 1, 1, 1),
    }  # fmt: skip
    return [{"": name} | _step(placement) for name, placement in ways.items()]


def _step(placement: Placement) -> dict[str, Any]:
    """The second step, so that Adam has its moments."""
    network = Network(placement.size, 1, inter=LINK)
    run = labkit.launch(_steps, placement.size, placement, clock="virtual", transport="local", network=network)
    samples = {s.sequence: s for own, *_ in run.results for s in own}
    ids = list(PROMPTS)
    loads = [_load([samples[i] for i in ids[n : n + PPO_STEP.chunk]]) for n in range(0, len(ids), PPO_STEP.chunk)]
    sizes = {role: n for _, held, *_ in run.results for role, n in held.items()}
    simulated = simulate_placement(
        placement, loads, SECONDS, epochs=PPO_STEP.epochs, minibatches=PPO_STEP.minibatches, weights=sizes
    )
    taken = run.trace.duration - run.trace.during_step(1)[0]
    spans = {name: sum(s.end - s.start for s in run.trace.spans(name) if s.step == 1) for name in ("compute", "swap")}
    measured = (spans["compute"] - spans["swap"]) / (placement.size * taken)
    sent = sum(m.nbytes for m in run.trace.sends if m.step == 1 and m.collective < 0)
    return {
        "ms": 1e3 * taken, "utilization": measured, "simulated": simulated.utilization,
        "simulated / measured": simulated.utilization / measured, "kB sent": sent / 1e3,
        "kB swapped a rank": max(swapped for *_, swapped, _ in run.results) / 1e3,
        "kB on a device": max(peak for *_, peak in run.results) / 1e3,
    }  # fmt: skip


def _steps(group: labkit.Group, placement: Placement) -> tuple[list[Sample], dict[str, int], int, int]:
    """Of this rank: samples, bytes of its models, bytes swapped in the second step, and the most on its device."""
    with one_thread():
        fleet = Fleet(placement, group, _make, seconds=SECONDS)
        sizes = {role: sum(p.nbytes for p in _make(role).parameters()) for role in fleet.models}
        samples, swapped = list[Sample](), 0
        for n in range(2):
            group.step(n)
            before = sum(fleet.swap.copies) if fleet.swap else 0
            samples = ppo_step(fleet, PROMPTS, replace(HOW, seed=n), PPO_STEP).samples
            swapped = (sum(fleet.swap.copies) if fleet.swap else 0) - before
    trained = sum(2 * sizes[role] for role in fleet.learners)
    return samples, sizes, swapped, fleet.swap.peak if fleet.swap else sum(sizes.values()) + trained


def _make(role: str) -> GPT:
    return ScalarGPT(CONFIG, 1) if role in ("reward", "critic") else GPT(CONFIG, 2)


def _load(samples: list[Sample]) -> ChunkLoad:
    responses = sum(len(s.tokens) for s in samples)
    whole = responses + sum(len(s.prompt) for s in samples)
    return ChunkLoad(len(samples), whole, responses, max(len(s.tokens) for s in samples))


def resharding() -> list[dict[str, Any]]:
    """From tensor and pipeline parallelism to tensor parallelism: bytes, and time over that of the least bytes."""
    rows = []
    for tensor, pipeline, generation in ((1, 2, 2), (2, 2, 4), (2, 2, 2), (1, 4, 4), (2, 4, 8)):
        ranks = tensor * pipeline
        network = Network(ranks, 1, inter=LINK)
        run = labkit.launch(
            _reshard, ranks, tensor, pipeline, generation, clock="virtual", transport="local", network=network
        )
        moves = [m for m in run.trace.sends if m.step == 1]
        received = max(n for n, _ in run.results)
        sent = max(sum(m.nbytes for m in moves if m.src // tensor == s) / tensor for s in range(pipeline))
        least = max(received, sent) / LINK.bandwidth
        rows.append({
            "train": f"TP {tensor} PP {pipeline}", "generate": f"TP {generation}", "MB received": received / 1e6,
            "ms": 1e3 * max(t for _, t in run.results), "ms of the least bytes": 1e3 * least,
            "time / least": max(t for _, t in run.results) / least,
        })  # fmt: skip
    return rows


def _reshard(group: labkit.Group, tensor: int, pipeline: int, generation: int) -> tuple[int, float]:
    """Bytes that this rank received, and seconds of the virtual clock."""
    config = GPTConfig(vocab=128, context=40, layers=4, heads=8, width=128)
    with one_thread(), torch.no_grad():
        reshard = Reshard(training_stage(config, group, tensor, pipeline), group, tensor, pipeline, generation)
        group.step(1)
        begin = group.context.clock_here().now()
        reshard()
        taken = group.context.clock_here().now() - begin
        group.step(2)
    return reshard.received, taken / 1e9
