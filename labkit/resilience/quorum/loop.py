"""The service's loop: sockets in, calls to the state, answers out. One thread, no PyTorch."""

from __future__ import annotations

import os
import selectors
import socket
import sys
import time
import traceback
from typing import Any

from .calls import call
from .errors import TROUBLE, BadCall, Trouble
from .membership import Quorum
from .peer import Peer, reply
from .slots import Source
from .state import QuorumState

GREETING = 30.0  # seconds for a stranger to show the token; on a busy machine an honest one may need some
LOOK = 0.5  # seconds at most between two looks at the clock and at the parent
STOPPED = 0.25  # seconds too late: the machine or a signal kept the service from running


class Loop:
    """Serve `state` on `listener` until `parent` (a file descriptor, -1: none) says something or ends."""

    def __init__(self, state: QuorumState, token: str, listener: socket.socket, parent: int = -1):
        self.state, self.token, self.listener, self.parent = state, token, listener, parent
        self._born_of = os.getppid()
        self._peers: set[Peer] = set()
        self._strangers: set[Peer] = set()
        self._beating: dict[tuple[int, Source], Peer] = {}
        self._told = 0
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, "door")
        if parent >= 0:
            self._selector.register(parent, selectors.EVENT_READ, "parent")

    def run(self) -> None:
        """Until the parent says so, or is gone (a fork of it may hold the other end of the pipe)."""
        before = time.monotonic()
        while self.parent < 0 or os.getppid() == self._born_of:
            wait = min(LOOK, max(0.0, self.state.deadline() - time.monotonic()))
            events = self._selector.select(wait)
            now = time.monotonic()
            if now - before - wait > STOPPED:  # since when is not known: at the earliest since the last look
                self.state.away(now - before, now)
            before = now
            for key, mask in events:
                if key.data == "parent":
                    return
                elif key.data == "door":
                    self._welcome(now)
                else:
                    self._serve(key.data, mask, now)
            self._settle(now)

    def close(self) -> None:
        """Close every connection: clients learn at once."""
        for peer in self._peers:
            peer.socket.close()
        self.listener.close()
        self._selector.close()

    def _welcome(self, now: float) -> None:
        for _ in range(256):
            try:
                sock, _ = self.listener.accept()
            except OSError:  # no more; or no more descriptors, then those that close make room
                return
            peer = Peer(sock, now)
            self._peers.add(peer)
            self._strangers.add(peer)
            self._selector.register(sock, selectors.EVENT_READ, peer)

    def _serve(self, peer: Peer, mask: int, now: float) -> None:
        if mask & selectors.EVENT_WRITE:
            peer.flush()
        open_ = peer.read() if mask & selectors.EVENT_READ else True
        try:
            while not peer.over and (message := peer.reader.next()) is not None:
                self._hear(peer, message, now)
        except BadCall as why:  # not one of our messages: what follows has no meaning either
            self._refuse(peer, why)
        if peer.over or not open_:
            self._drop(peer, now)
        else:
            self._mind(peer)

    def _hear(self, peer: Peer, message: dict[str, Any], now: float) -> None:
        if not peer.admitted:
            try:
                peer.admit(self.token, message)
                self._strangers.discard(peer)
            except TROUBLE as why:
                self._refuse(peer, why)
            return
        if peer.waits:
            self._refuse(peer, BadCall("a second call on a connection whose first is not answered"))
            return
        try:
            result = call(self.state, message, now, peer)
        except TROUBLE as why:
            peer.send(reply(why))
        except Exception as why:  # a message that no client of ours sends, or a mistake of ours: the service goes on
            traceback.print_exc(file=sys.stderr)
            peer.send(reply(BadCall(f"the quorum service could not do {message.get('call')!r}: {why!r}")))
        else:
            for source in peer.beats:
                self._beating[source] = peer
            if result is None:
                peer.waits = True
            else:
                peer.send(reply(result))

    def _refuse(self, peer: Peer, why: Trouble) -> None:
        peer.send(reply(why))
        peer.over = True

    def _settle(self, now: float) -> None:
        """Let the state do what is due, and send the answers."""
        for peer in [p for p in self._strangers if now - p.since > GREETING]:
            self._drop(peer, now)
        self.state.tick(now)
        encoded: dict[int, bytes] = {}
        for peer, result in self.state.take():
            data = encoded.get(id(result))
            if data is None:
                data = encoded[id(result)] = reply(result)
            peer.waits = False
            self._send(peer, data)
        if self.state.formed != self._told:
            self._told, latest = self.state.formed, self.state.latest
            assert isinstance(latest, Quorum)
            data = reply({"quorum": latest.to_json()})
            for peer in [p for p in self._peers if p.watches]:
                self._send(peer, data)

    def _send(self, peer: Peer, data: bytes) -> None:
        peer.send(data)
        if peer.over:
            self._drop(peer, time.monotonic())
        elif peer in self._peers:
            self._mind(peer)

    def _mind(self, peer: Peer) -> None:
        """Wait for room if something could not be sent."""
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        if self._selector.get_key(peer.socket).events != wanted:
            self._selector.modify(peer.socket, wanted, peer)

    def _drop(self, peer: Peer, now: float) -> None:
        if peer not in self._peers:
            return
        self._peers.discard(peer)
        self._strangers.discard(peer)
        self._selector.unregister(peer.socket)
        peer.socket.close()
        if peer.waits:
            self.state.withdraw(peer)
        for (replica, source), incarnation in peer.beats.items():
            if self._beating.get((replica, source)) is peer:
                del self._beating[replica, source]
                self.state.closed(replica, incarnation, source, now)
