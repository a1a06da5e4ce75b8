"""Why a communicator hangs, in a sentence: from what its members say that they have called."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from .contract import ContractBroken

if TYPE_CHECKING:
    from .communicator import Call, Communicator

ANSWER = 1.0  # seconds in which members that hang as well say where they are
LOOK = 0.005  # seconds between two looks at what they said


def explain(c: Communicator) -> str:
    """Why `c` does not go on, as far as it can be told; "" if nothing on it hangs."""
    me, members = c.rank(), range(c.size())
    if not c._is_initialized():
        missing = [r for r in members if not c.store.check([f"here {r}"])]
        who = ("rank " if len(missing) == 1 else "ranks ") + ", ".join(map(str, missing))
        return str(ContractBroken("init", f"{c.title} was never made: {who} did not come"))
    called = [[(call.name, call.peer, str(call)) for call in calls] for calls in c.issued]
    c.store.set(f"at {me}", json.dumps(called))
    others = [f"at {r}" for r in members if r != me]
    until = time.monotonic() + ANSWER
    while time.monotonic() < until and not c.store.check(others):
        time.sleep(LOOK)
    return "; ".join(filter(None, (_stuck(c, call) for call in next(iter(c.issued), []))))


def _stuck(c: Communicator, call: Call) -> str:
    """Why a call does not go on, "" if that is not its own fault."""
    me, peer = c.rank(), call.peer
    if peer < 0:
        return f"rank {me} is in {call} on {c.title}"
    theirs = json.loads(c.store.get(f"at {peer}")) if c.store.check([f"at {peer}"]) else []
    wanted = ["recv" if call.name == "send" else "send", me]
    found = next((i for i, calls in enumerate(theirs) if any(one[:2] == wanted for one in calls)), None)
    here = f"on {c.title} rank {me} is in {call}"
    if found is None:
        at = _words(theirs[0]) if theirs else "no call that hangs"
        return str(ContractBroken("order", f"{here}, and rank {peer}, in {at}, has not issued its {wanted[0]}"))
    if found:
        behind = f"{here}; rank {peer} has queued its {wanted[0]} behind {_words(theirs[0])}"
        return str(ContractBroken("group call", behind))
    return ""


def _words(calls: list[list[str]]) -> str:
    return " and ".join(call[2] for call in calls)
