"""Ranks that disagree about dtype, shape, operation, order, root or algorithm: who called what, before any limit."""

from __future__ import annotations

import os
import re
import time

import pytest
import torch
from leftovers import NEVER
from slices import SLOW_WIRES

import labkit
from labkit import RankFailed, collectives
from labkit.wire.recording import record as rec
from labkit.world.diagnosis.judge import DYING, SETTLE, Judge
from labkit.world.diagnosis.mismatch import message_mismatch
from labkit.world.diagnosis.reading import Reader
from labkit.world.life import RankProcess
from labkit.world.process import is_ending
from labkit.world.spec import make_spec

pytestmark = pytest.mark.ranks


def named(text, work, size=2, **options) -> None:
    all_named({text: work}, size, **options)


def all_named(cases, size=2, **options) -> None:
    """Text -> work, all at a time. Again where the host spoke, rightly, before the last rank had called anything."""
    jobs = {text: labkit.start(work, size, timeout=NEVER, **options) for text, work in cases.items()}
    for text, job in jobs.items():
        for _ in range(10):
            with pytest.raises(RankFailed) as caught:
                job.wait()
            assert caught.value.failure.error == "Mismatch"
            said = str(caught.value)
            if size == 2 or re.search(r"but ranks \d and \d called", said):  # all of them are in it
                break
            job = labkit.start(cases[text], size, timeout=NEVER, **options)
        assert re.search(text, said), said


MESSAGES = [
    (torch.zeros(4), torch.zeros(4, dtype=torch.int32), r"float32\[4\], but rank 1 receives int32\[4\]"),
    (torch.zeros(4), torch.zeros(8), r"float32\[4\], but rank 1 receives float32\[8\]"),
    (torch.zeros(8), torch.zeros(4), r"float32\[8\], but rank 1 receives float32\[4\]"),
    (torch.zeros(2, 3), torch.zeros(3, 2), r"float32\[2, 3\], but rank 1 receives float32\[3, 2\]"),
    (
        torch.zeros(2, 1, 2, 3, 4),
        torch.zeros(1, 2, 3, 4),
        r"float32\[2, 1, 2, \.\.\.\], but rank 1 receives float32\[1, 2, 3, 4\]",
    ),
    (torch.zeros(0), torch.zeros(1), r"float32\[0\], but rank 1 receives float32\[1\]"),
]


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_messages(transport) -> None:
    def between(sent, received):
        return lambda g: g.send(sent, 1) if g.rank == 0 else g.recv(received, 0)

    all_named({"rank 0 sent rank 1 " + text: between(a, b) for a, b, text in MESSAGES}, transport=transport)


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_an_exchange_of_two_minds(transport) -> None:
    def work(group):
        x = torch.zeros(4 + group.rank)
        group.exchange(x, 1 - group.rank, torch.zeros_like(x), 1 - group.rank)

    named(r"sent rank \d float32\[\d\], but rank \d receives", work, transport=transport)


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_a_mismatch_is_named_while_the_ranks_go_on(transport) -> None:
    """On gloo nothing stops: int32 bytes are read as float32, and training goes on with nonsense."""

    def work(group):
        x = torch.ones(4, dtype=torch.int32 if group.rank else torch.float32)
        group.exchange(x, 1 - group.rank, x.clone(), 1 - group.rank)
        while True:
            group.exchange(x[:0].float(), 1 - group.rank, x[:0].float(), 1 - group.rank)
            time.sleep(0.001)

    named("int32", work, transport=transport)


def calls(**by_rank):
    """Each rank calls what is written for it; the others what is written for `rest`."""

    def work(group):
        for call in by_rank.get(f"r{group.rank}", by_rank["rest"]):
            name, dtype, shape, *options = call
            x = torch.zeros(shape, dtype=dtype)
            getattr(collectives, name)(x, group, **(options[0] if options else {}))

    return work


F, I = torch.float32, torch.int32  # noqa: E741
RING, TREE, NATIVE = ({"algorithm": a} for a in ("ring", "tree", "native"))
DISAGREEMENTS = {
    "dtype": (calls(r1=[("all_reduce", I, 8, RING)], rest=[("all_reduce", F, 8, RING)]),
              r"rank 1 called all_reduce on int32\[8\] by 'ring', but ranks 0 and 2 called all_reduce on float32\[8\]"),
    "shape": (calls(r2=[("all_reduce", F, 9, RING)], rest=[("all_reduce", F, 8, RING)]),
              r"rank 2 called all_reduce on float32\[9\] by 'ring', but ranks 0 and 1 called"),
    "operation": (calls(r0=[("broadcast", F, 8, TREE)], rest=[("reduce", F, 8, TREE)]),
                  r"rank 0 called broadcast on float32\[8\], root 0 by 'tree', but ranks 1 and 2 called reduce"),
    "order": (calls(r0=[("broadcast", F, 8, TREE), ("reduce", F, 8, TREE)],
                    rest=[("reduce", F, 8, TREE), ("broadcast", F, 8, TREE)]),
              r"rank 0 called broadcast .* but ranks 1 and 2 called reduce .* \(call 1 of the group\)"),
    "root": (calls(r1=[("broadcast", F, 8, {"root": 1, **TREE})], rest=[("broadcast", F, 8, {"root": 2, **TREE})]),
             r"rank 1 called .*root 1 by 'tree', but ranks 0 and 2 called .*root 2"),
    "algorithm": (calls(r1=[("all_reduce", F, 8, TREE)], rest=[("all_reduce", F, 8, RING)]),
                  r"rank 1 called .* by 'tree', but ranks 0 and 2 called .* by 'ring'"),
    "reduction": (calls(r1=[("all_reduce", F, 8, {"op": "max", **RING})], rest=[("all_reduce", F, 8, RING)]),
                  r"rank 1 called all_reduce on float32\[8\] \(max\) by 'ring'"),
    "native dtype": (calls(r1=[("all_reduce", I, 8, NATIVE)], rest=[("all_reduce", F, 8, NATIVE)]),
                     r"rank 1 called all_reduce on int32\[8\] by 'native'"),
    "native shape": (calls(r1=[("all_reduce", F, 4, NATIVE)], rest=[("all_reduce", F, 8, NATIVE)]),
                     r"rank 1 called all_reduce on float32\[4\] by 'native'"),
    "native operation": (calls(r1=[("broadcast", F, 8, NATIVE)], rest=[("all_reduce", F, 8, NATIVE)]),
                         r"rank 1 called broadcast on float32\[8\], root 0 by 'native'"),
    "native and own": (calls(r1=[("all_reduce", F, 8, RING)], rest=[("all_reduce", F, 8, NATIVE)]),
                       r"rank 1 called all_reduce on float32\[8\] by 'ring', but ranks 0 and 2 .* by 'native'"),
}  # fmt: skip


@pytest.mark.parametrize("transport", SLOW_WIRES)
@pytest.mark.parametrize("some", range(0, len(DISAGREEMENTS), 4))
def test_collectives(some, transport) -> None:
    all_named({text: work for work, text in list(DISAGREEMENTS.values())[some : some + 4]}, 3, transport=transport)


def test_a_message_that_nobody_took_is_named() -> None:
    def work(group):
        if group.rank == 0:
            group.isend(torch.zeros(3), 1)

    named(r"rank 0 sent float32\[3\] to rank 1, which never received it", work, transport="local")


def test_without_the_check_the_bare_library_is_seen() -> None:
    """gloo adds what it was given: int32 bytes read as float32, and nobody says a word."""

    def work(group):
        x = torch.full((4,), 1, dtype=torch.int32 if group.rank else torch.float32)
        group.exchange(x, 1 - group.rank, y := torch.zeros_like(x), 1 - group.rank)
        return y.tolist()

    run = labkit.launch(work, 2, transport="gloo", check=False)
    assert run.results == [[1.401298464324817e-45] * 4, [1065353216] * 4]


def test_correct_uses_of_uneven_parts_are_no_mismatch() -> None:
    def work(group):
        r = group.rank
        got = collectives.all_gather(torch.full((r, 2), r), group, sizes=[0, 1, 2], algorithm="ring")
        collectives.all_to_all(torch.zeros(sum(range(3))), group, send_counts=[0, 1, 2], recv_counts=[r] * 3)
        part = torch.zeros(2 if r == 0 else 1)
        collectives.scatter(torch.zeros(4) if r == 0 else None, group, like=part, algorithm="naive")
        return got.tolist()

    assert labkit.launch(work, 3, transport="gloo").results[0] == [[1, 1], [2, 2], [2, 2]]


def test_what_follows_from_a_lost_rank_is_no_mismatch() -> None:
    """Work that was queued behind a collective that failed runs on, and its messages have the numbers of the others."""

    def work(group):
        if group.rank == 3:
            return None
        handles = [collectives.all_gather(torch.zeros(n), group, algorithm="ring", async_op=True) for n in (5, 7, 9)]
        told = []
        for handle in handles:
            try:
                handle.wait()
            except labkit.wire.errors.WireError as why:
                told.append(type(why).__name__)
        return told

    job = labkit.start(work, 4, transport="local", on_failure="continue", timeout=5)
    assert job._started.wait(10)
    pages = [rec.Page(job._pages_fd, r, 4) for r in range(4)]
    run = job.wait()
    assert all(len(told) == 3 for told in run.results[:3]), run.results
    assert message_mismatch(
        [p.records() for p in pages], [p.records()["kind"] == 0 for p in pages]
    )  # it looks like one
    assert Reader(pages).picture().mismatch is None


def test_the_verdict_waits_for_a_rank_that_is_on_its_way_out() -> None:
    """Its sockets close before its host hears of its death: what the others lost is not the cause."""
    spec = make_spec(2, {})
    fd = rec.create_pages(2)
    pages = [rec.Page(fd, r, 2) for r in range(2)]
    lives, ended = [RankProcess(0), RankProcess(1)], []
    judge = Judge(spec, pages, lives, time.perf_counter_ns(), lambda: ended.append(1))
    child = os.fork()
    if child == 0:
        os._exit(0)
    for life in lives:
        life.pid = os.getpid()
    lives[1].pid = child
    while not is_ending(child):
        time.sleep(0.001)
    try:
        lives[0].over = True
        judge.failed("lost", 0, "PeerLost", "rank 0 lost rank 1")
        at = judge.trouble_at
        assert not judge.is_settled(at) and not judge.is_settled(at + 2 * SETTLE) and judge.is_settled(at + DYING)
        judge.failed("died", 1, "Died", "rank 1 was killed")
        assert judge.is_settled(at + SETTLE)
        judge.judge()
        assert judge.verdict["kind"] == "died" and ended
    finally:
        os.waitpid(child, 0)
        os.close(fd)
    assert is_ending(child) and not is_ending(os.getpid())
