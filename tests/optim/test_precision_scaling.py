"""Scales and products: nothing saturates that need not, bytes as they are sent, sums as narrow as the accumulator."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from labkit.optim.precision import (
    E2M1,
    E4M3,
    E5M2,
    FP16,
    FP32,
    Format,
    from_parts,
    multiply,
    quantize,
    round_to,
    scale_for,
    summed,
)
from labkit.wire.errors import RefusedError

SHAPES = [(), (1,), (7,), (5, 33), (2, 3, 64), (0,), (3, 0), (0, 4)]


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("format", [E4M3, E5M2, E2M1], ids=lambda f: f.name)
@pytest.mark.parametrize("scales", ["float32", "e8m0", "e8m0-up"])
@pytest.mark.parametrize("per", ["tensor", "row", 1, 32, 100])
def test_what_is_sent_is_what_was_quantized(format, scales, per):
    for shape in SHAPES:
        x = drawn(shape) * 1e-6
        scaled = quantize(x, format, per, scales)
        parts = scaled.parts()
        assert scaled.wide().shape == x.shape and [p.dtype for p in parts] == [torch.uint8] * 2
        assert sum(p.numel() for p in parts) == scaled.nbytes
        assert torch.equal(from_parts(parts, format, x.shape, per, scales).wide(), scaled.wide())


def test_bytes_are_those_of_codes_and_scales():
    x = drawn(6, 100)
    assert quantize(x, E4M3).nbytes == 600 + 4
    assert quantize(x, E4M3, "row").nbytes == 600 + 6 * 4
    assert quantize(x, E4M3, 32, "e8m0").nbytes == 600 + 6 * 4  # four blocks a row, the last one of 4 numbers
    assert quantize(x, E2M1, 32, "e8m0").nbytes == 300 + 24 and quantize(drawn(3), E2M1).nbytes == 2 + 4


@given(st.floats(1e-30, 1e30), st.sampled_from([E4M3, E5M2, E2M1]))
def test_the_largest_number_becomes_the_largest_of_the_format(amax, format):
    amax = torch.tensor([amax])
    assert (amax * scale_for(amax, format)).item() == pytest.approx(format.max, rel=1e-6)
    assert (amax * scale_for(amax, format, margin=2)).item() == pytest.approx(format.max / 4, rel=1e-6)
    up, ocp = scale_for(amax, format, "e8m0-up"), scale_for(amax, format, "e8m0")
    for scale in (up, ocp):
        assert math.log2(scale.item()).is_integer()
    assert format.max / 2 < (amax * up).item() <= format.max
    # By the exponents alone, as the specification has it: 2^floor(log2 amax) becomes the largest power of two.
    assert 2 ** math.floor(math.log2(format.max)) <= (amax * ocp).item() < 2 ** (math.floor(math.log2(format.max)) + 1)


def test_a_scale_of_its_own_keeps_small_neighbours_alive():
    x = drawn(4, 256)
    x[1] *= 1e-6  # one row, and in each other row one block, is much smaller than the rest
    x[:, 64:96] *= 1e-4
    errors = [
        ((quantize(x, E4M3, per).wide() - x).abs() > 0.07 * x.abs()).float().mean().item()
        for per in ("tensor", "row", 32)
    ]
    assert errors[0] > errors[1] > errors[2] and errors[2] < 0.01
    assert (quantize(x, E4M3).wide()[1] == 0).all() and (quantize(x, E4M3, "row").wide()[1] != 0).any()


def test_rounding_is_half_a_step_of_the_scaled_number():
    x = drawn(1000)
    scaled = quantize(x, E4M3)
    assert torch.equal(scaled.wide(), round_to(x * scaled.scale, E4M3) / scaled.scale)
    assert ((scaled.wide() - x).abs() <= (x.abs() / 16).clamp(min=2**-10 / scaled.scale) * 1.0001).all()


def test_a_given_scale_saturates_and_zeros_stay():
    x = torch.tensor([1.0, -1000.0, 0.0])
    assert quantize(x, E4M3, scale=torch.tensor(1.0)).wide().tolist() == [1, -448, 0]
    nothing = quantize(torch.zeros(3), E4M3)
    assert nothing.wide().tolist() == [0, 0, 0] and nothing.scale.tolist() == [1]
    assert quantize(torch.tensor([1e-45, 0.0]), E4M3).scale.isfinite().all()


def test_what_is_refused():
    x = torch.ones(4)
    for bad in (torch.inf, torch.nan):
        with pytest.raises(RefusedError, match="no scale brings that"):
            quantize(torch.tensor([1.0, bad]), E4M3)
    for scale in (0.0, -1.0, torch.inf, torch.nan):
        with pytest.raises(RefusedError, match="a finite number above 0"):
            quantize(x, E4M3, scale=torch.tensor(scale))
    with pytest.raises(RefusedError, match="for per='tensor'"):
        quantize(x, E4M3, "row", scale=torch.tensor(1.0))
    with pytest.raises(RefusedError, match="16 bits: it needs no scale"):
        quantize(x, FP16)
    with pytest.raises(RefusedError, match="float32 is quantized"):
        quantize(x.double(), E4M3)
    with pytest.raises(RefusedError, match="scales='fp8'"):
        quantize(x, E4M3, scales="fp8")
    for per in ("column", 0, 2.0, True):
        with pytest.raises(RefusedError, match="per="):
            quantize(x, E4M3, per)


def test_products_are_those_of_pytorchs_own_kernel():
    a, b = quantize(drawn(32, 64), E4M3), quantize(drawn(64, 48, seed=1), E5M2)
    theirs = torch._scaled_mm(
        a.codes.view(32, 64).view(torch.float8_e4m3fn), b.codes.view(64, 48).T.contiguous().T.view(torch.float8_e5m2),
        1 / a.scale[0], 1 / b.scale[0], out_dtype=torch.float32,
    )  # fmt: skip
    assert torch.allclose(multiply(a, b), theirs, atol=1e-4)


def plainly(a, b, accumulator, promote):
    """One product after the other, in Python's numbers."""
    out = torch.zeros(len(a), b.shape[1])
    for i in range(len(a)):
        for j in range(b.shape[1]):
            total, partial = torch.tensor(0.0), torch.tensor(0.0, dtype=torch.float64)
            for k in range(a.shape[1]):
                partial = round_to(partial + a[i, k].double() * b[k, j].double(), accumulator, overflow="special")
                if promote and (k + 1) % promote == 0:
                    total, partial = total + partial.float(), partial * 0
            out[i, j] = total + partial.float()
    return out


@pytest.mark.parametrize("promote", [None, 1, 4, 5, 100])
def test_an_accumulator_rounds_after_every_addition(promote):
    a, b = drawn(3, 11), drawn(11, 2, seed=1)
    for accumulator in (FP16, Format("14 bits", 8, 13), E4M3):
        assert torch.equal(multiply(a, b, accumulator, promote), plainly(a, b, accumulator, promote))
    assert torch.equal(multiply(a, b, FP32, promote), a @ b)
    assert multiply(a[:, :0], b[:0], FP16).tolist() == [[0, 0]] * 3


def test_a_sum_is_rounded_once():
    """In float32 1 + 2^-11 + 2^-30 is a tie of FP16, and ties go to the even number, 1."""
    a, b = torch.ones(1, 2), torch.tensor([[1.0], [2.0**-11 + 2.0**-30]])
    assert multiply(a, b, FP16).item() == 1 + 2.0**-10


def test_long_sums_need_a_wide_accumulator():
    ones = torch.ones(1, 4096)
    assert multiply(ones, ones.T, FP16).item() == 2048  # and 1 more is half a step: ties go to the even number
    assert multiply(ones, ones.T, FP16, promote=128).item() == 4096
    assert multiply(ones * 16, ones.T * 16, FP16).isinf()
    with pytest.raises(RefusedError, match="promote=0"):
        multiply(ones, ones.T, FP16, promote=0)


def test_sixteen_microbatches_in_a_narrow_buffer():
    terms = torch.full((16, 3), 1.0)
    terms[1:, 1] = 2.0**-11  # half a step of FP16 beside 1
    terms[:, 2] = 5000.0
    assert summed(terms, FP16).tolist() == [16, 1, torch.inf]
    assert summed(terms, FP32).tolist() == [16, 1 + 15 * 2.0**-11, 80000]
    assert summed(terms[:0], FP16).tolist() == [0, 0, 0]
