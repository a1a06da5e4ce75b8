"""How far workers that share weights may run apart, and what is done about gradients that come late.

policies.py      BSP, SSP and ASP: when a worker may have the weights for its next clock
corrections.py   rates by staleness, delay compensation, momentum that asynchrony brings by itself

A worker's *clock* is the number of updates that it has finished. The *staleness* tau of an update is the number of
updates that were applied between the pull that it was computed on and its own application. The server that obeys all
this is `labkit.parallel.server`.
"""

from labkit.optim.synchrony.corrections import DelayCompensation, by_inverse, by_root, explicit_momentum
from labkit.optim.synchrony.policies import ASP, BSP, SSP, Policy

__all__ = ["ASP", "BSP", "SSP", "DelayCompensation", "Policy", "by_inverse", "by_root", "explicit_momentum"]
