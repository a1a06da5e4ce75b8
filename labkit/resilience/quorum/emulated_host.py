"""One host of the emulation: a real aggregator, and its members, of which only the control messages are real.

A member here is a rank without a process: it sends its heartbeats as a process would, and is told each quorum.
The leaders of replicas whose rank 0 lies on this host join through the real client.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import traceback
from typing import Any

from .aggregator import Aggregator
from .client import QuorumClient
from .errors import TROUBLE
from .member_beats import MemberBeat
from .membership import Quorum

TICK = 0.5  # seconds between two times that some members beat


class EmulatedHost:
    """Lives in a process of its own and talks to the driver in lines of JSON over `line`."""

    def __init__(self, line: socket.socket, asked: dict[str, Any]):
        self._line = line
        self._out = threading.Lock()
        self._ranks, self._beat = asked["ranks"], asked["beat"]
        self._blocks = [tuple(block) for block in asked["blocks"]]  # (replica, first rank, count)
        self._members = sum(count for *_, count in self._blocks)
        self.steps = [-1] * self._members  # what each member was told to train next
        self._aggregator = Aggregator(
            asked["address"], asked["token"], asked["host"], every=asked["every"], on_quorum=self._tell_members
        )
        self._beats: dict[int, MemberBeat] = {}
        self._client = QuorumClient(asked["address"], asked["token"])
        self._check_in(range(len(self._ranks)))

    def _check_in(self, replicas: Any) -> None:
        blocks = [(r, first, count, self._ranks[r]) for r, first, count in self._blocks if r in replicas]
        self._aggregator.check_in(blocks)
        for r, *_ in blocks:
            if r in self._beats:
                self._beats[r].close()
            self._beats[r] = MemberBeat(self._aggregator.folder, r, self._aggregator.incarnation(r))

    def _tell_members(self, quorum: Quorum) -> None:
        for i in range(self._members):
            self.steps[i] = quorum.step
        self.say({"told": quorum.id, "step": quorum.step, "at": time.monotonic()})

    def say(self, message: dict[str, Any]) -> None:
        """One line to the driver."""
        with self._out:
            self._line.sendall(json.dumps(message).encode() + b"\n")

    def lead(self, replica: int, options: dict[str, Any]) -> None:
        """Join for a replica and report: on a thread, because it waits."""

        def join() -> None:
            begin = time.monotonic()
            try:
                q = self._client.join(replica, self._aggregator.incarnation(replica), **options)
            except TROUBLE as why:
                return self.say({"error": f"{type(why).__name__}: {why}"})
            self.say({"joined": replica, "id": q.id, "step": q.step, "sent": begin, "at": time.monotonic()})

        threading.Thread(target=join, daemon=True).start()

    def run(self) -> None:
        """Beat, pass on, and do what the driver says, until it closes the line."""
        self._line.setblocking(False)
        held, sent, begin = b"", 0, time.monotonic()
        members = [(r, rank) for r, first, count in self._blocks for rank in range(first, first + count)]
        while True:
            # Beats are spread evenly: after t seconds each member has sent t / beat of them.
            wanted = int((time.monotonic() - begin) / self._beat * self._members)
            sent = max(sent, wanted - self._members)  # on a busy machine beats are missed, not made up for
            for i in range(sent, wanted):
                replica, rank = members[i % self._members]
                self._beats[replica].beat(rank)
            sent = wanted
            self._aggregator.step(min(TICK, self._beat / 4), [self._line])
            try:
                data = self._line.recv(65536)
            except BlockingIOError:
                continue
            if not data:
                return
            held += data
            *lines, held = held.split(b"\n")
            for line in lines:
                self._obey(json.loads(line))

    def _obey(self, order: dict[str, Any]) -> None:
        if order["do"] == "join":
            self.lead(order["replica"], order["options"])
        elif order["do"] == "lose":
            replica, first, _ = self._blocks[0]
            self._aggregator.gone(replica, first)
            self.say({"lost": replica, "at": time.monotonic()})
        elif order["do"] == "check in":
            self._check_in([order["replica"]])
            self.say({"checked in": order["replica"], "at": time.monotonic()})


def be_host(line: socket.socket) -> None:
    """Wait for what to be, be it, and end with the driver. Never returns."""
    code = 1
    try:
        held = b""
        while not held.endswith(b"\n"):
            data = line.recv(65536)
            if not data:
                os._exit(0)
            held += data
        host = EmulatedHost(line, json.loads(held))
        host.say({"ready": True, "at": time.monotonic()})
        try:
            host.run()
        finally:
            host._aggregator.close()
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)
