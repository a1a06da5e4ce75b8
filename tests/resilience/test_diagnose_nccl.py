"""Dumps in the format of NCCL's flight recorder, written by hand as PyTorch documents them, and the verdicts on them.

PyTorch for the CPU has no NCCL, so there is no genuine one here. PyTorch's analyzer reads these, too.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from labkit.resilience import diagnose
from labkit.resilience.diagnose.dumping import analyzed
from labkit.resilience.diagnose.dumps import read_dumps
from labkit.resilience.diagnose.pytorch import reports

from .flight_jobs import changed, said

WORLD, LEFT, TP = ("0", "default_pg"), ("6", "left"), ("7", "tp")


def job(folder: Path, *ranks, first: int = 0) -> Path:
    """Write a dump for each rank: its entries as (name, number, state, and what is unlike an all-reduce of the world).

    first: entries that were written over."""
    config = {
        "0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(len(ranks))))},
        "6": {"name": "6", "desc": "left", "ranks": "[0, 1]"},
        "7": {"name": "7", "desc": "tp", "ranks": str(list(range(len(ranks)))[-2:])},
    }
    for rank, acts in enumerate(ranks):
        entries = []
        for n, (name, seq, state, *other) in enumerate(acts):
            p2p = name.startswith(("send", "recv")) or bool(other and other[0].get("is_p2p"))
            entries.append(
                {"record_id": n + first, "pg_id": 0, "process_group": WORLD, "collective_seq_id": 0 if p2p else seq,
                 "p2p_seq_id": seq if p2p else 0, "op_id": n + 1, "profiling_name": f"nccl:{name}",
                 "time_created_ns": n, "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
                 "input_sizes": [[8]], "input_dtypes": ["Float"], "output_sizes": [[8]], "output_dtypes": ["Float"],
                 "state": state, "retired": state == "completed", "timeout_ms": 600000, "is_p2p": p2p, "frames": [],
                 **(*other, {})[0]}
            )  # fmt: skip
        dump = {"version": "2.10", "entries": entries, "pg_config": config, "pg_status": {}, "nccl_comm_state": {}}
        (folder / f"trace_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return folder


DONE = ("all_reduce", 1, "completed")
IN = ("all_reduce", 2, "started")


def test_a_member_of_a_recorded_group_has_not_come(tmp_path) -> None:
    tp = {"process_group": TP}
    folder = job(tmp_path, [DONE], [DONE, ("all_gather", 1, "started", {**tp, "output_sizes": [[16]]})], [DONE])
    verdict = diagnose.from_pytorch(folder)
    assert said(verdict) == ("absent", (2,), True) and "all_gather on float32[8] of ranks 1 and 2" in str(verdict)
    assert analyzed(folder) == [(1, {2}, set())]


@pytest.mark.parametrize("state", ["started", "scheduled"])
def test_a_call_that_was_retired_and_not_completed_timed_out(tmp_path, state) -> None:
    folder = job(tmp_path, [DONE, ("all_reduce", 2, state, {"retired": True})], [DONE])
    assert said(diagnose.from_pytorch(folder)) == ("absent", (1,), True)


def test_a_gpu_that_has_not_started_what_the_others_have(tmp_path) -> None:
    folder = job(tmp_path, [DONE, IN], [DONE, ("all_reduce", 2, "scheduled")], [DONE, IN])
    verdict = diagnose.from_pytorch(folder)
    assert said(verdict) == ("absent", (1,), True) and "its GPU has not started it" in str(verdict)
    assert {1} in [differ for _, _, differ in analyzed(folder)]


def test_a_gpu_that_is_in_another_call_waits_there(tmp_path) -> None:
    """Rank 1 has not started the call of the world, because rank 2 does not come to theirs."""
    tp = {"process_group": TP}
    folder = job(tmp_path, [DONE, IN], [DONE, ("broadcast", 1, "started", tp), ("all_reduce", 2, "scheduled")], [DONE])
    verdict = diagnose.from_pytorch(folder)
    assert said(verdict) == ("absent", (2,), True) and "broadcast on float32[8]" in str(verdict)


def test_all_are_inside_and_nobody_is_singled_out(tmp_path) -> None:
    folder = job(tmp_path, [DONE, IN], [DONE, IN], [DONE, IN])
    assert said(diagnose.from_pytorch(folder)) == ("native", (0, 1, 2), False)


def test_a_rank_without_a_dump_is_among_the_suspects(tmp_path) -> None:
    folder = job(tmp_path, [DONE, IN], [DONE], [DONE, IN])
    (folder / "trace_1").unlink()
    verdict = diagnose.from_pytorch(folder, incomplete=True)
    assert said(verdict) == ("native", (0, 1, 2), False) and "rank 1 may not have come to it" in str(verdict)


def test_two_groups_in_different_orders(tmp_path) -> None:
    tp = {"process_group": TP}
    folder = job(
        tmp_path,
        [DONE, IN],
        [DONE, IN],
        [DONE, ("all_reduce", 1, "started", tp)],
    )
    assert said(diagnose.from_pytorch(folder)) == ("circle", (1, 2), False)


SEND, RECV = {"output_sizes": [[8]]}, {"input_sizes": [[8]]}


def test_a_message_that_is_not_sent(tmp_path) -> None:
    folder = job(tmp_path, [DONE, ("send 0->1", 1, "completed")],
                 [DONE, ("recv 1<-0", 1, "completed"), ("recv 1<-0", 2, "started")])  # fmt: skip
    verdict = diagnose.from_pytorch(folder)
    assert said(verdict) == ("absent", (0,), True) and "message 2 from rank 0 to rank 1" in str(verdict)


def test_two_that_both_send_first(tmp_path) -> None:
    folder = job(tmp_path, [DONE, ("send 0->1", 1, "started")], [DONE, ("send 1->0", 1, "started")])
    verdict = diagnose.from_pytorch(folder)
    assert said(verdict) == ("circle", (0, 1), False)


def test_a_message_that_is_received_as_another(tmp_path) -> None:
    folder = job(tmp_path, [("send 0->1", 1, "started")], [("recv 1<-0", 1, "started", {"output_sizes": [[9]]})])
    verdict = diagnose.from_pytorch(folder)
    assert said(verdict) == ("mismatch", (0, 1), False) and verdict.way == (0, 1)
    assert "sent rank 1 float32[8], but rank 1 receives float32[9]" in str(verdict)


def test_a_batch_has_ended_when_its_last_entry_has(tmp_path) -> None:
    def batch(me, peer, state):
        both = [(f"send {me}->{peer}", 1, "scheduled"), (f"recv {me}<-{peer}", 1, "scheduled")]
        return [DONE, *both, ("coalesced", 1, state, {"is_p2p": True, "input_sizes": [], "output_sizes": [],
                                                      "input_dtypes": [], "output_dtypes": []})]  # fmt: skip

    assert diagnose.from_pytorch(job(tmp_path, batch(0, 1, "completed"), batch(1, 0, "completed"))).kind == "nothing"
    assert said(diagnose.from_pytorch(job(tmp_path, batch(0, 1, "started"), [DONE]))) == ("absent", (1,), True)


def test_numbers_of_messages_are_not_guessed_when_a_buffer_has_wrapped(tmp_path) -> None:
    ranks = [("send 0->1", 8, "completed")], [("recv 1<-0", 8, "completed"), ("recv 1<-0", 9, "started")]
    assert diagnose.from_pytorch(job(tmp_path, *ranks)).culprit == 0
    assert diagnose.from_pytorch(job(tmp_path, *ranks, first=7)).kind == "nothing"


def test_two_that_have_begun_a_message_and_not_ended_it(tmp_path) -> None:
    folder = job(tmp_path, [("send 0->1", 1, "started")], [("recv 1<-0", 1, "started")])
    verdict = diagnose.from_pytorch(folder)
    assert said(verdict) == ("between", (0, 1), False) and verdict.way == (0, 1)


def test_of_several_receives_the_first_one_is_waited_for(tmp_path) -> None:
    folder = job(tmp_path, [DONE], [DONE, ("recv 1<-0", 1, "started"), ("recv 1<-0", 2, "scheduled")])
    assert "message 1 from rank 0 to rank 1" in str(diagnose.from_pytorch(folder))


def test_of_several_calls_the_first_one_is_waited_for(tmp_path) -> None:
    """Rank 0 has enqueued one more, which rank 1 has not come to."""
    folder = job(tmp_path, [DONE, IN, ("all_reduce", 3, "scheduled")], [DONE, IN])
    verdict = diagnose.from_pytorch(folder)
    assert said(verdict) == ("native", (0, 1), False) and "call 2" in str(verdict)


def test_sizes_that_may_differ_between_ranks(tmp_path) -> None:
    nothing = {"input_sizes": [], "input_dtypes": []}
    parts = {"input_sizes": [[8], [8]], "input_dtypes": ["Float", "Float"]}
    ranks = [[("scatter", 1, "completed", some), ("all_to_all", 2, "completed", {"input_sizes": [[n]]})]
             for n, some in enumerate((parts, nothing))]  # fmt: skip
    assert diagnose.from_pytorch(job(tmp_path, *ranks)).kind == "nothing"
    ranks[1][0] = ("scatter", 1, "completed", {**nothing, "output_sizes": [[9]]})
    assert "rank 1 called scatter on float32[9]" in str(diagnose.from_pytorch(job(tmp_path, *ranks)))


def test_calls_that_were_coalesced_are_one(tmp_path) -> None:
    last = ("coalesced", 2, "started", {"input_sizes": [], "input_dtypes": []})
    parts = [("all_reduce", 2, "scheduled"), ("all_reduce", 2, "scheduled", {"input_sizes": [[4]]}), last]
    verdict = diagnose.from_pytorch(job(tmp_path, [DONE, *parts], [DONE, *parts], [DONE, parts[0], last]))
    assert said(verdict) == ("mismatch", (2,), True)
    assert "ranks 0 and 1 called all_reduce on float32[8] and all_reduce on float32[4]; rank 2 called" in str(verdict)
    assert said(diagnose.from_pytorch(job(tmp_path, [DONE, *parts], [DONE], [DONE, *parts]))) == ("absent", (1,), True)


def test_the_odd_one_among_equals_is_named_as_a_guess(tmp_path) -> None:
    """Four ranks reduce in pairs and then all together; rank 2 begins with the others."""
    left, tp = {"process_group": LEFT}, {"process_group": TP}
    usual = [[("all_reduce", 1, state, pair), ("all_reduce", 1, "started")][:upto] for state, pair, upto in
             (("completed", left, 2), ("completed", left, 2), ("started", tp, 1))]  # fmt: skip
    folder = job(tmp_path, usual[0], usual[1], [("all_reduce", 1, "started")], usual[2])
    verdict = diagnose.from_pytorch(folder)
    assert said(verdict) == ("circle", (2,), False) and str(verdict).startswith("probably rank 2")


@pytest.mark.parametrize("first", [0, 7])
def test_ranks_are_equals_if_all_that_they_did_is_known_to_be_alike(tmp_path, first) -> None:
    ranks = [[DONE, IN], [DONE, IN], [("broadcast", 1, "completed"), IN]]
    past = [r.made[-1].past for r in reports(read_dumps(job(tmp_path, *ranks, first=first)), (), {}, False).values()]
    assert (past[0] == past[1]) == (first == 0) and past[1] != past[2]


def test_an_empty_dump_of_a_rank_that_has_done_something_tells_nothing(tmp_path) -> None:
    folder = job(tmp_path, [DONE, IN], [])
    assert diagnose.from_pytorch(folder).culprit == 1
    status = {"last_enqueued_collective": 2, "last_started_collective": 2, "last_completed_collective": 2}
    changed(folder / "trace_1", lambda dump: dump.update(pg_status={"0": status}))
    assert said(diagnose.from_pytorch(folder)) == ("native", (0, 1), False)


def test_the_rank_is_the_whole_number_behind_the_prefix(tmp_path) -> None:
    assert diagnose.from_pytorch(job(tmp_path, *[[DONE, IN]] * 10, [DONE])).culprit == 10
