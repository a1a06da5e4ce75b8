"""Who is at fault when a job stands still, slows down, or computes nonsense.

    Detector(job).wait(5)         watch a job of this process until somebody is at fault: a `Verdict`
    diagnose(reports)             the same from the reports of ranks, wherever they come from
    Collector, Agent, report_to   reports of many hosts over a small channel
    stragglers(trace), since      who slows the others down
    FiniteGuard, SpikeGuard       NaN, infinities and jumps of the loss, before an update
    compare(state, group)         which replica holds other bits, and where
    replay(work, recorded, group) a step done again: transient, intermittent or persistent
    find_flip(...)                on which message of a ring all-reduce a bit flipped

Names load when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# No module is called like a name in this table: importing a submodule would put it in the place of the function.
_HOME = {
    "Agent": "channel", "Collector": "channel", "report_to": "channel",
    "Report": "report", "Pages": "reading", "Waits": "waits", "Clue": "waits",
    "Verdict": "verdict", "diagnose": "verdict", "Detector": "detector",
    "Speeds": "slowness", "stragglers": "slowness", "since": "slowness", "find_slow": "slowness",
    "FiniteGuard": "guards", "ForwardWatch": "guards", "NotFinite": "guards", "SpikeGuard": "spikes", "Spike": "spikes",
    "checksum": "replicas", "compare": "replicas", "Differs": "replicas",
    "replay": "replays", "Replayed": "replays", "find_flip": "flips", "Flip": "flips",
}  # fmt: skip

__all__ = sorted(_HOME)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
