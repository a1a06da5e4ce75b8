"""The questions of chapter 2: keys beside numbers worked out by hand, and words that readers use."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from labkit import Link, Network, book, launch
from labkit.cost import wires
from labkit.cost.units import KB, MB
from labkit.course.chapter_file import load_chapter
from labkit.course.questions import Order, Question
from labkit.wire import Group

CHAPTER = load_chapter("02_ranks_and_messages")
VALUES = {"world_size": 8, "wires": wires, "alpha": 60e-6, "beta": 1 / 5e9}
QUESTIONS: dict[str, Question] = {id: CHAPTER.question(id, VALUES) for id in CHAPTER.questions}


@pytest.mark.parametrize(
    ("id", "typed"),
    [
        ("end-of-chain", "3"),  # of 8 ranks, 0 to 3 have the number
        ("nvlink-small", "14.8 / 3.4"),
        ("overlap-step", "9 ms"),
        ("half-size", "100 kB"),  # 50 microseconds at 2 GB/s
        ("bucket", "100 * 62 / 260"),  # microseconds: 60 + 2 for 10 kB, 60 + 200 for the bucket
        ("late-receiver", "10"),
    ],
)
def test_a_key_is_what_a_hand_works_out(id: str, typed: str) -> None:
    assert QUESTIONS[id].mark(typed).right


def test_the_messages_are_ordered_by_their_times() -> None:
    sizes = {"kB": KB, "MB": MB}
    by_name = {wire.name: wire for wire in wires.WIRES}
    question = QUESTIONS["small-on-wires"]
    assert isinstance(question, Order)
    times = []
    for item in question.items:
        number, unit, _, wire = item.split()
        times.append(by_name[wire].seconds(float(number) * sizes[unit]))
    assert times == sorted(times)
    assert all(b / a > 1.2 for a, b in zip(times, times[1:], strict=False)), "no two are close"


def test_predictions_declare_what_the_run_of_the_chapter_shows() -> None:
    assert CHAPTER.forecast("telephone", {"world_size": 8}).declared == (140,)
    kernels = {"message": 8.02e-3, "kernels": [0.0, 4e-3, 10e-3, 16e-3]}
    assert CHAPTER.forecast("overlap", VALUES | kernels).declared == pytest.approx((8.02, 8.02, 10, 16))
    cut = {"whole": 4 * MB, "pieces": 500}  # 500 * (60 + 1.6) and 60 + 800 microseconds
    assert CHAPTER.forecast("pieces", VALUES | cut).declared == pytest.approx((500 * 61.6 / 860,))


@pytest.mark.parametrize("typed", ["eager", "Eager!", "the eager way", "eager protocol", "eagerly"])
def test_the_eager_way_may_be_named_in_many_ways(typed: str) -> None:
    assert QUESTIONS["safe-program"].mark(typed).right


@pytest.mark.parametrize("typed", ["rendezvous", "asynchronous", "non-blocking", "isend", "buffered"])
def test_another_way_is_told_apart(typed: str) -> None:
    told = QUESTIONS["safe-program"].mark(typed)
    assert not told.right and not told.why.endswith("is not it.")


def test_who_takes_the_ratio_of_the_latencies_is_told_what_is_missing() -> None:
    told = QUESTIONS["nvlink-small"].mark("4.1")
    assert not told.right and "ratio of the latencies" in told.why and "another 800 ns" in told.why
    assert QUESTIONS["nvlink-small"].mark("4.3").right and QUESTIONS["nvlink-small"].mark("4.4").right


@pytest.mark.ranks
def test_a_late_receiver_costs_the_sender_s_clock_the_time_of_its_bytes_alone() -> None:
    link = Link(bandwidth=1e9, latency=20e-6)

    def late(group: Group) -> None:
        x = torch.zeros(1000)
        if group.rank == 0:
            group.send(x, to=1)
        else:
            group.compute(0.1)
            group.recv(x, source=0)

    (send,) = launch(late, 2, clock="virtual", network=Network(intra=link)).trace.sends
    assert send.end - send.start == pytest.approx(4e-6)


def test_what_is_said_of_wrong_half_sizes_is_so() -> None:
    wire = wires.Wire("a link", 2e9, 50e-6)
    assert wire.share(wire.half_size / 2) == pytest.approx(1 / 3)
    assert wire.share(wire.half_size * 2) == pytest.approx(2 / 3)


def test_a_prediction_lapses_when_its_question_has_other_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.setenv("LABKIT_HEADLESS", "0")

    def game(ranks: int) -> book.Prediction:
        return book.open_chapter("02_ranks_and_messages", world_size=ranks).predict("telephone")

    game(8).answer(140)
    assert game(8).predicted and game(8).values == (140.0,)
    assert not game(3).predicted


def test_a_number_that_is_no_known_slip_is_told_the_way() -> None:
    told = QUESTIONS["half-size"].mark("77 kB")
    assert not told.right and told.why.startswith("77 kB is not it. At the size that you look for")
    game = CHAPTER.forecast("telephone", VALUES)
    assert "You counted rank 0 as well" in game.why([160.0], [140]) and game.why([140.0], [140]) == ""
    assert "Nobody can begin to think" in game.why([77.0], [140])
