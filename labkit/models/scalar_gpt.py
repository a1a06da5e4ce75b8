"""A GPT with a scalar head: a number at each position in the place of the next token's logits.

A reward model reads the number at the last token of a response, a critic those at all tokens (Ouyang et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from labkit.models.gpt import GPT, GPTConfig


class ScalarGPT(GPT):
    """`GPT(config, seed)` whose last layer is (width -> 1). It begins with zeros, so all numbers are 0 at first.

    Has config.num_parameters - v d (if not tied) + d + 1 parameters.
    """

    def __init__(self, config: GPTConfig | None = None, seed: int = 0) -> None:
        super().__init__(replace(config or GPTConfig(), tied=False), seed)
        self.lm_head = nn.Linear(self.config.width, 1)
        nn.init.zeros_(self.lm_head.weight)
        nn.init.zeros_(self.lm_head.bias)

    @classmethod
    def of(cls, model: GPT) -> ScalarGPT:
        """With copies of the embeddings and layers of `model`, and a new head."""
        made = cls(model.config).to(model.tokens.weight)
        new = made.lm_head.state_dict(prefix="lm_head.")
        made.load_state_dict(model.state_dict() | new)
        return made

    def forward(
        self, tokens_bt: Tensor, positions: Tensor | None = None, core: Callable[..., Tensor] | None = None
    ) -> Tensor:
        """(b, t) int64 -> (b, t): a number for each position, which has read it and those before it."""
        return super().forward(tokens_bt, positions, core)[..., 0]


def before(x_bt: Tensor) -> Tensor:
    """Entry t gets what stands at t - 1, and entry 0 gets 0: what was said before token t was there."""
    return torch.nn.functional.pad(x_bt[:, :-1], (1, 0))
