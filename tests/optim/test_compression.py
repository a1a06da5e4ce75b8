"""Compressors: bytes as by the formula, what is unbiased is unbiased, and what comes back is as near as promised."""

from __future__ import annotations

import pytest
import torch

from labkit import cost
from labkit.optim.compression import Block8, Quantize, RandomK, ScaledSign, TopK, ternary
from labkit.optim.compression.payload import joined, nbytes, pack, parted, unpack
from labkit.wire.errors import RefusedError

LENGTHS = (1, 2, 7, 256, 257, 1000)
FORMULA = {
    "top-k": (TopK(0.1), lambda n: cost.top_k_bytes(-(-n // 10))),
    "random-k": (RandomK(0.1), lambda n: cost.random_k_bytes(-(-n // 10))),
    "qsgd": (Quantize(15), lambda n: cost.quantized_bytes(n, 15)),
    "ternary": (ternary(), lambda n: cost.quantized_bytes(n, 1)),
    "sign": (ScaledSign(), cost.sign_bytes),
    "block8": (Block8(256), cost.block8_bytes),
}


def dice(seed=0):
    return torch.Generator().manual_seed(seed)


def there_and_back(compressor, x, seed=0):
    """Through the bytes of a message."""
    parts = compressor.parts(len(x), x.dtype)
    message = joined(compressor.encode(x, dice(seed)))
    assert len(message) == nbytes(parts)
    return compressor.decode(parted(message, parts), len(x), dice(seed))


@pytest.mark.parametrize("name", FORMULA)
def test_bytes_are_those_of_the_formula_and_zeros_stay_zeros(name):
    compressor, formula = FORMULA[name]
    for n in LENGTHS:
        assert nbytes(compressor.parts(n, torch.float32)) == formula(n), n
        assert torch.equal(there_and_back(compressor, torch.zeros(n)).abs(), torch.zeros(n))
        assert there_and_back(compressor, torch.randn(n, generator=dice())).shape == (n,)


def test_integers_of_any_width_are_read_back():
    for bits in range(1, 10):
        numbers = torch.randint(2**bits, (131,), generator=dice(), dtype=torch.int32)
        packed = pack(numbers, bits)
        assert packed.dtype == torch.uint8 and len(packed) == -(-131 * bits // 8)
        assert torch.equal(unpack(packed, bits, 131), numbers)


@pytest.mark.parametrize("compressor", [Quantize(1), Quantize(15), ternary(), RandomK(0.25, scale=True)])
def test_the_expectation_is_the_gradient(compressor):
    """The mean of 4,000 draws of each of 20 numbers, within 5 standard errors: wrong once in 80,000 seeds."""
    x = torch.randn(20, generator=dice(1), dtype=torch.float64)
    came = torch.stack([there_and_back(compressor, x, seed).double() for seed in range(4000)])
    error = (came.mean(0) - x).abs() / (came.std(0) / 4000**0.5 + 1e-7)
    assert error.max() < 5


def test_what_is_kept_is_the_largest_and_to_the_bit():
    x = torch.randn(1000, generator=dice())
    kept = there_and_back(TopK(10), x)
    assert torch.equal(kept[kept != 0], x[kept != 0]) and (kept != 0).sum() == 10
    assert x[kept == 0].abs().max() <= kept[kept != 0].abs().min()
    assert torch.equal(kept + (x - kept), x)  # what is left out and what is sent are x


def test_eight_bits_are_off_by_half_a_step_at_most_and_signs_by_their_mean():
    x = torch.randn(1000, generator=dice())
    steps = torch.nn.functional.pad(x, (0, 24)).view(-1, 256).abs().amax(1) / 127
    off = (there_and_back(Block8(256), x) - x).abs()
    assert (off <= steps.repeat_interleave(256)[:1000] * 0.5001).all()
    signs = there_and_back(ScaledSign(), x)
    assert torch.equal(signs.sign(), x.sign()) and torch.allclose(signs.abs(), x.abs().mean().expand(1000))


def test_random_places_are_alike_on_all_ranks_so_that_values_add_up():
    a, b = torch.randn(2, 50, generator=dice())
    compressor = RandomK(5)
    (one,), (other,) = compressor.encode(a, dice(3)), compressor.encode(b, dice(3))
    both = compressor.decode([one + other], 50, dice(3))
    assert torch.equal(both, there_and_back(compressor, a + b, 3))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TopK(0.0), "a share above 0"),
        (lambda: TopK(1.5), "a share above 0"),
        (lambda: RandomK(0), "or a whole number"),
        (lambda: Quantize(0), "from 1 to 255"),
        (lambda: Quantize(3, "l1"), "'l2' or 'max'"),
        (lambda: Block8(0), "at least 1"),
        (lambda: TopK(11).encode(torch.zeros(10), dice()), "has 10 numbers only"),
    ],
)
def test_what_cannot_be_is_refused(make, words):
    with pytest.raises(RefusedError, match=words):
        make()
