"""Plain single-device modules: what every distributed strategy is checked against.

Each model is a function of its configuration and a seed: two ranks that build the same model
with the same seed hold the same weights, with no message between them.
"""

from labkit.models.cnn import CNN, CNNConfig
from labkit.models.dlrm import DLRM, DLRMConfig
from labkit.models.gpt import GPT, GPTConfig, next_token_loss
from labkit.models.mlp import MLP, MLPConfig
from labkit.models.moe import MoE, MoEConfig
from labkit.models.scalar_gpt import ScalarGPT
from labkit.models.weights import flat_gradient, num_parameters, seeded, state

__all__ = [
    "CNN",
    "DLRM",
    "GPT",
    "MLP",
    "MoE",
    "CNNConfig",
    "DLRMConfig",
    "GPTConfig",
    "MLPConfig",
    "MoEConfig",
    "ScalarGPT",
    "flat_gradient",
    "next_token_loss",
    "num_parameters",
    "seeded",
    "state",
]
