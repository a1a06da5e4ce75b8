"""Processes: start a world of ranks, watch it, and bring home what it did.

The room itself can be called: `labkit.world(4)` is a world that is kept between calls, a `World`.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from .engine import launch, start, warm
from .job import Failure, Job, RankFailed, Run
from .kept import World
from .spec import Spec

__all__ = ["Failure", "Job", "RankFailed", "Run", "Spec", "World", "launch", "start", "warm"]


class _Room(ModuleType):
    def __call__(self, size: int, **options: Any) -> World:
        """`size` ranks that are kept between calls of `run(fn, ...)`: see `labkit.world.kept`."""
        return World(size, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        """As every module travels: by its name."""
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Room
