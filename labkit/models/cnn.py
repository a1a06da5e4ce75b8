"""A convolutional network for small square images: two convolutions, one pooling, one linear layer.

There is no batch normalisation: it would make an example's output depend on its neighbours in the
batch, and so on how the batch was cut over ranks.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from labkit.models.weights import seeded


@dataclass(frozen=True)
class CNNConfig:
    """The defaults fit the 8 x 8 digits of `labkit.data.digits`."""

    side: int = 8  # height and width of an image, in pixels; even
    colours: int = 1
    channels: int = 16  # of the first convolution; the second has twice as many
    classes: int = 10

    def __post_init__(self) -> None:
        for name in ("side", "colours", "channels", "classes"):
            if getattr(self, name) < 1:
                raise ValueError(f"CNNConfig({name}={getattr(self, name)}): {name} must be at least 1")
        if self.side % 2:
            raise ValueError(f"CNNConfig(side={self.side}): pooling halves the side; choose an even one")

    @property
    def num_parameters(self) -> int:
        """(9 colours + 1) c + (9 c + 1) 2 c + (2 c (side / 2)^2 + 1) classes, with c = channels."""
        c = self.channels
        features = 2 * c * (self.side // 2) ** 2
        return (9 * self.colours + 1) * c + (9 * c + 1) * 2 * c + (features + 1) * self.classes


class CNN(nn.Module):
    """3 x 3 convolution, ReLU, 3 x 3 convolution, ReLU, 2 x 2 max-pooling, linear.

    The weights depend on `config` and `seed` only.
    """

    def __init__(self, config: CNNConfig | None = None, seed: int = 0) -> None:
        super().__init__()
        self.config = config = config or CNNConfig()
        c = config.channels
        with seeded(seed):
            self.conv1 = nn.Conv2d(config.colours, c, kernel_size=3, padding=1)
            self.conv2 = nn.Conv2d(c, 2 * c, kernel_size=3, padding=1)
            self.head = nn.Linear(2 * c * (config.side // 2) ** 2, config.classes)

    def forward(self, x_bchw: Tensor) -> Tensor:
        """(b, colours, side, side) -> logits (b, classes)."""
        x_bchw = F.relu(self.conv1(x_bchw))
        x_bchw = F.max_pool2d(F.relu(self.conv2(x_bchw)), 2)
        return self.head(x_bchw.flatten(1))
