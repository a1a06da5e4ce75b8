"""Files of a gradebook: a reader finds the old text or the new, never a half."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def put(path: Path, text: str, mode: int = 0o644) -> Path:
    """Write `text` to `path`, which then has the permissions `mode`, from its first byte on. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    return path
