"""Ranks that exist already, on one host or many: the same call under torchrun."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from .job import Run


def is_torchrun() -> bool:
    """Whether this process was started as one rank of a world."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ and "MASTER_ADDR" in os.environ


def run_here(fn: Callable[..., Any], world_size: int, args: tuple[Any, ...], options: dict[str, Any]) -> Run:
    raise NotImplementedError
