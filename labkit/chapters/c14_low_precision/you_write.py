"""What chapter 14 asks its reader to write: a number from its bits, a scale that ranks agree on, a step that all ranks
take or none of them, and a sum that travels in 8 bits."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.chapters.c14_low_precision.wires import all_to_all, pack, unpack
from labkit.collectives import all_gather, all_reduce
from labkit.grading.checks.student import NotRight, StudentError
from labkit.grading.writing import Reader, you_write
from labkit.optim.precision import Format, decode
from labkit.wire import Group

# 1: a number from its bits -----------------------------------------------------------------------------------------

ASKED = ((4, 3), (5, 2), (2, 1), (3, 4))
Given = tuple[int, int, int]


def every_code_has_its_number(student: Reader) -> str:
    for exponent, mantissa in ASKED:
        codes = list(range(2 ** (1 + exponent + mantissa)))
        given = [(code, exponent, mantissa) for code in codes]
        ((got,),) = student.through("number", 1, [given], _numbers).results
        right = decode(torch.tensor(codes), Format("", exponent, mantissa, "none")).tolist()
        for code, mine, want in zip(codes, got, right, strict=True):
            if mine is None:
                raise NotRight(f"Your function returned no number for code {_bits(code, exponent, mantissa)}.")
            if mine != want:
                raise NotRight(_about(code, exponent, mantissa, mine, want, dict(zip(codes, got, strict=True))))
    return "Every code of E4M3, E5M2, E2M1 and E3M4 has its number, the small ones around 0 included."


def _numbers(fn: Callable[..., Any], given: Sequence[Given], group: Group) -> tuple[list[float | None]]:
    found = []
    for one in given:
        got = fn(*one)
        found.append(float(got) if isinstance(got, (int, float, Tensor)) and not isinstance(got, bool) else None)
    return (found,)


def _bits(code: int, exponent: int, mantissa: int) -> str:
    text = f"{code:0{1 + exponent + mantissa}b}"
    return f"{text[0]} {text[1 : 1 + exponent]} {text[1 + exponent :]} of E{exponent}M{mantissa}"


def _about(code: int, exponent: int, mantissa: int, got: float, want: float, all_of: dict[int, float]) -> str:
    """Why a number is wrong."""
    field = code >> mantissa & (2**exponent - 1)
    where = f"Code {_bits(code, exponent, mantissa)} is {want:g}, and you have {got:g}."
    if code >> (exponent + mantissa) and got == -want:
        return f"{where} The first bit is the sign: 1 makes the number negative."
    one = (2 ** (exponent - 1) - 1) << mantissa
    if abs(all_of[one]) in (0.5, 2.0, 0.25):
        return f"{where} Your 1 is {all_of[one]:g}: is the bias 2^(exponent_bits - 1) - 1?"
    if not field:
        bias = 2 ** (exponent - 1) - 1
        fraction = code % 2**mantissa / 2**mantissa
        if math.isclose(abs(got), (1 + fraction) * 2.0**-bias):
            return f"{where} With an exponent of 0 there is no leading 1, so that codes reach down to 0."
        if fraction and math.isclose(abs(got), fraction * 2.0**-bias):
            return (
                f"{where} These numbers have no leading 1, and share the power of exponent 1, which is 2^(1 - bias). "
                "Else there is a gap below the smallest normal number."
            )
        return f"{where} Here the exponent is 0: the number is fraction * 2^(1 - bias)."
    ratio = got / want if want else math.nan
    fraction = code % 2**mantissa / 2**mantissa
    if math.isclose(abs(ratio), fraction / (1 + fraction)):
        return f"{where} A normal number has a leading 1 that is not stored: 1 + fraction."
    if fraction and math.isclose(abs(ratio), (1 + code % 2**mantissa) / (1 + fraction)):
        return f"{where} The mantissa counts steps of 2^-mantissa_bits: divide it by 2^mantissa_bits."
    return where


@you_write(every_code_has_its_number)
def number(code: int, exponent_bits: int, mantissa_bits: int) -> float:
    """The number that a code means: sign, exponent and mantissa, from the left."""
    fraction = code % 2**mantissa_bits / 2**mantissa_bits
    exponent = (code >> mantissa_bits) % 2**exponent_bits
    bias = 2 ** (exponent_bits - 1) - 1
    if exponent == 0:
        size = fraction * 2.0 ** (1 - bias)
    else:
        size = (1 + fraction) * 2.0 ** (exponent - bias)
    return -size if code >> (exponent_bits + mantissa_bits) else size


# 2: a scale that ranks agree on ------------------------------------------------------------------------------------

LARGEST = 448.0


def the_largest_of_all_ranks_decides(student: Reader) -> str:
    for n in (3, 2, 1):
        draw = torch.Generator().manual_seed(student.seed + n)
        parts = [torch.randn(5, generator=draw) for _ in range(n)]
        parts[-1][2] = -8.0  # the largest size is that of a negative number, on the last rank
        _a_scale(student, parts, LARGEST / 8.0)
    _a_scale(student, [torch.zeros(4)] * 2, 1.0)
    return (
        "With 1, 2 and 3 ranks the largest number of all of them becomes the largest of the format, every rank has the "
        "same scale, and a tensor of zeros has the scale 1."
    )


def _a_scale(student: Reader, parts: Sequence[Tensor], right: float) -> None:
    n = len(parts)

    def call(fn: Callable[..., Any], x: Tensor, group: Group) -> tuple[Any, Tensor]:
        mine = x.clone()
        got = fn(mine, group, LARGEST)
        return (float(got) if isinstance(got, (int, float, Tensor)) else got), mine

    run = student.through("scale_of", n, list(parts), call)
    for rank, ((got, kept), x) in enumerate(zip(run.results, parts, strict=True)):
        who = f"With {n} rank{'s' * (n != 1)}, on rank {rank}:"
        student.expect(torch.equal(kept, x), "{who} `x` has changed. Leave it as it is.", who=who)
        student.expect(isinstance(got, float), "{who} return a number, the scale.", who=who)
        if math.isclose(got, right, rel_tol=1e-5):
            continue
        if right == 1.0:
            raise NotRight(
                f"{who} a tensor of zeros has the scale {got:g}, so its zeros become NaN or garbage. Return 1 there."
            )
        for wrong, why in _slips_of_a_scale(parts, right):
            if all(isinstance(g, float) and math.isclose(g, w, rel_tol=1e-5)
                   for (g, _), w in zip(run.results, wrong, strict=True)):  # fmt: skip
                raise NotRight(f"{who} {why}")
        raise NotRight(f"{who} the scale is {got:g}. The amax of all ranks is {LARGEST / right:g}, so it should be "
                       f"{right:g}.")  # fmt: skip
    if n > 1:
        most = 4 * 2 * n
        student.expect(max(run.bytes_sent) <= most, "The scale is right, but a rank sent {got} bytes. The amax is one "
                       "number of 4 bytes: send that, and not the tensor.", got=max(run.bytes_sent))  # fmt: skip


def _slips_of_a_scale(parts: Sequence[Tensor], right: float) -> list[tuple[list[float], str]]:
    """The scales of all ranks by a well-known mistake, and what to say of it."""
    amaxes = [float(p.abs().max()) for p in parts]

    def alike(amax: float) -> list[float]:
        return [LARGEST / amax] * len(parts)

    return [
        ([1 / right] * len(parts), "that is the scale turned around: what is the amax to be multiplied by?"),
        ([LARGEST / amax for amax in amaxes], "you took the largest number of this rank alone, so every rank has "
         'another scale. Ask all ranks with `all_reduce(..., op="max")`.'),
        (alike(max(float(p.max()) for p in parts)), "you took the largest number, but a negative one may be larger in "
         "size: `x.abs()`."),
        (alike(sum(amaxes)), 'the amaxes of all ranks are added up. Take the largest of them: `op="max"`.'),
        (alike(sum(amaxes) / len(parts)), "that is the mean of the ranks' amaxes. Take the largest of them: "
         '`op="max"`.'),
    ]  # fmt: skip


@you_write(the_largest_of_all_ranks_decides)
def scale_of(x: Tensor, group: Group, largest: float) -> Tensor | float:
    """What all ranks multiply by, so that their largest number becomes `largest`."""
    amax = x.abs().max()
    all_reduce(amax, group, op="max")
    return largest / amax if amax > 0 else 1.0


# 3: all take the step, or none -------------------------------------------------------------------------------------


EMPTY = re.compile(
    "non-empty|empty sequence|argument is empty|out of range|numel|zero elements|size: torch.Size\\(\\[0"
)


def all_or_nobody(student: Reader) -> str:
    fine, inf, nan = torch.tensor([1.0, -2.0]), torch.tensor([1.0, torch.inf]), torch.tensor([torch.nan, 0.0])
    for inputs, right in (
        ([[fine, fine]] * 3, True), ([[fine, fine], [fine, inf], [fine]], False), ([[nan, fine], [fine]], False),
        ([[fine], [-inf]], False), ([[fine]], True), ([[], [fine]], True), ([[inf], [nan], [inf]], False),
    ):  # fmt: skip
        n = len(inputs)
        try:
            run = student.run("everyone_finite", n, inputs)
        except StudentError as error:
            said = f"{error} {error.detail}"
            if not all(inputs) and EMPTY.search(said):
                raise StudentError(f"{error} A rank may hold no gradients: there `gradients` is an empty list. It has "
                                   "nothing wrong, and must ask the others all the same.", error.detail) \
                    from None  # fmt: skip
            if "all_reduce" in said and ("wait" in said or "never" in said):
                raise StudentError(f"{error} Every rank must call `all_reduce`, whatever it has found.", error.detail) \
                    from None  # fmt: skip
            raise
        own = [all(bool(x.isfinite().all()) for x in each) for each in inputs]
        for rank, got in enumerate(run.results):
            got = bool(got) if isinstance(got, (bool, int, float, Tensor)) else got
            if got is right:
                continue
            who = f"With {n} rank{'s' * (n != 1)}, where {_which(inputs)}, rank {rank}"
            student.expect(isinstance(got, bool), "{who} should return True or False.", who=who)
            if run.results == [not right] * n and not any(run.bytes_sent):
                raise NotRight(f"{who} says {got}. Is it the wrong way round? True means: take the step.")
            blind = [r for r, says in enumerate(run.results) if says is True and not own[r]]
            if blind:
                raise NotRight(
                    f"{who} says {got}, and so does rank {blind[0]}, which has one itself. `isfinite` is false for an "
                    "infinity and for a NaN. If you have seen it there, look at the reduction: ask whether any rank "
                    "has one, and not whether any is fine."
                )
            if got == own[rank] and n > 1:
                raise NotRight(f"{who} says {got}: it has looked at its own gradients only. Ask the others as well.")
            raise NotRight(f"{who} says {got}, and should say {right}.")
        if n > 1:
            student.expect(max(run.bytes_sent) <= 8 * n, "The answers are right, but a rank sent {got} bytes. One "
                           "number for each rank is enough.", got=max(run.bytes_sent))  # fmt: skip
    return "With 1, 2 and 3 ranks, one infinity or NaN on any of them makes all ranks say no, and else all say yes."


def _which(inputs: Sequence[Sequence[Tensor]]) -> str:
    bad = [rank for rank, each in enumerate(inputs) if not all(bool(x.isfinite().all()) for x in each)]
    if not bad:
        return "all gradients are finite"
    return f"rank{'s' * (len(bad) > 1)} {', '.join(map(str, bad))} {'have' if len(bad) > 1 else 'has'} an inf or a NaN"


@you_write(all_or_nobody)
def everyone_finite(gradients: Sequence[Tensor], group: Group) -> bool:
    """Whether no rank has an infinity or a NaN: the same answer on all of them."""
    bad = any(not g.isfinite().all() for g in gradients)
    found = torch.tensor([float(bad)])
    all_reduce(found, group, op="max")
    return found.item() == 0


# 4: a sum in 8 bits ------------------------------------------------------------------------------------------------


def eight_bits_travel_and_thirty_two_are_added(student: Reader) -> str:
    for n in (2, 4, 1):
        draw = torch.Generator().manual_seed(student.seed + n)
        inputs = [torch.randn(6 * n, generator=draw) * 10.0 ** -(rank % 2) for rank in range(n)]
        try:
            run = student.through("sum_in_eight_bits", n, inputs, _summed)
        except StudentError as error:
            raise StudentError(f"{error} {_likely(error)}".rstrip(), error.detail) from None
        right, exact = _right(inputs), torch.stack(inputs).sum(0)
        most = 2 * (n - 1) * (6 + 4)
        for rank, (got, kept) in enumerate(run.results):
            who = f"With {n} rank{'s' * (n != 1)}, on rank {rank}:"
            student.expect(torch.equal(kept, inputs[rank]), "{who} `x` has changed. Leave it as it is.", who=who)
            why = _of_sum(got, right, exact, inputs, rank)
            student.expect(not why, "{who} {why}", who=who, why=why)
        sent = max(run.bytes_sent)
        student.expect(
            sent <= most,
            "The sum is right, but with {n} ranks a rank sent {sent} bytes. Each part of 6 numbers is a message of 10 "
            "bytes, and {most} are enough: {why}", n=n, sent=sent, most=most,
            why="does every rank get every part? Only rank r needs the parts with number r."
            if sent >= (n - 1) * n * 10 else "is something sent in 32 bits?",
        )  # fmt: skip
    return (
        "With 2 and 4 ranks all of them have the same sum, added up in 32 bits, and each has sent "
        "2 (N-1)/N bytes for each number and a scale for each message."
    )


def _summed(fn: Callable[..., Any], x: Tensor, group: Group) -> tuple[Any, Tensor]:
    mine = x.clone()
    return fn(mine, group), mine


def _right(inputs: Sequence[Tensor]) -> Tensor:
    n = len(inputs)
    wide = [[unpack(pack(part)) for part in x.chunk(n)] for x in inputs]
    return torch.cat([unpack(pack(sum((x[r] for x in wide), torch.zeros(())))) for r in range(n)])


def _of_sum(got: Any, right: Tensor, exact: Tensor, inputs: Sequence[Tensor], rank: int) -> str:
    if not isinstance(got, Tensor):
        return "return the sum, a tensor."
    if got.dtype == torch.uint8:
        return "you returned bytes. `unpack` them."
    if got.shape != right.shape:
        return f"the sum has {tuple(got.shape)}, and x has {tuple(right.shape)}: is each part put back in its place?"
    if torch.allclose(got, right, rtol=1e-5, atol=1e-7):
        return ""
    n = len(inputs)
    part = len(right) // n
    if torch.allclose(got, right / n, rtol=1e-5):
        return "that is the average. The sum is asked for."
    if torch.allclose(got, exact, rtol=1e-6):
        return "the sum is exact, so it has travelled in more than 8 bits."
    whole = torch.stack([unpack(pack(x)) for x in inputs]).sum(0)
    if torch.allclose(got, whole, rtol=1e-5):
        return (
            "you packed the whole tensor with one scale, and every rank adds up everything. Pack each part by itself, "
            "and send part r to rank r alone."
        )
    wide = torch.cat([sum((unpack(pack(p[r])) for p in (x.chunk(n) for x in inputs)), torch.zeros(())) for r in
                      range(n)])  # fmt: skip
    if torch.allclose(got, wide, rtol=1e-5):
        return "the sums go to the others in 32 bits: `pack` each before it is gathered."
    own = slice(rank * part, rank * part + part)
    if torch.allclose(got[own], wide[own], rtol=1e-5):
        return (
            "this rank has its own part as it was before `pack`, so the ranks do not hold the same bits. Take what "
            "comes out of the all-gather on every rank."
        )
    if torch.allclose(got, torch.cat([unpack(pack(p)) for p in inputs[rank].chunk(n)]), rtol=1e-5):
        return "you have only packed and unpacked this rank's own numbers."
    off = float((got - exact).abs().max() / exact.abs().max())
    if off > 0.5:
        return "the numbers are far off. Codes cannot be added: `unpack` each message before you add."
    return (
        f"the sum is {off:.0%} off, and not that of parts which are each packed, added up in 32 bits, and packed again."
    )


def _likely(error: StudentError) -> str:
    said = f"{error} {error.detail}"
    if "uint8" in said or "Byte" in said:
        return "Messages are bytes: `unpack` each of them before you add."
    return ""


@you_write(eight_bits_travel_and_thirty_two_are_added)
def sum_in_eight_bits(x: Tensor, group: Group) -> Tensor:
    """x summed over the ranks: 8 bits travel, and 32 are added. N divides len(x)."""
    messages = [pack(part) for part in x.chunk(group.size)]
    mine = all_to_all(torch.cat(messages), group).chunk(group.size)
    total = sum(unpack(message) for message in mine)
    sums = all_gather(pack(total), group).chunk(group.size)  # type: ignore[arg-type]
    return torch.cat([unpack(message) for message in sums])
