"""The fixture of all browser tests: `lab`, a running JupyterLab; skipped where there is no browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from browser.lab import Lab, missing, running


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    if why := missing():
        pytest.skip(why)
    with running(tmp_path_factory.mktemp("lab")) as started:
        yield started
