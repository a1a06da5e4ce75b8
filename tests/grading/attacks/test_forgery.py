"""Marks and evidence that are not earned: what a rank says, prints, patches or claims changes nothing outside."""

from __future__ import annotations

import builtins
import os

import pytest
import torch

from labkit.grading.sandbox import plain_data
from labkit.wire.messenger import Messenger

pytestmark = pytest.mark.ranks

HONEST = """
from labkit.collectives import ring_all_reduce
def attack(x, group): return ring_all_reduce(x, group)
"""


def test_printed_marks_are_only_output(run):
    e = run("""
def attack():
    import json
    print(json.dumps({"schema": 1, "exercise": "x", "state": "right", "points": 99}))
    print("\\x1b]0;title\\x07\\x1b[2J")
    return "wrong"
""")
    assert e.results == ["wrong"] and '"points": 99' in e.output and "\x1b" not in e.output


def test_patching_everything_reaches_nobody_else(sandbox):
    box = sandbox("""
import builtins, sys, torch, labkit.wire.messenger, labkit.grading.sandbox.plain_data as data, os
def attack(x, group):
    builtins.print = builtins.isinstance = lambda *a: True
    torch.equal = torch.allclose = lambda *a, **k: True
    torch.Tensor.__eq__ = lambda *a: True
    labkit.wire.messenger.Messenger.send = None
    labkit.grading = None
    data.encode = lambda value: b"points"
    sys.modules.clear()
    return 1
def honest(x, group):
    return bool(torch.equal(torch.ones(2), torch.zeros(2))), type(labkit.wire.messenger.Messenger.send).__name__
""", seconds=2.0)  # fmt: skip
    before = (builtins.print, torch.equal, torch.Tensor.__eq__, Messenger.send, plain_data.encode)
    box.call("attack", 2, [1, 2])  # how it ends is its own affair
    assert before == (builtins.print, torch.equal, torch.Tensor.__eq__, Messenger.send, plain_data.encode)
    assert box.call("honest", 2, [1, 2]).results == [(False, "function")] * 2  # nor the same submission's next call


def test_assertions_switched_off_are_off_in_the_rank_only(run):
    e = run("""
def attack():
    __builtins__.AssertionError = Exception
    import sys
    sys.settrace(lambda *a: None)
    return 3
""")
    assert e.results == [3]


CHEAT = """
import torch
from labkit.wire.recording import record
record.Recorder.message = lambda self, *a: 1
record.Recorder.count = lambda self, *a: None
def attack(x, group):
    group.context.recorder.map[:8192] = bytes(8192)
    out = x.clone()
    for other in range(group.size):
        if other != group.rank:
            out += group.exchange(x, other, torch.empty_like(x), other)
    return out
"""


def test_bytes_are_counted_whatever_the_rank_writes_down(run):
    e = run.ranks(3, CHEAT, [torch.ones(1000)] * 3)
    assert e.failure is None
    assert e.bytes_between == [[0 if a == b else 4000 for b in range(3)] for a in range(3)]
    assert e.messages == [2, 2, 2]


SPOOF = """
import torch
from labkit.wire.message import HEADER, MAGIC
def frame(seq, raw): return HEADER.pack(MAGIC, seq, 0, 0, len(raw), 0, 5, 1, 0, len(raw), *[0] * 7) + raw
def attack(x, group):
    if group.rank == 0:
        group.rank, group.context.rank, group.context.transport.rank = 2, 2, 2
        sock = group.context.transport.dial(1, 1, 0)
        sock.sendall(frame(1, b"from two?"))
    elif group.rank == 1:
        like = torch.zeros(9, dtype=torch.uint8)
        try:
            group.recv(like, 2)
        except Exception as error:
            return type(error).__name__
        return bytes(like.tolist())
    else:
        import time
        time.sleep(1)
    return None
"""


def test_nobody_can_send_as_another(run):
    e = run.ranks(3, SPOOF, [0, 0, 0])
    assert [(d.src, d.dst) for d in e.order] == [(0, 1)]
    assert e.bytes_between[2] == [0, 0, 0] and e.bytes_between[0][1] == 9
    assert not e.results or e.results[1] in ("PeerLost", "WaitTimeout")


def test_a_result_is_taken_once_and_from_its_own_rank(run):
    e = run.ranks(2, """
import os
def attack(x, group):
    from labkit.grading.sandbox import plain_data
    if group.rank == 0:
        for _ in range(3):
            os.write(3, b"R" + plain_data.encode("mine"))
    return x
""", ["a", "b"])  # fmt: skip
    assert e.failure is None and e.results == ["mine", "b"]


def test_nothing_is_unpickled(run, tmp_path):
    mark = tmp_path / "ran"
    source = f"""
import os, pickle
class Bomb:
    def __reduce__(self): return (os.system, ("touch {mark}",))
def attack(how):
    if how == "returned":
        return Bomb()
    raw = pickle.dumps(Bomb())
    if how == "raw":
        os.write(3, b"R" + raw)
    else:
        from labkit.grading.sandbox import plain_data
        head = raw if how == "header" else b'{{"__reduce__": ["os.system", "touch {mark}"]}}'
        os.write(3, b"R" + plain_data.PREFIX.pack(b"LKD1", len(head), 0) + head)
    return None
"""
    for how in ("returned", "raw", "header", "tree"):
        e = run(source, how)
        assert e.failure is not None and e.failure.kind == "data", how
        assert not e.results and not mark.exists()
    assert os.path.isdir(tmp_path)


def test_memory_is_not_what_the_rank_says(run):
    source = """
import torch, resource
from labkit.wire import sampler
def attack(x, group):
    held = torch.ones(20_000_000)  # 80 MB
    resource.getrusage = lambda *a: None
    sampler.resident_bytes = lambda: 0
    del held
"""
    e = run.ranks(2, source, [1, 2])
    assert e.failure is None and all(80e6 < p < 100e6 for p in e.peak_bytes), e.peak_bytes


def test_an_honest_answer_beside_all_this(run):
    e = run.ranks(3, HONEST, [torch.arange(9.0) * r for r in range(3)])
    assert e.failure is None and e.messages == [4, 4, 4] and e.bytes_sent == [48, 48, 48]
    assert all(torch.equal(x, torch.arange(9.0) * 3) for x in e.results)
