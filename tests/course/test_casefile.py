"""Case files: what evidence leaves, what is paid, what hindsight had paid, and cases that make no sense."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, strategies as st

from labkit.course.casefile import Case, Evidence, Suspect
from labkit.course.errors import CourseError

CAUSES = {"frozen": "it froze", "lost": "it lost a message", "order": "it changed the order"}
EVERYONE = frozenset(Suspect(r, c) for r in range(3) for c in CAUSES)
TRUTH = Suspect(1, "lost")


def some(*pairs: tuple[int, str]) -> frozenset[Suspect]:
    return frozenset(Suspect(*pair) for pair in pairs)


def made(**options: object) -> Case:
    lost = some((0, "lost"), (1, "lost"), (2, "lost"))
    evidence = [
        Evidence("log", "The log", 1, "nothing", EVERYONE),
        Evidence("rank", "The rank", 4, "rank 1", some((1, "lost"), (1, "frozen"))),
        Evidence("cause", "The cause", 3, "lost", lost),
        Evidence("both", "Both", 8, "all", some((1, "lost"))),
    ]
    return Case("Case A", "It stands still.", CAUSES, 3, options.pop("evidence", evidence), TRUTH, **options)  # type: ignore[arg-type]


def test_evidence_rules_out_and_is_paid_once() -> None:
    case = made()
    assert (case.left, case.minutes) == (EVERYONE, 0)
    case.buy("log")
    assert (len(case.left), case.minutes) == (9, 1)
    assert case.buy("rank").shows == case.buy("rank").shows == "rank 1"
    assert (case.left, case.minutes) == (some((1, "lost"), (1, "frozen")), 5)
    assert case.gpu_hours == 5 * 16_384 / 60


def test_what_evidence_shows_fits_a_line() -> None:
    one = Evidence("a", "A", 1, "- first *this*\n- then that", EVERYONE)
    assert one.line == "first this; then that" and Evidence("a", "A", 1, "- all", EVERYONE, brief="B.").line == "B."


def test_hindsight_finds_the_cheapest_choice_of_all() -> None:
    case = made()
    case.accuse(1, "lost")
    assert case.perfect() == (("rank", "cause"), 7)


def test_who_buys_the_cheapest_first_stops_when_one_is_left() -> None:
    case = made()
    assert case.cheapest_first() == TRUTH
    assert case.bought == ["log", "cause", "rank"] and case.minutes == 8 and case.right


def test_a_wrong_verdict_costs_and_the_case_stays_open() -> None:
    case = made(wrong=12.0)
    case.buy("cause")
    told = case.accuse(1, "frozen")
    assert not told.right and case.minutes == 15 and not case.closed
    assert "ruled that out" in told.text and "The rank is right" in told.text
    other = case.accuse(0, "lost")
    assert "ruled that out" not in other.text and "The rank is right" not in other.text
    assert case.accuse(1, "lost").right and case.minutes == 27 and case.closed
    with pytest.raises(CourseError, match="closed"):
        case.accuse(1, "lost")


def test_the_truth_is_told_to_nobody_before_the_case_is_closed() -> None:
    case = made()
    for ask in (lambda: case.truth, case.perfect):
        with pytest.raises(CourseError, match="open"):
            ask()
    case.give_up()
    assert case.truth == TRUTH and not case.right and case.closed
    case.buy("both")
    assert case.minutes == 0  # reading on is free


@pytest.mark.parametrize(
    ("rank", "cause", "said"), [(3, "lost", "0 to 2"), (True, "lost", "0 to 2"), (1, "lots", "did you mean 'lost'")]
)
def test_a_verdict_on_nobody_is_refused(rank: int, cause: str, said: str) -> None:
    case = made()
    with pytest.raises(CourseError, match=said):
        case.accuse(rank, cause)
    assert case.minutes == 0


def test_evidence_that_does_not_exist_is_refused() -> None:
    with pytest.raises(CourseError, match="did you mean 'rank'"):
        made().buy("ranks")


def test_a_case_whose_evidence_lies_or_is_not_enough_is_refused() -> None:
    with pytest.raises(CourseError, match="'x' rules out the truth"):
        made(evidence=[Evidence("x", "X", 1, "", some((0, "lost")))])
    with pytest.raises(CourseError, match="not the truth alone"):
        made(evidence=[Evidence("x", "X", 1, "", some((0, "lost"), (1, "lost")))])


@given(st.lists(st.tuples(st.integers(1, 9), st.sets(st.sampled_from(sorted(EVERYONE)))), min_size=1, max_size=5))
def test_no_choice_that_proves_it_is_cheaper_than_hindsight(drawn: list[tuple[int, set[Suspect]]]) -> None:
    evidence = [Evidence(str(n), "", price, "", frozenset(left | {TRUTH})) for n, (price, left) in enumerate(drawn)]
    evidence.append(Evidence("all", "", 9, "", frozenset({TRUTH})))
    case = made(evidence=evidence)
    case.give_up()
    _, minutes = case.perfect()
    proofs = [sum(e.minutes for e in chosen) for n in range(len(evidence) + 1) for chosen in combinations(evidence, n)
              if EVERYONE.intersection(*(e.leaves for e in chosen)) == {TRUTH}]  # fmt: skip
    assert minutes == min(proofs)
