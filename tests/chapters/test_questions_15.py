"""The questions of chapter 15: keys beside numbers worked out by hand, words that readers use, and what is claimed."""

from __future__ import annotations

import pytest

from labkit.chapters.c15_hybrid_parallelism import panels
from labkit.cost import planner
from labkit.cost.planner import MODELS, Plan, estimate
from labkit.course.chapter_file import load_chapter
from labkit.course.questions import Question

CHAPTER = load_chapter("15_hybrid_parallelism")
VALUES = {"batch": 128}
QUESTIONS: dict[str, Question] = {id: CHAPTER.question(id, VALUES) for id in CHAPTER.questions}


@pytest.mark.parametrize(
    ("id", "typed"),
    [
        ("rank-of-coordinates", "3 * 128 + 2 * 8 + 5"),
        ("groups-of-a-fleet", "8 * 16"),
        ("what-a-rank-holds", "175 * 10 / 96"),
    ],
)
def test_a_key_is_what_a_hand_works_out(id: str, typed: str) -> None:
    assert QUESTIONS[id].mark(typed).right


@pytest.mark.parametrize(
    ("id", "typed", "why"),
    [
        ("rank-of-coordinates", "5 * 128 + 2 * 8 + 3", "the first axis the innermost"),
        ("groups-of-a-fleet", "8192", "Each rank is in one such group"),
        ("what-a-rank-holds", "25.52", "master weights in 32 bits"),
        ("what-a-rank-holds", "29.17", "all 16 bytes"),
        ("what-a-rank-holds", "1750", "That is the whole model"),
        ("rank-of-coordinates", "349", "lie between 384 and 511"),
        ("groups-of-a-fleet", "512", "they have no gradient in common"),
        ("groups-of-a-fleet", "1000", "In how many parts is the model cut?"),
    ],
)
def test_a_known_slip_has_a_sentence_of_its_own(id: str, typed: str, why: str) -> None:
    told = QUESTIONS[id].mark(typed)
    assert not told.right and why in told.why


@pytest.mark.parametrize(
    "typed", ["bandwidth matching", "the bandwidth-matching principle", "hierarchy-aware parallelism", "topology aware"]
)
def test_the_rule_may_be_named_in_many_ways(typed: str) -> None:
    assert QUESTIONS["name-the-rule"].mark(typed).right
    assert "Balance is about equal work" in QUESTIONS["name-the-rule"].mark("load balancing").why


def test_twice_the_replicas_send_twice_as_much_and_hardly_more_each() -> None:
    about = {"gpus": 16_384, "t": 8, "p": 16, "d": 128, "m": 32}
    one, every = CHAPTER.forecast("twice-the-replicas", about).declared
    assert one == pytest.approx((255 / 256) / (127 / 128)) and every == pytest.approx(2 * one)


def test_what_is_said_of_wider_domains_and_of_sixteen_nodes_is_so() -> None:
    trillion = planner.MEGATRON_2021[-1].model
    space = planner.Space((1, 2), ("one_f_one_b", "interleaved"), ("zero1", "zero3"))
    few, many = (planner.search(trillion, planner.b200_cluster(2048, n), 2048, space, keep=1).winner for n in (8, 64))
    assert few.plan.pipeline > 1 and many.plan.pipeline == 1 and many.plan.stage == 3 and many.seconds < few.seconds
    assert many.plan.tensor <= 8  # a domain that allows more is no reason to take it

    big, sixteen = planner.Model("120B", 96, 10_240, 128), planner.h100_cluster(128)
    wide = estimate(big, sixteen, Plan(128, microbatches=128, recompute="full"))
    assert wide.fits and wide.seconds > 5 * planner.search(big, sixteen, 128, keep=1).winner.seconds
    assert big.params / 1e9 == pytest.approx(120, rel=0.02)


def test_where_no_cut_is_possible_the_planner_says_why() -> None:
    racks = planner.nvl72_cluster(14)  # 1,008 GPUs, and no batch of the panel has a factor of 7 and two of 3
    with pytest.raises(ValueError, match="no plan is possible for Llama 3 8B on 1008 GPUs .* take a multiple of"):
        panels.chosen(planner.search(MODELS["Llama 3 8B"], racks, 1024), 2)
