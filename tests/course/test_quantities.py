"""The numbers that people type."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from labkit.course.quantities import UNITS, NoNumber, read_number


@pytest.mark.parametrize(
    ("typed", "unit", "number"),
    [
        ("42", "", 42),
        (" 4.2e1 ", "", 42),
        ("+.5", "", 0.5),
        ("-3", "", -3),
        ("007", "", 7),
        (42, "MB", 42),
        (0.1, "s", 0.1),
        ("1,234.5", "", 1234.5),
        ("1,234,567", "", 1234567),
        ("1 234 567", "", 1234567),
        ("1_000", "", 1000),
        ("2^30", "B", 2**30),
        ("2**10", "", 1024),
        ("1e6", "", 1e6),
        ("1.5 x 10^6", "", 1.5e6),
        ("3 × 4", "", 12),
        ("2*7/8*1.6", "", 2.8),
        ("-(1+2)^2", "", -9),
        ("5 − 2", "", 3),
        ("~12", "", 12),
        ("42 MB", "MB", 42),
        ("0.042 GB", "MB", 42),
        ("42000kB", "MB", 42),
        ("40 MiB", "MB", 41.94304),
        ("2^30 B", "GiB", 1),
        ("1 GiB", "GB", 1.073741824),
        ("8 Gb", "GB", 1),
        ("200 Gb/s", "GB/s", 25),
        ("400 Gbps", "GB/s", 50),
        ("25 GB/s", "Gb/s", 200),
        ("42 mib", "MiB", 42),
        ("3 ms", "s", 0.003),
        ("3 us", "ms", 0.003),
        ("3 µs", "µs", 3),
        ("3 μs", "us", 3),
        ("2 min", "s", 120),
        ("1 hour", "min", 60),
        ("36 hours", "days", 1.5),
        ("43 %", "%", 43),
        ("43", "%", 43),
        ("43%", "", 0.43),
        ("12 percent", "%", 12),
        ("3x", "times", 3),
        ("14 messages", "messages", 14),
        ("1 message", "messages", 1),
        ("rank 3", "rank", 3),
        ("ranks 2^3", "rank", 8),
        ("step 3", "rank", None),
        ("7B", "parameters", 7e9),
        ("7 B parameters", "parameters", 7e9),
        ("1.5 TFLOP/s", "GFLOP/s", 1500),
        ("989 TFLOPS", "TFLOP/s", 989),
        ("$3.50", "dollars", 3.5),
        ("3.5 $", "dollars", 3.5),
        ("$2M", "dollars", None),
        ("ln 2", "", math.log(2)),
        ("-ln(1/2)", "", math.log(2)),
        ("log(2)", "", math.log(2)),
        ("2 * sqrt 9 MB", "MB", 6),
        ("log2(8)", "", 3),
        ("log10 1000 + exp(0)", "", 4),
    ],
)
def test_it_is_read_in_the_unit_asked_for(typed: object, unit: str, number: float | None) -> None:
    if number is None:
        with pytest.raises(NoNumber):
            read_number(typed, unit)
    else:
        assert read_number(typed, unit) == pytest.approx(number, rel=1e-12)


@pytest.mark.parametrize(
    ("typed", "unit", "said"),
    [
        ("", "MB", "Nothing was typed. Type a number such as 12.5 MB."),
        ("about ten", "", "'about ten' is not a number"),
        ("12 parsecs", "MB", "I do not know the unit 'parsecs'"),
        ("3 s", "MB", "s measures time; the answer is asked for in MB, which measures data"),
        ("3 GB/s", "GB", "data rate"),
        ("8 gb", "GB", "GB or Gb"),
        ("1,5", "", "a point: 1.5"),
        ("1/0", "", "divides by zero"),
        ("9^9^9^9", "", "not a finite number"),
        ("1e999", "", "not a finite number"),
        ("nan", "", "'nan'"),
        ("(-1)^0.5", "", "not a number"),
        ("__import__('os')", "", "not a number"),
        ("1" * 200, "", "too long"),
        (True, "", "True is not a number"),
        (None, "MB", "None is not a number"),
        ([1, 2], "", "not a number"),
        (math.inf, "", "not a finite number"),
        (10**400, "", "not a finite number"),
        ("10²", "", "not a number"),
        ("ln(0)", "", "not a number"),
        ("ln", "", "not a number"),
        ("sqrt()", "", "not a number"),
        ("exp(1000)", "", "not a finite number"),
        ("print(1)", "", "not a number"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(typed: object, unit: str, said: str) -> None:
    with pytest.raises(NoNumber) as told:
        read_number(typed, unit)
    assert said in str(told.value)


def test_a_whole_number_too_long_to_write_down_is_refused() -> None:
    with pytest.raises(NoNumber, match="not a finite number"):
        read_number(10**5000)


@given(
    st.text() | st.text(alphabet="0123456789.,eE+-*/^() xkMGBbs%$") | st.integers() | st.floats(),
    st.sampled_from(["", *UNITS]),
)
def test_anything_typed_is_a_finite_number_or_refused(typed: object, unit: str) -> None:
    try:
        assert math.isfinite(read_number(typed, unit))
    except NoNumber as error:
        assert str(error)


@given(st.floats(1e-9, 1e12), st.sampled_from([(a, b) for a in UNITS for b in UNITS if UNITS[a][0] == UNITS[b][0]]))
def test_conversion_there_and_back_is_the_number_itself(number: float, pair: tuple[str, str]) -> None:
    typed, unit = pair
    there = read_number(f"{number!r} {typed}", unit)
    assert read_number(f"{there!r} {unit}", typed) == pytest.approx(number, rel=1e-9)
