"""The wall-clock part of `labkit bench ntp`: the model of a cluster beside real steps whose kernels sleep.

Two replicas of `full` ranks, one of which has lost some, by each policy. What the model says is exact on the virtual
clock (tests/resilience/test_ntp_pacing.py). Here Python, threads and real messages come on top, so each step is given
over that of the two whole replicas in the same run.
"""

from __future__ import annotations

from typing import Any

from labkit import cost
from labkit.models import GPTConfig
from labkit.resilience.ntp.pacing import paced_step

STEPS = 5  # the median of so many


def model_for(full: int, lost: int) -> GPTConfig:
    """Heads and columns that both widths divide: what the model of a cluster says is then what kernels take."""
    heads = full * (full - lost)
    return GPTConfig(vocab=61, context=8, layers=1, heads=heads, width=2 * heads, expansion=1)


def paces(full: int, lost: int, samples: int = 8, sample: float = 0.1) -> list[dict[str, Any]]:
    """A row for each policy. sample: seconds of kernels of an example on a whole replica."""
    config, width = model_for(full, lost), full - lost
    cluster = cost.Cluster(2, full, 1, (full, width), samples)
    whole = _seconds(config, (full, full), (samples, samples), full, (1.0, 1.0), sample)
    rows = []
    for policy, method in (("all wait", None), ("NTP", "ntp"), ("NTP-PW", "ntp-pw")):
        batch, speed = samples, 1.0
        if method:
            batch, power = cluster.local_batches(method)[1], cluster.powers(method)[1]
            speed = cluster.boost.speed(power)
        took = _seconds(config, (full, width), (samples, batch), full, (1.0, speed), sample) / whole
        said = max(1.0, batch / samples / speed / cost.narrow_speed(width, full))
        trained = (samples + batch) / (2 * samples)
        rows.append({"widths": f"{full}+{width}", "policy": policy, "examples": f"{samples}+{batch}", "speed": speed,
                     "step, model": said, "step, measured": took, "throughput, model": trained / said,
                     "throughput, measured": trained / took, "off": took / said - 1})  # fmt: skip
    return rows


def _seconds(
    config: GPTConfig, widths: tuple[int, ...], batches: tuple[int, ...], full: int, speeds: tuple[float, ...],
    sample: float,
) -> float:  # fmt: skip
    step = paced_step(config, widths, batches, full, sample=sample, speeds=speeds, clock="real", steps=STEPS)
    return step.seconds
