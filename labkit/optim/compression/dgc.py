"""Deep gradient compression (Lin, Han, Mao, Wang & Dally 2018): top-k of 0.1 %, and what makes it converge.

    u = momentum u + gradient          momentum correction: what is kept back is velocity, not gradient
    v = v + u
    send the largest k of v
    v = 0, u = 0 where sent            momentum factor masking: old velocity stops there

Error feedback alone would send a gradient that waited for a hundred steps as if it were of this step, and an
optimizer's momentum would then begin with it. Here the momentum is inside, so the optimizer must have none: plain SGD.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from labkit.optim.compression.compressed import Compressed
from labkit.optim.compression.compressors import Compressor, TopK
from labkit.wire.errors import RefusedError

WARM_UP = (0.25, 0.0625, 0.015625, 0.004, 0.001)  # sent in each epoch: sparsities of 75 % up to 99.9 %


class DGC(Compressed):
    """The hook.

    shares: of the numbers of a parameter that are sent, by stage of the warm-up; the last one lasts. stage_steps: steps
    of a stage (in the paper an epoch). clip: the largest norm of a parameter's average gradient. Each rank clips its
    share of it at clip / sqrt(N), before it is added to what was kept back: N independent gradients of that norm add
    up to one of `clip`. The paper takes the norm of all parameters together, which is not known yet when the first
    bucket leaves; the authors' code goes by parameter as we do.

    With a share of 1 nothing is kept back: the masked `u` is then the gradient, and training is SGD *without* momentum.
    With masking=False it is SGD with momentum.
    Bytes: those of `Compressed(TopK(share))`.
    """

    def __init__(
        self, shares: Sequence[float] = WARM_UP, stage_steps: int = 1, momentum: float = 0.9, masking: bool = True,
        clip: float = math.inf, check_nan: bool = True,
    ) -> None:  # fmt: skip
        if not shares:
            raise RefusedError("shares=(): at least one share, such as 0.001")
        if type(stage_steps) is not int or stage_steps < 1:
            raise RefusedError(f"stage_steps={stage_steps!r}: a whole number of at least 1")
        if not 0 <= momentum < 1:
            raise RefusedError(f"momentum={momentum!r}: at least 0 and below 1")
        if not clip > 0:
            raise RefusedError(f"clip={clip!r}: a norm above 0")
        super().__init__([TopK(float(share)) for share in shares][-1], check_nan=check_nan)
        self.shares = tuple(shares)
        self.stage_steps, self.momentum, self.masking, self.clip = stage_steps, momentum, masking, clip

    def _choose(self, step: int) -> Compressor:
        return TopK(float(self.shares[min((step - 1) // self.stage_steps, len(self.shares) - 1)]))

    def _outgoing(self, name: str, gradient: Tensor, ranks: int) -> Tensor:
        if math.isfinite(self.clip):
            most = self.clip / math.sqrt(ranks)
            gradient = gradient * (most / gradient.norm().clamp(min=most))
        velocity = self.at("velocity", name, gradient).mul_(self.momentum).add_(gradient)
        return self.at("residual", name, gradient) + velocity

    def _keep(self, name: str, x: Tensor, sent: Tensor) -> None:
        super()._keep(name, x, sent)
        if self.masking:
            self.kept["velocity"][name].masked_fill_(sent != 0, 0)
