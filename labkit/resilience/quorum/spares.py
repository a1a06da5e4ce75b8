"""Warm spares: processes that have done their first-step work and wait to be needed."""

from __future__ import annotations

from typing import Any

from .errors import NoQuorum


class Spares:
    """Who stands by, and orders for those that do not yet. answers: where results go, see `QuorumState`."""

    def __init__(self, answers: list[tuple[Any, Any]]):
        self._answers = answers
        self._standing: dict[int, tuple[Any, float]] = {}  # by number: (ticket, until)
        self._orders: dict[int, dict[str, Any]] = {}

    def standby(self, replica: int, ticket: Any, until: float) -> None:
        """One waits to be promoted, until then."""
        if replica in self._standing:
            self._answers.append((self._standing[replica][0], NoQuorum("another process stands by in its place")))
        self._standing[replica] = (ticket, until)
        self._send(replica)

    def promote(self, replica: int, data: dict[str, Any]) -> None:
        """Let it take part; the order is kept for one that does not wait yet."""
        self._orders[replica] = data
        self._send(replica)

    def _send(self, replica: int) -> None:
        if replica in self._standing and replica in self._orders:
            self._answers.append((self._standing.pop(replica)[0], {"data": self._orders.pop(replica)}))

    def withdraw(self, ticket: Any) -> None:
        """The caller is gone."""
        self._standing = {r: (t, until) for r, (t, until) in self._standing.items() if t != ticket}

    def expire(self, now: float) -> None:
        """Tell those whose time is over."""
        for replica, (ticket, until) in list(self._standing.items()):
            if now >= until:
                del self._standing[replica]
                self._answers.append((ticket, NoQuorum(f"spare {replica} was not needed")))

    @property
    def standing(self) -> list[int]:
        """The numbers of those that wait."""
        return sorted(self._standing)

    def due(self) -> float:
        return min((until for _, until in self._standing.values()), default=float("inf"))
