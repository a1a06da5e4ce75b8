"""The beginning of an attempt: the leader asks for a quorum and tells its ranks."""

from __future__ import annotations

from labkit.resilience.quorum import NoQuorum

from .data import is_finished
from .life import Life, Phases
from .protocol import Decision
from .vote import tell


def next_decision(life: Life, phases: Phases) -> Decision:
    """With whom to try the next step; every rank of the replica calls it and learns the same.

    The inner wait has the limit of a hang: the leader's own wait for a quorum is shorter.
    """
    with phases.phase("quorum"):
        found = _ask(life).to_json() if life.leads else None
        return Decision.from_json(tell(life.inner, found, life.config.deadlines.hang))


def _ask(life: Life) -> Decision:
    over = Decision(None, True, "the others have all steps behind them")
    ahead = life.state.step < life.steps
    if ahead and is_finished(life.folder, life.run):
        return over
    try:
        quorum = life.client.join(
            life.replica, life.incarnation, life.state.step, lineage=life.state.lineage, failed=life.failed,
            shrink_only=life.failed, data=life.told, timeout=life.config.deadlines.join,
        )  # fmt: skip
    except NoQuorum as why:
        return Decision(None, False, str(why))
    if ahead and is_finished(life.folder, life.run):  # they ended while this replica was asking
        return over
    return Decision(quorum)
