"""Training in few bits: formats, scales, matrix products, and what keeps a run alive in them.

formats.py       formats from their bits: what a number becomes in 16, 8 or 4 of them
scaling.py       scales for a tensor, a row or a block: codes with what they were multiplied by
products.py      matrix products and sums in an accumulator of few bits
recipes.py       which scale a tensor gets next: current, delayed, fixed; ranks that agree on it
linear.py        `low_precision`: a model whose linear layers multiply in few bits
loss_scaling.py  `LossScaler`: gradients of 16 bits that would be 0
master.py        `MasterWeights`: updates that 16 bits would round away
codec.py         codes and scales as the bytes of a message: `Codec`, and a `Wire` for activations and gradients
wire.py          `QuantizedAllReduce`: gradients in 8 bits on the wire, summed in 32
adam8.py         `AdamW8bit`: two moments of a byte each
dynamic_map.py   the 256 numbers that those bytes mean

All of it shows what numbers become, what is held and what is sent. None of it is faster on a CPU.
"""

from labkit.optim.precision.adam8 import AdamW8bit
from labkit.optim.precision.codec import Codec, Wire
from labkit.optim.precision.dynamic_map import SIGNED, UNSIGNED, dynamic_map
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
from labkit.optim.precision.wire import QuantizedAllReduce

__all__ = [
    "AdamW8bit",
    "BF16",
    "Codec",
    "E2M1",
    "E4M3",
    "E5M2",
    "FORMATS",
    "FP16",
    "FP32",
    "Format",
    "LossScaler",
    "Lost",
    "LowPrecisionLinear",
    "MasterWeights",
    "QuantizedAllReduce",
    "Recipe",
    "SIGNED",
    "Scaled",
    "Scales",
    "TF32",
    "TensorScale",
    "UNSIGNED",
    "Wire",
    "decode",
    "dynamic_map",
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
