"""A small GPT: a decoder-only transformer over bytes (Radford et al. 2019, pre-norm).

Names of tensors end in their shape: b sequences, t positions, d width, h heads, k width of a head
(d = h * k), v vocabulary. So `x_btd` is (sequences, positions, width).
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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

    def __post_init__(self) -> None:
        for name in ("vocab", "context", "layers", "heads", "width", "expansion"):
            if getattr(self, name) < 1:
                raise ValueError(f"GPTConfig({name}={getattr(self, name)}): {name} must be at least 1")
        if self.width % self.heads:
            raise ValueError(
                f"GPTConfig(width={self.width}, heads={self.heads}): every head gets width / heads "
                f"columns; choose a width that {self.heads} divides"
            )

    @property
    def num_parameters(self) -> int:
        """(v + c) d + layers ((4 + 2 e) d^2 + (9 + e) d) + 2 d, and v d more when not tied.

        Here c is the context and e the expansion. In a layer, attention has 4 d^2 weights and 4 d
        biases, the feed-forward part 2 e d^2 and (e + 1) d, and two LayerNorms 4 d together. With
        e = 4 that is the well-known 12 d^2 a layer (Kaplan et al. 2020, table 1) plus 13 d.
        """
        d, e = self.width, self.expansion
        embeddings = (self.vocab + self.context) * d
        layer = (4 + 2 * e) * d * d + (9 + e) * d
        scores = 0 if self.tied else self.vocab * d
        return embeddings + self.layers * layer + 2 * d + scores


class Attention(nn.Module):
    """Causal self-attention: position t reads positions 0..t (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x_btd: Tensor) -> Tensor:
        """(b, t, d) -> (b, t, d)."""
        b, t, d = x_btd.shape
        qkv_3bhtk = self.qkv(x_btd).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q_bhtk, k_bhtk, v_bhtk = qkv_3bhtk
        y_bhtk = F.scaled_dot_product_attention(q_bhtk, k_bhtk, v_bhtk, is_causal=True)
        y_btd = y_bhtk.transpose(1, 2).reshape(b, t, d)
        return self.out(y_btd)


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
        self.feed_forward = FeedForward(config)

    def forward(self, x_btd: Tensor) -> Tensor:
        """(b, t, d) -> (b, t, d)."""
        x_btd = x_btd + self.attention(self.norm1(x_btd))
        return x_btd + self.feed_forward(self.norm2(x_btd))


class GPT(nn.Module):
    """Token and position embeddings, `config.layers` blocks, a LayerNorm, a score for each symbol.

    The weights depend on `config` and `seed` only. `config.num_parameters` says how many there are.
    """

    def __init__(self, config: GPTConfig | None = None, seed: int = 0) -> None:
        super().__init__()
        self.config = config = config or GPTConfig()
        with seeded(seed):
            self.tokens = nn.Embedding(config.vocab, config.width)
            self.positions = nn.Embedding(config.context, config.width)
            self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
            self.norm = nn.LayerNorm(config.width)
            self.scores = nn.Linear(config.width, config.vocab, bias=False)
            self._draw_weights()
        if config.tied:
            self.scores.weight = self.tokens.weight

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
                adds_to_stream = name.endswith(("attention.out.weight", "feed_forward.down.weight"))
                scale = math.sqrt(2 * self.config.layers) if adds_to_stream else 1.0
                nn.init.normal_(p, std=std / scale)

    def forward(self, tokens_bt: Tensor) -> Tensor:
        """Scores (logits) of the next symbol at each position: (b, t) int64 -> (b, t, v).

        Raises ValueError when t is beyond the context: no position embedding exists for it.
        """
        t = tokens_bt.shape[1]
        if t > self.config.context:
            raise ValueError(
                f"{t} positions, but this model has {self.config.context}: cut the input, "
                f"or build it with GPTConfig(context={t})"
            )
        positions_t = torch.arange(t, device=tokens_bt.device)
        x_btd = self.tokens(tokens_bt) + self.positions(positions_t)
        for block in self.blocks:
            x_btd = block(x_btd)
        return self.scores(self.norm(x_btd))


def next_token_loss(scores_btv: Tensor, targets_bt: Tensor) -> Tensor:
    """Mean cross-entropy in nats a symbol, a scalar. Guessing among 256 at random costs ln 256 = 5.55."""
    return F.cross_entropy(scores_btv.flatten(0, 1), targets_bt.flatten())
