"""Training to a loss with stragglers and slow links. Times are those of the virtual clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from statistics import mean, stdev
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

import labkit
from labkit import Link, Network, Slow
from labkit.data import batches, digits, image_batches, text
from labkit.models import GPT, MLP, GPTConfig, MLPConfig, next_token_loss
from labkit.optim.compression import Compressed, PowerSGD, TopK
from labkit.optim.synchrony import ASP, BSP, SSP, Policy, by_root
from labkit.parallel import DataParallel, kernels
from labkit.parallel.server import Client, Server, staleness

WORKERS, KERNEL, RATE = 4, 0.01, 0.5  # seconds of a gradient; the learning rate of an average of all workers
RATES = (0.1, 0.3)  # of SGD where a link is slow: each way has the better of them
Curve = list[tuple[float, float]]  # (seconds, loss)


def by_policy(seeds: int, clocks: int, factor: float) -> list[dict[str, Any]]:
    """Policies of a server: time to BSP's last loss over BSP's time, and the last loss, with standard deviations.

    All train for as long as the slow worker needs for its `clocks`. Without BSP's average each gradient has a rate
    WORKERS times smaller: one clock of all moves the weights as far.
    """
    ways: dict[str, tuple[Policy, Any]] = {"BSP": (BSP(), None)}
    ways |= {f"SSP({s})": (SSP(s), None) for s in (2, clocks // 4, clocks // 2, clocks)}
    ways |= {"ASP": (ASP(), None), "ASP, rate by staleness": (ASP(), by_root)}
    found = {name: [_served(*way, seed, clocks, factor) for seed in range(seeds)] for name, way in ways.items()}
    return _rows(found, "BSP", "mean staleness")


def _served(policy: Policy, rate: Any, seed: int, clocks: int, factor: float) -> tuple[Curve, float]:
    """The loss of all digits after each update, and the mean staleness. The last worker is slowed down."""
    lr = RATE if policy.together else RATE / WORKERS
    options = {"rate": rate} if rate else {}

    def rank(group: labkit.Group) -> tuple[Curve, float] | None:
        model = MLP(MLPConfig((64, 32, 10)), seed)
        named = dict(model.named_parameters())
        train, _ = digits(seed=seed)
        curve: Curve = []

        class Watched(torch.optim.SGD):
            def step(self) -> None:  # type: ignore[override]
                super().step()
                own = dict(zip(named, self.param_groups[0]["params"], strict=True))
                with torch.no_grad():
                    loss = F.cross_entropy(functional_call(model, own, (train.x.flatten(1),)), train.y)
                curve.append((group.context.clock_here().now() / 1e9, loss.item()))

        if group.rank == 0:
            optimizer = partial(Watched, lr=lr)
            log = Server(named, group, [0], policy=policy, optimizer=optimizer, **options).serve()
            return curve, mean(tau for tau, count in staleness(log).items() for _ in range(count))
        with Client(named, group, [0]) as client:
            data, clock = image_batches(train, 16, seed, group.rank - 1, WORKERS), group.context.clock_here()
            while clock.now() < 1e9 * KERNEL * factor * clocks:  # the time of the slow worker
                x, y = next(data)
                client.load(model)
                F.cross_entropy(model(x.flatten(1)), y).backward()
                group.compute(KERNEL)
                client.step(model)
        return None

    run = labkit.launch(rank, 1 + WORKERS, clock="virtual", transport="local", faults=[Slow(WORKERS, factor=factor)])
    found: tuple[Curve, float] = run.results[0]
    return found


def by_hook(seeds: int, steps: int, bandwidth: float, computing: float) -> list[dict[str, Any]]:
    """Hooks of `DataParallel`: time to the last loss of whole gradients over theirs; MB that a rank sends a step."""
    hooks = {"whole": None, "top-k 1 %": partial(Compressed, TopK(0.01)), "PowerSGD, rank 4": partial(PowerSGD, 4)}
    found = {}
    for name, hook in hooks.items():
        most = steps if hook is None else 4 * steps
        found[name] = [_better(hook, seed, most, bandwidth, computing) for seed in range(seeds)]
    return _rows(found, "whole", "MB a step")


def _better(hook: Any, seed: int, steps: int, bandwidth: float, computing: float) -> tuple[Curve, float]:
    """With the rate that ends with the lower loss."""
    each = [_linked(hook, rate, seed, steps, bandwidth, computing) for rate in RATES]
    return min(each, key=lambda found: found[0][-1][1])


def _linked(hook: Any, rate: float, seed: int, steps: int, bandwidth: float, computing: float) -> tuple[Curve, float]:
    """The loss of each step's batch, by the time at which the step ends; and MB that a rank sends in a step."""

    def rank(group: labkit.Group) -> Curve:
        model, config = GPT(GPTConfig(width=64, layers=2), seed), GPTConfig(width=64, layers=2)
        linear = {name: m.weight.numel() for name, m in model.named_modules() if isinstance(m, nn.Linear)}
        share = computing / 3 / sum(linear.values())
        kernels(model, group, {name: (n * share, 2 * n * share) for name, n in linear.items()})
        wrapped = DataParallel(model, group, hook=hook and hook(), bucket_bytes=100_000, first_bucket_bytes=100_000)
        sgd, curve = torch.optim.SGD(model.parameters(), lr=rate), []
        data = batches(text().train, 8, config.context, seed, group.rank, group.size)
        for number, (inputs, targets) in enumerate(islice(data, steps), 1):
            group.step(number)
            sgd.zero_grad()
            loss = next_token_loss(wrapped(inputs), targets)
            loss.backward()
            sgd.step()
            curve.append((group.context.clock_here().now() / 1e9, loss.item()))
        return curve

    network = Network(nodes=WORKERS, ranks_per_node=1, inter=Link(bandwidth, 50e-6))
    run = labkit.launch(rank, WORKERS, clock="virtual", network=network)
    begun = min(call.start for call in run.trace.collectives() if call.step == 1)
    by_step = zip(*run.results, strict=True)
    curve = [(max(t for t, _ in step) - begun, mean(loss for _, loss in step)) for step in by_step]
    sent = sum(m.nbytes for m in run.trace.sends if m.src == 0 and m.step > 1)
    return _smooth(curve), sent / 1e6 / (steps - 1)


def _smooth(curve: Curve, over: int = 8) -> Curve:
    """Each loss as the mean of the last `over`: batches differ."""
    return [(t, mean(loss for _, loss in curve[max(0, k - over + 1) : k + 1])) for k, (t, _) in enumerate(curve)]


def _rows(found: Mapping[str, Sequence[tuple[Curve, float]]], base: str, what: str) -> list[dict[str, Any]]:
    """Means over seeds. Where a way never comes to the last loss of `base` with the same seed, its time is endless."""
    rows = []
    for name, each in found.items():
        ratios = []
        for (curve, _), (other, _) in zip(each, found[base], strict=True):
            end, target = other[-1]
            ratios.append(next((t for t, loss in curve if loss <= target), float("inf")) / end)
        last = [curve[-1][1] for curve, _ in each]
        rows.append({
            "": name, f"time to {base}'s loss / its time": mean(ratios), "from": min(ratios), "to": max(ratios),
            "last loss": mean(last), "±": stdev(last) if len(last) > 1 else 0.0, what: mean(n for _, n in each),
        })  # fmt: skip
    return rows
