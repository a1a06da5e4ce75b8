"""Where each rank can be reached: a little table in shared memory that the host fills in."""

from __future__ import annotations

import mmap
from typing import Any

_ENTRY = 128


class AddressTable:
    """Addresses by rank; a rank that is restarted gets a new line."""

    def __init__(self, size: int):
        self._map = mmap.mmap(-1, _ENTRY * size)  # anonymous and shared: forked ranks see later changes

    def __setitem__(self, rank: int, address: Any) -> None:
        raw = address if isinstance(address, bytes) else f"{address[0]}:{address[1]}".encode()
        kind = b"u" if isinstance(address, bytes) else b"t"
        self._map[rank * _ENTRY : (rank + 1) * _ENTRY] = (kind + bytes([len(raw)]) + raw).ljust(_ENTRY, b"\0")

    def __getitem__(self, rank: int) -> Any:
        entry = self._map[rank * _ENTRY : (rank + 1) * _ENTRY]
        raw = entry[2 : 2 + entry[1]]
        if entry[:1] == b"u":
            return raw
        host, _, port = raw.decode().rpartition(":")
        return (host, int(port))
