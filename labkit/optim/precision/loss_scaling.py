"""Loss scaling: gradients of 16 bits that would be 0 are moved up by multiplying the loss (Micikevicius et al. 2018).

FP16 ends at 6e-8, and many gradients lie below. By the chain rule they all grow with the loss, so a loss that is
multiplied by 65,536 brings them into the range, and the optimizer gets them divided by it, in float32. Too much of it
makes them infinite. A *dynamic* scale finds the limit by trying: it doubles after `interval` good steps, and after one
with a number that is not finite it is halved, and that step is skipped.

On several ranks the gradients that a rank looks at may be only its shard, or not summed yet, so one rank may see the
infinity alone. If it skipped the step by itself, its weights would differ from then on. So ranks agree by a maximum of
4 bytes before anybody takes the step.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from labkit.collectives import all_reduce
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


class LossScaler:
    """scale: to begin with. growth, backoff, interval: of the dynamic scale; growth=1 and backoff=1 keep it static.

        (scaler.scaled(loss)).backward()
        if scaler.unscale(model.parameters()):
            optimizer.step()

    skipped, taken: steps so far, the same on all ranks, as is `scale`.
    """

    def __init__(
        self, scale: float = 2.0**16, growth: float = 2.0, backoff: float = 0.5, interval: int = 2000,
        group: Group | None = None,
    ) -> None:  # fmt: skip
        if not 0 < scale < float("inf"):
            raise RefusedError(f"scale={scale}: gradients are multiplied and later divided by it; above 0, and finite")
        if growth < 1 or not 0 < backoff <= 1 or type(interval) is not int or interval < 1:
            raise RefusedError(
                f"growth={growth}, backoff={backoff}, interval={interval}: the scale grows by a factor of at least 1 "
                "after a whole number of good steps, and shrinks by one above 0 and up to 1"
            )
        self.scale, self.growth, self.backoff, self.interval, self.group = scale, growth, backoff, interval, group
        self.taken = self.skipped = self._good = 0

    def scaled(self, loss: Tensor) -> Tensor:
        """The loss to call `backward` of."""
        return loss * self.scale

    def unscale(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Divide all gradients by the scale, and say whether to take the step; on every rank, with the same answer.

        Where it is to be skipped, gradients are left as they are: call `zero_grad`. Bytes: an all-reduce of 4.
        """
        gradients = [p.grad for p in parameters if p.grad is not None]
        bad = torch.tensor(
            [float(any(not g.isfinite().all() for g in gradients))], device=self.group.device if self.group else None
        )
        if self.group is not None and self.group.size > 1:
            all_reduce(bad, self.group, op="max")
        if bad:
            self.scale *= self.backoff
            self.skipped, self._good = self.skipped + 1, 0
            return False
        for gradient in gradients:
            gradient.div_(self.scale)
        self.taken, self._good = self.taken + 1, self._good + 1
        if self._good == self.interval:
            self.scale, self._good = self.scale * self.growth, 0
        return True
