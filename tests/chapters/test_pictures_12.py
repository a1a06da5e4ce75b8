"""What chapter 12 draws and computes agrees with what its ranks did, and with published numbers."""

from __future__ import annotations

import pytest

import labkit
from labkit.chapters.c12_experts import flying, layers, pictures, shapes
from labkit.models import MoEConfig


def layer(group, capacity, drop, skew=2.0, experts=8):
    made = layers.timed(group, MoEConfig(experts, 2, capacity=capacity, drop=drop))
    made(layers.alike(made, 48, skew))
    return made.told


@pytest.mark.ranks
@pytest.mark.parametrize(("capacity", "drop"), [(None, "position"), (1.0, "position"), (1.25, "probability")])
def test_queues_are_those_of_the_run(capacity, drop):
    run = labkit.launch(layer, 4, capacity, drop, clock="virtual")
    told = run.results
    every = flying.choices_of(told)
    assert len(every) == 96 and sum(c.kept for c in every) == sum(flying.rows_by_rank(told))
    for e, n in enumerate(told[0].load):
        places = sorted(c.place for c in every if c.expert == e)
        assert places == list(range(n))
        kept = sum(c.kept for c in every if c.expert == e)
        assert kept == (n if told[0].slots is None else min(n, told[0].slots))
        assert all(c.kept == (c.place < kept) for c in every if c.expert == e), "those that are kept stand first"
    spans = [sum(s.attrs["rows"] for s in run.trace.spans("experts") if s.rank == r) for r in range(4)]
    assert spans == flying.rows_by_rank(told)
    assert pictures.bytes_of(run, layers.WIDTH) == run.trace.bytes_sent() or drop == "probability"
    words = [text for _, text in flying.flying(run).frames]
    assert f"{96 - sum(flying.rows_by_rank(told))} of 96 choices are dropped" in words[3]


@pytest.mark.ranks
def test_the_number_of_ranks_changes_nothing_in_who_is_dropped():
    kept = []
    for size in (1, 2, 4, 8):
        told = labkit.launch(layer, size, 1.0, "position", clock="virtual").results
        kept.append([row for one in told for row in one.kept])
    assert kept[0] == kept[1] == kept[2] == kept[3] and not all(all(row) for row in kept[0])


def test_the_parameters_of_mixtral():
    assert shapes.MIXTRAL.all == pytest.approx(46.7e9, rel=1e-3)
    assert shapes.MIXTRAL.active == pytest.approx(12.9e9, rel=2e-3)


def test_the_example_of_the_queue_has_the_loads_that_it_says():
    for seed in (0, 1, 7):
        assert layers.waiting_line(seed=seed).bincount().tolist() == list(layers.LOADS)
