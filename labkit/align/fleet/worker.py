"""What a worker of asynchronous rollouts does: it takes orders and weights, and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor, nn

from labkit.align.fleet.grpo import GRPO, asked
from labkit.align.rollout import Prompts, Sample, Sampling, generate
from labkit.align.rollout.parcels import SAMPLES, SHARE, Parcel, pack_samples, receive
from labkit.cost import WorkSeconds
from labkit.models.gpt import GPT
from labkit.wire.errors import PeerLost
from labkit.wire.group import Group

Chunks = list[dict[int, tuple[int, ...]]]


def serve(
    group: Group, policy: GPT, prompts: Callable[[int], Prompts], how: Sampling, grpo: GRPO,
    seconds: WorkSeconds | None,
) -> None:  # fmt: skip
    """A worker: write what rank 0 asks for, until it says that all is done."""
    try:
        while (order := receive(group, 0)).word == SHARE:
            batch, fresh, *share = order.integers
            if fresh:
                load_flat(policy, group.recv(torch.empty_like(flat_weights(policy)), 0))
            chunks = chunks_of(prompts(batch), grpo)
            made = write(group, policy, [chunks[c] for c in share], how, batch, seconds)
            Parcel(SAMPLES, *pack_samples(made)).send(group, 0)
    except PeerLost as why:
        raise PeerLost(f"rank {group.rank}: rank 0, which learns, is gone, or goes on without this rank", 0) from why


def chunks_of(prompts: Prompts, grpo: GRPO) -> Chunks:
    """What is generated as one, so that the numbers are the same whoever does it."""
    ids = iter(both := asked(prompts, grpo.responses))
    size = grpo.responses * grpo.prompts
    return [{i: tuple(both[i]) for i in islice(ids, size)} for _ in range(-(-len(both) // size))]


def write(
    group: Group, policy: GPT, chunks: Iterable[dict[int, tuple[int, ...]]], how: Sampling, batch: int,
    seconds: WorkSeconds | None,
) -> dict[int, Sample]:  # fmt: skip
    """The samples of some chunks of a batch, with the time that it takes on the timeline."""
    samples = dict[int, Sample]()
    for chunk in chunks:
        with group.span("generate", batch=batch):
            made = generate(policy, chunk, replace(how, seed=how.seed + batch), slots=len(chunk))
            samples |= made.samples
            if seconds is not None:
                group.compute(len(made.steps) * seconds.decode)
    return samples


def flat_weights(model: nn.Module) -> Tensor:
    """All parameters side by side: a copy."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


@torch.no_grad()
def load_flat(model: nn.Module, flat: Tensor) -> None:
    """The reverse of `flat_weights`."""
    for p, part in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()]), strict=True):
        p.copy_(part.view_as(p))
