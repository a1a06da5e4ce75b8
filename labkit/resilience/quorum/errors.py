"""What can go wrong between a replica and the quorum service. No PyTorch: the service raises them too.

`NoQuorum`, and `Unanswered` with it, may pass: joining again is right. The others are refusals: this process has to
end, or its caller has to change something.
"""

from __future__ import annotations

from labkit.resilience.errors import NoQuorum, OldIncarnation, WrongToken, WrongVersion
from labkit.wire.errors import RefusedError


class Unanswered(NoQuorum):
    """Nobody answers at the address, or the service stopped answering."""


class BadCall(RefusedError):
    """The call itself makes no sense: an unknown replica, a rank out of range, a message too large."""


Trouble = NoQuorum | RefusedError
TROUBLE = (NoQuorum, RefusedError)  # the same for `except`

BY_NAME: dict[str, type[NoQuorum] | type[RefusedError]] = {
    "NoQuorum": NoQuorum, "Unanswered": Unanswered, "WrongToken": WrongToken, "WrongVersion": WrongVersion,
    "OldIncarnation": OldIncarnation, "BadCall": BadCall,
}  # fmt: skip

__all__ = [
    "BY_NAME", "BadCall", "NoQuorum", "OldIncarnation", "TROUBLE", "Trouble", "Unanswered", "WrongToken",
    "WrongVersion",
]  # fmt: skip
