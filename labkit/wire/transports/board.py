"""Where the ranks of a host tell each other how to connect: a store of torch.distributed that no rank can spoil.

PyTorch's `FileStore` keeps its entries in a file behind a lock, several writes an entry. A rank that is killed between
two of them leaves half an entry, over which everybody else stumbles from then on; one that is stopped inside the lock
stops all. Here an entry is one write of `RECORD` bytes to the end of the file, which Linux does as a whole or not at
all (it lies in one page), and there is no lock. The file is nameless memory of the host, and outlives every rank.
"""

from __future__ import annotations

import os
import threading
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

RECORD = 4096  # bytes of an entry: a divisor of every page size
PAUSE, LONGEST = 0.0005, 0.02  # seconds between two looks for an entry: the first pause, and what it grows to


class Board(dist.Store):
    """Keys and bytes. A key that is set again has its last value. `get` and `wait` look again and again, as others do.

    path: of the file, which exists. Raises dist.DistStoreError where a wait runs out.
    """

    def __init__(self, path: str):
        super().__init__()
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        self._read, self._known = 0, dict[str, bytes]()
        self._lock = threading.Lock()

    def set(self, key: str, value: Any) -> None:
        """Write one entry; at most RECORD - 4 bytes of key and value."""
        name, raw = key.encode(), value.encode() if isinstance(value, str) else bytes(value)
        entry = b"".join((len(name).to_bytes(2, "little"), len(raw).to_bytes(2, "little"), name, raw))
        if len(entry) > RECORD:
            raise ValueError(f"an entry has {RECORD} bytes at most, and {key!r} with its value {len(entry)}")
        os.write(self._file, entry.ljust(RECORD, b"\0"))

    def check(self, keys: list[str]) -> bool:
        """Whether all of them have been set."""
        with self._lock:
            while raw := os.pread(self._file, 1 << 18, self._read):
                for at in range(0, len(raw) // RECORD * RECORD, RECORD):
                    name = at + 4 + int.from_bytes(raw[at : at + 2], "little")
                    self._known[raw[at + 4 : name].decode()] = raw[
                        name : name + int.from_bytes(raw[at + 2 : at + 4], "little")
                    ]
                self._read += len(raw)
            return all(key in self._known for key in keys)

    def get(self, key: str) -> bytes:
        """The value of a key, as soon as it has one."""
        self.wait([key])
        return self._known[key]

    def wait(self, keys: list[str], timeout: timedelta = timedelta(seconds=300)) -> None:
        """Return when all of them have been set."""
        end, pause = time.monotonic() + timeout.total_seconds(), PAUSE
        while not self.check(keys):
            if time.monotonic() > end:
                raise dist.DistStoreError(f"nobody has set {keys} within {timeout.total_seconds():g} s")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)

    def clone(self) -> Board:
        """Itself: it serves many threads at once."""
        return self
