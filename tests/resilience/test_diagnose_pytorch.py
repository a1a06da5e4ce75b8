"""Dumps of PyTorch's flight recorder lead to the verdict of labkit's own records, and to that of PyTorch's analyzer.

All dumps here are genuine ones of gloo.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
from slices import few
from torch.distributed.flight_recorder.components.loader import read_dump

from labkit import RefusedError
from labkit.resilience import diagnose
from labkit.resilience.diagnose.dumping import analyzed

from .flight_jobs import ODD, changed, everything, gives_up, overflowing, said, stood, two_groups

KINDS = ("pickle", "json")


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


FIELDS = """record_id pg_id process_group collective_seq_id p2p_seq_id op_id is_p2p profiling_name input_sizes
    input_dtypes output_sizes output_dtypes state retired time_created_ns time_discovered_started_ns
    time_discovered_completed_ns timeout_ms thread_id thread_name""".split()


@pytest.mark.ranks
def test_what_gloo_records_is_what_the_module_says(tmp_path) -> None:
    stood(tmp_path, "", everything, 2, ends=True)
    dump = pickle.loads((tmp_path / "pickle" / "trace_0").read_bytes())
    assert set(dump) == {"version", "entries", "pg_config", "pg_status", "comm_lib_version"}
    assert dump["version"] == "2.10" and dump["pg_config"] == {"": {"name": "", "desc": "", "ranks": "[]"}}
    entries = [e for e in dump["entries"] if e["process_group"] == ("0", "default_pg")]
    names = [e["profiling_name"].removeprefix("gloo:") for e in entries]
    assert names == ["all_reduce", "broadcast", "all_reduce", "all_reduce", "all_reduce"]  # 2 of the reduce-scatter
    assert all(set(e) == {*FIELDS, "frames"} for e in entries)
    assert {(e["state"], e["retired"]) for e in entries} == {("scheduled", True)}
    written = json.loads((tmp_path / "json" / "trace_0").read_text())
    assert all(set(e) == set(FIELDS) for e in written["entries"])
    assert diagnose.from_pytorch(tmp_path / "pickle").kind == "nothing"


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
    assert [e["retired"] for e in entries] == [True]  # for gloo it has ended
    verdict = diagnose.from_pytorch(tmp_path / "pickle", groups={"hasty": range(4)})
    assert said(verdict) == ("absent", (ODD,), True) and "call 1" in str(verdict)


@pytest.mark.ranks
@pytest.mark.parametrize(("change", "call"), [("known", 3), ("gone", 2)])
def test_a_buffer_that_has_wrapped(tmp_path, change, call) -> None:
    """What a rank did last is still there; whether it has come to a call of which nothing is left is not known."""
    own, _ = stood(tmp_path, change, overflowing, 2)
    folder = tmp_path / "pickle"
    assert pickle.loads((folder / "trace_1").read_bytes())["entries"][0]["record_id"] > 0
    verdict = diagnose.from_pytorch(folder)
    assert said(own) == ("absent", (1,), True) and f"call {call}" in str(verdict)
    assert said(verdict) == (said(own) if change == "known" else ("native", (0, 1), False))
    assert ("rank 1 may not have come to it" in str(verdict)) == (change == "gone")


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
