"""Write a file so that a reader finds the old text or the new, never a half."""

import os
import tempfile
from pathlib import Path


def write_atomically(path: Path, text: str, mode: int | None = None) -> Path:
    """Replace what `path` holds by `text` (UTF-8); folders are made, a link stays a link. Gives `path` back; OSError.

    mode: the permissions, from the first byte on; None for those that it has.
    """
    given, path = path, path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    if mode is None:
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    return given
