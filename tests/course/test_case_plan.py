"""The best order to buy evidence in: beside plans worked out by hand, and never dearer than buying by price."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from labkit.course.case_plan import best_plan
from labkit.course.casefile import Case, Evidence, Suspect
from labkit.course.errors import CourseError

PRICES = {"log": 1.0, "joined": 3.0, "counts": 4.0, "ping": 5.0, "calls": 6.0, "burn-in": 30.0}
NOT_LOST, NOT_FROZEN = "frozen* storage* skipped* order*", "storage* skipped* order* lost*"
# What is left by each piece of evidence, by the cause that it was; "*" says that the rank stays open.
LEFT = {
    "frozen": {"log": "frozen* storage* order*", "joined": "frozen storage", "counts": NOT_LOST,
               "ping": "frozen", "calls": "frozen* storage* lost*", "burn-in": "frozen lost"},
    "storage": {"log": "frozen* storage* order*", "joined": "frozen storage",
                "counts": NOT_LOST, "ping": NOT_FROZEN,
                "calls": "frozen* storage* lost*", "burn-in": "storage* skipped* order*"},
    "skipped": {"log": "skipped", "joined": "skipped* order*", "counts": NOT_LOST,
                "ping": NOT_FROZEN, "calls": "skipped", "burn-in": "storage* skipped* order*"},
    "order": {"log": "frozen* storage* order*", "joined": "skipped* order*", "counts": NOT_LOST,
              "ping": NOT_FROZEN, "calls": "order", "burn-in": "storage* skipped* order*"},
    "lost": {"log": "lost* frozen*", "joined": "lost* frozen*", "counts": "lost", "ping": NOT_FROZEN,
             "calls": "frozen* storage* lost*", "burn-in": "frozen lost"},
}  # fmt: skip


def made(cause: str, rank: int = 1, size: int = 3) -> Case:
    evidence = []
    for id, words in LEFT[cause].items():
        leaves = {Suspect(r, word.rstrip("*")) for word in words.split()
                  for r in (range(size) if word.endswith("*") else [rank])}  # fmt: skip
        evidence.append(Evidence(id, id, PRICES[id], "", frozenset(leaves)))
    case = Case(cause, "", dict.fromkeys(LEFT, ""), size, evidence, Suspect(rank, cause))
    case.give_up()
    return case


def test_the_plan_for_five_causes_is_that_of_a_hand() -> None:
    plan = best_plan([made(cause) for cause in LEFT])
    # 1 for the log; then nothing (skipped), 4 (lost), 3 + 5 twice (frozen, storage) or 3 + 6 (order)
    assert plan.buy == "log" and plan.mean == pytest.approx((1 + 5 + 9 + 9 + 10) / 5)
    assert plan.lines(list(LEFT))[:2] == ["frozen or storage or skipped or order or lost: buy 'log'",
                                          "  frozen or storage or order: buy 'joined'"]  # fmt: skip
    named = plan.lines(list(LEFT), {"log": "Last lines", "calls": "Calls in order"})
    assert named[0].endswith("buy 'Last lines'") and named[1].endswith("buy 'joined'")
    # after "joined" only "order" leaves these causes: it is known, but any of three ranks may have done it
    assert "    order, by one of 3 ranks: buy 'Calls in order'" in named


@pytest.mark.parametrize("cause", LEFT)
def test_a_plan_for_one_case_is_hindsight(cause: str) -> None:
    case = made(cause)
    assert best_plan([case]).minutes == case.perfect()[1]


@given(st.lists(st.sampled_from(sorted(LEFT)), min_size=1, max_size=4, unique=True))
def test_a_plan_lies_between_hindsight_and_buying_by_price(causes: list[str]) -> None:
    plan = best_plan([made(cause) for cause in causes])
    paid = 0.0
    for cause in causes:
        case = made(cause)
        fresh = Case(cause, "", case.causes, case.size, case.evidence.values(), case.truth)
        fresh.cheapest_first()
        paid += fresh.minutes
    assert sum(made(cause).perfect()[1] for cause in causes) <= plan.minutes <= paid


def test_cases_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(CourseError, match="tell these cases apart"):
        best_plan([made("lost"), made("lost")])
    with pytest.raises(CourseError, match="at least one"):
        best_plan([])
