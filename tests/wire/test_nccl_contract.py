"""Misuses of NCCL, each found by the stand-in with a sentence. The ranks are threads of this process."""

from __future__ import annotations

import re
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from labkit.wire.accelerator import poll
from labkit.wire.errors import PeerLost, WaitTimeout
from labkit.wire.stand_in import streams
from labkit.wire.stand_in.communicator import Communicator
from labkit.wire.stand_in.contract import RULES, ContractBroken
from labkit.wire.stand_in.hang import explain
from labkit.wire.stand_in.memory import DeviceMemory
from labkit.wire.stand_in.process_groups import Collectives

PATIENCE = 0.4  # seconds until a wait is a hang


def group(c, *calls):
    """Issue calls as one: each is ("send" or "recv", tensor, peer)."""
    c._start_coalescing()
    for name, x, peer in calls:
        getattr(c, name)([x], peer)
    return c._end_coalescing()


def wait(c, work=None):
    """The host waits for what is queued, as a transport does: by polling, with a deadline."""
    if work is not None:
        work.wait()
    event = streams.Event()
    event.record()

    def look():
        if c.get_error() is not None:
            raise c.get_error()

    if not poll(event.query, time.monotonic() + PATIENCE, look):
        look()
        raise WaitTimeout(explain(c))


def play(program, size=2, **options):
    """Run `program(rank, communicator)` on `size` ranks; what each returned or raised."""
    store, ended, kept = dist.HashStore(), [None] * size, []

    def rank(r):
        try:
            with DeviceMemory(), streams.use(streams.Stream(f"rank {r}")):
                c = Collectives(store, r, size, "c", **{k: v[r] if k == "gpu" else v for k, v in options.items()})
                kept.append(c)  # a rank that is through is not dead
                c.eager_connect_single_device()
                ended[r] = program(r, c)
        except Exception as why:
            ended[r] = why

    threads = [threading.Thread(target=rank, args=(r,), daemon=True) for r in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return ended


def one(r=0, n=4):
    return torch.full((n,), float(r + 1))


# -- what is right ------------------------------------------------------------------------------------------------


def exchange(r, c):
    got = torch.zeros(4)
    wait(c, group(c, ("send", one(r), 1 - r), ("recv", got, 1 - r)))
    return got.tolist()


def test_a_group_call_moves_both_ways_and_its_order_does_not_matter() -> None:
    assert play(exchange) == [[2.0] * 4, [1.0] * 4]

    def other_way(r, c):
        got = torch.zeros(4)
        wait(c, group(c, ("recv", got, 1 - r), ("send", one(r), 1 - r)))
        return got.tolist()

    assert play(other_way) == [[2.0] * 4, [1.0] * 4]


def test_the_host_goes_on_and_what_is_queued_behind_the_stream_finds_the_data() -> None:
    begun = threading.Event()

    def program(r, c):
        x = torch.zeros(4)
        if r == 0:
            work = c.recv([x], 1)
            begun.set()
            work.wait()  # orders the stream
            return (x + 1).tolist()  # the host waits here, as a kernel would
        begun.wait()
        wait(c, c.send([one(6)], 0))

    assert play(program)[0] == [8.0] * 4


def test_work_that_was_aborted_ends_without_its_data() -> None:
    def program(r, c):
        if r == 0:
            x = torch.zeros(4)
            work = c.recv([x], 1)
            poll(c._is_initialized, time.monotonic() + 9, lambda: None)
            time.sleep(0.2)  # the receive begins
            c.abort()
            aborted.set()
            wait(c, work)
            time.sleep(0.2)  # the peer's data may come now
            return x.tolist()
        aborted.wait()
        c.send([one()], 0)

    aborted = threading.Event()
    assert play(program)[0] == [0.0] * 4


def test_two_ranks_share_a_gpu_with_the_switch(monkeypatch) -> None:
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    assert play(exchange, gpu=("gpu 0", "gpu 0")) == [[2.0] * 4, [1.0] * 4]


def test_every_collective_gives_what_gloo_gives() -> None:
    def program(r, c):
        total = dist.AllreduceOptions()
        x = one(r)
        wait(c, c.allreduce([x], total))
        outs = list(torch.zeros(8).chunk(2))
        wait(c, c.allgather([outs], [one(r)]))
        part = torch.zeros(4)
        wait(c, c.reduce_scatter([part], [[one(r), one(r)]], dist.ReduceScatterOptions()))
        swapped = torch.zeros(4)
        wait(c, c.all_to_all_single(swapped, one(r), [], []))
        c.barrier()
        return [t.tolist() for t in (x, *outs, part, swapped)]

    two, three = [3.0] * 4, [1.0, 1.0, 2.0, 2.0]
    assert play(program) == [[two, [1.0] * 4, [2.0] * 4, two, three]] * 2


# -- what is wrong ------------------------------------------------------------------------------------------------


def both_send_first(r, c):
    c.send([one()], 1 - r)
    wait(c, c.recv([one()], 1 - r))


def both_receive_first(r, c):
    c.recv([one()], 1 - r)
    wait(c, c.send([one()], 1 - r))


def nobody_receives(r, c):
    if r == 0:
        wait(c, c.send([one()], 1))


def nobody_sends(r, c):
    if r == 0:
        wait(c, c.recv([one()], 1))


def taken_in_the_other_order(r, c):
    for n in (4, 8) if r == 0 else (8, 4):
        wait(c, (c.send if r == 0 else c.recv)([one(n=n)], 1 - r))


def wrong_dtype(r, c):
    wait(c, c.send([one()], 1) if r == 0 else c.recv([one().int()], 0))


def a_cpu_tensor(r, c):
    wait(c, c.send([one().cpu()], 1 - r))


def a_strided_tensor(r, c):
    wait(c, c.send([torch.zeros(4, 4)[:, 1]], 1 - r))


def a_type_without_a_number(r, c):
    wait(c, c.send([one().short()], 1 - r))


def a_tag(r, c):
    wait(c, c.send([one()], 1 - r, 7))


def after_abort(r, c):
    c.abort()
    c.send([one()], 1 - r)


def a_member_does_not_come(r, c):
    wait(c, c.recv([one()], 0))


def a_name_twice(r, c):
    Communicator(c.store, r, 2, "d").eager_connect_single_device()
    Communicator(c.store, r, 2, "d").eager_connect_single_device()


def read_too_early(r, c):
    x = one()
    if r == 0:
        c.recv([x], 1)
        return x.sum()
    wait(c, c.send([x], 0))


def overwritten_while_sent(r, c):
    x = one()
    if r == 0:
        c.send([x], 1)
        x.zero_()
    else:
        wait(c, c.recv([x], 0))


def made_on_another_stream(r, c):
    x, side = one(), streams.Stream("side")
    if r == 0:
        with streams.use(side):
            c.recv([x], 1).wait()  # `side` waits, and nobody waits for `side`
        c.send([x], 1)
    else:
        c.send([x], 0)
        wait(c, c.recv([x], 0))


def two_lanes_in_two_threads(r, c):
    found = []

    def other_lane():
        try:
            c.recv([one()], 1 - r)
        except ContractBroken as why:
            found.append(why)

    c.recv([one()], 1 - r)
    thread = threading.Thread(target=other_lane)
    thread.start()
    thread.join()
    raise found[0]


def a_group_in_a_group(r, c):
    c._start_coalescing()
    c._start_coalescing()


def a_group_that_was_not_begun(r, c):
    c._end_coalescing()


def split_before_it_is_there(r, c):
    Communicator(c.store, r, 2, "child", parent=Communicator(c.store, r, 2, "parent"))


def split_while_under_way(r, c):
    poll(c._is_initialized, time.monotonic() + 9, lambda: None)
    c.recv([one()], 1 - r)
    Communicator(c.store, r, 2, "child", parent=c)


def used_after_an_error(r, c):
    if r == 0:
        wait(c, c.send([one()], 1))
    try:
        wait(c, c.recv([one().int()], 0))
    except ContractBroken:
        c.recv([one()], 0)


def collectives_in_another_order(r, c):
    x = one()
    calls = [lambda: c.allreduce([x], dist.AllreduceOptions()), lambda: c.broadcast([x], dist.BroadcastOptions())]
    wait(c, calls[r]())


def another_root(r, c):
    options = dist.BroadcastOptions()
    options.rootRank = r
    wait(c, c.broadcast([one()], options))


def a_bitwise_reduction(r, c):
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.BXOR
    wait(c, c.allreduce([one().int()], options))


def numpy_of_device_memory(r, c):
    one().numpy()


def host_and_device_in_one_call(r, c):
    return one() + torch.ones(4, device="cpu")


def as_if_gloo(r, c):
    """The wait of a work orders a stream; an event is not the host's until it is asked for."""
    x = one()
    if r == 0:
        with streams.use(streams.Stream("side")):
            c.recv([x], 1).wait()
        return x.sum()
    wait(c, c.send([x], 0))


MISUSES = [
    (both_send_first, "group call", "in send to rank 1 of 4 float32; rank 1 has queued its recv behind send to rank 0"),
    (both_receive_first, "group call", "in recv from rank 1 of 4 float32; rank 1 has queued its send behind recv from"),
    (nobody_receives, "order", "rank 0 is in send to rank 1 .*, and rank 1, in no call that hangs, has not issued its"),
    (nobody_sends, "order", "rank 0 is in recv from rank 1 .*, and rank 1, in no call that hangs, has not issued its"),
    (taken_in_the_other_order, "same count and type", "recv from rank 0 of 8 float32 on c, and rank 0 sent 4 float32"),
    (wrong_dtype, "same count and type", "recv from rank 0 of 4 int32 on c, and rank 0 sent 4 float32"),
    (a_cpu_tensor, "device memory", "send of a tensor of the CPU"),
    (a_strided_tensor, "device memory", r"send of a tensor with strides \(4,\)"),
    (a_type_without_a_number, "types", "send of torch.int16"),
    (a_tag, "no tags", "send with tag=7"),
    (after_abort, "abort", "send on c, which was aborted"),
    (a_name_twice, "init", "makes the communicator d a second time"),
    (
        read_too_early,
        "stream",
        "sum uses a tensor that is still to be written by recv from rank 1 of 4 float32 of rank 0",
    ),
    (overwritten_while_sent, "stream", "zero_ uses a tensor that is still being read by send to rank 1"),
    (made_on_another_stream, "stream", "send to rank 1 of 4 float32 uses a tensor that is still to be written by recv"),
    (as_if_gloo, "stream", "sum uses a tensor that is still to be written by recv from rank 1"),
    (two_lanes_in_two_threads, "one thread", "issues recv from rank 1 .* from a second thread and stream, while"),
    (a_group_in_a_group, "group call", "begins a group call inside another one"),
    (a_group_that_was_not_begun, "group call", "ends a group call that it did not begin"),
    (split_before_it_is_there, "split", "splits parent before it was made"),
    (split_while_under_way, "split", "splits c while recv from rank 1 of 4 float32 is under way on it"),
    (used_after_an_error, "dead member", "rank 1: recv on c, after: rank 1 is in recv from rank 0 of 4 int32"),
    (
        collectives_in_another_order,
        "order",
        "rank 0 all_reduce of 4 float32 by sum, rank 1 broadcast of 4",
    ),
    (another_root, "same count and type", "rank 0 broadcast of 4 float32 from rank 0, rank 1 broadcast .* from rank 1"),
    (a_bitwise_reduction, "types", "rank 0 reduces with BXOR"),
    (host_and_device_in_one_call, "device memory", "add is given a tensor of the CPU and one of the device"),
]


@pytest.mark.parametrize("program, rule, text", MISUSES, ids=[program.__name__ for program, *_ in MISUSES])
def test_a_misuse_is_found_with_its_rule_and_a_sentence(program, rule, text) -> None:
    assert found(play(program), rule, text)


def found(ended, rule, text) -> bool:
    """Whether a rank was told of this rule, in these words."""
    said = [str(why) for why in ended if isinstance(why, ContractBroken | WaitTimeout)]
    assert any(re.search(text, words) and RULES[rule].says in words for words in said), ended
    return True


def test_a_member_that_does_not_come_is_named() -> None:
    store, told = dist.HashStore(), []
    c = Communicator(store, 1, 3, "c")
    c.eager_connect_single_device()
    try:
        with streams.use(streams.Stream("rank 1")):
            a_member_does_not_come(1, c)
    except WaitTimeout as why:
        told.append(why)
    assert not c._is_initialized()
    c.abort()
    assert found(told, "init", "c was never made: ranks 0, 2 did not come")


@pytest.mark.parametrize("version, switch", [((2, 30), "0"), ((2, 29), "1")])
def test_two_ranks_on_one_gpu_need_a_new_nccl_and_its_switch(version, switch, monkeypatch) -> None:
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", switch)
    ended = play(exchange, gpu=("gpu 0", "gpu 0"), version=version)
    number = ".".join(map(str, version))
    assert found(ended, "shared GPU", rf"ranks \[0, 1\] of c are both on gpu 0, with NCCL {number}")


def test_a_dead_member_leaves_a_communicator_that_is_of_no_more_use() -> None:
    def program(r, c):
        got = torch.zeros(4)
        wait(c, group(c, ("send", one(r), 1 - r), ("recv", got, 1 - r)))
        if r == 1:
            c._gloo = None  # its sockets close, as those of a process that died
            return
        for _ in range(2):
            try:
                wait(c, c.recv([got], 1))
            except (PeerLost, ContractBroken) as why:
                told.append(type(why))
                last = why
        raise last

    told: list[type] = []
    assert found(play(program), "dead member", "recv on c, after: rank 0 lost a member of c: .*")
    assert told == [PeerLost, ContractBroken]


def test_the_memory_of_the_device_is_not_numpys() -> None:
    (why, _) = play(numpy_of_device_memory)
    assert isinstance(why, TypeError) and "Use Tensor.cpu()" in str(why)
    with DeviceMemory():
        x = torch.ones(3)
        assert str(x.device) == "cpu:0" and str(x.cpu().device) == "cpu" and x.cpu().numpy().tolist() == [1.0] * 3
        assert x.cpu().data_ptr() != x.data_ptr() and str((x.cpu() * 2).device) == "cpu"
        assert str(x.cpu().to(x.device).device) == "cpu:0" and str(torch.ones(2, device="cpu").device) == "cpu"


def test_a_part_of_a_tensor_may_be_named_while_another_is_on_its_way() -> None:
    def program(r, c):
        x = torch.zeros(8)
        if r == 0:
            first = c.recv([x[:4]], 1)
            x[4:].fill_(7)
            second = c.recv([x[4:6]], 1)
            wait(c, first)
            second.wait()
            return x.tolist()
        wait(c, c.send([one()], 0))
        wait(c, c.send([one(1, 2)], 0))

    assert play(program)[0] == [1.0] * 4 + [2.0] * 2 + [7.0] * 2


def test_every_rule_is_broken_by_a_test() -> None:
    left = {"fails late", "init", "shared GPU", "dead member"}  # have tests of their own
    assert set(RULES) - left <= {rule for _, rule, _ in MISUSES}


def test_times_of_events_are_those_of_the_stream() -> None:
    stream = streams.Stream("timed")
    events = [streams.Event(enable_timing=True) for _ in range(3)]
    gate = threading.Event()
    events[0].record(stream)
    stream.put(lambda: gate.wait() and time.sleep(0.05))
    events[1].record(stream)
    assert events[0].query() and not events[1].query() and not stream.idle()
    with pytest.raises(RuntimeError, match="has not happened yet"):
        events[0].elapsed_time(events[1])
    gate.set()
    stream.synchronize()
    assert events[0].elapsed_time(events[1]) >= 50 and events[1].query()
    with pytest.raises(RuntimeError, match="enable_timing"):
        events[0].elapsed_time(streams.Event())


def test_a_wait_of_a_work_ends_at_once() -> None:
    def program(r, c):
        if r == 0:
            begun = time.monotonic()
            c.recv([one()], 1).wait(timedelta(seconds=9))
            return time.monotonic() - begun < 5

    assert play(program)[0] is True
