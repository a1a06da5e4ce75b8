"""What training holds in memory: parameters, gradients, the optimizer's state, and activations. In bytes.

State grows with the number of parameters only, activations with the batch and the sequence too. Sources: the
bytes per parameter are those of ZeRO (Rajbhandari et al. 2020, section 3.1); the activations of a transformer
those of Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models", section 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from labkit.cost.refuse import not_negative, one_of, positive, whole
from labkit.cost.units import GB

__all__ = [
    "ACTIVATION_STRATEGIES",
    "ADAM_STATE",
    "GPU_MEMORY",
    "StateBytes",
    "activation_bytes",
    "checkpointed_activation_bytes",
    "devices_to_hold",
    "gathered_bytes",
    "gradient_unit_bytes",
    "kept_activation_bytes",
    "largest_model",
    "peak_activation_bytes",
    "state_bytes",
    "state_parts",
]

ACTIVATION_STRATEGIES = ("all", "selective", "full")
GPU_MEMORY = 80 * GB  # bytes of one A100 or H100, the size that the sources reckon with


@dataclass(frozen=True)
class StateBytes:
    """Bytes of the training state by part. Also used for bytes per parameter."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        """All parts together."""
        return self.parameters + self.gradients + self.optimizer


# Bytes per parameter when training with Adam. Both add up to 16, by different parts.
ADAM_STATE = {
    "mixed": StateBytes(2, 2, 12),  # 16-bit parameters and gradients; 32-bit copy of the parameters, and two moments
    "single": StateBytes(4, 4, 8),  # everything in 32 bits, two moments: torch.optim.Adam on a float32 model
}


def state_parts(params: float, precision: str = "mixed") -> StateBytes:
    """Bytes of parameters, gradients and Adam's state for a model of `params` parameters.

    precision: "mixed" (2 + 2 + 12 bytes a parameter) or "single" (4 + 4 + 8).
    """
    not_negative(params=params)
    if precision not in ADAM_STATE:
        raise ValueError(f"precision must be one of {', '.join(map(repr, ADAM_STATE))}, not {precision!r}")
    each = ADAM_STATE[precision]
    return StateBytes(params * each.parameters, params * each.gradients, params * each.optimizer)


def state_bytes(params: float, precision: str = "mixed") -> float:
    """Bytes of the whole training state with Adam: 16 a parameter, so 112 GB for 7B, 2800 GB for 175B."""
    return state_parts(params, precision).total


def activation_bytes(
    batch: int,
    sequence: int,
    hidden: int,
    layers: int,
    heads: int,
    *,
    itemsize: int = 2,
    dropout: bool = True,
    scores: bool = True,
) -> int:
    """Bytes of activations that the layers of a transformer keep for the backward pass.

    With 16-bit values, dropout, and attention that keeps its scores: s b h (34 + 5 a s / h) L, as Korthikanti
    et al. 2022 count it (a heads, s sequence, b batch, h hidden, L layers). Term by term, a layer keeps 16 s b h
    values (the inputs of two norms, of the four linear maps and of the activation function; q, k and v) and, with
    dropout, 2 s b h bytes of masks. Attention that keeps its scores adds one a s^2 b values, and with dropout
    one more and a mask.

    itemsize: bytes of a value. scores: False for attention that recomputes them, as FlashAttention does (Dao et
    al. 2022). Embeddings, the last scores over the vocabulary and the norms' few statistics are not counted.

    175B (96 layers, h = 12288, a = 96) at b = 4, s = 2048: 1.102 TB.
    """
    whole(batch=batch, sequence=sequence, hidden=hidden, layers=layers, heads=heads, itemsize=itemsize)
    wide = batch * sequence * hidden
    square = heads * sequence * sequence * batch if scores else 0
    masks = (2 * wide + square) if dropout else 0
    return layers * (16 * wide * itemsize + square * itemsize * (2 if dropout else 1) + masks)


def kept_activation_bytes(batch: int, sequence: int, hidden: int, layers: int, heads: int, strategy: str) -> int:
    """Bytes of activations kept from the forward to the backward pass, by `strategy` (16-bit values, with dropout).

    "all": `activation_bytes`. "selective": the scores of attention are computed again, 34 s b h L (Korthikanti et al.
    2022, section 5). "full": each layer keeps its input only, 2 s b h L. What a rank holds at the most is in
    `peak_activation_bytes`. None of ZeRO's stages makes them fewer: they belong to the rank's own samples.
    """
    one_of(ACTIVATION_STRATEGIES, strategy=strategy)
    if strategy == "full":
        whole(heads=heads)
        return checkpointed_activation_bytes(batch, sequence, hidden, layers)
    return activation_bytes(batch, sequence, hidden, layers, heads, scores=strategy == "all")


def peak_activation_bytes(batch: int, sequence: int, hidden: int, layers: int, heads: int, strategy: str) -> int:
    """The most bytes of activations at one time: those kept, and what is computed again for one layer.

    With "full" that is one layer's `activation_bytes`, with "selective" the scores of one layer. 175B at b = 1, s =
    2048: 275.4 GB with "all", 84.2 GB with "selective", 7.7 GB with "full".
    """
    kept = kept_activation_bytes(batch, sequence, hidden, layers, heads, strategy)
    one_layer = activation_bytes(batch, sequence, hidden, 1, heads)
    if strategy == "selective":
        one_layer -= activation_bytes(batch, sequence, hidden, 1, heads, scores=False)
    return kept if strategy == "all" else kept + one_layer


def gathered_bytes(units: Sequence[int], itemsize: int = 2, prefetch: int = 1) -> int:
    """The most bytes of whole parameters that a rank holds at a time when units are gathered one after the other.

    units: parameters of each unit, in the order of the forward pass. While one is computed with, the `prefetch` next
    ones may be there already, so it is the largest sum of 1 + prefetch neighbours. In the backward pass the whole
    gradient of a unit is there as well until it is reduce-scattered: `gradient_unit_bytes`. 175B in 96 equal units of
    16 bits: 3.65 GB, 7.29 GB with one fetched ahead.
    """
    whole(itemsize=itemsize)
    not_negative(prefetch=prefetch, **{f"units[{i}]": unit for i, unit in enumerate(units)})
    window = 1 + int(prefetch)
    return itemsize * max((sum(units[i : i + window]) for i in range(len(units))), default=0)


def gradient_unit_bytes(units: Sequence[int], itemsize: int = 2) -> int:
    """Bytes of the largest unit's whole gradient, which a rank holds until that unit is reduce-scattered."""
    whole(itemsize=itemsize)
    not_negative(**{f"units[{i}]": unit for i, unit in enumerate(units)})
    return itemsize * max(units, default=0)


def checkpointed_activation_bytes(batch: int, sequence: int, hidden: int, layers: int, *, itemsize: int = 2) -> int:
    """Bytes of activations kept when each layer keeps its input only and is computed again in the backward pass.

    2 s b h L with 16-bit values (Chen et al. 2016): 19.33 GB for 175B at b = 4, s = 2048. While one layer is
    computed again its `activation_bytes(..., layers=1)` are held too, and every layer's forward pass runs twice.
    """
    whole(batch=batch, sequence=sequence, hidden=hidden, layers=layers, itemsize=itemsize)
    return batch * sequence * hidden * layers * itemsize


def largest_model(memory: float = GPU_MEMORY, precision: str = "mixed") -> float:
    """The most parameters whose training state fits into `memory` bytes, with no room for activations: 5e9 in 80 GB."""
    positive(memory=memory)
    return memory / state_bytes(1, precision)


def devices_to_hold(nbytes: float, memory: float = GPU_MEMORY) -> int:
    """The fewest devices of `memory` bytes each that hold `nbytes`, cut evenly: 14 for the 1120 GB of a 70B model."""
    not_negative(nbytes=nbytes)
    positive(memory=memory)
    return max(1, math.ceil(nbytes / memory))
