"""One small language model for each of many seeds, trained side by side: no seed sees another one's numbers.

From the last 8 bytes to the next one: embeddings, one hidden layer, logits (Bengio et al. 2003, without the direct
connections). Tensors begin with the seed: s seeds, n samples, c bytes, d width of an embedding, h hidden, v symbols.
Sums of losses over seeds have gradients that fall apart by seed, and AdamW works number by number: so one optimizer
trains all seeds as each would be by itself, at a fraction of the time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CONTEXT, WIDTH, HIDDEN, VOCABULARY = 8, 16, 64, 256


class Stacked(nn.Module):
    """The models of `seeds`; weights of a seed do not depend on the others."""

    def __init__(self, seeds: Sequence[int]) -> None:
        super().__init__()
        if not seeds:
            raise ValueError("seeds=[]: at least one")
        self.seeds = tuple(seeds)
        drawn = [torch.Generator().manual_seed(seed) for seed in self.seeds]

        def normal(*shape: int, deviation: float) -> nn.Parameter:
            return nn.Parameter(torch.stack([deviation * torch.randn(*shape, generator=g) for g in drawn]))

        inputs, count = CONTEXT * WIDTH, len(self.seeds)
        self.embedding_svd = normal(VOCABULARY, WIDTH, deviation=1.0)
        self.hidden_sxh = normal(inputs, HIDDEN, deviation=1 / math.sqrt(inputs))
        self.hidden_bias_s1h = nn.Parameter(torch.zeros(count, 1, HIDDEN))
        self.scores_shv = normal(HIDDEN, VOCABULARY, deviation=1 / math.sqrt(HIDDEN))
        self.scores_bias_s1v = nn.Parameter(torch.zeros(count, 1, VOCABULARY))

    def forward(self, x_snc: Tensor) -> Tensor:
        """uint8 of shape (s, n, CONTEXT) -> logits (s, n, v)."""
        s, n, c = x_snc.shape
        first_of_seed = VOCABULARY * torch.arange(s)[:, None, None]
        bytes_snc = x_snc.long() + first_of_seed
        x_snx = F.embedding(bytes_snc, self.embedding_svd.flatten(0, 1)).view(s, n, c * WIDTH)
        hidden_snh = torch.tanh(torch.baddbmm(self.hidden_bias_s1h, x_snx, self.hidden_sxh))
        return torch.baddbmm(self.scores_bias_s1v, hidden_snh, self.scores_shv)

    def losses(self, samples_snc: Tensor) -> Tensor:
        """Mean cross-entropy of each seed in nats, shape (s,). samples: (s, n, CONTEXT + 1), the target last."""
        scores_snv = self(samples_snc[..., :-1])
        each = F.cross_entropy(scores_snv.flatten(0, 1), samples_snc[..., -1].long().flatten(), reduction="none")
        return each.view(samples_snc.shape[:2]).mean(1)
