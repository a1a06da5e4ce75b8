"""Dumps of PyTorch's flight recorder lead to the verdict of labkit's own records, and to that of PyTorch's analyzer.

The dumps are genuine ones of gloo. Those of the last part are written by hand in the format that PyTorch documents for
NCCL, because PyTorch for the CPU has no NCCL; its analyzer reads them, too.
"""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import pytest
from slices import few
from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.config_manager import JobConfig
from torch.distributed.flight_recorder.components.loader import read_dump

from labkit import RefusedError
from labkit.resilience import diagnose

from .flight_jobs import ODD, gives_up, overflowing, stood, two_groups

KINDS = ("pickle", "json")


def said(verdict):
    return verdict.kind, verdict.suspects, verdict.exact


def analyzed(folder: Path, named: bool = True):
    """What PyTorch's analyzer says: (number, ranks that are missing, ranks that differ) of the calls that are not well.
    named: put the names into `pg_config` that gloo leaves out."""
    details = {p.name: read_dump("trace_", str(p)) for p in sorted(folder.iterdir())}
    for dump in details.values() if named else ():
        if list(dump["pg_config"]) == [""]:
            dump["pg_config"] = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(len(details))))}}
    db = build_db(details, JobConfig().parse_args([str(folder)]), "2.10")
    return [
        (c.collective_seq_id, c.missing_ranks or set(), set(c.mismatch_collectives or ()))
        for c in db.collectives
        if c.missing_ranks or c.mismatch_collectives
    ]


# -- genuine dumps of gloo -----------------------------------------------------------------------------------------


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("change", "kind", "operation"),
    few(
        [
            ("absent", "absent", "has not joined all_reduce on float32[8]"),
            ("collective", "mismatch", "rank 2 called broadcast on float32[8]"),
            ("size", "mismatch", "rank 2 called all_reduce on float32[4]"),
            ("dtype", "mismatch", "rank 2 called all_reduce on int32[8]"),
            ("skip", "mismatch", "rank 2 called broadcast on float32[5]"),
        ],
        keep=4,
    ),
)
def test_the_verdict_is_that_of_the_status_pages_and_of_the_analyzer(tmp_path, change, kind, operation) -> None:
    own, died = stood(
        tmp_path, change, ends=change == "dtype"
    )  # gloo adds up integers and floats as if they were alike
    assert said(own) == (kind, (ODD,), True) and not died
    for form in KINDS:
        verdict = diagnose.from_pytorch(tmp_path / form)
        assert said(verdict) == said(own)
        assert operation in str(verdict) and "call 3" in str(verdict)
        assert ("at flight_jobs.py:" in str(verdict)) == (kind == "absent" and form == "pickle")  # JSON has no frames
    number, missing, differ = analyzed(tmp_path / "pickle")[0]
    assert (number, missing | differ) == (3, {ODD})


@pytest.mark.ranks
def test_gloo_ends_a_process_and_the_dumps_of_the_others_say_why(tmp_path) -> None:
    own, died = stood(tmp_path, "double")
    assert said(own) == ("mismatch", (ODD,), True) and set(died.values()) == {"SIGABRT"} and ODD not in died
    with pytest.raises(RefusedError, match=f"there is no dump of rank {min(died)}, of 4 ranks"):
        diagnose.from_pytorch(tmp_path / "pickle")
    assert said(diagnose.from_pytorch(tmp_path / "pickle", dead=died)) == said(own)


@pytest.mark.ranks
def test_a_rank_that_was_killed(tmp_path) -> None:
    own, died = stood(tmp_path, "killed")
    assert died == {ODD: "SIGKILL"}
    verdict = diagnose.from_pytorch(tmp_path / "pickle", dead=died)
    assert said(verdict) == said(own) == ("dead", (ODD,), True)


@pytest.mark.ranks
def test_members_of_a_group_that_gloo_does_not_record_are_asked_for(tmp_path) -> None:
    own, _ = stood(tmp_path, "", two_groups)
    with pytest.raises(RefusedError, match=r"rank 2 waits in group \('2', 'right'\), whose members are not recorded"):
        diagnose.from_pytorch(tmp_path / "pickle")
    verdict = diagnose.from_pytorch(tmp_path / "pickle", groups={"right": (2, 3)})
    assert said(verdict) == said(own) == ("absent", (3,), True)
    assert "all_reduce on float32[2] of ranks 2 and 3, call 2" in str(verdict)
    with pytest.raises(RefusedError, match="groups= names 'up'"):
        diagnose.from_pytorch(tmp_path / "pickle", groups={"up": (2, 3)})


@pytest.mark.ranks
def test_a_call_that_was_given_up_has_not_ended_well(tmp_path) -> None:
    stood(tmp_path, "", gives_up, ends=True)
    entries = pickle.loads((tmp_path / "pickle" / "trace_0").read_bytes())["entries"]
    assert [e["retired"] for e in entries] == [True, True]  # for gloo both have ended
    verdict = diagnose.from_pytorch(tmp_path / "pickle", groups={"hasty": range(4)})
    assert said(verdict) == ("absent", (ODD,), True) and "call 2" in str(verdict)


@pytest.mark.ranks
def test_a_buffer_that_has_wrapped(tmp_path) -> None:
    own, _ = stood(tmp_path, "", overflowing, 2)
    folder = tmp_path / "pickle"
    assert pickle.loads((folder / "trace_0").read_bytes())["entries"][0]["record_id"] > 0
    verdict = diagnose.from_pytorch(folder)
    assert said(verdict) == said(own) == ("absent", (1,), True) and "call 2101" in str(verdict)


# -- dumps that cannot be used -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def well(tmp_path_factory):
    """Dumps of a job of four ranks in which nothing is wrong, with both forms of them."""
    folder = tmp_path_factory.mktemp("well")
    own, _ = stood(folder, "", ends=True)
    assert own.kind == "nothing"
    return folder


@pytest.fixture
def copy(well, tmp_path):
    return Path(shutil.copytree(well / "pickle", tmp_path / "dumps"))


def changed(path: Path, change) -> None:
    """Write a dump again after `change(what it holds)`."""
    dump = pickle.loads(path.read_bytes())
    change(dump)
    path.write_bytes(pickle.dumps(dump, protocol=2))


@pytest.mark.ranks
def test_nothing_is_wrong(well) -> None:
    for form in KINDS:
        assert diagnose.from_pytorch(well / form).kind == "nothing"
    assert analyzed(well / "pickle") == []


@pytest.mark.ranks
def test_pytorchs_analyzer_cannot_read_what_gloo_writes(well) -> None:
    """Why the names are put in here; where this fails, PyTorch has changed, and `dumps.py` should say so."""
    with pytest.raises(KeyError, match=r"'0', \d"):
        analyzed(well / "pickle", named=False)


@pytest.mark.ranks
def test_a_pickle_that_asks_for_more_than_plain_data_is_not_loaded(copy, tmp_path) -> None:
    made = tmp_path / "made"

    class Makes:
        def __reduce__(self):
            return os.mkdir, (str(made),)

    changed(copy / "trace_1", lambda dump: dump.update(entries=Makes()))
    with pytest.raises(
        RefusedError, match=r"trace_1 is refused: it asks for posix.mkdir, while a dump holds plain data"
    ):
        diagnose.from_pytorch(copy)
    assert not made.exists()
    read_dump("trace_", str(copy / "trace_1"))
    assert made.exists()  # PyTorch's own reader runs it


def two_sizes(folder: Path) -> None:
    for rank, ranks in enumerate(["[0, 1, 2, 3]", "[0, 1]"]):
        config = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
        changed(folder / f"trace_{rank}", lambda dump, config=config: dump.update(pg_config=config))


def a_day_later(dump) -> None:
    for entry in dump["entries"]:
        entry["time_created_ns"] += 86400 * 10**9


BAD = {
    "missing": (lambda f: (f / "trace_2").unlink(), "there is no dump of rank 2, of 4 ranks: copy it here, or say how"),
    "cut off": (
        lambda f: (f / "trace_1").write_bytes((f / "trace_1").read_bytes()[:-100]),
        "trace_1 cannot be read to",
    ),
    "cut off JSON": (lambda f: (f / "trace_1").write_text('{"version": "2.'), "trace_1 cannot be read to its end"),
    "no dump": (lambda f: (f / "trace_1").write_bytes(pickle.dumps([1], protocol=2)), "trace_1 is no dump of PyTorch"),
    "two formats": (
        lambda f: changed(f / "trace_1", lambda dump: dump.update(version="2.9")),
        "different formats, so not by one job: ranks 0, 2 and 3 in 2.10; rank 1 in 2.9",
    ),
    "format": (
        lambda f: changed(f / "trace_1", lambda dump: dump.update(version="3.0")),
        "trace_1 is written in format 3.0; 2.x can be read",
    ),
    "gaps": (lambda f: changed(f / "trace_1", lambda dump: dump["entries"].pop(2)), "trace_1 has gaps"),
    "prefixes": (lambda f: shutil.copy(f / "trace_1", f / "other_1"), "several prefixes, 'other_' and 'trace_'"),
    "twice": (lambda f: shutil.copy(f / "trace_1", f / "trace_1.pkl"), "trace_1 and trace_1.pkl are both of rank 1"),
    "two sizes": (two_sizes, "trace_0 is of a job of ranks 0 to 3, trace_1 of one of ranks 0 and 1: keep the files of"),
    "two times": (
        lambda f: changed(f / "trace_1", a_day_later),
        r"trace_1 and trace_\d are of different jobs: rank 1 began all_reduce on float32\[8\], call 1, 86400 s after",
    ),
    "empty": (lambda f: [p.unlink() for p in f.iterdir()], "has no file called PREFIX_RANK"),
    "no folder": (shutil.rmtree, "there is no folder"),
}


@pytest.mark.ranks
@pytest.mark.parametrize("how", BAD)
def test_what_cannot_be_used_is_refused_in_a_sentence(copy, how) -> None:
    spoil, sentence = BAD[how]
    spoil(copy)
    with pytest.raises(RefusedError, match=sentence):
        diagnose.from_pytorch(copy)


@pytest.mark.ranks
def test_one_of_two_prefixes_can_be_chosen(copy) -> None:
    shutil.copy(copy / "trace_1", copy / "other_1")
    assert diagnose.from_pytorch(copy, prefix="trace_").kind == "nothing"


# -- dumps as NCCL writes them, by hand ----------------------------------------------------------------------------

WORLD, TP = ("0", "default_pg"), ("7", "tp")


def job(folder: Path, *ranks, first: int = 0) -> Path:
    """Write a dump for each rank: its entries as (name, number, state, and what is unlike an all-reduce of the world).

    first: entries that were written over."""
    config = {
        "0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(len(ranks))))},
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
