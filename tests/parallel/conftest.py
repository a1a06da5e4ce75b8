"""What tests of strategies share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import labkit


@pytest.fixture(scope="module")
def worlds() -> Iterator[Callable[[int], Any]]:
    """Worlds by size, each made once and kept for all tests of a file."""
    made: dict[int, Any] = {}

    def of(size: int) -> Any:
        if size not in made:
            made[size] = labkit.world(size, transport="local")
        return made[size]

    yield of
    for world in made.values():
        world.close()
