"""An epoch of a group: the same ranks may form one again and again, and each time may be other processes."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import RefusedError


@dataclass(frozen=True)
class Epoch:
    """number: agreed upon by the members, never twice the same for the same ones. addresses: of all, when it began.

    A rank that is restarted has a new address, so the addresses say which lives of the members are meant.
    """

    number: int
    addresses: dict[int, Any]

    @cached_property
    def lives(self) -> int:
        """A number for the addresses: who comes with another one means other processes."""
        return zlib.crc32(repr(sorted(self.addresses.items())).encode())


def epoch_of(number: Any, members: Sequence[int], address: Any) -> Epoch:
    """Epoch `number` of these world ranks as they live now. `address(rank)` tells where a rank listens."""
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 1 << 62:
        raise RefusedError(f"epoch={number!r}: needs a whole number above 0 that all members agree on")
    return Epoch(number, {rank: address(rank) for rank in members})
