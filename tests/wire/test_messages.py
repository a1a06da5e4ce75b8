"""Messages arrive as they were sent, on every transport, in every dtype and shape, combined where asked."""

from __future__ import annotations

import re
import select
import time

import pytest
import torch
from hypothesis import given, settings, strategies as st
from slices import WIRES

import labkit
from labkit import RankFailed, RefusedError
from labkit.wire import AVG, MAX, MIN, PROD, SUM
from labkit.wire.dtypes import DTYPES
from labkit.wire.transports import Sockets
from labkit.wire.transports.local import LocalTransport, abstract_listener

pytestmark = pytest.mark.ranks

PIECE = 1 << 18  # bytes that a sum is done in on `local`
FEW = settings(max_examples=4)


def values(n, dtype, seed):
    """n elements of any bits that dtype may have."""
    raw = torch.randint(0, 256, (n * dtype.itemsize,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return (raw % 2).view(torch.bool) if dtype == torch.bool else raw.view(dtype) if n else torch.empty(0, dtype=dtype)


def bits(x):
    return x.contiguous().view(-1).view(torch.uint8).tolist() if x.numel() else []


def every_way(group, cases):
    """Rank 0 sends each tensor to rank 1 by each pair of methods and gets it back by an exchange; all must be equal."""
    other, wrong = 1 - group.rank, []
    for number, (n, dtype, shape) in enumerate(cases):
        mine = values(n, dtype, number).view(shape)
        theirs = mine.clone()
        for way in range(4):
            like = torch.zeros(shape, dtype=torch.uint8).to(dtype) if mine.numel() else torch.empty(shape, dtype=dtype)
            if way == 0 and group.rank == 0:
                group.send(mine, other)
            elif way == 0:
                got = group.recv(like, other)
            elif way == 1:
                got = group.exchange(mine, other, like, other)
            elif way == 2 and group.rank == 0:
                assert group.isend(mine, other).wait() is mine
            elif way == 2:
                got = group.irecv(like, other).wait()
            else:
                into, out = group.irecv(like, other), group.isend(mine, other)
                got, _ = into.wait(), out.wait()
            if (way in (1, 3) or group.rank == 1) and (got is not like or bits(got) != bits(theirs)):
                wrong.append((number, way))
    return wrong


@pytest.mark.parametrize("transport", WIRES)
def test_every_dtype_every_way(transport) -> None:
    cases = [(6, d, (2, 3)) for d in DTYPES] + [(1, d, ()) for d in DTYPES] + [(0, d, (0, 4)) for d in DTYPES]
    assert labkit.launch(every_way, 2, cases, transport=transport).results == [[], []]


def single_entries(group):
    """One entry of a row, which counts as contiguous whatever its stride is: sent, received into, and exchanged."""
    table = torch.arange(12.0).view(3, 4) + 100 * group.rank
    mine, other = table[:, 1][1:2], 1 - group.rank
    if group.rank == 0:
        group.send(mine, other)
    else:
        group.recv(mine, other)
    return group.exchange(table[:, 2][1:2], other, table[:, 3][1:2], other).item(), table[:, 1].tolist()


@pytest.mark.parametrize("transport", WIRES)
def test_a_single_entry_may_have_any_stride(transport) -> None:
    run = labkit.launch(single_entries, 2, transport=transport)
    assert run.results == [(106.0, [1.0, 5.0, 9.0]), (6.0, [101.0, 5.0, 109.0])]


@pytest.mark.parametrize("transport", WIRES)
def test_every_size_every_way(transport) -> None:
    sizes = [0, 1, 255, PIECE - 1, PIECE, PIECE + 1, 3 << 20]
    cases = [(n, torch.uint8, (n,)) for n in sizes]
    cases += [(PIECE // 4 + d, torch.float32, (PIECE // 4 + d,)) for d in (-1, 0, 1)]
    cases += [(24, torch.int16, (2, 1, 2, 1, 2, 3)), (512, torch.float32, (2,) * 9)]
    assert labkit.launch(every_way, 2, cases, transport=transport).results == [[], []]


def combine(group, cases):
    """Ranks exchange and combine; returns what differs from combining in one go."""
    from labkit.wire.ops import resolve

    other, wrong = 1 - group.rank, []
    for number, (n, dtype, op) in enumerate(cases):
        op = resolve(op)
        pair = [((torch.arange(n) * (7 + 4 * r)) % 5 + 1).to(dtype) for r in range(2)]
        want = op.combine_(pair[group.rank].clone(), pair[other])
        for way in range(3):
            like, sent = pair[group.rank].clone(), pair[group.rank].clone()
            if way == 0:
                got = group.exchange(sent, other, like, other, op)
            elif way == 1:
                handle = group.irecv(like, other, op)
                group.isend(sent, other).wait()
                got = handle.wait()
            elif group.rank == 0:
                group.send(sent, other)
                got = group.recv(like, other, op)
            else:
                got = group.recv(like, other, op)
                group.send(sent, other)
            if got is not like or not torch.equal(got, want) or not torch.equal(sent, pair[group.rank]):
                wrong.append((number, way))
    return wrong


EDGES = (0, 1, 255, *(PIECE // 4 + d for d in (-1, 0, 1)), *(PIECE // 2 + d for d in (-1, 0, 1)), 3 << 18)
REDUCIBLE = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8]
CASES = st.lists(st.tuples(st.one_of(st.sampled_from(EDGES), st.integers(0, 1 << 17)), st.sampled_from(REDUCIBLE),
                           st.sampled_from(["sum", "prod", "min", "max"])), min_size=3, max_size=6)  # fmt: skip


@pytest.mark.parametrize("transport", WIRES)
@FEW
@given(cases=CASES)
def test_combining_in_pieces_equals_combining_at_once(transport, cases) -> None:
    assert labkit.launch(combine, 2, cases, transport=transport).results == [[], []]


@pytest.mark.parametrize("transport", WIRES)
def test_combining_complex_bool_and_average(transport) -> None:
    cases = [(PIECE // 8 + d, torch.complex64, op) for d in (-1, 0, 1) for op in ("sum", "prod")]
    cases += [
        (PIECE // 16 + 1, torch.complex128, "sum"),
        (PIECE + 3, torch.bool, "max"),
        (PIECE + 3, torch.bool, "min"),
    ]
    cases += [(99, torch.float32, "avg")]
    assert labkit.launch(combine, 2, cases, transport=transport).results == [[], []]
    assert {op.name for op in (SUM, AVG, MIN, MAX, PROD)} == {"sum", "avg", "min", "max", "prod"}


@pytest.mark.parametrize("transport", WIRES)
def test_two_messages_may_be_added_to_one_tensor(transport) -> None:
    def work(group):
        n = 1 << 18
        if group.rank == 0:
            total = torch.zeros(n)
            handles = [group.irecv(total, source, SUM) for source in (1, 2, 3) for _ in range(4)]
            for handle in handles:
                handle.wait()
            return total.unique().tolist()
        for _ in range(4):
            group.send(torch.full((n,), float(group.rank)), 0)

    assert labkit.launch(work, 4, transport=transport).results[0] == [24.0]


@pytest.mark.parametrize("transport", WIRES)
def test_messages_between_two_ranks_keep_their_order(transport) -> None:
    def work(group):
        other, n = 1 - group.rank, 300
        out = [group.isend(torch.tensor([i]), other) for i in range(n)]
        into = [group.irecv(torch.tensor([-1]), other) for _ in range(n)]
        last = int(into[-1].wait())  # waited for in the other order
        got = [int(h.wait()) for h in into]
        assert all(h.done() for h in into)
        for h in out:
            h.wait()
        return got == list(range(n)) and last == n - 1

    assert labkit.launch(work, 2, transport=transport).results == [True, True]


@pytest.mark.parametrize("transport", WIRES)
def test_blocking_and_posted_messages_mix(transport) -> None:
    def work(group):
        other = 1 - group.rank
        if group.rank == 0:
            handle = group.isend(torch.full((1 << 20,), 1.0), other)
            group.send(torch.full((3,), 2.0), other)
            handle.wait()
            return float(group.recv(torch.zeros(2), other)[0])
        first = group.irecv(torch.zeros(1 << 20), other)
        second = group.recv(torch.zeros(3), other)
        group.isend(torch.full((2,), 3.0), other).wait()
        return float(first.wait()[-1]), float(second[0])

    assert labkit.launch(work, 2, transport=transport).results == [3.0, (1.0, 2.0)]


@pytest.mark.parametrize("transport", WIRES)
def test_many_messages_under_way_at_once(transport) -> None:
    """More than gloo's usual number of threads, finished in the opposite order."""

    def work(group):
        k = 40
        if group.rank == 0:
            handles = [group.irecv(torch.zeros(1), 1 + i % 2) for i in range(k)]
            sent = group.isend(torch.zeros(1), 1)
            late = group.irecv(torch.zeros(2), 3)
            late.wait()
            group.send(torch.zeros(1), 2)
            sent.wait()
            return sum(float(h.wait()) for h in handles)
        if group.rank == 3:
            group.send(torch.zeros(2), 0)
            return None
        group.recv(torch.zeros(1), 0)
        for _ in range(k // 2):
            group.send(torch.ones(1), 0)

    assert labkit.launch(work, 4, transport=transport).results[0] == 40


@pytest.mark.parametrize("transport", WIRES)
def test_done_tells_without_waiting(transport, tmp_path) -> None:

    def work(group):
        group.barrier()
        if group.rank == 0:
            while not (tmp_path / "looked").exists():
                time.sleep(0.01)
            group.send(torch.ones(1), 1)
            return None
        handle = group.irecv(torch.zeros(1), 0)
        early = handle.done()
        (tmp_path / "looked").touch()
        while not handle.done():
            time.sleep(0.01)
        return early, float(handle.wait())

    assert labkit.launch(work, 2, transport=transport).results[1] == (False, 1.0)


@pytest.mark.parametrize("transport", WIRES)
def test_a_send_returns_only_when_the_receiver_took_it(transport, tmp_path) -> None:

    def work(group):
        group.barrier()
        if group.rank == 1:
            time.sleep(0.2)
            (tmp_path / "about to receive").touch()
            group.recv(torch.zeros(1), 0)
            return None
        group.send(torch.zeros(1), 1)
        return (tmp_path / "about to receive").exists()

    assert labkit.launch(work, 2, transport=transport).results[0] is True


REFUSED = [
    (lambda g: g.send(torch.zeros(2), g.rank), "cannot send to itself"),
    (lambda g: g.recv(torch.zeros(2), g.rank), "cannot recv from itself"),
    (lambda g: g.send(torch.zeros(2), 2), "rank 2 is not in this group of 2: ranks go from 0 to 1"),
    (lambda g: g.send(torch.zeros(2), -1), "rank -1 is not in this group"),
    (lambda g: g.send(torch.zeros(2), "1"), "rank '1' is not in this group"),
    (lambda g: g.send(torch.zeros(4, 4).t()[:2], 1 - g.rank), "needs a contiguous tensor; call .contiguous"),
    (lambda g: g.recv(torch.zeros(4, 4)[:, 1], 1 - g.rank), "needs a contiguous tensor"),
    (lambda g: g.send([1.0], 1 - g.rank), "only tensors can be sent"),
    (lambda g: g.send(torch.zeros(2, dtype=torch.complex64).conj(), 1 - g.rank), "resolve_conj"),
    (lambda g: g.send(torch.zeros(2, device="meta"), 1 - g.rank), "values, and this one is on the meta"),
    (lambda g: g.recv(torch.zeros(2).to_sparse(), 1 - g.rank), "sparse|contiguous"),
    (lambda g: g.compute(-1), "compute.-1.: needs a finite number"),
    (lambda g: g.compute(float("nan")), "compute.nan.: needs a finite number"),
    (lambda g: g.subgroup([0, 0]), "needs different ranks"),
    (lambda g: g.subgroup([0, 7]), "between 0 and 1"),
    (lambda g: g.subgroup([1 - g.rank]), "which calls it, is not in it"),
]


@pytest.mark.parametrize("transport", WIRES)
def test_what_cannot_be_sent_is_refused_before_anything_is(transport) -> None:
    def work(group, calls):
        words = []
        for call in calls:
            try:
                call(group)
                words.append("nothing was wrong")
            except RefusedError as why:
                words.append(str(why))
        group.barrier()
        return words

    run = labkit.launch(work, 2, [call for call, _ in REFUSED], transport=transport)
    for words in run.results:
        for said, (_, text) in zip(words, REFUSED, strict=True):
            assert re.search(text, said), (said, text)
    assert run.trace.bytes_sent() == [0, 0]
    with pytest.raises(RankFailed, match="raised RefusedError: .*" + REFUSED[0][1]):
        labkit.launch(REFUSED[0][0], 2, transport=transport)


def test_tensors_that_require_grad_can_be_sent_and_received() -> None:
    def work(group):
        other = 1 - group.rank
        x, like = torch.ones(3, requires_grad=True), torch.zeros(3, requires_grad=True)
        group.exchange(x, other, like, other)
        group.exchange(x, other, like, other, SUM)
        return like.tolist()

    for transport in WIRES:
        assert labkit.launch(work, 2, transport=transport).results == [[2.0] * 3] * 2


def test_a_thread_that_waits_for_a_connection_wakes_when_another_thread_has_let_it_in():
    (mine, here), (theirs, there) = abstract_listener(), abstract_listener()
    me, other = (LocalTransport(r, Sockets(s, [here, there], b"s" * 16, None)) for r, s in enumerate((mine, theirs)))
    try:
        assert me.accept(1, 7, 1, wait=True) is None  # one thread waits for lane 1
        door = me.doorstep(1, 7, 1)
        assert not select.select([door], [], [], 0)[0]
        knocked = other.dial(0, 7, 1)
        assert select.select([door], [], [], 10)[0]
        assert me.accept(1, 7, 0) is None  # another one takes what comes, for lane 0
        assert not select.select([mine], [], [], 0)[0] and select.select([door], [], [], 0)[0] == [door]
        let_in = me.accept(1, 7, 1, wait=True)
        assert let_in is not None and me.doorstep(1, 7, 1) == mine.fileno()
        let_in.close()
        knocked.close()
    finally:
        me.close()
        other.close()
