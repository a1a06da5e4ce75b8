"""The questions of chapter 3: keys beside numbers worked out by hand, and words that readers use."""

from __future__ import annotations

import pytest

from labkit.course.chapter_file import load_chapter
from labkit.course.questions import Question

CHAPTER = load_chapter("03_collectives")
QUESTIONS: dict[str, Question] = {id: CHAPTER.question(id, {}) for id in CHAPTER.questions}


@pytest.mark.parametrize(
    ("id", "typed"),
    [
        ("rank-0-of-16", "15 * 0.25"),
        ("ring-bytes-of-12", "22 * 50"),
        ("four-kilobytes", "280.7"),  # 14 messages of 20 microseconds and 0.05 microseconds for 500 bytes
        ("across-the-nodes", "2 * 15/16 * 125"),
    ],
)
def test_a_key_is_what_a_hand_works_out(id: str, typed: str) -> None:
    assert QUESTIONS[id].mark(typed).right


def test_predictions_declare_what_the_run_of_the_chapter_shows() -> None:
    nbytes = {"world_size": 8, "nbytes": 1_018_368}
    assert CHAPTER.forecast("naive-bytes", nbytes).declared == (7.128576, 1.018368)
    assert CHAPTER.forecast("ring-bytes", nbytes).declared == pytest.approx((1.782144, 1.90944))
    nodes = {"ranks_per_node": 4, "fast": 10e9, "slow": 1e9}
    assert CHAPTER.forecast("hierarchical-gain", nbytes | nodes).declared == pytest.approx((4.375,))


@pytest.mark.parametrize("world_size", [2, 3, 5, 16])
def test_predictions_can_be_asked_in_any_world(world_size: int) -> None:
    values = {"world_size": world_size, "nbytes": 4 * 254_592, "ranks_per_node": world_size, "fast": 1e10, "slow": 1e9}
    for id in CHAPTER.predictions:
        assert all(number > 0 for number in CHAPTER.forecast(id, values).declared)


@pytest.mark.parametrize(
    "typed",
    ["size", "its size in bytes", "the size", "Size of the gradient", "message size", "gradient size in bytes", "bytes",
     "number of bytes",
     "how large the gradient is", "The size of its tensors.", "how many bytes it summed", "MB", "length", "M",
     "bytes per GPU", "the size of a tensor", "data on each gpu"],
)  # fmt: skip
def test_the_missing_number_may_be_named_in_many_ways(typed: str) -> None:
    assert QUESTIONS["a-time-without-a-size"].mark(typed).right


@pytest.mark.parametrize(
    "typed", ["latency", "the bandwidth", "number of ranks", "which algorithm", "dtype", "time", "the weather"]
)
def test_another_number_is_not_the_missing_one(typed: str) -> None:
    told = QUESTIONS["a-time-without-a-size"].mark(typed)
    assert not told.right and (typed == "the weather") is (told.why == "“the weather” is not it.")


def test_what_is_said_of_the_shared_port_is_so() -> None:
    from labkit.cost import slow_sync

    shared, flat = slow_sync.hierarchical_seconds(ports_per_node=1), slow_sync.flat_seconds()
    assert 1 < shared / flat < 1.25, "a little slower"
    assert 4.5 < flat / slow_sync.stated_hierarchical_seconds() < 5.5, "about 5 times, as in the case file"


def test_what_is_said_of_the_crossover_is_so() -> None:
    from labkit import cost

    def crossing(ranks: int, alpha: float, bandwidth: float) -> float:
        return cost.ring_recursive_doubling_crossover(ranks, alpha, 1 / bandwidth)

    assert crossing(8, 2, 1) > crossing(8, 1, 1) < crossing(8, 1, 2)
    assert crossing(64, 1, 1) > crossing(8, 1, 1)


@pytest.mark.parametrize(
    ("id", "typed", "why"),
    [
        ("ring-bytes-of-12", "600", "the whole tensor once"),
        ("ring-bytes-of-12", "6600", "carries one chunk of it"),
        ("ring-bytes-of-12", "100", "one message in each half"),
        ("ring-bytes-of-12", "500", "one round too few"),
        ("four-kilobytes", "20.4", "one message with the whole tensor"),
        ("four-kilobytes", "20.05", "That is one round"),
        ("four-kilobytes", "285.6", "carries one chunk"),
        ("four-kilobytes", "22", "Multiply the number of rounds"),
    ],
)
def test_a_known_slip_has_a_sentence_of_its_own(id: str, typed: str, why: str) -> None:
    told = QUESTIONS[id].mark(typed)
    assert not told.right and why in told.why


def test_nobody_is_told_of_several_ranks_on_a_node_that_has_one() -> None:
    values = {"world_size": 7, "nbytes": 1_000_000, "ranks_per_node": 1, "fast": 10e9, "slow": 1e9}
    assert "With one rank on each node" in str(CHAPTER.forecast("hierarchical-gain", values))


def test_a_rank_sends_less_than_one_part_between_two_nodes() -> None:
    values = {"world_size": 8, "nbytes": 2_048_000, "ranks_per_node": 4, "fast": 10e9, "slow": 1e9}
    told = str(CHAPTER.forecast("hierarchical-gain", values))
    assert "2 (n - 1) / n of one part of M / k bytes" in told and "nearly two parts" not in told


@pytest.mark.parametrize("width", [142_800, 1_018_368])
def test_the_size_of_the_gradient_is_given_in_the_unit_that_is_asked_for(width: int) -> None:
    values = {"world_size": 8, "nbytes": width}
    for id in ("naive-bytes", "ring-bytes"):
        assert f"{width / 1e6:.4g} MB" in str(CHAPTER.forecast(id, values).prompt)


def test_one_gradient_in_place_of_two_halves_is_told_apart() -> None:
    forecast = CHAPTER.forecast("ring-bytes", {"world_size": 8, "nbytes": 1_018_368})
    told = forecast.boxes[0].why(1.018)
    assert "nearly that much in each of the two halves" in told
