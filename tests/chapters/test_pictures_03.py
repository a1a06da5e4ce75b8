"""What chapter 3 says of its runs: where a slip is shown, and which sentences a crossover may not get."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import labkit
from labkit import Link, Network, collectives, cost
from labkit.chapters.c03_collectives import crossover, panels, pictures, race, two_nodes
from labkit.wire import Group
from tests.book import fake_trace as fake

LINE = SimpleNamespace(alpha=1e-4, beta=1e-9)

NOTEBOOK = Path(__file__).parents[2] / "notebooks/03_collectives.ipynb"


@pytest.mark.parametrize(("skip", "step"), [((0, 1), 1), ((2, 3), 3)])
def test_the_circle_opens_at_the_slip(skip: tuple[int, int], step: int) -> None:
    assert pictures.slipped(SimpleNamespace(trace=fake.ring(4, 1000, skip=skip))).step == step
    assert pictures.slipped(SimpleNamespace(trace=fake.ring(4, 1000))).step == 1


@pytest.mark.ranks
def test_the_chapters_ring_takes_a_loop_that_assigns_to_its_chunks() -> None:
    cells = json.loads(NOTEBOOK.read_text("utf-8"))["cells"]
    source = {cell["id"]: "".join(cell["source"]) for cell in cells}
    names: dict[str, Any] = {"collectives": collectives, "torch": torch}
    into = source["write-add"].replace("into += ", "chunks[(me - step - 1) % n] += ")
    ring = source["run-ring"][source["run-ring"].index("def my_ring") : source["run-ring"].index("run_mine")]
    assert into != source["write-add"]
    exec("\n\n".join((into, source["write-copy"], ring)), names)
    run = labkit.launch(lambda group: names["my_ring"](torch.ones(7), group).tolist(), 3, transport="local")
    assert run.results == [[3.0] * 7] * 3


def points(small: tuple[float, float], large: tuple[float, float]) -> crossover.Points:
    """Seconds of recursive doubling and of the ring, at 1 kB and at 16 MB."""
    each = zip(("recursive_doubling", "ring"), small, large, strict=True)
    return {name: {1000: [a], 16_000_000: [b]} for name, a, b in each}


@pytest.mark.parametrize(
    ("large", "ranks", "told"),
    [
        ((0.034, 0.022), 8, "So the two agree"),
        ((0.034, 0.022), 2, "never overtakes it, because with two ranks"),
        ((0.010, 0.022), 2, "So the two agree"),
        ((0.034, 0.060), 8, "do not cross where the lines do"),
    ],
)
def test_a_crossover_is_told_with_whether_the_lines_agree(large: tuple[float, float], ranks: int, told: str) -> None:
    assert told in crossover.where_they_cross(points((3e-4, 1.4e-3), large), ranks, LINE).text


def test_where_the_ring_is_never_slower_the_runs_cross_at_a_smaller_size() -> None:
    said = crossover.where_they_cross(points((2e-3, 1e-3), (0.034, 0.022)), 8, LINE).text
    assert "no slower than recursive doubling at any size" in said
    assert "at a larger size" not in said


@pytest.mark.parametrize(
    ("small", "large", "told"),
    [
        (1.0, 1.2, "No mark is further from its line than a factor of 1.2, so two numbers describe these runs well."),
        (1.0, 1.4, "No mark is further from its line than a factor of 1.4, so two numbers describe these runs roughly"),
        (1.0, 3.0, "fail for large tensors only"),
        (3.0, 1.0, "fail for small tensors only"),
        (
            1 / 1.47,
            1.54,
            "Other marks lie below their lines and are up to 1.5 times as fast. Your machine was probably busy",
        ),
        (1.0, 0.5, "The marks below their lines are up to 2 times as fast."),
        (3.0, 2.0, "and trust the marks more."),
    ],
)
def test_a_fit_is_judged_by_its_worst_mark_and_by_where_that_is(small: float, large: float, told: str) -> None:
    exact = {name: cost.cost_of("all_reduce", name) for name in ("recursive_doubling", "ring")}
    marks = {
        name: {
            n: [times * form.seconds(n, 4, LINE.alpha, LINE.beta)] for n, times in ((1000, small), (16_000_000, large))
        }
        for name, form in exact.items()
    }
    line = SimpleNamespace(alpha=LINE.alpha, beta=LINE.beta, bandwidth=1 / LINE.beta)
    assert told in crossover.how_good(marks, line, 4).text


@pytest.mark.parametrize("cores", [1, 2, 4, 8, 64])
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_a_fit_is_judged_on_a_machine_of_any_size(cores: int, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crossover.os, "cpu_count", lambda: cores)
    form = {name: cost.cost_of("all_reduce", name) for name in ("recursive_doubling", "ring")}
    marks = {name: {n: [one.seconds(n, ranks, 1e-4, 1e-9)] for n in (1000, 16_000_000)} for name, one in form.items()}
    line = crossover.fit(crossover.per_message(marks, ranks))
    assert ("waits for a core" in crossover.how_good(marks, line, ranks).text) == (cores < ranks)


@pytest.mark.parametrize(
    ("ring", "told"),
    [
        ((3, 1, 3), "ahead at 16 MB, the largest size, but not at every smaller one [measured]."),
        ((3, 3, 3), "ahead up to 16 MB, the largest size [measured]."),
        ((1, 3, 1), "at some smaller sizes as well, but overtakes recursive doubling for good between 60 kB and 16 MB"),
        ((3, 3, 1), "In the runs the ring overtakes recursive doubling between 60 kB and 16 MB [measured]."),
    ],
)
def test_a_lead_that_comes_and_goes_is_not_told_as_one(ring: tuple[int, ...], told: str) -> None:
    sizes = 4000, 60_000, 16_000_000
    marks: crossover.Points = {
        "recursive_doubling": {n: [2.0] for n in sizes},
        "ring": {n: [float(t)] for n, t in zip(sizes, ring, strict=True)},
    }
    assert told in crossover.where_they_cross(marks, 4, LINE).text


def lost_in_noise(seconds: float) -> crossover.Points:
    """All-reduces that take `seconds` a round at every size, 3 % more or less."""
    sizes = 1560, 6248, 25_000, 100_000
    return {
        name: {
            n: [seconds * cost.cost_of("all_reduce", name).rounds(4) * (1 + 0.03 * (-1) ** k)]
            for k, n in enumerate(sizes)
        }
        for name in ("recursive_doubling", "ring")
    }


def test_what_was_not_measured_is_no_number_on_the_page() -> None:
    marks = lost_in_noise(2.47e-3)
    line = crossover.fit(crossover.per_message(marks, 4))
    assert line.beta == 0 and line.alpha == pytest.approx(2.47e-3, rel=0.01)
    said = crossover.how_good(marks, line, 4).text
    assert "a message costs 2.47 ms [measured]. These tensors are too small" in said
    assert "B/s" not in said and "two numbers" not in said
    crossed = crossover.where_they_cross(marks, 4, line).text
    assert crossed.endswith("The lines say nothing of that, because these runs did not show what a byte costs.")
    assert "simulated" not in crossed and "agree" not in crossed
    assert "GB/s" not in collectives.explain("all_reduce", 100_000, 4, line, among=["ring", "recursive_doubling"])
    recorded = crossover.numbers(line, 4)
    assert recorded["bandwidth_gb"] == recorded["crossover_kb"] == "not measured"
    assert crossover.curves(marks, 4, line).sentence.startswith("In the runs")


def test_a_latency_that_was_not_measured_is_no_number_either() -> None:
    form = {name: cost.cost_of("all_reduce", name) for name in ("recursive_doubling", "ring")}
    marks = {name: {n: [one.seconds(n, 4, 0, 1e-9)] for n in (10_000_000, 40_000_000)} for name, one in form.items()}
    line = crossover.fit(crossover.per_message(marks, 4))
    said = crossover.how_good(marks, replace(line, alpha=0.0), 4).text
    assert "bytes travel at 1 GB/s [measured]. These tensors are too large" in said
    assert "what a message costs." in crossover.where_they_cross(marks, 4, replace(line, alpha=0.0)).text


def test_a_slope_that_is_seen_stays_a_number() -> None:
    form = {name: cost.cost_of("all_reduce", name) for name in ("recursive_doubling", "ring")}
    marks = {
        name: {n: [one.seconds(n, 4, 5e-4, 1.5e-9) * f] for n, f in ((4000, 1.1), (1_000_000, 0.9), (16_000_000, 1.1))}
        for name, one in form.items()
    }
    line = crossover.fit(crossover.per_message(marks, 4))
    assert line.beta == pytest.approx(1.5e-9, rel=0.3) and crossover.unseen(line) == ""
    assert crossover.numbers(line, 4)["crossover_kb"] == pytest.approx(8 * line.alpha / line.beta / 1e3)


def test_ways_that_send_the_same_are_told_as_a_tie() -> None:
    trace = SimpleNamespace(bytes_sent=lambda: [4000, 4000], world_size=2)
    runs = dict.fromkeys(("naive", "everyone", "ring"), SimpleNamespace(trace=trace))
    assert "The busiest rank sends 4 kB with each of the 3 algorithms" in pictures.busiest_of(runs, 1000).sentence


@pytest.mark.ranks
def test_two_nodes_are_drawn_with_what_each_way_sends_between_them() -> None:
    def both(group: Group) -> None:
        for way in ("ring", "hierarchical"):
            collectives.all_reduce(torch.ones(4000), group, algorithm=way)
            group.barrier()

    slow = Network(nodes=2, ranks_per_node=2, intra=Link(bandwidth=1e10), inter=Link(bandwidth=1e9))
    run = labkit.launch(both, 4, clock="virtual", network=slow)
    sent = {way: two_nodes.leaving(between, 2) for way, between in two_nodes.sent_by(run.trace).items()}
    assert sent["ring"] == {(1, 2): 24_000, (3, 0): 24_000}
    assert sent["hierarchical"] == {(0, 2): 8000, (1, 3): 8000, (2, 0): 8000, (3, 1): 8000}
    assert [two_nodes.busiest(links) for links in sent.values()] == [24_000, 8000]
    drawn = two_nodes.picture(run, 2)
    assert not isinstance(drawn, str) and drawn.svg.count(">24 kB<") == 2 and drawn.svg.count(">8 kB<") == 4
    assert "24 kB from the busiest rank" in two_nodes.times(run, 2)


def test_what_all_ranks_send_stands_beside_what_the_busiest_sends() -> None:
    sent = {"naive": [6000, 2000, 2000, 2000], "everyone": [6000] * 4, "ring": [3000] * 4}
    runs = {
        way: SimpleNamespace(trace=SimpleNamespace(bytes_sent=lambda n=n: n, world_size=4)) for way, n in sent.items()
    }
    figure = pictures.busiest_of(runs, 500)
    assert [row["all ranks together (bytes)"] for row in figure.table()] == [12_000, 24_000, 12_000]
    assert "least with ring, 3 kB" in figure.sentence
    assert "most with everyone, 24 kB. The formulas agree to the byte." in figure.sentence
    runs["ring"].trace.bytes_sent = lambda: [4000] * 4
    assert "do not agree everywhere" in pictures.busiest_of(runs, 500).sentence


@pytest.mark.parametrize(("world_size", "cores", "ranks"), [(2, 2, 2), (3, 2, 4), (8, 2, 4), (7, 6, 4), (6, 8, 8)])
def test_the_crossover_is_measured_on_a_power_of_two_of_ranks(
    world_size: int, cores: int, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crossover.os, "cpu_count", lambda: cores)
    assert crossover.ranks(world_size) == ranks


@pytest.mark.parametrize(
    ("ring", "told"),
    [
        ((3, 3, 3, 3), "recursive doubling is fastest at every size."),
        ((3, 3, 3, 1), "recursive doubling is fastest up to 1 MB, and the ring from 4 MB on."),
        ((1, 3, 1, 1), "the ring is fastest up to 4 kB, recursive doubling at 60 kB, and the ring from 1 MB on."),
        (
            (1, 3, 3, 1),
            "the ring is fastest up to 4 kB, recursive doubling from 60 kB to 1 MB, and the ring from 4 MB on.",
        ),
    ],
)
def test_who_is_ahead_is_told_with_the_last_size_at_which_that_holds(ring: tuple[int, ...], told: str) -> None:
    sizes = 4000, 60_000, 1_000_000, 4_000_000
    points: crossover.Points = {
        "recursive_doubling": {n: [2.0] for n in sizes},
        "ring": {n: [float(t)] for n, t in zip(sizes, ring, strict=True)},
    }
    assert crossover.ahead(points) == f"In the runs {told}"
    line = SimpleNamespace(alpha=LINE.alpha, beta=LINE.beta, bandwidth=1 / LINE.beta)
    figure = crossover.curves(points, 4, line)
    assert figure.sentence.endswith(told) and figure.spec is not None
    assert figure.spec["layout"]["yaxis"]["title"]["text"] == "time of an all-reduce"


def raced(size: int, kilobytes: int, latency: float) -> SimpleNamespace:
    """What the race returns: four all-reduces on links with `latency`."""
    link = Link(bandwidth=1e9, latency=latency)

    def fn(group: Group) -> None:
        for way in ("ring", "my_recursive_doubling", "halving_doubling", "tree"):
            if way == "my_recursive_doubling":
                named = collectives.algorithm("all_reduce", way)
                named(lambda x, group, op="sum": collectives.recursive_doubling_all_reduce(x, group))(
                    torch.ones(250 * kilobytes), group
                )
            else:
                collectives.all_reduce(torch.ones(250 * kilobytes), group, algorithm=way)

    return labkit.launch(fn, size, clock="virtual", network=Network(intra=link))


@pytest.mark.ranks
@pytest.mark.parametrize("size", [2, 4, 8, 16])
def test_a_race_takes_what_its_formulas_say(size: int) -> None:
    for kilobytes, latency in ((1, 200), (100, 20), (8000, 2)):
        run = raced(size, kilobytes, latency * 1e-6)
        for row in race.raced(run, latency).table():  # 250 numbers make no equal chunks, which is a nanosecond
            formula = row["latencies (seconds)"] + row["bytes (seconds)"]
            assert row["the run (seconds)"] == pytest.approx(formula, rel=1e-3), (kilobytes, row)
    assert race.watched(raced(2, 10, 20e-6), "my recursive doubling", 20) == (
        "Recursive doubling: 1 round of 20 µs, and 10 kB that go one after the other: 30 µs by the formula."
    )


@pytest.mark.ranks
@pytest.mark.parametrize("size", [2, 8])
def test_on_a_shared_link_only_those_queue_whose_partners_are_far_apart(size: int) -> None:
    run, alone = raced(size, 800, 20e-6), 800e3 / pictures.BANDWIDTH  # seconds of the whole tensor on a link
    waits = [race.queued(run, nth) for nth in range(4)]  # ring, recursive doubling, halving-doubling, tree
    each = size / 2 - 1  # further ranks that send across at the same time
    assert waits == pytest.approx([0, each * alone, 2 * each * alone / 2, 0])
    if size == 8:  # six rounds; halves, quarters and eighths twice, and four eighths in a row at the link
        near = 6 * 20e-6 + 2 * (1 / 2 + 1 / 4 + 4 / 8) * alone
        assert f"it would take {1e3 * near:.3g} ms." in race.watched(run, "halving doubling", 20, shared=True)
    shared = race.raced(run, 20, shared=True)
    assert [row["queue at the shared link (seconds)"] for row in shared.table()] == waits
    assert shared.badge == "simulated" and ("slow: ring" in shared.sentence) == (size > 2)


@pytest.mark.ranks
def test_a_queue_is_counted_of_messages_that_no_picture_can_follow() -> None:
    def apart(x: torch.Tensor, group: Group, op: str = "sum") -> torch.Tensor:
        distance = 1
        while distance < group.size:
            partner = group.rank ^ distance
            x = x + group.exchange(x, partner, torch.empty_like(x), partner)
            distance *= 2
        return x

    def fn(group: Group) -> None:
        collectives.all_reduce(torch.ones(1000), group, algorithm="ring")
        collectives.algorithm("all_reduce", "my_recursive_doubling")(apart)(torch.ones(200_000), group)

    run = labkit.launch(fn, 8, clock="virtual", network=Network(intra=Link(1e9, 20e-6)))
    assert race.queued(run, 1) == pytest.approx(3 * 800e3 / pictures.BANDWIDTH) and race.queued(run, 0) == 0
    assert "tensors of its own" in race.followed(run, "my recursive doubling")
    assert len(race.followed(run, "my recursive doubling", True).frames) == 3


def test_the_names_of_gradients_stay_below_the_caption() -> None:
    one = torch.tensor([1.0, 0.0])
    several = [torch.tensor([1.0, 0.65 + 0.01 * k]) for k in range(9)]
    figure = pictures.away(several, one, one)
    at = sorted(float(y) for y in re.findall(r'y="([\d.]+)"[^>]*>rank \d', figure.svg))
    caption = max(float(y) for y in re.findall(r'y="([\d.]+)"[^>]*>[^<]*M is', figure.svg))
    assert len(at) == 9 and min(at) > caption + 10 and min(b - a for a, b in zip(at, at[1:], strict=False)) > 12


def test_gradients_are_drawn_by_their_angles() -> None:
    one = torch.tensor([1.0, 0.0])
    figure = pictures.away([torch.tensor([1.0, 1.0]), torch.tensor([0.0, 3.0])], one, one)
    degrees = {row["gradient of"]: row["degrees away"] for row in figure.table()}
    assert degrees == pytest.approx({"rank 0": 45, "rank 1": 90, "average": 0})
    assert "point 45 to 90 degrees away" in figure.sentence
    assert pictures.away([-one, torch.tensor([1.0, 1e-3])], one, one).table()[0]["degrees away"] == pytest.approx(180)


@pytest.mark.ranks
def test_nodes_that_have_no_picture_have_bars() -> None:
    def both(group: Group) -> None:
        for way in ("ring", "hierarchical"):
            collectives.all_reduce(torch.ones(3000), group, algorithm=way)
            group.barrier()

    slow = Network(nodes=3, ranks_per_node=1, intra=Link(bandwidth=1e10), inter=Link(bandwidth=1e9))
    drawn = two_nodes.picture(labkit.launch(both, 3, clock="virtual", network=slow), 1)
    assert drawn.title == "What goes between the nodes (3 with 1 rank each)"
    assert [row["busiest rank (bytes)"] for row in drawn.table()] == [16_000, 16_000]


@pytest.mark.ranks
def test_one_number_is_told_as_one() -> None:
    def scatter(group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.arange(2)
        return x.clone(), panels.scatter(x, group)

    said = pictures.cost_of_call(labkit.launch(scatter, 2, clock="virtual"))
    assert said.startswith("The call is `collectives.naive_scatter`. All ranks together send 1 number of 8 bytes, ")
    assert "8 bytes in all; the formula says 8." in said
    assert "r0 stands for what rank 0 brought. " in said, "nothing is added in a scatter"


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("size", "way", "told"),
    [(8, "naive", "56.04 ms"), (2, "naive", "8.04 ms"), (8, "everyone", "28.14 ms"), (7, "ring", "7.097 ms")],
)
def test_the_first_workbench_tells_the_time_and_no_bytes(size: int, way: str, told: str) -> None:
    def add_up(group: Group) -> None:
        collectives.all_reduce(torch.ones(1_000_000), group, algorithm=way)

    said = pictures.time_taken(labkit.launch(add_up, size, clock="virtual", network=panels.LINK))
    assert said == f"After **{told}** every rank has the sum (emulated)."


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("slip", "in_round", "told"),
    [
        ("adds", 1, "In round 1 every rank adds, so this is no slip."),
        ("forgets to add", 3, "In round 3 the ranks only copy, so there was nothing to add."),
        ("forgets to add", 1, "what is wrong is orange."),
        ("none", 0, "(emulated)."),
    ],
)
def test_a_slip_that_is_none_is_told_as_one(
    slip: str, in_round: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(collectives.ALGORITHMS["all_reduce"], "ring_with_a_slip", None)  # gone again after the test
    sources = {cell["id"]: "".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]}
    names: dict[str, Any] = {"collectives": collectives, "torch": torch}
    exec(f"{sources['slip']}\n\n{sources['slip-bench'].split('panels.')[0]}", names)
    how = {"clock": "virtual", "network": panels.LINK, "transport": "local"}
    run = labkit.launch(names["one_slip"], 3, slip, 1, in_round, **how)
    assert pictures.verdict(run, slip, in_round).endswith(told)
    alike = "No rank is late, so all of them send and receive at the same times."
    assert pictures.timeline(run, slip) == (alike if slip == "none" else "")


def test_lines_near_the_marks_agree_within_their_own_error() -> None:
    marks = {
        "recursive_doubling": {250_000: [1e-3], 1_000_000: [3e-3], 4_000_000: [1e-2]},
        "ring": {250_000: [1.3e-3], 1_000_000: [3.1e-3], 4_000_000: [8e-3]},
    }
    line = crossover.fit(crossover.per_message(marks, 4))
    crossing = crossover.by_model(line, 4)
    assert crossing is not None and crossing < 1_000_000, crossing
    assert "That is as near as one can ask" in crossover.where_they_cross(marks, 4, line).text


@pytest.mark.ranks
@pytest.mark.parametrize("at_once", [True, False])
def test_a_function_that_makes_tensors_of_its_own_is_told_what_makes_them(at_once: bool) -> None:
    def away(x: torch.Tensor, group: Group, op: str = "sum") -> torch.Tensor:
        y, distance = x.clone() if at_once else x, 1
        while distance < group.size:
            partner = group.rank ^ distance
            y = y + group.exchange(y, partner, torch.empty_like(y), partner)
            distance *= 2
        return x.copy_(y)

    def fn(group: Group) -> None:
        collectives.algorithm("all_reduce", "my_recursive_doubling")(away)(torch.ones(1000), group)

    said = race.followed(labkit.launch(fn, 4, clock="virtual"), "my recursive doubling")
    assert (
        isinstance(said, str) and "x = x + ... or y = x.clone() makes a new tensor" in said and "Write x += ..." in said
    )


CALLS = {
    "gather": collectives.naive_gather,
    "all_gather": collectives.ring_all_gather,
    "broadcast": collectives.tree_broadcast,
    "scatter": panels.scatter,
}


@pytest.mark.ranks
@pytest.mark.parametrize("collective", CALLS)
def test_a_piece_that_only_moves_is_whole_from_the_start(collective: str) -> None:
    def fn(group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        x = 10 * group.rank + torch.arange(group.size)
        x = x[:1] if collective in ("all_gather", "gather") else x
        return x.clone(), CALLS[collective](x, group)

    drawn = pictures.messages(labkit.launch(fn, 4, clock="virtual", network=panels.LINK))
    assert "in part" not in drawn.svg and ">r" in drawn.svg and ">0..3<" not in drawn.svg


@pytest.mark.ranks
def test_partial_sums_are_told_by_ranks_and_not_by_numbers() -> None:
    def fn(group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        x = 10 * group.rank + torch.arange(group.size)
        return x.clone(), collectives.ring_reduce_scatter(x, group)

    drawn = pictures.messages(labkit.launch(fn, 4, clock="virtual", network=panels.LINK))
    assert "in part" in drawn.svg and "r0" in drawn.svg and "r0..r3" in drawn.still.text


@pytest.mark.parametrize(("size", "k"), [(4, 2), (6, 3), (8, 4), (16, 8)])
def test_on_equal_links_two_nodes_gain_nothing_by_steps(size: int, k: int) -> None:
    assert two_nodes.gain(1e6, size, k, 1e10, 1e10) == pytest.approx(1)
    assert two_nodes.gain(1e6, size, k, 1e10, 1e9) > 1
