"""Who trains the next step together: one small service process, and a client in every replica. No PyTorch in here.

    QuorumService.start(replicas=4)   the service as a process of its own: `.address`, `.token`, `.stop()`
    QuorumClient(address, token)      a replica calls `register`, `join`, `beat`, `confirm`, `leave`; who supervises
                                      calls `begin`, `dead`, `promote`, `status`
    Quorum, Member, Registration      what they return
    QuorumState                       the rules of the service, as a pure state machine with an explicit clock

Names load when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.resilience.quorum.aggregator import Aggregator
    from labkit.resilience.quorum.client import QuorumClient
    from labkit.resilience.quorum.errors import (
        BadCall,
        NoQuorum,
        OldIncarnation,
        Unanswered,
        WrongToken,
        WrongVersion,
    )
    from labkit.resilience.quorum.heartbeat import Beat
    from labkit.resilience.quorum.membership import Member, Quorum, Registration
    from labkit.resilience.quorum.service import QuorumService
    from labkit.resilience.quorum.state import QuorumState

__all__ = [
    "Aggregator", "BadCall", "Beat", "Member", "NoQuorum", "OldIncarnation", "Quorum", "QuorumClient",
    "QuorumService", "QuorumState", "Registration", "Unanswered", "WrongToken", "WrongVersion",
]  # fmt: skip

# No module is called like a name in this table: importing a submodule would put it in the place of the function.
_HOME = {
    "Aggregator": "aggregator", "Beat": "heartbeat", "QuorumClient": "client", "QuorumService": "service",
    "QuorumState": "state",
    "Member": "membership", "Quorum": "membership", "Registration": "membership",
    "BadCall": "errors", "NoQuorum": "errors", "OldIncarnation": "errors", "Unanswered": "errors",
    "WrongToken": "errors", "WrongVersion": "errors",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
