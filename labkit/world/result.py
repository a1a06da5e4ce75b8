"""How a rank hands over what its function returned."""

from __future__ import annotations

import io
import os
import pickle
import tempfile
from typing import Any

from labkit.wire.errors import RefusedError

from .serialization import Pickler


def store_result(result: Any, rank: int, limit: int) -> tuple[int, int]:
    """The pickled result of a rank in nameless memory, `limit` bytes at most: (descriptor, bytes)."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("labkit-result")
    else:
        with tempfile.TemporaryFile() as f:
            fd = os.dup(f.fileno())
    with os.fdopen(os.dup(fd), "wb") as f:
        try:
            Pickler(_Limited(f, limit), protocol=5).dump(result)
        except _TooLarge:
            raise RefusedError(
                f"rank {rank} returned more than {limit / 1e9:.3g} GB: return what you need to look at "
                "(a norm, a slice), or raise max_result_bytes="
            ) from None
        except (pickle.PicklingError, TypeError, AttributeError, RuntimeError, ValueError) as why:
            raise RefusedError(
                f"rank {rank} returned a {type(result).__name__} that cannot be sent to the notebook: {why}. "
                "Return numbers, tensors, or plain containers of them"
            ) from why
    return fd, os.fstat(fd).st_size


class _TooLarge(Exception):
    pass


class _Limited(io.RawIOBase):
    def __init__(self, f: Any, limit: int):
        self._f, self._left = f, limit

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        n = memoryview(data).nbytes
        self._left -= n
        if self._left < 0:
            raise _TooLarge
        self._f.write(data)
        return n
