"""Gradients in fewer bytes than they have.

compressors.py   top-k, random-k, QSGD, TernGrad, scaled signs, 8 bits by block: a tensor into parts, and back
payload.py       parts of several types as bytes, and integers of a few bits each
"""

from labkit.optim.compression.compressors import (
    Block8,
    Compressor,
    Quantize,
    RandomK,
    ScaledSign,
    TopK,
    ternary,
)

__all__ = ["Block8", "Compressor", "Quantize", "RandomK", "ScaledSign", "TopK", "ternary"]
