"""What broke in two large trainings, as their papers count it, and the rates that follow.

Of the FT-HSDP paper (arXiv 2602.00277, table 1) and of Llama 3 (arXiv 2407.21783, table 5). The percentages are the
papers' own; `share` computes them from the counts, and they do not all agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.cost.refuse import positive, whole

__all__ = [
    "Cause",
    "FT_HSDP_FAILURES",
    "FailureTable",
    "LLAMA3_FAILURES",
    "minutes_between_interruptions",
    "per_thousand_servers_a_day",
    "rate_of_interval",
]

SERVER = 8  # GPUs


@dataclass(frozen=True)
class Cause:
    """count: interruptions. stated: percent in the paper's table. hardware: None where the name does not say."""

    name: str
    count: int
    stated: float
    hardware: bool | None


@dataclass(frozen=True)
class FailureTable:
    """gpus: that took part. days: that the table covers; None: the paper does not say."""

    source: str
    gpus: int
    days: float | None
    causes: tuple[Cause, ...]

    @property
    def total(self) -> int:
        """Interruptions of all causes."""
        return sum(cause.count for cause in self.causes)

    @property
    def stated_sum(self) -> float:
        """The sum of the paper's percentages, to their one digit."""
        return round(sum(cause.stated for cause in self.causes), 1)

    def share(self, *names: str) -> float:
        """The part of all interruptions that these causes have. Raises ValueError for one that is not there."""
        counts = {cause.name: cause.count for cause in self.causes}
        missing = [name for name in names if name not in counts]
        if missing:
            raise ValueError(f"{missing!r} is not in the table; there are {', '.join(counts)}")
        return sum(counts[name] for name in names) / self.total

    def hardware_share(self) -> tuple[float, float]:
        """The least and the most that can be hardware: without and with the causes whose name does not say."""
        sure = sum(cause.count for cause in self.causes if cause.hardware)
        perhaps = sum(cause.count for cause in self.causes if cause.hardware is None)
        return sure / self.total, (sure + perhaps) / self.total

    def misprinted(self) -> dict[str, tuple[float, float]]:
        """The causes whose percentage is not that of their count: name -> (stated, computed), in percent."""
        computed = {cause.name: 100 * cause.count / self.total for cause in self.causes}
        return {c.name: (c.stated, computed[c.name]) for c in self.causes if abs(c.stated - computed[c.name]) > 0.0501}


FT_HSDP_FAILURES = FailureTable(
    "FT-HSDP, table 1",
    32_768,  # "about 32K"
    None,
    (
        Cause("GPU HBM3 Memory", 155, 22.9, True),
        Cause("PCIe Device", 122, 18.0, True),
        Cause("NCCL Watchdog Timeouts", 61, 9.0, None),
        Cause("Faulty GPU Compute", 50, 7.4, True),
        Cause("Software Bug", 48, 7.1, False),
        Cause("Host Maintenance", 42, 6.2, None),
        Cause("Kernel Fault", 39, 5.8, None),
        Cause("System Reboot", 38, 5.6, None),
        Cause("Numerics/Silent Data Corruption", 37, 5.5, True),
        Cause("Network Switch/Cable", 36, 5.3, True),
        Cause("SSD", 30, 4.4, True),
        Cause("GPU SRAM Memory", 8, 1.2, True),
        Cause("Unknown", 7, 1.0, None),
        Cause("System Memory", 2, 0.3, True),
        Cause("System Cooling", 2, 0.3, True),
        Cause("GPU Thermal Interface + Sensor", 1, 0.2, True),
    ),
)

LLAMA3_FAILURES = FailureTable(
    "Llama 3, table 5",
    16_384,
    54,
    (
        Cause("Faulty GPU", 148, 30.1, True),
        Cause("GPU HBM3 Memory", 72, 17.2, True),
        Cause("Software Bug", 54, 12.9, False),
        Cause("Network Switch/Cable", 35, 8.4, True),
        Cause("Host Maintenance", 32, 7.6, None),
        Cause("GPU SRAM Memory", 19, 4.5, True),
        Cause("GPU System Processor", 17, 4.1, True),
        Cause("NIC", 7, 1.7, True),
        Cause("NCCL Watchdog Timeouts", 7, 1.7, None),
        Cause("Silent Data Corruption", 6, 1.4, True),
        Cause("GPU Thermal Interface + Sensor", 6, 1.4, True),
        Cause("SSD", 3, 0.7, True),
        Cause("Power Supply", 3, 0.7, True),
        Cause("Server Chassis", 2, 0.5, True),
        Cause("IO Expansion Board", 2, 0.5, True),
        Cause("Dependency", 2, 0.5, False),
        Cause("CPU", 2, 0.5, True),
        Cause("System Memory", 2, 0.5, True),
    ),
)


def per_thousand_servers_a_day(interruptions: float, days: float, gpus: int, gpus_per_server: int = SERVER) -> float:
    """Interruptions of 1,000 servers in a day. Llama 3: 419 in 54 days on 2,048 servers of 8 GPUs: 3.79."""
    positive(interruptions=interruptions, days=days)
    whole(gpus=gpus, gpus_per_server=gpus_per_server)
    return interruptions / days / (gpus / gpus_per_server) * 1000


def minutes_between_interruptions(rate: float, gpus: int, gpus_per_server: int = SERVER) -> float:
    """Minutes from one interruption to the next at `rate` for 1,000 servers a day.

    2.3 at 100,000 GPUs: 50.1; Llama 3's rate: 30.4; a failure every 18 minutes needs 6.4 for 1,000 servers a day.
    """
    positive(rate=rate)
    whole(gpus=gpus, gpus_per_server=gpus_per_server)
    return 24 * 60 / (rate / 1000 * gpus / gpus_per_server)


def rate_of_interval(minutes: float, gpus: int, gpus_per_server: int = SERVER) -> float:
    """The inverse: one interruption every `minutes`, as a number for 1,000 servers a day."""
    positive(minutes=minutes)
    whole(gpus=gpus, gpus_per_server=gpus_per_server)
    return 24 * 60 / minutes / (gpus / gpus_per_server) * 1000
