"""Under nbval a student's notebook is red cell by cell until its public checks pass, and the solution is green."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from zoo_runs import CHAPTERS, ROOT, source

pytestmark = [pytest.mark.ranks, pytest.mark.long]


def nbval(notebook: Path) -> subprocess.CompletedProcess[str]:
    """`pytest --nbval-lax` on a notebook, in a process of its own, without this run's own options."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env", "--nbval-cell-timeout=120"]
    command += ["-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), str(notebook)]
    return subprocess.run(
        command, cwd=ROOT, env=kept | {"LABKIT_SLOW_MACHINE": "5"}, capture_output=True, text=True, timeout=280
    )


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_stubs_fail_at_their_public_checks_only(chapter):
    done = nbval(ROOT / "exercises" / f"{chapter}.ipynb")
    public = [cell for exercise in source(chapter).exercises for cell in exercise.by_role("public")]
    assert re.search(rf"\b{len(public)} failed, \d+ passed", done.stdout), done.stdout[-3000:]
    assert done.stdout.count("not attempted yet") >= len(public)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_solutions_pass_all_checks(chapter):
    done = nbval(ROOT / "solutions" / f"{chapter}.ipynb")
    assert done.returncode == 0, done.stdout[-3000:]
