"""`labkit bench ntp`: what replicas of different width cost the whole one, on emulated links and the virtual clock.

Real processes exchange the real gradients of a small GPT; kernels and links take the time they are given, so the
numbers are the same in every run.

reshard: the backward of a replica of `--width` ranks beside one that has lost some, over the same beside a whole one;
    by the ratio of communication to computation, as figure 8 of the NTP paper (at most 4 percent slower there).
naive: the sum of the gradients with a shard map against the one without, between stretches of different length.
pace: with --wall, the model of a cluster beside steps on the wall clock, which differ from run to run (`ntp_pace.py`).
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

import labkit
from labkit.models import GPTConfig
from labkit.parallel import TensorParallelGPT, kernels

from .ntp_pace import paces
from .ratios import save, table

SLOWER = 0.04  # figure 8 of the paper: the largest slowdown of a backward
FASTER = 1.5  # of a sum with a shard map, against the one without
TOKENS = 64
BACKWARD = 0.04  # seconds of a backward's kernels
INSIDE = 12.0  # how much faster links are inside of a replica: 300 GB/s of NVLink against 25 GB/s of a network card


def main(argv: list[str] | None = None) -> int:
    """Measure and print; returns 0."""
    parser = argparse.ArgumentParser(prog="labkit bench ntp", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--width", type=int, default=8, help="ranks of a whole replica (default 8)")
    parser.add_argument("--lost", type=_numbers, default=[1, 2, 4], help="ranks that the other one has lost")
    parser.add_argument("--ratios", type=_floats, default=[0.008, 0.016, 0.032, 0.064],
                        help="seconds of a rank's shards on a link, over those of its backward")  # fmt: skip
    parser.add_argument(
        "--latency", type=float, default=5e-6, help="seconds, inside of a replica; between them 3 times"
    )
    parser.add_argument("--wall", action="store_true", help="and the model of a cluster on the wall clock")
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    rows = [reshard(options.width, lost, ratio, options.latency) for lost in options.lost for ratio in options.ratios]
    print("backward of the whole replica beside a narrow one, over that beside a whole one (virtual clock)")
    print(table(rows))
    stated = [row for row in rows if row["ratio"] <= 0.032]
    worst = max((row["backward slower"] for row in stated), default=0.0)
    print(f"at the paper's ratios, up to 3.2 %: at most {worst:.2%} slower (target {SLOWER:.0%})")
    against = [naive(options.width, lost, options.latency) for lost in options.lost]
    print("\nthe sum of all gradients, without a backward (virtual clock)")
    print(table(against))
    print(f"a shard map takes {min(row['naive / map'] for row in against):.2f} to "
          f"{max(row['naive / map'] for row in against):.2f} times less time (target {FASTER})")  # fmt: skip
    result: dict[str, Any] = {"reshard": rows, "naive": against}
    if options.wall:
        result["pace"] = [row for full, lost in ((2, 1), (4, 1), (8, 1)) for row in paces(full, lost)]
        print("\na step over that of two whole replicas: the model of a cluster, and measured (wall clock)")
        print(table(result["pace"]))
    save(options.json, result)
    return 0


def reshard(width: int, lost: int, ratio: float, latency: float) -> dict[str, Any]:
    """One point of the figure. ratio: the seconds that a rank's shards take on a link, over those of its backward."""
    whole = _backward(width, 0, ratio, latency)
    narrow = _backward(width, lost, ratio, latency)
    return {"width": width, "other": width - lost, "ratio": ratio, "backward ms": whole["backward"] * 1e3,
            "backward slower": narrow["backward"] / whole["backward"] - 1, "step ms": whole["step"] * 1e3,
            "step slower": narrow["step"] / whole["step"] - 1}  # fmt: skip


def naive(width: int, lost: int, latency: float) -> dict[str, Any]:
    """Seconds of the sum by a shard map, and without one, a message for each parameter and pair or for each pair."""
    ways = {way: _sum(width, lost, latency, way) for way in ("map", "naive", "joined")}
    return {"width": width, "other": width - lost, **{f"{way} ms": t * 1e3 for way, t in ways.items()},
            "naive / map": ways["naive"] / ways["map"], "joined / map": ways["joined"] / ways["map"]}  # fmt: skip


def model_for(width: int, lost: int) -> GPTConfig:
    """Heads, columns and ids that both widths divide, so that the naive way can cut them evenly."""
    heads = width * max(1, width - lost)
    return GPTConfig(vocab=heads, context=TOKENS, layers=3, heads=heads, width=2 * heads)


def _world(config: GPTConfig, width: int, ratio: float, latency: float) -> tuple[labkit.Network, float]:
    """Links and the operations a second at which a backward takes BACKWARD seconds and the ratio is `ratio`."""
    of_layers = config.layers * 12 * config.width**2 + config.vocab * config.width
    flops = 4 * TOKENS * of_layers / width / BACKWARD
    bandwidth = 4 * of_layers / width / (ratio * BACKWARD)
    inside = labkit.Link(bandwidth=bandwidth, latency=latency)
    return labkit.Network(2, width, intra=inside, inter=labkit.Link(bandwidth / INSIDE, 3 * latency)), flops


def _backward(width: int, lost: int, ratio: float, latency: float) -> dict[str, float]:
    from labkit.resilience.ntp import NonuniformSync, Replicas

    config = GPTConfig(vocab=64, context=TOKENS, layers=3, heads=8 * width, width=16 * width)
    network, flops = _world(config, width, ratio, latency)
    replicas = Replicas((tuple(range(width)), tuple(range(width, 2 * width - lost))))

    def work(world: Any) -> None:
        if world.rank not in replicas.ranks:
            return
        group = world.subgroup(replicas.ranks)
        replica, _ = replicas.place(world.rank)
        inner = group.subgroup([group.global_ranks.index(r) for r in replicas.members[replica]])
        model = TensorParallelGPT(config, inner, placement=replicas.computes(config, replica))
        sync = NonuniformSync(model, replicas, group, share=0.5, bucket_bytes=1 << 16)  # noqa: F841  held while it works
        # The narrow replica trains fewer examples, so that it is as fast: what it computes is not what is measured.
        speed = flops * width / replicas.widths[replica]
        tokens = torch.zeros(1, TOKENS, dtype=torch.int64)
        with kernels(model, world, flops=speed):
            for step in range(2):
                labkit.collectives.barrier(group)
                with world.span(f"step {step}"):
                    loss = model(tokens, tokens)
                    with world.span(f"backward {step}"):
                        loss.backward()

    trace = labkit.launch(work, 2 * width, transport="local", clock="virtual", network=network, timeout=60).trace
    step = max(s.end - s.start for s in trace.spans("step 1") if s.rank < width)
    begun = {s.rank: s.start for s in trace.spans("backward 1") if s.rank < width}
    # Until the last gradient is there and its bucket is on its way; the sums end after it, as in the paper.
    ended = {rank: max(s.start for s in trace.spans("sync") if s.rank == rank) for rank in begun}
    backward = max(ended[rank] - begun[rank] for rank in begun)
    return {"backward": backward, "step": step}


def _sum(width: int, lost: int, latency: float, way: str) -> float:
    from labkit.resilience.ntp import NaiveSync, NonuniformSync, Replicas

    config = model_for(width, lost)
    network, _ = _world(config, width, 0.016, latency)
    replicas = Replicas((tuple(range(width)), tuple(range(width, 2 * width - lost))))

    def work(world: Any) -> None:
        if world.rank not in replicas.ranks:
            return
        group = world.subgroup(replicas.ranks)
        replica, _ = replicas.place(world.rank)
        inner = group.subgroup([group.global_ranks.index(r) for r in replicas.members[replica]])
        placement = replicas.computes(config, replica) if way == "map" else None
        model = TensorParallelGPT(config, inner, placement=placement)
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        sync: Any = (
            NonuniformSync(model, replicas, group, share=0.5) if way == "map"
            else NaiveSync(model, replicas, group, share=0.5, joined=way == "joined")
        )  # fmt: skip
        for n in range(2):
            labkit.collectives.barrier(group)
            with world.span(f"sum {n}"):
                sync.sum()
            for p in model.parameters():
                p.grad = torch.zeros_like(p)

    trace = labkit.launch(work, 2 * width, transport="local", clock="virtual", network=network, timeout=60).trace
    spans = trace.spans("sum 1")
    return max(s.end for s in spans) - min(s.start for s in spans)


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _floats(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]
