"""A rank that takes more memory than it may ends its world, with the limit and the remedy; nothing else changes."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
import torch
from leftovers import alive, eventually
from slices import SLOW_WIRES

import labkit
from labkit import RankFailed, RefusedError, collectives
from labkit.cost.units import GB, GiB, MiB
from labkit.world import doctor
from labkit.world.memory_limit import LEAST, allowance, parse_bytes

pytestmark = pytest.mark.ranks


def hold(group, nbytes):
    """Every rank holds `nbytes` in pieces of 1 MiB, and talks meanwhile."""
    kept = []
    for _ in range(nbytes // MiB):
        kept.append(torch.ones(MiB // 4))
        if len(kept) % 16 == 0:
            collectives.all_reduce(kept[-1], group, algorithm="ring")
    return len(kept)


def lists_only(group):
    kept = []
    while len(kept) < 10**6:
        kept.append(bytes(1000))


def one_is_greedy(group):
    if group.rank == 1:
        torch.ones(300 * MiB // 4)
    group.barrier()


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_what_fits_runs_and_what_does_not_ends_the_world(transport, monkeypatch) -> None:
    monkeypatch.setenv("LABKIT_MAX_MEMORY", "768MiB")  # 256 MiB for each of three
    assert labkit.launch(hold, 3, 180 * MiB, transport=transport).results == [180] * 3
    job = labkit.start(hold, 3, 300 * MiB, transport=transport)
    with pytest.raises(RankFailed) as caught:
        job.wait()
    text = str(caught.value)
    assert caught.value.failure.kind == "raised" and "in hold" in text
    assert "may take 268.4 MB above what it was born with (LABKIT_MAX_MEMORY=768MiB, shared by 3 ranks)" in text
    assert "hold less on it at once, or start fewer ranks" in text
    assert eventually(lambda: not any(alive(p) for p in job.pids))
    monkeypatch.delenv("LABKIT_MAX_MEMORY")
    assert labkit.launch(hold, 3, 300 * MiB, transport=transport).results == [300] * 3


def test_the_share_is_of_one_rank(monkeypatch) -> None:
    monkeypatch.setenv("LABKIT_MAX_MEMORY", "512MiB")
    assert labkit.launch(hold, 1, 300 * MiB).results == [300]
    with pytest.raises(RankFailed, match="LABKIT_MAX_MEMORY=512MiB, shared by 2 ranks"):
        labkit.launch(hold, 2, 300 * MiB)


@pytest.mark.parametrize("work", [lists_only, one_is_greedy])
def test_a_limit_of_one_launch(work) -> None:
    with pytest.raises(RankFailed, match=r"memory_limit=209715200\): hold less .* or raise memory_limit=") as caught:
        labkit.launch(work, 2, memory_limit=200 * MiB)
    assert caught.value.failure.error in ("MemoryError", "RuntimeError")
    assert work is lists_only or caught.value.rank == 1


def test_freed_memory_does_not_count() -> None:
    def churn(group):
        for i in range(60):
            x = torch.ones((i % 30 + 1) * MiB // 4)  # 30 MiB at most, 930 MiB in all
        return len(x)

    assert labkit.launch(churn, 2, memory_limit=LEAST).results == [30 * MiB // 4] * 2


def test_other_errors_are_left_as_they_are() -> None:
    def wrong(group):
        raise ValueError("not about memory")

    with pytest.raises(RankFailed) as caught:
        labkit.launch(wrong, 2, memory_limit=LEAST)
    assert caught.value.failure.message == "not about memory"


def test_a_rank_that_is_aborted_may_have_lacked_memory() -> None:
    def aborted(group):
        import os

        os.abort()

    with pytest.raises(RankFailed, match="killed by SIGABRT, perhaps for lack of memory. This rank may take"):
        labkit.launch(aborted, 1, memory_limit=LEAST)
    with pytest.raises(RankFailed, match="killed by SIGABRT$"):
        labkit.launch(aborted, 1)


def test_a_subprocess_has_the_limit_for_itself_and_the_system_keeps_it() -> None:
    def look(group):
        soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
        code = "import resource; print(resource.getrlimit(resource.RLIMIT_DATA)[0])"
        return soft, int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)

    ((mine, child),) = labkit.launch(look, 1, memory_limit=GB).results
    assert mine == child and GB < mine < 2 * GB
    ((free, _),) = labkit.launch(look, 1).results
    assert free == resource.getrlimit(resource.RLIMIT_DATA)[0]


def test_the_smaller_of_the_two_holds(monkeypatch) -> None:
    assert allowance(None, 4) is None
    monkeypatch.setenv("LABKIT_MAX_MEMORY", "1GiB")
    for limit, size, nbytes, source in [
        (None, 4, 256 * MiB, "LABKIT_MAX_MEMORY=1GiB, shared by 4 ranks"),
        (200 * MiB, 4, 200 * MiB, "memory_limit=209715200"),
        (512 * MiB, 4, 256 * MiB, "LABKIT_MAX_MEMORY=1GiB, shared by 4 ranks"),
    ]:
        allowed = allowance(limit, size)
        assert allowed is not None and (allowed.nbytes, allowed.source) == (nbytes, source)


@pytest.mark.parametrize("text,nbytes", [
    ("4GB", 4 * GB), ("512MiB", 512 * MiB), ("1.5 GiB", 3 * GiB // 2), (" 1000000 ", 10**6), ("3B", 3), ("2kB", 2000),
    ("2TB", 2000 * GB), ("", None), ("4 gb", None), ("4Gb", None), ("-4GB", None), ("1e9", None), ("4GB!", None),
    ("GB", None), ("0x10", None), ("4GB 2", None),
])  # fmt: skip
def test_amounts(text, nbytes) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "lots", "4Gb", "-1", "0"])
def test_a_value_that_cannot_be_read_is_refused_at_launch(text, monkeypatch) -> None:
    monkeypatch.setenv("LABKIT_MAX_MEMORY", text)
    with pytest.raises(RefusedError, match=f"LABKIT_MAX_MEMORY='{text}' .*write 4GB, 512MiB or plain bytes"):
        labkit.launch(hold, 1, 0)


def test_a_world_too_large_for_the_cap_is_refused(monkeypatch) -> None:
    monkeypatch.setenv("LABKIT_MAX_MEMORY", str(3 * LEAST))
    assert labkit.launch(lambda group: group.rank, 3).results == [0, 1, 2]
    with pytest.raises(RefusedError, match="world_size=4: .*402.7 MB together.*at least 134.2 MB: at most 3 ranks fit"):
        labkit.launch(hold, 4, 0)
    monkeypatch.setenv("LABKIT_MAX_MEMORY", str(LEAST - 1))
    with pytest.raises(RefusedError, match="not even one fits"):
        labkit.launch(hold, 1, 0)


@pytest.mark.parametrize("limit,text", [
    (0, "memory_limit=0: needs a whole number"), ("1GB", "memory_limit='1GB'"), (2.0 * GB, "memory_limit=2000000000.0"),
    (True, "memory_limit=True"), (LEAST - 1, "a rank needs at least 134217728 bytes"), (2**60, "below"),
])  # fmt: skip
def test_a_limit_that_cannot_be(limit, text) -> None:
    with pytest.raises(RefusedError, match=text):
        labkit.launch(hold, 1, 0, memory_limit=limit)


def test_the_doctor_tells_the_caps(monkeypatch, capsys) -> None:
    caps = dict(doctor.CHECKS)["Caps"]
    monkeypatch.delenv("LABKIT_MAX_RANKS", raising=False)
    monkeypatch.delenv("LABKIT_MAX_MEMORY", raising=False)
    assert caps() == (True, "none set")
    monkeypatch.setenv("LABKIT_MAX_RANKS", "8")
    assert caps() == (True, "at most 8 ranks in one world (LABKIT_MAX_RANKS)")
    monkeypatch.setenv("LABKIT_MAX_MEMORY", "4GB")
    ok, text = caps()
    assert ok and text.endswith(" and 4 GB for the ranks of one world together (LABKIT_MAX_MEMORY), room for 29")
    monkeypatch.setenv("LABKIT_MAX_MEMORY", "much")
    monkeypatch.setattr(doctor, "CHECKS", [("Caps", caps)])
    assert doctor.main() == 1 and "NO   Caps: RefusedError: LABKIT_MAX_MEMORY='much'" in capsys.readouterr().out
