"""The fixtures of all browser tests: a running JupyterLab. Skipped where there is no browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from browser.lab import Lab, running


@pytest.fixture(scope="session")
def lab(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """On an empty folder."""
    with running(tmp_path_factory.mktemp("lab"), chromium) as started:
        yield started


@pytest.fixture(scope="session")
def copies(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """What `labkit lab` opens: a reader's own copies of all chapters, and no progress yet."""
    with running(tmp_path_factory.mktemp("copies"), chromium, copies=True) as started:
        yield started


@pytest.fixture(scope="session")
def other_copies(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Those of another reader, for a second story of the same chapter."""
    with running(tmp_path_factory.mktemp("other_copies"), chromium, copies=True) as started:
        yield started
