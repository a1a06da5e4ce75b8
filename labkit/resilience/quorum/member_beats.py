"""Heartbeats of the members of one host: times in memory that members write and an aggregator reads."""

from __future__ import annotations

import mmap
import os
import struct
import time

from .errors import BadCall

HEAD = struct.Struct("<QQ")  # rank of the first member here, how many
TIME = struct.Struct("<d")  # aligned: a reader sees the old time or the new one


def _path(folder: str, replica: int, incarnation: int) -> str:
    return os.path.join(folder, f"{replica}-{incarnation}")


class Part:
    """The members of one incarnation of a replica that are on this host: ranks `first` to `first + count - 1`.

    gone: one of them is known to have died.
    """

    def __init__(self, folder: str, replica: int, incarnation: int, first: int, count: int):
        self.replica, self.incarnation, self.first, self.count, self.gone = replica, incarnation, first, count, False
        self._times = struct.Struct(f"<{count}d")
        self._path = _path(folder, replica, incarnation)
        with open(self._path, "xb+") as f:
            f.truncate(HEAD.size + self._times.size)
            self._map = mmap.mmap(f.fileno(), 0)
        self._times.pack_into(self._map, HEAD.size, *[time.monotonic()] * count)
        HEAD.pack_into(self._map, 0, first, count)

    def quietest(self) -> float:
        """When that member was heard that has been silent for longest."""
        return min(self._times.unpack_from(self._map, HEAD.size))

    def close(self) -> None:
        self._map.close()
        os.unlink(self._path)


class MemberBeat:
    """What members use: `beat(rank)` says that it lives. folder: of the host's aggregator, after its check-in."""

    def __init__(self, folder: str, replica: int, incarnation: int):
        try:
            with open(_path(folder, replica, incarnation), "rb+") as f:
                self._map = mmap.mmap(f.fileno(), 0)
        except OSError as why:
            raise BadCall(
                f"incarnation {incarnation} of replica {replica} has no members on this host ({why})"
            ) from why
        self._replica = replica
        self._first, self._count = HEAD.unpack_from(self._map, 0)

    def beat(self, rank: int) -> None:
        """Note the time."""
        place = rank - self._first
        if not 0 <= place < self._count:
            last = self._first + self._count - 1
            raise BadCall(f"rank {rank} of replica {self._replica}: on this host are ranks {self._first} to {last}")
        TIME.pack_into(self._map, HEAD.size + TIME.size * place, time.monotonic())

    def close(self) -> None:
        self._map.close()
