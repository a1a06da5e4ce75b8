"""The questions of chapter 6: keys beside numbers worked out by hand, and words that readers use."""

from __future__ import annotations

import pytest

from labkit import cost
from labkit.cost import wires
from labkit.course.chapter_file import load_chapter
from labkit.course.questions import Order, Question

CHAPTER = load_chapter("06_scaling_efficiency")
VALUES = {"world_size": 8, "seed": 0, "wires": wires}
QUESTIONS: dict[str, Question] = {id: CHAPTER.question(id, VALUES) for id in CHAPTER.questions}


@pytest.mark.parametrize(
    ("id", "typed"),
    [
        ("wider-is-not-easier", "63/64 * 4/3 * 400e12 / (4096 * 50e9)"),
        ("hide-behind", "90 / 1.3"),  # 0.9 s of computing in a step of 0.3 + 1.0 s
        ("maximum-of-four", "30 + 12 * 25 / 12"),  # 1 + 1/2 + 1/3 + 1/4 = 25/12
        ("energy-of-a-step", "0.315"),  # 5.25e9 bytes, 8 bits each, 7.5e-12 J a bit
    ],
)
def test_a_key_is_what_a_hand_works_out(id: str, typed: str) -> None:
    assert QUESTIONS[id].mark(typed).right


def test_the_jobs_are_ordered_by_tokens_times_bandwidth() -> None:
    question = QUESTIONS["small-batch-cut"]
    assert isinstance(question, Order)
    ratios = []
    for item in question.items:
        size, tokens, bandwidth = item.split(", ")
        params = float(size.split("B")[0]) * 1e9
        wire = float(bandwidth.split()[0]) * 1e9
        computing = cost.training_seconds(params, float(tokens.split()[0].replace(",", "")), 1e15)
        ratios.append(cost.ring_all_reduce_bytes(4 * params, 64) / wire / computing)
    assert ratios == sorted(ratios)
    assert all(b / a > 1.5 for a, b in zip(ratios, ratios[1:], strict=False)), "no two are close"


def test_predictions_declare_what_the_run_of_the_chapter_shows() -> None:
    assert CHAPTER.forecast("wider-model", VALUES | {"growth": 3.8, "rows": 4}).declared == (1,)
    delays = cost.Exponential(0.015, 0.005)
    declared = CHAPTER.forecast("slowest", VALUES | {"delays": delays, "many": 4}).declared
    assert declared == pytest.approx((15 + 5 * 25 / 12,))
    for cause in range(4):
        assert CHAPTER.forecast("verdict", VALUES | {"cause": cause}).declared == (cause,)


@pytest.mark.parametrize("typed", ["goodput", "Goodput.", "the goodput", "useful goodput"])
def test_goodput_may_be_named_in_many_ways(typed: str) -> None:
    assert QUESTIONS["name-of-the-product"].mark(typed).right


@pytest.mark.parametrize("typed", ["throughput", "MFU", "utilisation", "efficiency"])
def test_another_word_is_told_apart(typed: str) -> None:
    told = QUESTIONS["name-of-the-product"].mark(typed)
    assert not told.right and not told.why.endswith("is not it.")


def test_what_is_said_of_which_scaling_is_so() -> None:
    assert cost.strong_efficiency(2.0, 0.8, 4) == pytest.approx(0.625)
    assert cost.strong_efficiency(2.0, 0.8, 32) == pytest.approx(0.078, abs=0.0005)


def test_two_causes_have_the_three_times_and_part_at_another_size() -> None:
    """Section 5: a stall in nearly every step of 8,192 GPUs, which then hardly grows; a power law that goes on."""
    stall, law = (kind.fitted(0.180, 0.340, 0.720, 1024) for kind in (cost.RareDelay, cost.Lomax))
    assert stall.stalled_steps(8192) > 0.9
    grown = [kind.expected_maximum(65_536) / kind.expected_maximum(8192) for kind in (stall, law)]
    assert grown[0] < 1.06 and grown[1] > 1.5
    late = (1 + 0.1 / law.scale) ** -law.tail  # of one GPU, by more than 100 ms: on time in nearly every step
    assert late < 0.002 and stall.chance < 0.001


def test_the_four_causes_of_the_case_file_cost_about_the_same() -> None:
    """Section 8: each makes the step about 10 ms longer, so the time alone tells nothing."""
    slow, bad, fast = (cost.units.GB * x for x in (0.5, 0.084, 5))

    def layered(nbytes: float, between: float) -> float:
        return cost.hierarchical_all_reduce_time(nbytes, 8, 10e-6, 1 / fast, 4, 40e-6, 1 / between)

    flat = cost.flat_ring_all_reduce_time(4e6, 8, 10e-6, 1 / fast, 4, 40e-6, 1 / slow)
    longer = [t - layered(4e6, slow) for t in (flat, 80 * layered(50_000, slow), layered(4e6, bad))]
    assert all(0.0095 < seconds < 0.0115 for seconds in [*longer, 0.5 * 0.020])
