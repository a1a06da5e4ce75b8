"""Formats from their bits: against an enumeration by the definition, PyTorch's casts and ml_dtypes', to the bit."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from labkit.optim.precision import (
    BF16,
    E2M1,
    E4M3,
    E5M2,
    FORMATS,
    FP16,
    FP32,
    TF32,
    Format,
    decode,
    encode,
    named,
    round_to,
)
from labkit.wire.errors import RefusedError

SMALL = [E4M3, E5M2, E2M1, Format("E3M4", 3, 4), Format("E1M2", 1, 2, "none"), Format("E5M0", 5, 0, "none")]
ML_DTYPES = {
    FP16: np.float16, BF16: ml_dtypes.bfloat16, E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2,
    Format("E3M4", 3, 4): ml_dtypes.float8_e3m4, Format("IEEE E4M3", 4, 3): ml_dtypes.float8_e4m3,
}  # fmt: skip


def patterns(count=300_000, seed=0):
    """Numbers of every size: random bits, and what lies on and beside each border and each tie of 16 bits or fewer."""
    draw = torch.Generator().manual_seed(seed)
    bits = torch.randint(-(2**31), 2**31, (count,), generator=draw).to(torch.int32).view(torch.float32)
    codes = torch.arange(2**15)
    known = torch.cat([decode(codes % 2 ** (f.bits - 1), f) for f in (FP16, BF16, E4M3, E5M2, E2M1)])
    known = known[known.isfinite()].unique()
    ties = (known[1:].double() + known[:-1].double()).div(2).float()
    near = torch.cat([known, ties, ties.nextafter(torch.tensor(torch.inf)), ties.nextafter(torch.tensor(0.0))])
    rest = torch.tensor([0.0, torch.inf, torch.nan, 1e-45, 3.4e38, 464.0, 480.0, 61440.0, 65520.0])
    return torch.cat([bits, near, rest, -near, -rest])


def same(a, b):
    """To the bit, but that every NaN is one."""
    return bool(((a.view(torch.int32) == b.view(torch.int32)) | (a.isnan() & b.isnan())).all())


@pytest.mark.parametrize("format", [FP16, BF16, E5M2, E4M3], ids=lambda f: f.name)
def test_pytorch_has_the_same_numbers(format):
    x = patterns()
    theirs = x.to(format.dtype)
    overflow = (
        "saturate" if torch.tensor(1e9).to(format.dtype).float() == format.max else "special"
    )  # newer PyTorch: E4M3
    assert same(round_to(x, format, overflow=overflow), theirs.float())
    codes = theirs.view(torch.int16 if format.bits == 16 else torch.uint8).to(torch.int64) & (2**format.bits - 1)
    number = ~x.isnan()
    assert torch.equal(encode(x, format, overflow=overflow)[number], codes[number])


@pytest.mark.parametrize("format", ML_DTYPES, ids=lambda f: f.name)
def test_ml_dtypes_has_the_same_numbers(format):
    x = patterns(seed=1)
    with np.errstate(all="ignore"):
        theirs = x.numpy().astype(ML_DTYPES[format])
    assert same(round_to(x, format, overflow="special"), torch.from_numpy(theirs.astype(np.float32)))


@pytest.mark.parametrize("format", [E4M3, E5M2], ids=lambda f: f.name)
def test_a_cast_by_pytorch_is_the_same_code(format):
    x = patterns(seed=4)
    plain = Format("without a dtype", format.exponent, format.mantissa, format.specials)
    assert torch.equal(encode(x, format), encode(x, plain))
    wide = x.double()[::7] * (1 + 2.0**-30)  # PyTorch rounds these twice, and we do not
    assert torch.equal(encode(wide, format), encode(wide, plain))


def test_ml_dtypes_has_the_same_four_bits():
    x = patterns(seed=2)
    x = x[~x.isnan()]
    theirs = x.numpy().astype(ml_dtypes.float4_e2m1fn)
    assert same(round_to(x, E2M1), torch.from_numpy(theirs.astype(np.float32)))
    assert torch.equal(encode(x, E2M1), torch.from_numpy(theirs.view(np.uint8).astype(np.int64)))


@pytest.mark.parametrize("format", SMALL, ids=lambda f: f.name)
def test_every_code_means_what_the_definition_says(format):
    for code, value in enumerate(format.values().tolist()):
        sign, rest = divmod(code, 2 ** (format.bits - 1))
        exponent, fraction = divmod(rest, 2**format.mantissa)
        top = exponent == 2**format.exponent - 1
        if format.specials == "ieee" and top:
            assert (abs(value) == float("inf")) if fraction == 0 else value != value
        elif format.specials == "nan" and top and fraction == 2**format.mantissa - 1:
            assert value != value
        else:
            hidden, power = (1, exponent) if exponent else (0, 1)
            exact = (hidden + Fraction(fraction, 2**format.mantissa)) * Fraction(2) ** (power - format.bias)
            assert Fraction(value) == (-exact if sign else exact)


@pytest.mark.parametrize("format", [*SMALL, FP16, BF16], ids=lambda f: f.name)
def test_every_number_is_its_own_code(format):
    values = format.values()
    finite = values.isfinite()
    codes = torch.arange(len(values))
    assert torch.equal(encode(values[finite], format), codes[finite])
    assert torch.equal(round_to(values[finite], format), values[finite])


@pytest.mark.parametrize("format", [FP32, TF32], ids=lambda f: f.name)
def test_formats_that_are_too_long_to_list_come_back_too(format):
    x = round_to(patterns(seed=3), format, overflow="special")
    assert same(decode(encode(x, format, overflow="special"), format), x)
    assert format is not FP32 or same(x, patterns(seed=3))
    with pytest.raises(RefusedError, match="too many to list"):
        format.values()


@given(st.sampled_from(SMALL), st.floats(-1e6, 1e6, width=32))
def test_no_number_of_the_format_is_nearer(format, x):
    values = format.values()
    values = values[values.isfinite()].double()
    mine = round_to(torch.tensor([x]), format)[0].item()
    assert abs(mine - x) == (values - x).abs().min().item()
    cut = round_to(torch.tensor([x]), format, "zero")[0].item()
    assert abs(cut) <= abs(x) and abs(cut) == values[values.abs() <= abs(x)].abs().max().item()


def test_the_numbers_that_the_chapter_states():
    assert (E4M3.max, E4M3.smallest_normal, E4M3.smallest) == (448, 2**-6, 2**-9)
    assert (E5M2.max, E5M2.smallest_normal, E5M2.smallest) == (57344, 2**-14, 2**-16)
    assert (FP16.max, FP16.smallest) == (65504, 2**-24)
    assert E2M1.values()[:8].tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert not E4M3.has_infinity and E5M2.has_infinity and E4M3.has_nan and not E2M1.has_nan
    assert BF16.max == pytest.approx(3.39e38, rel=1e-3) and FP32.max == torch.finfo(torch.float32).max


@pytest.mark.parametrize("x", [1.03, 300.0, -0.0011, 2.0**-9 / 3, 447.9])
def test_stochastic_rounding_is_unbiased(x):
    draw = torch.Generator().manual_seed(0)
    n = 40_000
    rounded = round_to(torch.full((n,), x), E4M3, "stochastic", draw=draw).double()
    low, high = rounded.min().item(), rounded.max().item()
    assert low <= x <= high and low != high
    assert rounded.mean().item() == pytest.approx(x, abs=4 * (high - low) / 2 / n**0.5)
    assert round_to(torch.tensor([1.25, 448.0]), E4M3, "stochastic", draw=draw).tolist() == [1.25, 448.0]


def test_double_precision_is_rounded_once():
    x = torch.tensor([1 + 2.0**-4 + 2.0**-40], dtype=torch.float64)  # in float32 a tie, and ties go to the even 1.0
    assert round_to(x, E4M3).item() == 1.125 and round_to(x.float(), E4M3).item() == 1.0


def test_shapes_and_signs_stay():
    for shape in ((), (0,), (3, 0), (2, 3, 1)):
        assert round_to(torch.zeros(shape), E4M3).shape == encode(torch.zeros(shape), E4M3).shape == shape
    assert round_to(torch.tensor([-0.0, -1e-9]), E4M3).signbit().all()


def test_what_is_refused():
    with pytest.raises(RefusedError, match=r"format 'e4m4' is unknown. Known: FP32.*E2M1"):
        named("e4m4")
    assert named("e4m3") is E4M3 and named(BF16) is BF16 and len(FORMATS) == 7
    one = torch.ones(1)
    with pytest.raises(RefusedError, match="float32 or float64 is rounded"):
        round_to(one.half(), E4M3)
    with pytest.raises(RefusedError, match="rounding='up'"):
        round_to(one, E4M3, "up")
    with pytest.raises(RefusedError, match="overflow='wrap'"):
        encode(one, E4M3, overflow="wrap")
    with pytest.raises(RefusedError, match="neither infinity nor NaN"):
        round_to(one, E2M1, overflow="special")
    with pytest.raises(RefusedError, match="x has NaN, and E2M1"):
        round_to(one * torch.nan, E2M1)
    for bits in ((0, 3), (9, 3), (4, -1), (4, 24), (4, 2.5)):
        with pytest.raises(RefusedError, match="bits for the"):
            Format("mine", *bits)
    with pytest.raises(RefusedError, match="no code is left"):
        Format("mine", 4, 0)
    with pytest.raises(RefusedError, match="would be the NaN"):
        Format("mine", 1, 0, "nan")
    with pytest.raises(RefusedError, match="lie beyond FP32"):
        Format("mine", 8, 3, "nan")
    with pytest.raises(RefusedError, match="specials='inf'"):
        Format("mine", 4, 3, "inf")
