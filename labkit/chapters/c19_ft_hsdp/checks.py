"""What the checks of chapter 19 compare with: an average of those that trained, a vote, and lives of replicas.

Plans of what is lost where follow from the seed of the check. `chapter_19_quorum` and `chapter_19_audit` have the rest.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from labkit.grading.checks.fresh import number_from
from labkit.grading.checks.student import Evidence, Slips, Student
from labkit.resilience.rehearse import KILLED, gradient_of

APPLIED, DISCARDED, LOST = "applied", "discarded", "lost"


def dice(student: Student, *what: object) -> Random:
    """Random choices of a check, by its seed."""
    return Random(number_from(student.seed, "chapter 19", *what))


# An average of those that trained -----------------------------------------------------------------------------------


def some_gradients(student: Student, n: int, numel: int, trained: set[int]) -> list[dict[str, Any]]:
    """By rank: a gradient, and whether the rank trained. What did not train has old memory in its place."""
    inputs = []
    for rank in range(n):
        gradient = student.tensor(numel)
        if rank not in trained:
            gradient[:: 2 + rank] = float("nan") if rank % 2 else float("inf")
        inputs.append({"gradient": gradient, "trained": rank in trained})
    return inputs


def expect_average(student: Student, run: Evidence, inputs: list[dict[str, Any]]) -> None:
    """Every rank has the mean over those that trained; None if nobody did."""
    n, given = len(inputs), [x["gradient"] for x in inputs if x["trained"]]
    if not given:
        for rank, got in enumerate(run.results):
            text = "Nobody trained, and rank {rank} returned something. There is no average of nothing: return None."
            student.expect(got is None, text, rank=rank)
        return
    mean = torch.stack(given).sum(0) / len(given)
    for rank, got in enumerate(run.results):
        broken = isinstance(got, Tensor) and got.is_floating_point() and not torch.isfinite(got).all()
        text = (
            "With {n} ranks: rank {rank} returned nan or inf. Who did not train has old memory in its gradient, and "
            "0 times nan is nan."
        )
        student.expect(not broken, text, n=n, rank=rank)
    slips: Slips = {
        f"With {n} ranks of which {len(given)} trained: you divided by all {n}.": [mean * len(given) / n] * n,
        f"With {n} ranks of which {len(given)} trained: that is their sum.": [mean * len(given)] * n,
    }
    student.expect_results(run, [mean] * n, slips if len(given) < n else None, within=1e-6)


def expect_few_bytes(student: Student, run: Evidence, n: int, numel: int) -> None:
    """An all-reduce, by whichever algorithm, and not everybody's gradient to everybody."""
    most, sent = int(2.2 * n * 4 * (numel + 1)), sum(run.bytes_sent)
    text = (
        "With {n} ranks and {numel} numbers all ranks together sent {sent:bytes}. An all-reduce sends {want:bytes} or "
        "a little more: add up on the way instead of collecting all gradients."
    )
    want = 2 * (n - 1) * 4 * (numel + 1)
    student.expect(sent <= most, text, n=n, numel=numel, sent=sent, want=want)


# All ranks of a replica, or none ------------------------------------------------------------------------------------


def some_votes(student: Student, n: int, attempts: int, loss: str = "", early: bool = False) -> list[dict[str, Any]]:
    """By rank: a plan of attempts at a step. loss: where a rank is lost, "" for nowhere; early: in one of the first.

    well[k]: whether the exchange of attempt k went well on this rank. sums[k]: what it brought; half sums where not.
    """
    random = dice(student, n, attempts, loss, early)
    lost = 0 if loss == "decide" else random.randrange(n)
    when = random.randrange(1, attempts - 1) if loss else -1
    whole = [student.tensor(4) for _ in range(attempts)]
    against = [random.sample(range(n), random.choice((1, 1, n))) if k % 2 else [] for k in range(attempts)]
    against[1] = [random.randrange(1, n)] if n > 1 else [0]  # not the leader
    against[when] = [] if loss else against[when]
    inputs = []
    for rank in range(n):
        well = [rank not in no for no in against]
        sums = [x if fine else student.tensor(4) for x, fine in zip(whole, well, strict=True)]
        start = torch.arange(4.0) * 3
        dies = [loss, when] if loss and rank == lost else None
        inputs.append({"weights": start, "momentum": start * 0, "sums": sums, "well": well, "dies": dies})
    return inputs


def votes_expected(inputs: list[dict[str, Any]], wrong: str = "") -> list[Any]:
    """What each rank returns: [weights, momentum, what became of each attempt], or "killed". wrong: a known slip."""
    place, when = next((x["dies"] for x in inputs if x["dies"]), ("", -1))
    results: list[Any] = []
    for x in inputs:
        weights, momentum, said = x["weights"].clone(), x["momentum"].clone(), []
        for k, (total, own) in enumerate(zip(x["sums"], x["well"], strict=True)):
            gone = k == when and place != "commit" or 0 <= when < k
            agreed = own if wrong == "alone" else all(other["well"][k] for other in inputs)
            agreed = any(other["well"][k] for other in inputs) if wrong == "any" else agreed
            agreed = inputs[0]["well"][k] if wrong == "leader" else agreed
            if gone and not (wrong == "presumed" and own and place == "decide"):
                said.append(LOST)
                break
            if agreed or wrong == "momentum":
                momentum = momentum / 2 + total
            if agreed:
                weights = weights - momentum
            said.append(APPLIED if agreed else DISCARDED)
            if gone:
                break
        results.append(KILLED if x["dies"] else [weights, momentum, said])
    return results


def expect_votes(student: Student, run: Evidence, inputs: list[dict[str, Any]]) -> None:
    """All ranks did the same with each attempt, and the right thing."""
    n, right = len(inputs), votes_expected(inputs)
    place, when = next((x["dies"] for x in inputs if x["dies"]), ("", -1))
    slips = {
        "A rank applied what another one had to discard: every rank went by its own exchange.": "alone",
        "An attempt was applied although a rank had voted against it: one vote in favour is not enough.": "any",
        "The leader went by its own exchange: it has to hear all ranks before it decides.": "leader",
        "The momentum of a discarded attempt was kept. The optimizer may not see a gradient before the decision.":
            "momentum",
        "Rank 0 was lost before it told its decision, and a rank that had voted yes applied the update. It cannot know "
        "what the others voted.": "presumed",
    }  # fmt: skip
    got = [x[0] if isinstance(x, list) and len(x) == 1 else x for x in run.results]
    wrong = {text: votes_expected(inputs, name) for text, name in slips.items()}
    where = f"With {n} ranks, of which one is lost at {place!r} of attempt {when}" if place else f"With {n} ranks"
    for rank, (mine, want) in enumerate(zip(got, right, strict=True)):
        text = "{where}: rank {rank} {what}. Call reach with the number of the attempt at each of the three places."
        what = "was lost elsewhere" if isinstance(mine, str) else "went on after it should have been lost"
        student.expect((mine == KILLED) == isinstance(want, str) if isinstance(mine, str) or isinstance(want, str) else
                       True, text, where=where, rank=rank, what=what)  # fmt: skip
    for rank, (mine, want) in enumerate(zip(got, right, strict=True)):
        fine = isinstance(mine, str) or isinstance(mine, list) and len(mine) == 3 and isinstance(mine[2], list)
        student.expect(fine, f"{where}: rank {rank} did not return [weights, momentum, history].")
        if isinstance(mine, str) or any(equal(got, x) for x in wrong.values()):
            continue
        text = "{where}: the history of rank {rank} is {mine}, and should be {want}."
        student.expect(mine[2] == want[2], text, where=where, rank=rank, mine=mine[2], want=want[2])
    student.expect_results(Evidence(got), right, {text: x for text, x in wrong.items() if not equal(x, right)})


def expect_small_votes(student: Student, run: Evidence, attempts: int) -> None:
    """No rank sent more than a few numbers for each attempt."""
    for rank, sent in enumerate(run.bytes_sent):
        text = "Rank {rank} sent {sent:bytes} in {attempts} attempts. A vote is one number; the gradients stay."
        student.expect(sent <= attempts * 64, text, rank=rank, sent=sent, attempts=attempts)


def equal(a: Any, b: Any) -> bool:
    """Equal data, tensors by their entries."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


# A replica leaves, and returns --------------------------------------------------------------------------------------


MOST_RINGS = {3: 9, 4: 6, 5: 5}  # by replicas: each takes connections, of which the grader's switch counts all


def some_lives(student: Student, n: int, attempts: int, width: int, batch: int) -> list[dict[str, Any]]:
    """By replica: its lives, each with the quorums of which it was a member, the first weights, and where it is lost.

    A replica that is lost at an exchange is away for some attempts and comes back with a new life, behind the others.
    At least one replica is never lost, and one of the others is lost as the source of a transfer, if there is one.
    """
    random = dice(student, "lives", n, attempts)
    start = student.tensor(width).double()
    stays = random.randrange(n)
    lives: list[list[dict[str, Any]]] = [[_life(start)] for _ in range(n)]
    here, healthy, away = set(range(n)), set(range(n)), dict[int, int]()
    number, last, first_loss = 1, sorted(range(n)), random.randrange(1, 3)
    for k in range(attempts):
        for r in [r for r, until in away.items() if until <= k]:
            del away[r]
            lives[r].append(_life(start))
            here.add(r)
        members = sorted(here)
        if members != last:
            number, last = number + 1, members
        now = sorted(healthy & here)
        for r in members:
            lives[r][-1]["quorums"].append({"id": number, "members": members, "healthy": now})
        could = [r for r in members if r != stays]
        source = now[0] if now[0] != stays and len(now) < len(members) else None
        again = number + len(away) + 2 <= MOST_RINGS[n]
        fails = (
            again and could and k < attempts - 2 and (k == first_loss or random.random() < 0.25 or source is not None)
        )
        if not fails:
            healthy = set(members)
            continue
        lost = source if source is not None else random.choice(could)
        lives[lost][-1]["dies"] = ["exchange", len(lives[lost][-1]["quorums"]) - 1]
        here.discard(lost)
        healthy.discard(lost)
        away[lost] = k + random.randrange(1, 4)
        last = []
    return [{"replicas": n, "batch": batch, "lives": each} for each in lives]


def _life(start: Tensor) -> dict[str, Any]:
    return {"weights": start, "quorums": [], "dies": None}


def lives_expected(inputs: list[dict[str, Any]], wrong: str = "") -> list[Any]:
    """What each replica returns for each of its lives: [weights, positions, samples that it trained], or "killed"."""
    n, batch = len(inputs), inputs[0]["batch"]
    nobody = torch.zeros(n, dtype=torch.int64)
    at, k = [0] * n, [0] * n  # life of each replica, and its attempt in it
    state = [[x["lives"][0]["weights"], nobody, []] for x in inputs]
    results: list[list[Any]] = [[] for _ in inputs]

    def coming(r: int) -> dict[str, Any] | None:
        life = inputs[r]["lives"][at[r]] if at[r] < len(inputs[r]["lives"]) else None
        return life["quorums"][k[r]] if life and k[r] < len(life["quorums"]) else None

    while any(coming(r) for r in range(n)):
        quorum = min((q for q in map(coming, range(n)) if q), key=lambda q: q["id"])
        members, healthy = quorum["members"], quorum["healthy"]
        old = state[healthy[0]]
        dies = {r for r in members if inputs[r]["lives"][at[r]]["dies"] == ["exchange", k[r]]}
        for r in set(members) - set(healthy):
            state[r] = [old[0], state[r][1] if wrong == "own" else old[1], []]
        fed = {r: r + n * (state[r][1][r] + torch.arange(batch)) for r in healthy}
        if not dies or wrong == "uncommitted":
            moved = {r: state[r][1].clone() for r in members}
            for r in members:
                for m in members if wrong == "everybody" else healthy:
                    moved[r][m] += batch
        if not dies:
            mean = torch.stack([gradient_of(state[r][0], fed[r]) for r in healthy]).sum(0)
            mean = mean / (len(members) if wrong == "members" else len(healthy))
            late = state[healthy[0]][0] - mean
            for r in members:
                begin = late if wrong == "late" and r not in healthy else state[r][0]
                own = [] if wrong == "zeros" else fed.get(r, torch.empty(0)).tolist()
                state[r] = [begin - mean, moved[r], [*state[r][2], *own]]
        elif wrong == "uncommitted":
            for r in members:
                state[r][1] = moved[r]
        elif wrong == "listed":
            for r in healthy:
                state[r] = [*state[r][:2], [*state[r][2], *fed[r].tolist()]]
        for r in members:
            k[r] += 1
            if r in dies:
                results[r].append(KILLED)
                at[r], k[r] = at[r] + 1, 0
                begins = inputs[r]["lives"][at[r]]["weights"] if at[r] < len(inputs[r]["lives"]) else old[0]
                state[r] = [begins, nobody, []]
    for r in range(n):
        if at[r] < len(inputs[r]["lives"]):
            results[r].append(state[r])
    return results


def expect_lives(student: Student, run: Evidence, inputs: list[dict[str, Any]]) -> None:
    """Weights and positions of all replicas, and the samples that each of them trained, in each life."""
    n, right = len(inputs), lives_expected(inputs)
    for rank, (got, want) in enumerate(zip(run.results, right, strict=True)):
        fine = isinstance(got, list) and len(got) == len(want)
        fine = fine and all(x == KILLED if isinstance(x, str) else isinstance(x, list) and len(x) == 3 for x in got)
        student.expect(fine, f"With {n} ranks: rank {rank} did not return [weights, positions, samples] for each life.")
        for number, (mine, wanted) in enumerate(zip(got, want, strict=True)):
            text = "With {n} ranks: rank {rank} {what} in life {number}. Call reach before every exchange."
            what = "was not lost" if isinstance(wanted, str) else "was lost"
            student.expect(isinstance(mine, str) == isinstance(wanted, str), text, n=n, rank=rank, what=what,
                           number=number)  # fmt: skip
    reasons = {
        "The positions moved in an attempt that came to nothing: those samples are never trained.": "uncommitted",
        "A replica that came back counted its samples by itself. The positions come with the state.": "own",
        "The positions of a replica that only caught up have moved. It trained nothing in that step.": "everybody",
        "The mean was divided by all members. Who is behind gives zeros, and does not count.": "members",
        "A newcomer took over the state *after* the update, and applied the update once more.": "late",
        "The samples of an attempt that came to nothing are in the list. They are trained again later.": "listed",
    }
    wrong = {text: lives_expected(inputs, name) for text, name in reasons.items()}
    slips: Slips = {text: [flat(x) for x in results] for text, results in wrong.items() if not equal(results, right)}
    student.expect_results(Evidence([flat(x) for x in run.results]), [flat(x) for x in right], slips, within=1e-9)


def flat(lives: list[Any]) -> list[Any]:
    """Weights, positions and samples of all lives of a replica in which it was not lost, as one list of tensors."""
    found = []
    for life in lives:
        if not isinstance(life, str):
            samples = life[2] if isinstance(life[2], list) and all(type(x) is int for x in life[2]) else []
            found += [life[0], life[1], torch.tensor(samples, dtype=torch.int64)]
    return found
