"""Wherever the four models are, a step of PPO is the same; bytes and times are those that `labkit.cost` says."""

from __future__ import annotations

import pytest
from slices import few
from small_fleet import WEIGHTS, loads, steps

import labkit
from labkit import Link, Network
from labkit.align.fleet import Placement, WorkSeconds
from labkit.cost import placement_bytes, simulate_placement, swap_bytes_by_phase

pytestmark = pytest.mark.ranks

ALONE = Placement.colocated(1)
PLACEMENTS = {
    "separate": Placement.separate(2, 1, 1, 1),
    "more to read later": Placement((0,), (1, 2), (1,), (0,)),
    "crossed": Placement((1, 0), (2, 1), (0, 2), (1, 2)),
    "offload 2": Placement.colocated(2, offload=True),
    "offload": Placement.colocated(1, offload=True),
    "colocated 2": Placement.colocated(2),
    "one each": Placement.separate(1, 1, 1, 1),
    "two share": Placement((0, 2), (1,), (1,), (0,)),
    "more ranks than chunks": Placement.separate(5, 1, 1, 1),
}
SECONDS = WorkSeconds(decode=3e-3, read=2e-4, train=6e-4, host_bandwidth=1e8)


def run(placement, **options):
    return labkit.launch(steps, placement.size, placement, transport="local", **options)


@pytest.fixture(scope="module")
def alone():
    return run(ALONE).results[0]


def furthest(weights, others):
    return max(float((weights[name] - others[name]).abs().max()) for name in weights)


@pytest.mark.parametrize("name", few([*PLACEMENTS], 3))
def test_every_placement_makes_the_update_of_one_rank(name, alone):
    placement = PLACEMENTS[name]
    results = run(placement).results
    expected, models, _ = alone
    ids = [s.sequence for s in expected[0].samples]
    for n in range(2):
        samples = {s.sequence: s.tokens for told, *_ in results for s in told[n].samples}
        assert {s.sequence: s.tokens for s in expected[n].samples} == samples and {*ids} == {*samples}
        for told, found, _ in results:
            for key in ("reward", "kl", "length", "loss", "clipped", "value_loss"):
                assert getattr(told[n], key) == pytest.approx(getattr(expected[n], key), rel=1e-4, abs=1e-6), (n, key)
            assert told[n].updates == (4 if "policy" in found else 0)
    for _, found, _ in results:
        for role, weights in found.items():
            assert furthest(weights, models[role]) < 1e-5, role


def test_to_the_bit_where_the_same_ranks_add_in_the_same_order():
    """Two ranks of the policy and two of the critic have the same chunks, wherever they are and whoever reads them."""
    colocated, *others = (
        run(placement).results
        for placement in (
            Placement.colocated(2), Placement.colocated(2, offload=True), Placement.separate(2, 1, 1, 2),
            Placement((0, 1), (1, 2, 0), (2,), (0, 1)),
        )
    )  # fmt: skip
    for results in others:
        for role in ("policy", "critic"):
            held = [found[role] for _, found, _ in results if role in found]
            assert len(held) == 2
            for weights in held:
                assert furthest(weights, colocated[0][1][role]) == 0


@pytest.mark.parametrize("name", few([*PLACEMENTS], 3))
def test_messages_are_those_of_the_formula(name):
    placement = PLACEMENTS[name]
    made = run(placement)
    sent = [[0] * placement.size for _ in range(placement.size)]
    for m in made.trace.sends:
        if m.collective < 0 and m.step == 1:
            sent[m.src][m.dst] += m.nbytes
    assert sent == placement_bytes(placement, loads([told[1] for told, *_ in made.results]))
    assert (sum(map(sum, sent)) == 0) == (name in ("offload", "colocated 2", "offload 2"))


def test_swaps_are_those_of_the_formula():
    for size in (1, 2):
        first, second = (
            labkit.launch(steps, size, Placement.colocated(size, offload=True), n, transport="local").results
            for n in (2, 3)
        )
        expected = swap_bytes_by_phase(WEIGHTS, Placement.colocated(size, offload=True))
        for (*_, a), (*_, b) in zip(first, second, strict=True):
            p, c = WEIGHTS["policy"], WEIGHTS["critic"]
            assert sum(b) - sum(a) == sum(expected.values()) == 6 * p + 6 * c + WEIGHTS["reference"] + WEIGHTS["reward"]
            assert b.to_host - a.to_host == 3 * p + 3 * c


@pytest.mark.parametrize("name", few([*PLACEMENTS], 3))
def test_the_simulator_has_the_time_and_the_work_of_the_timeline(name):
    """Without links to the nanosecond; with links that are slow for such small messages it is a few percent short."""
    placement = PLACEMENTS[name]
    for network, within in ((None, 1e-6), (Network(placement.size, 1, inter=Link(1e9, 20e-6)), 0.05)):
        made = labkit.launch(steps, placement.size, placement, 2, SECONDS, transport="local", clock="virtual",
                             network=network)  # fmt: skip
        chunks = loads([told[1] for told, *_ in made.results])
        expected = simulate_placement(placement, chunks, SECONDS, epochs=2, minibatches=2, weights=WEIGHTS)
        begin, _ = made.trace.during_step(1)
        busy = [0.0] * placement.size
        for name, sign in (("compute", 1), ("swap", -1)):
            for s in made.trace.spans(name):
                busy[s.rank] += sign * (s.end - s.start) * (s.step == 1)
        taken = made.trace.duration - begin
        assert busy == pytest.approx(expected.busy, rel=1e-6)
        assert taken == pytest.approx(expected.seconds, rel=within)
        assert sum(busy) / (placement.size * taken) == pytest.approx(expected.utilization, rel=within)
