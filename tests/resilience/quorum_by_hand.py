"""A quorum service whose clock the test turns, for rules that are tried one by one."""

from __future__ import annotations

from typing import Any

from labkit.resilience.quorum import Quorum, QuorumState

BEAT = ("rank", 0)


class Turned:
    """A state whose clock is turned by hand. Options: those of `Rules`."""

    def __init__(self, replicas: int = 3, **options: Any):
        options = {"join": 2.0, "first": 5.0, "heartbeat": 1.0, "reconnect": 0.1} | options
        self.state, self.now = QuorumState(replicas, **options), 50.0
        self.answers: dict[Any, Any] = {}

    def check_in(self, *replicas: int) -> None:
        for r in replicas:
            self.state.register(r, 0, 1, self.now, ("check in", r))
            self.state.heard(r, self.life(r), BEAT, self.now)
        self.pass_(0)

    def life(self, replica: int) -> int:
        return self.state.slots[replica].incarnation

    def join(self, replica: int, step: int, **options: Any) -> None:
        self.answers.pop(replica, None)
        self.state.join(replica, self.life(replica), step, self.now, replica, **options)
        self.pass_(0)

    def all_join(self, *replicas: int, step: int, **options: Any) -> Any:
        for r in replicas:
            self.join(r, step, **options)
        return self.answers.get(replicas[-1])

    def pass_(self, seconds: float, silent: tuple[int, ...] = ()) -> None:
        """Time goes by in small steps; whoever is not silent beats."""
        end = self.now + seconds
        while True:
            for s in self.state.slots:
                if s.phase == "live" and s.replica not in silent and not s.closed:
                    self.state.heard(s.replica, s.incarnation, BEAT, self.now)
            self.state.tick(self.now)
            self.answers.update(self.state.take())
            if self.now >= end:
                return
            self.now = min(end, self.now + 0.05)

    def died(self, replica: int) -> None:
        self.state.withdraw(replica)
        self.state.closed(replica, self.life(replica), BEAT, self.now)


def begun(replicas: int = 3, step: int = 5, **options: Any) -> Turned:
    """All replicas are in `step`."""
    t = Turned(replicas, **options)
    t.check_in(*range(replicas))
    assert isinstance(t.all_join(*range(replicas), step=step), Quorum)
    return t
