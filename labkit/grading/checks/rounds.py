"""How many messages had to follow one another, from the two records of each message.

A rank that is still busy with one message cannot be said to wait for the next: two operations of a rank follow one
another if the first ended before the second began (an exchange is two operations at once). One that was begun with
isend or irecv ends when its rank has waited for it, not when it happens to be through. A message comes one round
after the latest of all that its sender and its receiver had ended before. With a world of p ranks a ring all-reduce
has 2 (p - 1) rounds, a binomial broadcast ceil(log2 p), and a root that sends to everybody p - 1.
"""

from __future__ import annotations

from labkit.wire.recording import record as rec
from labkit.wire.recording.trace import Message, Trace


def rounds_of(trace: Trace) -> int:
    """The longest chain of messages of `trace`."""
    events = trace.events
    waits = events[events["kind"] == rec.WAIT]
    waited = {(int(e["rank"]), int(e["detail"]) - 1): trace.seconds(e["t1"]) for e in waits if e["t1"]}
    handles = {(int(e["rank"]), int(e["index"])) for e in events[(events["flags"] & rec.ASYNC) != 0]}

    def ended(rank: int, record: int, end: float) -> float:
        return waited.get((rank, record), float("inf")) if (rank, record) in handles else end

    done: dict[int, list[tuple[float, int]]] = {}  # by rank: (when an operation ended, its round)

    def before(rank: int, moment: float) -> int:
        return max((number for end, number in done.get(rank, ()) if end <= moment), default=0)

    longest = 0
    for m in sorted(trace.sends, key=_finished):  # seen from the sender: start and end are its own
        if m.arrived != m.arrived:  # nobody received it
            continue
        number = 1 + max(before(m.src, m.start), before(m.dst, m.recv_start))
        done.setdefault(m.src, []).append((ended(m.src, m.index, m.end), number))
        done.setdefault(m.dst, []).append((ended(m.dst, m.recv_index, m.arrived), number))
        longest = max(longest, number)
    return longest


def _finished(m: Message) -> float:
    """What ended earlier is counted earlier, so that every chain is complete when it is continued."""
    return min(m.end, m.arrived)
