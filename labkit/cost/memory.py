"""What training holds in memory: parameters, gradients, the optimizer's state, and activations. In bytes.

State grows with the number of parameters only, activations with the batch and the sequence too. Sources: the
bytes per parameter are those of ZeRO (Rajbhandari et al. 2020, section 3.1); the activations of a transformer
those of Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models", section 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .refuse import not_negative, positive, whole
from .units import GB

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
