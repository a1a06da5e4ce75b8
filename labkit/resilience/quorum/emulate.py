"""A quorum over very many members on one machine: the control plane is real, the training is left out.

One service, one process for each host with its aggregator, and the members as entries that beat and are told. Measured
is what all of them wait for: from the moment at which the last leader has asked until the last member on the last host
has been told. It runs in a fresh interpreter without PyTorch, because it forks a process for each host.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import socket
import subprocess
import sys
import time
from typing import Any

from .emulated_blocks import blocks, cut
from .emulated_host import be_host
from .errors import BadCall
from .service import QuorumService, interpreter

HOSTS = 100
SLOW = 90.0  # seconds without any news: something is wrong


def emulate(
    members: int = 100_000, replicas: int = 12, *, hosts: int | None = None, rounds: int = 20, beat: float = 5.0,
    every: float = 1.0, idle: float = 4.0, timeout: float = 300.0,
) -> dict[str, Any]:  # fmt: skip
    """Seconds of quorums over `members` ranks in `replicas` replicas; heartbeats come through `hosts` aggregators.

    beat: seconds between two heartbeats of a member; every: between two messages of an aggregator. hosts: 100, or as
    many as eight members each make, and never fewer than replicas. idle: seconds over which the service's work for
    heartbeats alone is measured.
    Result: "check in" (all members at the start), "same" (quorums with unchanged
    members: the times of all rounds), "new" (one after a failed exchange: a new id), "death" (from the death of one
    member to the quorum without its replica), "again" (from its new incarnation's first check-in to all in it),
    "rejoin" (a quorum with a replica that is behind), "service CPU" per round and per second of heartbeats.
    """
    hosts = max(replicas, min(HOSTS, members // 8)) if hosts is None else hosts
    if not (1 <= replicas <= members and 1 <= hosts <= members and rounds >= 1 and replicas >= 2):
        raise BadCall(
            f"emulate: {members} members in {replicas} replicas on {hosts} hosts: needs 2 replicas or more, "
            "and a member for each replica and host"
        )
    if not 0 < idle < timeout:
        raise BadCall(f"emulate: idle={idle}: needs a number of seconds above 0, and less than timeout={timeout:g}")
    if hosts < replicas:  # the last replica, one member of which dies, would have no host of its own
        raise BadCall(f"emulate: {replicas} replicas on {hosts} hosts: needs a host for each replica")
    asked = {"members": members, "replicas": replicas, "hosts": hosts, "rounds": rounds, "beat": beat, "every": every,
             "idle": idle}  # fmt: skip
    found = subprocess.run(
        interpreter("emulate"), input=json.dumps(asked) + "\n", text=True,
        stdout=subprocess.PIPE, timeout=timeout, check=True,
    )  # fmt: skip
    return json.loads(found.stdout)


class Emulation:
    """The driver: orders to hosts, reports from them."""

    def __init__(self, asked: dict[str, Any]):
        self.rounds, self.replicas, self.idle = asked["rounds"], asked["replicas"], asked["idle"]
        self.blocks = blocks(asked["members"], asked["replicas"], asked["hosts"])
        self.lines = _fork(len(self.blocks))
        self._held = dict.fromkeys(self.lines, b"")
        self._selector = selectors.DefaultSelector()
        for line in self.lines:
            self._selector.register(line, selectors.EVENT_READ)
        self.service = QuorumService.start(
            self.replicas, heartbeat=max(20.0, 4 * asked["beat"]), join=60.0, first=60.0, linger=30.0
        )
        ranks = [count for _, count in cut(asked["members"], self.replicas)]
        for number, (line, here) in enumerate(zip(self.lines, self.blocks, strict=True)):
            self._order(line, {
                "address": self.service.address, "token": self.service.token, "host": f"host {number}", "blocks": here,
                "ranks": ranks, "beat": asked["beat"], "every": asked["every"],
            })  # fmt: skip
        begin = time.monotonic()
        self.check_in = max(m["at"] for m in self._reports(len(self.lines), "ready")) - begin

    def _order(self, line: socket.socket, order: dict[str, Any]) -> None:
        line.sendall(json.dumps(order).encode() + b"\n")

    def _reports(self, count: int, kind: str, among: Any = None) -> list[dict[str, Any]]:
        """Wait until `among` has `count` reports of a kind. Without it, reports of other kinds are left out."""
        found: list[dict[str, Any]] = []
        end = time.monotonic() + SLOW
        kept = among if among is not None else found
        while sum(kind in m for m in kept) < count:
            if time.monotonic() > end:
                raise TimeoutError(f"{sum(kind in m for m in kept)} of {count} reports '{kind}' within {SLOW:g} s")
            for key, _ in self._selector.select(1.0):
                line: Any = key.fileobj
                data = line.recv(1 << 16)
                if not data:
                    raise RuntimeError("a host of the emulation has ended; its standard error says why")
                *lines, self._held[line] = (self._held[line] + data).split(b"\n")
                kept += [json.loads(text) for text in lines]
            if wrong := [m["error"] for m in kept if "error" in m]:
                raise RuntimeError(f"a leader could not join: {wrong[0]}")
        return [m for m in kept if kind in m]

    def round(self, step: int, **options: Any) -> float:
        """One quorum of all replicas: seconds from the last leader's question to the last member."""
        self._ask(step, list(range(self.replicas)), options)
        return self._told(self.replicas)

    def _ask(self, step: int, replicas: list[int], options: dict[str, Any]) -> None:
        for line, here in zip(self.lines, self.blocks, strict=True):
            for replica, first, _ in here:
                if first == 0 and replica in replicas:
                    own = {"step": step} | (options if replica == 0 or "behind" not in options else {})
                    if options.get("behind") == replica:
                        own = {"step": 0, "lineage": 0}
                    own.pop("behind", None)
                    self._order(line, {"do": "join", "replica": replica, "options": own})

    def _told(self, leaders: int, begin: float | None = None, reports: Any = None) -> float:
        reports = [] if reports is None else reports
        joined = self._reports(leaders, "joined", reports)
        told = self._reports(len(self.lines), "told", reports)
        if len({(m["id"], m["step"]) for m in joined} | {(m["told"], m["step"]) for m in told}) != 1:
            raise RuntimeError("hosts were told different quorums")
        return max(m["at"] for m in told + joined) - (max(m["sent"] for m in joined) if begin is None else begin)

    def run(self) -> dict[str, Any]:
        """All measurements."""
        self.round(0)
        work = processor(self.service.pid)
        begin = time.monotonic()
        time.sleep(self.idle)
        idle = (processor(self.service.pid) - work) / (time.monotonic() - begin)
        work = processor(self.service.pid)
        begin = time.monotonic()
        same = [self.round(step) for step in range(1, self.rounds + 1)]
        load = (processor(self.service.pid) - work - idle * (time.monotonic() - begin)) / self.rounds
        step = self.rounds + 1
        new = [self.round(step, failed=True) for _ in range(self.rounds)]
        # A member of the last replica dies in the middle of a step; the other replicas have asked for the next quorum.
        last = self.replicas - 1
        self._ask(step, list(range(last)), {"failed": True})
        time.sleep(0.5)
        holder = next(i for i in reversed(range(len(self.blocks))) if self.blocks[i][0][0] == last)
        self._order(self.lines[holder], {"do": "lose"})
        reports: list[dict[str, Any]] = []
        died = self._reports(1, "lost", reports)[0]["at"]
        death = self._told(last, died, reports)
        again, rejoin = self._restart(last, step)
        return {
            "check in": self.check_in, "same": same, "new": new, "death": death, "again": again, "rejoin": rejoin,
            "service CPU of a round": max(0.0, load), "service CPU of a second of heartbeats": idle,
            "processes": len(self.lines) + 2, "hosts": len(self.lines),
        }  # fmt: skip

    def _restart(self, replica: int, step: int) -> tuple[float, float]:
        from .client import QuorumClient

        with QuorumClient(self.service.address, self.service.token) as client:
            client.begin(replica)
        begin = time.monotonic()
        on = [line for line, here in zip(self.lines, self.blocks, strict=True) if any(b[0] == replica for b in here)]
        for line in on:
            self._order(line, {"do": "check in", "replica": replica})
        again = max(m["at"] for m in self._reports(len(on), "checked in")) - begin
        return again, self.round(step + 1, behind=replica)

    def close(self) -> None:
        """End the hosts and the service."""
        for line in self.lines:
            line.close()
        for _ in self.lines:
            os.wait()
        self.service.stop()


def _fork(count: int) -> list[socket.socket]:
    lines: list[socket.socket] = []
    for _ in range(count):
        mine, theirs = socket.socketpair()
        if os.fork() == 0:
            for line in [*lines, mine]:
                line.close()
            os.close(0)
            be_host(theirs)
        theirs.close()
        lines.append(mine)
    return lines


def processor(pid: int) -> float:
    """Processor seconds of a process so far (Linux; elsewhere 0)."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(_: list[str]) -> int:
    """Read what is asked from standard input, write what was found to standard output."""
    emulation = Emulation(json.loads(sys.stdin.readline()))
    try:
        found = emulation.run()
    finally:
        emulation.close()
    largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # of those that have ended: hosts and service
    print(json.dumps({**found, "MB of a process": largest / (1e3 if sys.platform == "linux" else 1e6)}))
    return 0
