"""Failures and differences in sentences: what was wrong, on which rank, with which value."""

from __future__ import annotations

import re
from string import Formatter
from typing import Any

import torch
from torch import Tensor

from labkit.cost.units import format_bytes
from labkit.world.job import with_lines_of_cells

LONGEST = 3000  # characters of a traceback that are shown


class _Words(Formatter):
    """str.format, and {x:bytes} for a number of bytes."""

    def format_field(self, value: Any, spec: str) -> str:
        return format_bytes(value) if spec == "bytes" else format(value, spec)


def fill(sentence: str, values: dict[str, Any]) -> str:
    """`sentence` with the values in its places; without values it is taken as it is."""
    return _Words().vformat(sentence, (), values) if values else sentence


def difference(rank: int, got: object, want: object) -> str:
    """How what a rank returned differs from what it should have."""
    if isinstance(want, list) and isinstance(got, list) and any(isinstance(item, Tensor) for item in want):
        if len(got) != len(want):
            return f"rank {rank} returned a list of {len(got)}; it should have {len(want)} entries."
        for number, (mine, right) in enumerate(zip(got, want, strict=True)):
            if not _alike(mine, right):
                return f"in entry {number} of its list: {difference(rank, mine, right)}"
    if not isinstance(want, Tensor):
        return f"rank {rank} returned {short(got)}; it should be {short(want)}."
    if not isinstance(got, Tensor):
        nothing = " Is there a return at the end?" if got is None else ""
        return f"rank {rank} returned {short(got)}; it should be a tensor of shape {list(want.shape)}.{nothing}"
    if got.shape != want.shape:
        return f"rank {rank} returned a tensor of shape {list(got.shape)}; it should be {list(want.shape)}."
    if got.dtype != want.dtype:
        return f"rank {rank} returned {name(got.dtype)}; its input is {name(want.dtype)}, and so is the result."
    wrong = (got != want).nonzero()
    place = wrong[0].tolist()
    here, there = got[tuple(place)].item(), want[tuple(place)].item()
    at = f"[{', '.join(map(str, place))}]"
    return (
        f"on rank {rank} {len(wrong):,} of {want.numel():,} entries are wrong; "
        f"entry {at} is {here:g} and should be {there:g}."
    )


def _alike(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    return type(a) is type(b) and not isinstance(a, Tensor) and a == b


def short(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {name(value.dtype)}{list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def cleaned(traceback: str) -> str:
    """A traceback without the frames of labkit and of libraries: the student's own lines, then the error.

    Lines of notebook cells are looked up here, where the notebook is; the rank that raised did not have them.
    """
    kept: list[str] = []
    keep = True
    for line in with_lines_of_cells(traceback).rstrip().splitlines():
        if frame := re.match(r'  File "?(.*?)"?, line \d+', line):
            keep = not re.search(r"[/\\](labkit|site-packages|dist-packages|lib[/\\]python[\d.]+)[/\\]", frame[1])
        elif not line.startswith("    "):
            keep = True
        if keep:
            kept.append(line)
    text = "\n".join(kept)
    return text if len(text) <= LONGEST else text[: LONGEST // 2] + "\n...\n" + text[-LONGEST // 2 :]
