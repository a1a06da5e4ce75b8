"""The questions of chapter 18: keys beside numbers worked out by hand or drawn at random, and what they claim."""

from __future__ import annotations

import math
from pathlib import Path

import nbformat
import pytest
import torch

from labkit import cost
from labkit.cost.units import HOUR, KB, MINUTE
from labkit.course.chapter_file import load_chapter
from labkit.course.questions import Choices, Order, Question
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.resilience.checkpoint.random_state import random_state
from labkit.resilience.ft_hsdp.state import TrainingState
from labkit.resilience.quorum import Member, Quorum

CHAPTER = load_chapter("18_checkpoints")
QUESTIONS: dict[str, Question] = {id: CHAPTER.question(id, {}) for id in CHAPTER.questions}


@pytest.mark.parametrize(
    ("id", "typed"),
    [
        ("fifteen-minutes-to-write", "296.46"),
        ("what-is-destroyed", "2.277"),
        ("bytes-of-70b", "12 * 70 / 64"),
        ("a-tenth-of-the-stall", "509.1"),
        ("which-stretches", "2"),
        ("step-of-the-sampler", "100 * 4 * 4"),
        ("wait-or-shrink", "6 + 2 * 4 / 3"),
        ("crossing", "100 / 6"),
    ],
)
def test_a_key_is_what_a_hand_works_out(id: str, typed: str) -> None:
    assert QUESTIONS[id].mark(typed).right


@pytest.mark.parametrize(
    ("id", "typed", "word"),
    [
        ("fifteen-minutes-to-write", "171.16", "5 minutes"),
        ("fifteen-minutes-to-write", "513.5", "square root"),
        ("what-is-destroyed", "3", "Half the interval"),
        ("what-is-destroyed", "2", "appears nowhere"),
        ("bytes-of-70b", "840", "one writer"),
        ("bytes-of-70b", "17.5", "16 bytes"),
        ("a-tenth-of-the-stall", "1247", "does not wait"),
        ("step-of-the-sampler", "0", "further on"),
        ("wait-or-shrink", "8", "as long to earn"),
        ("crossing", "44.44", "before it grew"),
    ],
)
def test_a_known_slip_is_told_its_reason(id: str, typed: str, word: str) -> None:
    told = QUESTIONS[id].mark(typed)
    assert not told.right and word in told.why


def test_what_a_failure_destroys_is_what_a_drawn_one_destroys() -> None:
    from random import Random

    draw, interval, mtbf = Random(0), 6.0, 4.0
    lost: list[float] = []
    while len(lost) < 100_000:
        at = draw.expovariate(1 / mtbf)
        if at < interval:
            lost.append(at)
    assert math.fsum(lost) / len(lost) == pytest.approx(2.277, rel=0.01)


def test_four_times_the_fleet_halves_the_interval_and_doubles_the_tax() -> None:
    one, four = cost.young_interval(1, 1000), cost.young_interval(1, 250)
    assert one == pytest.approx(2 * four)
    taxes = cost.first_order_tax(one, 1, 1000).of_useful, cost.first_order_tax(four, 1, 250).of_useful
    assert taxes[1] == pytest.approx(2 * taxes[0])


def test_a_tenth_of_the_stall_leaves_more_than_two_fifths_of_the_loss() -> None:
    often, best = CHAPTER.forecast("behind", {"write": 300.0, "mtbf": 14400.0}).declared
    assert often == pytest.approx(100 * (0.5 / 48.990 + (48.990 / 2 + 0.5 + 5) / 240), rel=1e-4)
    assert best == pytest.approx(100 * (0.5 / 15.492 + (15.492 / 2 + 0.5 + 5) / 240), rel=1e-4)


def test_the_stretches_that_a_rank_needs_lie_in_two_files() -> None:
    need = set(range(400, 800))
    assert sum(bool(need & set(range(300 * r, 300 * (r + 1)))) for r in range(4)) == 2


def test_ranks_of_a_newcomer_ask_healthy_replicas_in_turn() -> None:
    """Section 8: with three healthy replicas rank 0 asks the first, rank 1 the second, and so on."""
    quorum = Quorum(1, 5, 0, tuple(Member(r, 1, 5 if r < 3 else 0, 0) for r in range(4)))
    assert [quorum.source_of(3, rank).replica for rank in range(4)] == [0, 1, 2, 0]


def test_kinds_of_questions() -> None:
    assert isinstance(QUESTIONS["order-of-a-save"], Order) and isinstance(QUESTIONS["when-no-peer-helps"], Choices)


def cells() -> dict[str, str]:
    """The text of each cell of the chapter."""
    notebook = nbformat.read(Path(__file__).parents[2] / "notebooks" / "18_checkpoints.ipynb", 4)
    return {cell.id: cell.source for cell in notebook.cells}


def test_numbers_that_stand_in_the_words_of_the_chapter() -> None:
    said = cells()
    write, mtbf = 5 * MINUTE, 4 * HOUR
    young, stall = cost.young_interval(write, mtbf), write / 10
    before = cost.first_order_tax(young, write, mtbf).of_useful
    after = cost.asynchronous_tax(cost.asynchronous_interval(stall, write, mtbf), stall, write, mtbf).of_useful
    assert (
        f"The loss is only {before / after:.1f} times smaller: {100 * before:.1f} % became {100 * after:.1f} %."
        in (said["async-meaning"])
    )
    assert cost.lost_work(1000 * mtbf, mtbf) == pytest.approx(mtbf)  # "it becomes the whole mean time", claims-end
    least = cost.shortest_wait_for_smaller(5, 2, 7, 8)
    assert f"about {least:.1f} min" in said["smaller-meaning"] and least < cost.shortest_wait_for_smaller(5, 2, 2, 4)
    at_random = cost.random_synchronous_effective_time
    assert f"{at_random(18, 10):.0%}".replace("%", " % of the time") in said["crossing-meaning"]
    left = f"{at_random(1, 1):.0%}".replace("%", " %")
    assert f"$e^{{-1}}$, or {left}" in said["crossing-meaning"] and left in said["s10"]


def test_bytes_that_stand_in_the_words_of_the_chapter() -> None:
    import numpy  # noqa: F401  - whose state is saved, too, once it is loaded

    said = cells()
    of_rank = sum(x.nbytes for x in random_state(torch.device("cpu")).values())
    for cell in ("inventory-meaning", "writes-meaning"):
        assert f"{of_rank / KB:.0f} kB a rank" in said[cell]
    model = GPT(GPTConfig(width=64, layers=2, context=32, heads=4), 0)
    optimizer = torch.optim.AdamW(model.parameters())
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    header = TrainingState(model, optimizer, replicas=2).header()
    counts = [entry for entry in header["entries"] if not entry["shape"]]
    more = header["nbytes"] - 12 * model.config.num_parameters
    room = more // len(counts)
    words = f"The {more} bytes more are Adam's {len(counts)} counts of steps, one for each tensor: 4 bytes, padded to"
    assert f"{words} {room}." in said["peer-meaning"]


def test_a_number_added_to_all_scores_of_a_row_is_not_seen_by_softmax() -> None:
    """So the biases of the keys have a gradient of rounding only: "smaller-or-wait"."""
    config = GPTConfig(width=32, layers=1, context=16, heads=4)
    model = GPT(config, 0)
    model.double()
    tokens = torch.randint(256, (4, 17), generator=torch.Generator().manual_seed(0))
    next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
    gradient = dict(model.named_parameters())["blocks.0.attention.qkv.bias"].grad
    assert gradient is not None
    queries, keys, values = gradient.abs().chunk(3)
    assert keys.max() < 1e-15 < 1e-6 < min(queries.max(), values.max())
