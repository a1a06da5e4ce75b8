"""Weights of a policy that change their layout: from tensor and pipeline parallelism to tensor parallelism only.

Training with pipelines keeps a stage's layers on each rank. Generating goes through all layers for every token, so a
pipeline would mostly wait: each rank then wants a part of every layer.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.cost.refuse import divides, whole

__all__ = ["generation_order", "reshard_bytes"]


def generation_order(tensor: int, pipeline: int) -> list[int]:
    """The ranks in the order in which they take parts for generating, so that each keeps what it has.

    Rank s tensor + t trains with part t of stage s, and comes as number t pipeline + s. With R replicas of the policy
    to generate with, R ranks that follow each other take the same part, for a replica each. That part lies within part
    t of every layer, or around it (Sheng et al. 2024, "HybridFlow", section 5.3).
    """
    whole(tensor=tensor, pipeline=pipeline)
    return [s * tensor + t for t in range(tensor) for s in range(pipeline)]


def reshard_bytes(cut: Sequence[int], kept_whole: Sequence[int], tensor: int, generation: int) -> list[int]:
    """Bytes that a rank of each stage must receive: what it wants and lacks, so no way takes fewer.

    cut, kept_whole: bytes of each stage's weights that tensor parallelism cuts, and of those that every rank of the
    stage has whole. generation: the degree to generate with, in the order of `generation_order`; it divides the ranks,
    and it divides `tensor` or is a multiple of it. Of other stages' cut weights a rank lacks 1 / generation, of its own
    1 / generation - 1 / max(tensor, generation). Even stages of P bytes together, with p stages and generation >=
    tensor: (1 - 1 / p) P / generation. Raises ValueError where weights or degrees do not divide.
    """
    whole(tensor=tensor, generation=generation)
    divides(generation=generation, ranks=tensor * len(cut))
    small, large = sorted((tensor, generation))
    if large % small:
        raise ValueError(f"generation={generation} must divide tensor={tensor}, or be a multiple of it")
    for name, nbytes in {f"cut[{s}]": n for s, n in enumerate(cut)}.items():
        divides(degree=large, **{name: nbytes})
    return [
        (sum(cut) - cut[s]) // generation + cut[s] // generation - cut[s] // large + sum(kept_whole) - kept_whole[s]
        for s in range(len(cut))
    ]
