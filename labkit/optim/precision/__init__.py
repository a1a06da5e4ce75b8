"""Training in few bits: formats, scales, matrix products, and what keeps a run alive in them.

formats.py       formats from their bits: what a number becomes in 16, 8 or 4 of them
scaling.py       scales for a tensor, a row or a block: codes with what they were multiplied by
codec.py         codes and scales as the bytes of a message: `Codec`, and a `Wire` for activations and gradients
wire.py          `QuantizedAllReduce`: gradients in 8 bits on the wire, summed in 32
adam8.py         `AdamW8bit`: two moments of a byte each
dynamic_map.py   the 256 numbers that those bytes mean
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
from labkit.optim.precision.scaling import Scaled, from_parts, quantize, scale_for
from labkit.optim.precision.wire import QuantizedAllReduce

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
    "Scaled",
    "decode",
    "encode",
    "from_parts",
    "named",
    "quantize",
    "round_to",
    "scale_for",
    "AdamW8bit",
    "Codec",
    "Wire",
    "QuantizedAllReduce",
    "SIGNED",
    "UNSIGNED",
    "dynamic_map",
]
