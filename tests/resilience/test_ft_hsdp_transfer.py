"""A state taken over by HTTP: authenticated, checked piece by piece, from the next peer where one is lost."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest
import torch
from leftovers import NEVER

from labkit.resilience.errors import Recoverable
from labkit.resilience.ft_hsdp import server as server_module
from labkit.resilience.ft_hsdp.server import StateServer
from labkit.resilience.ft_hsdp.state import FORMAT, Snapshot
from labkit.resilience.ft_hsdp.transfer import Fetch, fetch_state
from labkit.wire.errors import RefusedError

NBYTES, PIECE = 10_000, 1024
VERSION = (5, 2)


def snapshot(version=VERSION, nbytes=NBYTES, seed=0):
    header = {"format": FORMAT, "step": version[0], "lineage": version[1], "positions": [], "checksum": "x",
              "numbers": [], "entries": [], "nbytes": nbytes}  # fmt: skip
    raw = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return Snapshot(header, raw)


@contextmanager
def serving(count=1, offer=True, **options):
    with ExitStack() as stack:
        servers = []
        for _ in range(count):
            one = StateServer("token", **{"patience": 0.5, **options})
            stack.callback(one.close)
            if offer:
                one.offer(snapshot())
            servers.append(one)
        yield servers


def sources(servers):
    return [(r, s.address) for r, s in enumerate(servers)]


def fetch(servers, **options):
    return fetch_state(sources(servers), options.pop("token", "token"), options.pop("version", VERSION),
                       **{"piece": PIECE, "patience": 2.0, **options})  # fmt: skip


def test_every_byte_arrives_and_is_counted():
    with serving() as servers:
        got = fetch(servers)
        assert torch.equal(got.snapshot.raw, snapshot().raw) and got.snapshot.header == snapshot().header
        assert (got.source, got.nbytes, servers[0].served, got.lost) == (0, NBYTES, NBYTES, [])


@pytest.mark.parametrize("nbytes", [0, 1, PIECE, PIECE + 1])
def test_any_size(nbytes):
    with serving(offer=False) as servers:
        servers[0].offer(snapshot(nbytes=nbytes))
        assert torch.equal(fetch(servers).snapshot.raw, snapshot(nbytes=nbytes).raw)


def test_a_state_is_given_to_nobody_without_the_token():
    with serving() as servers:
        for token in ("", "toke", "tokens", "Token"):
            with pytest.raises(Recoverable, match="401"):
                fetch(servers, token=token)
        assert servers[0].served == 0
    with pytest.raises(RefusedError, match="token"):
        StateServer("")


@pytest.mark.parametrize(
    "path", ["/", "/state", "/state/5", "/state/5/2/0", "/state/a/2", "/other/5/2", "/state/5/2/0-1/9"]
)
def test_other_paths_are_not_found(path):  # fmt: skip
    import http.client

    with serving() as servers:
        connection = http.client.HTTPConnection(*servers[0].address.split(":"))
        connection.request("GET", path, headers={"X-Labkit-Token": "token"})
        assert connection.getresponse().status == 404
        connection.close()


def test_a_state_that_is_not_staged_yet_is_waited_for():
    with serving(offer=False, patience=5) as servers:
        threading.Timer(0.1, lambda: servers[0].offer(snapshot())).start()
        assert fetch(servers).nbytes == NBYTES


def test_a_state_that_does_not_come_or_is_gone_says_so():
    with serving(offer=False, patience=0.05) as servers:
        with pytest.raises(Recoverable, match="503"):
            fetch(servers)
        servers[0].patience = NEVER  # a state that is gone is not waited for
        servers[0].offer(snapshot((6, 3)))
        with pytest.raises(Recoverable, match=r"replica 0: 410: the state of step 5, lineage 2 is no longer here"):
            fetch(servers)
        servers[0].drop()
        with pytest.raises(Recoverable, match="410"):
            fetch(servers, version=(6, 3))


def test_the_next_source_gives_the_rest_where_one_is_lost():
    """The first source ends in the middle; what it gave is kept."""
    given = []

    @contextmanager
    def dying():
        given.append(1)
        if len(given) == 4:
            raise ConnectionAbortedError("killed")
        yield

    with serving(2) as servers:
        servers[0].around = dying
        got = fetch(servers)
        assert torch.equal(got.snapshot.raw, snapshot().raw)
        assert got.source == 1 and got.lost[0][0] == 0
        assert servers[0].served == 3 * PIECE and servers[1].served == NBYTES - 3 * PIECE


def test_a_source_that_is_silent_is_left_in_time():
    silent = socket.create_server(("127.0.0.1", 0))
    with serving() as servers:
        began = time.monotonic()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        got = fetch_state([(7, address), *sources(servers)], "token", VERSION, patience=0.2)
        assert got.source == 0 and time.monotonic() - began >= 0.2
    silent.close()


def test_a_damaged_piece_is_found_and_taken_from_another(monkeypatch):
    say, pieces = server_module._Handler._say, []

    def flip(self, status, body, crc=None):
        """One bit of the second piece of the first source."""
        if crc is not None and self.server.owner is servers[0]:
            pieces.append(body)
            if len(pieces) == 2:
                body = bytes(body[:5]) + bytes([body[5] ^ 1]) + bytes(body[6:])
        say(self, status, body, crc)

    with serving(2) as servers:
        monkeypatch.setattr(server_module._Handler, "_say", flip)
        got = fetch(servers)
        assert torch.equal(got.snapshot.raw, snapshot().raw)
        assert got.source == 1 and got.lost == [(0, f"bytes {PIECE} to {2 * PIECE} were damaged on their way")]
        assert servers[1].served == NBYTES - PIECE


def test_pieces_of_one_state_are_not_mixed_with_another():
    """A second source with another header begins anew, even if it answers to the same version."""

    @contextmanager
    def dying():
        if servers[0].served:
            raise ConnectionAbortedError
        yield

    with serving(2) as servers:
        servers[0].around = dying
        other = snapshot(seed=1)
        other.header["checksum"] = "y"
        servers[1].offer(other)
        got = fetch(servers)
        assert torch.equal(got.snapshot.raw, other.raw) and servers[1].served == NBYTES


def test_no_source_is_recoverable_and_names_them_all():
    with serving(2, offer=False, patience=0.02) as servers:
        with pytest.raises(Recoverable, match="replica 0: 503.*replica 1: 503"):
            fetch(servers)
    with pytest.raises(Recoverable, match="no source"):
        fetch_state([], "token", VERSION)


def test_the_deadline_ends_a_fetch_that_goes_on():
    @contextmanager
    def slow():
        time.sleep(0.05)
        yield

    with serving(around=slow) as servers:
        with pytest.raises(Recoverable, match="time for the fetch is over|timed out"):
            fetch(servers, deadline=time.monotonic() + 0.2)
        assert servers[0].served < NBYTES


def test_a_fetch_in_the_background_is_given_up_after_its_wait():
    @contextmanager
    def slow():
        time.sleep(0.05)
        yield

    with serving(around=slow) as servers:
        quick = Fetch(sources(servers), "token", VERSION, piece=NBYTES, patience=2.0)
        assert quick.wait(5).nbytes == NBYTES
        late = Fetch(sources(servers), "token", VERSION, piece=PIECE, patience=2.0)
        with pytest.raises(Recoverable, match="the others go on without us"):
            late.wait(0.05)
        late._thread.join(2)
        assert not late._thread.is_alive() and servers[0].served < 2 * NBYTES
        wrong = Fetch(sources(servers), "no", VERSION, piece=PIECE, patience=2.0)
        with pytest.raises(Recoverable, match="401"):
            wrong.wait(5)
