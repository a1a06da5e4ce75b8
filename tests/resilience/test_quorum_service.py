"""The service as a process, its clients as processes that are killed, stopped, and of the wrong kind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from leftovers import NEVER, alive, descriptors, eventually, zombies

from labkit.resilience.quorum import (
    BadCall,
    NoQuorum,
    OldIncarnation,
    QuorumClient,
    QuorumService,
    Unanswered,
    WrongToken,
    WrongVersion,
    frames,
    greeting,
)
from labkit.resilience.quorum.connection import Connection, parse

from .quorum_processes import ROOT, Leader

pytestmark = pytest.mark.ranks


@pytest.fixture
def start() -> Iterator[Callable[..., QuorumService]]:
    """Start services; they and every process are gone after the test."""
    with ExitStack() as stack:
        yield lambda *a, **options: stack.enter_context(QuorumService.start(*a, **options))
    assert not zombies()


@pytest.fixture
def lead() -> Iterator[Callable[..., Leader]]:
    """Start leaders of replicas as processes."""
    leaders: list[Leader] = []

    def make(*arguments: Any, **options: Any) -> Leader:
        leaders.append(Leader(*arguments, **options))
        return leaders[-1]

    yield make
    for leader in leaders:
        leader.end()


def together(count: int, call: Callable[[int], Any]) -> list[Any]:
    """call(0), call(1), ... at the same time; an error is a result."""
    found: list[Any] = [None] * count

    def one(i: int) -> None:
        try:
            found[i] = call(i)
        except Exception as why:
            found[i] = why

    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_the_service_and_its_client_import_no_pytorch() -> None:
    code = (
        "import sys; import labkit.resilience.quorum.__main__, labkit.resilience.quorum.client, "
        "labkit.resilience.quorum.service, labkit.resilience.quorum.aggregator, labkit.resilience.quorum.emulate; "
        "print(sorted({'torch', 'numpy', 'asyncio', 'multiprocessing'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, capture_output=True)
    assert found.stdout.decode().strip() == "[]", found.stderr.decode()


def test_replicas_check_in_join_and_keep_their_quorum(start) -> None:
    service = start(2)
    with QuorumClient(service.address, service.token) as client:
        ranks = together(6, lambda i: client.register(i // 3, i % 3, 3, {"port": 100 * i}))
        assert [r.incarnation for r in ranks] == [1] * 6
        assert [p["port"] for p in ranks[4].peers] == [300, 400, 500]
        with client.beat(0, 1) as one, client.beat(1, 1):
            for step in range(5):
                a, b = together(2, lambda i, step=step: client.join(i, 1, step, data={"at": f"{i} {step}"}))
                assert a == b and (a.id, a.step, a.replicas) == (1, step, (0, 1))
                assert [m.data for m in a.members] == [{"at": f"0 {step}"}, {"at": f"1 {step}"}]
            assert client.confirm(0, 1, 1) and not client.confirm(0, 1, 2)
            assert one.fresh and one.lease == 5.0
        found = client.status()
        assert (found["formed"], found["unchanged"], found["living"]) == (5, 4, 2)
        client.leave(0, 1)
        assert client.status()["replicas"][0]["phase"] == "left"


@pytest.mark.parametrize(
    "how, limits",
    [
        ("killed", {}), ("declared dead", {}), ("begun anew", {}), ("stopped", {"heartbeat": 1.0}),
        ("hangs", {"join": 1.0}),
    ],
)  # fmt: skip
def test_the_others_go_on_without_a_leader_that_is_gone(start, lead, how: str, limits: dict[str, float]) -> None:
    service = start(3, **({"heartbeat": NEVER, "join": NEVER} | limits))  # nothing else can be what ends the wait
    a, b, c = (lead(service, r) for r in range(3))
    for x in (a, b, c):
        x.join(0)
    assert [x.replicas() for x in (a, b, c)] == [[0, 1, 2]] * 3
    client = QuorumClient(service.address, service.token)
    a.join(1), b.join(1)
    assert eventually(lambda: client.status()["waiting"].startswith("replica 2 is still to join"))
    if how == "killed":
        c.kill()
    elif how == "declared dead":
        client.dead(2)
    elif how == "begun anew":
        assert client.begin(2) == 2
    elif how == "stopped":
        c.kill(signal.SIGSTOP)
    assert a.replicas() == b.replicas() == [0, 1]
    client.close()


def test_a_restarted_replica_comes_back_while_the_others_are_in_a_step(start, lead) -> None:
    service = start(2)
    client = QuorumClient(service.address, service.token)
    a, b = lead(service, 0), lead(service, 1)
    assert (a.join(0), b.join(0), a.replicas(), b.replicas())[2:] == ([0, 1], [0, 1])
    b.kill()
    assert a.join(0, failed=True, shrink_only=True).replicas() == [0]
    client.begin(1)
    b = lead(service, 1)
    assert b.incarnation == 2
    b.join(0)
    assert eventually(lambda: "newcomers wait" in client.status()["waiting"])
    a.join(1)
    said = b.answer()
    assert said == a.answer() and (said["id"], said["step"]) == (3, 1)
    assert [m["step"] for m in said["members"]] == [1, 0]
    client.close()


def test_a_client_that_dies_while_it_waits_takes_its_question_with_it(start, lead) -> None:
    service = start(3, first=60)
    client = QuorumClient(service.address, service.token)
    a, b = lead(service, 0), lead(service, 1)
    a.join(0), b.join(0)
    assert eventually(lambda: sum(r["joined"] for r in client.status()["replicas"]) == 2)
    b.kill()
    assert eventually(lambda: client.status()["replicas"][1]["phase"] == "lost")
    assert [r["joined"] for r in client.status()["replicas"]] == [True, False, False]
    client.begin(1), client.dead(2)
    b = lead(service, 1)
    b.join(0)
    assert a.replicas() == b.replicas() == [0, 1]
    client.close()


def test_a_heartbeat_whose_connection_breaks_is_back_before_anybody_is_lost(start) -> None:
    service = start(1, reconnect=2.0)
    with QuorumClient(service.address, service.token) as client:
        client.register(0, 0, 1)
        with client.beat(0, 1, every=0.05) as beat:
            broken = beat._connection
            broken._socket.shutdown(socket.SHUT_RDWR)
            assert eventually(lambda: beat._connection not in (None, broken) and beat.fresh)
            time.sleep(0.1)
            assert client.status()["replicas"][0]["phase"] == "live"
        with client.beat(0, 1, every=0.05) as beat:
            client.begin(0)
            assert eventually(lambda: isinstance(beat.over, OldIncarnation)) and not beat.fresh


def test_a_heartbeat_that_is_stopped_or_moves_to_another_connection_is_no_death(start) -> None:
    service = start(1, reconnect=0.05)
    with QuorumClient(service.address, service.token) as client:
        client.register(0, 0, 1)
        client.beat(0, 1).stop()
        time.sleep(0.3)
        assert client.status()["replicas"][0]["phase"] == "live"
        old, new = (Connection(parse(service.address), service.token) for _ in range(2))
        for connection in (old, new):
            connection.call({"call": "beat", "replica": 0, "incarnation": 1, "rank": 0})
        old.close()
        time.sleep(0.3)
        assert client.status()["replicas"][0]["phase"] == "live"
        new.close()
        assert eventually(lambda: client.status()["replicas"][0]["phase"] == "lost")


def test_when_the_machine_stood_still_nobody_is_blamed(start, lead) -> None:
    service = start(2, heartbeat=2.0)
    client = QuorumClient(service.address, service.token)
    a, b = lead(service, 0), lead(service, 1)
    a.join(0), b.join(0), a.answer(), b.answer()
    pids = [service.pid, a.process.pid, b.process.pid]
    for pid in reversed(pids):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(3.0)
    os.kill(pids[0], signal.SIGCONT)
    assert client.status()["living"] == 2
    for pid in pids[1:]:
        os.kill(pid, signal.SIGCONT)
    a.join(1), b.join(1)
    assert a.answer()["id"] == b.answer()["id"] == 1
    client.close()


def test_clocks_that_disagree_make_no_difference(start, lead) -> None:
    service = start(2)
    wrong = "import time; real = time.{0}; time.{0} = lambda: real() {1}\n"
    a = lead(service, 0, before=wrong.format("monotonic", "+ 1e6") + wrong.format("time", "- 1e9"))
    b = lead(service, 1, before=wrong.format("time", "* 2"))
    for step in range(3):
        a.join(step), b.join(step)
        assert a.answer()["id"] == b.answer()["id"] == 1


@pytest.mark.parametrize("address", ["localhost", "localhost:x", ":4", ("localhost", 0), "localhost:70000"])
def test_an_address_that_is_none_is_refused(address: Any) -> None:
    with pytest.raises(BadCall, match="needs 'host:port'"):
        parse(address)


def test_nobody_answers_the_token_is_wrong_or_it_is_something_else(start) -> None:
    service = start(1)
    free = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{free.getsockname()[1]}"
    threading.Thread(target=lambda: free.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")).start()
    with pytest.raises(Unanswered, match="is not a quorum service"):
        QuorumClient(address, service.token).status()
    free.close()
    with pytest.raises(Unanswered, match=f"nobody answers at {address}"):
        QuorumClient(address, service.token).status()
    with pytest.raises(WrongToken, match="not the one this quorum service was started with"):
        QuorumClient(service.address, "another").status()
    with pytest.raises(WrongToken):
        QuorumClient(service.address, "").begin(0)
    with QuorumClient(service.address, service.token) as client:
        assert client.status()["replicas"][0]["incarnation"] == 0, "who does not know the token changes nothing"


def test_a_service_that_does_not_know_the_token_is_found_out() -> None:
    liar = socket.create_server(("127.0.0.1", 0))

    def lie() -> None:
        sock, _ = liar.accept()
        sock.sendall(frames.encode(greeting.hello("0" * 32)))
        sock.recv(4096)
        sock.sendall(frames.encode({"ok": {"proof": "0" * 64}}))

    threading.Thread(target=lie).start()
    with pytest.raises(WrongToken, match="does not know the token"):
        Connection(liar.getsockname(), "secret")
    liar.close()


def test_another_version_is_refused_by_both_sides(start, monkeypatch) -> None:
    service = start(1)
    monkeypatch.setattr(greeting, "__version__", "9.9")
    with pytest.raises(WrongVersion, match="service runs labkit .* with protocol 1, this process labkit 9.9"):
        QuorumClient(service.address, service.token).status()
    monkeypatch.setattr(greeting, "check_version", lambda *_: None)  # a client that does not look
    with pytest.raises(WrongVersion, match="the client runs labkit 9.9 with protocol 1, the quorum service labkit"):
        QuorumClient(service.address, service.token).status()


@pytest.mark.parametrize(
    "sent",
    [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b"\0\0\0\2[]", b"\0\0\0\5{\"a\":", b"\0\0\0\0", b"\0\0\0\2{}"],
)  # fmt: skip
def test_what_is_no_message_is_turned_away_and_disturbs_nobody(start, sent: bytes) -> None:
    service = start(1)
    with socket.create_connection(parse(service.address), timeout=10) as sock:
        sock.sendall(sent)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65536):
            pass
    with QuorumClient(service.address, service.token) as client:
        client.register(0, 0, 1)
        assert client.join(0, 1, 0).id == 1
        assert client.status()["living"] == 1


def test_a_stranger_may_not_send_much(start) -> None:
    service = start(1)
    with socket.create_connection(parse(service.address), timeout=20) as sock:
        sock.sendall((5000).to_bytes(4, "big"))
        said = b""
        while data := sock.recv(65536):
            said += data
    assert b"a message of 5,000 bytes, where at most 4,096 are allowed" in said


@pytest.mark.parametrize(
    "message, words",
    [
        ({"call": "dance"}, "no call 'dance'"), ({}, "no call None"), ({"call": "join"}, "replica -1"),
        ({"call": "join", "replica": "0"}, "replica '0'"), ({"call": "begin", "replica": [1]}, r"replica \[1\]"),
        ({"call": "register", "replica": 0, "rank": 2, "ranks": 2}, "rank=2, ranks=2"),
        ({"call": "register", "replica": 0, "rank": 0, "ranks": 1, "data": 3}, "data=3"),
        ({"call": "register", "replica": 0, "rank": 0, "ranks": 1, "timeout": -1}, "timeout=-1"),
        ({"call": "beat", "replica": 0, "incarnation": 1, "rank": "x"}, "rank='x'"),
        ({"call": "host", "host": "a", "parts": [[0, 1]]}, "parts="),
    ],
)  # fmt: skip
def test_a_call_that_makes_no_sense_is_refused_and_the_connection_stays(start, message, words: str) -> None:
    service = start(1)
    connection = Connection(parse(service.address), service.token)
    with pytest.raises(BadCall, match=words):
        connection.call(message)
    assert connection.call({"call": "begin", "replica": 0}) == {"incarnation": 1}
    connection.close()


def test_data_that_cannot_travel_is_refused_before_it_is_sent(start) -> None:
    service = start(1)
    with QuorumClient(service.address, service.token) as client:
        for data, words in (({"a": object()}, "plain data"), ({"a": float("nan")}, "plain data"),
                            ({"a": "x" * (17 << 20)}, "Send less")):  # fmt: skip
            with pytest.raises(BadCall, match=words):
                client.register(0, 0, 1, data)
        for wait in (-1, float("inf"), float("nan")):
            with pytest.raises(BadCall, match="timeout="):
                client.register(0, 0, 1, timeout=wait)
        assert client.register(0, 0, 1).incarnation == 1


def test_a_rank_that_does_not_check_in_is_named(start) -> None:
    service = start(1)
    with QuorumClient(service.address, service.token) as client:
        found = together(2, lambda i: client.register(0, 2 * i, 4, timeout=0.3))
        assert all(isinstance(why, NoQuorum) for why in found)
        assert max(map(str, found)) == "ranks 1, 3 of 4 of replica 0 did not check in"


def test_a_spare_waits_until_it_is_promoted(start) -> None:
    service = start(2, spares=1)
    with QuorumClient(service.address, service.token) as client:
        with pytest.raises(NoQuorum, match="spare 2 was not needed"):
            client.standby(2, timeout=0.05)
        client.promote(2, {"stream": 1})
        assert client.standby(2) == {"stream": 1}
        with pytest.raises(BadCall, match="0 to 2"):
            client.promote(3)


def test_an_end_leaves_nothing_and_clients_learn_at_once(start) -> None:
    before = descriptors()
    service = start(2)
    client = QuorumClient(service.address, service.token)
    client.register(0, 0, 1)
    beat = client.beat(0, 1, every=0.05)
    waiting = threading.Thread(target=lambda: together(1, lambda _: client.join(0, 1, 0, timeout=NEVER)))
    waiting.start()
    assert eventually(lambda: client.status()["replicas"][0]["joined"])
    service.stop()
    waiting.join()
    assert not service.running and not alive(service.pid)
    assert eventually(lambda: isinstance(beat.error, Unanswered)) and not beat.over
    beat.stop(), client.close(), service.stop()
    assert eventually(lambda: descriptors() <= before)
    assert not [t for t in threading.enumerate() if t.name == "labkit-beat"]


@pytest.mark.parametrize("forks", [False, True])
def test_the_service_dies_with_its_parent_even_if_a_fork_of_it_lives(forks: bool) -> None:
    code = (
        "import os, sys, time\nfrom labkit.resilience.quorum import QuorumService\nservice = QuorumService.start(1)\n"
        f"child = os.fork() if {forks} else -1\n"
        "if child == 0:\n    os.close(1); time.sleep(600); os._exit(0)\n"
        "print(service.pid, child, flush=True); time.sleep(30)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert parent.stdout is not None
    pid, child = map(int, parent.stdout.readline().split())
    assert alive(pid)
    parent.kill()
    parent.communicate()
    try:
        assert eventually(lambda: not alive(pid))
    finally:
        if child > 0:
            os.kill(child, signal.SIGKILL)


def test_a_stop_is_heard_though_a_fork_holds_the_pipe() -> None:
    code = (
        "import os, time\nfrom labkit.resilience.quorum import QuorumService\nservice = QuorumService.start(1)\n"
        "child = os.fork()\nif child == 0:\n    os.close(1); time.sleep(600); os._exit(0)\n"
        "service.stop(); print(service._process.returncode); os.kill(child, 9)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True
    )
    assert found.stdout == b"0\n", found.stderr.decode()


def test_a_service_that_takes_the_place_of_a_lost_one_goes_on_counting(start) -> None:
    service = start(1, first_id=41, incarnations=[7])
    with QuorumClient(service.address, service.token) as client:
        assert client.join(0, 7, 3, lineage=3).id == 41


def test_a_labkit_in_the_working_directory_is_not_mistaken_for_this_one(start, tmp_path, monkeypatch) -> None:
    (tmp_path / "labkit").mkdir()
    (tmp_path / "labkit" / "__init__.py").write_text("raise ImportError('the wrong one')")
    monkeypatch.chdir(tmp_path)
    assert start(1).running


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(host="no.such.host.invalid"), "cannot listen at no.such.host.invalid"), (dict(token=""), "token"),
        (dict(jion=3), "jion"), (dict(replicas=-1), "replicas=-1"), (dict(port=70000), "cannot listen"),
    ],
)  # fmt: skip
def test_a_service_that_cannot_start_says_why(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadCall, match=words):
        QuorumService.start(**({"replicas": 1} | options))
    assert not zombies()


def test_it_can_be_started_by_hand() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "labkit.resilience.quorum", "--replicas", "1"], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout is not None
    address, token = (process.stdout.readline().split()[-1] for _ in range(2))
    with QuorumClient(address, token) as client:
        assert json.dumps(client.status()["rules"]["replicas"]) == "1"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 0
