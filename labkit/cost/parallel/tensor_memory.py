"""What a GPU holds under tensor and pipeline parallelism: training state, and activations of a layer.

Activations: Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models", table 2. Per
layer, in 16 bits and with dropout, for t ranks (a heads, s sequence, b batch, h hidden):

    one GPU              s b h (34 + 5 a s / h)
    tensor               s b h (10 + 24 / t + 5 a s / (h t))
    tensor + sequence    s b h (34 / t + 5 a s / (h t))

The 10 are the inputs of the two norms, of attention and of the feed-forward part (2 bytes each) and two dropout masks.
"""

from __future__ import annotations

from labkit.cost.parallel.layer_activations import layer_activation_bytes
from labkit.cost.refuse import divides, not_negative, one_of, positive, whole
from labkit.cost.training.memory import ACTIVATION_STRATEGIES

__all__ = ["model_parallel_state_bytes", "tensor_parallel_activation_bytes", "weight_gradient_activation_bytes"]


def tensor_parallel_activation_bytes(
    batch: int,
    sequence: int,
    hidden: int,
    layers: int,
    heads: int,
    size: int = 1,
    *,
    sequence_parallel: bool = False,
    strategy: str = "all",
    itemsize: int = 2,
    dropout: bool = True,
) -> float:
    """Bytes of activations that a rank keeps of one microbatch for the backward pass of `layers` layers.

    strategy: "all" as in the table above; "selective" computes the scores of attention again, which takes away the
    term with 5 a s; "full" keeps the input of each layer only: 2 s b h, and 2 s b h / t with sequence parallelism.
    With sequence parallelism a rank keeps its own positions and gathers the others again in the backward pass.
    Raises ValueError where `size` does not divide the heads.

    175B, b = 1, t = 8, a layer: 2869 MB on one GPU, 579 MB, 359 MB with sequence parallelism, 107 MB with selective
    recomputation besides.
    """
    whole(batch=batch, sequence=sequence, hidden=hidden, layers=layers, heads=heads, size=size, itemsize=itemsize)
    one_of(ACTIVATION_STRATEGIES, strategy=strategy)
    divides(size=size, heads=heads)
    one_layer = layer_activation_bytes(
        batch * sequence, hidden, hidden, 2 * hidden, 4 * hidden, size, scores=batch * heads * sequence * sequence,
        sequence_parallel=sequence_parallel, strategy=strategy, itemsize=itemsize, dropout=dropout,
    )  # fmt: skip
    return layers * one_layer


def weight_gradient_activation_bytes(
    batch: int, sequence: int, hidden: int, layers: int, size: int = 1, *, sequence_parallel: bool = False,
    itemsize: int = 2,
) -> float:  # fmt: skip
    """Bytes that wait between a layer's input gradient and its weight gradient: 32 s b h in 16 bits.

    M_W of Qi et al. 2023, table 1: the input of each linear map, 14 s b h, and the gradient of its output, 18 s b h.
    Of these the inputs of the two column-parallel maps and the gradients of the two row-parallel ones are whole on
    every rank: s b h (8 + 24 / t), with sequence parallelism 32 / t.
    """
    whole(batch=batch, sequence=sequence, hidden=hidden, layers=layers, size=size, itemsize=itemsize)
    wide = batch * sequence * hidden * itemsize
    return layers * wide * (4 / (size if sequence_parallel else 1) + 12 / size)


def model_parallel_state_bytes(
    params: float, tensor: int, pipeline: int = 1, *, bytes_per_parameter: float = 16
) -> float:
    """Bytes of training state on each GPU, if the model is cut evenly: params bytes_per_parameter / (t p).

    bytes_per_parameter: 16 for parameters, gradients, and Adam with a 32-bit copy (2 + 2 + 12). The textbook chapter
    counts 10 (parameters and two moments: 2 + 8) and 14 (2 + 12), neither with gradients. 175B with t = 8 and p = 16:
    13.67, 19.14 and 21.9 GB.
    """
    not_negative(params=params)
    whole(tensor=tensor, pipeline=pipeline)
    positive(bytes_per_parameter=bytes_per_parameter)
    return params * bytes_per_parameter / (tensor * pipeline)
