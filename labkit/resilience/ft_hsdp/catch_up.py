"""How a replica that is behind takes over the state: begun before the exchange, ended after it, while others train."""

from __future__ import annotations

import time

from labkit.resilience.errors import Recoverable
from labkit.resilience.quorum import Quorum

from .life import Incarnation, Outcome, Phases
from .protocol import sources
from .transfer import Fetch
from .vote import vote


def begin_fetch(life: Incarnation, quorum: Quorum, phases: Phases) -> Fetch:
    """Start to fetch this rank's part of the state that the quorum begins with."""
    limits = life.config.deadlines
    with phases.phase("transfer"):
        return Fetch(
            sources(quorum, life.replica, life.rank), life.token, quorum.version, piece=life.config.transfer_bytes,
            patience=limits.message, deadline=time.monotonic() + limits.step,
        )  # fmt: skip


def finish_fetch(life: Incarnation, fetch: Fetch, outcome: Outcome, phases: Phases) -> bool:
    """Wait for the state, at most `join_wait`; load it if all ranks of this replica have theirs. Whether it was loaded.

    The others are in the next round by now, and wait for this replica there.
    """
    found, why = None, ""
    with phases.phase("transfer"):
        try:
            found = fetch.wait(life.config.join_wait)
        except Recoverable as error:
            why = str(error)
        against = vote(life.inner, found is not None, life.config.join_wait + life.config.deadlines.vote)
    if against >= 0:
        outcome.why = why or f"rank {against} of this replica could not fetch the state"
        return False
    assert found is not None
    with phases.phase("load"):
        life.offload.to_device()
        life.state.load(found.snapshot)
        life.offload.to_host()
    life.fetched += found.nbytes
    life.tries = 0
    state = life.state
    life.log.fetch(state.step, outcome.quorum.id, found.source, state.positions, state.checksum, found.nbytes)
    return True
