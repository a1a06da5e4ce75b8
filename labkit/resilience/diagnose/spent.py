"""The seconds that a rank's program spends in communication: what the search for stragglers adds up.

Counted are collectives that the program waits for, its waits for asynchronous ones, and messages of its own; not the
messages inside a collective, which would count twice, and not the time that something takes in the background.
"""

from __future__ import annotations

import numpy as np

from labkit.wire.messenger import USER
from labkit.wire.recording import record as rec


def communication(rows: np.ndarray) -> np.ndarray:
    """Which records of one rank's page, in its order (dtype EVENT or ROW), are such waits, and have ended."""
    kind, flags = rows["kind"], rows["flags"]
    direct = (flags & rec.ASYNC) == 0
    calls = (kind == rec.COLLECTIVE) & direct & ((flags & rec.NESTED) == 0)
    own = rows["lane"] == USER
    messages = own & direct & ((kind == rec.RECV) | ((kind == rec.SEND) & ((flags & rec.EXCHANGE) == 0)))
    waits = kind == rec.WAIT
    number = rows["detail"][waits].astype(np.int64) - 1  # of what is waited for
    known = (number >= 0) & (number < len(rows))
    number = np.where(known, number, 0)
    message = (kind[number] == rec.SEND) | (kind[number] == rec.RECV)
    waits[waits] = known & ((kind[number] == rec.COLLECTIVE) | (message & own[number]))
    return (calls | messages | waits) & (rows["t1"] > 0)
