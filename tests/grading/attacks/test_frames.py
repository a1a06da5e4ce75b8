"""Frames that cannot be: they end the call with a failure that names the rank, and the grader goes on."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.ranks

TOOLS = """
import os, socket, time, torch
from labkit.wire.message import HEADER, MAGIC
def head(magic=MAGIC, seq=1, op=0, call=0, nbytes=4, sent=0, dtype=5, ndim=1, flags=0, dims=(4,)):
    return HEADER.pack(magic, seq, op, call, nbytes, sent, dtype, ndim, flags, *dims, *[0] * (8 - len(dims)))
def attack(x, group):
    if group.rank == 1:
        return evil(group, group.context.transport)
    time.sleep(1.5)
    return "survived"
"""
GOOD = "\ndef evil(g, t):\n    t.dial(0, 1, 0).sendall(head() + b'abcd')"
EVIL = {
    "no magic": "t.dial(0, 1, 0).sendall(head(magic=7))",
    "rubbish": "t.dial(0, 1, 0).sendall(bytes(range(256)) * 4)",
    "huge": "t.dial(0, 1, 0).sendall(head(nbytes=1 << 62, dims=(1 << 62,)))",
    "more than the traffic": "t.dial(0, 1, 0).sendall(head(nbytes=1 << 40, dims=(1 << 40,)))",
    "negative": "t.dial(0, 1, 0).sendall(head(nbytes=-4, dims=(-4,)))",
    "negative twice": "t.dial(0, 1, 0).sendall(head(nbytes=4, ndim=2, dims=(-2, -2)))",
    "not its shape": "t.dial(0, 1, 0).sendall(head(nbytes=8))",
    "no such dtype": "t.dial(0, 1, 0).sendall(head(dtype=250))",
    "dtype 0": "t.dial(0, 1, 0).sendall(head(dtype=0))",
    "nine dimensions": "t.dial(0, 1, 0).sendall(head(ndim=9))",
    "flags": "t.dial(0, 1, 0).sendall(head(flags=255))",
    "dims beyond ndim": "t.dial(0, 1, 0).sendall(head(dims=(4, 4)))",
    "the same message twice": "s = t.dial(0, 1, 0); s.sendall(head() + b'abcd'); s.sendall(head() + b'abcd')",
    "a message left out": "t.dial(0, 1, 0).sendall(head(seq=2))",
    "to itself": "t.dial(1, 1, 0)",
    "to nobody": "t.dial(77, 1, 0)",
    "to minus one": "t.dial(-1, 1, 0)",
    "twice": "t.dial(0, 1, 0); t.dial(0, 1, 0)",
    "a thousand connections": "k = [t.dial(0, n, 0) for n in range(1000)]",
    "more messages than allowed": "s = t.dial(0, 1, 0); s.setblocking(True)\n"
    "    for n in range(1, 400): s.sendall(head(seq=n) + b'abcd')",
    "questions without end": "t._talk.setblocking(False)\n"
    "    for n in range(5000): t._talk.send(b'D' + n.to_bytes(4, 'little') + bytes(8))",
    "descriptors to the grader": "socket.send_fds(t._talk, [b'x'], [0] * 50)",
}


@pytest.mark.parametrize("name", EVIL)
def test_an_impossible_frame_ends_the_call(run, name):
    e = run.ranks(2, TOOLS + "\ndef evil(g, t):\n    " + EVIL[name], [0, 0], messages=100)
    assert e.failure is not None and e.failure.kind == "protocol", e.failure
    assert e.failure.rank == 1 or name == "a thousand connections"
    assert not e.results


def test_acknowledgements_of_what_was_not_sent(run):
    e = run.ranks(2, TOOLS + """
def attack(x, group):
    transport = group.context.transport
    if group.rank == 0:
        transport.dial(1, 1, 0).sendall(head() + b"abcd")
        time.sleep(1.5)
        return 0
    for _ in range(200):
        sock = transport.accept(0, 1, 0)
        if sock is not None: break
        time.sleep(0.01)
    sock.send(b"\\1" * 9)
    time.sleep(1.5)
    return 1
""", [0, 0])  # fmt: skip
    assert e.failure is not None and (e.failure.kind, e.failure.rank) == ("protocol", 1), e


def test_a_good_frame_by_hand_passes(run):
    e = run.ranks(2, TOOLS + GOOD, [0, 0])
    assert e.failure is None and e.bytes_between == [[0, 0], [4, 0]] and e.results == ["survived", None]


def test_a_frame_that_is_never_finished(run):
    e = run.ranks(
        2, TOOLS + "\ndef evil(g, t):\n    t.dial(0, 1, 0).sendall(head(nbytes=1000, dims=(1000,)) + b'abcd')", [0, 0]
    )
    assert e.bytes_between == [[0, 0], [4, 0]]  # what passed, not what was announced
    assert e.order[0].ended == -1


def test_a_receiver_that_never_reads_holds_little_of_the_grader(run):
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    e = run.ranks(2, TOOLS + """
def evil(g, t):
    n = 200_000_000
    s = t.dial(0, 1, 0)
    s.sendall(head(nbytes=n, dims=(n,)))
    s.settimeout(1)
    part = bytes(1_000_000)
    try:
        for _ in range(n // len(part)): s.sendall(part)
    except TimeoutError: return "stuck"
""", [0, 0])  # fmt: skip
    assert e.results == ["survived", "stuck"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000


def test_links_end_when_a_rank_does(run):
    e = run.ranks(3, """
import os, torch
def attack(x, group):
    if group.rank == 1: os._exit(0)
    group.recv(torch.zeros(3), 1)
""", [0, 0, 0])  # fmt: skip
    assert e.failure is not None and e.failure.kind == "died" and e.failure.rank == 1


def test_rounds_hold_no_more_than_they_may(sandbox):
    """In rounds the grader keeps what is under way; a rank cannot fill its memory with that."""
    box = sandbox(
        TOOLS
        + """
def evil(g, t):
    n = 400_000_000
    s = t.dial(0, 1, 0)
    s.sendall(head(nbytes=n, dims=(n,)))
    s.setblocking(True)
    part = bytes(1_000_000)
    for _ in range(400): s.sendall(part)
"""
    )
    e = box.call("attack", 2, [0, 0], rounds=True)
    assert e.failure is not None and e.failure.kind == "protocol" and e.failure.rank == 1, e.failure
