"""The questions of chapter 17: keys beside numbers worked out by hand, and what its texts claim."""

from __future__ import annotations

import json
import math
import struct

import pytest

from labkit import cost
from labkit.book.cases.exhibits import CAUSES
from labkit.commands.chapters import notebooks_dir
from labkit.cost import stalls
from labkit.course.chapter_file import load_chapter
from labkit.course.questions import Question
from labkit.resilience.deadlines import FACTORS
from labkit.resilience.diagnose.replays import judge

CHAPTER = load_chapter("17_when_things_break")
QUESTIONS: dict[str, Question] = {id: CHAPTER.question(id, {}) for id in CHAPTER.questions}
VALUES = {"world_size": 6, "gpus": 16_384, "factor": 3.0, "flip_step": 2}


@pytest.mark.parametrize(
    ("id", "typed"),
    [
        ("shares-of-a-table", "100 * 37 / 678"),
        ("interval-at-scale", "24 / (2.3 * 4.096)"),
        ("two-hours", "86.5"),  # 1 - 0.999 ** 2000
        ("what-a-straggler-costs", "24 * 1023 / 11"),
        ("runs-to-clear", "228"),
        ("radius-of-a-host", "98304 / 20"),
    ],
)
def test_a_key_is_what_a_hand_works_out(id: str, typed: str) -> None:
    assert QUESTIONS[id].mark(typed).right


@pytest.mark.parametrize(
    ("id", "typed", "word"),
    [
        ("shares-of-a-table", "22.86", "fails loudly"),
        ("interval-at-scale", "0.3185", "8 GPUs"),
        ("interval-at-scale", "152.9", "minutes"),
        ("two-hours", "63.2", "for one hour"),
        ("what-a-straggler-costs", "2.4", "All others wait"),
        ("what-a-straggler-costs", "2455.2", "1.1 times as long"),
        ("runs-to-clear", "50", "One in three"),
        ("runs-to-clear", "149", "95 %"),
        ("radius-of-a-host", "409.6", "all wait"),
        ("radius-of-a-host", "294912", "minutes"),
    ],
)
def test_a_known_slip_is_told_its_reason(id: str, typed: str, word: str) -> None:
    told = QUESTIONS[id].mark(typed)
    assert not told.right and word in told.why


def test_numbers_that_stand_in_words() -> None:
    assert 0.98**50 == pytest.approx(0.36, abs=0.01)  # "one in three such hosts would pass" a test of 50 steps
    assert 0.98**228 <= 0.01 < 0.98**227
    assert cost.interruptions_per_host(37, 7) == pytest.approx(5.3, abs=0.05)
    assert stalls.STEP + stalls.KILL_STALL["the power smoother"] == 65  # against a limit of 60: "limit-too-short"
    assert 16_384 / 60 == pytest.approx(273, abs=0.5)  # GPU hours in a minute: section 3
    assert 16_384 * 10 / 60 == pytest.approx(2_731, abs=0.5)  # in ten minutes: section 8
    assert {"message": 60, "exchange": 80, "step": 200} == {
        name: 20 * FACTORS[name] for name in ("message", "exchange", "step")
    }
    assert math.isclose(cost.FT_HSDP_FAILURES.total, 678)


def test_predictions_declare_what_the_sources_and_the_run_say() -> None:
    declared = CHAPTER.forecast("between-failures", VALUES).declared
    llama = cost.LLAMA3_FAILURES
    rate = cost.per_thousand_servers_a_day(llama.total, 54, llama.gpus)
    assert declared == pytest.approx((cost.minutes_between_interruptions(rate, 16_384) / 60,
                                      cost.minutes_between_interruptions(rate, 100_000)))  # fmt: skip
    assert declared == pytest.approx((3.09, 30.4), abs=0.01)
    assert CHAPTER.forecast("who-looks-busy", VALUES).declared == pytest.approx((200 / 3, 0))
    assert CHAPTER.forecast("which-check", VALUES).declared == (2,)


def test_what_section_1_says_of_the_tables() -> None:
    assert cost.FT_HSDP_FAILURES.stated_sum == 100.2 and cost.LLAMA3_FAILURES.stated_sum == 94.9
    assert list(cost.LLAMA3_FAILURES.misprinted()) == ["Faulty GPU"]
    assert cost.rate_of_interval(18, 100_000) / 2.3 == pytest.approx(2.8, abs=0.05)  # "nearly three times"
    least, most = cost.FT_HSDP_FAILURES.hardware_share()
    assert least < 0.78 < most


@pytest.mark.parametrize("typed", ["message", "the message", "the limit of the message", "60 s", "60", "the inner one"])
def test_the_innermost_limit_may_be_named_in_many_ways(typed: str) -> None:
    assert QUESTIONS["named-inner"].mark(typed).right


@pytest.mark.parametrize(("typed", "word"), [("the exchange", "many messages"), ("the step", "knows least")])
def test_an_outer_limit_is_told_apart(typed: str, word: str) -> None:
    told = QUESTIONS["named-inner"].mark(typed)
    assert not told.right and word in told.why


def test_a_limit_below_the_best_is_a_wall() -> None:
    """Section 8: one second less makes the loss 1.7 times as large, a second one less that 20 times as large."""
    llama = cost.LLAMA3_FAILURES
    rate = cost.per_thousand_servers_a_day(llama.total, llama.days, llama.gpus)
    failures, steps = 7 * 24 * 60 / cost.minutes_between_interruptions(rate, 16_384), round(7 * 24 * 3600 / 20)

    def lost(limit: float) -> float:
        return failures * (limit - 10) / 60 + cost.false_alarms(limit, 20, 1.5, 16_384, steps) * 10

    best = min((27 + 0.25 * k for k in range(133)), key=lost)
    assert best == 29.75 and round(failures) == 54  # "about 54 times a week"
    assert lost(best - 1) / lost(best) == pytest.approx(1.7, abs=0.05)
    assert lost(best - 2) / lost(best - 1) == pytest.approx(20, abs=0.5)
    assert lost(60) / lost(best) == pytest.approx(2.5, abs=0.05)


def test_six_ranks_and_five_causes_are_thirty_answers() -> None:
    assert 6 * len(CAUSES) == 30  # section 3


def test_bit_25_of_a_float32_is_a_factor_of_16() -> None:
    """Section 7: it is bit 1 of the last byte, and the bit of the exponent that is worth 4."""
    for x in (1.5, 0.0371, -200.0):
        (bits,) = struct.unpack("<I", struct.pack("<f", x))
        raw = bytearray(struct.pack("<f", x))
        raw[-1] ^= 1 << 1
        assert struct.unpack("<I", raw)[0] == bits ^ 1 << 25 and 25 - 24 == 1 and 2 ** (25 - 23) == 4
        (flipped,) = struct.unpack("<f", raw)
        (same,) = struct.unpack("<f", struct.pack("<f", x))
        assert flipped / same in (16, 1 / 16)


def test_the_example_of_replays_is_what_its_text_says() -> None:
    """Section 7: 10, 11 and 12 are right, and rank 1 is at fault; the two rules beside it."""
    found = judge([[10, 10, 10, 11, 12], [91, 91, 91, 92, 90], [12, 12, 12, 10, 11]], times=2)
    assert (found.suspects, found.exact) == ((1,), True)
    assert judge([[10, 10, 10, 11, 12], [11, 11, 91, 12, 10], [12, 12, 12, 10, 11]], times=2).suspects == (1,)
    once = judge([[10, 10, 10, 11, 12], [91, 11, 11, 12, 10], [12, 12, 12, 10, 11]], times=2)
    assert (once.suspects, once.pattern) == ((1,), "transient")


def test_corrupted_steps_do_not_depend_on_how_rare_they_are() -> None:
    """Section 7: 100 of them, if one step in 100 is done again, with two rates that differ by a factor of 100."""
    for one_in in (10_000, 1_000_000):
        assert cost.steps_until_found(1 / one_in, 100) / one_in == pytest.approx(cost.corrupted_before_found(100))


def test_no_prediction_is_told_before_it_is_asked() -> None:
    """Who waits least is asked in section 5, and what doing it again finds in section 7: no text above tells it."""
    cells = json.loads((notebooks_dir() / "17_when_things_break.ipynb").read_text())["cells"]
    ids = [cell["id"] for cell in cells]
    told = {"prediction-busy": ("waits least", "The one that waits"), "prediction-check": ("step again", "still falls")}
    for id, words in told.items():
        before = "".join("".join(cell["source"]) for cell in cells[: ids.index(id)])
        assert not [word for word in words if word in before]
