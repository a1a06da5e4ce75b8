"""Ways to move messages between ranks: what a transport is, and which there are.

A transport is one file of this folder: a `Transport` and its `Lane`, and one function under `@kind(...)` that makes a
rank's own from its `Site`. `kinds()` finds the files by itself; options, refusals, and the tests of every transport go
by what it says.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..errors import RefusedError, WaitTimeout

if TYPE_CHECKING:
    import torch

    from ..message import Message
    from .epoch import Epoch

FOREVER = float("inf")


class Lane(Protocol):
    """The messages of one lane of one group: of the reader's own, or of collectives.

    `push` and `pull` say what to do with a message, and are only handed back: to `run`, which does it, and to `post`,
    which begins it. A lane raises PeerLost, WaitTimeout and, if its messages have headers, Mismatch.
    """

    @property
    def push(self) -> Callable[[Message], Any]:
        """To send a message."""

    @property
    def pull(self) -> Callable[[Message], Any]:
        """To receive one; with `m.op` what arrives is combined with what lies there."""

    def run(self, *messages: tuple[Callable[[Message], Any], Message], limit: float = FOREVER) -> None:
        """Move the messages, at the same time, and return when all are done. limit: seconds, if below the lane's."""

    def post(self, advance: Callable[[Message], Any], m: Message) -> None:
        """Begin a message; `m.finish()` is called when it is over, in any thread, with `m.error` set if it failed."""

    def wait(self, m: Message, limit: float = FOREVER) -> None:
        """Wait for a message that was begun, and raise what went wrong with it."""

    def close(self) -> None:
        """Give back what the lane holds."""

    def open(self, members: Sequence[int]) -> None:
        """The lane's members, by world rank, in the order of the group; said once, before any message."""
        return

    # of a transport that is `rebuildable`

    def leave(self, peers: list[int]) -> None:
        """Wake whoever waits for this rank on this lane, now or later: nothing more will come."""
        raise RefusedError("a lane of this transport cannot be left")

    def idle(self) -> bool:
        """Whether no message is under way in the background."""
        return True


class Transport(Protocol):
    """A rank's way to every other rank. Ranks are world ranks here.

    rebuildable: groups can be left and formed anew, what a failed one left behind reaches nobody, and `limit` is kept.
    numbers_messages: a message is known by its number, so that none is taken for one before it that is missing.
    host_memory: it moves bytes from and to host memory only; tensors elsewhere go by way of it (`staging`).
    device: where the rank's tensors live, if the transport says so and not the engine.
    """

    rank: int
    name: str
    rebuildable: bool = False
    numbers_messages: bool = False
    host_memory: bool = True
    device: torch.device | None = None

    def lane(self, key: int, lane: int, timeout: float, epoch: Epoch | None = None) -> Lane:
        """One lane of the group `key`. timeout: seconds, the longest single wait."""
        ...

    def close(self) -> None:
        """The rank is through, or failed: whoever waits for it shall learn that it is gone."""

    def address(self, peer: int) -> Any:
        """Where `peer` is reached; another place after a restart. Of a transport that is `rebuildable`."""
        raise RefusedError(f"transport={self.name!r} cannot tell the lives of a rank apart")

    def must_be_rebuildable(self, what: str) -> None:
        """Refuse `what`, which forms groups anew or gives up a single wait, on a transport that cannot."""
        if not self.rebuildable:
            raise RefusedError(
                f"{what} needs transport='local' or 'gloo', not {self.name!r}: there a wait ends at its limit, and "
                "groups can be formed anew"
            )

    def forget(self, lane: Any) -> None:
        """Close a lane before the end of the run. Of a transport that is `rebuildable`."""
        lane.close()


class Sockets(NamedTuple):
    """labkit's own way between processes: a listener, where everybody else listens, and what only ranks know."""

    listener: socket.socket
    addresses: Any  # by world rank
    secret: bytes
    alive: Callable[[int], bool] | None = None  # whether a rank still runs, where that can change


@dataclass(frozen=True)
class Site:
    """What a rank has when its transport is made.

    store: of torch.distributed, where its process groups meet; it has `set`, `get`, `check`, `wait` and `clone`, and no
    rank's death harms it. addresses: by world rank, another one for another life of the rank. alive: whether a rank
    still runs, where that can change. sockets: how to get labkit's own. timed: messages carry their sender's time
    (virtual clock, emulated links). limit: seconds, later than every other time-out of the run.
    """

    rank: int
    size: int
    store: Any
    addresses: Any
    alive: Callable[[int], bool] | None
    sockets: Callable[[], Sockets]
    timed: bool
    limit: float


@dataclass(frozen=True)
class Kind:
    """A transport that can be asked for.

    device: of the tensors that it moves. own_sockets: it uses `Site.sockets`. carries_time: its messages can carry
    their sender's time, which a virtual clock and emulated links ask for. listed: readers are told of it.
    process_groups: registers the backend of torch.distributed for the world's process group, if that is not the
    device's own, and returns its name.
    """

    name: str
    make: Callable[[Site], Transport]
    device: str = "cpu"
    own_sockets: bool = False
    carries_time: bool = True
    listed: bool = True
    process_groups: Callable[[], str] | None = None


def too_late(rank: int, peer: int, limit: float, longest: float) -> WaitTimeout:
    """The error of `rank`, which waited `limit` seconds for `peer`. longest: seconds that a wait may take at most."""
    what = "`timeout=` sets the longest single wait" if limit >= longest else "Its limit was set for this call"
    late = WaitTimeout(
        f"rank {rank} waited {limit:.3g} s for rank {peer}: nothing moved. Is rank {peer} in the same operation? {what}"
    )
    late.peer = peer
    return late


_kinds: dict[str, Kind] = {}


def kind(name: str, **of_it: Any) -> Callable[[Callable[[Site], Transport]], Callable[[Site], Transport]]:
    """Register a function that makes a rank's transport of this name."""

    def register(make: Callable[[Site], Transport]) -> Callable[[Site], Transport]:
        _kinds[name] = Kind(name, make, **of_it)
        return make

    return register


@functools.cache
def kinds() -> dict[str, Kind]:
    """Every transport, by name: what the files of this folder have registered."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(_kinds.items()))
