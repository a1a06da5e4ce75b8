"""What the programs of the exercises return, computed on one rank: what their checks compare with."""

from __future__ import annotations

from labkit.chapters.c19_ft_hsdp.quorum import Decision, Moment
from labkit.resilience.quorum.membership import Member, Quorum
from labkit.resilience.quorum.rounds import decide
from labkit.resilience.quorum.rules import Rules
from labkit.resilience.quorum.slots import DEAD, LIVE, Join, Slot


def right_decision(moment: Moment) -> Decision:
    """What follows from `moment`: None (wait), or the quorum's id, members and healthy members."""
    latest, slots = _latest(moment), []
    for x in moment["replicas"]:
        slot = Slot(x["replica"], x["life"], LIVE if x["alive"] else DEAD, since=x["since"])
        slot.holds = tuple(x["version"])
        if x["asks"]:
            slot.join = Join(x["replica"], x["since"], float("inf"), slot.holds, x["failed"], x["failed"], {})
        slots.append(slot)
    patience = moment["patience"]
    rules = Rules(len(slots), min_replicas=moment["least"], join=patience, first=patience)
    members = decide(slots, latest, rules, moment["now"]).members
    if members is None:
        return None
    joins = [slot.join for slot in members if slot.join is not None]
    step, lineage = max(join.version for join in joins)
    lives = {(slot.replica, slot.incarnation) for slot in members}
    keep = (
        latest is not None and lives == latest.lives and not any(join.failed for join in joins)
        and all(join.version == (step, latest.id) for join in joins) and step > latest.step
    )  # fmt: skip
    return {
        "id": latest.id if keep and latest is not None else moment["next_id"],
        "members": [slot.replica for slot in members],
        "healthy": [s.replica for s, join in zip(members, joins, strict=True) if join.version == (step, lineage)],
    }


def _latest(moment: Moment) -> Quorum | None:
    found = moment["latest"]
    if found is None:
        return None
    return Quorum(found["id"], found["step"], 0, tuple(Member(r, life, 0) for r, life in found["lives"]))
