"""How much work to do between two checkpoints: Young, Daly, and the exact answer. All times in one unit, any unit.

interval is the useful work between two checkpoints, write what a checkpoint costs (training stands still), mtbf the
mean time between failures, which come at random at a constant rate. Failures also strike during a write or a restart.
"""

from __future__ import annotations

import math

from labkit.cost.refuse import not_negative, positive

__all__ = ["best_interval", "daly_higher_order_interval", "daly_interval", "young_interval"]


def young_interval(write: float, mtbf: float) -> float:
    """sqrt(2 write mtbf) (Young 1974): 171.2 min for a write of 5 min and 48.83 h between failures.

    It balances write / interval, the part of the time that goes into writing, with interval / (2 mtbf), the half
    interval that each failure costs. Good while write is small against mtbf.
    """
    positive(write=write, mtbf=mtbf)
    return math.sqrt(2 * write * mtbf)


def daly_interval(write: float, mtbf: float, restart: float = 0.0) -> float:
    """sqrt(2 write (mtbf + restart)): Daly's estimate of first order, which lets a restart lengthen the interval.

    The exact optimum does not depend on the restart at all: see `best_interval`.
    """
    positive(write=write, mtbf=mtbf)
    not_negative(restart=restart)
    return math.sqrt(2 * write * (mtbf + restart))


def daly_higher_order_interval(write: float, mtbf: float) -> float:
    """sqrt(2 write mtbf) (1 + r/3 + r^2/9) - write with r = sqrt(write / (2 mtbf)); mtbf if write >= 2 mtbf.

    Daly 2006. The exact optimum as a series in r: within 0.05 percent of it for a write of up to a tenth of the mtbf.
    """
    positive(write=write, mtbf=mtbf)
    if write >= 2 * mtbf:
        return mtbf
    r = math.sqrt(write / (2 * mtbf))
    return math.sqrt(2 * write * mtbf) * (1 + r / 3 + r * r / 9) - write


def best_interval(write: float, mtbf: float) -> float:
    """The interval with the least expected time, exactly: x mtbf, where 1 - x = exp(-x - write / mtbf), 0 < x < 1.

    It minimises `checkpoint_tax`. The restart only multiplies the expected time, and so moves nothing. In terms of
    Lambert's W: x = 1 + W(-exp(-1 - write / mtbf)).
    """
    positive(write=write, mtbf=mtbf)
    d, x = write / mtbf, 1.0
    for _ in range(200):  # Newton from the right of a convex function: it falls to the root and never passes it
        step = (x + math.expm1(-(x + d))) / -math.expm1(-(x + d))
        if step <= 1e-15 * x:
            break
        x -= step
    return x * mtbf
