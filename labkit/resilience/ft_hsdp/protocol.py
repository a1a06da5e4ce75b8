"""The protocol of fault-tolerant HSDP, and why no sample is lost or doubled and no two replicas drift apart.

After Salpekar et al. 2026, "Training LLMs with Fault Tolerant HSDP on 100,000 GPUs", sections 4 and 5.

Who there is. A replica is `ranks` processes that hold one copy of the training state among them. Rank 0 leads it: only
the leader speaks with the quorum service, and it tells its ranks over the inner group. Rank i of all replicas exchange
gradients in a group of their own, made anew for each quorum. If a rank of a replica ends, for whatever reason, all its
ranks end and start again together: a replica is the unit of failure, and no rank outlives a broken inner group.

The state. Parameters, optimizer state, the number of the next step, and `positions`: how many samples of every
replica's stream are consumed. Its version is (step, lineage), where lineage is the id of the quorum under which the
last update was applied. All members of a quorum start a step from one version and apply at most one update, so equal
versions are equal states, to the bit. What a replica feeds to a step is a function of the state and of its number:
samples [positions[r], positions[r] + batch) of stream r, and the random numbers of dropout drawn from those.

A replica is in one of five conditions.

    starting     builds, trains a batch for nothing, starts its server ("first step"); a spare waits here for a place.
                 Then it checks in. Its version is (0, 0), or that of a checkpoint.
    healthy      member of the quorum with the highest version: trains, and serves its state if anybody is behind
    recovering   member with another version: fetches that state, contributes zeros with weight 0
    finished     its state has all steps behind it: serves those that are behind, leaves when nobody is
    left behind  it came when the others were through: ends without a state

An attempt at step n, on every rank. Letters mark the places where a process may die.

    a   leader: join(step, lineage, failed) -> quorum; sends it to its ranks                         span "quorum"
    b   a new id: rebuild the group of rank i over the members                                       span "rebuild"
    c   healthy: if somebody recovers, copy the state to host memory         spans "stage", "serve" (each piece of it)
        recovering: begin to fetch it from a healthy replica, in the background          spans "catch up", "transfer"
    d   healthy: forward and backward; the exchange of full buckets begins meanwhile     spans "forward", "backward"
    e   exchange: sums of gradients, of losses, of weights, within their deadlines                   span "exchange"
    f   recovering: wait for the fetch, at most join_wait; vote on it; all ranks load it, or none
                                                                                             spans "transfer", "load"
    g   vote: each rank writes down how its exchange went, then tells its leader                     span "vote"
    h   the leader decides: yes if all said yes. It tells its ranks
    i   commit: divide by the number of healthy, update, positions and version move, write it down  span "commit"
        else: discard the gradients and begin at a with failed=True; nobody may join in that round

The exchange carries weights beside gradients: their sum must be the number of healthy replicas that each rank read in
its quorum, else this rank ends (the members do not agree on who trains, and no retry heals that).
A zero gradient does not depend on the state. So a recovering replica exchanges while it fetches, and the healthy never
wait for a transfer inside a step. Only in the next round they wait for it, join_wait at the most.

What each death does.

    Before e, any rank of replica C. Its ranks' groups lose a member. All others vote no, or some vote yes (below). C
    restarts; nothing of the state is gone, since all healthy replicas hold it.

    Between h and i, the leader or any other rank: some ranks of C applied the update, others did not. Nobody can see
    the difference: C restarts as a whole and fetches a state. Nobody fetches from C, because a state is served only
    by members of a later quorum, which C joins in a new incarnation, at the version of a fresh replica. In the audit
    the applied update has a yes vote of every rank of C before it (votes are written before they are sent), so it was
    agreed; it need not have been applied by all ranks of a life that went no further.

    Two replicas decide differently: A got everything, B and C lost a neighbour in the last round of the ring. A is at
    (n+1, q), B and C at (n, p). In the next quorum A's version is the highest, B and C recover from A. Their samples
    of step n are in A's sum, and A's positions say so: they do not train them again.
    If A is gone by then, B and C train step n once more, with the same samples: the update that only A had exists
    nowhere. If A was not gone but stood still, and comes back at (n+1, q) when B and C are at (n+1, q'): q' > q, so
    theirs is the highest version, and A recovers. One branch lives on; which one decides what was consumed, and every
    branch for itself has each of its samples once.

    The source of a transfer dies: pieces are checked one by one, and the next healthy replica gives the rest, since
    states of one version are equal to the bit. If no source is left, the replica votes no on its fetch, and joins the
    next round with the state it had. A state is loaded by all ranks of a replica or by none.

    A replica fails again while it recovers: for the others it is a member that died, as above.

    All replicas but one: a quorum of one (if min_replicas allows), a group of one, the same steps. Nobody else's
    silence could tell it that its quorum is over, so its leader asks the service before it votes.

    All: the next ones to start hold a fresh state or the last persistent checkpoint; positions lie in it, so what was
    trained after it is trained again, by a lineage in which it happens once.

    A rank that was stopped and wakes up in an old incarnation: its inner group is gone (PeerLost ends it), and the
    service answers a join of an old incarnation with OldIncarnation, which ends it. If the whole replica slept and
    was not replaced, its sockets have been closed by the others' rebuild: it votes no, joins, and is behind.

Why nobody waits for ever. Every wait has a limit: messages and exchanges those of `Deadlines`, the vote its own, a
fetch join_wait, a join the service's. What ends a wait is caught where the replica can go on (exchange, fetch, join),
and ends the rank everywhere else; the supervisor ends what does neither.

Why nobody tries for ever. A rank that is slower than the deadlines of the others dies nowhere and is never silent, but
it breaks each of their tries, and its replica joins each round last. After `evict` rounds in which nobody committed,
the service ends the life of the one that was last most often, and its supervisor starts it anew; unless nobody else
holds the best state.

When it is over. A replica whose state has all steps goes on joining, so that who is behind can fetch. In a quorum in
which nobody is behind, all members stop. Their leaders first write `finished` into the folder of the run: who comes
back later finds it, and does not begin a lineage of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.resilience.quorum import Quorum

HEALTHY, RECOVERING, FINISHED = "healthy", "recovering", "finished"


@dataclass(frozen=True)
class Decision:
    """What the leader tells its ranks at the beginning of an attempt. quorum: None if there is none to go by.

    over: the run is over for this replica. why: in words, where there is no quorum.
    """

    quorum: Quorum | None
    over: bool = False
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"quorum": self.quorum and self.quorum.to_json(), "over": self.over, "why": self.why}

    @staticmethod
    def from_json(found: dict[str, Any]) -> Decision:
        quorum = Quorum.from_json(found["quorum"]) if found["quorum"] else None
        return Decision(quorum, found["over"], found["why"])


def world_ranks(quorum: Quorum, rank: int) -> list[int]:
    """The world ranks of rank `rank` of every member, in the order of the quorum: the ring of that rank."""
    return [member.data["world"][rank] for member in quorum.members]


def sources(quorum: Quorum, replica: int, rank: int) -> list[tuple[int, str]]:
    """(replica, address of the server) of all healthy members, in the order in which this rank asks them."""
    members = [quorum.source_of(replica, rank, attempt) for attempt in range(len(quorum.healthy))]
    return [(m.replica, m.data["servers"][rank]) for m in members]


def role(quorum: Quorum, replica: int, steps: int) -> str:
    """What this replica is to do: train, catch up, or (all steps are done) serve who is behind."""
    if not quorum.is_healthy(replica):
        return RECOVERING
    return FINISHED if quorum.step >= steps else HEALTHY
