"""A response written token by token with the reader's attention, and what that saves; what a GPU does meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit import Group, book, cost
from labkit.book.drawing.figure import WIDTH, heading, legend
from labkit.book.drawing.style import BLUE, GREY, ON_COLOUR, ORANGE
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.models import GPT, GPTConfig
from labkit.models.attention import attend as attend_all, heads_of
from labkit.models.gpt import Attention
from labkit.models.threads import one_thread

CONFIG = GPTConfig(vocab=64, context=160, layers=2, heads=8, width=64, kv_heads=2)
PROMPT = 16
Attend = Callable[..., Tensor]


@dataclass
class Cache:
    """Of one sequence in one layer: keys and values of the tokens so far, (t, g, k) each; nothing at first."""

    keys: Tensor
    values: Tensor

    @classmethod
    def empty(cls, groups: int, width: int) -> Cache:
        return cls(torch.zeros(0, groups, width), torch.zeros(0, groups, width))


@dataclass(frozen=True)
class Written:
    """Of a rank: how many tokens both ways agree on, positions that went through the model with the cache and without
    it, and bytes of the cache in the end."""

    new: int
    same: int
    positions: tuple[int, int]
    cache: int


@torch.no_grad()
def written(group: Group, attend: Attend, new: int) -> Written:
    """Each rank goes on from a prompt of its own, greedily, twice: with `attend` and a cache, and without."""
    with one_thread():
        model = GPT(CONFIG, 3)
        draw = torch.Generator().manual_seed(group.rank)
        prompt = torch.randint(CONFIG.vocab, (PROMPT,), generator=draw).tolist()
        cached, caches = _with_cache(model, prompt, new, attend)
        plain, positions = list(prompt), 0
        for _ in range(new):
            positions += len(plain)
            plain.append(int(model(torch.tensor([plain]))[0, -1].argmax()))
    same = sum(a == b for a, b in zip(cached[PROMPT:], plain[PROMPT:], strict=True))
    return Written(new, same, (PROMPT + new - 1, positions),
                   sum(c.keys.nbytes + c.values.nbytes for c in caches))  # fmt: skip


def _with_cache(model: GPT, prompt: list[int], new: int, attend: Attend) -> tuple[list[int], list[Cache]]:
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    caches = [Cache.empty(CONFIG.groups, CONFIG.width // CONFIG.heads) for _ in layers]
    for layer, cache in zip(layers, caches, strict=True):
        layer.core = _core(attend, cache)
    tokens, logits = list(prompt), torch.empty(0)
    try:
        for position in range(len(prompt) + new - 1):
            logits = model(torch.tensor([[tokens[position]]]), torch.tensor([position]))[0, -1]
            if position >= len(prompt) - 1:
                tokens.append(int(logits.argmax()))
    finally:
        for layer in layers:
            layer.core = attend_all
    return tokens, caches


def _core(attend: Attend, cache: Cache) -> Callable[..., Tensor]:
    def core(qkv_1nc: Tensor, heads: int, groups: int, dropout: float, rotary: bool) -> Tensor:
        q_h1k, k_g1k, v_g1k = (x[0] for x in heads_of(qkv_1nc, heads, groups))
        return attend(q_h1k[:, 0], k_g1k[:, 0], v_g1k[:, 0], cache).flatten()[None, None]

    return core


def passes(run: Any) -> book.Figure:
    """Which positions go through the model for each token that is written: with the cache, and without."""
    one: Written = run.results[0]
    few, many = one.positions
    said = (
        f"Each row is a pass. For {one.new} tokens after a prompt of {PROMPT}, {many:,} positions went through the "
        f"model without a cache, and {few} with it. Both ways wrote the same {one.same} of {one.new} tokens."
    )
    svg = Svg(WIDTH, "Positions that went through the model", said)
    top = heading(svg, "measured", said) + 26
    side, tall = 300.0, 200.0
    across, down = side / (PROMPT + one.new), tall / one.new
    for n, (name, cached) in enumerate((("without a cache", False), ("with it", True))):
        x = 40 + n * (side + 60)
        svg.text(x + side / 2, top - 10, name, 12.5, "middle", bold=True)
        svg.rect(x, top, side, tall, dash="2 3")
        for step in range(one.new):
            upto = PROMPT + step
            begin = upto - 1 if cached and step else 0
            svg.rect(x + begin * across, top + step * down, (upto - begin) * across, down, BLUE, "", "none")
        svg.text(x + side / 2, top + tall + 18, "position in the text", 11.5, "middle")
    svg.text(8, top - 10, "first token", 11)
    svg.text(8, top + tall + 18, "last", 11)
    rows: list[Row] = [{"": "without a cache", "positions": many}, {"": "with it", "positions": few}]
    return book.Figure("Positions that went through the model", "measured", said, rows, svg.render(top + tall + 30))


# A GPU while it decodes ---------------------------------------------------------------------------------------------

LAYERS, WIDE, KV = 80, 8192, 1024  # of Llama-2-70B: layers, width, and width of keys of its 8 groups
PARAMS, CONTEXT = 70e9, 1024
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
GPUS = 8


def used(batch: int, context: int = CONTEXT) -> float:
    """Of the GPUs' FLOP/s, the part that a decoding step of so many sequences can use, with so long caches."""
    return cost.roofline_share(cost.decoding_intensity(PARAMS, batch, context, LAYERS, WIDE, KV))


def tokens_a_second(batch: int) -> float:
    """Of the 70B model on eight GPUs, each with an eighth of everything."""
    return batch / cost.decoding_seconds(PARAMS, batch, CONTEXT, LAYERS, WIDE, KV, GPUS)


def roofline() -> book.Figure:
    """Which part of its FLOP/s a GPU uses, by sequences that are written together."""
    said = (
        f"With one sequence the GPUs use {used(1):.2%} of their FLOP/s, with 16 sequences {used(16):.1%}, and with 256 "
        f"{used(256):.0%}. If there were no caches to read, it would be {used(256, 0):.0%} with 256."
    )
    caches = {f"with caches of {CONTEXT:,} tokens": CONTEXT, "without caches to read": 0}
    lines = {name: [(float(b), 100 * used(b, context)) for b in BATCHES] for name, context in caches.items()}
    lines["all arithmetic busy"] = [(float(b), 100.0) for b in BATCHES]
    return book.lines(lines, x="sequences written together", y="percent of the FLOP/s", log="xy",
                      title="A 70B model writes on eight H100s", badge="simulated", sentence=said)  # fmt: skip


# A token, drawn -----------------------------------------------------------------------------------------------------

WORDS = ("The", "cat", "sat", "on", "the", "mat")


def growing() -> book.Player:
    """A cache that grows by a column for each token, and what a new token reads."""
    frames, rows = [], []
    for n in range(2, len(WORDS)):
        said = (
            f"\u201c{WORDS[n]}\u201d is written. Its query reads the keys and values of all {n + 1} tokens, and of "
            f"these only its own are new. All weights of the model were read too, for this one token."
        )
        frames.append((_column(n, said), said))
        rows.append({"token": WORDS[n], "new keys": 1, "keys read": n + 1})
    return book.play(frames, title="One token at a time", badge="simulated", rows=rows, still=-1, label="Token")


def _column(n: int, said: str) -> str:
    svg = Svg(WIDTH, "One token at a time", said)
    items = [("kept from before", BLUE, "", ""), ("new", ORANGE, "/", ""), ("not written yet", "none", "", "3 2")]
    top = legend(svg, heading(svg, "simulated", said), items) + 10
    for row, name in enumerate(("token", "keys", "values")):
        y = top + row * 48
        svg.text(14, y + 23, name, 12)
        for t, word in enumerate(WORDS):
            x = 90 + t * 104
            colour, hatch = (BLUE, "") if t < n else (ORANGE, "/")
            if t > n:
                svg.rect(x, y, 90, 36, "none", "", dash="3 2")
            elif row:
                svg.rect(x, y, 90, 36, colour, hatch, ON_COLOUR)
            else:
                svg.rect(x, y, 90, 36, GREY if t < n else ORANGE, "", ON_COLOUR)
                svg.text(x + 45, y + 23, word, 13, "middle", on_colour=True)
    y = top + 3 * 48 + 12
    x = 90 + n * 104 + 45
    svg.rect(x - 45, y, 90, 30, "none", "")
    svg.text(x, y + 20, "query", 12, "middle")
    for t in range(n + 1):
        at = 90 + t * 104 + 45
        svg.line(x, y, at, top + 2 * 48 + 38, faint=t < n)
        svg.arrow_head(at, top + 2 * 48 + 37, at - x, top + 2 * 48 + 38 - y, 6)
    return svg.render(y + 44)
