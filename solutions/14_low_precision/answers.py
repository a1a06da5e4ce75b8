"""What the programs of the exercises return, or what well-known mistakes give: what their checks compare with."""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.chapters.c14_low_precision.wires import pack, unpack
from labkit.optim.precision import E4M3, round_to, scale_for

Pair = list[Tensor]


def remembered(inputs: list[list[list[Tensor]]], history: int, largest: float, mistake: str = "") -> list[Pair]:
    """By rank [scales, taken] of `my_scales`, or what a well-known mistake gives. inputs: by rank, step and tensor."""
    steps, tensors = len(inputs[0]), len(inputs[0][0])
    own = torch.tensor([[[_amax(x, mistake) for x in step] for step in mine] for mine in inputs])
    finite = own.isfinite().all(-1).all(0)  # by step
    kept = {"for ever": steps, "last": 1, "one more": history + 1, "one fewer": history - 1}.get(mistake, history)
    found = []
    for rank in range(len(inputs)):
        amaxes = own[rank] if mistake == "own" else own.amax(0)
        rows = []
        for step in range(steps):
            known = [s for s in range(step + (mistake == "current")) if finite[s] or mistake == "bad"]
            seen = amaxes[known[-kept:] if kept else []]
            if mistake == "bad":
                seen = torch.where(seen.isfinite(), seen, 0)
            top = seen.amax(0) if len(seen) else torch.zeros(tensors)
            scale = torch.where(top > 0, top / largest if mistake == "inverse" else largest / top, 1.0)
            rows.append(scale)
        found.append([torch.stack(rows), finite])
    return found


def _amax(x: Tensor, mistake: str) -> float:
    if not x.numel():
        return 0.0
    if not x.isfinite().all():
        return torch.inf
    return float(x.max().clamp(min=0) if mistake == "signed" else x.abs().max())


def in_parts(inputs: list[list[Tensor]], sizes: list[int], mistake: str = "") -> list[Pair]:
    """By rank [sums, left] of `my_parts`, or what a well-known mistake gives. inputs: by rank and step."""
    n = len(sizes)
    left = [torch.zeros(sum(sizes)) for _ in range(n)]
    sums: list[list[Tensor]] = [[] for _ in range(n)]
    for step in range(len(inputs[0])):
        sent = []
        for rank in range(n):
            x = inputs[rank][step]
            due = x.clone() if mistake == "forget" else x + left[rank]
            wide = unpack(pack(due)) if mistake == "one scale" else torch.cat([_through(p) for p in due.split(sizes)])
            if mistake == "exact":
                wide = due.clone()
            begin = sum(sizes[:rank])
            if mistake != "own":
                wide[begin : begin + sizes[rank]] = due[begin : begin + sizes[rank]]
            base = x if mistake == "gradient" else due
            left[rank] = wide - base if mistake == "sign" else base - wide
            sent.append(wide)
        total = torch.stack(sent).sum(0) / (n if mistake == "mean" else 1)
        for rank, part in enumerate(total.split(sizes)):
            sums[rank].append(part)
    return [[torch.stack(mine), owed] for mine, owed in zip(sums, left, strict=True)]


def _through(part: Tensor) -> Tensor:
    return unpack(pack(part)) if part.numel() else part


def in_blocks(parts: list[Tensor], block: int, mistake: str = "") -> list[Pair]:
    """By rank [narrow, scales] of `my_blocks`, or what a well-known mistake gives. parts: by rank, of one tensor."""
    whole = torch.cat(parts)
    numbers, begin = [], 0
    for part in parts:
        place = torch.arange(len(part)) + (0 if mistake == "anew" else begin)
        numbers.append(place // block)
        begin += len(part)
    found = []
    for rank, part in enumerate(parts):
        seen = {"own": [rank], "anew": [rank], "next": [r for r in (rank - 1, rank, rank + 1) if 0 <= r < len(parts)]}
        others = seen.get(mistake, range(len(parts)))
        scales = []
        for number in numbers[rank].unique().tolist():
            block_of_all = whole if mistake == "one" else torch.cat([parts[r][numbers[r] == number] for r in others])
            kind = {"exact": "float32", "nearest": "e8m0"}.get(mistake, "e8m0-up")
            scales.append(scale_for(block_of_all.abs().max(), E4M3, kind))
        scale = torch.stack(scales) if scales else torch.zeros(0)
        each = scale[numbers[rank] - numbers[rank][:1]]
        found.append([round_to(part * each, E4M3) / each, scale])
    return found
