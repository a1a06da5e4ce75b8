"""What the checks of chapter 15 say of parts of a mesh and of a search: the rank, what it has, and the likely cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labkit.grading.checks.student import Evidence, Student
from labkit.grading.checks.wording import short
from labkit.grading.known import Answers
from labkit.parallel import Layout

answers = Answers("15_hybrid_parallelism")  # what only instructors can compute

Job = dict[str, Any]


# Which part is mine ----------------------------------------------------------------------------------------------

KINDS = {"sequences": "dp", "layers": "pp", "columns": "tp"}  # what a rank has, and the axis that decides


def part_job(mesh: Sequence[tuple[str, int]], more: int, microbatches: int = 2, chunks: int = 1) -> Job:
    """A mesh, and what is to be cut. more: a number from which the batch and its order follow."""
    sizes = dict(mesh)
    batch = sizes["dp"] * microbatches * 2 + 1 + more % 2
    count = 3 * batch
    step = 7 if count % 7 else 5 if count % 5 else 11
    return {
        "mesh": [list(axis) for axis in mesh], "order": [(step * i + more) % count for i in range(count)],
        "step": 1 + more % 2, "batch": batch, "microbatches": microbatches, "chunks": chunks,
        "layers": 3 * sizes["pp"] * chunks - 1, "columns": 5 * sizes["tp"] - 1,
    }  # fmt: skip


def expect_part(student: Student, run: Evidence, job: Job, kind: str) -> None:
    """Every rank returned its sequences, layers or columns."""
    axis, place = KINDS[kind], list(KINDS).index(kind)
    mesh = " x ".join(f"{name} {size}" for name, size in job["mesh"])
    for rank, result in enumerate(run.results):
        fine = isinstance(result, list) and len(result) == 3 and all(isinstance(one, list) for one in result)
        text = "On a mesh of {mesh}: rank {rank} returned {got}; it should be three lists: {kinds}."
        student.expect(fine, text, mesh=mesh, rank=rank, got=short(result), kinds=", ".join(KINDS))
    due, got = ([one[place] for one in each] for each in (answers.parts(job), run.results))
    wrong = [rank for rank in range(len(due)) if got[rank] != due[rank]]
    if not wrong:
        return
    rank = wrong[0]
    text = "On a mesh of {mesh}: rank {rank} has the {kind} {got}; it should have {due}. {why}"
    student.expect(False, text, mesh=mesh, rank=rank, kind=kind, got=short(got[rank]), due=short(due[rank]),
                   why=_why_part(job, kind, axis, got, due, rank))  # fmt: skip


def _why_part(job: Job, kind: str, axis: str, got: list[Any], due: list[Any], rank: int) -> str:
    layout = Layout(dict(job["mesh"]))
    backwards = Layout(dict(reversed(list(layout.sizes.items()))))
    if all(got[r] == due[layout.rank(**backwards.coordinates(r))] for r in range(layout.size)):
        return "That is a mesh whose first axis is the innermost. The last one is."
    with_me = [r for r in range(layout.size) if due[r] == due[rank]]
    other = next((r for r in with_me if got[r] != got[rank]), None)
    if other is not None:
        low, high = sorted((rank, other))
        return f"Ranks {low} and {high} have the same coordinate along {axis}, which alone decides on the {kind}."
    mine, right = _flat(got[rank]), _flat(due[rank])
    everything = {x for one in due for x in _flat(one)}
    strange = next((x for x in mine if x not in everything), None)
    if strange is not None and kind == "sequences":
        return f"Sequence {strange} is not in this step, which takes the next `batch` places of `order`."
    missing = everything - {x for one in got for x in _flat(one)}
    if missing:
        return f"Nobody has {min(missing)}: where sizes do not divide, the first parts are one larger."
    if sorted(mine) == sorted(right):
        return "They are the right ones in another order, or in other lists."
    if kind == "layers" and job["chunks"] > 1:
        return "With chunks the model goes around the ranks: part k lies on stage k modulo pp."
    return "Parts are consecutive, as torch.tensor_split cuts them."


def _flat(value: Any) -> list[Any]:
    return [x for one in value for x in _flat(one)] if isinstance(value, list) else [value]


# The search ------------------------------------------------------------------------------------------------------

ROW = 64  # bytes that a rank may send to each other one


def search_job(pick: int, **changes: Any) -> Job:
    """A model, a cluster and the figures of the closed forms. pick: a number from which the sizes follow."""
    job = {
        "gpus": (192, 240, 256)[pick % 3], "heads": (64, 48, 96)[pick // 3 % 3], "layers": (80, 60, 96)[pick // 9 % 3],
        "batch": (480, 512, 960)[pick // 2 % 3], "room": (72, 80, 96)[pick // 4 % 3], "billions": 70, "kept": 182,
        "work": 7.0, "sums": 0.19, "gradients": 5.6,
    }  # fmt: skip
    return {**job, **changes}


def named(cut: Sequence[int] | None) -> str:
    """A cut as reasons name it."""
    return "none" if cut is None else " x ".join(map(str, cut))


def expect_best(student: Student, run: Evidence, job: Job) -> None:
    """Every rank returned the fastest cut that fits, and the same one."""
    n, right = len(run.results), answers.search(job)
    what = f"With {n} rank{'s' * (n != 1)}, {job['gpus']} GPUs, {job['heads']} heads, {job['layers']} layers"
    for rank, result in enumerate(run.results):
        fine = isinstance(result, list) and len(result) == 2 and isinstance(result[1], dict)
        student.expect(fine, f"{what}: rank {rank} returned {short(result)}; it should be [best, reasons].")
    found = [result[0] for result in run.results]
    for rank, best in enumerate(found):
        text = "{what}: rank 0 returned {first} as the best, and rank {rank} {best}. Each has looked at a part of the "
        text += "plans, so they must tell each other."
        student.expect(best == found[0], text, what=what, first=found[0], rank=rank, best=best)
    got = found[0]
    known = _is_cut(got) or got is None
    why = {
        named(right["fastest"]): "It is the fastest of all, and it does not fit.",
        named(right["smallest"]): "It needs the least memory, and others that fit are faster.",
        "none": "None was found, although some fit.",
    }.get(named(got) if known else "") or NOT_THE_BEST.get(right["reasons"].get(named(got) if known else "", ""), "")
    if right["best"] is None:
        why = "No plan fits, so the best is None."
    text = "{what}: the best is {got}, and should be {due}. {why}"
    student.expect(got == right["best"], text, what=what, got=got, due=right["best"], why=why)


NOT_THE_BEST = {
    "heads": "t does not divide the heads.",
    "layers": "p does not divide the layers.",
    "batch": "d replicas do not share the batch evenly.",
    "memory": "It does not fit.",
    "slower": "It fits, and another one is faster. Is every plan looked at by some rank?",
}


def _is_cut(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(type(x) is int for x in value)


def expect_reasons(student: Student, run: Evidence, job: Job) -> None:
    """Every rank gave the right reason for each plan of its own that is not the best, and for no other."""
    expect_best(student, run, job)
    n, right = len(run.results), answers.search(job)
    gpus = job["gpus"]
    sizes = [size for size in range(1, gpus + 1) if gpus % size == 0]
    plans = [named((t, p, gpus // (t * p))) for t in sizes for p in sizes if gpus % (t * p) == 0]
    for rank, (_, reasons) in enumerate(run.results):
        own = {plan: right["reasons"][plan] for plan in plans[rank::n] if plan in right["reasons"]}
        who = f"With {n} rank{'s' * (n != 1)}: rank {rank}"
        lacking = next((plan for plan in own if plan not in reasons), "")
        student.expect(not lacking, "{who} says nothing of {plan}, which is one of its plans.", who=who, plan=lacking)
        more = next((plan for plan in reasons if plan not in own), "")
        whose = "not of its share: plan k belongs to rank k modulo n"
        whose = "the best one" if more == named(right["best"]) else whose
        student.expect(not more, "{who} has a reason for {plan}, which is {whose}.", who=who, plan=more, whose=whose)
        for plan, due in own.items():
            got = reasons[plan]
            why = WHY[due] + " Memory comes after what cannot be cut." * (got == "memory" and due != "slower")
            text = "{who} rejects {plan} because of {got!r}, and should because of {due!r}. {why}"
            student.expect(got == due, text, who=who, plan=plan, got=got, due=due, why=why)


WHY = {
    "heads": "t does not divide the heads, and that is looked at first.",
    "layers": "t divides the heads, and p does not divide the layers.",
    "batch": "It can be cut so, but d replicas do not share the batch evenly.",
    "memory": "Everything divides, and it needs more than there is room for.",
    "slower": "Everything divides, and it fits.",
}


def expect_small_messages(student: Student, run: Evidence) -> None:
    """The ranks tell each other what each has found, and not the whole of what it has looked at."""
    n = len(run.results)
    text = "With {n} ranks: rank {rank} sent {got:bytes}. One row of numbers from each rank is enough: {most:bytes}."
    for rank, got in enumerate(run.bytes_sent):
        student.expect(got <= ROW * (n - 1), text, n=n, rank=rank, got=got, most=ROW * (n - 1))
    text = "With {n} ranks nothing was sent: does each of them look at all plans?"
    student.expect(n == 1 or sum(run.bytes_sent) > 0, text, n=n)
