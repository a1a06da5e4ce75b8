"""The model that is to be trained: its sizes, its parameters part by part, and the operations that a token takes.

One description for GPT and Llama, dense or with experts. Matrix products are counted as 2 operations for each weight
and token; attention adds 4 s (heads d) for each token over a sequence of s (Narayanan et al. 2021, appendix; Chowdhery
et al. 2022, appendix B), in full, whether or not a kernel skips the half that a causal mask throws away.
"""

from __future__ import annotations

from dataclasses import dataclass

from labkit.cost.refuse import divides, positive, whole

__all__ = ["MODELS", "Model"]


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer.

    layers, hidden, heads: as everywhere. kv_heads: heads of keys and values, as many as heads if 0. inside: width of
    the feed-forward part, 4 hidden if 0. gated: three products there and not two (SwiGLU). vocabulary, sequence: in
    tokens. tied: the input and the output embedding are one matrix. positions: learned ones, that many, 0 for none.
    biases: each product has one, and each norm (GPT). dropout: masks are kept.

    experts: feed-forward parts a layer, each `expert_inside` wide; a token goes to `top_k` of them, and to `shared`
    more that every token visits. 0 for a dense model. skew: tokens of the expert rank that gets most, over the mean:
    the others wait for it. A router that balances has 1.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int = 0
    inside: int = 0
    gated: bool = False
    vocabulary: int = 51_200
    sequence: int = 2048
    tied: bool = True
    positions: int = 0
    biases: bool = False
    dropout: bool = False
    experts: int = 0
    top_k: int = 0
    shared: int = 0
    expert_inside: int = 0
    skew: float = 1.0

    def __post_init__(self) -> None:
        whole(layers=self.layers, hidden=self.hidden, heads=self.heads, vocabulary=self.vocabulary,
              sequence=self.sequence)  # fmt: skip
        divides(heads=self.heads, hidden=self.hidden)
        if not self.kv_heads:
            object.__setattr__(self, "kv_heads", self.heads)
        if not self.inside:
            object.__setattr__(self, "inside", 4 * self.hidden)
        whole(kv_heads=self.kv_heads, inside=self.inside)
        divides(kv_heads=self.kv_heads, heads=self.heads)
        positive(skew=self.skew)
        if self.experts:
            whole(experts=self.experts, top_k=self.top_k, expert_inside=self.expert_inside)
            if self.top_k > self.experts:
                raise ValueError(
                    f"top_k must be at most the {self.experts} experts, not {self.top_k}: a token visits each once"
                )
        elif self.top_k or self.shared or self.expert_inside:
            raise ValueError(
                f"{self.name} has no experts, so top_k, shared and expert_inside must be 0: set experts, or leave them"
            )

    @property
    def queries(self) -> int:
        """Width of the queries of all heads."""
        return self.hidden

    @property
    def keys_values(self) -> int:
        """Width of the keys and the values of all heads together: 2 h without grouping."""
        return 2 * self.kv_heads * (self.hidden // self.heads)

    @property
    def products(self) -> int:
        """Matrix products of a feed-forward part: 3 if it is gated."""
        return 3 if self.gated else 2

    @property
    def attention_params(self) -> int:
        """Weights of the products around attention, in one layer."""
        return self.hidden * (2 * self.queries + self.keys_values)

    @property
    def dense_inside(self) -> int:
        """Width of what every token visits: the feed-forward part, or the shared experts."""
        return self.shared * self.expert_inside if self.experts else self.inside

    @property
    def active_inside(self) -> int:
        """Width of what one token visits, all its experts side by side."""
        return self.dense_inside + self.top_k * self.expert_inside

    @property
    def router_params(self) -> int:
        """Weights of the router of a layer: h for each expert."""
        return self.hidden * self.experts

    @property
    def dense_layer_params(self) -> int:
        """Parameters of one layer that are cut by tensor parallelism only: all but the routed experts and the norms."""
        bias = self.queries + self.keys_values + (self.products - 1) * self.dense_inside if self.biases else 0
        return self.attention_params + self.products * self.hidden * self.dense_inside + bias

    @property
    def replicated_layer_params(self) -> int:
        """Parameters of one layer that every tensor-parallel rank holds: norms, biases after a sum, the router."""
        return (6 if self.biases else 2) * self.hidden + self.router_params

    @property
    def expert_layer_params(self) -> int:
        """Parameters of the routed experts of one layer."""
        bias = (self.products - 1) * self.expert_inside + self.hidden if self.biases else 0
        return self.experts * (self.products * self.hidden * self.expert_inside + bias)

    @property
    def layer_params(self) -> int:
        """Parameters of one layer. GPT: 12 h^2 + 13 h."""
        return self.dense_layer_params + self.replicated_layer_params + self.expert_layer_params

    @property
    def embedding_params(self) -> int:
        """Of one matrix of the vocabulary."""
        return self.vocabulary * self.hidden

    @property
    def params(self) -> int:
        """All parameters."""
        last_norm = (2 if self.biases else 1) * self.hidden
        matrices = 1 if self.tied else 2
        table = self.positions * self.hidden
        return self.layers * self.layer_params + matrices * self.embedding_params + table + last_norm

    @property
    def layer_matrix_params(self) -> int:
        """Weights of one layer that a token is multiplied with, its own experts alone, without norms and biases."""
        return self.attention_params + self.products * self.hidden * self.active_inside + self.router_params

    @property
    def active_params(self) -> int:
        """Weights that one token is multiplied with: 6 operations each in a step. Embeddings once, as the output."""
        return self.layers * self.layer_matrix_params + self.embedding_params

    def forward_flops(self, tokens: float) -> float:
        """Operations of the forward pass of `tokens` tokens in sequences of full length."""
        attention = 4 * self.sequence * self.queries * self.layers
        return tokens * (2 * self.active_params + attention)

    def step_flops(self, tokens: float) -> float:
        """Operations of the model in a step, forward and backward, nothing twice: 6 N + 12 L h s a token.

        What MFU counts (Chowdhery et al. 2022). Dense GPT: 72 B s l h^2 (1 + s / (6 h) + V / (12 l h)); of the
        vocabulary's term Narayanan et al. 2021 have V / (16 l h), since they multiply by 4 what is computed 3 times.
        """
        return 3 * self.forward_flops(tokens)


def _gpt(name: str, layers: int, hidden: int, heads: int) -> Model:
    return Model(name, layers, hidden, heads, positions=2048, biases=True, dropout=True)


def _llama(name: str, layers: int, hidden: int, heads: int, inside: int, sequence: int = 8192) -> Model:
    return Model(
        name, layers, hidden, heads, kv_heads=8, inside=inside, gated=True, vocabulary=128_256, sequence=sequence,
        tied=False,
    )  # fmt: skip


# GPT-3 (Brown et al. 2020), Llama 3 (Llama Team 2024, table 3), Mixtral (Jiang et al. 2024, table 1).
MODELS = {
    "GPT-2 1.5B": Model("GPT-2 1.5B", 48, 1600, 25, vocabulary=50_257, sequence=1024, positions=1024, biases=True,
                        dropout=True),
    "GPT-3 175B": _gpt("GPT-3 175B", 96, 12288, 96),
    "Llama 3 8B": _llama("Llama 3 8B", 32, 4096, 32, 14_336),
    "Llama 3 70B": _llama("Llama 3 70B", 80, 8192, 64, 28_672),
    "Llama 3 405B": _llama("Llama 3 405B", 126, 16_384, 128, 53_248),
    "Mixtral 8x7B": Model("Mixtral 8x7B", 32, 4096, 32, kv_heads=8, gated=True, vocabulary=32_000, sequence=8192,
                          tied=False, experts=8, top_k=2, expert_inside=14_336),
}  # fmt: skip
