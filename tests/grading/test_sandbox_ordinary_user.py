"""The attacks again, as an ordinary user: the tiers "userns" and "landlock" are not for root."""

from __future__ import annotations

import os
import sys

import pytest
import unprivileged

pytestmark = pytest.mark.ranks


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root has to become an ordinary user")
@pytest.mark.parametrize("tier", ["userns", "landlock"])
def test_the_attacks_as_an_ordinary_user(tier):
    options = ["-q", "-p", "no:cacheprovider", "-k", tier, "tests/grading/attacks"]
    command = [sys.executable, "-B", "-m", "pytest", *options]
    try:
        done = unprivileged.run(command, 280)
    except OSError as why:
        pytest.skip(f"this root cannot lay folders open: {why}")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    last = done.stdout.strip().splitlines()[-1]
    if " passed" not in last:
        pytest.skip(f"tier {tier}: {done.stdout[-500:]}")
    print(last)
