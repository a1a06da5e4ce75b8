"""The two-level graph on pages written by hand: one situation a test, with the verdict that it must give."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from slices import SLOW_WIRES

from labkit.resilience.diagnose import Report, Waits, diagnose
from labkit.resilience.diagnose.verdict import fewest
from labkit.wire.recording import record as rec

from .pages_by_hand import USER, Desk

WORLD = (0, 1, 2, 3)


def test_a_rank_that_has_not_joined_is_the_culprit() -> None:
    desk = Desk(4)
    for rank in (0, 1, 3):
        desk.enter(rank, WORLD)
    verdict = diagnose(desk.look())
    assert (verdict.kind, verdict.culprit) == ("absent", 2)
    assert "rank 2 has not joined all_reduce on float32[8]" in str(verdict)


def test_nobody_is_accused_while_nobody_waits() -> None:
    assert diagnose(Desk(3).look()).kind == "nothing"
    assert "Nothing is wrong" in str(diagnose(Desk(3).look()))


def test_blocked_in_one_group_because_the_partner_in_another_hangs() -> None:
    """dp x tp: ranks 0 and 1 are in dp already, rank 2 waits in tp for rank 3, which computes."""
    desk = Desk(4)
    for pair in ((0, 1), (2, 3)):
        for rank in pair:
            if rank != 3:
                number = desk.enter(rank, pair)
                if pair == (0, 1):
                    desk.leave(rank, number)
    desk.enter(0, (0, 2))
    desk.enter(1, (1, 3))
    waits = Waits(desk.look())
    assert [(e.of[1], e.on[1], e.rank) for e in waits.edges] == [(desk.key((0, 2)), desk.key((2, 3)), 2)]
    assert {op.members for op in waits.leaves} == {(1, 3), (2, 3)}
    assert diagnose(desk.look()).culprit == 3


def test_collectives_first_a_chain_of_three_groups_ends_at_one_rank() -> None:
    desk = Desk(4)
    desk.enter(0, (0, 1))
    desk.enter(1, (1, 2))
    desk.enter(2, (2, 3))
    verdict = diagnose(desk.look())
    assert verdict.culprit == 3 and len(verdict.waits.edges) == 2 and len(verdict.waits.leaves) == 1


def ring(desk, rounds):
    """Rank r has finished rounds[r] exchanges of a ring and waits in the next one; None: it is in the call, in none."""
    n = len(rounds)
    for rank, done in enumerate(rounds):
        number = desk.enter(rank, tuple(range(n)))
        for k in range((done or 0) + (done is not None)):
            both = desk.exchange(rank, (rank + 1) % n, (rank - 1) % n, tuple(range(n)), number)
            if k < (done or 0):
                desk.done(rank, *both, parent=number)


def test_a_rank_that_has_joined_and_makes_no_progress() -> None:
    desk = Desk(4)
    ring(desk, [None, 0, 1, 2])
    verdict = diagnose(desk.look())
    assert (verdict.kind, verdict.culprit) == ("inside", 0)
    assert (1, 0) in verdict.waits.between


def test_a_message_that_its_sender_is_through_with() -> None:
    desk = Desk(3)
    ring(desk, [2, 0, 1])  # rank 1 has its message from rank 0 before it, and does not take it
    verdict = diagnose(desk.look())
    assert (verdict.kind, verdict.culprit, verdict.way) == ("between", 1, (0, 1))


def two_ends(transport, nbytes):
    """Rank 0 sends to rank 1, and both are in the middle of it."""
    desk = Desk(2, transport)
    number = [desk.enter(r, (0, 1)) for r in (0, 1)]
    desk.post(0, "send", 1, (0, 1), parent=number[0], nbytes=nbytes)
    desk.post(1, "recv", 0, (0, 1), parent=number[1], nbytes=nbytes)
    return desk.look()


@pytest.mark.parametrize("nbytes", [32, 1 << 22])
@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_sender_or_receiver_cannot_be_told_apart_while_both_are_at_it(transport, nbytes) -> None:
    verdict = diagnose(two_ends(transport, nbytes))
    assert (verdict.kind, verdict.suspects, verdict.exact, verdict.way) == ("between", (0, 1), False, (0, 1))
    assert str(verdict).startswith("one of ranks 0 and 1")


def test_a_sender_that_only_lacks_the_word_that_its_message_was_taken() -> None:
    desk = Desk(2)
    number = [desk.enter(r, (0, 1)) for r in (0, 1)]
    desk.post(0, "send", 1, (0, 1), parent=number[0])
    desk.done(1, desk.post(1, "recv", 0, (0, 1), parent=number[1]), parent=number[1])
    desk.post(1, "recv", 0, (0, 1), parent=number[1])
    assert diagnose(desk.look()).culprit == 0


def test_a_receive_that_was_asked_for_before_the_rank_hung() -> None:
    """A pipeline: rank 1 has posted its receive, computes, and never comes back to it."""
    desk = Desk(2)
    desk.post(1, "recv", 0, (0, 1), lane=USER, flags=rec.ASYNC, wait=False)
    desk.post(0, "send", 1, (0, 1), lane=USER)
    assert diagnose(desk.look()).culprit == 1


def test_a_rank_that_does_not_notice_that_its_own_call_is_over() -> None:
    """Asynchronous: the communication thread of rank 1 is through, the main thread waits for it, and hung there."""
    desk = Desk(2)
    numbers = [desk.enter(rank, (0, 1), flags=rec.ASYNC) for rank in (0, 1)]
    for rank in (0, 1):
        desk.leave(rank, numbers[rank])
    r = desk.recorders[1]
    r.slot(rec.MAIN_SLOT, r.begin(rec.WAIT, desk.tick(), name=r.intern("wait"), detail=numbers[1]))
    desk.enter(0, (0, 1))
    verdict = diagnose(desk.look())
    assert (verdict.kind, verdict.culprit) == ("absent", 1), str(verdict)


def test_silence_decides_between_two_suspects_only() -> None:
    reports = two_ends("gloo", 32)
    assert diagnose(reports, silent={0}).culprit == 0
    assert diagnose(reports, silent={1}).culprit == 1
    desk = Desk(3)
    desk.enter(0, (0, 1, 2))
    desk.enter(1, (0, 1, 2))
    assert diagnose(desk.look(), silent={0}).culprit == 2  # who has not joined is not excused by it


def test_a_rank_that_finished_while_the_others_wait() -> None:
    desk = Desk(4)
    for rank in (0, 1, 3):
        desk.enter(rank, WORLD)
    desk.pages[2].state = rec.FINISHED
    verdict = diagnose(desk.look())
    assert (verdict.kind, verdict.culprit) == ("finished", 2)


def test_a_rank_that_makes_one_call_too_many() -> None:
    desk = Desk(4)
    for rank in WORLD:
        desk.leave(rank, desk.enter(rank, WORLD))
    desk.enter(3, WORLD)
    for rank in (0, 1, 2):
        desk.pages[rank].state = rec.FINISHED
    assert (diagnose(desk.look()).kind, diagnose(desk.look()).culprit) == ("finished", 3)


def test_of_two_members_one_has_finished_what_the_others_did_decides() -> None:
    desk = Desk(4)
    for pair in ((0, 1), (2, 3)):
        for _ in range(2):
            for rank in pair:
                desk.leave(rank, desk.enter(rank, pair))
    desk.enter(2, (2, 3))  # a third call, which nobody else makes
    for rank in (0, 1, 3):
        desk.pages[rank].state = rec.FINISHED
    verdict = diagnose(desk.look())
    assert (verdict.kind, verdict.suspects, verdict.exact) == ("finished", (2,), False)
    assert str(verdict).startswith("probably rank 2")
    alone = Desk(2)
    alone.enter(0, (0, 1))
    alone.pages[1].state = rec.FINISHED
    assert diagnose(alone.look()).suspects == (0, 1)


def test_the_odd_call_of_a_collective() -> None:
    desk = Desk(4)
    for rank in WORLD:
        desk.enter(rank, WORLD, shape=(9,) if rank == 1 else (8,))
    verdict = diagnose(desk.look())
    assert (verdict.kind, verdict.culprit) == ("mismatch", 1)
    assert "rank 1 called all_reduce on float32[9]" in str(verdict)


def test_a_mismatch_of_two_is_decided_by_the_groups_beside_them() -> None:
    desk = Desk(4)
    for pair in ((0, 1), (2, 3)):
        for rank in pair:
            desk.enter(rank, pair, name="all_gather" if rank == 3 else "all_reduce")
    verdict = diagnose(desk.look())
    assert (verdict.suspects, verdict.exact) == ((3,), False)  # they need not do the same
    alone = Desk(2)
    alone.enter(0, (0, 1))
    alone.enter(1, (0, 1), dtype=2)
    assert diagnose(alone.look()).suspects == (0, 1) and not diagnose(alone.look()).exact


def test_groups_in_another_order() -> None:
    """All ranks call their pair and then the world; rank 3 the world first."""
    desk = Desk(4)
    for rank in (0, 1):
        desk.leave(rank, desk.enter(rank, (0, 1)))
        desk.enter(rank, WORLD)
    desk.enter(2, (2, 3))
    desk.enter(3, WORLD)
    verdict = diagnose(desk.look())
    assert (verdict.kind, verdict.suspects, verdict.exact) == ("circle", (3,), False)


def test_two_groups_of_the_same_ranks_in_another_order() -> None:
    whole = (0, 1, 2)
    desk = Desk(3)
    for rank in whole:
        number = desk.enter(rank, whole)
        if rank == 1:  # by hand a group is its ranks: here the second one gets another number
            at = desk.pages[rank]._records + (number - 1) * rec.RECORD_BYTES + rec.EVENT.fields["group"][1]
            desk.pages[rank].map[at : at + 4] = (99).to_bytes(4, "little")
        desk.recorders[rank].intern("group 99 0 1 2")
    assert (diagnose(desk.look()).kind, diagnose(desk.look()).culprit) == ("circle", 1)


def test_a_message_that_carries_no_number_and_never_came() -> None:
    """Over gloo: in its second call rank 0 sent one message less than in the others, and rank 1 waits ever since."""
    desk = Desk(2, "gloo")
    for call in range(3):
        for rank in (0, 1):
            number = desk.enter(rank, (0, 1))
            for k in range(2):
                if rank == 0 and not (call == 1 and k == 0):
                    desk.done(0, desk.post(0, "send", 1, (0, 1), parent=number), parent=number)
                elif rank == 1:
                    last = desk.post(1, "recv", 0, (0, 1), parent=number)
                    if (call, k) != (2, 1):
                        desk.done(1, last, parent=number)
            if (rank, call) != (1, 2):
                desk.leave(rank, number)
    verdict = diagnose(desk.look())
    assert (verdict.kind, verdict.culprit, verdict.way) == ("lost", 0, (0, 1))


def test_two_ranks_that_both_send_first_wait_for_each_other() -> None:
    desk = Desk(2)
    for rank in (0, 1):
        desk.post(rank, "recv", 1 - rank, (0, 1), lane=USER)
    verdict = diagnose(desk.look())
    assert (verdict.kind, verdict.suspects, verdict.exact) == ("circle", (0, 1), False)


def test_a_message_that_was_numbered_and_never_sent() -> None:
    desk = Desk(3)
    number = [desk.enter(r, (0, 1, 2)) for r in range(3)]
    desk.done(0, desk.post(0, "send", 1, (0, 1, 2), parent=number[0]), parent=number[0])
    desk.messages[0, 1, "send", desk.key((0, 1, 2)) * 2 + 1] += 1  # numbered, and lost
    desk.done(0, desk.post(0, "send", 1, (0, 1, 2), parent=number[0]), parent=number[0])
    reports = desk.look()
    failure = Lost(1, "wire", "Mismatch", "rank 0 sent rank 1 message 3, but message 2 is due: one was lost")
    verdict = diagnose(reports, [failure])
    assert (verdict.kind, verdict.culprit, verdict.way) == ("lost", 0, (0, 1))


@dataclass
class Lost:
    rank: int
    kind: str
    error: str
    message: str


@pytest.mark.parametrize(
    "failures, culprits, exact",
    [
        ([Lost(2, "died", "Died", "rank 2 was killed"), Lost(1, "lost", "PeerLost", "rank 1 lost rank 2: x")],
         (2,), True),
        ([Lost(1, "lost", "PeerLost", "rank 1 lost rank 2: x"), Lost(0, "lost", "PeerLost", "rank 0 lost rank 1: x")],
         (2,), True),
        ([Lost(0, "raised", "ValueError", "odd"), Lost(1, "lost", "PeerLost", "rank 1 lost rank 0: x")], (0,), True),
        ([Lost(0, "wire", "WaitTimeout", "rank 0 waited 2 s for rank 3: nothing moved."),
          Lost(1, "wire", "WaitTimeout", "rank 1 waited 2 s for rank 0: nothing moved.")], (3,), True),
        ([Lost(1, "died", "Died", "a"), Lost(3, "died", "Died", "b")], (1, 3), True),
    ],
)  # fmt: skip
def test_failures_lead_to_who_failed_first(failures, culprits, exact) -> None:
    verdict = diagnose(Desk(4).look(), failures)
    assert (verdict.suspects, verdict.exact) == (culprits, exact)


def test_native_collectives_do_not_tell_who() -> None:
    desk = Desk(3, "gloo")
    for rank in range(3):
        desk.enter(rank, (0, 1, 2), algorithm="native", flags=rec.NATIVE)
    verdict = diagnose(desk.look())
    assert (verdict.kind, verdict.suspects, verdict.exact) == ("native", (0, 1, 2), False)
    assert diagnose(desk.look(), silent={1}).culprit == 1


def test_a_moving_rank_is_not_suspected() -> None:
    desk = Desk(2)
    desk.enter(0, (0, 1))
    assert diagnose(desk.look(), moving={1}).kind == "nothing"


def test_records_that_are_gone_accuse_nobody() -> None:
    desk = Desk(2)
    number = desk.enter(0, (0, 1))
    desk.post(0, "recv", 1, (0, 1), parent=number)
    reports = dict(desk.look())
    lost = {**reports[1].__dict__, "whole": 10**6}
    assert diagnose({0: reports[0], 1: Report(**lost)}).kind == "nothing"


@pytest.mark.parametrize(
    "sets, suspects, exact",
    [
        ([{1, 2}, {2, 3}], {2}, True), ([{1, 2}], {1, 2}, False), ([{1}, {3}], {1, 3}, True),
        ([{1, 2}, {3, 4}, {2, 3}], {1, 2, 3, 4}, False), ([{0}, {1}, {2}, {3}], {0, 1, 2, 3}, True),
    ],
)  # fmt: skip
def test_the_fewest_ranks_that_explain_all_clues(sets, suspects, exact) -> None:
    assert fewest([frozenset(s) for s in sets]) == (frozenset(suspects), exact)


def test_a_report_travels_as_bytes() -> None:
    desk = Desk(4)
    ring(desk, [None, 0, 1, 2])
    for report in desk.look().values():
        assert Report.from_bytes(report.to_bytes()) == report and len(report.to_bytes()) < 4000
    with pytest.raises(ValueError, match="no report"):
        Report.from_bytes(b'{"rank": 1}')
