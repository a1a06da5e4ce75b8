"""What the checks of `state-that-follows` compare with: a model that nobody has cut, and the bytes that had to move.

The optimizer of the whole model is PyTorch's. `chapter_20_plan` says who is there in which attempt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.chapters.c20_nonuniform_tensor_parallelism.plan import Attempt, Rehearsal
from labkit.grading.checks.student import Evidence, Student
from labkit.resilience.rehearse import ADAMW, KILLED, gradient_of_shards

# What is right ------------------------------------------------------------------------------------------------------


def adamw(state: Tensor, steps: int, shards: Sequence[int], batches: Sequence[Sequence[int]]) -> Tensor:
    """`state` of these shards after one more step of PyTorch's AdamW for each of `batches`."""
    weights = torch.nn.Parameter(state[0].clone())
    optimizer = torch.optim.AdamW([weights], lr=ADAMW["rate"], betas=(ADAMW["first_decay"], ADAMW["second_decay"]),
                                  eps=ADAMW["eps"], weight_decay=ADAMW["decay"])  # fmt: skip
    moments = {"exp_avg": state[1].clone(), "exp_avg_sq": state[2].clone(), "step": torch.tensor(float(steps))}
    optimizer.state[weights] = moments
    for samples in batches:
        weights.grad = gradient_of_shards(weights.detach(), shards, samples)
        optimizer.step()
    return torch.stack([weights.detach(), moments["exp_avg"], moments["exp_avg_sq"]])


def trained(plan: Rehearsal) -> list[Sequence[int]]:
    """The samples of all steps that counted, in order."""
    return [a.quorum["samples"] for a in plan.attempts if a.lost is None]


def expected(plan: Rehearsal) -> list[list[Any]]:
    """What each rank returns for each of its lives: [state, steps], or "killed"."""
    every = range(plan.start.shape[1])
    whole, steps = adamw(plan.start, plan.steps, every, trained(plan)), plan.steps + len(trained(plan))
    holds = plan.attempts[-1].quorum["want"]
    return [
        [KILLED if life["dies"] else [whole[:, holds[rank]], steps] for life in mine["lives"]]
        for rank, mine in enumerate(plan.inputs)
    ]


def expect_state(student: Student, run: Evidence, plan: Rehearsal) -> None:
    """The state of every rank is that of a model that nobody has cut, and so is the number of its steps."""
    n, right = len(plan.inputs), expected(plan)
    for rank, (got, want) in enumerate(zip(run.results, right, strict=True)):
        fine = isinstance(got, list) and len(got) == len(want)
        fine = fine and all(x == KILLED if isinstance(x, str) else isinstance(x, list) and len(x) == 2 for x in got)
        student.expect(fine, f"With {n} ranks: rank {rank} did not return [state, steps] for each of its lives.")
        for number, (mine, wanted) in enumerate(zip(got, want, strict=True)):
            text = "With {n} ranks: rank {rank} {what} in life {number}. Call reach at both places of every attempt."
            what = "was not lost" if isinstance(wanted, str) else "was lost"
            student.expect(isinstance(mine, str) == isinstance(wanted, str), text, n=n, rank=rank, what=what,
                           number=number)  # fmt: skip
    alive = [rank for rank, want in enumerate(right) if not isinstance(want[-1], str)]
    for rank in alive:
        _expect_steps(student, plan, rank, run.results[rank][-1][1], right[rank][-1][1])
    for rank in alive:
        got, want = run.results[rank][-1][0], right[rank][-1][0]
        fine = isinstance(got, Tensor) and got.shape == want.shape and got.dtype == want.dtype
        text = "With {n} ranks: the state of rank {rank} is no float64{shape}: weights and both moments of its shards."
        student.expect(fine, text, n=n, rank=rank, shape=list(want.shape))
    for rank in alive:
        got, want = run.results[rank][-1][0], right[rank][-1][0]
        _expect_rows(student, plan, rank, got, want)


def _expect_steps(student: Student, plan: Rehearsal, rank: int, got: Any, want: int) -> None:
    """Of AdamW, which divides the moments by a power of it."""
    counted = sum(a.lost is None for a in plan.attempts if a.lives.get(rank) == len(plan.inputs[rank]["lives"]) - 1)
    why = "Each step that counted is one."
    if got == counted:
        why = "A rank that comes back has made none. The number belongs to the state, and comes with it."
    elif type(got) is int and got > want:
        why = "An attempt that came to nothing was counted."
    text = "With {n} ranks: AdamW of rank {rank} has made {want} steps, and the rank says {got!r}. {why}"
    fine = type(got) is int and got == want
    student.expect(fine, text, n=len(plan.inputs), rank=rank, want=want, got=got, why=why)


def _expect_rows(student: Student, plan: Rehearsal, rank: int, got: Tensor, want: Tensor) -> None:
    """All shards of a rank, or the likely cause."""
    holds = plan.attempts[-1].quorum["want"][rank]
    wrong = [place for place in range(len(holds)) if not near(got[:, place], want[:, place])]
    if not wrong:
        return
    others = [place for place in range(len(holds)) if any(near(got[:, i], want[:, place]) for i in range(len(holds)))]
    why, place = "", wrong[0]
    if len(others) == len(holds):
        why = "They are the right shards in another order than in `want`."
    elif any(near(got[:, i], unfinished(plan, holds[i])) for i in wrong):
        why = "AdamW has also made the step of an attempt that came to nothing."
    elif any(near(got[:, i], bare(plan, rank, holds[i], keep)) for i in wrong for keep in (0, 1, 2)):
        why = "They came without their moments, or with one of them. Without these the next step is another one."
    elif any(a.lost is not None and any(a.new(r) for r in a.quorum["members"]) for a in plan.attempts):
        why = (
            "A rank was lost after shards had begun to move. Then all still hold what `have` says, and the next move "
            "begins there: keep the old state until the step counts."
        )
    part = next((x for i, x in enumerate(("weights", "first moment", "second moment"))
                 if not near(got[i, place], want[i, place])))  # fmt: skip
    text = (
        "With {n} ranks: {many} of the {of} shards of rank {rank} are not those of the model that nobody has cut, the "
        "first one at place {place} (shard {shard}, its {part}). {why}"
    )
    raise_with = dict(n=len(plan.inputs), many=len(wrong), of=len(holds), rank=rank, place=place, shard=holds[place])
    student.expect(False, text, **raise_with, part=part, why=why)


def near(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-9, atol=1e-9)


def unfinished(plan: Rehearsal, shard: int) -> Tensor:
    """A shard at the end if the steps of attempts that came to nothing were made, too, and not counted."""
    state, steps = plan.start[:, [shard]], plan.steps
    for a in plan.attempts:
        if a.lost is None or a.place == "step":
            state = adamw(state, steps, [shard], [a.quorum["samples"]])
        steps += a.lost is None
    return state[:, 0]


def bare(plan: Rehearsal, rank: int, shard: int, keep: int) -> Tensor:
    """A shard at the end if it came to `rank` last without moments; keep: the one that came all the same, or 0."""
    came = [k for k, a in enumerate(plan.attempts) if a.lost is None and rank in a.lives and shard in a.new(rank)]
    if not came:
        return torch.full_like(plan.start[:, shard], float("nan"))
    before = [a.quorum["samples"] for a in plan.attempts[: came[-1]] if a.lost is None]
    after = [a.quorum["samples"] for a in plan.attempts[came[-1] :] if a.lost is None]
    state = adamw(plan.start[:, [shard]], plan.steps, [shard], before)
    for moment in {1, 2} - {keep}:
        state[moment] = 0
    return adamw(state, plan.steps + len(before), [shard], after)[:, 0]


# What had to move ---------------------------------------------------------------------------------------------------


def expect_moved(student: Student, run: Evidence, plan: Rehearsal) -> None:
    """No rank got more than what was new to it, and from the other replica only what nobody living has in its own.

    What moved in an attempt that came to nothing moves again, so it counts once more. A little is allowed for numbers
    that go along.
    """
    n, one = len(plan.inputs), 24 * plan.start.shape[2]
    slack = min(128 * len(plan.attempts), one - 1)
    for rank in range(n):
        taken = [run.bytes_between[other][rank] for other in range(n)]
        new = sum(len(a.new(rank)) for a in plan.attempts if rank in a.lives)
        text = (
            "With {n} ranks: rank {rank} received {got:bytes}. {new} shards were new to it, {want:bytes} with their "
            "moments. What a rank has it keeps, and a shard comes once."
        )
        student.expect(sum(taken) <= one * new + slack, text, n=n, rank=rank, got=sum(taken), new=new, want=one * new)
        far = sum(x for other, x in enumerate(taken) if plan.replica[other] != plan.replica[rank])
        want = one * sum(len(_only_elsewhere(plan, a, rank)) for a in plan.attempts if rank in a.lives)
        text = (
            "With {n} ranks: rank {rank} received {far:bytes} from the other replica, and {want:bytes} had to come "
            "from there. What a living rank of its own replica has comes from that one."
        )
        student.expect(far <= want + slack, text, n=n, rank=rank, far=far, want=want)


def _only_elsewhere(plan: Rehearsal, a: Attempt, rank: int) -> list[int]:
    """What is new to `rank` and on no living rank of its replica."""
    own = [r for r in a.quorum["members"] if plan.replica[r] == plan.replica[rank]]
    here = {shard for r in own for shard in a.quorum["have"][r]}
    return [shard for shard in a.new(rank) if shard not in here]
