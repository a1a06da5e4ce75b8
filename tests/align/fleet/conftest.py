"""One thread for small models, which is what suits these."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from labkit.models.threads import one_thread


@pytest.fixture(autouse=True)
def one_thread_each() -> Iterator[None]:
    with one_thread():
        yield
