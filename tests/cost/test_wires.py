"""The three links of the book, against the numbers that their sources state."""

from __future__ import annotations

import pytest

from labkit.cost import wires
from labkit.cost.units import GB, KB, MB, US


def test_bandwidths_of_the_textbook_chapter():
    assert [w.bandwidth for w in wires.WIRES] == [900 * GB / 2, 50 * GB, 10e9 / 8]
    assert wires.NVLINK.bandwidth / wires.INFINIBAND.bandwidth == 9  # "a 9x per-direction gap"


def test_latencies_of_nccls_table():
    assert [w.alpha for w in wires.WIRES] == pytest.approx([3.4 * US, 14 * US, 14 * US])


def test_the_fastest_wire_needs_the_largest_message():
    assert [w.half_size for w in wires.WIRES] == pytest.approx([1.53 * MB, 700 * KB, 17.5 * KB])


@pytest.mark.parametrize("wire", wires.WIRES)
def test_at_the_half_size_a_message_takes_two_latencies_and_half_of_the_bandwidth(wire):
    assert wire.seconds(wire.half_size) == pytest.approx(2 * wire.alpha)
    assert wire.share(wire.half_size) == pytest.approx(0.5)
    assert wire.share(0) == 0 and wire.seconds(0) == wire.alpha


def test_overlap_hides_the_shorter_of_the_two():
    assert wires.step_seconds(3, 5, overlapped=False) == 8
    assert wires.step_seconds(3, 5, overlapped=True) == 5
    assert wires.hidden_seconds(3, 5) == wires.hidden_seconds(5, 3) == 3


@pytest.mark.parametrize("call", [lambda: wires.NVLINK.seconds(-1), lambda: wires.step_seconds(-1, 2, True)])
def test_what_cannot_be_is_refused(call):
    with pytest.raises(ValueError, match="at least 0"):
        call()
