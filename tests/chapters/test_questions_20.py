"""The questions of chapter 20: keys beside numbers worked out by hand, slips, and what the texts claim."""

from __future__ import annotations

import json
import math

import pytest

from labkit import cost
from labkit.course.build import NOTEBOOKS
from labkit.course.chapter_file import load_chapter
from labkit.course.questions import Question
from labkit.resilience.ntp import naive_messages, shard_map

NAME = "20_nonuniform_tensor_parallelism"
CHAPTER = load_chapter(NAME)
QUESTIONS: dict[str, Question] = {id: CHAPTER.question(id, {}) for id in CHAPTER.questions}
SMALL = cost.Cluster(domains=64, gpus_per_domain=8, domains_per_replica=4, widths=(8, 7), samples=8)
SPREAD = [1 if domain % 8 == 0 else 0 for domain in range(64)]


@pytest.mark.parametrize(
    ("id", "typed"),
    [
        ("lost-at-tp32", f"{100 * (1 - 0.998**32):.4f}"),
        ("fewest-moves", "2 * 48 / 8"),
        ("weight-of-narrow", "6 / 14"),
        ("pace-30", f"{100 * (4 / (96 / 28) - 1):.4f}"),
        ("idle-of-packed", "16 - 10"),
    ],
)
def test_a_key_is_what_a_hand_works_out(id: str, typed: str) -> None:
    assert QUESTIONS[id].mark(typed).right


@pytest.mark.parametrize(
    ("id", "typed", "word"),
    [
        ("lost-at-tp32", "0.2", "whole group"),
        ("lost-at-tp32", "6.4", "lose two"),
        ("fewest-moves", "6", "one extra rank"),
        ("fewest-moves", "8", "stretch of the sync layout"),
        ("weight-of-narrow", "0.5", "mean of means"),
        ("weight-of-narrow", "7/15", "Count examples"),
        ("weight-of-narrow", "0.75", "sum to one"),
        ("pace-30", "0", "not whole"),
        ("idle-of-packed", "10", "have failed"),
        ("idle-of-packed", "70", "without packing"),
        ("name-the-layout", "the compute layout", "multiplies"),
        ("name-the-layout", "in both", "in common"),
    ],
)
def test_a_known_slip_is_told_its_reason(id: str, typed: str, word: str) -> None:
    told = QUESTIONS[id].mark(typed)
    assert not told.right and word in told.why


@pytest.mark.parametrize(
    "typed", ["sync", "the sync layout", "Sync layout", "synchronization layout", "in the sync layout"]
)
def test_the_sync_layout_may_be_named_in_many_ways(typed: str) -> None:
    assert QUESTIONS["name-the-layout"].mark(typed).right


def test_predictions_declare_what_the_chapter_shows() -> None:
    assert CHAPTER.forecast("plain-cut", {}).declared == (60, 25)
    told = CHAPTER.forecast("packing", {"cluster": SMALL, "failed": SPREAD}).declared
    loss = [float(SMALL.loss(SPREAD, method, packed=packed)) for method, packed in
            (("dp-drop", False), ("dp-drop", True), ("ntp", True))]  # fmt: skip
    assert told == pytest.approx([100 * part for part in loss])
    assert told == pytest.approx((50, 12.5, 1.5625))


def test_a_failed_gpu_takes_its_group_as_section_1_tells_it() -> None:
    assert round(0.001 * 32_768) == 33 and round(cost.amplification(0.001, 64)) == 62
    assert round((1 - cost.group_availability(0.001, 64)) * 32_768, -3) == 2_000
    figure = {8: 0.992, 16: 0.985, 32: 0.969, 64: 0.939}  # 001, figure 3
    by_chance = {wide: round(cost.group_availability(0.001, wide), 3) for wide in figure}
    counted = {wide: round(cost.group_availability_of(32_768, 32, wide), 3) for wide in figure}
    assert [wide for wide in figure if by_chance[wide] != figure[wide]] == [16, 32, 64]
    assert [wide for wide in figure if counted[wide] != figure[wide]] == [16]
    assert f"{cost.group_availability_of(32_768, 32, 16):.2%}" == "98.45%"
    lost = [1 - cost.group_availability(0.001, 64 * groups) for groups in (1, 2, 4)]
    assert round(lost[0], 2) == 0.06 < lost[0] < 0.10 < lost[1] < 0.19 < lost[2]


def test_the_walk_through_32_heads() -> None:
    m = shard_map(32, 8, 7)
    assert [len(mine) for mine in m.sync] == [5, 5, 5, 5, 4, 4, 4] and m.compute[7] == [4, 9, 14, 19]
    assert all(len(mine) == 4 for mine in m.compute) and m.moved / 32 == 1 - 7 / 8
    assert [heads[-1] for heads in m.sync[:4]] == [4, 9, 14, 19]
    forty = shard_map(40, 8, 7)
    assert [len(mine) for mine in forty.sync] == [6, 6, 6, 6, 6, 5, 5] and forty.compute[7] == [5, 11, 17, 23, 29]
    gives = shard_map(12_000, 32, 30).counts[30:]
    assert all({*row[:30]} <= {12, 13} and row[30:] == [0, 0] for row in gives)  # to every rank that sums


def test_the_choices_about_rank_7_are_its_shards_and_those_of_nobody_else() -> None:
    forty = shard_map(40, 8, 7)
    choices = QUESTIONS["which-shards-of-rank-7"].choices  # type: ignore[attr-defined]
    shards = {choice.right: [int(word) for word in choice.text.split(", ")] for choice in choices if choice.right}
    assert shards == {True: forty.compute[7]}
    texts = [choice.text for choice in choices]
    assert ", ".join(map(str, forty.sync[6])) in texts and forty.sync[6] == forty.compute[6]  # "keeps them all"
    assert ", ".join(str(mine[0]) for mine in forty.sync[:5]) in texts  # "the first of each stretch"


def test_the_sources_375_400_and_25() -> None:
    shared = [n for row in naive_messages(12_000, 32, 30) for n in row if n]
    assert len(shared) == 60 and (min(shared), max(shared)) == (25, 375)
    marks = {375 * i for i in range(1, 32)} | {400 * i for i in range(1, 30)}  # of both rulers: one in common
    assert len(marks) == 31 + 29 - 1 == 59 and 375 * 16 == 400 * 15 == 6_000
    assert {len(mine) for mine in shard_map(12_000, 32, 30).sync} == {400}
    assert 375 / 15 == 25 and 375 + 25 == 400 and 30 + 2 * 15 == 60  # the article's own cut: each of two to 15 ranks
    assert 12_288 / 32 == 384 and 12_288 % 30


def test_whole_heads_and_whole_samples_are_coarse() -> None:
    assert 8 / 7 - 1 == pytest.approx(0.143, abs=5e-4) and 5 / 4 == 1.25
    assert shard_map(32, 7, 7).pace == pytest.approx(1.094, abs=5e-4)
    assert shard_map(128, 30, 30).pace == 5 / (128 / 30) == pytest.approx(1.17, abs=2e-3)
    fits = [samples for samples in range(9) if samples * 5 / 4 <= 8]
    assert max(fits) == 6  # of 8; 7 take 8.75 ms, and lose more
    assert 8 * 30 / 32 == 7.5 and math.floor(8 * cost.narrow_speed(30, 32)) == 7


def test_the_paper_s_model_at_its_three_widths_with_heads_dealt_out_whole() -> None:
    hidden, sequence = 20_480, 16_384  # 001 6.2; flops of a token over the hidden size
    attention, feed_forward = 8 * hidden + 4 * sequence, 16 * hidden
    part = attention / (attention + feed_forward)
    for width, speed, samples in ((32, 1.0, 8), (30, 0.875, 7), (28, 0.842, 6)):
        slower = part * math.ceil(128 / width) / 4 + (1 - part) * math.ceil(81_920 / width) / 2560
        assert cost.narrow_speed(width, 32, cost.WORK_480B) == pytest.approx(1 / slower)
        assert math.floor(8 / slower + 1e-9) == samples and round(1 / slower, 3) == pytest.approx(speed, abs=1e-3)


def test_the_question_of_policy_tells_numbers_that_decide_it() -> None:
    question, boost = QUESTIONS["which-policy"], cost.PowerBoost()
    speed = cost.narrow_speed(28, 32, cost.WORK_480B)
    assert f"its speed is {speed:.2f}." in question.prompt and f"for {boost.speed(1.3):.3f} times" in question.prompt
    assert 32 / 28 < boost.speed(1.3) < 1 / speed and "32/28 = 1.143" in question.explanation


def test_what_section_8_says_of_power() -> None:
    boost = cost.PowerBoost()
    assert f"{boost.speed(boost.limit):.3f}" == "1.156" and boost.limit == 1.3
    assert f"{boost.domain_power(30, 32) - 1:.1%}" == "2.7%"
    boost.power_for(32 / 28)  # all work cut evenly: just possible
    with pytest.raises(ValueError, match="all that power=1.3 can give"):
        boost.power_for(1 / cost.narrow_speed(28, 32, cost.WORK_480B))


def test_packing_idle_gpus_and_spares_as_section_9_tells_them() -> None:
    assert sum(SPREAD) == 8 and 8 / 512 == float(SMALL.loss(SPREAD, "ntp")) == 0.015625
    assert float(SMALL.loss(SPREAD, "ntp", packed=False)) == 0.0625
    assert float(SMALL.loss(SPREAD, "ntp-pw", packed=False)) == 0
    six = SMALL.use([1] * 6 + [0] * 58, "ntp")
    assert int(six.idle) == 2 and float(six.loss) > 6 / 512  # it does not work out
    spares = [next(n for n in range(65) if SMALL.use([*SPREAD, *[0] * n], method, grow=True).trained >= SMALL.batch)
              for method in ("dp-drop", "ntp", "ntp-pw")]  # fmt: skip
    assert spares == [8, 4, 0]


def test_the_stored_run_shows_what_the_text_says_of_it() -> None:
    cells = {
        cell["id"]: cell for cell in json.loads((NOTEBOOKS / f"{NAME}.ipynb").read_text(encoding="utf-8"))["cells"]
    }

    def shown(id: str) -> str:
        said = []
        for output in cells[id]["outputs"]:
            said += output.get("text") or output["data"].get("text/plain", [])
        return "".join(said)

    recorded = dict(line.split() for line in shown("record").splitlines()[2:])
    assert recorded["pairs_of_a_plain_cut"] == "60"
    in_turn, planned = float(recorded["in_turn_against_map"]), float(recorded["planned_against_map"])
    assert in_turn > 6 and 0.9 < planned < 1  # a plan saves as much as the map; without one it is slow
    assert float(recorded["moved_share"]) == 1 - 3 / 4 and float(recorded["furthest_loss"]) < 1e-12
    behind, afterwards = (
        [float(line.split()[i].strip("%")) for line in shown("timed-run").splitlines()[3:]] for i in (3, 5)
    )
    assert all(0.4 < b / a < 0.6 for b, a in zip(behind[1:], afterwards[1:], strict=True))  # about half is hidden
