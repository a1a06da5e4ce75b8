"""Training in few bits: formats, scales, matrix products, and what keeps a run alive in them.

formats.py       formats from their bits: what a number becomes in 16, 8 or 4 of them
scaling.py       scales for a tensor, a row or a block: codes with what they were multiplied by
products.py      matrix products and sums in an accumulator of few bits
recipes.py       which scale a tensor gets next: current, delayed, fixed; ranks that agree on it
linear.py        `low_precision`: a model whose linear layers multiply in few bits
loss_scaling.py  `LossScaler`: gradients of 16 bits that would be 0
master.py        `MasterWeights`: updates that 16 bits would round away

All of it shows what numbers become, what is held and what is sent. None of it is faster on a CPU.
"""

from labkit.optim.precision.formats import (
    BF16,
    E2M1,
    E4M3,
    E5M2,
    FORMATS,
    FP16,
    FP32,
    TF32,
    Format,
    decode,
    encode,
    named,
    round_to,
)
from labkit.optim.precision.linear import LowPrecisionLinear, low_precision
from labkit.optim.precision.loss_scaling import LossScaler
from labkit.optim.precision.master import MasterWeights
from labkit.optim.precision.products import multiply, summed
from labkit.optim.precision.recipes import Lost, Recipe, Scales, TensorScale
from labkit.optim.precision.scaling import Scaled, from_parts, quantize, scale_for

__all__ = [
    "BF16",
    "E2M1",
    "E4M3",
    "E5M2",
    "FORMATS",
    "FP16",
    "FP32",
    "TF32",
    "Format",
    "LossScaler",
    "Lost",
    "LowPrecisionLinear",
    "MasterWeights",
    "Recipe",
    "Scaled",
    "Scales",
    "TensorScale",
    "decode",
    "encode",
    "from_parts",
    "low_precision",
    "multiply",
    "named",
    "quantize",
    "round_to",
    "scale_for",
    "summed",
]
