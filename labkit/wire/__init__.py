"""Messages: groups, transports, the trace of what was sent, emulated links and the virtual clock.

Names load when first used, so that what needs only the errors does not load PyTorch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import Mismatch, PeerLost, Refused, WaitTimeout, WireError

if TYPE_CHECKING:
    from .faults import Corrupt, Drop, Fault, Hang, Kill, Raise, Slow
    from .group import Group
    from .network import Link, Network
    from .ops import AVG, MAX, MIN, PROD, SUM, ReduceOp
    from .trace import Trace

__all__ = [
    "AVG", "MAX", "MIN", "PROD", "SUM", "Corrupt", "Drop", "Fault", "Group", "Hang", "Kill", "Link", "Mismatch",
    "Network", "PeerLost", "Raise", "ReduceOp", "Refused", "Slow", "Trace", "WaitTimeout", "WireError",
]  # fmt: skip

_HOME = {
    "Corrupt": "faults", "Drop": "faults", "Fault": "faults", "Hang": "faults", "Kill": "faults", "Raise": "faults",
    "Slow": "faults", "Group": "group", "Link": "network", "Network": "network", "AVG": "ops", "MAX": "ops",
    "MIN": "ops", "PROD": "ops", "SUM": "ops", "ReduceOp": "ops", "Trace": "trace",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
