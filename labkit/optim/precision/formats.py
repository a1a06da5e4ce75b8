"""Floating-point formats from their bits: what a number becomes in 16, 8 or 4 of them.

A number of a format is  (-1)^sign * 2^(exponent - bias) * (1 + fraction / 2^mantissa),  and without the 1 where the
exponent is 0 (a subnormal). So two neighbours are one *step* apart, 2^-mantissa of their power of two, and below the
smallest normal number the step stays as it is. Rounding is therefore one division, one rounding to whole numbers and
one multiplication, and all three are exact.

    FP32, TF32, FP16, BF16    IEEE 754; TF32 is what tensor cores read of an FP32
    E5M2                      8 bits, as IEEE: infinities and NaN
    E4M3                      8 bits (Micikevicius et al. 2022): no infinities, one NaN for each sign
    E2M1                      4 bits, "FP4" (OCP Microscaling Formats, v1.0, 2023): every code is a number
    E8M0                      a power of two without a sign, the scale of a block: `block_scaling.py`
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from labkit.wire.errors import RefusedError

SPECIALS = ("ieee", "nan", "none")
ROUNDINGS = ("nearest", "stochastic", "zero")
OVERFLOWS = ("saturate", "special")


@dataclass(frozen=True)
class Format:
    """exponent, mantissa: their bits, 1 to 8 and 0 to 23; one more is the sign.

    specials: what the codes with the largest exponent are. "ieee": infinities and NaN. "nan": numbers, but for the
    one whose mantissa is all ones, a NaN. "none": numbers. dtype: PyTorch's name for the format, if it has one.
    """

    name: str
    exponent: int
    mantissa: int
    specials: str = "ieee"
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        if not (type(self.exponent) is int and 1 <= self.exponent <= 8):
            raise RefusedError(f"{self.name}: {self.exponent!r} bits for the exponent; from 1 to 8, as FP32 has")
        if not (type(self.mantissa) is int and 0 <= self.mantissa <= 23):
            raise RefusedError(f"{self.name}: {self.mantissa!r} bits for the mantissa; from 0 to 23, as FP32 has")
        if self.specials not in SPECIALS:
            raise RefusedError(f"{self.name}: specials={self.specials!r}; one of {', '.join(SPECIALS)}")
        if self.specials == "ieee" and (self.mantissa == 0 or self.exponent == 1):
            raise RefusedError(
                f"{self.name}: with {self.exponent} and {self.mantissa} bits no code is left for infinity, NaN and "
                "normal numbers; take specials='none'"
            )
        if self.specials != "ieee" and self.exponent == 8:
            raise RefusedError(
                f"{self.name}: with 8 bits for the exponent and specials={self.specials!r} its largest numbers lie "
                "beyond FP32, in which all of this is computed; take 'ieee'"
            )
        if self.specials == "nan" and self.exponent + self.mantissa < 2:
            raise RefusedError(f"{self.name}: of 2 bits one code would be the NaN; take specials='none'")

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        return int(2 ** (self.exponent - 1)) - 1

    @property
    def _top(self) -> int:
        """The largest code of a positive number."""
        ones = 2 ** (self.exponent + self.mantissa) - 1
        return int({"ieee": ones - 2**self.mantissa, "nan": ones - 1, "none": ones}[self.specials])

    @property
    def lowest_exponent(self) -> int:
        """The power of two of the smallest normal number, which subnormals share."""
        return 1 - self.bias

    @property
    def max(self) -> float:
        """The largest number."""
        return self._value(self._top)

    @property
    def smallest_normal(self) -> float:
        """Below it the step stays as it is, and numbers lose digits."""
        return float(2.0**self.lowest_exponent)

    @property
    def smallest(self) -> float:
        """The smallest number above 0."""
        return float(2.0 ** (self.lowest_exponent - self.mantissa))

    @property
    def epsilon(self) -> float:
        """From 1 to the next number; a normal number is rounded by at most half of it, relative to itself."""
        return float(2.0**-self.mantissa)

    @property
    def has_infinity(self) -> bool:
        return self.specials == "ieee"

    @property
    def has_nan(self) -> bool:
        return self.specials != "none"

    def _value(self, code: int) -> float:
        """The number of a positive code, by the definition."""
        exponent, fraction = divmod(code, 2**self.mantissa)
        hidden = exponent > 0
        power = max(exponent, 1) - self.bias - self.mantissa
        return float((fraction + hidden * 2**self.mantissa) * 2.0**power)

    def values(self) -> Tensor:
        """What each code means, by code: (2^bits), float32. For formats of at most 16 bits."""
        if self.bits > 16:
            raise RefusedError(f"{self.name}: {2**self.bits:,} codes are too many to list; at most 16 bits")
        return _table(self).clone()


FP32 = Format("FP32", 8, 23, dtype=torch.float32)
TF32 = Format("TF32", 8, 10)
FP16 = Format("FP16", 5, 10, dtype=torch.float16)
BF16 = Format("BF16", 8, 7, dtype=torch.bfloat16)
E4M3 = Format("E4M3", 4, 3, "nan", torch.float8_e4m3fn)
E5M2 = Format("E5M2", 5, 2, dtype=torch.float8_e5m2)
E2M1 = Format("E2M1", 2, 1, "none")
FORMATS = {f.name: f for f in (FP32, TF32, FP16, BF16, E4M3, E5M2, E2M1)}


def named(format: Format | str) -> Format:
    """A format by its name, in any case; a `Format` as it is. RefusedError for a name that nobody knows."""
    if isinstance(format, Format):
        return format
    known = FORMATS.get(str(format).upper())
    if known is None:
        raise RefusedError(
            f"format {format!r} is unknown. Known: {', '.join(FORMATS)}; or Format(name, exponent, mantissa)"
        )
    return known


def round_to(
    x: Tensor, format: Format | str, rounding: str = "nearest", overflow: str = "saturate",
    draw: torch.Generator | None = None,
) -> Tensor:  # fmt: skip
    """x (any shape, float32 or float64), each number replaced by one that the format has; the dtype stays.

    rounding: "nearest", ties to the even mantissa (IEEE 754); "stochastic", up with the probability of the part that
    is cut off, so that the expectation is x (draw: its random numbers); "zero", that part cut off. overflow: of what
    lies above the largest number after rounding: "saturate", the largest number, as PyTorch does for E4M3, or
    "special", infinity, or NaN where the format has no infinity. NaN stays; RefusedError where the format has none.
    """
    format = named(format)
    _check(x, format, rounding, overflow)
    size = x.abs()
    step = _power(size).clamp(min=format.smallest_normal) * format.epsilon
    exact = size / step  # by a power of two: nothing is rounded here, nor when it is multiplied again
    if rounding == "nearest":
        steps = exact.round()  # ties to even: the mantissa is even where the whole number of steps is
    else:
        steps = exact.floor()
        if rounding == "stochastic":
            steps += torch.rand(x.shape, generator=draw, dtype=x.dtype) < exact - steps
    result = steps.mul_(step)
    over = (result > format.max) | size.isinf()
    if overflow == "saturate":
        beyond = format.max
    else:
        beyond = torch.inf if format.has_infinity else torch.nan
    return result.masked_fill_(over, beyond).copysign_(x)


def encode(
    x: Tensor, format: Format | str, rounding: str = "nearest", overflow: str = "saturate",
    draw: torch.Generator | None = None,
) -> Tensor:  # fmt: skip
    """The codes of `round_to(x, ...)`: int64 of 0 .. 2^bits - 1, sign first, then exponent, then mantissa."""
    format = named(format)
    plain = rounding == "nearest" and overflow == "saturate" and x.dtype == torch.float32
    if plain and format.dtype is not None and format.bits == 8:
        kept = x.clamp(-format.max, format.max)  # the same numbers by PyTorch's cast, which is faster
        return kept.to(format.dtype).view(torch.uint8).to(torch.int64)
    x = round_to(x, format, rounding, overflow, draw).to(torch.float32)
    size = x.abs()
    # Sign and exponent of a float32 stand before its mantissa as in every format: cut it, and shift the exponent.
    normal = (size.view(torch.int32) >> (23 - format.mantissa)) - ((127 - format.bias) << format.mantissa)
    code = torch.where(size < format.smallest_normal, (size / format.smallest).to(torch.int32), normal)
    code = code.masked_fill(size.isinf(), format._top + 1)
    code = code.masked_fill(size.isnan(), 2 ** (format.bits - 1) - 1)
    return code.to(torch.int64) + (x.signbit().to(torch.int64) << (format.bits - 1))


def decode(codes: Tensor, format: Format | str) -> Tensor:
    """The numbers of codes (any whole-number dtype), as float32."""
    format = named(format)
    if format.bits <= 16:
        return _table(format).index_select(0, codes.flatten().int()).view(codes.shape)
    return _meant(codes.to(torch.int64), format)


@cache
def _table(format: Format) -> Tensor:
    """What each code means, by code."""
    return _meant(torch.arange(2**format.bits), format)


def _meant(codes: Tensor, format: Format) -> Tensor:
    """The numbers of codes (int64), by the definition, as float32."""
    code = codes & (2 ** (format.bits - 1) - 1)
    exponent, fraction = code >> format.mantissa, code & (2**format.mantissa - 1)
    steps = (fraction + (exponent > 0) * 2**format.mantissa).to(torch.float64)
    x = torch.ldexp(steps, exponent.clamp(min=1) - format.bias - format.mantissa)
    if format.specials == "ieee":
        x = x.masked_fill(code == format._top + 1, torch.inf).masked_fill(code > format._top + 1, torch.nan)
    elif format.specials == "nan":
        x = x.masked_fill(code > format._top, torch.nan)
    return torch.where(codes >> (format.bits - 1) > 0, -x, x).to(torch.float32)


def _check(x: Tensor, format: Format, rounding: str, overflow: str) -> None:
    if x.dtype not in (torch.float32, torch.float64):
        raise RefusedError(f"x is {x.dtype}: float32 or float64 is rounded; call x.float()")
    if rounding not in ROUNDINGS:
        raise RefusedError(f"rounding={rounding!r}: one of {', '.join(ROUNDINGS)}")
    if overflow not in OVERFLOWS:
        raise RefusedError(f"overflow={overflow!r}: one of {', '.join(OVERFLOWS)}")
    if overflow == "special" and not format.has_nan:
        raise RefusedError(f"overflow='special': {format.name} has neither infinity nor NaN; take 'saturate'")
    if not format.has_nan and x.isnan().any():
        raise RefusedError(f"x has NaN, and {format.name} has no code for it")


def _power(size: Tensor) -> Tensor:
    """The power of two at or below each number: its exponent without its mantissa. 0 for a subnormal number of x."""
    if size.dtype == torch.float32:
        return (size.view(torch.int32) & 0x7F800000).view(torch.float32)
    return (size.view(torch.int64) & 0x7FF0000000000000).view(torch.float64)
