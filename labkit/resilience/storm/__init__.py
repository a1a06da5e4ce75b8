"""Storms: seeded plans of failures as data, run for real and judged.

`draw(seed)` makes a plan (`plans`, `shapes`, `drawing`), `weather.weather` runs and judges it on a model of `models`.
"""

from labkit.resilience.storm.drawing import draw, table
from labkit.resilience.storm.plans import INSTANTS, KINDS, RETURN, STEP, StormPlan, Strike
from labkit.resilience.storm.shapes import SHAPES

__all__ = ["INSTANTS", "KINDS", "StormPlan", "RETURN", "SHAPES", "STEP", "Strike", "draw", "table"]
