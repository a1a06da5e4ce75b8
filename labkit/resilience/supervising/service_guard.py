"""The quorum service of a run, and another one in its place if its process dies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labkit.resilience.quorum import QuorumClient, QuorumService
from labkit.resilience.quorum.connection import parse

MARGIN = 1000  # quorums that the lost service may have issued without anybody here having heard of them


class GuardedService:
    """A `QuorumService` with these options that keeps its address and its token, whatever happens to its process.

    client: for the calls of a supervisor. replaced: how often the process was lost. What it knew is known elsewhere:
    replicas join with the version of their state, and begin to beat again by themselves.
    """

    def __init__(self, replicas: int, timeout: float, **options: Any):
        self._replicas, self._options = replicas, options
        self._service = QuorumService.start(replicas, **options)
        self.address, self.token = self._service.address, self._service.token
        self.client = QuorumClient(self.address, self.token, timeout=timeout)
        self.replaced = 0

    @property
    def pid(self) -> int:
        """Of the process that serves now."""
        return self._service.pid

    def mind(self, incarnations: Mapping[int, int], last: int) -> bool:
        """Start another one if the process is gone; whether it was. last: the highest id of a quorum that is known."""
        if self._service.running:
            return False
        self._service.stop()
        numbers = [incarnations.get(r, 0) for r in range(self._replicas)]
        self._service = QuorumService.start(
            self._replicas, port=parse(self.address)[1], token=self.token, first_id=last + MARGIN,
            incarnations=numbers, **self._options,
        )  # fmt: skip
        self.replaced += 1
        return True

    def stop(self) -> None:
        """End it. May be called twice."""
        self.client.close()
        self._service.stop()
