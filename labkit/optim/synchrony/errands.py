"""One rank that speaks with many at once, and does not wait for those that never answer."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterable
from typing import Any

from labkit.wire.errors import PeerLost, WaitTimeout
from labkit.wire.group import Group


class Errand:
    """A talk with one rank: what came of it (`answer`) or went wrong, and when it ended (ns, on the run's clock)."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.answer: Any = None
        self.failed: BaseException | None = None
        self.ended = 0


class Errands:
    """Talks with other ranks of `group`, each in a thread with a clock of its own. lost: why a rank is gone, by rank.

    On the virtual clock every talk is waited for, and counts as late by the time at which it ended; so times and who is
    late are exact. Talks do not share a port there. On the real clock nothing is waited for beyond the limit.
    """

    def __init__(self, group: Group) -> None:
        self.group, self.lost = group, dict[int, str]()
        self._under_way: dict[int, Errand] = {}

    def busy(self, rank: int) -> bool:
        """Whether the talk with `rank` still goes on."""
        errand = self._under_way.get(rank)
        return errand is not None and not (errand.over.is_set() and errand.ended <= self._now())

    def ask(self, rank: int, talk: Callable[..., Any], *args: Any) -> None:
        """Begin `talk(group, rank, *args)`, which sends and receives, with a rank that is not busy."""
        errand = self._under_way[rank] = Errand()
        work = functools.partial(talk, self.group, rank, *args)
        threading.Thread(target=self._run, args=(errand, work, self._now()), daemon=True).start()

    def gather(self, ranks: Iterable[int], seconds: float = math.inf) -> dict[int, Any]:
        """The answers of `ranks` that came within `seconds`, by rank. The other talks go on, or are `lost`.

        The clock is then at the last answer, or at the limit if one did not come. Raises what a talk raised, unless
        that was the loss of its rank.
        """
        clock = self.group.context.clock_here()
        until = clock.now() + seconds * 1e9
        came, end = {}, clock.now()
        for rank in ranks:
            errand = self._under_way[rank]
            # A limit beyond all waits of the wire: a talk with a rank that is silent for so long ends by itself.
            errand.over.wait(None if clock.virtual or seconds == math.inf else max(0.0, (until - clock.now()) / 1e9))
            if not errand.over.is_set() or errand.ended > until:
                end = max(end, int(until))
            elif isinstance(errand.failed, PeerLost | WaitTimeout):
                self.lost[rank] = "died" if isinstance(errand.failed, PeerLost) else "never answered"
            elif errand.failed is not None:
                raise errand.failed
            else:
                came[rank] = errand.answer
                end = max(end, errand.ended)
        clock.reach(end)
        return came

    def _run(self, errand: Errand, work: Callable[[], Any], now: int) -> None:
        context = self.group.context
        clock = context.local.clock = context.clock.fork()
        if clock.virtual:
            clock.reach(now)
        try:
            errand.answer = work()
        except BaseException as failed:
            errand.failed = failed
        finally:
            errand.ended = clock.now()
            context.recorder.free_slot(context.slot_here())
            errand.over.set()

    def _now(self) -> int:
        return self.group.context.clock_here().now()
