"""What a client may ask: each call as a function of the state, the message and the time.

A function returns the result, or None if the answer comes later; then the caller's connection is the ticket.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .errors import BadCall, OldIncarnation
from .slots import LIVE
from .state import QuorumState

Message = dict[str, Any]
LONGEST = 7 * 86400.0  # seconds that a caller may wait


def _register(state: QuorumState, m: Message, now: float, ticket: Any) -> None:
    state.register(
        m.get("replica", -1), m.get("rank", -1), m.get("ranks", -1), now, ticket, data=_data(m),
        count=m.get("count", 1), incarnation=m.get("incarnation"), code=str(m.get("code", "")), until=_until(m, now),
    )  # fmt: skip


def _join(state: QuorumState, m: Message, now: float, ticket: Any) -> None:
    state.join(
        m.get("replica", -1), m.get("incarnation", -1), m.get("step", -1), now, ticket, lineage=m.get("lineage"),
        failed=m.get("failed", False), shrink_only=m.get("shrink_only", False), data=_data(m),
        code=str(m.get("code", "")), until=_until(m, now),
    )  # fmt: skip


def _beat(state: QuorumState, m: Message, now: float, ticket: Any) -> Message:
    replica, incarnation = m.get("replica", -1), m.get("incarnation", -1)
    source = ("rank", _rank(m))
    state.heard(replica, incarnation, source, now)
    ticket.beats[replica, source] = incarnation
    latest = state.latest
    return {
        "quorum": 0 if latest is None else latest.id, "heartbeat": state.rules.heartbeat,
        "member": latest is not None and (replica, incarnation) in latest.lives,
    }  # fmt: skip


def _rest(state: QuorumState, m: Message, now: float, ticket: Any) -> Message:
    state.rest(m.get("replica", -1), m.get("incarnation", -1), ("rank", _rank(m)), now)
    return {}


def _host(state: QuorumState, m: Message, now: float, ticket: Any) -> Message:
    """The heartbeats of a host's members. parts: [replica, incarnation, seconds since its quietest member beat, gone].

    Which parts belong to incarnations that are over is the answer; it does not keep the others from being heard.
    """
    host, over = str(m.get("host")), []
    parts = m.get("parts")
    if not isinstance(parts, list) or not all(isinstance(part, list) and len(part) == 4 for part in parts):
        raise BadCall("a host's heartbeats need parts=[[replica, incarnation, age, gone], ...]")
    for replica, incarnation, age, gone in parts:
        try:
            if not gone or ("host", host) not in state.slot(replica).heard:
                state.heard(replica, incarnation, ("host", host), now, age)
        except OldIncarnation:
            over.append([replica, incarnation])
        if gone:
            state.closed(replica, incarnation, ("host", host), now)
    return {"over": over, "heartbeat": state.rules.heartbeat}


def _watch(state: QuorumState, m: Message, now: float, ticket: Any) -> Message:
    """From now on every quorum is sent to this connection as well, as one more answer."""
    ticket.watches = True
    return {"quorum": None if state.latest is None else state.latest.to_json()}


def _confirm(state: QuorumState, m: Message, now: float, ticket: Any) -> Message:
    return {"valid": state.confirm(m.get("replica", -1), m.get("incarnation", -1), m.get("quorum", -1))}


def _leave(state: QuorumState, m: Message, now: float, ticket: Any) -> Message:
    state.leave(m.get("replica", -1), m.get("incarnation", -1))
    return {}


def _begin(state: QuorumState, m: Message, now: float, ticket: Any) -> Message:
    return {"incarnation": state.begin(m.get("replica", -1), now)}


def _dead(state: QuorumState, m: Message, now: float, ticket: Any) -> Message:
    return {"news": state.dead(m.get("replica", -1), now, m.get("incarnation"))}


def _standby(state: QuorumState, m: Message, now: float, ticket: Any) -> None:
    state.slot(m.get("replica", -1))
    state.spares.standby(m["replica"], ticket, _until(m, now))


def _promote(state: QuorumState, m: Message, now: float, ticket: Any) -> Message:
    state.slot(m.get("replica", -1))
    state.spares.promote(m["replica"], _data(m))
    return {}


def _status(state: QuorumState, m: Message, now: float, ticket: Any) -> Message:
    living = sum(slot.phase == LIVE for slot in state.slots)
    return {**state.status(now), "living": living, "standing": state.spares.standing}


CALLS: dict[str, Callable[[QuorumState, Message, float, Any], Message | None]] = {
    "register": _register, "join": _join, "beat": _beat, "rest": _rest, "host": _host, "watch": _watch,
    "confirm": _confirm, "leave": _leave, "begin": _begin, "dead": _dead, "standby": _standby, "promote": _promote,
    "status": _status,
}  # fmt: skip


def call(state: QuorumState, m: Message, now: float, ticket: Any) -> Message | None:
    """Do what a message asks. Raises what is to be told to the caller."""
    function = CALLS.get(str(m.get("call")))
    if function is None:
        raise BadCall(f"the quorum service has no call {m.get('call')!r}: it has {', '.join(CALLS)}")
    return function(state, m, now, ticket)


def _data(m: Message) -> Message:
    data = m.get("data") or {}
    if not isinstance(data, dict):
        raise BadCall(f"data={data!r}: needs a dict")
    return data


def _until(m: Message, now: float) -> float:
    wait = m.get("timeout", LONGEST)
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait < float("inf"):
        raise BadCall(f"timeout={wait!r}: needs a number of seconds, 0 or more")
    return now + min(wait, LONGEST)


def _rank(m: Message) -> int:
    rank = m.get("rank", 0)
    if type(rank) is not int or rank < 0:
        raise BadCall(f"rank={rank!r}: needs a whole number, 0 or more")
    return rank
