"""Ring attention and Ulysses: by layout, what of their messages is hidden, and against what PyTorch has on a CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import labkit
from labkit import cost
from labkit.parallel import ContextParallel

from .in_turn import Step, in_turn, row

PAIR = 1e-6  # seconds of the kernel of one pair of query and key
HEADS, WIDTH = 4, 16


def layouts(size: int, length: int) -> dict[str, Any]:
    """Contiguous over zigzag: a layer of causal attention, forward and backward, on the virtual clock."""
    seconds = {layout: layer(size, length, layout, labkit.Link())[0] for layout in ("contiguous", "striped", "zigzag")}
    return {
        "ranks": size, "positions": length, **{f"{name} ms": 1e3 * s for name, s in seconds.items()},
        "contiguous / zigzag": seconds["contiguous"] / seconds["zigzag"],
        "work: most / mean": cost.causal_balance(size, length, "contiguous"),
    }  # fmt: skip


def hidden(size: int, length: int, ratio: float) -> dict[str, Any]:
    """What of zigzag's messages is hidden, and what can be. ratio: of a block's message to its attention.

    What can be: forward a block under the attention with the one before; backward with the gradients of that one as
    well, but for their last way, home.
    """
    under = PAIR * cost.causal_pairs(*(cost.context_ranges(r, size, length) for r in (0, 1)))
    block = ratio * under
    nbytes = 2 * HEADS * WIDTH * 4 * length // size
    free, _ = layer(size, length, "zigzag", labkit.Link())
    linked, sent = layer(size, length, "zigzag", labkit.Link(bandwidth=nbytes / block))
    rounds = size - 1
    waited = rounds * (max(0.0, block - under) + max(0.0, 2 * block - 2.5 * under)) + block
    moving = sent / nbytes * block
    return {
        "ranks": size, "message / attention": ratio, "attention ms": 1e3 * free, "messages ms": 1e3 * moving,
        "together ms": 1e3 * linked, "hidden": 1 - (linked - free) / moving, "can be": 1 - waited / moving,
        "hidden / can be": (moving - linked + free) / (moving - waited),
    }  # fmt: skip


def layer(size: int, length: int, layout: str, link: labkit.Link) -> tuple[float, float]:
    """(seconds, bytes of the rank that sends most) of one layer, forward and backward."""
    run = labkit.launch(
        _layer, size, length, layout, clock="virtual", transport="local", network=labkit.Network(intra=link)
    )
    return max(run.results), max(run.trace.bytes_sent())


def _layer(group: labkit.Group, length: int, layout: str) -> float:
    context = ContextParallel(group, layout=layout, pair_seconds=PAIR)
    q, k, v = (context.cut(x, dim=2).requires_grad_() for x in drawn(length))
    context.attention(q, k, v).square().mean().backward()
    return group.context.clock_here().now() / 1e9


def drawn(length: int) -> Tensor:
    """Queries, keys and values, the same on every rank: (3, 1, h, t, d)."""
    return torch.randn(3, 1, HEADS, length, WIDTH, generator=torch.Generator().manual_seed(1))


# -- on the wall clock ---------------------------------------------------------------------------------------------


def ulysses(size: int, length: int, pairs: int, transport: str) -> dict[str, Any]:
    """One row: labkit's Ulysses against one in plain torch.distributed, forward and backward, in turn."""
    run = labkit.launch(_against, size, length, pairs, transport=transport, timeout=300)
    return row(run.results, ranks=size, positions=length)


def _against(group: labkit.Group, length: int, pairs: int) -> Any:
    return in_turn(group, (_ours(group, length), _plain(group, length)), pairs)


def _ours(group: labkit.Group, length: int) -> Step:
    context = ContextParallel(group, ulysses=group.size, layout="contiguous")
    return _step(context.attention, [context.cut(x, dim=2) for x in drawn(length)])


def _plain(group: labkit.Group, length: int) -> Step:
    """Heads and positions change places by `all_to_all_single`, as DeepSpeed does it (Jacobs et al. 2023)."""
    n = group.size

    def to_heads(x: Tensor) -> Tensor:  # (b, h, t / n, d) -> (b, h / n, t, d)
        b, h, t, d = x.shape
        parts = _Swap.apply(x.view(b, n, h // n, t, d).movedim(1, 0).contiguous())
        return parts.movedim(0, 2).reshape(b, h // n, n * t, d)

    def to_positions(x: Tensor) -> Tensor:
        b, h, t, d = x.shape
        parts = _Swap.apply(x.view(b, h, n, t // n, d).movedim(2, 0).contiguous())
        return parts.movedim(0, 1).reshape(b, n * h, t // n, d)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = map(to_heads, (q, k, v))
        return to_positions(F.scaled_dot_product_attention(q, k, v, is_causal=True))

    return _step(attention, [x.tensor_split(n, 2)[group.rank].contiguous() for x in drawn(length)])


class _Swap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        torch.distributed.all_to_all_single(out, x)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        out = torch.empty_like(gradients[0])
        torch.distributed.all_to_all_single(out, gradients[0].contiguous())
        return out


def _step(attention: Any, parts: list[Tensor]) -> Step:
    """Forward and backward of one layer; this rank's sum of squares."""

    def step() -> float:
        q, k, v = (x.detach().requires_grad_() for x in parts)
        loss = attention(q, k, v).square().sum()
        loss.backward()
        return float(loss.detach())

    return step


def pytorch_ring(size: int = 2, length: int = 64) -> str:
    """What becomes of PyTorch's own context parallelism on these ranks: "runs", or why not."""
    try:
        return str(labkit.launch(_pytorch, size, length, timeout=60).results[0])
    except labkit.RankFailed as why:
        return str(why).splitlines()[0]


def _pytorch(group: labkit.Group, length: int) -> str:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel

    mesh = init_device_mesh("cpu", (group.size,))
    whole = list(drawn(length))
    wanted = F.scaled_dot_product_attention(whole[0], whole[1], whole[2], is_causal=True)
    parts = [x.clone() for x in whole]
    try:
        with context_parallel(mesh, buffers=parts, buffer_seq_dims=[2] * 3):
            got = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as why:
        return f"it does not run on a CPU: {type(why).__name__}: {str(why).splitlines()[0]}"
    if got.shape[2] * group.size != length:
        return f"it gives {tuple(got.shape)} of {tuple(wanted.shape)}"
    return "it runs"
