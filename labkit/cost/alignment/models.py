"""The models of alignment training in memory. In bytes, without activations and KV caches.

    PPO     policy and critic trained; reference and reward model frozen
    GRPO    policy trained; reference and reward model frozen (with rules for rewards, the reference alone)
    DPO     policy trained; reference frozen

A trained model has 16 bytes a parameter (`state_bytes`, Adam in mixed precision), a frozen one its 16-bit weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from labkit.cost.parallel.zero import zero_state_bytes
from labkit.cost.refuse import not_negative, whole
from labkit.cost.training.memory import state_bytes

__all__ = ["aligned_models_bytes", "frozen_bytes", "frozen_bytes_per_gpu", "trained_bytes_per_gpu"]


def frozen_bytes(params: float, itemsize: int = 2) -> float:
    """Bytes of a model that only infers, its weights: 140 GB for 70B in 16 bits, an eighth of what training takes."""
    not_negative(params=params)
    whole(itemsize=itemsize)
    return params * itemsize


def aligned_models_bytes(trained: Sequence[float], frozen: Sequence[float]) -> float:
    """Bytes of all models together, once each. trained, frozen: parameters of each model.

    A policy and a reference of 70B: PPO with a reward model and a critic of 13B takes 1494 GB, with a critic of 70B
    2406 GB; GRPO with that reward model 1286 GB; DPO 1260 GB, which is 16 or 48 percent less than PPO.
    """
    return sum(map(state_bytes, trained)) + sum(map(frozen_bytes, frozen))


def trained_bytes_per_gpu(params: float, tensor: int, pipeline: int, data: int = 1, stage: int = 0) -> float:
    """Bytes of a trained model on each GPU: cut evenly by tensor and pipeline parallelism, and that part by ZeRO.

    data, stage: replicas, and ZeRO's stage over them. 70B with tensor 8 and pipeline 4: 35 GB. With 8 replicas it is
    still that at stage 0; 12.03 GB at stage 1, and 4.375 GB at stage 3.
    """
    whole(tensor=tensor, pipeline=pipeline)
    return zero_state_bytes(params / (tensor * pipeline), data, stage)


def frozen_bytes_per_gpu(params: float, tensor: int, pipeline: int, itemsize: int = 2) -> float:
    """Bytes of a frozen model on each GPU of its pool: 4.375 GB for 70B with 8 x 4, 17.5 GB with 8 x 1."""
    whole(tensor=tensor, pipeline=pipeline)
    return frozen_bytes(params, itemsize) / (tensor * pipeline)
