"""The copy of a state that others fetch: made in host memory while this rank computes, and only if somebody asks.

The state does not change between the beginning of a step and its commit, so the copy may be made in the background.
A commit waits for the copying (memory speed), never for those who fetch: they read the copy.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

from .state import Snapshot, TrainingState, room_for

if TYPE_CHECKING:
    from .server import StateServer

AT_ONCE = 4 << 20  # bytes that are copied without a thread: less time than it takes to start one


class Stager:
    """Makes snapshots of one state and hands them to `server`."""

    def __init__(self, state: TrainingState, server: StateServer, device: torch.device):
        self.state, self.server, self.device = state, server, device
        self.staged = 0  # how many snapshots were made
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def stage(self) -> None:
        """Begin to copy the present state; the server has it as soon as it is complete."""
        self.settle()
        header = self.state.header()
        self.staged += 1
        snapshot = room_for(header, pinned=self.device.type == "cuda")
        if header["nbytes"] <= AT_ONCE:
            self._copy(snapshot)
            return
        self._thread = threading.Thread(target=self._guarded, args=(snapshot,), name="labkit-staging", daemon=True)
        self._thread.start()

    def settle(self) -> None:
        """Return when nothing is being copied; the state may change after that. Raises what the copying raised."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def drop(self) -> None:
        """Nobody is behind: let the copy go."""
        self.settle()
        self.server.drop()

    def _guarded(self, snapshot: Snapshot) -> None:
        try:
            self._copy(snapshot)
        except BaseException as error:
            self._error = error

    def _copy(self, snapshot: Snapshot) -> None:
        if self.device.type == "cuda":  # beside the kernels of forward and backward
            stream = torch.cuda.Stream(self.device)
            stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(stream):
                self.state.copy_into(snapshot)
            stream.synchronize()
        else:
            self.state.copy_into(snapshot)
        self.server.offer(snapshot)
