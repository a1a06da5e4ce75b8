"""What chapter 2 says of messages that wait for their receivers, beside runs."""

from __future__ import annotations

import pytest
import torch

import labkit
from labkit import Link, Network, cost
from labkit.chapters.c02_ranks_and_messages import pictures, ways
from labkit.chapters.c02_ranks_and_messages.you_write import pass_right
from labkit.cost import wires

pytestmark = pytest.mark.ranks


LINK = Link(bandwidth=1e7, latency=1e-4)
VIRTUAL = {"clock": "virtual", "network": Network(intra=LINK)}


def took(way, size: int) -> float:  # type: ignore[no-untyped-def]
    """How many times as long as one message, where no byte leaves before its receiver is there."""

    def neighbour(group):  # type: ignore[no-untyped-def]
        mine = torch.full((250_000,), float(group.rank))
        return way(mine, ways.Meeting(group))[0].item(), LINK.seconds(mine.nbytes)

    run = labkit.launch(neighbour, size, **VIRTUAL)
    assert [got for got, _ in run.results] == [(rank - 1) % size for rank in range(size)]
    return run.trace.duration / run.results[0][1]


@pytest.mark.parametrize("way", [ways.one_exception, pass_right])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_where_senders_wait_a_single_exception_makes_the_whole_circle_wait(way, size: int) -> None:  # type: ignore[no-untyped-def]
    assert took(way, size) == pytest.approx(size, rel=0.01)


@pytest.mark.parametrize(("size", "messages"), [(2, 2), (3, 3), (4, 2), (5, 3), (7, 3), (8, 2)])
def test_every_second_rank_takes_two_messages_or_three(size: int, messages: int) -> None:
    assert took(ways.every_second, size) == pytest.approx(messages, rel=0.01)


def test_each_rank_mishears_another_word() -> None:
    text = sentence = "Special cases are not special enough to break the rules."
    for rank in range(1, 8):
        text = pictures.mishear(text, rank, seed=0)
    assert sum(a != b for a, b in zip(text.split(), sentence.split(), strict=True)) == 7


def test_a_message_on_each_wire_takes_the_time_of_the_formula_and_is_drawn_on_axes_that_stay() -> None:
    def once(group):  # type: ignore[no-untyped-def]
        x = torch.zeros(250)
        group.send(x, to=1) if group.rank == 0 else group.recv(x, source=0)

    runs = {
        wire.name: labkit.launch(
            once, 2, clock="virtual", network=Network(intra=Link(bandwidth=wire.bandwidth, latency=wire.alpha))
        )
        for wire in wires.WIRES
    }
    assert {name: t for name, (_, t) in pictures.one_each(runs).items()} == pytest.approx(
        {wire.name: wire.seconds(1000) for wire in wires.WIRES}, rel=1e-3
    )
    figure = pictures.on_each_wire(runs)
    assert figure.sentence.startswith("1 kB: NVLink 3.4") and "size of the message" in figure.svg
    assert [row["latency's part"] for row in pictures.in_parts(runs)] == ["100%", "100%", "95%"]


def test_the_picture_of_a_message_marks_the_bend_and_draws_the_two_parts_thinly() -> None:
    fit = cost.fit_alpha_beta([(n, 1e-4 + n * 1e-10) for n in (0, 1000, 1_000_000, 4_000_000)])
    points = {n: [(1e-4 + n * 1e-10) * k / 10 for k in range(1, 21)] for n in (1000, 1_000_000, 4_000_000)}
    figure = pictures.one_message(fit, points)
    for words in ("half-bandwidth size 1 MB", "α alone", "β n alone", "time of one message", "10 to 90 %"):
        assert words in figure.svg
    assert figure.spec is not None and "β n alone" in [line["name"] for line in figure.spec["data"]]
    assert figure.rows[0]["10 % (ms)"] == pytest.approx(0.1001 * 0.29)
