"""Placements by hand: times, bytes and swaps of small cases that one can add up on paper."""

from __future__ import annotations

import pytest

from labkit.cost import ChunkLoad, Placement, WorkSeconds, placement_bytes, simulate_placement, swap_bytes_by_phase

SECONDS = WorkSeconds(decode=1.0, read=0.1, train=0.5, host_bandwidth=100.0)
CHUNK = ChunkLoad(sequences=2, tokens=10, responses=6, steps=3)


def test_one_rank_does_all_after_each_other():
    """Two chunks: 6 s of writing, 8 readings of 1 s, and 2 models that train on 20 tokens in each epoch."""
    found = simulate_placement(Placement.colocated(1), [CHUNK] * 2, SECONDS, epochs=3, minibatches=2)
    assert found.seconds == pytest.approx(6 + 8 + 2 * 3 * 10) and found.utilization == pytest.approx(1)


def test_separate_readers_begin_with_the_first_chunk():
    """The policy writes until 6 and reads until 8; readers read at 3 and 6, until 7. Then both pools train, 10 s."""
    found = simulate_placement(Placement.separate(1, 1, 1, 1), [CHUNK] * 2, SECONDS)
    assert found.seconds == pytest.approx(18)
    assert found.busy == pytest.approx([18, 2, 2, 12])


def test_a_reader_cannot_begin_before_a_chunk_is_written():
    """Two ranks write until 3; the one that reads both chunks needs 10 s for each, and all wait for it."""
    found = simulate_placement(Placement((0, 1), (2,)), [CHUNK] * 2, WorkSeconds(decode=1.0, read=1.0, train=0.5))
    assert found.seconds == pytest.approx(3 + 20 + 5) and found.busy == pytest.approx([18, 18, 20])


def test_a_rank_without_a_chunk_in_a_minibatch_waits():
    """Three chunks on two ranks: the second rank idles while the first trains on its second one."""
    found = simulate_placement(Placement((0, 1), (0, 1)), [CHUNK] * 3, SECONDS)
    assert found.seconds == pytest.approx(6 + 4 + 10) and found.busy == pytest.approx([20, 10])


def test_swaps_take_their_time_and_are_no_work():
    sizes = {"policy": 300, "critic": 200, "reference": 300, "reward": 100}
    placement = Placement.colocated(1, offload=True)
    swaps = swap_bytes_by_phase(sizes, placement)
    assert sum(swaps.values()) == 6 * 300 + 6 * 200 + 300 + 100
    plain, swapped = (
        simulate_placement(p, [CHUNK], SECONDS, weights=sizes) for p in (Placement.colocated(1), placement)
    )
    assert swapped.seconds == pytest.approx(plain.seconds + 34) and swapped.busy == pytest.approx(plain.busy)
    without = swap_bytes_by_phase(sizes, Placement.colocated(2, critic=False, offload=True))
    assert sum(without.values()) == 6 * 300 + 300 + 100


def test_messages_of_one_chunk():
    """Of 8 (2 + 4 + 10) bytes to each reader once, and 4 a number back: 6, 2 and 6; then 6 returns to the critic."""
    assert placement_bytes(Placement.separate(1, 1, 1, 1), [CHUNK]) == [
        [0, 128, 128, 128 + 24], [24, 0, 0, 0], [8, 0, 0, 0], [24, 0, 0, 0],
    ]  # fmt: skip
    shared = placement_bytes(Placement((0,), (1,), (1,), (0,)), [CHUNK] * 2)
    assert shared == [[0, 256], [2 * (24 + 8), 0]]


def test_who_meets_which_chunk():
    placement = Placement.separate(2, 1, 1, 3)
    assert [placement.owner("policy", c) for c in range(4)] == [0, 1, 0, 1]
    assert [placement.owner("critic", c) for c in range(4)] == [4, 5, 6, 4]
    assert placement.size == 7 and Placement((0,), (0,)).readers == ("reference",)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (lambda: Placement((), (0,)), "the policy model needs a rank"),
        (lambda: Placement((0, 0), (0,)), "different ranks"),
        (lambda: Placement((0,), (-1,)), "from 0 on"),
        (lambda: Placement((0, 1), (1,), offload=True), "share all their ranks"),
        (lambda: WorkSeconds(-1, 0, 0), "decode"),
        (lambda: simulate_placement(Placement.colocated(1), [], SECONDS, epochs=0), "epochs"),
    ],
)
def test_what_cannot_be(bad, words):
    with pytest.raises(ValueError, match=words):
        bad()
