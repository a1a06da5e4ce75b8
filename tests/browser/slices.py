"""Which chapters an ordinary run opens in a browser: those that changed last. `make browser` opens all of them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def changed_last(names: Iterable[str], count: int, root: Path = ROOT) -> list[str]:
    """The `count` chapters whose notebook or questions changed last, by git. All of them where git does not know,
    and with LABKIT_BROWSER=all."""
    names = list(names)
    if os.environ.get("LABKIT_BROWSER") == "all":
        return names
    when = {name: _changed(name, root) for name in names}
    if None in when.values():
        return names
    latest = set(sorted(names, key=lambda name: (when[name], name))[-count:])
    return [name for name in names if name in latest]


def _changed(name: str, root: Path) -> int | None:
    """Seconds of the last commit that touched a chapter; None if there is no such commit, or no git."""
    paths = [f"notebooks/{name}.ipynb", f"labkit/course/chapters/{name}.toml"]
    command = ["git", "log", "-1", "--format=%ct", "--", *paths]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip() else None
