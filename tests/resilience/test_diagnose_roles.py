"""Ranks with parts of their own in the program are not taken for culprits: small cases by name, and drawn ones.

A sample of what `diagnose_random` draws runs in the ordinary tests, six hundred faults in the long lane.
"""

from __future__ import annotations

import pytest
from slices import few

from labkit.resilience.diagnose import diagnose

from .diagnose_random import Act, Case, Program, case, table, tell
from .pages_by_hand import Desk

pytestmark = pytest.mark.ranks

HERE, LEADERS, ALL = ((0, 1, 2), (3, 4, 5)), (0, 3), tuple(range(6))


def nodes() -> tuple[tuple[Act, ...], ...]:
    """Every node reduces, the leaders reduce, all gather."""
    return tuple(
        (Act("all_reduce", HERE[r // 3]), *([Act("all_reduce", LEADERS)] if r in LEADERS else []),
         Act("all_gather", ALL)) for r in range(6)
    )  # fmt: skip


def rings() -> tuple[tuple[Act, ...], ...]:
    """Two rings, whose first ranks reduce."""
    return tuple(
        (Act("exchange", (HERE[r // 3][(r + 1) % 3], HERE[r // 3][r % 3 - 1])),
         *([Act("all_reduce", LEADERS)] if r in LEADERS else [])) for r in range(6)
    )  # fmt: skip


@pytest.mark.parametrize(
    "acts, rank, change",
    [
        (nodes(), 4, lambda usual: usual[1:]),
        (nodes(), 4, lambda usual: [usual[0], *usual]),
        (nodes(), 4, lambda usual: [Act("recv", (1,)), *usual]),
        (nodes(), 0, lambda usual: [usual[0], usual[2]]),
        (rings(), 2, lambda usual: [Act("recv", (4,)), *usual]),
    ],
    ids=["a call left out", "a call too many", "a stray receive", "a leader leaves out a call", "a receive in a ring"],
)  # fmt: skip
def test_not_the_leader_but_who_did_otherwise_is_named(acts, rank, change) -> None:
    program = Program("nodes", 6, acts, marks=True)
    told = tell(Case(program, "by hand", rank, 3, tuple(change(list(acts[rank]))), "local", True, 0))
    assert told.named, told.verdict


@pytest.mark.parametrize("first", few([0, 25]))
def test_of_drawn_faults_nobody_else_is_accused(first) -> None:
    found = [tell(case(seed)) for seed in range(first, first + 5)]
    assert sum(t.verdict is not None for t in found) >= 4
    assert not [t for t in found if t.verdict is not None and not t.among], [f"{t.case}\n{t.verdict}" for t in found]
    assert not any(t.sure_and_wrong for t in found)


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_of_six_hundred_drawn_faults_nearly_all_culprits_are_named_and_nobody_else_for_sure() -> None:
    found = [tell(case(seed)) for seed in range(660)]
    told = [t for t in found if t.verdict is not None]
    print(f"\n{table(found, lambda t: t.case.kind)}\n{table(found, lambda t: t.case.program.family)}")
    wrong = [f"{t.case}\n{t.verdict}" for t in told if not t.among or t.sure_and_wrong]
    assert len(told) >= 600
    assert not any(t.sure_and_wrong for t in told), "\n".join(wrong)
    assert sum(t.among for t in told) >= 0.99 * len(told), "\n".join(wrong)


def pair_of_pairs(steps, last):
    """Pages by hand: ranks 0 and 1, and 2 and 3, reduce `steps` times; then rank 3 gathers and rank 2 reduces."""
    desk = Desk(4)
    for n in range(steps + 1):
        for pair in ((0, 1), (2, 3)):
            for rank in pair:
                desk.step(rank, n)
                number = desk.enter(rank, pair, name="all_gather" if (rank, n) == (3, steps) else "all_reduce")
                if n < steps or (pair == (0, 1) and last):
                    desk.leave(rank, number)
    return diagnose(desk.look())


def test_sure_is_only_who_differs_from_its_own_steps_and_from_its_equals() -> None:
    assert (pair_of_pairs(3, True).culprit, pair_of_pairs(3, False).culprit) == (3, 3)
    guess = pair_of_pairs(0, True)  # without earlier steps
    assert (guess.suspects, guess.exact) == ((3,), False)
