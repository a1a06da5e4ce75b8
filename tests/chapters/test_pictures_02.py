"""What chapter 2 says of messages that wait for their receivers, beside runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import labkit
from labkit import Link, Network, cost
from labkit.chapters.c02_ranks_and_messages import panels, pictures, ways
from labkit.chapters.c02_ranks_and_messages.you_write import pass_right
from labkit.cost import wires

pytestmark = pytest.mark.ranks


LINK = Link(bandwidth=1e7, latency=1e-4)
ONE = LINK.seconds(1_000_000)  # a message of these tests
VIRTUAL = {"clock": "virtual", "network": Network(intra=LINK)}


def took(way, size: int) -> float:  # type: ignore[no-untyped-def]
    """How many times as long as one message, where no byte leaves before its receiver is there."""

    def neighbour(group):  # type: ignore[no-untyped-def]
        mine = torch.full((250_000,), float(group.rank))
        return way(mine, ways.Meeting(group))[0].item(), LINK.seconds(mine.nbytes)

    run = labkit.launch(neighbour, size, **VIRTUAL)
    assert [got for got, _ in run.results] == [(rank - 1) % size for rank in range(size)]
    return run.trace.duration / run.results[0][1]


def in_turn(mine, group, receives_first):  # type: ignore[no-untyped-def]
    """As in the notebook."""
    right, left, theirs = (group.rank + 1) % group.size, (group.rank - 1) % group.size, torch.empty_like(mine)
    if receives_first:
        group.recv(theirs, source=left)
    group.send(mine, to=right)
    if not receives_first:
        group.recv(theirs, source=left)
    return theirs


def one_exception(mine, group):  # type: ignore[no-untyped-def]
    """As in the notebook."""
    return in_turn(mine, group, receives_first=group.rank == 0)


def every_second(mine, group):  # type: ignore[no-untyped-def]
    """As in the notebook."""
    return in_turn(mine, group, receives_first=group.rank % 2 == 1)


@pytest.mark.parametrize("way", [one_exception, pass_right])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_where_senders_wait_a_single_exception_makes_the_whole_circle_wait(way, size: int) -> None:  # type: ignore[no-untyped-def]
    assert took(way, size) == pytest.approx(size, rel=0.01)


@pytest.mark.parametrize(("size", "messages"), [(2, 2), (3, 3), (4, 2), (5, 3), (7, 3), (8, 2)])
def test_every_second_rank_takes_two_messages_or_three(size: int, messages: int) -> None:
    assert took(every_second, size) == pytest.approx(messages, rel=0.01)


def test_each_rank_mishears_another_word() -> None:
    text = sentence = "Special cases are not special enough to break the rules."
    for rank in range(1, 8):
        text = pictures.mishear(text, rank, seed=0)
    assert sum(a != b for a, b in zip(text.split(), sentence.split(), strict=True)) == 7


def test_a_message_on_a_wire_takes_the_time_of_the_formula_and_is_drawn_on_axes_that_stay() -> None:
    def once(group, name):  # type: ignore[no-untyped-def]
        x = torch.zeros(250)
        group.send(x, to=1) if group.rank == 0 else group.recv(x, source=0)
        return name

    for wire in wires.WIRES:
        network = Network(intra=Link(bandwidth=wire.bandwidth, latency=wire.alpha))
        run = labkit.launch(once, 2, wire.name, clock="virtual", network=network)
        assert run.trace.duration == pytest.approx(wire.seconds(1000), rel=1e-3)
        figure = pictures.on_each_wire(run)
        assert figure.sentence.startswith(f"1 kB over {wire.name} took ") and "size of the message" in figure.svg
        rows = list(pictures.in_parts(run))
        assert [row["latency's part"] for row in rows] == ["100%", "100%", "95%"]
        assert [row["wire"] for row in rows if row["the run (emulated)"]] == [wire.name]
        assert all(row["the run (emulated)"] in ("", row["together"]) for row in rows)


def test_the_picture_of_a_message_marks_the_bend_and_draws_the_two_parts_thinly() -> None:
    fit = cost.fit_alpha_beta([(n, 1e-4 + n * 1e-10) for n in (0, 1000, 1_000_000, 4_000_000)])
    points = {n: [(1e-4 + n * 1e-10) * k / 10 for k in range(1, 21)] for n in (1000, 1_000_000, 4_000_000)}
    figure = pictures.one_message(fit, points)
    for words in ("half-bandwidth size 1 MB", "α alone", "β n alone", "time of one message", "10 to 90 %"):
        assert words in figure.svg
    assert figure.spec is not None and "β n alone" in [line["name"] for line in figure.spec["data"]]
    assert figure.rows[0]["10 % (ms)"] == pytest.approx(0.1001 * 0.29)


def neighbour(group, way):  # type: ignore[no-untyped-def]
    mine = torch.full((250_000,), float(group.rank))
    return way(mine, ways.Meeting(group))[0].item()


def at_once(mine, group):  # type: ignore[no-untyped-def]
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    return group.exchange(mine, to=right, like=torch.empty_like(mine), source=left)


def test_all_ways_are_drawn_on_the_axis_of_the_slowest_and_told_in_messages() -> None:
    single_file, together = (labkit.launch(neighbour, 8, way, **VIRTUAL) for way in (one_exception, at_once))
    assert "as long as 8 messages one after the other" in pictures.in_messages(single_file, ONE)
    assert "as long as one message" in pictures.in_messages(together, ONE)
    ends = [axis_of(pictures.meetings(run, ONE)) for run in (single_file, together)]
    assert ends == [pytest.approx(8e3 * LINK.seconds(1_000_000), rel=0.001)] * 2
    assert "empty message of its receiver" in pictures.meetings(single_file, ONE).sentence
    assert "at the same time" in pictures.meetings(together, ONE).sentence


@pytest.mark.parametrize(
    ("size", "way", "waits"),
    [(2, one_exception, False), (3, one_exception, True), (2, every_second, False), (8, every_second, False),
     (7, every_second, True)],
)  # fmt: skip
def test_hatched_boxes_are_explained_where_there_are_any(size: int, way, waits: bool) -> None:  # type: ignore[no-untyped-def]
    figure = pictures.meetings(labkit.launch(neighbour, size, way, **VIRTUAL), ONE)
    assert ("hatched" in figure.sentence) == waits == ("Nobody waits" not in figure.sentence)
    longest = max(row["waiting (ms)"] for row in figure.rows)
    assert (longest > 50) == waits, "a message takes 100 ms"


@pytest.mark.parametrize("size", [2, 4, 8])
def test_messages_have_arrows_with_any_number_of_ranks(size: int) -> None:
    run = labkit.launch(neighbour, size, one_exception, **VIRTUAL)
    assert len(arrows_of(pictures.meetings(run, ONE))) == 2 * size


def arrows_of(figure) -> list:  # type: ignore[no-untyped-def, type-arg]
    """Where arrows end: points that have a size."""
    return [size for line in figure.spec["data"] if line.get("marker", {}).get("symbol") == "arrow"
            for size in line["marker"]["size"] if size]  # fmt: skip


def axis_of(figure) -> float:  # type: ignore[no-untyped-def]
    """Where the axis of time ends, in its own unit."""
    return float(figure.spec["layout"]["xaxis"]["range"][1])


def test_the_axis_of_a_step_stays_while_it_gets_shorter() -> None:
    link = Link(bandwidth=1e9, latency=0.0)

    def step(group, seconds):  # type: ignore[no-untyped-def]
        group.compute(seconds)
        x = torch.zeros(250_000)
        group.exchange(x, to=1 - group.rank, like=torch.zeros_like(x), source=1 - group.rank)

    runs = [labkit.launch(step, 2, s, clock="virtual", network=Network(intra=link)) for s in (1e-3, 4e-3, 30e-3)]
    short, long, longer = (axis_of(pictures.up_to(run, 0.02)) for run in runs)
    assert short == long < longer


def test_eager_messages_of_all_sizes_are_drawn_on_the_axis_of_the_largest() -> None:
    link = Link(bandwidth=1e9, latency=20e-6)

    def swap(group, nbytes):  # type: ignore[no-untyped-def]
        x = torch.zeros(nbytes, dtype=torch.uint8)
        group.exchange(x, to=1 - group.rank, like=torch.zeros_like(x), source=1 - group.rank)

    runs = [labkit.launch(swap, 2, n, clock="virtual", network=Network(intra=link)) for n in (1000, pictures.LIMIT)]
    ends = [axis_of(pictures.eager_sends(run, link.seconds(pictures.LIMIT))) for run in runs]
    assert ends == [pytest.approx(1e6 * link.seconds(pictures.LIMIT), rel=1e-3)] * 2, "microseconds"


@pytest.mark.parametrize(("computing", "overlap", "said"), [(4e-3, False, "12.02"), (4e-3, True, "8.02"),
                                                            (12e-3, True, "12"), (0, True, "8.02")])  # fmt: skip
def test_what_took_how_long_is_told_beside_the_formula(computing: float, overlap: bool, said: str) -> None:
    link = Link(bandwidth=1e9, latency=20e-6)

    def step(group):  # type: ignore[no-untyped-def]
        x, like, other = torch.zeros(2_000_000), torch.zeros(2_000_000), 1 - group.rank
        handles = [group.isend(x, to=other), group.irecv(like, source=other)] if overlap else []
        group.compute(computing)
        for handle in handles:
            handle.wait()
        if not overlap:
            group.exchange(x, to=other, like=like, source=other)

    run = labkit.launch(step, 2, clock="virtual", network=Network(intra=link))
    told = pictures.took(run, link.seconds(8_000_000))
    assert told == f"The run took {said} ms; by the formula it takes {said} ms (emulated)."


def test_the_wire_of_a_run_is_known_by_its_links() -> None:
    def one_way(group):  # type: ignore[no-untyped-def]
        x = torch.zeros(250)
        group.send(x, to=1) if group.rank == 0 else group.recv(x, source=0)

    for wire in wires.WIRES:
        run = labkit.launch(one_way, 2, clock="virtual", network=Network(intra=panels.link_of(wire.name)))
        assert f"over {wire.name} took" in pictures.on_each_wire(run).sentence
        (ran,) = [row for row in pictures.in_parts(run) if row["the run (emulated)"]]
        assert ran["wire"] == wire.name and ran["the run (emulated)"] == ran["together"]


@pytest.mark.parametrize(("kilobytes", "largest"), [(64, False), (65, True)])
def test_the_reader_who_has_found_the_limit_is_told(kilobytes: int, largest: bool) -> None:
    sends = [SimpleNamespace(nbytes=1000 * kilobytes)]
    said = pictures.all_ended(SimpleNamespace(trace=SimpleNamespace(sends=sends, badge="emulated")))
    assert ("65,536 bytes" in said) == largest


@pytest.mark.parametrize(("times", "words"), [(1.0, "1"), (8.42, "8.4"), (160.4, "160"), (483.0, "480")])
def test_a_factor_has_two_digits_and_no_power_of_ten(times: float, words: str) -> None:
    assert pictures.two_digits(times) == words
