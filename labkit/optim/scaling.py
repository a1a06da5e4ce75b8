"""The learning rate for another batch size, from the one that was tuned.

Linear: k times the batch, k times the rate. One step at k lr moves about as far as k steps at lr, while weights move
little during those k steps (Krizhevsky 2014, section 5; Goyal et al. 2017, section 2.1).
Square root: k times the batch, sqrt(k) times the rate. The spread of a step, lr * sigma / sqrt(B), then stays as it
was (Krizhevsky 2014 names it as what theory suggests, and uses the linear one).
Both are rules of thumb with a range: neither holds far above the critical batch size, and Adam's steps, which are
normalised already, go better with the square root (Malladi et al. 2022).
"""

import math

from labkit.wire.errors import RefusedError


def linear_scaled(lr: float, batch: int, base_batch: int) -> float:
    """lr * batch / base_batch: the rate for `batch` examples a step, when `lr` was tuned at `base_batch`."""
    return lr * _times(lr, batch, base_batch)


def sqrt_scaled(lr: float, batch: int, base_batch: int) -> float:
    """lr * sqrt(batch / base_batch): the rate for `batch` examples a step, when `lr` was tuned at `base_batch`."""
    return lr * math.sqrt(_times(lr, batch, base_batch))


def _times(lr: float, batch: int, base_batch: int) -> float:
    for name, value in (("lr", lr), ("batch", batch), ("base_batch", base_batch)):
        if not value > 0:
            raise RefusedError(f"{name}={value}: a learning rate and a batch size are more than zero")
    return batch / base_batch
