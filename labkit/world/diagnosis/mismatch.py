"""Where ranks disagree: collectives called with different arguments, messages received as what they are not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from labkit.wire.dtypes import describe
from labkit.wire.messenger import COLLECTIVES
from labkit.wire.recording import record as rec
from labkit.wire.recording.trace import ROW, match, shape_told
from labkit.world.diagnosis.explain import call_number, name_text, of_text, ranks_text


def collective_mismatch(
    rows: list[np.ndarray], names: list[list[str]], members: Callable[[int], list[int]], waiting: list[np.ndarray],
    earlier: int = 0,
) -> str | None:  # fmt: skip
    """Compare the calls of collectives; those that some member has not called yet are marked in `waiting`."""
    calls: dict[tuple[int, int, int], dict[str, list[int]]] = {}
    where: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for rank, r in enumerate(rows):
        at = np.flatnonzero((r["kind"] == rec.COLLECTIVE) & ((r["flags"] & rec.NESTED) == 0))
        own = r[at]
        # most calls look like others of the same rank: describe each kind once
        _, first, kind = np.unique(own[_SIGNED], return_index=True, return_inverse=True)
        texts = [signature(own[i], names[rank]) for i in first]
        places = zip(own["group"].tolist(), own["lane"].tolist(), own["seq"].tolist(), strict=True)
        for place, k, n in zip(places, kind.ravel().tolist(), at.tolist(), strict=True):
            calls.setdefault(place, {}).setdefault(texts[k], []).append(rank)
            where.setdefault(place, []).append((rank, n))
    for (group, _, seq), said in sorted(calls.items(), key=lambda item: item[0][2]):
        if len(said) > 1:
            most = max(said, key=lambda text: len(said[text]))
            odd = "; ".join(f"{ranks_text(ranks)} called {text}" for text, ranks in said.items() if text != most)
            call = call_number(group, seq, earlier)
            return f"{odd}, but {ranks_text(said[most])} called {most} (call {call} of the group)"
    for (group, _, _), found in where.items():
        if len(found) != len(members(group)):
            for rank, n in found:
                waiting[rank][n] = True
    return None


_SIGNED = ["name", "detail", "dtype", "ndim", "shape", "peer"]  # what a signature is made of
_SAME_SHAPE = {"all_reduce", "reduce", "reduce_scatter", "broadcast"}


def signature(e: np.void, names: list[str]) -> str:
    """What all members of a group must have said alike in this call."""
    name = name_text(names, e["name"])
    algorithm, op, _ = rec.call_words(name_text(names, e["detail"]) if e["detail"] >= 0 else "")
    if not e["dtype"] or name in ("scatter", "gather", "barrier", "all_to_all"):
        tensor = ""
    elif name in _SAME_SHAPE:
        tensor = f" on {describe(int(e['dtype']), shape_told(e))}"
    else:
        tensor = f" on {describe(int(e['dtype']), ('any', *shape_told(e)[1:]))}"
    root = f", root {int(e['peer'])}" if e["peer"] >= 0 else ""
    return f"{name}{of_text(e, names)}{tensor}{f' ({op})' if op and op != 'sum' else ''}{root} by {algorithm!r}"


def in_step(new: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """The rows of `new` without the messages of collectives that a rank began after one of their group had failed.

    It has left the failed one in the middle, each rank at another message: their numbers do not belong together any
    more, and what looks like a mismatch only follows from the failure. whole: all rows of the same rank.
    """
    failed = whole[(whole["kind"] == rec.COLLECTIVE) & ((whole["flags"] & rec.ERROR) != 0) & (whole["t1"] > 0)]
    kept = new.copy()
    for group in np.unique(failed["group"]):
        end = failed["t1"][failed["group"] == group].min()
        late = (new["group"] == group) & (new["lane"] == COLLECTIVES) & (new["t0"] >= end)
        kept["kind"][late & np.isin(new["kind"], (rec.SEND, rec.RECV))] = rec.NOTE
    return kept


def message_mismatch(rows: list[np.ndarray], waiting: list[np.ndarray]) -> str | None:
    """Compare sends with their receives; those without another side are marked in `waiting`."""
    blocks = []
    for rank, r in enumerate(rows):
        at = np.flatnonzero((r["kind"] == rec.SEND) | (r["kind"] == rec.RECV))
        block = np.zeros(len(at), ROW)
        for name in rec.EVENT.names or ():
            block[name] = r[name][at]
        block["rank"], block["index"] = rank, at
        blocks.append(block)
    events = np.concatenate(blocks)
    pairs = np.array(match(events), np.int64).reshape(-1, 2)
    alone = (pairs < 0).any(axis=1)
    for e in events[pairs[alone].max(axis=1)]:
        waiting[e["rank"]][e["index"]] = True
    pairs = pairs[~alone]
    sends, recvs = events[pairs[:, 0]], events[pairs[:, 1]]
    differ = (sends["dtype"] != recvs["dtype"]) | (sends["ndim"] != recvs["ndim"])
    differ |= (sends["shape"] != recvs["shape"]).any(axis=1)
    if not differ.any():
        return None
    first = np.flatnonzero(differ)[np.argmin(np.minimum(sends["t0"], recvs["t0"])[differ])]
    s, r = sends[first], recvs[first]
    return (
        f"rank {s['rank']} sent rank {r['rank']} {describe(int(s['dtype']), shape_told(s))}, but rank {r['rank']} "
        f"receives {describe(int(r['dtype']), shape_told(r))} (message {int(s['seq'])} between them)"
    )
