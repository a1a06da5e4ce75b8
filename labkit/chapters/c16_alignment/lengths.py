"""Batches of sequences of unequal lengths on ranks: padded or packed, dealt by number or by tokens; drawn as rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from labkit import Group, book
from labkit.align import global_count, share, token_logprobs
from labkit.align.batching import Packed, largest_differencing, padded
from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.style import BLUE, ON_COLOUR, SERIES
from labkit.book.drawing.svg import Svg, text_width
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import seconds_text
from labkit.collectives import all_reduce
from labkit.models import GPT, GPTConfig
from labkit.models.threads import one_thread

ROOM = 128  # tokens of a row, and the longest sequence
CONFIG = GPTConfig(vocab=64, context=ROOM, layers=1, heads=2, width=32)
PER_POSITION = 1e-4  # seconds of a forward and a backward pass, on the virtual clock
HELL = "one long, fifteen short"
MIXES = {HELL: [ROOM] + [ROOM // 16] * 15}
TEXTBOOK = (2048, 128, 15)  # tokens of a long sequence and of short ones, and how many of these

WAYS = ("padded to the batch's longest", "padded to the rank's longest", "packed")

Pack = Callable[[Sequence[int], int], list[list[int]]]


def _drawn(count: int, seed: int) -> list[int]:
    """Lengths as alignment has them: a prompt and a response, both short or long."""
    draw = random.Random(f"lengths {seed}")
    return [max(4, min(ROOM, round(draw.lognormvariate(3.0, 0.9)))) for _ in range(count)]


MIXES["prompts and answers"] = _drawn(24, 3)
MIXES["all alike"] = [24] * 24


def sequences(mix: str) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randint(CONFIG.vocab, (n,), generator=draw) for n in MIXES[mix]]


@dataclass(frozen=True)
class Batch:
    """Of a rank: rows, each a list of (sequence, tokens), and how wide they are; its share of the loss, the norm of the
    whole gradient, and seconds in which it worked."""

    rows: tuple[tuple[tuple[int, int], ...], ...]
    width: int
    loss: float
    norm: float
    worked: float

    @property
    def positions(self) -> int:
        return len(self.rows) * self.width

    @property
    def tokens(self) -> int:
        return sum(n for row in self.rows for _, n in row)


def dealt(mix: str, deal: str, ranks: int) -> list[list[int]]:
    """The sequences of each rank: as many of them each, or as many tokens."""
    n = MIXES[mix]
    if deal == "same tokens each":
        return largest_differencing(n, ranks)
    return [list(range(r, len(n), ranks)) for r in range(ranks)]


def learned(group: Group, mix: str, mine: Sequence[int], rows: Sequence[Sequence[int]] | None, wide: int = 0) -> Batch:
    """A forward and a backward pass over this rank's rows, and the sum of the gradients.

    rows: indices into `mine` that share a row; without them a row for each sequence. wide: how wide rows are then; rows
    that are packed are as wide as the fullest of them.
    """
    own = [sequences(mix)[i] for i in mine]
    with one_thread():
        model = GPT(CONFIG, 4)
        tokens = global_count(sum(len(s) - 1 for s in own), group)
        loss = torch.zeros(())
        if rows is None:
            rows = [[i] for i in range(len(own))]
            tokens_bt, mask_bt = padded(own)
            more = (0, wide - tokens_bt.shape[1])
            tokens_bt, mask_bt = F.pad(tokens_bt, more), F.pad(mask_bt, more)
            mask_bt[:, 0] = False
            loss = share(-token_logprobs(model(tokens_bt), tokens_bt), mask_bt, tokens)
            loss.backward()
        else:
            wide = max(sum(len(own[i]) for i in row) for row in rows)
            packed = _in_rows(own, rows, wide)
            logits_btv = model(packed.tokens_bt, packed.positions_bt, packed.core)
            loss = share(-token_logprobs(logits_btv, packed.tokens_bt), packed.predicted_bt, tokens)
            loss.backward()
        worked = len(rows) * wide * PER_POSITION
        group.compute(worked)
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()])
        all_reduce(flat, group)
    shown = tuple(tuple((mine[i], len(own[i])) for i in row) for row in rows)
    return Batch(shown, wide, float(loss.detach()), float(flat.norm()), worked)


def _in_rows(own: Sequence[Tensor], rows: Sequence[Sequence[int]], wide: int) -> Packed:
    """`Packed`, in the rows that somebody else has chosen."""
    tokens_bt = torch.zeros(len(rows), wide, dtype=torch.int64)
    documents_bt, positions_bt = torch.full_like(tokens_bt, -1), torch.zeros_like(tokens_bt)
    for b, row in enumerate(rows):
        at = 0
        for i in row:
            n = len(own[i])
            tokens_bt[b, at : at + n], documents_bt[b, at : at + n] = own[i], i
            positions_bt[b, at : at + n] = torch.arange(n)
            at += n
    return Packed(tokens_bt, documents_bt, positions_bt, len(own))


def batch_said(run: Any) -> str:
    found: list[Batch] = run.results
    tokens, positions = (sum(getattr(one, what) for one in found) for what in ("tokens", "positions"))
    worked = [one.worked for one in found]
    slowest = max(range(len(found)), key=lambda r: worked[r])
    waited = (
        f"All ranks worked equally long, {seconds_text(max(worked))}."
        if max(worked) - min(worked) < 1e-9
        else f"Rank {slowest} worked longest, {seconds_text(worked[slowest])}, and the others waited for it: on "
        f"average the ranks worked {sum(worked) / len(worked) / max(worked):.0%} of that time."
    )
    return (
        f"**{positions:,} positions** were computed for {tokens:,} tokens, so {1 - tokens / positions:.0%} was "
        f"padding. {waited} The loss is {sum(one.loss for one in found):.5f} and the norm of the gradient "
        f"{found[0].norm:.5f}."
    )


def longest(pack: Pack | None, mix: str, deal: str, ranks: int = 4) -> int:
    """Positions of the rank with most of them: packed, or else padded to the longest of the batch."""
    most = 0
    for mine in dealt(mix, deal, ranks):
        sizes = [MIXES[mix][i] for i in mine]
        rows = pack(sizes, ROOM) if pack else [[i] for i in range(len(mine))]
        wide = max(sum(sizes[i] for i in row) for row in rows) if pack else max(MIXES[mix])
        most = max(most, len(rows) * wide)
    return most


def padding(pack: Pack, mix: str, deal: str, ranks: int = 4) -> float:
    """The part of the positions that is padding, if every rank packs what it is dealt."""
    positions = 0
    for mine in dealt(mix, deal, ranks):
        sizes = [MIXES[mix][i] for i in mine]
        rows = pack(sizes, ROOM)
        positions += len(rows) * max(sum(sizes[i] for i in row) for row in rows)
    return 1 - sum(MIXES[mix]) / positions


def batch(run: Any) -> book.Figure:
    """The rows of each rank: sequences, and what is padding."""
    found: list[Batch] = run.results
    said = f"{sum(len(one.rows) for one in found)} rows on {len(found)} ranks. What is crossed out is padding."
    rows: list[Row] = [
        {"rank": rank, "rows": len(one.rows), "sequences": sum(map(len, one.rows)), "tokens": one.tokens,
         "positions": one.positions, "worked": seconds_text(one.worked)}
        for rank, one in enumerate(found)
    ]  # fmt: skip
    svg = Svg(WIDTH, "The rows of each rank", said)
    top = (
        legend(svg, heading(svg, "emulated", said), [("a sequence", BLUE, "", ""), ("padding", "none", "x", "3 2")]) + 6
    )
    across, tall = (WIDTH - 84) / ROOM, 9.0
    y = top
    for rank, one in enumerate(found):
        svg.text(62, y + 9, f"rank {rank}", anchor="end")
        for row in one.rows:
            x = 70.0
            svg.rect(x, y, one.width * across, tall, "none", "x", dash="3 2")
            for k, (i, n) in enumerate(row):
                look = SERIES[k % 3]
                svg.rect(x, y, n * across, tall, look.colour, look.hatch, ON_COLOUR, stroke_width=0.6,
                         hover=f"sequence {i}: {n} tokens")  # fmt: skip
                x += n * across
            y += tall + 2
        y += 8 if one.rows else tall + 8
    return book.Figure("The rows of each rank", "emulated", said, rows, svg.render(y + 4))


def packed_rows(pack: Pack, mix: str = "prompts and answers") -> book.Figure:
    """Rows by the reader's own `pack`, and how many there were to be at least."""
    n = MIXES[mix]
    rows = pack(n, ROOM)
    least = -(-sum(n) // ROOM)
    said = (
        f"{len(n)} sequences with {sum(n):,} tokens lie in {len(rows)} rows of {ROOM}; fewer than {least} cannot hold "
        f"them. Padded to the longest they need {len(n)} rows of {max(n)}."
    )
    svg = Svg(WIDTH, "Packed rows", said)
    y = heading(svg, "simulated", said) + 4
    across, tall = (WIDTH - 84) / ROOM, 26.0
    for r, row in enumerate(rows):
        svg.text(62, y + 17, f"row {r}", anchor="end")
        svg.rect(70, y, ROOM * across, tall, "none", "x", dash="3 2")
        x = 70.0
        for k, i in enumerate(row):
            look = SERIES[k % 3]
            svg.rect(x, y, n[i] * across, tall, look.colour, "", ON_COLOUR)
            if text_width(str(n[i]), 11) + 4 < n[i] * across:
                svg.text(x + n[i] * across / 2, y + 17, str(n[i]), 11, "middle", on_colour=True)
            x += n[i] * across
        y += tall + 4
    table: list[Row] = [
        {"row": r, "sequences": ", ".join(str(n[i]) for i in row), "free": ROOM - sum(n[i] for i in row)}
        for r, row in enumerate(rows)
    ]
    return book.Figure("Packed rows", "simulated", said, table, svg.render(y + 4))


# Means over ranks ----------------------------------------------------------------------------------------------------


def two_means(group: Group, mix: str) -> tuple[int, float]:
    """The tokens of this rank, and how far the mean of the ranks' means is from the mean over all tokens."""
    own = [sequences(mix)[i] for i in dealt(mix, "same number each", group.size)[group.rank]]
    counted = sum(len(s) - 1 for s in own)
    with one_thread():
        found = []
        for total in (global_count(counted, group), counted * group.size):
            model = GPT(CONFIG, 4)
            tokens_bt, mask_bt = padded(own)
            mask_bt[:, 0] = False
            share(-token_logprobs(model(tokens_bt), tokens_bt), mask_bt, total).backward()
            flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            found.append(all_reduce(flat, group))
    exact, other = found
    return counted, float((other - exact).norm() / exact.norm())
