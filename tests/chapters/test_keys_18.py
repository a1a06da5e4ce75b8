"""Keys of chapter 18 and what its checks compare with: slips are told apart, the sources' numbers come out, and the
references agree with labkit's own checkpoints and feeds."""

from __future__ import annotations

import itertools
import zlib

import pytest
import torch
from slips import every_draw, letters_have_reasons, tell_apart

from labkit import cost
from labkit.chapters.c18_checkpoints import checks as reference
from labkit.cost.units import MINUTE
from labkit.grading.answers import find_key
from labkit.parallel.data.sampler import Sampler
from labkit.resilience.checkpoint import Feed
from labkit.resilience.checkpoint.slices import StridedSlice, common

CHAPTER = "18_checkpoints"


def answer(name, **numbers):
    return find_key(CHAPTER, name, **numbers).answer


OFTEN = every_draw(write=[2, 4, 6], hours=[3, 5, 8])
BYTES = every_draw(billions=[13, 30, 70], replicas=[4, 6], ranks=[32, 64], storage=[50, 80])
DOLLARS = every_draw(gpus=[512, 2048, 4096], price=[2, 3, 4])
BEHIND = every_draw(write=[4, 6], part=[8, 12], hours=[3, 4, 6])
MEET = every_draw(small=[15, 17, 20], large=[160, 200, 240], rest=[4, 6])
BY_NUMBERS = (
    (OFTEN, ("interval", "beside_useful", "of_all_time", "interval_of_four", "tax_of_four")),
    (BYTES, ("checkpoint_gigabytes", "rank_gigabytes", "seconds_full", "seconds_sharded", "room_for_three")),
    (DOLLARS, ("hours_between", "dollars_as_stated", "dollars_of_all_time")),
    (BEHIND, ("interval_behind", "tax_waited", "tax_behind", "times_larger")),
    (MEET, ("exponent", "connections", "trains", "crossing")),
)


@pytest.mark.parametrize("name, draws", [(name, draws) for draws, names in BY_NUMBERS for name in names])
def test_no_slip_is_right_and_each_is_told_apart_by_some_numbers(name, draws):
    tell_apart(find_key(CHAPTER, name, **numbers) for numbers in draws)


@pytest.mark.parametrize("name, right, letters", [("what_to_say", "b", "abcd"), ("what_behind_costs", "abc", "abcde")])
def test_letters_have_a_reason_each(name, right, letters):
    letters_have_reasons(find_key(CHAPTER, name), right, letters)


def test_the_numbers_of_the_sources():
    assert find_key(CHAPTER, "interval", write=5, hours=4).mark("49 min").right
    assert answer("dollars_as_stated", gpus=1024, price=2) == pytest.approx(13_638, rel=1e-3)
    assert answer("dollars_of_all_time", gpus=1024, price=2) == pytest.approx(9_646, rel=1e-3)
    assert answer("hours_between", gpus=1024, price=2) == pytest.approx(48.83, rel=1e-3)
    assert answer("exponent", small=17, large=200, rest=6) == pytest.approx(1.38, rel=5e-3)
    assert (
        find_key(CHAPTER, "checkpoint_gigabytes", billions=175, replicas=8, ranks=64, storage=80).mark("2.1 TB").right
    )


@pytest.mark.parametrize("numbers", OFTEN[::2])
def test_no_other_interval_costs_less(numbers):
    write, mtbf = numbers["write"], 60 * numbers["hours"]
    for name, tax, between in (("interval", "beside_useful", mtbf), ("interval_of_four", "tax_of_four", mtbf / 4)):
        best, least = answer(name, **numbers), answer(tax, **numbers) / 100
        for factor in (0.8, 0.95, 1.05, 1.25):
            assert cost.first_order_tax(factor * best, write, between).of_useful > least


@pytest.mark.parametrize("numbers", BEHIND[::2])
def test_behind_training_no_other_interval_costs_less(numbers):
    write, stall, mtbf = numbers["write"], numbers["write"] / numbers["part"], 60 * numbers["hours"]
    best, least = answer("interval_behind", **numbers), answer("tax_behind", **numbers) / 100
    for factor in (0.8, 0.95, 1.05, 1.25):
        assert cost.asynchronous_tax(factor * best, stall, write, mtbf).of_useful > least
    larger = answer("times_larger", **numbers)
    assert cost.young_interval(stall, mtbf / larger) == pytest.approx(write)
    assert cost.asynchronous_interval(stall, write, mtbf / larger / 1.1) == write


@pytest.mark.parametrize("numbers", MEET[::4])
def test_at_the_crossing_nothing_is_left(numbers):
    size = answer("crossing", **numbers)
    growth = cost.fit_growth([(16_384, numbers["small"]), (98_304, numbers["large"])])
    restart = growth.seconds(size) + numbers["rest"] * MINUTE
    assert restart == pytest.approx(cost.mtbf_of(18 * MINUTE * 100_000, round(size)), rel=1e-4)
    assert answer("trains", **numbers) == pytest.approx(
        100 * cost.synchronous_effective_time(36 * MINUTE, growth.seconds(50_000) + numbers["rest"] * MINUTE)
    )


# What programs are compared with -----------------------------------------------------------------------------------


@pytest.mark.parametrize("n, count, each", [(1, 20, 3), (3, 31, 2), (4, 50, 4)])
def test_batches_are_those_of_a_feed(n, count, each, monkeypatch):
    monkeypatch.setattr(Sampler, "_order", lambda self, epoch: reference.order_of(count, self.seed, epoch))
    feeds = [Feed(count, (r, n), batch=each, seed=5, last="exact") for r in range(n)]
    steps, more = -(-count // (each * n)), 2  # an epoch, and the begin of the next one
    dealt, place = reference.batches((0, 0), n, count, each, 5, steps + more)
    assert [[next(feed).tolist() for _ in range(steps + more)] for feed in feeds] == [
        [x.tolist() for x in r] for r in dealt
    ]
    assert {"epoch": place[0], "seen": place[1]}.items() <= feeds[0].state_dict().items()
    assert sorted(int(i) for of_rank in dealt for x in of_rank[:steps] for i in x) == list(range(count))


def test_what_is_lacked_is_what_stretches_have_in_common():
    old, new = reference.even_runs(66, 4, 5), reference.column_runs(6, 11, 3, 5)

    def slices(runs):
        places = itertools.accumulate((end - begin for begin, end in runs), initial=0)
        return [StridedSlice(begin, end - begin, at=at) for (begin, end), at in zip(runs, places, strict=False)]

    for a, row in enumerate(reference.lacked(old, new)):
        due = [sum(c.count * c.length for c in common(slices(old[a]), slices(runs))) for runs in new]
        assert row == [0 if a == b else count for b, count in enumerate(due)]
    assert sum(len(reference.elements(runs)) for runs in new) == 66


def save(calls, n=2):
    """A `Save` of step 7 by ranks with these calls, `|` for a barrier."""
    made = reference.Save(7, [b"old%d" % r for r in range(n)], [b"new!%d" % r for r in range(n)])
    for row in calls:
        phases = [[]]
        for call in row:
            phases.append([]) if call == "|" else phases[-1].append(call)
        made.phases.append(phases)
    return made


def part(rank):
    return [("write", f"7-{rank}", b"new!%d" % rank), ("fsync", f"7-{rank}")]


MANIFEST = [("write", "m", b"7-0\n7-1"), ("fsync", "m"), ("rename", "m", "step-7"), ("sync",)]
OLD = [("remove", name) for name in ("step-6", "6-0", "6-1")]


def found(made, power):
    """The steps that a reader may find, and whether each is whole."""
    states = [
        files
        for there, _, _ in made.ends()
        for files in (there.after_a_power_failure() if power else [there.after_a_kill()])
    ]
    steps = [reference.newest(files) for files in states]
    whole = all(
        step is not None and not reference.why_not(files, step, made.new if step == 7 else made.old)
        for files, step in zip(states, steps, strict=True)
    )
    return set(steps), whole


def test_a_save_in_the_right_order_survives_everything():
    made = save([[*part(0), "|", *MANIFEST, "|", *OLD], [*part(1), "|", "|"]])
    assert found(made, power=False) == found(made, power=True) == ({6, 7}, True)
    assert set(made.at_the_end().after_a_kill()) == {"step-7", "7-0", "7-1"}
    place = "rank 0 after 2, fsync '7-0'; rank 1 after 1, write '7-1'"
    for there in [there for there, where, _ in made.ends() if where == place]:
        assert {"7-0", "7-1"} <= set(there.names) and there.sure[-2:] in ([4 + 1, 0], [0, 4 + 1])
    returned = [list(there.after_a_power_failure()) for there, _, returned in made.ends() if returned]
    assert returned and {reference.newest(files) for states in returned for files in states} == {7}


@pytest.mark.parametrize(
    "calls, kill, power",
    [
        ([[*part(0), *MANIFEST, "|", *OLD], [*part(1), "|"]], False, False),  # nobody waits for the parts
        ([[part(0)[0], "|", *MANIFEST, "|", *OLD], [part(1)[0], "|", "|"]], True, False),  # parts without fsync
        ([[*part(0), "|", MANIFEST[0], *MANIFEST[2:], "|", *OLD], [*part(1), "|", "|"]], True, False),
        (
            [[*part(0), "|", *MANIFEST[:3], "|", *OLD], [*part(1), "|", "|"]],
            True,
            True,
        ),  # the rename comes first anyway
        ([[*OLD, *part(0), "|", *MANIFEST, "|"], [*part(1), "|", "|"]], False, False),  # room first
    ],
)
def test_each_mistake_shows_at_some_place(calls, kill, power):
    made = save(calls)
    assert (found(made, power=False)[1], found(made, power=True)[1]) == (kill, power)


def test_a_power_failure_takes_back_the_latest_changes_of_names_only():
    there = reference.Directory.of({"a": b"1"})
    for call in (("write", "b", b"22"), ("rename", "a", "c"), ("fsync", "b"), ("write", "b", b"4444")):
        there.do(call)
    states = list(there.after_a_power_failure())
    assert {(*sorted(files),) for files in states} == {("a",), ("a", "b"), ("b", "c")}
    assert {files["b"] for files in states if "b" in files} == {b"22", b"2244"}
    there.do(("sync",))
    assert {(*sorted(files),) for files in there.after_a_power_failure()} == {("b", "c")}
    with pytest.raises(reference.NotThere, match="rename 'a' to 'x'"):
        there.do(("rename", "a", "x"))


def test_many_calls_do_not_make_too_many_places():
    places = reference._places([50] * 5)
    assert len(places) < 2000 and (0, 0, 50, 0, 0) in places and (50, 50, 7, 50, 50) in places
    assert len(reference._places([2, 3])) == 12


def test_damage_is_found_by_checksums_and_what_was_given_stays():
    class Numbers:
        def tensor(self, n, dtype):
            return torch.arange(n).remainder(7).add(1).to(dtype)

    parts = reference.stored_parts(Numbers(), 3, 6)

    def damaged(parts):
        bad = set()
        for mine in parts:
            for name, offset, nbytes, crc in mine["pieces"]:
                if zlib.crc32(bytes(mine["data"][offset : offset + nbytes].tolist())) != crc:
                    bad.add(name)
        return bad

    assert damaged(parts) == damaged(reference.flipped_between(parts)) == set()
    one, name = reference.flipped(parts, 2, 1, -1)
    short, names = reference.cut_short(parts, 1, 201)
    rolled, third = reference.moved(parts, 0, 2)
    assert damaged(one) == {name} and damaged(short) == set(names) and len(names) > 1 and damaged(rolled) == {third}
    assert damaged(parts) == set()


def test_bytes_that_have_left_grow_by_a_piece_a_step():
    grown = [reference.bytes_so_far(10, steps, 4, 3) for steps in range(13)]
    sizes = [0] * 4 + [16, 12, 12, 0] * 3
    assert grown == [sum(sizes[: steps + 1]) for steps in range(13)]
    assert [reference.last_whole(steps, 4, 3) for steps in (3, 4, 5, 6, 9, 10)] == [0, 0, 0, 4, 4, 8]
    w = torch.tensor([2.0, -3.0])
    assert reference.trained(w, 2).tolist() == [2 - 1 + 2, -3 - 1 + 2] and w.tolist() == [2, -3]
