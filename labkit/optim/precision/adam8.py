"""AdamW whose two moments take a byte each (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization").

A moment is kept as codes of the dynamic map, and the largest size of each block of 2,048 numbers, which the block was
divided by. A step decodes it, updates it and the weights in 32 bits, and encodes it again. Blocks keep an outlier from
costing all other numbers of the tensor their digits.

What must not be lost is small numbers: Adam divides by the root of the second moment, and where a small one became 0,
the weight moves by m / eps. Second moments are squares, so they spread over twice as many decades as gradients, and
codes with equal steps lose all below 1/255 of the block's largest: gradients below 6 % of the largest one. The dynamic
map reaches 7 decades down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.optim import Optimizer

from labkit.optim.layers import check_settings
from labkit.optim.precision.dynamic_map import SIGNED, UNSIGNED, nearest_code
from labkit.wire.errors import RefusedError


class AdamW8bit(Optimizer):
    """`torch.optim.AdamW`, with moments in 8 bits between steps: see the top of this file.

    A tensor of fewer than `smallest` numbers keeps its moments in 32 bits, as biases and norms do; a group with a huge
    `smallest` does so for all of its tensors, as the paper does for embeddings, whose rows are seldom used. block:
    numbers that share a scale. maps: the 256 numbers that the codes of the first and of the second moment mean,
    ascending, to see what other ones do.

    Resident state: `cost.adam8_state_bytes` of the tensors' sizes, about 2 bytes a number in place of 8, and a step
    count each. state: "m" and "v", uint8 or float32, and "m_scale" and "v_scale", float32, empty beside float32. It is
    not of one number for each weight, so it cannot be cut: ZeRO refuses it, and FSDP's sharded state dicts do.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.01, block: int = 2048, smallest: int = 4096,
        maps: tuple[Tensor, Tensor] = (SIGNED, UNSIGNED),
    ) -> None:  # fmt: skip
        check_settings(lr=lr, eps=eps, weight_decay=weight_decay, smallest=smallest)
        if not all(0 <= beta < 1 for beta in betas):
            raise RefusedError(f"betas={betas}: both must be at least 0 and below 1")
        if type(block) is not int or block < 1:
            raise RefusedError(f"block={block!r}: a whole number of at least 1")
        if not all(m.shape == (256,) and bool((m.diff() >= 0).all()) for m in maps):
            raise RefusedError("maps: two tensors of 256 numbers each, in ascending order")
        self.maps = maps
        super().__init__(
            params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, block=block, smallest=smallest)
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient. Returns what `closure` returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    if w.grad.is_sparse:
                        raise RefusedError("a sparse gradient: blocks are dense. Build the embedding with sparse=False")
                    self._update(w, w.grad.to(torch.float32), group)
        return loss

    def _update(self, w: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2), block = self.state[w], group["betas"], group["block"]
        if "step" not in state:
            state["step"] = 0
            for name, numbers in zip("mv", self.maps, strict=True):
                zeros = torch.zeros_like(w, dtype=torch.float32)
                whole = zeros, zeros.new_empty(0)
                small = w.numel() < group["smallest"]
                state[name], state[f"{name}_scale"] = whole if small else coded(zeros, numbers, block)
        state["step"] += 1
        wide = [decoded(state[n], state[f"{n}_scale"], each, block) for n, each in zip("mv", self.maps, strict=True)]
        m, v = wide
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        spread = (v / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        w.mul_(1 - group["lr"] * group["weight_decay"])
        w.sub_(m / spread * (group["lr"] / (1 - beta1 ** state["step"])))
        for name, x, numbers in zip("mv", wide, self.maps, strict=True):
            if state[name].dtype == torch.uint8:
                state[name], state[f"{name}_scale"] = coded(x, numbers, block)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As of any optimizer, but every tensor keeps its own type: codes must not become numbers of the weights'."""
        super().load_state_dict(dict(state_dict))
        saved = [index for group in state_dict["param_groups"] for index in group["params"]]
        here = [w for group in self.param_groups for w in group["params"]]
        for index, w in zip(saved, here, strict=True):
            for key, x in state_dict["state"].get(index, {}).items():
                self.state[w][key] = x.to(w.device, copy=True) if isinstance(x, Tensor) else x


def coded(x: Tensor, numbers: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """(codes, uint8, in the shape of x; the largest size in each block, float32)."""
    blocks = pad(x.flatten(), (0, -x.numel() % block)).view(-1, block)
    scale = blocks.abs().amax(1)
    exact = blocks / scale.where(scale > 0, 1)[:, None]
    return nearest_code(exact, numbers.to(x.device)).flatten()[: x.numel()].view(x.shape), scale


def decoded(codes: Tensor, scale: Tensor, numbers: Tensor, block: int) -> Tensor:
    """`coded`, undone: float32; what is float32 already as it is."""
    if codes.dtype != torch.uint8:
        return codes
    each = scale.repeat_interleave(block)[: codes.numel()].view(codes.shape)
    return numbers.to(codes.device)[codes.int()] * each
