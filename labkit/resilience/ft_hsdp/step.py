"""One attempt at one step, as `protocol` describes it: train or catch up, exchange, vote, commit or discard."""

from __future__ import annotations

from labkit.resilience.errors import Fatal, Recoverable
from labkit.resilience.quorum import Quorum
from labkit.wire.errors import RefusedError

from .catch_up import begin_fetch, finish_fetch
from .data import note_quorum, write_loader_state
from .life import Incarnation, Outcome, Phases
from .protocol import FINISHED, RECOVERING, role, world_ranks
from .transfer import Fetch
from .update import apply_update, train_batch
from .vote import vote


def attempt(life: Incarnation, quorum: Quorum, phases: Phases) -> Outcome:
    """Try the step of `quorum`. What others did wrong comes back in the outcome; what is wrong here is raised."""
    outcome = Outcome(role(quorum, life.replica, life.steps), quorum)
    if outcome.role != RECOVERING and quorum.recovering:
        with phases.phase("stage"):
            life.stager.stage()
    elif outcome.role != RECOVERING:
        life.stager.drop()
    if outcome.role == FINISHED:
        return outcome
    fetch: Fetch | None = None
    if outcome.role == RECOVERING:
        with phases.phase("catch up"):
            fetch = begin_fetch(life, quorum, phases)
    if quorum.step >= life.steps:  # nothing is left to train; the state is all that is wanted
        assert fetch is not None
        finish_fetch(life, fetch, outcome, phases)
        return outcome
    taken = life.config.batch if fetch is None else 0
    problem = _train_and_exchange(life, quorum, taken, phases)
    if fetch is not None and not finish_fetch(life, fetch, outcome, phases):
        problem = problem or Recoverable(outcome.why)
    _decide(life, quorum, taken, problem, outcome, phases)
    return outcome


def _train_and_exchange(life: Incarnation, quorum: Quorum, taken: int, phases: Phases) -> Recoverable | None:
    """Forward, backward and the exchange; what went wrong in it, or None. taken: samples to train; 0 for zeros."""
    config, gradients = life.config, life.gradients
    try:
        if life.ring != quorum.id:
            with phases.phase("rebuild"):
                life.ftar.rebuild(world_ranks(quorum, life.rank), epoch=quorum.id)
                life.ring = quorum.id
                if life.leads:
                    note_quorum(life.folder, life.replica, quorum)
    except Recoverable as error:
        return error
    gradients.begin()
    value = train_batch(config, life.state, life.loss, life.replica, phases.phase) if taken else 0.0
    with phases.phase("exchange"):
        gradients.end(value, 1.0 if taken else 0.0)
        problem = life.ftar.finish()
    if problem is not None:
        return problem
    trained = round(gradients.sums()[1])
    if trained != len(quorum.healthy):
        raise Fatal(
            f"replica {life.replica} rank {life.rank}: {trained} replicas trained step {quorum.step}, and "
            f"quorum {quorum.id} has {len(quorum.healthy)} healthy ones: its members do not agree on who trains"
        )
    return None


def _decide(
    life: Incarnation, quorum: Quorum, taken: int, problem: Recoverable | None, outcome: Outcome, phases: Phases
) -> None:
    """Vote, then commit or discard."""
    with phases.phase("vote"):
        if problem is None and life.leads and len(quorum.members) == 1:  # nobody else would notice that it is over
            if not life.client.confirm(life.replica, life.incarnation, quorum.id):
                problem = Recoverable(f"quorum {quorum.id} is not the latest any more")
        here = life.state.positions[life.replica]
        life.log.vote(quorum.step, quorum.id, (here, here + taken), problem is None, str(problem or ""))
        against = vote(life.inner, problem is None, life.config.deadlines.vote)
    if against >= 0:
        outcome.why = str(problem or "") or f"rank {against} of this replica did not finish its exchange"
        life.gradients.drop()
        return
    with phases.phase("commit"):
        outcome.loss = _commit(life, quorum)
        outcome.committed = True


def _commit(life: Incarnation, quorum: Quorum) -> float:
    """Apply the update that all ranks of this replica have; returns the mean loss of those who trained."""
    config, state = life.config, life.state
    contributors = [m.replica for m in quorum.healthy]
    life.stager.settle()
    parent = state.checksum
    mean = apply_update(config, state, life.gradients, life.offload, life.rates, contributors)
    state.lineage = quorum.id
    if state.step % config.sum_every == 0 or state.step == life.steps:
        state.sum_up()
    else:
        state.follow(f"{quorum.id} {contributors}")
    life.log.commit(state.step - 1, quorum.id, contributors, state.positions, parent, state.checksum, mean,
                    members=quorum.replicas)  # fmt: skip
    if life.leads:
        found = {"step": state.step, "lineage": state.lineage, "positions": state.positions, "batch": config.batch}
        write_loader_state(life.folder, life.replica, found)
    if state.step % config.checkpoint_every == 0:
        persist(life, writes=life.replica == contributors[0])  # states are the same everywhere: one replica writes
    return mean


def persist(life: Incarnation, writes: bool) -> None:
    """Keep the state where it survives all processes; or leave that to another replica."""
    keeper = life.config.checkpoint
    if keeper is None:
        return
    try:
        keeper.save(life.inner, life.state) if writes else keeper.rest()
    except RefusedError as why:  # on all ranks: a full disk is no reason to stop training
        life.unsaved.append(f"step {life.state.step}: {why}")
