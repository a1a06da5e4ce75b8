"""Published runs beside what the planner says of them: Megatron-LM on A100s, and Llama 3 405B on H100s.

Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters using Megatron-LM", table 1. Llama
Team 2024, "The Llama 3 herd of models", table 4. One set of efficiencies for all runs of a machine (`EFFICIENCIES`).

What the papers leave open is not tuned row by row. Table 1 names neither the microbatch nor the chunks, so each row
takes the fastest that fit, out of what that software had: plain data parallelism, 1F1B and interleaved 1F1B, all or no
activations computed again. Llama 3 runs with one layer in a chunk, since the first chunk has an embedding and no layer
(section 3.3.2), 8 on a rank; and what hardly takes operations (norms, the product inside SwiGLU) is computed again,
without which the activations that the paper keeps would be over 80 GB.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from labkit.cost.claims import Claim
from labkit.cost.planner.cluster import Cluster, a100_cluster, h100_cluster
from labkit.cost.planner.model import MODELS, Model
from labkit.cost.planner.plan import Plan
from labkit.cost.planner.predicted import Estimate, estimate
from labkit.cost.planner.search import search
from labkit.cost.planner.space import Space

__all__ = ["LLAMA3_405B", "MEGATRON_2021", "MEGATRON_SPACE", "PublishedRun", "published_claims"]

MEGATRON_SPACE = Space(
    schedules=("one_f_one_b", "interleaved"), sharding=("plain",), recompute=("full",), sequence_parallel=False,
    context_limit=1, tensor_limit=8,
)  # fmt: skip


@dataclass(frozen=True)
class PublishedRun:
    """A run as its paper has it.

    batch: sequences. tflops: operations a second and GPU, in 1e12, as the paper counts them: `counted` "hardware"
    (with what is computed again, attention in full) or "model" (without; attention under its causal mask only, which
    the Llama 3 paper does not say: counted in full, its step at 131,072 tokens would take 1.4 times as long). chunks:
    on a rank; 0 leaves microbatch and chunks to the planner.
    """

    source: str
    model: Model
    gpus: int
    tensor: int
    pipeline: int
    batch: int
    tflops: float
    counted: str
    machine: str
    context: int = 1
    chunks: int = 0

    @property
    def cluster(self) -> Cluster:
        """The machine that it ran on."""
        return a100_cluster(self.gpus) if self.machine == "A100" else h100_cluster(self.gpus)

    @property
    def cut(self) -> tuple[int, int, int, int, int]:
        """(tensor, pipeline, context, expert, data)."""
        return self.tensor, self.pipeline, self.context, 1, self.gpus // (self.tensor * self.pipeline * self.context)

    @property
    def space(self) -> Space:
        """What its software could do."""
        return MEGATRON_SPACE if self.machine == "A100" else Space(schedules=("one_f_one_b", "interleaved"))

    def estimated(self, cluster: Cluster | None = None) -> Estimate:
        """The planner's estimate; for rows that leave choices open, of the fastest plan of their cut that fits."""
        machine = self.cluster if cluster is None else cluster
        if not self.chunks:
            return search(self.model, machine, self.batch, self.space, cut=self.cut).winner
        t, p, c, _, d = self.cut
        plan = Plan(t, p, c, 1, d, 1, self.batch // d, "interleaved", self.chunks, "zero1", recompute="selective")
        return estimate(self.model, machine, plan)

    @property
    def seconds(self) -> float:
        """Of a step, from the paper's operations a second."""
        return self.flops / (self.gpus * self.tflops * 1e12)

    @property
    def flops(self) -> float:
        """Operations of a step as the paper counts them."""
        tokens = self.batch * self.model.sequence
        if self.counted == "hardware":  # 96 B s l h^2 (1 + s / 6h + V / 16lh): a forward pass more, without the logits
            return (
                self.model.step_flops(tokens)
                + self.model.forward_flops(tokens)
                - 2 * tokens * (self.model.embedding_params)
            )
        masked = 6 * tokens * self.model.sequence * self.model.queries * self.model.layers
        return self.model.step_flops(tokens) - masked

    def error(self, found: Estimate) -> float:
        """Predicted over published throughput, less 1."""
        return self.seconds / found.seconds - 1


def _megatron(heads: int, hidden: int, layers: int, t: int, p: int, gpus: int, batch: int, tflops: int) -> PublishedRun:
    shape = Model("GPT", layers, hidden, heads, positions=2048, biases=True, dropout=True)
    model = replace(shape, name=f"GPT {shape.params / 1e9:.1f}B")
    return PublishedRun("Narayanan et al. 2021", model, gpus, t, p, batch, tflops, "hardware", "A100")


def _llama(gpus: int, context: int, sequence: int, tflops: int) -> PublishedRun:
    model = replace(MODELS["Llama 3 405B"], sequence=sequence)
    tokens = 2048 * 8192  # "16M tokens"
    return PublishedRun("Llama 3", model, gpus, 8, 16, tokens // sequence, tflops, "model", "H100", context, chunks=8)


MEGATRON_2021 = (
    _megatron(24, 2304, 24, 1, 1, 32, 512, 137),
    _megatron(32, 3072, 30, 2, 1, 64, 512, 138),
    _megatron(32, 4096, 36, 4, 1, 128, 512, 142),
    _megatron(48, 6144, 40, 8, 1, 256, 1024, 135),
    _megatron(64, 8192, 48, 8, 2, 512, 1536, 138),
    _megatron(80, 10_240, 60, 8, 4, 1024, 1792, 140),
    _megatron(96, 12_288, 80, 8, 8, 1536, 2304, 148),
    _megatron(128, 16_384, 96, 8, 16, 1920, 2160, 155),
    _megatron(128, 20_480, 105, 8, 35, 2520, 2520, 163),
    _megatron(160, 25_600, 128, 8, 64, 3072, 3072, 163),
)
LLAMA3_405B = (_llama(8192, 1, 8192, 430), _llama(16_384, 1, 8192, 400), _llama(16_384, 16, 131_072, 380))


def published_claims() -> list[Claim]:
    """Each run's operations a second and GPU, as its paper states them and as the planner finds them."""
    claims = []
    for run in (*MEGATRON_2021, *LLAMA3_405B):
        found = run.estimated()
        claims.append(Claim(
            run.source, f"{run.model.name}, {run.gpus} GPUs, sequence {run.model.sequence}", str(int(run.tflops)),
            run.tflops * run.seconds / found.seconds, "TFLOP/s", why=str(found.plan),
        ))  # fmt: skip
    return claims
