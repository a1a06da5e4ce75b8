"""Training in few bits: formats, scales, matrix products, and what keeps a run alive in them.

formats.py       formats from their bits: what a number becomes in 16, 8 or 4 of them
scaling.py       scales for a tensor, a row or a block: codes with what they were multiplied by
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
    "Scaled",
    "decode",
    "encode",
    "from_parts",
    "named",
    "quantize",
    "round_to",
    "scale_for",
]
