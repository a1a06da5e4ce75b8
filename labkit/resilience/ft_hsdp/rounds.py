"""The beginning of an attempt: the leader asks for a quorum and tells its ranks."""

from __future__ import annotations

from labkit.resilience.quorum import NoQuorum

from .data import is_finished
from .life import Incarnation, Phases
from .protocol import Decision
from .vote import tell


def next_decision(life: Incarnation, phases: Phases) -> Decision:
    """With whom to try the next step; every rank of the replica calls it and learns the same.

    The leader asks again and again, each time for less than its ranks wait for its word.
    """
    with phases.phase("quorum"):
        limit = min(life.config.deadlines.join, life.group.context.timeout)
        found = _ask(life, limit / 2).to_json() if life.leads else None
        return Decision.from_json(tell(life.inner, found, limit))


def _ask(life: Incarnation, seconds: float) -> Decision:
    over = Decision(None, True, "the others have all steps behind them")
    ahead = life.state.step < life.steps
    if ahead and is_finished(life.folder, life.run):
        return over
    try:
        quorum = life.client.join(
            life.replica, life.incarnation, life.state.step, lineage=life.state.lineage, failed=life.failed,
            shrink_only=life.failed, data=life.told, timeout=seconds,
        )  # fmt: skip
    except NoQuorum as why:
        return Decision(None, False, str(why))
    if ahead and is_finished(life.folder, life.run):  # they ended while this replica was asking
        return over
    return Decision(quorum)
