"""Messages: groups, transports, the trace of what was sent, emulated links and the virtual clock."""

from .errors import Mismatch, PeerLost, Refused, WaitTimeout, WireError
from .faults import Corrupt, Drop, Fault, Hang, Kill, Raise, Slow
from .group import Group
from .network import Link, Network
from .ops import AVG, MAX, MIN, PROD, SUM, ReduceOp
from .trace import Trace

__all__ = [
    "AVG", "MAX", "MIN", "PROD", "SUM", "Corrupt", "Drop", "Fault", "Group", "Hang", "Kill", "Link", "Mismatch",
    "Network", "PeerLost", "Raise", "ReduceOp", "Refused", "Slow", "Trace", "WaitTimeout", "WireError",
]  # fmt: skip
