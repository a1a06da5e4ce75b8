"""The cases really run: every cause on a rank, what evidence proves it, and trainings whose numbers go wrong."""

from __future__ import annotations

import pytest
from leftovers import eventually, ranks_of
from slices import few

import labkit
from labkit import Corrupt, Hang, Kill
from labkit.book.cases import hung, numbers, struck
from labkit.course.casefile import Suspect
from labkit.world.engine import _zygote

pytestmark = pytest.mark.ranks

SIZES = {"dp": 2, "tp": 2}
# What in hindsight is enough: it differs from cause to cause, so no purchase is always the right one.
ENOUGH = {
    "frozen": ("ping",), "storage": ("joined", "ping"), "skipped": ("log",), "order": ("calls",), "lost": ("counts",),
}  # fmt: skip
# What that evidence has to say of the culprit, and of nobody else. With these sizes a step has nine collectives, after
# one at the beginning: seven along "tp", the average, and the norm.
SAYS = {
    "frozen": ("ping", "No answer from rank {rank}. All others answer."),
    "storage": ("joined", "- in no operation at all: rank {rank}"),
    "skipped": ("log", "- step {after}: rank {rank}"),
    "order": ("calls", "- call {average} of rank {rank} is *all_reduce on float32[1] by"),
    "lost": ("counts", "rank {rank} sent fewer messages"),
}


@pytest.fixture(scope="module")
def healthy():
    return labkit.launch(hung.training, 4, SIZES, 4, 0, transport="local").trace


@pytest.mark.parametrize("cause", hung.CAUSES)
@pytest.mark.parametrize("rank", few([2, 0, 1, 3]))
def test_every_cause_is_proved_and_by_other_evidence(healthy, cause, rank) -> None:
    step = 1 + rank % 3
    scene = hung.investigate("Case", Suspect(rank, cause), step, SIZES, 0, healthy)
    case = scene.case
    assert eventually(lambda: not ranks_of(_zygote._process.pid)), "the job goes on after it was looked at"
    assert scene.reports[rank].step == step + (cause in ("skipped", "lost"))  # after these the culprit goes on
    id, says = SAYS[cause]
    says = says.format(rank=rank, after=step + 1, average=9 * step + 9)
    lines = case.evidence[id].shows.splitlines()
    assert sum(f"{line} ".startswith(f"{says} ") for line in lines) == 1, lines
    if cause in ("frozen", "storage"):
        assert sum(f"not joined rank {rank}" in line for line in case.evidence["joined"].shows.splitlines()) == 2
        brief = case.evidence["joined"].line
        assert brief.count(f"rank {rank} has not joined it") == 2 and f"in no operation at all: rank {rank}" in brief
    assert (f"The host of rank {rank} fails" in case.evidence["burn-in"].shows) == (cause in ("frozen", "lost"))
    assert all(word not in report.words() for report in scene.reports.values() for word in ("failed", "finished"))
    assert case.cheapest_first() == (rank, cause)
    assert case.perfect()[0] == ENOUGH[cause]
    assert scene.verdict.culprit == rank


def test_the_enough_of_no_two_causes_is_the_same() -> None:
    assert set(ENOUGH) == set(hung.CAUSES) and len(set(ENOUGH.values())) == len(ENOUGH)


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_has_other_causes_in_every_case(seed) -> None:
    plan = hung.plan(seed, 6)
    assert len({truth.cause for truth, _ in plan}) == len({truth.rank for truth, _ in plan}) == 4 == len(plan)
    assert plan == hung.plan(seed, 6) and all(0 <= truth.rank < 6 and 1 <= step <= 3 for truth, step in plan)


def test_plans_of_other_seeds_differ() -> None:
    assert len({repr(hung.plan(seed, 6)) for seed in range(8)}) == 8
    assert len({hung.blind(seed, 6, "slow") for seed in range(40)}) == 6
    assert len({hung.blind(0, 6, what) for what in ("slow", "nan", "flip", "killed", "frozen")}) > 2


@pytest.mark.parametrize("cases", [0, 6])
def test_more_cases_than_causes_are_refused(cases) -> None:
    with pytest.raises(labkit.RefusedError, match="5 causes"):
        hung.plan(0, 4, cases)


# -- numbers -------------------------------------------------------------------------------------------------------


def test_a_nan_is_on_all_ranks_at_once_unless_somebody_looks() -> None:
    run = labkit.launch(numbers.poisoned, 3, 0, 1, 2, False, transport="local")
    assert all(count == run.results[0][1] > 1000 for _, count, _ in run.results)
    assert [rank for rank, (losses, _, _) in enumerate(run.results) if losses[2] != losses[2]] == [1]
    guarded = labkit.launch(numbers.poisoned, 3, 0, 1, 2, True, transport="local")
    assert [count for _, count, _ in guarded.results] == [0, 0, 0]
    assert all(said.ranks == (1,) and "'blocks.1'" in said.where[1] for _, _, said in guarded.results)


@pytest.mark.parametrize(("size", "rank"), few([(3, 1), (3, 0), (4, 3)]))
def test_a_flipped_bit_is_seen_by_the_repeated_all_reduce_alone(size, rank) -> None:
    right = labkit.launch(numbers.flipped, size, 0, 4, transport="local")
    place = numbers.partial_sum(right.trace, rank, 2)
    wrong = labkit.launch(numbers.flipped, size, 0, 4, transport="local", faults=[Corrupt(rank, message=place, bit=1)])
    assert [row[3] is not None for row in wrong.results[0]] == [False, False, True, False]
    assert all(row[2] is None for rows in wrong.results for row in rows)  # all replicas are wrong alike
    flip = wrong.results[0][2][3]
    assert flip.ways == ((rank, (rank + 1) % size),) and flip.bits == (25,)
    same = [a[1] == b[1] for a, b in zip(right.results[0], wrong.results[0], strict=True)]
    assert same == [True, True, False, False]
    assert abs(right.results[0][-1][0] - wrong.results[0][-1][0]) < 0.1  # and the loss goes on as before


def test_patterns_of_a_rank_that_miscalculates() -> None:
    plan = [("transient", 2), ("persistent", 0), ("intermittent", 1), ("clean", 0)]
    for (pattern, bad), (differs, replayed) in zip(
        plan, labkit.launch(numbers.miscalculated, 3, 0, plan, transport="local").results[1], strict=True
    ):
        assert replayed.pattern == pattern and differs is None
        assert replayed.suspects == (() if pattern == "clean" else (bad,))


# -- struck --------------------------------------------------------------------------------------------------------


def test_a_death_is_told_and_takes_all_along() -> None:
    found = struck.strike(SIZES, ("tp", "dp"), Kill(2), quiet=0.5)
    assert found.noticed is not None and 0 < found.noticed < 10 > found.diagnosed > 0
    assert found.still == (0, 1, 2, 3) and found.verdict.culprit == 2
    assert eventually(lambda: not ranks_of(_zygote._process.pid))


def test_a_hang_is_not_told_and_ends_at_the_border_of_its_group() -> None:
    found = struck.strike(SIZES, ("tp",), Hang(3), quiet=0.5)
    assert found.noticed is None and found.still == (2, 3) and found.verdict.culprit == 3


@pytest.mark.parametrize(
    ("axes", "fault", "still"),
    [(("tp",), Kill(3), (2, 3)), pytest.param(("tp", "dp"), Hang(3), (0, 1, 2, 3), marks=pytest.mark.long)],
)
def test_the_radius_is_that_of_the_program_whatever_the_fault(axes, fault, still) -> None:
    assert struck.strike(SIZES, axes, fault, quiet=0.5).still == still


def test_a_rank_that_does_not_exist_is_not_struck() -> None:
    with pytest.raises(labkit.RefusedError, match="no rank 4 among 4"):
        struck.strike(SIZES, ("tp",), Kill(4))
