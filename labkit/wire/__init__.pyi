# What the room offers, and where it is: read by type checkers, and by `lazy_loader` at run time.
from .errors import (
    Mismatch as Mismatch,
    PeerLost as PeerLost,
    RefusedError as RefusedError,
    WaitTimeout as WaitTimeout,
    WireError as WireError,
)
from .faults import (
    Corrupt as Corrupt,
    Drop as Drop,
    Fault as Fault,
    Hang as Hang,
    Kill as Kill,
    Raise as Raise,
    Slow as Slow,
)
from .group import Group as Group
from .network import Link as Link, Network as Network
from .ops import AVG as AVG, MAX as MAX, MIN as MIN, PROD as PROD, SUM as SUM, ReduceOp as ReduceOp
from .recording.trace import Trace as Trace
