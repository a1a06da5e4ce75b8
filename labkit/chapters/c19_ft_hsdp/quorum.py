"""Seeded histories of a quorum service, the right decision at each moment of them, and what a wrong one comes from.

The decision is `labkit.resilience.quorum.rounds.decide`, the one that the book's runs go by. A history is led by the
right decisions; who decides as they do at every moment has made the same history.
"""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.grading.checks.fresh import number_from
from labkit.grading.checks.student import Evidence, Student
from labkit.grading.known import Answers

answers = Answers("19_ft_hsdp")  # what only instructors can compute


Moment = dict[str, Any]  # what is known, plain data: see the statement of the exercise
Decision = dict[str, Any] | None
PATIENCE = 5.0


right_decision = answers.right_decision


# Histories ------------------------------------------------------------------------------------------------------------


def history(random: Random, replicas: int, events: int) -> list[tuple[Moment, Decision]]:
    """The moments of one history: replicas ask, commit or fail, die, come back, are silent, and time passes."""
    rows = [_row(r) for r in range(replicas)]
    busy: dict[int, tuple[int, int]] = {}  # replica -> (id, step) of the quorum in whose step it is
    latest: dict[str, Any] | None = None
    next_id, now, moments = 1, 0.0, []
    least = random.choice((1, 1, 2))
    failing = 0.0  # the chance that a member fails: the same for all, since they exchange with one another
    for _ in range(events):
        now += random.choice((0.0, 0.1, 0.5, 0.5, 2.0, 6.0))
        row = random.choice(rows)
        if random.random() < 0.02 and latest is not None:  # the members of the quorum are lost, or all but one
            lost = [rows[r] for r, _ in latest["lives"]]
        else:
            lost = [row] if row["alive"] and random.random() < 0.05 else []
        for x in lost:
            x.update(alive=False, asks=False, since=None, failed=False)
            busy.pop(x["replica"], None)
        if not row["alive"] and not lost and random.random() < 0.5:
            row.update(_row(row["replica"], row["life"] + 1))
        elif row["alive"] and not row["asks"]:
            number, step = busy.pop(row["replica"], (0, 0))
            failed = number > 0 and random.random() < failing
            row.update(asks=True, since=now, failed=failed)
            if number and not failed:
                row.update(version=[step + 1, number])
        moment = {
            "latest": latest and {**latest, "lives": [list(x) for x in latest["lives"]]}, "next_id": next_id,
            "now": round(now, 3), "patience": PATIENCE, "least": least,
            "replicas": [{**x, "version": list(x["version"])} for x in rows],
        }  # fmt: skip
        found = right_decision(moment)
        moments.append((moment, found))
        if found is None:
            continue
        failing = random.choice((0.0, 0.0, 0.3, 0.8))
        chosen = [x for x in rows if x["replica"] in found["members"]]
        best = max(x["version"] for x in chosen)
        latest = {"id": found["id"], "step": best[0], "lives": [[x["replica"], x["life"]] for x in chosen]}
        next_id = max(next_id, found["id"] + 1)
        for x in chosen:
            x.update(asks=False, since=None, failed=False, version=list(best))
            busy[x["replica"]] = (found["id"], best[0])
    return moments


def _row(replica: int, life: int = 1) -> dict[str, Any]:
    return {"replica": replica, "life": life, "alive": True, "asks": False, "since": None, "failed": False,
            "version": [0, 0]}  # fmt: skip


Known = list[list[tuple[Moment, Decision]]]


def some_moments(student: Student, n: int, histories: int, events: int) -> Known:
    """By rank: the moments of several histories, of 2 to 6 replicas, each with the right decision.

    Of three times as many histories those are taken in which most different things happen.
    """
    random = Random(number_from(student.seed, "quorums", n, histories, events))
    known = []
    for rank in range(n):
        drawn = [history(random, 2 + (h + rank) % 5, events) for h in range(3 * histories)]
        drawn.sort(key=lambda pairs: -len(set().union(*(_kinds(*pair) for pair in pairs))))
        known.append([pair for pairs in drawn[:histories] for pair in pairs])
    return known


def _kinds(moment: Moment, found: Decision) -> set[str]:
    """What is rare in this moment."""
    rows = moment["replicas"]
    if found is None:
        held = max((x["version"] for x in rows if x["alive"] and not x["asks"]), default=[0, 0])
        asks = [x["version"] for x in rows if x["asks"]]
        return {"held by one that does not ask"} if asks and held > max(asks) else set()
    chosen = [x for x in rows if x["replica"] in found["members"]]
    versions = {tuple(x["version"]) for x in chosen}
    kinds = {"one step, two states"} if len({step for step, _ in versions}) < len(versions) else set()
    if any(x["failed"] for x in chosen):
        kinds |= {"newcomers at a failure"} if sum(x["asks"] for x in rows) > len(chosen) else {"a failure"}
    return kinds | ({"the same id"} if found["id"] < moment["next_id"] else set())


def moments_of(known: Known) -> list[list[Moment]]:
    """What the ranks are given: the moments alone."""
    return [[moment for moment, _ in pairs] for pairs in known]


# What a wrong decision comes from -------------------------------------------------------------------------------------


def expect_decisions(student: Student, run: Evidence, known: Known) -> None:
    """Every rank decided each of its moments as the service does."""
    for rank, (got, moments) in enumerate(zip(run.results, known, strict=True)):
        fine = isinstance(got, list) and len(got) == len(moments)
        text = "Rank {rank} did not return a list with a decision for each of its {count} moments."
        student.expect(fine, text, rank=rank, count=len(moments))
        for number, (mine, (moment, want)) in enumerate(zip(got, moments, strict=True)):
            if mine == want:
                continue
            text = "Moment {number} of rank {rank}, {what}: {why}\n{moment}"
            what = f"you say {_words(mine)}, and it should be {_words(want)}"
            student.expect(False, text, number=number, rank=rank, what=what, why=why(mine, want, moment),
                           moment=shown(moment))  # fmt: skip


def why(got: Any, want: Decision, moment: Moment) -> str:
    """A likely cause of a decision that is not the right one."""
    if got is not None and not (isinstance(got, dict) and set(got) == {"id", "members", "healthy"}):
        return 'return None, or a dictionary with "id", "members" and "healthy".'
    latest, rows = moment["latest"], moment["replicas"]
    lives = latest["lives"] if latest else []
    members = [x for x in rows if x["alive"] and [x["replica"], x["life"]] in lives]
    asking = [x for x in members if x["asks"]]
    if want is None:
        return _too_early(got, moment, members, asking)
    if got is None:
        if members and len(asking) == len(members):
            return "all living members have asked. That is the fast path: it waits for nobody else, and for no clock."
        if not members and latest is not None:
            return "no member lives. Then those that ask may form one, when all the living have asked or time is up."
        return "somebody has waited for `patience` seconds: who has not asked by now is left out."
    if got["members"] != want["members"]:
        dead = [x["replica"] for x in rows if not x["alive"]]
        if set(got["members"]) & set(dead):
            return "a replica that is dead is among them."
        if any(x["failed"] for x in asking) and len(got["members"]) > len(want["members"]):
            return "a member has failed: after that a round may only shrink. Newcomers wait for the next one."
        if len(got["members"]) < len(want["members"]):
            return "somebody that lives and asks is missing. After a failure members are taken, if they are enough."
        return "look at who lives, who asks, and whose life is the one of the latest quorum."
    if got["healthy"] != want["healthy"]:
        versions = {x["replica"]: x["version"] for x in rows}
        if {versions.get(r, [None])[0] for r in got["healthy"]} == {versions[want["healthy"][0]][0]}:
            return "two members have the same step, from different quorums: these are two states. Compare versions."
        return "healthy are those members with the highest version, and nobody else."
    if got["id"] != want["id"]:
        if want["id"] == moment["next_id"]:
            return "the id stays only for the same lives, all of one version that this quorum made, and no failure."
        return "the members are the same, and nothing failed: their connections are good, so the id stays."
    return "members and healthy are lists of numbers, in order."


def _too_early(got: Any, moment: Moment, members: list[Any], asking: list[Any]) -> str:
    rows = moment["replicas"]
    if not any(x["asks"] for x in rows):
        return "nobody asks."
    if members and not asking:
        return "living members are in the middle of a step. A quorum of newcomers would be a second one beside theirs."
    begun = asking if members else [x for x in rows if x["asks"]]
    absent = [x for x in (members or [x for x in rows if x["alive"]]) if not x["asks"]]
    since = min(x["since"] for x in begun)
    if absent and moment["now"] < since + moment["patience"]:
        return "a member that lives has not asked yet, and the time for it is not over." if members else (
            "not all that live have asked, and the time for it is not over.")  # fmt: skip
    if len(got["members"]) < moment["least"]:
        return "these are fewer than `least`."
    return "a living replica that has not asked holds a higher version than all that have. A state is not thrown away."


def _words(decision: Any) -> str:
    if isinstance(decision, dict) and set(decision) == {"id", "members", "healthy"}:
        return f"quorum {decision['id']} of {decision['members']}, healthy {decision['healthy']}"
    return "to wait" if decision is None else f"{decision!r:.60}"


def shown(moment: Moment) -> str:
    """A moment as a few lines of text."""
    latest = moment["latest"]
    first = f"now {moment['now']:g} s, patience {moment['patience']:g} s, least {moment['least']}, latest "
    lines = [first + (f"{latest['id']} for step {latest['step']}, lives {latest['lives']}" if latest else "none")]
    for x in moment["replicas"]:
        does = f"asks since {x['since']:g} s{', failed' if x['failed'] else ''}" if x["asks"] else "does not ask"
        does = does if x["alive"] else "is dead"
        lines.append(f"replica {x['replica']}, life {x['life']}: {does}, version {x['version']}")
    return "\n".join(lines)
