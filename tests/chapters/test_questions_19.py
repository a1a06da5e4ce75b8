"""The questions of chapter 19: keys beside numbers worked out by hand, slips, and what the texts claim."""

from __future__ import annotations

import math

import pytest

from labkit import cost
from labkit.course.chapter_file import load_chapter
from labkit.course.questions import Question
from labkit.data.runs import recovery_accuracy
from labkit.resilience import classify
from labkit.resilience.accuracy.claims import Shift, at_end, during, shift
from labkit.resilience.accuracy.experiment import BATCH, FIRST, LONG, REPLICAS, SHORT, STEPS
from labkit.resilience.accuracy.stacked import Stacked
from labkit.resilience.quorum import Member, Quorum
from labkit.resilience.quorum.rules import Rules
from labkit.wire.errors import PeerLost, WaitTimeout

CHAPTER = load_chapter("19_ft_hsdp")
QUESTIONS: dict[str, Question] = {id: CHAPTER.question(id, {}) for id in CHAPTER.questions}


@pytest.mark.parametrize(
    ("id", "typed"),
    [
        ("bytes-in-flight", "4 * 8"),
        ("samples-of-a-run", "4 * (12 * 100 - 31)"),
        ("effective-24", "100 * (16 + 6 * 15 / 16) / 24"),
        ("sqrt-factor", f"{math.sqrt(10 / 12):.4f}"),
    ],
)
def test_a_key_is_what_a_hand_works_out(id: str, typed: str) -> None:
    assert QUESTIONS[id].mark(typed).right


@pytest.mark.parametrize(
    ("id", "typed", "word"),
    [
        ("bytes-in-flight", "384", "S \\cdot C \\cdot R"),
        ("samples-of-a-run", "4680", "catch-up"),
        ("samples-of-a-run", "4800", "without a loss"),
        ("effective-24", "66.67", "all stop"),
        ("effective-24", "91.67", "Only the stall"),
        ("sqrt-factor", "0.8333", "linear"),
        ("sqrt-factor", "1.0954", "other way round"),
        ("what-newcomer-gives", "nothing", "takes part"),
        ("what-newcomer-gives", "its own gradient", "no weights"),
    ],
)
def test_a_known_slip_is_told_its_reason(id: str, typed: str, word: str) -> None:
    told = QUESTIONS[id].mark(typed)
    assert not told.right and word in told.why


@pytest.mark.parametrize(
    "typed",
    ["zeros", "a zero gradient", "Zero gradients", "0", "a gradient of zeros", "only zeros", "gradients of zero"],
)
def test_zeros_may_be_named_in_many_ways(typed: str) -> None:
    assert QUESTIONS["what-newcomer-gives"].mark(typed).right


def test_predictions_declare_what_the_chapter_shows() -> None:
    assert CHAPTER.forecast("one-rank-dies", {"replicas": 4, "ranks": 2}).declared == (2, 75)
    assert CHAPTER.forecast("one-rank-dies", {"replicas": 3, "ranks": 1}).declared == pytest.approx(
        (1, 66.67), rel=1e-3
    )
    told = CHAPTER.forecast("effective-time", {"every": 18, "recovery": 10, "stall": 3, "n": 12}).declared
    assert told == pytest.approx((44.444, 80.093), rel=1e-4)


def test_the_papers_numbers_as_section_8_tells_them() -> None:
    back = cost.rejoin_stall_seconds() / 60
    assert cost.fault_tolerant_effective_time(18, 10, 3, 12, rejoin=back) == pytest.approx(0.7160, abs=1e-4)
    mended = cost.kill_stall_seconds(cost.stalls.FIXED)
    assert (cost.kill_stall_seconds(), mended, mended + cost.rejoin_stall_seconds()) == (170, 80, 180)
    by_clock = [cost.synchronous_effective_time(18, 10), cost.fault_tolerant_effective_time(18, 10, 3, 12)]
    random = [cost.random_synchronous_effective_time(18, 10), cost.random_fault_tolerant_effective_time(18, 10, 3, 12)]
    assert round(100 * (by_clock[1] - by_clock[0])) == 36 and 24 < 100 * (random[1] - random[0]) < 25
    stall = cost.stalls.KILL_STALL
    assert stall["the time-out"] == 3 * stall["training the step again"] == max(stall.values())


def test_failures_every_50_and_30_minutes_are_those_of_a_hundred_thousand_gpus() -> None:
    paper = cost.minutes_between_interruptions(2.3, 100_000)
    llama = cost.minutes_between_interruptions(cost.per_thousand_servers_a_day(419, 54, 16_384), 100_000)
    assert (round(paper), round(llama)) == (50, 30)
    assert round(cost.minutes_between_interruptions(2.3, 98_304)) == 51  # so the text names the larger fleet


def test_replicas_are_worth_most_where_failures_come_as_often_as_a_repair_takes() -> None:
    def gain(every: float) -> float:
        goes_on = cost.random_fault_tolerant_effective_time(every, 10, 3, 12)
        return goes_on - cost.random_synchronous_effective_time(every, 10)

    best = max(range(1, 60), key=gain)
    assert 5 <= best <= 10 and gain(10) > 0.9 * gain(best) and gain(30) < 0.6 * gain(10)


def test_a_message_of_a_dead_member_is_checked_for_a_tenth_of_a_second() -> None:
    assert Rules(12).reconnect == 0.1  # section 10 says 100 ms


def test_what_can_be_tried_again_is_what_a_neighbour_causes() -> None:
    words = [classify(error).__name__ for error in (PeerLost("gone"), WaitTimeout("late"), ValueError("shapes"))]
    assert words == ["Recoverable", "Recoverable", "Fatal"]


def test_a_is_ahead_after_it_committed_what_the_others_discarded() -> None:
    """The question `two-answers`: B and C recover from A; the pair of section 4 tells two states of one step apart."""
    members = (Member(0, 1, 100, 7), Member(1, 1, 99, 6), Member(2, 1, 99, 6))
    quorum = Quorum(8, 100, 7, members)
    assert [m.replica for m in quorum.healthy] == [0] and [m.replica for m in quorum.recovering] == [1, 2]
    asleep = Quorum(9, 100, 8, (Member(0, 1, 100, 7), Member(1, 1, 100, 8), Member(2, 1, 100, 8)))
    assert [m.replica for m in asleep.recovering] == [0]


def test_what_section_9_says_of_the_stored_runs() -> None:
    runs = recovery_accuracy().runs
    assert {x.length for x in runs} == {0, SHORT, LONG} == {0, 150, 600} and STEPS == 1650
    assert FIRST[LONG] == (100, 900) and {x.lost for x in runs} == {0, 1, 3}

    def end(lost: int, length: int, how: str) -> Shift:
        return shift(runs, at_end, "samples", lost=lost, length=length, intervention=how)

    def away(lost: int, length: int, how: str) -> float:
        return shift(runs, during, "steps", lost=lost, length=length, intervention=how).mean

    worst, mild = end(3, 600, "none"), end(3, 600, "sqrt")
    assert round(worst.mean, 2) == 0.02 and 3.5 < worst.mean / worst.error < 4.5 and abs(mild.mean) < mild.error
    for lost, length in ((1, 150), (1, 600), (3, 150)):
        harm = [end(lost, length, how) for how in ("none", "linear", "sqrt")]
        assert all(abs(x.mean) < 1.2 * x.error for x in harm)
    for lost, length in ((1, 150), (1, 600), (3, 150), (3, 600)):
        none, linear, sqrt = (away(lost, length, how) for how in ("none", "linear", "sqrt"))
        assert 0 < linear < sqrt < none and 0.35 < sqrt / none < 0.65  # half of it, and linear is closer
        steps = [shift(runs, at_end, "steps", lost=lost, length=length, intervention=how) for how in ("linear", "sqrt")]
        assert abs(steps[0].mean - steps[1].mean) < min(x.error for x in steps)
    gone = [1 - away(*x, "sqrt") / away(*x, "none") for x in ((1, 150), (1, 600), (3, 150), (3, 600))]
    assert (round(100 * min(gone)), round(100 * max(gone))) == (38, 51)
    assert away(3, 150, "none") > away(1, 150, "none") and away(3, 600, "none") > away(1, 600, "none")


def test_how_far_the_accuracy_study_is_from_the_paper_s() -> None:
    """Section 9: 3 billion active parameters and 500 billion tokens there (section 6.2)."""
    params, predicted = sum(p.numel() for p in Stacked([0]).parameters()), REPLICAS * BATCH * STEPS
    assert (params, predicted) == (28_992, 39_600)
    assert recovery_accuracy().planned == STEPS and recovery_accuracy().replicas == REPLICAS  # of the stored runs, too
    assert round(3e9 / params, -3) == 103_000 and round(500e9 / predicted, -5) == 12_600_000
