"""Update rules, and what large batches ask of them: scaled rates, warmup, LARS, LAMB, the gradient noise scale."""

from labkit.optim.critical import CriticalBatch, critical_batch_interval, fit_critical_batch
from labkit.optim.lamb import LAMB
from labkit.optim.lars import LARS
from labkit.optim.layers import layer_groups
from labkit.optim.noise_scale import Estimate, NoiseScale, signal_and_noise
from labkit.optim.scaling import linear_scaled, sqrt_scaled
from labkit.optim.schedules import Schedule, combined, constant, cosine, milestones, polynomial, warmup
from labkit.optim.two_batches import TwoBatches, squared_norm, two_norms

__all__ = [
    "LAMB",
    "LARS",
    "CriticalBatch",
    "Estimate",
    "NoiseScale",
    "Schedule",
    "TwoBatches",
    "combined",
    "constant",
    "cosine",
    "critical_batch_interval",
    "fit_critical_batch",
    "layer_groups",
    "linear_scaled",
    "milestones",
    "polynomial",
    "signal_and_noise",
    "sqrt_scaled",
    "squared_norm",
    "two_norms",
    "warmup",
]
