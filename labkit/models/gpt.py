"""A small GPT: a decoder-only transformer over bytes (Radford et al. 2019, pre-norm).

Names of tensors end in their shape: b sequences, t positions, d width, h heads, k width of a head
(d = h * k), v vocabulary. So `x_btd` is (sequences, positions, width). `attention.py` has what heads do.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.models.attention import attend
from labkit.models.moe import MoE, MoEConfig
from labkit.models.weights import seeded


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT. The defaults give about 0.1 million parameters and learn in seconds."""

    vocab: int = 256  # one symbol a byte
    context: int = 64  # positions: the longest input
    layers: int = 2
    heads: int = 4
    width: int = 64
    expansion: int = 4  # hidden width of the feed-forward part, in units of `width`
    tied: bool = True  # one matrix both embeds tokens and scores them (Press & Wolf 2017)
    kv_heads: int | None = None  # heads of keys and values, each read by heads / kv_heads queries; None: `heads`
    dropout: float = 0.0  # how many numbers training sets to 0: in the embeddings, attention, and what layers add
    moe: MoEConfig | None = None  # a mixture of experts in the place of every feed-forward part
    rotary: bool = False  # positions turn queries and keys (Su et al. 2021, "RoFormer"); none are added to embeddings

    def __post_init__(self) -> None:
        for name in ("vocab", "context", "layers", "heads", "width", "expansion"):
            if getattr(self, name) < 1:
                raise ValueError(f"GPTConfig({name}={getattr(self, name)}): {name} must be at least 1")
        if self.width % self.heads:
            raise ValueError(
                f"GPTConfig(width={self.width}, heads={self.heads}): every head gets width / heads "
                f"columns; choose a width that {self.heads} divides"
            )
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            fit = [n for n in range(1, self.heads + 1) if self.heads % n == 0]
            raise ValueError(
                f"GPTConfig(heads={self.heads}, kv_heads={self.kv_heads}): every head of keys and values serves "
                f"as many heads; choose one of {', '.join(map(str, fit))}"
            )
        if self.rotary and self.width // self.heads % 2:
            raise ValueError(
                f"GPTConfig(width={self.width}, heads={self.heads}, rotary=True): numbers are turned in pairs, so the "
                f"width of a head, {self.width // self.heads}, must be even"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"GPTConfig(dropout={self.dropout}): the share of numbers set to 0, from 0 to below 1")

    @property
    def groups(self) -> int:
        """Heads of keys and values: `kv_heads`, or as many as there are heads."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def qkv_sections(self) -> tuple[int, int, int]:
        """Columns of queries, keys and values, side by side in the output of `Attention.qkv`."""
        narrow = self.groups * (self.width // self.heads)
        return self.width, narrow, narrow

    @property
    def num_parameters(self) -> int:
        """(v + c) d + layers ((2 + 2 e) d^2 + 2 d n + (7 + e) d + 2 n) + 2 d, and v d more when not tied.

        Rotary positions have no c d, and a mixture has its own number in the place of the feed-forward part. Here c is
        the context, e the expansion, and n the columns of the keys: d, or d kv_heads / heads. In a layer, attention
        has 2 d^2 + 2 d n weights and 2 d + 2 n biases, the feed-forward part 2 e d^2 and (e + 1) d, and two LayerNorms
        4 d together. With n = d and e = 4 that is the well-known 12 d^2 a
        layer (Kaplan et al. 2020, table 1) plus 13 d.
        """
        d, e, n = self.width, self.expansion, self.qkv_sections[1]
        embeddings = (self.vocab + (0 if self.rotary else self.context)) * d
        layer = (2 + 2 * e) * d * d + 2 * d * n + (7 + e) * d + 2 * n
        if self.moe is not None:
            layer += self.moe.num_parameters(d) - (2 * e * d * d + (e + 1) * d)
        logits = 0 if self.tied else self.vocab * d
        return embeddings + self.layers * layer + 2 * d + logits


class Attention(nn.Module):
    """Causal self-attention. `core` does what lies between the two linear maps: `attend`, or one over several ranks.

    A call may bring a core of its own, one that knows its batch: attention of packed rows, for example.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads, self.groups, self.dropout = config.heads, config.groups, config.dropout
        self.rotary, self.core = config.rotary, attend
        self.qkv = nn.Linear(config.width, sum(config.qkv_sections))
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x_btd: Tensor, core: Callable[..., Tensor] | None = None) -> Tensor:
        """(b, t, d) -> (b, t, d)."""
        dropout = self.dropout if self.training else 0.0
        return self.out((core or self.core)(self.qkv(x_btd), self.heads, self.groups, dropout, self.rotary))


class FeedForward(nn.Module):
    """Two linear maps with a GELU between, applied to each position by itself."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.expansion * config.width)
        self.down = nn.Linear(config.expansion * config.width, config.width)

    def forward(self, x_btd: Tensor) -> Tensor:
        """(b, t, d) -> (b, t, d)."""
        return self.down(F.gelu(self.up(x_btd)))


class Block(nn.Module):
    """One layer: attention, then feed-forward, each added to the stream that it read, normalised."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.feed_forward: nn.Module = FeedForward(config) if config.moe is None else MoE(config.width, config.moe)
        self.dropout = config.dropout

    def forward(self, x_btd: Tensor, core: Callable[..., Tensor] | None = None) -> Tensor:
        """(b, t, d) -> (b, t, d)."""
        x_btd = x_btd + F.dropout(self.attention(self.norm1(x_btd), core), self.dropout, self.training)
        return x_btd + F.dropout(self.feed_forward(self.norm2(x_btd)), self.dropout, self.training)


class GPT(nn.Module):
    """Token and position embeddings, `config.layers` blocks, a LayerNorm, a score for each symbol.

    The weights depend on `config` and `seed` only. `config.num_parameters` says how many there are.
    """

    def __init__(self, config: GPTConfig | None = None, seed: int = 0) -> None:
        super().__init__()
        self.config = config = config or GPTConfig()
        with seeded(seed):
            self.tokens = nn.Embedding(config.vocab, config.width)
            self.positions = None if config.rotary else nn.Embedding(config.context, config.width)
            self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
            self.norm = nn.LayerNorm(config.width)
            self.lm_head = nn.Linear(config.width, config.vocab, bias=False)
            self._draw_weights()
        if config.tied:
            self.lm_head.weight = self.tokens.weight

    def _draw_weights(self) -> None:
        """Normal weights as in GPT-2, where 0.02 suits a width of 768; a narrower model needs larger ones.

        A sum over d inputs has sqrt(d) times their spread, so 0.02 sqrt(768 / d) keeps it as in GPT-2.
        Where a layer adds to the stream weights are smaller (Radford et al. 2019, 2.3): there are two
        additions a layer, and dividing by sqrt(2 layers) keeps the stream from growing with depth.
        """
        std = 0.02 * math.sqrt(768 / self.config.width)
        for name, p in self.named_parameters():
            if "norm" in name:
                continue  # LayerNorm starts as the identity: ones and zeros
            if name.endswith("bias"):
                nn.init.zeros_(p)
            else:
                adds_to_stream = name.endswith(("attention.out.weight", "down.weight"))
                scale = math.sqrt(2 * self.config.layers) if adds_to_stream else 1.0
                nn.init.normal_(p, std=std / scale)

    def forward(
        self, tokens_bt: Tensor, positions: Tensor | None = None, core: Callable[..., Tensor] | None = None
    ) -> Tensor:
        """Logits of the next token at each position: (b, t) int64 -> (b, t, v).

        positions: where in their sequence the tokens stand, (t,) or (b, t); without them, from 0 on. Raises ValueError
        when one is beyond the context: no position embedding exists for it. core: what attends in this call, in the
        place of each layer's own `core`; where positions are rotary, it has to know them too.
        """
        if positions is None:
            positions = torch.arange(tokens_bt.shape[1], device=tokens_bt.device)
        check_positions(int(positions.max()) + 1 if positions.numel() else 0, self.config)
        x_btd = self.tokens(tokens_bt)
        if self.positions is not None:
            x_btd = x_btd + self.positions(positions)
        x_btd = F.dropout(x_btd, self.config.dropout, self.training)
        for block in self.blocks:
            x_btd = block(x_btd) if core is None else block(x_btd, core)  # a wrapped block may know of no core
        return self.lm_head(self.norm(x_btd))


def check_positions(t: int, config: GPTConfig) -> None:
    """Raise ValueError where an input has more positions than `config.context`."""
    if t > config.context:
        raise ValueError(
            f"{t} positions, but this model has {config.context}: cut the input, "
            f"or build it with GPTConfig(context={t})"
        )


def next_token_loss(scores_btv: Tensor, targets_bt: Tensor) -> Tensor:
    """Mean cross-entropy in nats a symbol, a scalar. Guessing among 256 at random costs ln 256 = 5.55."""
    return F.cross_entropy(scores_btv.flatten(0, 1), targets_bt.flatten())
