"""The layers of tensor parallelism against `torch.distributed.tensor.parallel`, on the same ranks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from slices import few
from torch import nn

from labkit import launch
from labkit.parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    vocab_parallel_cross_entropy,
)

pytestmark = pytest.mark.ranks

SIZES = few([3, 2, 4])
B, T, D, HIDDEN, VOCAB = 2, 12, 12, 24, 60  # 2, 3 and 4 divide all of them but B
DTYPES = (torch.float32, torch.float64)
FURTHEST = {torch.float32: 1e-6, torch.float64: 1e-13}


def pair(dtype):
    """Two linear layers, the same on every rank."""
    torch.manual_seed(4)
    return nn.ModuleDict({"up": nn.Linear(D, HIDDEN), "down": nn.Linear(HIDDEN, D)}).to(dtype)


def read_and_gradient(dtype):
    """What the first layer reads, and the gradient of the mean of something at each position."""
    made = torch.Generator().manual_seed(1)
    x, g = (torch.randn(B, T, D, generator=made, dtype=dtype) for _ in range(2))
    return x, g / (B * T)


def own(x, group, dim=1):
    return x.tensor_split(group.size, dim)[group.rank].contiguous()


def both_ways(layers, x, gradient):
    """Output and the gradient of the input, through up, GELU, down."""
    x = x.clone().requires_grad_()
    y = layers["down"](F.gelu(layers["up"](x)))
    y.backward(gradient)
    return [y.detach(), x.grad]


def gradients(ours, theirs, rank):
    """(mine, PyTorch's) of every parameter: PyTorch's joined from its ranks and cut as mine is."""
    for name, layer in ours.items():
        for kind, p in layer.named_parameters():
            whole = getattr(theirs[name], kind).grad.full_tensor()
            cut = layer.shard_specs.get(kind)
            yield f"{name}.{kind}", p.grad, whole if cut is None else cut.take(whole, rank)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("sequence", [False, True], ids=["tensor", "sequence"])
def test_a_column_then_row_pair(size, sequence):
    def on_rank(group):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        far = {}
        for dtype in DTYPES:
            outside = Shard(1) if sequence else Replicate()
            plan = {"up": ColwiseParallel(input_layouts=outside), "down": RowwiseParallel(output_layouts=outside)}
            theirs = parallelize_module(pair(dtype), init_device_mesh("cpu", (size,)), plan)
            whole = pair(dtype)
            x, g = read_and_gradient(dtype)
            if sequence:
                x, g = own(x, group), own(g, group)
            for overlap in (False, True):
                ours = {
                    "up": ColumnParallelLinear.of(whole["up"], group, sequence=sequence, overlap=overlap),
                    "down": RowParallelLinear.of(whole["down"], group, sequence=sequence),
                }
                theirs.zero_grad()
                results = zip(("y", "x"), both_ways(ours, x, g), both_ways(theirs, x, g), strict=True)
                for name, mine, other in [*results, *gradients(ours, theirs, group.rank)]:
                    assert mine.shape == other.shape and other.any()
                    far[dtype, overlap, name] = float((mine - other).abs().max())
        return far

    for far in launch(on_rank, size, transport="local").results:
        assert len(far) == 2 * 2 * 6
        for (dtype, overlap, name), distance in far.items():
            assert distance <= FURTHEST[dtype], (dtype, overlap, name)


@pytest.mark.parametrize("size", SIZES)
def test_layers_by_themselves_with_whole_inputs_and_outputs(size):
    def on_rank(group):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        dtype, far = torch.float64, {}
        mesh, whole = init_device_mesh("cpu", (size,)), pair(torch.float64)
        plan = {"up": ColwiseParallel(output_layouts=Replicate()), "down": RowwiseParallel(input_layouts=Replicate())}
        theirs = parallelize_module(pair(dtype), mesh, plan)
        ours = {
            "up": ColumnParallelLinear.of(whole["up"], group, gather_output=True),
            "down": RowParallelLinear.of(whole["down"], group, input_is_split=False),
        }
        x, g = read_and_gradient(dtype)
        results = zip(("y", "x"), both_ways(ours, x, g), both_ways(theirs, x, g), strict=True)
        for name, mine, other in [*results, *gradients(ours, theirs, group.rank)]:
            far[name] = float((mine - other).abs().max())
        return far

    for far in launch(on_rank, size, transport="local").results:
        assert len(far) == 6 and max(far.values()) <= FURTHEST[torch.float64], far


@pytest.mark.parametrize("size", SIZES)
def test_embedding_and_loss_of_a_cut_vocabulary(size):
    """Against RowwiseParallel of an embedding, ColwiseParallel of the scores, and `loss_parallel`."""

    def on_rank(group):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            loss_parallel,
            parallelize_module,
        )

        torch.manual_seed(4)
        embedding, linear = nn.Embedding(VOCAB, D), nn.Linear(D, VOCAB, bias=False)
        ours = VocabParallelEmbedding.of(embedding, group), ColumnParallelLinear.of(linear, group)
        theirs = parallelize_module(nn.ModuleDict({"tokens": embedding, "scores": linear}),
                                    init_device_mesh("cpu", (size,)), {
            "tokens": RowwiseParallel(input_layouts=Replicate()),
            "scores": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
        })  # fmt: skip
        ids = torch.arange(B * T).view(B, T) * 7 % VOCAB
        targets = ids.roll(1).masked_fill(ids % 5 == 0, -100)
        with loss_parallel():
            other = F.cross_entropy(theirs["scores"](theirs["tokens"](ids)).flatten(0, 1), targets.flatten())
            other.backward()
        loss = vocab_parallel_cross_entropy(ours[1](ours[0](ids)), targets, group, vocab=VOCAB)
        loss.backward()
        far = [float((loss - other.full_tensor()).detach().abs())]
        for layer, name in zip(ours, ("tokens", "scores"), strict=True):
            mine, local = layer.weight.grad, theirs[name].weight.grad.full_tensor()
            far.append(float((mine - layer.shard_specs["weight"].take(local, group.rank)).abs().max()))
            assert mine.any()
        return far

    for far in launch(on_rank, size, transport="local").results:
        assert len(far) == 3 and max(far) <= 1e-6, far
