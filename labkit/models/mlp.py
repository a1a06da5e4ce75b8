"""A multilayer perceptron: the smallest model with layers worth distributing."""

from dataclasses import dataclass
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from labkit.models.weights import seeded


@dataclass(frozen=True)
class MLPConfig:
    """Widths from input to output; the defaults fit the 8 x 8 digits of `labkit.data.digits`."""

    widths: tuple[int, ...] = (64, 128, 128, 10)

    def __post_init__(self) -> None:
        if len(self.widths) < 2 or min(self.widths) < 1:
            raise ValueError(
                f"MLPConfig(widths={self.widths}): give an input and an output width, each at least 1, "
                f"such as (64, 128, 10)"
            )

    @property
    def num_parameters(self) -> int:
        """Sum over layers of (inputs + 1) * outputs: a weight for each pair and a bias for each output."""
        return sum((i + 1) * o for i, o in pairwise(self.widths))


class MLP(nn.Module):
    """Linear layers with a ReLU between them. The weights depend on `config` and `seed` only."""

    def __init__(self, config: MLPConfig | None = None, seed: int = 0) -> None:
        super().__init__()
        self.config = config = config or MLPConfig()
        with seeded(seed):
            self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(config.widths))

    def forward(self, x: Tensor) -> Tensor:
        """(b, ...) with widths[0] numbers an example, so images too -> logits (b, widths[-1])."""
        x_bd = x.flatten(1)
        for layer in self.layers[:-1]:
            x_bd = F.relu(layer(x_bd))
        return self.layers[-1](x_bd)
