"""A policy between two layouts: trained with tensor and pipeline parallelism, generated from with tensor parallelism.

    reshard = Reshard(stage, group, tensor=2, pipeline=2, generation=4)
    policy = reshard()                                # the same weights, in the layout to generate with
    samples = generate_sharded(policy, prompts, how)  # after each update: reshard() again

Each rank keeps what it has and receives what it lacks, so no bytes travel that it does not need
(`labkit.cost.reshard_bytes`; Sheng et al. 2024, "HybridFlow", section 5.3).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.align.rollout import Prompts, Sample, Sampling
from labkit.align.rollout.sampling import check_logits, draw
from labkit.align.rollout.sequences import begin
from labkit.cost import generation_order
from labkit.models.gpt import GPTConfig
from labkit.parallel.moving import Carrier, Moves, plan
from labkit.parallel.tensor.gpt import TensorParallelGPT
from labkit.parallel.tensor.shard_spec import ShardSpec, shard_specs_of
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


def stage_layers(config: GPTConfig, pipeline: int) -> list[range]:
    """The layers of each stage. Raises RefusedError where they do not divide."""
    if config.layers % pipeline:
        raise RefusedError(f"{config.layers} layers do not divide into {pipeline} stages")
    each = config.layers // pipeline
    return [range(s * each, (s + 1) * each) for s in range(pipeline)]


def training_stage(config: GPTConfig, group: Group, tensor: int, pipeline: int, seed: int = 0) -> TensorParallelGPT:
    """This rank's part for training: rank s tensor + t of `group` has part t of stage s."""
    stage = group.rank // tensor
    inner = group.subgroup(range(stage * tensor, (stage + 1) * tensor))
    return TensorParallelGPT(config, inner, layers=stage_layers(config, pipeline)[stage], seed=seed)


class Reshard:
    """From `stage` (see `training_stage`) to a `TensorParallelGPT` of `generation` ranks; several where they are fewer.

    policy: this rank's part to generate with. received: bytes that arrive here in each call.
    Raises RefusedError, on every rank, where degrees do not fit the ranks or each other.
    """

    def __init__(self, stage: TensorParallelGPT, group: Group, tensor: int, pipeline: int, generation: int) -> None:
        small, large = sorted((tensor, generation))
        if tensor * pipeline != group.size or generation < 1 or group.size % generation or large % small:
            raise RefusedError(
                f"tensor={tensor} times pipeline={pipeline} must be the group's {group.size} ranks, and "
                f"generation={generation} must divide them, and divide tensor or be a multiple of it"
            )
        order, replicas = generation_order(tensor, pipeline), group.size // generation
        part = {rank: n // replicas for n, rank in enumerate(order)}
        inner = group.subgroup(order[order.index(group.rank) % replicas :: replicas])
        self.policy, self._stage = TensorParallelGPT(stage.config, inner), stage
        self._names, moves = list[str](), list[Moves]()
        layers, ranks = stage_layers(stage.config, pipeline), range(group.size)
        for name, p, cut in shard_specs_of(self.policy):
            home = _stage_of(name, layers)
            dim = 0 if cut is None else cut.dim
            every = list(range(p.shape[0])) if cut is None else []
            trained = None if cut is None else ShardSpec.even(dim, cut.sections, tensor)
            have = [
                [] if rank // tensor != home else every if trained is None else trained.places(rank % tensor).tolist()
                for rank in ranks
            ]
            want = [every if cut is None else cut.places(part[rank]).tolist() for rank in ranks]
            self._names.append(name)
            moves.append(plan(have, want, dim=dim))
        self._carrier = Carrier(moves, group, staggered=True)

    @property
    def received(self) -> int:
        """Bytes."""
        return self._carrier.received_bytes(self._parts())

    @torch.no_grad()
    def __call__(self) -> TensorParallelGPT:
        """Bring what has changed since; every rank calls it."""
        moved = self._carrier.begin(self._parts()).wait()
        named = dict(self.policy.named_parameters())
        for name, x in zip(self._names, moved, strict=True):
            named[name].copy_(x)
        return self.policy

    def _parts(self) -> list[Tensor]:
        """What this rank trains, by name; nothing, with the right shape, where it has none of a tensor."""
        mine = {name: p.detach() for name, p in self._stage.named_parameters()}
        found = []
        for (name, p, _), m in zip(shard_specs_of(self.policy), self._carrier.moves, strict=True):
            shape = [*p.shape[: m.dim], 0, *p.shape[m.dim + 1 :]]
            found.append(mine[name] if name in mine else p.new_empty(shape))
        return found


def _stage_of(name: str, layers: Sequence[range]) -> int:
    """The stage that trains a parameter."""
    part, _, rest = name.partition(".")
    if part == "blocks":
        layer = int(rest.partition(".")[0])
        return next(s for s, own in enumerate(layers) if layer in own)
    return 0 if part in ("tokens", "positions") else len(layers) - 1


@torch.no_grad()
def generate_sharded(policy: TensorParallelGPT, prompts: Prompts, how: Sampling) -> dict[int, Sample]:
    """Go on from each prompt as `rollout.generate` does; every rank of the policy's group calls it, and gets the same.

    Each step computes the whole sequences again: there is no cache. What is refused is what `generate` refuses.
    """
    running = begin(prompts, how, policy.config)
    samples = dict[int, Sample]()
    while running:
        length = max(len(s.whole) for s in running)
        rows = torch.tensor([[*s.whole, *[0] * (length - len(s.whole))] for s in running], device=policy.group.device)
        logits_btv = policy(rows)
        logits_bv = torch.stack([logits_btv[b, len(s.whole) - 1] for b, s in enumerate(running)])
        check_logits(logits_bv, [s.sequence for s in running])
        log_probs_bv = how.log_probs(logits_bv)
        for s, token, row_v in zip(
            running, draw(log_probs_bv, [s.uniform() for s in running]), log_probs_bv, strict=True
        ):
            s.add(token, float(row_v[token]))
        samples |= {s.sequence: s.sample() for s in running if s.ended}
        running = [s for s in running if not s.ended]
    return {i: samples[i] for i in prompts}
