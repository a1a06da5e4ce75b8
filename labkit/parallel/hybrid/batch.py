"""Which examples each rank computes with, in which microbatch, and how much their loss counts."""

from __future__ import annotations

from itertools import accumulate, pairwise

from torch import Tensor

from labkit.collectives.chunks import even_sizes
from labkit.models.gpt import GPTConfig
from labkit.parallel.hybrid.config import HybridConfig
from labkit.wire.errors import RefusedError


def examples_of(batch: int, dp: int, microbatches: int) -> list[list[range]]:
    """[k][d]: the examples in microbatch k of data-parallel rank d, all of them once.

    Each rank has neighbouring examples (cut as by `torch.tensor_split`), and cuts them again into its microbatches. So
    microbatch k of the run is the k-th piece of every rank: what one device would take at once to do the same, where
    that matters (routers balance the tokens of a microbatch).
    """
    found: list[list[range]] = [[] for _ in range(microbatches)]
    for begin, end in pairwise(accumulate(even_sizes(batch, dp), initial=0)):
        edges = accumulate(even_sizes(end - begin, microbatches), initial=begin)
        for k, (first, last) in enumerate(pairwise(edges)):
            found[k].append(range(first, last))
    return found


def check_batch(inputs: Tensor, targets: Tensor, model: GPTConfig, config: HybridConfig) -> None:
    """Raise RefusedError for a batch that cannot be cut. Nothing is sent: every rank has the same batch."""
    if inputs.dim() != 2 or inputs.shape != targets.shape:
        raise RefusedError(
            f"a step takes inputs and targets of (examples, positions), and these are {list(inputs.shape)} and "
            f"{list(targets.shape)}"
        )
    if not 1 <= inputs.shape[1] <= model.context:  # said here: a rank along cp sees some of the positions only
        raise RefusedError(
            f"a batch of {inputs.shape[1]} positions, but this model has {model.context}: cut the input, or build it "
            f"with GPTConfig(context={inputs.shape[1]})"
        )
    batch, pieces = len(inputs), config.dp * config.microbatches
    if batch < pieces or (config.pp > 1 and batch % pieces):
        need = f"a multiple of {pieces}" if config.pp > 1 else f"{pieces} or more"
        raise RefusedError(
            f"a batch of {batch} examples for dp={config.dp} and microbatches={config.microbatches}: it needs {need}"
            f"{', since the shapes that cross a pipeline are all the same' if config.pp > 1 else ''}"
        )
