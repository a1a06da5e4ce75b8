"""The questions of chapter 7: keys beside numbers worked out by hand, and what texts claim of the recorded runs."""

from __future__ import annotations

from statistics import median

import pytest

from labkit.course.chapter_file import load_chapter
from labkit.course.questions import Choices, Order, Question
from labkit.data import digits, runs

CHAPTER = load_chapter("07_large_batches")
QUESTIONS: dict[str, Question] = {id: CHAPTER.question(id, {}) for id in CHAPTER.questions}
RECORDED = runs.large_batches()
STEPS_OF = {batch: median(found) for batch, found in RECORDED.steps_by_batch().items()}


@pytest.mark.parametrize(
    ("id", "typed"),
    [
        ("critical-from-two", "400000 / 2000"),  # a line in 1/B: slope 3000 / (1/100 - 1/400), and what is left
        ("pilot-batch", "15"),  # 8,000 samples, 512 in a microbatch of all
        ("lars-step", "2 * 0.01 * 5"),
        ("faster-is-not-sooner", "2 / 1.5 / 1.1"),
    ],
)
def test_a_key_is_what_a_hand_works_out(id: str, typed: str) -> None:
    assert QUESTIONS[id].mark(typed).right


@pytest.mark.parametrize(
    ("id", "typed", "word"),
    [
        ("critical-from-two", "250", "mean of the two"),
        ("pilot-batch", "16", "less than half"),
        ("pilot-batch", "1000", "side by side"),
        ("lars-step", "800", "plain SGD"),
        ("faster-is-not-sooner", "2 / 1.1", "samples per second"),
    ],
)
def test_a_known_slip_is_told_its_reason(id: str, typed: str, word: str) -> None:
    told = QUESTIONS[id].mark(typed)
    assert not told.right and word in told.why


@pytest.mark.parametrize("typed", ["noise scale", "Gradient noise scale.", "the simple noise scale"])
def test_the_noise_scale_may_be_named_in_many_ways(typed: str) -> None:
    assert QUESTIONS["name-the-scale"].mark(typed).right


def test_what_the_noise_scale_estimates_is_told_apart_from_it() -> None:
    told = QUESTIONS["name-the-scale"].mark("the critical batch size")
    assert not told.right and "estimates" in told.why


def test_predictions_declare_what_the_recorded_runs_show() -> None:
    assert CHAPTER.forecast("steps-at-512", {"steps_of": STEPS_OF}).declared == (STEPS_OF[512],)

    scale = {loss: median(r.noise / r.signal for r in RECORDED.noise if r.loss == loss) for loss in (1.2, 0.3)}
    signal, noise = ({loss: median(getattr(r, name) for r in RECORDED.noise if r.loss == loss) for loss in (1.2, 0.3)}
                     for name in ("signal", "noise"))  # fmt: skip
    assert scale[0.3] > 1.2 * scale[1.2] and signal[0.3] < signal[1.2] and noise[0.3] < noise[1.2]
    assert CHAPTER.forecast("noise-on-the-way", {}).declared == (2,)

    assert close("SGD, linear") == close("Adam, linear") == 0, "the rule broke all seeds of both"
    assert close("SGD, linear + warmup") <= 12 < close("Adam, linear + warmup")
    assert CHAPTER.forecast("what-mends", {}).declared == (2,)


def close(name: str) -> int:
    """How many of the 24 seeds come within 5 points of the median of the small batch."""
    reached = [row.accuracy for row in RECORDED.recipes if row.recipe == name]
    small = median(row.accuracy for row in RECORDED.recipes if row.recipe == f"{name.split(',')[0]}, small batch")
    assert len(reached) == 24
    return sum(a > small - 0.05 for a in reached)


def test_the_reasons_of_free_or_wasted_are_true_of_the_recorded_runs() -> None:
    question = QUESTIONS["free-or-wasted"]
    assert isinstance(question, Choices)
    assert STEPS_OF[256] / STEPS_OF[512] < 1.1, "nearly the same"
    assert f"{len(digits()[0].y):,} images" in " ".join(choice.text for choice in question.choices)
    for batch in (256, 512):
        best = next(row.lr for row in RECORDED.steps if row.batch == batch)
        tried = {row.lr: [r.steps for r in RECORDED.tuning if (r.batch, r.lr) == (batch, row.lr)]
                 for row in RECORDED.tuning if row.batch == batch}  # fmt: skip
        higher = [steps for lr, steps in tried.items() if lr > best]
        assert higher, "a higher rate was tried"
        at_best = median(s for s in tried[best] if s is not None)
        for steps in higher:
            assert None in steps or median(s for s in steps if s is not None) >= at_best


def test_twice_the_best_rate_of_lamb_broke_the_run() -> None:
    at: dict[float, list[float]] = {}
    for row in RECORDED.rates:
        if row.optimizer == "LAMB":
            at.setdefault(row.lr, []).append(row.accuracy)
    best = max(at, key=lambda lr: median(at[lr]))
    assert median(at[best]) > 0.9 and median(at[2 * best]) < 0.2


def test_the_recipes_are_in_order_of_their_rates() -> None:
    question = QUESTIONS["order-of-recipes"]
    assert isinstance(question, Order)
    rates = {"no rule": 1, "linear rule with warmup": 1 + (16 - 1) / 10, "square root": 4, "linear rule without": 16}
    found = [next(rate for start, rate in rates.items() if item.startswith(start)) for item in question.items]
    assert found == sorted(found)


def test_no_seed_takes_the_steps_of_section_1_otherwise() -> None:
    """Whatever seed a reader runs again: to less than a half from 8 to 64, and by less from 64 to 512."""
    of = {(row.seed, row.batch): row.steps for row in RECORDED.steps}
    for seed in {row.seed for row in RECORDED.steps}:
        few, more, most = (of[seed, batch] for batch in (8, 64, 512))
        assert more < few / 2 and most / more > more / few
    broken = [row.accuracy for row in RECORDED.recipes if row.recipe == "SGD, linear"]
    assert len(broken) == 24 and max(broken) < 0.35  # "the network did not recover", with any seed
