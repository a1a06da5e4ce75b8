"""What chapter 3 says of its runs: where a slip is shown, and which sentences a crossover may not get."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import labkit
from labkit import Link, Network, collectives, cost
from labkit.chapters.c03_collectives import crossover, panels, pictures, two_nodes
from labkit.wire import Group
from tests.book import fake_trace as fake

LINE = SimpleNamespace(alpha=1e-4, beta=1e-9)


@pytest.mark.parametrize(("skip", "step"), [((0, 1), 1), ((2, 3), 3)])
def test_the_circle_opens_at_the_slip(skip: tuple[int, int], step: int) -> None:
    assert pictures.slipped(SimpleNamespace(trace=fake.ring(4, 1000, skip=skip))).step == step
    assert pictures.slipped(SimpleNamespace(trace=fake.ring(4, 1000))).step == 1


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
        (1.0, 1.2, "No mark is further from its line than a factor of 1.2"),
        (1.0, 3.0, "fail for large tensors only"),
        (0.5, 1.0, "fail for small tensors only"),
        (3.0, 2.0, "fail for small tensors and for large ones"),
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


def test_ways_that_send_the_same_are_told_as_a_tie() -> None:
    trace = SimpleNamespace(bytes_sent=lambda: [4000, 4000], world_size=2)
    runs = dict.fromkeys(("naive", "everyone", "ring"), SimpleNamespace(trace=trace))
    assert "It sends 4 kB in all 3 ways" in pictures.busiest_of(runs, 1000).sentence


@pytest.mark.ranks
def test_two_nodes_are_drawn_with_what_each_way_sends_between_them() -> None:
    def both(group: Group) -> int:
        for way in ("ring", "hierarchical"):
            collectives.all_reduce(torch.ones(4000), group, algorithm=way)
            group.barrier()
        return group.size // 2

    slow = Network(nodes=2, ranks_per_node=2, intra=Link(bandwidth=1e10), inter=Link(bandwidth=1e9))
    run = labkit.launch(both, 4, clock="virtual", network=slow)
    sent = {way: two_nodes.leaving(between, 2) for way, between in two_nodes.sent_by(run.trace).items()}
    assert sent["ring"] == {(1, 2): 24_000, (3, 0): 24_000}
    assert sent["hierarchical"] == {(0, 2): 8000, (1, 3): 8000, (2, 0): 8000, (3, 1): 8000}
    assert [two_nodes.busiest(links) for links in sent.values()] == [24_000, 8000]
    drawn = two_nodes.picture(run)
    assert not isinstance(drawn, str) and drawn.svg.count(">24 kB<") == 2 and drawn.svg.count(">8 kB<") == 4
    assert "24 kB from the busiest rank" in two_nodes.times(run)


@pytest.mark.ranks
def test_where_the_ranks_are_no_power_of_two_the_race_runs_labkits_doubling() -> None:
    def never(x: torch.Tensor, group: Group) -> torch.Tensor:
        raise AssertionError("with three ranks the reader's function has no partner for all")

    run = labkit.launch(lambda group: panels.doubled(never, torch.ones(3), group).tolist(), 3)
    assert run.results == [[3, 3, 3]] * 3
