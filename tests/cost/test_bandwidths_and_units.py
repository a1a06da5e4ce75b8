"""Bus bandwidth as the NCCL tests define it, and how numbers are written down."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from labkit import cost
from labkit.cost.units import GB, HOUR, Gb, KiB, MiB

# For 8 ranks: the table in doc/PERFORMANCE.md of nccl-tests; for scatter and gather its source code.
FACTORS = {
    "all_reduce": 1.75,
    "reduce_scatter": 0.875,
    "all_gather": 0.875,
    "all_to_all": 0.875,
    "scatter": 0.875,
    "gather": 0.875,
    "broadcast": 1.0,
    "reduce": 1.0,
}


@pytest.mark.parametrize(("collective", "factor"), FACTORS.items())
def test_bus_factors(collective, factor):
    assert cost.bus_factor(collective, 8) == factor
    assert cost.bus_bandwidth(collective, 16 * GB, 2.0, 8) == 8 * GB * factor
    assert cost.algorithm_bandwidth(16 * GB, 2.0) == 8 * GB


@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        ("all_reduce", "ring"),
        ("reduce_scatter", "ring"),
        ("all_gather", "ring"),
        ("all_to_all", "pairwise"),
        ("scatter", "naive"),
        ("gather", "naive"),
    ],
)
@pytest.mark.parametrize("size", [2, 3, 8, 64])
def test_the_bus_bandwidth_of_the_best_algorithm_is_that_of_the_link(collective, algorithm, size):
    seconds = cost.cost_of(collective, algorithm).seconds(1 * GB, size, alpha=0, beta=1 / (25 * GB))
    assert cost.bus_bandwidth(collective, 1 * GB, seconds, size) == pytest.approx(25 * GB)


def test_bandwidths_that_cannot_be():
    with pytest.raises(ValueError, match="'barrier'"):
        cost.bus_factor("barrier", 4)
    with pytest.raises(ValueError, match="above 0 seconds"):
        cost.algorithm_bandwidth(1, 0)
    with pytest.raises(ValueError, match="not -1"):
        cost.bus_bandwidth("all_reduce", 1, -1, 4)
    with pytest.raises(ValueError, match="size .*not 0"):
        cost.bus_factor("all_reduce", 0)


def test_a_gigabit_is_not_a_gigabyte():
    assert 200 * Gb == 25 * GB and 10 * Gb == 1.25 * GB


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1 MB"),
        (5.8125 * GB, "5.812 GB"),
        (-3 * GB, "-3 GB"),
        (2.5e18, "2500 PB"),
        (12345e15, "12340 PB"),
        (0.5, "0.5 B"),
        (math.inf, "inf B"),
    ],
)
def test_bytes_in_words(nbytes, text):
    assert cost.format_bytes(nbytes) == text


def test_bytes_in_powers_of_two():
    assert cost.format_bytes(64 * MiB, binary=True) == "64 MiB"
    assert cost.format_bytes(1023 * KiB, binary=True) == "1023 KiB"
    assert cost.format_bytes(1023 * KiB, digits=3, binary=True) == "1020 KiB"
    assert cost.format_bandwidth(25 * GB) == "25 GB/s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.2397656, "239.8 ms"),
        (0.011666, "11.67 ms"),
        (0.99999, "1 s"),
        (12.5e-6, "12.5 µs"),
        (2e-9, "2 ns"),
        (1e-12, "0.001 ns"),
        (59.99, "59.99 s"),
        (90, "1.5 min"),
        (2.8 * HOUR, "2.8 h"),
        (54 * 24 * HOUR, "54 days"),
        (math.nan, "nan s"),
    ],
)
def test_seconds_in_words(seconds, text):
    assert cost.format_seconds(seconds) == text


@given(st.floats(1e-9, 1e15), st.integers(1, 6))
def test_what_is_written_is_what_was_meant(value, digits):
    number, unit = cost.format_bytes(value, digits=digits).split()
    scale = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}[unit]
    assert float(number) * scale == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))
    assert float(number) < 1000 or unit == "PB"
