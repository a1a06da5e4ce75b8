"""The trace in Chrome's trace-event format, which ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.wire.recording.trace import Trace

_COMPUTE, _COMMUNICATION = 0, 1


def to_chrome(trace: Trace, path: str | None = None) -> dict[str, Any]:
    """A process a rank, spans on its first thread and messages on its second, an arrow a message. Microseconds."""
    events: list[dict[str, Any]] = []
    for rank in range(trace.world_size):
        events.append({"ph": "M", "pid": rank, "name": "process_name", "args": {"name": f"rank {rank}"}})
        for tid, name in ((_COMPUTE, "spans and collectives"), (_COMMUNICATION, "messages")):
            events.append({"ph": "M", "pid": rank, "tid": tid, "name": "thread_name", "args": {"name": name}})

    def box(rank: int, tid: int, name: str, start: float, end: float, **args: Any) -> None:
        events.append({"ph": "X", "pid": rank, "tid": tid, "name": name, "ts": start * 1e6, "dur": (end - start) * 1e6,
                       "args": args})  # fmt: skip

    for s in trace.spans():
        box(s.rank, _COMPUTE, s.name, s.start, s.end, step=s.step, **s.attrs)
    for c in trace.collectives():
        what = {"algorithm": c.algorithm, "op": c.op, "dtype": c.dtype, "shape": c.shape, "nbytes": c.nbytes}
        box(c.rank, _COMPUTE, c.name, c.start, c.end, **what)
    for number, m in enumerate(trace.sends):
        box(m.src, _COMMUNICATION, f"send to {m.dst}", m.start, m.end, nbytes=m.nbytes, dtype=m.dtype, shape=m.shape)
        if m.arrived == m.arrived:
            flow = {"cat": "message", "name": "message", "id": number}
            events.append({"ph": "s", "pid": m.src, "tid": _COMMUNICATION, "ts": m.start * 1e6, **flow})
            events.append({"ph": "f", "bp": "e", "pid": m.dst, "tid": _COMMUNICATION, "ts": m.arrived * 1e6, **flow})
    for m in trace.recvs:
        what = {"nbytes": m.nbytes, "dtype": m.dtype, "shape": m.shape}
        box(m.dst, _COMMUNICATION, f"receive from {m.src}", m.start, m.end, **what)
    about = {"clock": trace.clock, "transport": trace.transport}
    chrome = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}
    if path is not None:
        with open(path, "w") as f:
            json.dump(chrome, f)
    return chrome
