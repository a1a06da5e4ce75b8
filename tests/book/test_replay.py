"""A replay is made of messages alone: it shows a right collective as right, and a wrong one as it went wrong."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from hypothesis import given, strategies as st

from labkit.book import Stepper, record, replay
from labkit.book.drawing.cells import label
from labkit.book.frontend import VIEW

from . import fake_trace as fake

CORRECT = {
    "ring": lambda: fake.ring(4),
    "ring of 5, uneven chunks": lambda: fake.ring(5, 1003, skew=1e-5),
    "ring of one": lambda: fake.ring(1),
    "naive": lambda: fake.naive(5),
    "recursive doubling": lambda: fake.recursive_doubling(8),
    "halving-doubling": lambda: fake.halving_doubling(8),
    "spare buffer, added at once": lambda: fake.spare_doubling(8),
    "spare buffers, added at the end": lambda: fake.everyone(4),
    "ring all_gather": lambda: fake.ring_all_gather(3, 10),
    "pairwise reduce_scatter": lambda: fake.pairwise_reduce_scatter(4, 10),
    "chain broadcast": lambda: fake.chain_broadcast(4, root=2),
}


@pytest.mark.parametrize("make", CORRECT.values(), ids=CORRECT.keys())
def test_a_correct_collective_ends_as_promised(make: Any) -> None:
    recording = record(make())
    assert recording.flaws == []
    assert recording.frames[-1].held == recording.rounds[-1].held
    assert "every rank holds what it should" in recording.sentence


@given(size=st.integers(1, 6), count=st.integers(0, 40), skew=st.sampled_from([0.0, 1e-6, 3e-5]))
def test_after_a_ring_every_chunk_on_every_rank_holds_all_contributions(size: int, count: int, skew: float) -> None:
    recording = record(fake.ring(size, count, skew=skew))
    everyone = frozenset(range(size))
    assert all(chunk == everyone for row in recording.frames[-1].state for chunk in row) or count == 0
    assert recording.chunks == max(1, min(size, count))


@pytest.mark.parametrize("step, rank", [(0, 1), (1, 2), (2, 0)])
def test_a_forgotten_add_names_the_chunk_and_the_contributions_that_are_missing(step: int, rank: int) -> None:
    recording = record(fake.ring(4, 1000, skip=(step, rank)))
    chunk = (rank - step - 1) % 4  # the one that this rank received in that step
    # The chunk came around from `chunk` and was added to what `rank` had: only that contribution is lost.
    assert [(f.rank, f.chunk, f.lacks) for f in recording.flaws] == [(r, chunk, frozenset({rank})) for r in range(4)]
    assert f"chunk {chunk} on every rank lacks the contribution of rank {rank}" in recording.verdict
    assert recording.verdict in recording.strip().text


def test_what_is_added_twice_is_named() -> None:
    trace = fake.naive(3, 100)
    with trace.collective("all_reduce", "again", 100, seq=1):
        trace.round((1, 0, 0, 0, 100, True))
        trace.round((1, 0, 0, 0, 100, True), (2, 1, 0, 0, 100, True))
    flaws = record(trace, nth=1).flaws
    assert flaws[0].repeated == frozenset({1})
    assert "counts what rank 1 brought more than once" in record(trace, nth=1).verdict


def test_adding_twice_is_no_flaw_for_a_maximum() -> None:
    trace = fake.Trace(2)
    with trace.collective("all_reduce", "own", 8, op="max"):
        trace.round((0, 1, 0, 0, 8, True), (1, 0, 0, 0, 8, True))
        trace.round((0, 1, 0, 0, 8, True), (1, 0, 0, 0, 8, True))
    assert record(trace).flaws == []


def test_a_chunk_in_the_wrong_place_is_wrong_in_both() -> None:
    trace = fake.Trace(2)
    with trace.collective("all_reduce", "own", 8):
        trace.round((0, 1, 0, 4, 4, True), (1, 0, 0, 0, 4, True))  # rank 1 adds the first half to its second
        trace.round((0, 1, 4, 4, 4, True), (1, 0, 4, 4, 4, True))
    wrong = {(f.rank, f.chunk): (set(f.lacks), set(f.repeated)) for f in record(trace).flaws}
    assert wrong[1, 0] == ({0}, set()) and wrong[1, 1] == (set(), {0})


def test_frames_follow_the_true_times_and_rounds_the_dependencies() -> None:
    recording = record(fake.ring(4, 1000))
    assert [len(f.moves) for f in recording.rounds] == [0, 4, 4, 4, 4, 4, 4]
    times = [f.time for f in record(fake.ring(5, 1003, skew=1e-5)).frames]
    assert times == sorted(times) and len(times) > 8
    first = recording.rounds[1].moves[1]
    assert (first.src, first.dst, first.chunks, first.carried, first.combine) == (0, 1, (0,), ((0,),), True)
    assert recording.rounds[1].state[1] == (frozenset({0, 1}), *[frozenset({1})] * 3)


@pytest.mark.parametrize("make", [fake.ring, fake.naive, fake.halving_doubling, fake.chain_broadcast])
def test_a_run_in_which_nothing_takes_time_is_followed_by_its_records(make: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(fake, "LATENCY", 0.0)
    monkeypatch.setattr(fake, "BANDWIDTH", float("inf"))
    free = record(make(4))
    monkeypatch.undo()
    assert free.flaws == [] and len(free.rounds) == len(record(make(4)).rounds)


@pytest.mark.parametrize("make", [fake.ring, fake.naive, fake.halving_doubling, fake.chain_broadcast])
def test_a_rank_sends_and_receives_one_message_a_round(make: Any) -> None:
    for frame in record(make(8)).rounds:
        for ends in ([m.src for m in frame.moves], [m.dst for m in frame.moves]):
            assert len(ends) == len(set(ends))


def test_through_one_rank_there_are_as_many_rounds_as_messages() -> None:
    rounds = record(fake.naive(8)).rounds
    assert [len(frame.moves) for frame in rounds] == [0, *[1] * 14]
    assert {m.dst for frame in rounds[1:8] for m in frame.moves} == {0}


def test_clocks_that_disagree_do_not_break_the_order() -> None:
    trace = fake.ring(4)
    for m in trace.sends:  # rank 2 lives one second in the past
        if m.src == 2:
            m.start, m.end = m.start - 1, m.end - 1
        if m.dst == 2:
            m.recv_start, m.arrived = m.recv_start - 1, m.arrived - 1
    assert record(trace).flaws == []


def test_the_collective_is_chosen_by_name_and_number() -> None:
    trace = fake.ring(4)
    with trace.collective("broadcast", "naive", 10, root=1, seq=1):
        trace.round((1, 0, 0, 0, 10, False))
    assert record(trace).name == "all_reduce" and record(trace, nth=-1).name == "broadcast"
    lacking = record(trace, "broadcast")
    assert [(f.rank, f.lacks) for f in lacking.flaws] == [(2, frozenset({1})), (3, frozenset({1}))]


@pytest.mark.parametrize("change, word", [
    (lambda c: {"native": True}, "natively"),
    (lambda c: {"name": "all_to_all"}, "none in common"),
    (lambda c: {"name": "reduce"}, "0 all_reduces"),
])  # fmt: skip
def test_what_cannot_be_replayed_is_refused_with_the_reason(change: Any, word: str) -> None:
    trace = fake.ring(4)
    for call in trace.collectives():
        for key, value in change(call).items():
            setattr(call, key, value)
    with pytest.raises(ValueError, match=word):
        record(trace, "all_reduce" if word.startswith("0") else None)


def test_messages_of_copies_outside_the_tensor_are_refused() -> None:
    trace = fake.Trace(2)
    with trace.collective("reduce_scatter", "own", 8):
        trace.round((0, 1, -1, -1, 4, True))
    with pytest.raises(ValueError, match="outside its tensor"):
        record(trace)


def test_labels_are_short_and_say_whose() -> None:
    assert [label(h) for h in [(), (2,), (0, 1, 3), (0, 1, 2, 3)]] == ["-", "2", "0+1+3", "0..3"]
    twice = [(0, 1, 1), (0, 0, 1, 1, 2, 3, 3, 4, 4, 5, 5), (1, 1, 2, 2, 2)]
    assert [label(h) for h in twice] == ["2×1+0", "2×(0+1+3..5)+2", "3×2+2×1"]


def test_the_strip_says_every_state_in_its_table() -> None:
    figure = record(fake.ring(4)).strip()
    last = [row for row in figure.table() if row["step"] == 6]
    assert all(row[f"chunk {c}"] == "0..3" for row in last for c in range(4))
    assert "+3 from 3" in figure.text and "=2 from 3" in figure.text


def test_a_stepper_steps_by_hand_and_in_the_page() -> None:
    stepper = replay(fake.ring(4), by="round")
    assert isinstance(stepper, Stepper) and "nothing has arrived" in stepper.text
    view = stepper.widget  # made on demand
    assert (view.step, view.last) == (0, 6) and view.svg == stepper.svg
    stepper.next()
    assert view.step == 1 and "rank 1 adds chunk 0 from rank 0 (now 0+1)" in view.svg == stepper.svg
    view.step = 6  # as the page does
    assert stepper.step == 6 and view.words == stepper.text and "every rank holds" in stepper.text
    stepper.next()
    assert stepper.step == 6
    with pytest.raises(ValueError, match="steps 0 to 6"):
        stepper.step = 7
    with pytest.raises(ValueError, match="time or round"):
        replay(fake.ring(4), by="rank")


def test_every_step_is_a_picture_that_says_what_it_shows() -> None:
    stepper = replay(fake.ring(3, 100, skip=(0, 1)))
    for step in range(len(stepper.frames)):
        stepper.step = step
        desc = ET.fromstring(stepper.svg).find("{http://www.w3.org/2000/svg}desc")
        assert desc is not None and desc.text == stepper.text


def test_without_a_reader_the_stepper_is_a_strip_and_with_one_also_a_widget(monkeypatch: Any) -> None:
    stepper = replay(fake.ring(4))
    assert VIEW not in stepper._repr_mimebundle_()[0]
    monkeypatch.setenv("LABKIT_HEADLESS", "0")
    bundle, _ = stepper._repr_mimebundle_()
    assert bundle[VIEW]["model_id"] and bundle["text/plain"].startswith("all_reduce ring, round by round")


def test_large_replays_show_a_part_and_say_so() -> None:
    recording = record(fake.ring(18, 180, skip=(16, 17)))
    figure = recording.strip()
    assert "Only the first 16 ranks and chunks are shown." in figure.sentence
    assert max(row["rank"] for row in figure.table()) == 15  # type: ignore[type-var]
    assert len(recording.flaws) == 18 and "lacks the contribution of rank 17" in figure.sentence
    stepper = replay(fake.ring(18, 180))
    stepper.step = 3
    assert stepper.svg.count(">rank 15<") == 1 and ">rank 16<" not in stepper.svg


def test_chosen_frames_are_shown_as_given() -> None:
    recording = record(fake.ring(4))
    figure = recording.strip(recording.frames[2:4])
    assert [row["step"] for row in figure.table()] == [2] * 4 + [3] * 4
    assert ">round 2<" in figure.svg and ">before<" not in figure.svg and "in 6 rounds" in figure.sentence


def test_a_message_of_many_chunks_is_cut_to_the_part_that_is_shown() -> None:
    part = record(fake.halving_doubling(16, 64)).crop(11)  # halves of 8, 4 and 2 chunks end beyond the 11th
    moves = [m for f in part.rounds for m in f.moves]
    assert part.chunks == len(part.ranks) == 11 and moves
    assert all(len(m.chunks) == len(m.carried) and max(m.chunks) < 11 for m in moves)


CIRCLES = {
    4: lambda: fake.ring(4),
    8: lambda: fake.halving_doubling(8),
    20: lambda: fake.ring(20),
    1: lambda: fake.ring(1),
}


@pytest.mark.parametrize("size", CIRCLES)
def test_on_a_circle_every_rank_has_its_place_and_each_arrow_leads_from_sender_to_receiver(size: int) -> None:
    stepper = replay(CIRCLES[size](), by="round", shape="circle")
    assert stepper.step == min(1, len(stepper.frames) - 1)
    for step in range(len(stepper.frames)):
        stepper.step = step
        tree = ET.fromstring(stepper.svg)
        circles = [c for c in tree.iter("{http://www.w3.org/2000/svg}circle") if float(c.get("r")) == 20]
        assert len(circles) == min(size, 16)
        moves = [m for m in stepper.frames[step].moves if max(m.src, m.dst) < 16 and m.chunks[0] < 16]
        where = [(float(c.get("cx")), float(c.get("cy"))) for c in circles]
        arrows = [p.get("d") for p in tree.iter("{http://www.w3.org/2000/svg}path") if " Q" in p.get("d")]
        assert len(arrows) == len(moves)
        for move, d in zip(moves, arrows, strict=True):
            first, last = d.split(" Q")[0][1:].split(), d.split()[-2:]
            for rank, end in ((move.src, first), (move.dst, last)):
                x, y = where[rank]
                assert 19 <= ((x - float(end[0])) ** 2 + (y - float(end[1])) ** 2) ** 0.5 <= 23
        for box in tree.iter("{http://www.w3.org/2000/svg}rect"):
            assert 0 <= float(box.get("x")) and float(box.get("x")) + float(box.get("width")) <= 760


def test_a_chunk_on_a_circle_is_as_full_as_it_is_finished() -> None:
    stepper = replay(fake.ring(4), by="round", shape="circle")
    for step, share in ((0, 1 / 4), (2, 3 / 4)):
        stepper.step = step
        heights = {float(r.get("height")) for r in ET.fromstring(stepper.svg).iter("{http://www.w3.org/2000/svg}rect")
                   if r.get("fill") == "#79bde6"}  # fmt: skip
        assert max(heights) == pytest.approx(24 * share)


def test_a_circle_that_cannot_be_played_is_pictures_side_by_side_with_the_same_words() -> None:
    rows, circle = replay(fake.ring(4)), replay(fake.ring(4), shape="circle")
    assert circle.still.sentence == rows.still.sentence and circle.still.svg != rows.still.svg
    assert "step 6" in circle.still.svg and repr(circle) == circle.still.text
    with pytest.raises(ValueError, match="shape='square': a replay is drawn as rows or circle"):
        replay(fake.ring(4), shape="square")


def test_a_step_says_which_round_of_the_loop_it_is_and_what_is_there_once() -> None:
    stepper = replay(fake.halving_doubling(8, 64), by="round")
    stepper.step = 1
    assert stepper.text.startswith("Step 1 of 6 (round 0), at") and "(now 0+4)" in stepper.text
    assert "round" not in replay(fake.halving_doubling(8, 64)).text


def test_what_is_set_aside_has_a_mark_of_its_own_and_changes_nothing_yet() -> None:
    def legend(svg: str) -> bool:
        return ">set aside<" in svg

    aside = replay(fake.everyone(4), by="round", shape="circle")
    assert aside.text.startswith("Step 1 of 4 (round 0), at") and "sets aside the tensor from rank" in aside.text
    assert "(now" not in aside.text and legend(aside.svg) and legend(aside.still.svg)
    added = replay(fake.naive(4), by="round", shape="circle")
    assert "(now 0+1)" in added.text and not legend(added.svg)
    squares = [len(re.findall(r"h[\d.]+ v[\d.]+ h-[\d.]+ z", one.svg)) for one in (aside, added)]
    assert squares == [4 + 1, 0], "one on each arrow, and one in the legend"


def test_a_round_whose_messages_arrive_one_after_the_other_says_by_when() -> None:
    trace = fake.Trace(4)
    with trace.collective("all_reduce", "own", 8):
        trace.round((0, 1, 0, 0, 8, True))
        trace.now[2] = trace.now[3] = 1.0  # these two begin late
        trace.round((2, 3, 0, 0, 8, True))
    rounds = replay(trace, by="round")
    rounds.step = 1
    assert rounds.text.startswith("Step 1 of 1 (round 0), by 1 s:")
    times = replay(trace)
    times.step = 1
    assert times.text.startswith("Step 1 of 2, at 20")
