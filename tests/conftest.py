"""What all tests share: functions of test files travel to ranks by value, and nothing may be left behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest
from leftovers import eventually, ranks_of, shared_memory, zombies

WATCHED = {"world", "wire", "chaos"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # By reference, every rank would import the test file, and pytest and hypothesis with it.
    for module in {item.module.__name__ for item in items if isinstance(item, pytest.Function)}:
        cloudpickle.register_pickle_by_value(sys.modules[module])


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test of real processes: no rank, no host, no zombie, no name in /dev/shm."""
    if request.path.parent.name not in WATCHED:
        yield
        return
    from labkit.world.engine import _zygote, launch

    if _zygote._process is None:
        launch(_nothing, 1)  # no test measures the start of PyTorch
    before = shared_memory()
    yield
    worker = _zygote._process.pid if _zygote._process is not None else -1
    assert eventually(lambda: not ranks_of(worker)), f"still there: {ranks_of(worker)}"
    assert eventually(lambda: not zombies()), f"not buried: {zombies()}"
    assert eventually(lambda: shared_memory() <= before, 2), f"in /dev/shm: {shared_memory() - before}"


def _nothing(group: object) -> None: ...


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """One browser for all tests that need one; Playwright cannot run twice in a process."""
    from browser.lab import browsing, missing

    if why := missing():
        pytest.skip(why)
    with browsing() as started:
        yield started
