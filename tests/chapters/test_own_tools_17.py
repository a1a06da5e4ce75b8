"""Section 10 of chapter 17: its evidence is true, leads to the rank that was struck, and wrong answers are told why.

The programs are those of the notebook's cells.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from slices import few

import labkit
from labkit import RefusedError, collectives, cost
from labkit.chapters.c17_when_things_break import recorder, signs, sorting, spiked, stuck
from labkit.commands.chapters import notebooks_dir

NOTEBOOK = notebooks_dir() / "17_when_things_break.ipynb"
CELLS = {c["id"]: c for c in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]}
SIZE = 4


def program(cell: str, name: str, **names):
    """The function of a cell, defined as in a notebook."""
    scope = {"__name__": "__main__", "dist": dist, "torch": torch, "timedelta": timedelta, "recorder": recorder,
             "collectives": collectives, "spiked": spiked, "stuck": stuck, **names}  # fmt: skip
    exec("".join(CELLS[cell]["source"]).split("\n\n\n")[0], scope)
    return scope[name]


def section() -> list[dict]:
    order = list(CELLS)
    return [CELLS[id] for id in order[order.index("own-tools") : order.index("s10")]]


def test_the_section_keeps_to_its_budget_and_holds_no_answer() -> None:
    assert len(section()) <= 16
    for cell in section():
        lines = "".join(cell["source"]).split("\n")
        assert cell["cell_type"] == "markdown" or (len(lines) <= 15 and max(map(len, lines)) <= 88), cell["id"]
    code = "\n".join("".join(c["source"]) for c in section() if c["cell_type"] == "code")
    assert re.findall(r"^(suspect|failed_first|faulty) = (\w+)", code, flags=re.M) == [
        ("suspect", "None"),
        ("failed_first", "None"),
        ("faulty", "None"),
    ]


# -- the recorder --------------------------------------------------------------------------------------------------

CASES = [(0, "sends another size"), (2, "leaves one call out"), (3, "stands still"), (0, "leaves one call out"),
         (0, "stands still"), (1, "sends another size")]  # fmt: skip


@pytest.mark.ranks
@pytest.mark.parametrize(("odd", "change"), few(CASES, keep=3))
def test_the_recorders_lead_to_the_odd_rank(odd, change) -> None:
    job = recorder.run(program("recorder-run", "plain"), SIZE, odd, change)
    assert job.verdict.culprit == job.own.culprit == odd
    assert job.unnamed == "KeyError: ('0', 0)"
    rows = {rank: [r for r in job.last() if r["rank"] == str(rank)][-1] for rank in range(SIZE)}
    others = {(r["call"], r["operation"], r["size"], r["has ended"]) for k, r in rows.items() if k != odd}
    mine = rows[odd]
    assert (mine["call"], mine["operation"], mine["size"], mine["has ended"]) not in others
    assert {r["state"] for r in job.last()} == {"scheduled"}
    _, missing, differ = job.calls[0]
    reverse = odd == 0 and change != "stands still"
    assert missing | differ == ({1, 2, 3} if reverse else {odd})
    assert ("accuses all the others" in job.told(odd)) == reverse and job.told(odd).startswith("Right. ")
    assert job.told((odd + 1) % SIZE).startswith(f"Not rank {(odd + 1) % SIZE}")
    assert f"Rank {odd} {change}." in job.told(None)


@pytest.mark.ranks
def test_a_mistake_of_the_readers_is_run_from_the_panel() -> None:
    from ipywidgets import HTML, Button, Dropdown

    panel = recorder.mistakes(program("recorder-run", "plain"), SIZE)
    assert "0 to 3" in repr(panel) and all(change in repr(panel) for change in recorder.CHANGES)
    controls, shown = panel.box.children
    rank, change, button = controls.children
    assert isinstance(shown, HTML) and isinstance(button, Button) and shown.value == ""
    assert isinstance(rank, Dropdown) and (rank.description, change.description) == ("odd rank", "what it does")
    rank.value, change.value = 0, "sends another size"
    button.click()
    assert "accuses all the others" in shown.value and shown.value.count("rank 0</td>") == 2 and not button.disabled
    panel.program = print  # no rank of it writes a dump
    panel.size = 0
    button.click()
    assert "a rank below 0 does one of" in shown.value


def some_job() -> recorder.Recorded:
    verdict = SimpleNamespace(suspects=(1,), __str__=lambda: "")
    return recorder.Recorded(1, "stands still", dict.fromkeys(range(2)), verdict, verdict, [(3, {1}, set())], "")  # type: ignore[arg-type]


def test_nobody_is_told_before_a_reader_has_named_somebody(monkeypatch, capsys) -> None:
    monkeypatch.setattr("labkit.book.live", lambda: True)
    assert some_job().verdicts(None) is None
    told = capsys.readouterr().out
    assert "Read the table first" in told and "1" not in told
    table = some_job().verdicts(0)
    assert [row["suspects"] for row in table] == ["rank 0", "rank 1", "rank 1", "rank 1"]
    assert capsys.readouterr().out.startswith("Not rank 0")


def test_a_suspect_or_a_mistake_that_does_not_exist_is_refused() -> None:
    for suspect in (2, "1", -1):
        with pytest.raises(RefusedError, match="write one of the ranks 0 to 1"):
            some_job().verdicts(suspect)
    for odd, change in ((SIZE, "stands still"), (0, "sings")):
        with pytest.raises(RefusedError, match="a rank below 4 does one of stands still, sends another size"):
            recorder.run(print, SIZE, odd, change)


def test_every_mistake_is_drawn_by_some_seed_and_the_same_one_each_time() -> None:
    found = {recorder.drawn(seed, 6) for seed in range(60)}
    assert {rank for rank, _ in found} == set(range(6)) and {change for _, change in found} == set(recorder.CHANGES)
    assert recorder.drawn(5, 6) == recorder.drawn(5, 6)


# -- the barrier ---------------------------------------------------------------------------------------------------


@pytest.mark.ranks
def test_the_barrier_names_the_frozen_rank_and_its_stack_says_where() -> None:
    found = stuck.watch(program("barrier-run", "barriers"), SIZE, 2)
    assert found.named == [2] and set(found.said) == {0, 1, 3}
    assert [function for function, _ in found.stack] == ["read_batch", "barriers"]
    said = {row["ranks"]: row["say"] for row in found.table}
    assert list(said) == ["0", "1, 3", "2"] and said["2"] == "nothing"
    assert "received errors while waiting for send/recv from rank 0" in said["1, 3"]


def test_rank_0_cannot_be_the_frozen_one() -> None:
    with pytest.raises(RefusedError, match="take a rank from 1 to 3. Rank 0 names the others"):
        stuck.watch(print, SIZE, 0)


# -- signs of hardware ---------------------------------------------------------------------------------------------


def at(time: str) -> datetime:
    return datetime.strptime(time, "%H:%M:%S")


def test_the_night_is_what_the_reasons_say_of_it() -> None:
    times = {part: [at(time) for time, _ in lines] for part, lines in signs.LINES.items()}
    watchdogs = times["loud"][0]
    fell = next(at(time) for time, line in signs.LINES["first"] if "Xid" in line and "79" in line)
    assert 600 <= (watchdogs - fell).seconds <= 602
    assert max(signs.LINES, key=lambda part: len(signs.LINES[part])) == "loud" and min(times["loud"]) == watchdogs
    assert min(min(t) for t in times.values()) == times["remapped"][0]
    assert all(times[part][-1] > watchdogs for part in ("remapped", "corrected"))
    late = [at(time) for lines in signs.LINES.values() for time, line in lines if re.search(r"\): (64|94|95),", line)]
    assert len(late) == 2 and min(late) > watchdogs > fell
    assert all(sorted(t) == t for t in times.values()) and set(signs.WHY) == set(signs.LINES)


@pytest.mark.parametrize("seed", range(3))
def test_the_log_asks_for_times_and_tells_each_wrong_host_why(seed) -> None:
    log = signs.log(seed)
    parts = {part: host for host, part in log.hosts.items()}
    lines = repr(log).splitlines()
    assert lines[0] == "[composed after the documentation, not recorded]" and parts["loud"] in lines[1]
    assert sorted(lines[1:]) != lines[1:] and len(lines) == 1 + sum(map(len, signs.LINES.values()))
    assert "in place of None" in log.told(None) and not any(why in log.told(None) for why in signs.WHY.values())
    for part, word in (("first", "Right"), ("loud", "waited"), ("remapped", "remapping"), ("corrected", "corrected")):
        assert word in log.told(parts[part]) and log.told(parts[part]).startswith(parts[part])
    with pytest.raises(RefusedError, match="the hosts are node-12, node-27, node-33, node-48"):
        log.told("node-1")


def test_hosts_play_other_parts_on_other_seeds() -> None:
    assert len({tuple(signs.log(seed).hosts.items()) for seed in range(8)}) > 4


# -- causes --------------------------------------------------------------------------------------------------------


def test_every_cause_of_the_table_is_a_row_with_a_reason() -> None:
    assert list(sorting.SEEN) == [cause.name for cause in cost.FT_HSDP_FAILURES.causes]
    for cause, (right, seen) in sorting.SEEN.items():
        for kind in sorting.KINDS:
            told = sorting.told(cause, kind)
            assert seen in told and told.startswith("✓ Right" if kind in right else f"✗ Not {kind}: ")
            others = [one for one in right if one != kind]
            assert ("would be right, too" in told) == bool(kind in right and others)
            assert all(one in told for one in others if kind in right)
    assert sorting.told("SSD", None) == ""
    for wrong in (("Floppy", "hang"), ("SSD", "boredom")):
        with pytest.raises(RefusedError, match="the kinds are death, hang, crawl, NaN"):
            sorting.told(*wrong)


def test_the_summary_counts_what_the_names_leave_open() -> None:
    rows = sorting.Sorting()
    assert "0 of 16 rows are right." in repr(rows) and "GPU HBM3 Memory, 155: ..." in repr(rows)
    assert rows.check({"SSD": "crawl"}).endswith("0 of 16 rows are right.")
    told = rows.check({cause: right[-1] for cause, (right, _) in sorting.SEEN.items()})
    assert f"Of 678 interruptions, {155 + 42 + 8 + 2} were deaths and 61 hangs for sure. The other 410" in told
    assert "SSD, 30: hang" in repr(rows)


def test_the_lists_have_labels_and_the_button_answers_each_row() -> None:
    from ipywidgets import HTML, Button, Dropdown

    rows = sorting.Sorting()
    inside = rows.box.children
    lists = [one for one in inside if isinstance(one, Dropdown)]
    assert [one.description for one in lists] == [f"{c.name}, {c.count}" for c in cost.FT_HSDP_FAILURES.causes]
    lists[0].value, lists[1].value = "crawl", "hang"
    next(one for one in inside if isinstance(one, Button)).click()
    said = [one.value for one in inside if isinstance(one, HTML)]
    assert said[0].startswith("✗ Not crawl") and said[1].startswith("✓ Right. death would be right, too")
    assert said[2] == "" and "1 of 16 rows are right." in said[-1] and 'role="status"' in said[-1]


# -- from a number back to a host ----------------------------------------------------------------------------------


@pytest.mark.ranks
@pytest.mark.parametrize(("seed", "struck"), few([(0, 3), (1, 0), (4, 2)], keep=2))
def test_the_place_of_the_jump_leads_to_the_rank_that_was_struck(seed, struck, capsys) -> None:
    train = program("spiked-run", "train", seed=seed)
    struck_runs = labkit.launch(train, SIZE, struck, transport="local").results
    whole, calm = struck_runs[0], labkit.launch(train, SIZE, -1, transport="local").results[0]
    assert all(torch.equal(whole, other) for other in struck_runs[1:])
    hosts = spiked.hosts(seed, SIZE)
    where = spiked.evidence(whole, SIZE, hosts)
    assert torch.equal(where, (whole != calm).nonzero().flatten()) and len(where) == 32
    assert torch.equal(where, torch.arange(int(where[0]), int(where[0]) + 32)) and (whole[where] > 1e7).all()
    printed = capsys.readouterr().out
    assert f"{len(whole):,} parameters" in printed and f"{int(where[0]):,} to {int(where[-1]):,}" in printed
    names = {"where": where, "whole": whole, "spiked": spiked, "hosts": hosts, "blind": lambda what: struck}
    exec("".join(CELLS["spiked-back"]["source"]), names)
    assert names["rank"] == struck and names["hosts"][names["rank"]] == hosts[struck]
    assert where[0] // spiked.EXPERT == where[-1] // spiked.EXPERT  # all in one expert
    assert f"rank {struck} to {hosts[struck]}, and struck was a rank on {hosts[struck]}" in capsys.readouterr().out


def test_a_reader_is_told_about_the_host_after_naming_one(monkeypatch) -> None:
    hosts = {0: "a", 1: "a", 2: "b", 3: "b"}
    told = partial(spiked.told, path="layer 1", found="b", struck="b", placed=hosts)
    assert "goes by layer 1 to b" in told(None)
    monkeypatch.setattr("labkit.book.live", lambda: True)
    assert told(None) == "Work it out on paper first, and write the name of a host in place of None."
    assert told("b").startswith("Right. ") and told("a").startswith("Not a: its ranks are 0, 1. ")
    with pytest.raises(RefusedError, match="the hosts are a, b"):
        told("c")


def test_two_ranks_share_a_host() -> None:
    for size in (4, 6, 8):
        placed = spiked.hosts(0, size)
        assert sorted(placed) == list(range(size))
        assert all(list(placed.values()).count(host) == 2 for host in placed.values())
