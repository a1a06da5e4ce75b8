"""Gradients in fewer bytes than they have: compressors, and hooks of `DataParallel` that use them.

    model = DataParallel(module, group, hook=Compressed(TopK(0.01)))

compressors.py     top-k, random-k, QSGD, TernGrad, scaled signs, 8 bits by block: a tensor into parts, and back
payload.py         parts of several types as bytes, and integers of a few bits each
compressed.py      `Compressed`: any of them as a hook, with error feedback
dgc.py             `DGC`: top-k with momentum correction, masking, and a warm-up
majority_vote.py   `MajorityVote`: signSGD
power_sgd.py       `PowerSGD`: matrices of low rank
state.py           what a hook remembers, by parameter
counterexample.py  where signs alone do not converge

A sum goes through an all-reduce where what is sent can be added up (random-k, PowerSGD), and what a rank sends hardly
depends on N. The others are all-gathered, and a rank sends N - 1 payloads; majority votes are counted by part.
"""

from labkit.optim.compression.compressed import Compressed
from labkit.optim.compression.compressors import (
    Block8,
    Compressor,
    Quantize,
    RandomK,
    ScaledSign,
    TopK,
    ternary,
)
from labkit.optim.compression.dgc import DGC, WARM_UP
from labkit.optim.compression.majority_vote import MajorityVote
from labkit.optim.compression.power_sgd import PowerSGD

__all__ = [
    "DGC",
    "WARM_UP",
    "Block8",
    "Compressed",
    "Compressor",
    "MajorityVote",
    "PowerSGD",
    "Quantize",
    "RandomK",
    "ScaledSign",
    "TopK",
    "ternary",
]
