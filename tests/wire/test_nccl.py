"""The `nccl` transport: over the stand-in on every machine, and with the mark `gpu` over NCCL on as many GPUs.

Over the stand-in what NCCL forbids would be refused or hang. The programs make their tensors where the group has them.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time

import pytest
import torch
from slices import STAND_IN

import labkit
from labkit import RankFailed, collectives, cost
from labkit.wire.accelerator import of
from labkit.wire.errors import PeerLost, WaitTimeout
from labkit.wire.ops import MAX, SUM
from labkit.wire.stand_in.contract import ContractBroken
from labkit.world.devices import MULTI_RANK, gpu_count, nccl_version

pytestmark = pytest.mark.ranks


def wires(ranks):
    """The stand-in, and NCCL where this machine has GPUs for so many ranks (two of them may share one)."""
    room = max(gpu_count(), 2 * (gpu_count() == 1 and nccl_version()[:2] >= MULTI_RANK))
    none = pytest.mark.skipif(room < ranks, reason=f"needs {ranks} CUDA devices, or one and NCCL 2.30 for two ranks")
    return pytest.mark.parametrize("wire", [STAND_IN, pytest.param("nccl", marks=[pytest.mark.gpu, none])])


def run(work, size, *args, wire=STAND_IN, **options):
    def placed(group, *args):
        with torch.device(group.device):  # tensors are made there
            return work(group, *args)

    return labkit.launch(placed, size, *args, transport=wire, **{"timeout": 20, **options})


def messages(group):
    me, other = float(group.rank + 1), 1 - group.rank
    got, total, late = torch.zeros(3, 5), torch.full((7,), me), torch.zeros(2)
    first = group.irecv(late, other)  # on one communicator for both ways it would hold up the send behind it
    group.send(torch.full((2,), me), other)
    group.exchange(torch.full((3, 5), me), other, got, other)
    group.exchange(torch.full((7,), me), other, total, other, SUM)
    most = group.irecv(torch.tensor([1.5, 0.5]), other, MAX)
    group.send(torch.full((2,), me), other)
    return got.unique().tolist(), total.unique().tolist(), first.wait().tolist(), most.wait().tolist()


@wires(2)
def test_messages_may_be_waited_for_in_any_order(wire) -> None:
    done = run(messages, 2, wire=wire)
    assert done.results == [([2.0], [3.0], [2.0, 2.0], [2.0, 2.0]), ([1.0], [3.0], [1.0, 1.0], [1.5, 1.0])]
    assert done.trace.bytes_sent() == [60 + 28 + 8 + 8] * 2


@wires(3)
def test_both_lanes_of_a_group_at_once_and_of_two_groups_that_overlap(wire) -> None:
    def work(group):
        n, me = group.size, group.rank
        ring = [group.subgroup(sorted({me, (me + 1) % n})), group.subgroup(sorted({me, (me - 1) % n}))]  # a cycle
        handle = collectives.all_reduce(torch.full((5000,), float(me)), group, algorithm="ring", async_op=True)
        got = torch.zeros(1)
        coming = group.irecv(got, (me - 1) % n)
        group.send(torch.tensor([float(me)]), (me + 1) % n)
        coming.wait()
        pairs = [collectives.all_reduce(torch.tensor([float(me)]), g, algorithm="ring", async_op=True) for g in ring]
        return got.item(), handle.wait().unique().tolist(), [h.wait().item() for h in pairs]

    assert run(work, 3, wire=wire).results == [(2, [3.0], [1.0, 2.0]), (0, [3.0], [3.0, 1.0]), (1, [3.0], [2.0, 3.0])]


@wires(2)
def test_a_barrier_of_empty_messages_is_one(wire) -> None:
    def work(group):
        group.barrier()
        if group.rank == 0:
            time.sleep(0.3)
            before = time.time()
            group.barrier()
            return before
        group.barrier()
        return time.time()

    first, second = run(work, 2, wire=wire).results
    assert second > first


@wires(3)
@pytest.mark.parametrize("size", [2, 3])
def test_sums_are_equal_to_the_bit_and_bytes_to_those_of_sockets(size, wire) -> None:
    def work(group):
        x = torch.arange(1003.0) * 0.37 ** (group.rank + 1)
        return [collectives.all_reduce(x.clone(), group, algorithm=a).cpu() for a in ("ring", "tree", "naive")]

    here, there = run(work, size, wire=wire), labkit.launch(work, size, transport="local")
    for a, b in zip(here.results, there.results, strict=True):
        assert all(map(torch.equal, a, b))
    assert here.trace.bytes_sent() == there.trace.bytes_sent()
    assert cost.ring_all_reduce_bytes_by_rank(1003, 4, size)[0] < here.trace.bytes_sent()[0]


def natives(group):
    me, n = group.rank, group.size
    x = torch.arange(6.0) + me
    made = [
        collectives.all_reduce(x.clone(), group, algorithm="native"),
        collectives.broadcast(x.clone(), group, root=1, algorithm="native"),
        collectives.all_gather(x.clone(), group, algorithm="native"),
        collectives.reduce_scatter(x.clone(), group, algorithm="native"),
        collectives.all_to_all(x.clone(), group, algorithm="native"),
        collectives.reduce(x.clone(), group, root=0, algorithm="native") if me == 0 else None,
    ]
    if me:
        collectives.reduce(x.clone(), group, root=0, algorithm="native")
    half = group.subgroup([0, n - 1]) if me in (0, n - 1) else None
    if half is not None:
        made.append(collectives.all_reduce(x.clone(), half, algorithm="native"))
    collectives.barrier(group, algorithm="native")
    return [None if x is None else x.cpu() for x in made]


@wires(3)
def test_native_collectives_keep_the_contract_and_give_what_gloos_do(wire) -> None:
    here, there = run(natives, 3, wire=wire).results, labkit.launch(natives, 3, transport="gloo").results
    for a, b in zip(here, there, strict=True):
        assert len(a) == len(b)
        assert all(x is y is None or torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_native_collective_that_hangs_ends_by_the_deadline_and_one_of_its_own_is_named() -> None:
    def work(group, other):
        collectives.barrier(group, algorithm="native")
        group.context.timeout = 1.0
        x, call = torch.ones(3), collectives.all_reduce if group.rank == 0 else other
        try:
            call and call(x, group, algorithm="native")
        except (WaitTimeout, ContractBroken) as why:
            time.sleep(1)  # the other one says by itself what it sees
            return str(why)

    told, _ = run(work, 2, None, check=False).results
    assert told.startswith(
        "rank 0 waited 1 s for a native collective. rank 0 is in all_reduce of 3 float32 on the process"
    )
    for words in run(work, 2, collectives.broadcast, check=False).results:
        assert (
            "call different collectives: rank 0 all_reduce of 3 float32 by sum, rank 1 broadcast of 12 uint8" in words
        )


def test_what_lies_in_host_memory_is_refused() -> None:
    def work(group):
        group.send(torch.zeros(2).cpu(), 1 - group.rank)

    with pytest.raises(RankFailed, match="needs a tensor on cpu:0, and this one is on cpu: call .to.group.device."):
        run(work, 2)


# -- what goes wrong ----------------------------------------------------------------------------------------------


@wires(3)
def test_a_member_that_does_not_come_is_named_by_the_deadline(wire) -> None:
    def work(group):
        if group.rank == 2:
            time.sleep(3)
            return None
        begun = time.monotonic()
        try:
            with group.within(1):
                collectives.all_reduce(torch.ones(3), group, algorithm="ring")
        except WaitTimeout as why:
            return str(why), time.monotonic() - begun < 4

    for words, quick in run(work, 3, wire=wire, check=False).results[:2]:
        assert quick and "was never made: rank 2 did not come" in words


@wires(2)
def test_a_wait_within_seconds_ends_then_and_the_group_can_be_formed_anew(wire) -> None:
    def work(group):
        group.barrier()
        if group.rank == 1:
            time.sleep(1)
        begun, told = time.monotonic(), ""
        if group.rank == 0:
            try:
                with group.within(0.3):
                    group.recv(torch.zeros(2), 1)
            except WaitTimeout as why:
                told = f"{why.peer}: {why}"
        took = time.monotonic() - begun
        group = group.rebuild([1, 0], epoch=7)
        return took < 4, told, collectives.all_reduce(torch.ones(2), group, algorithm="ring").tolist()

    (quick, told, total), (_, _, other) = run(work, 2, wire=wire, check=False).results
    assert quick and total == other == [2.0, 2.0]
    assert re.match(r"1: rank 0 waited 0\.(3|29\d*) s for rank 1: nothing moved", told)


@wires(3)
def test_who_leaves_wakes_the_others_in_either_lane(wire) -> None:
    def work(group):
        group.barrier()
        if group.rank == 0:
            time.sleep(0.2)
            group.leave()
            return None
        try:
            group.recv(torch.zeros(2), 0) if group.rank == 1 else collectives.all_reduce(torch.ones(3), group)
        except PeerLost as why:
            return str(why)

    none, one, two = run(work, 3, wire=wire, check=False).results
    assert none is None and one == two.replace("rank 2", "rank 1", 1) == "rank 1 lost rank 0: it left the group"


@wires(2)
def test_a_thread_that_leaves_wakes_its_own_rank(wire) -> None:
    def work(group):
        group.exchange(torch.zeros(1), 1 - group.rank, torch.zeros(1), 1 - group.rank)
        if group.rank == 0:
            threading.Timer(0.3, group.leave).start()
        try:
            group.recv(torch.zeros(2), 1 - group.rank)
        except PeerLost as why:
            return str(why)

    assert run(work, 2, wire=wire, check=False).results == [
        "rank 0 has left the group of ranks [0, 1]", "rank 1 lost rank 0: it left the group",
    ]  # fmt: skip


@wires(3)
@pytest.mark.parametrize("silent", [False, True])
def test_the_living_go_on_without_a_rank_that_died(silent, wire) -> None:
    """silent: NCCL says nothing of it, as between GPUs of one host; then the host's word counts."""

    def work(group):
        if silent:
            of(group.device).failure = lambda communicator: None
        collectives.all_reduce(torch.ones(3), group, algorithm="ring")
        try:
            if group.rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            collectives.all_reduce(torch.ones(3), group, algorithm="ring")
        except PeerLost:  # not only when the wait runs out
            group = group.rebuild([0, 1])
            return collectives.all_reduce(torch.ones(3), group, algorithm="ring").tolist()

    done = run(work, 3, wire=wire, on_failure="continue")
    assert done.results[:2] == [[2.0] * 3] * 2
    assert [f.rank for f in done.failures] == [2]


def test_a_program_that_breaks_the_contract_is_told_which_rule() -> None:
    def work(group):
        x = torch.zeros(4)
        group.exchange(x, 1 - group.rank, torch.zeros(4), 1 - group.rank)
        if group.rank == 0:
            group.irecv(x, 1)
            return (x + 1).tolist()  # before the handle was waited for
        time.sleep(0.2)
        group.send(torch.ones(4), 0)

    with pytest.raises(RankFailed, match="still to be written by recv from rank 1 of 16 uint8"):
        run(work, 2)


def test_what_needs_a_relay_is_refused_at_once() -> None:
    def work(group):
        from labkit.resilience.ftar.exchange import ft_all_reduce

        ft_all_reduce(torch.ones(3), group)

    with pytest.raises(RankFailed, match="RefusedError: FTAR needs transport='local' or 'gloo', not 'nccl-stand-in'"):
        run(work, 2)


# -- streams, clocks and staging ----------------------------------------------------------------------------------


def slow(group, seconds):
    """Put a kernel of about this length on the current stream."""
    if group.device.type == "cuda":
        torch.cuda._sleep(int(seconds * 1.7e9))  # clock cycles: at 1.1 to 2 GHz it is 0.85 to 1.5 times as long
    else:
        of(group.device).current_stream().put(lambda: time.sleep(seconds))


@wires(2)
def test_a_span_takes_the_time_of_the_device_and_not_of_the_queue(wire) -> None:
    def work(group):
        with group.span("first"):  # what is made once is made here
            slow(group, 0)
        begun = time.perf_counter()
        with group.span("queued"):
            slow(group, 0.3)
        return time.perf_counter() - begun

    done = run(work, 2, wire=wire)
    assert max(done.results) < 0.2
    for span in done.trace.spans("queued"):
        assert 0.24 <= span.end - span.start < 1


@wires(2)
def test_a_message_goes_behind_what_its_stream_still_has_to_do(wire) -> None:
    def work(group):
        from labkit.wire.accelerator import of

        group.barrier()  # the clock of the device waits for it once, when it is made
        device, x, other = of(group.device), torch.zeros(3), 1 - group.rank
        with device.use(device.stream()):
            slow(group, 0.2)
            device.launch(torch.Tensor.fill_, x, 5.0)  # queued: not there yet
            handle = collectives.all_reduce(x, group, algorithm="ring", async_op=True)
            got = torch.zeros(3)
            coming = group.irecv(got, other)
            group.send(torch.ones(3), other)
            coming.wait()
            return handle.wait().tolist(), got.tolist()

    assert run(work, 2, wire=wire).results == [([10.0] * 3, [1.0] * 3)] * 2


@pytest.mark.parametrize("transport", ["gloo", "local"])
def test_tensors_of_the_device_go_by_way_of_the_host_where_the_wire_knows_no_other(transport) -> None:
    def work(group):
        from labkit.wire import accelerator
        from labkit.wire.stand_in.device import StandIn
        from labkit.wire.stand_in.memory import DeviceMemory, on_host

        device = accelerator.install(StandIn())
        seen, run_ = [], group._lane.run

        def look(*messages, **limits):
            seen.extend(on_host(m.raw) for _, m in messages)
            return run_(*messages, **limits)

        group._lane.run = look
        with DeviceMemory(), device.use(device.stream()):
            x, got, total = torch.zeros(3), torch.zeros(3), torch.ones(3)
            device.current_stream().put(lambda: time.sleep(0.1))
            device.launch(torch.Tensor.fill_, x, float(group.rank + 1))
            group.exchange(x, 1 - group.rank, got, 1 - group.rank)
            group.exchange(x, 1 - group.rank, total, 1 - group.rank, SUM)
            return seen, got.tolist(), total.tolist()

    first, second = labkit.launch(work, 2, transport=transport).results
    assert first == ([True] * 4, [2.0] * 3, [3.0] * 3) and second == ([True] * 4, [1.0] * 3, [2.0] * 3)
