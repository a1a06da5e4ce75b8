"""What is wrong with a schedule is named: the instruction, its rank, or the ring of ranks that wait for each other."""

from __future__ import annotations

import pickle

import pytest

from labkit.parallel.pipeline import (
    Backward,
    Forward,
    InputGradient,
    RecvActivation,
    Schedule,
    ScheduleError,
    SendActivation,
    Update,
    Wait,
    WeightGradient,
    from_labels,
    gpipe,
    interleaved,
    labels,
    naive,
    one_f_one_b,
    pipedream,
    simulate,
    v_half,
    validate,
    with_messages,
    zb_h1,
    zb_h2,
    zb_v,
)
from labkit.parallel.pipeline.costs import Costs
from labkit.wire.errors import RefusedError

MAKERS = (naive, gpipe, one_f_one_b, interleaved, pipedream, zb_h1, zb_h2, zb_v, v_half)


def changed(schedule, rank, steps):
    ranks = [list(each) for each in schedule.ranks]
    ranks[rank] = steps
    return Schedule(ranks, schedule.microbatches, schedule.chunks, schedule.placement)


@pytest.mark.parametrize("make", MAKERS)
def test_each_removed_or_doubled_instruction_is_named(make):
    schedule = make(3, 4) if make is not interleaved else make(3, 3)
    names = labels(schedule)
    for rank, steps in enumerate(schedule.ranks):
        for position, step in enumerate(steps):
            without = [*steps[:position], *steps[position + 1 :]]
            name = names[rank][position]
            if type(step) is not Update:  # PipeDream may leave one out
                with pytest.raises(
                    ScheduleError, match=f"{name[:1]}[FBIW]{name[2:]}.* missing in the list of rank {rank}"
                ):
                    validate(changed(schedule, rank, without))
            with pytest.raises(ScheduleError, match=f"{name} is twice in the list of rank {rank}"):
                validate(changed(schedule, rank, [*steps, step]))


def test_what_is_no_instruction_of_this_schedule_is_named():
    good = list(one_f_one_b(2, 3).ranks[1])
    for step, words in (
        (Forward(0, 1), "2nd instruction of rank 1: there is no chunk 1, there is only number 0"),
        (Forward(-1), "there is no microbatch -1, they go from 0 to 2"),
        (Forward(3), "there is no microbatch 3, they go from 0 to 2"),
        ("1F0", "'1F0' is the 2nd instruction of rank 1, and nothing that a pipeline can do"),
        (Forward(0).__class__.__mro__[1](0), "nothing that a pipeline can do"),  # Compute: an abstract one
    ):
        with pytest.raises(ScheduleError) as caught:
            validate(changed(one_f_one_b(2, 3), 1, [good[0], step, *good[1:]]))
        assert words in str(caught.value)
    with pytest.raises(ScheduleError, match="no chunk -1"):
        validate(changed(one_f_one_b(2, 3), 1, [Forward(0, -1), *good]))


def test_what_is_no_schedule_is_named():
    for use in (validate, with_messages, lambda x: simulate(x, Costs(1, 1, 1))):
        with pytest.raises(RefusedError, match="this is a list, and no Schedule: from_labels reads"):
            use([["0F0", "0B0"]])
    with pytest.raises(RefusedError, match=r"simulate\(costs=3\): needs Costs"):
        simulate(gpipe(2, 2), 3)


def test_orders_that_cannot_be_on_one_rank_are_named():
    for steps, words in (
        ([Backward(0), Forward(0)], "0B0 comes before 0F0 in the list of rank 0, and needs it"),
        ([InputGradient(0), Forward(0), WeightGradient(0)], "0I0 comes before 0F0"),
        ([Forward(0), WeightGradient(0), InputGradient(0)], "0W0 comes before 0I0"),
        ([Forward(0), Update(0), Backward(0)], "0U0 comes before 0B0"),
        ([Forward(0), InputGradient(0), Update(0), WeightGradient(0)], "0U0 comes before 0W0"),
        ([Forward(0), Backward(0), WeightGradient(0)], "0B0 and 0W0 are both"),
        ([Forward(0), Backward(0), InputGradient(0)], "0B0 and 0I0 are both"),
        ([Forward(0), InputGradient(0)], "0W0 is missing"),
        ([Forward(0), WeightGradient(0)], "0I0 is missing"),
        ([Forward(0)], "0B0 (or 0I0 and 0W0) is missing"),
    ):
        with pytest.raises(ScheduleError) as caught:
            validate(Schedule([steps], 1))
        assert words in str(caught.value)


def test_a_cycle_is_named_with_all_who_wait():
    # rank 0 wants the gradient of microbatch 1 before it sends microbatch 1 forward
    rows = labels(one_f_one_b(2, 2))
    rows[0] = ["0F0", "0B0", "0F1", "0B1"]
    rows[1] = ["1F1", "1B1", "1F0", "1B0"]
    with pytest.raises(ScheduleError) as caught:
        validate(from_labels(rows))
    text = (
        "this schedule is a deadlock: rank 0 at 0B0 waits for 1B0 of rank 1, and rank 1 at 1F1 waits for 0F1 of rank 0"
    )
    assert str(caught.value) == text
    assert caught.value.cycle == caught.value.waits == (Wait(0, "0B0", 1, "1B0"), Wait(1, "1F1", 0, "0F1"))
    with pytest.raises(ScheduleError, match="deadlock"):
        simulate(from_labels(rows), Costs(1, 1, 1))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.waits, copy.cycle) == (str(caught.value), caught.value.waits, caught.value.cycle)


def test_ranks_that_wait_for_the_cycle_are_no_part_of_it():
    rows = labels(one_f_one_b(4, 2))
    rows[1], rows[2] = ["1F0", "1B0", "1F1", "1B1"], ["2F1", "2B1", "2F0", "2B0"]
    with pytest.raises(ScheduleError) as caught:
        validate(from_labels(rows))
    assert {(w.rank, w.on) for w in caught.value.waits} == {(0, 1), (1, 2), (2, 1), (3, 2)}
    assert {w.rank for w in caught.value.cycle} == {1, 2}


def test_a_rank_that_waits_for_itself_is_named():
    rows = [["1F0", "0F0", "1B0", "0B0"]]
    with pytest.raises(ScheduleError, match="rank 0 would do 1F0 before its own 0F0, which 1F0 needs"):
        validate(from_labels(rows))


def test_too_many_activations_are_named():
    validate(one_f_one_b(4, 8), limit=4)
    validate(one_f_one_b(4, 8), limit=[4, 3, 2, 1])
    with pytest.raises(
        ScheduleError, match="with 0F3, the 4th instruction of rank 0, .* 4 microbatches, and the limit"
    ):
        validate(one_f_one_b(4, 8), limit=3)
    with pytest.raises(ScheduleError, match="with 2F1, the 2nd instruction of rank 2"):
        validate(one_f_one_b(4, 8), limit=[4, 3, 1, 1])
    for limit in (0, [4, 3], ["4"] * 4):
        with pytest.raises(RefusedError, match=r"validate\(limit="):
            validate(one_f_one_b(4, 8), limit=limit)


# -- explicit messages, each a blocking one ---------------------------------------------------------------------------


@pytest.mark.parametrize("make", MAKERS)
def test_early_receives_never_deadlock(make):
    for p in range(1, 7):
        for m in (1, 2, 3, 4, 6, 12):
            if make is not interleaved or m % max(1, m // p) == 0:
                validate(with_messages(make(p, m)))


def test_receiving_just_before_need_deadlocks_where_two_send_to_each_other():
    validate(with_messages(gpipe(4, 8), receive="late"))
    validate(with_messages(naive(4, 8), receive="late"))
    for make in (one_f_one_b, interleaved, zb_h1, zb_h2, zb_v, pipedream):
        with pytest.raises(ScheduleError, match="deadlock") as caught:
            validate(with_messages(make(4, 8), receive="late"))
        assert len(caught.value.cycle) >= 2


def test_two_stages_that_both_send_first_are_both_named():
    with pytest.raises(ScheduleError) as caught:
        validate(with_messages(one_f_one_b(2, 4), receive="late"))
    assert caught.value.cycle == (Wait(0, "0SEND_F1", 1, "1RECV_F1"), Wait(1, "1SEND_B0", 0, "0RECV_B0"))
    assert "rank 0 at 0SEND_F1 waits for 1RECV_F1 of rank 1" in str(caught.value)
    assert "rank 1 at 1SEND_B0 waits for 0RECV_B0 of rank 0" in str(caught.value)


def test_messages_received_in_another_order_than_sent_are_a_deadlock():
    rows = labels(with_messages(gpipe(2, 2)))
    first, second = rows[1].index("1RECV_F0"), rows[1].index("1RECV_F1")
    rows[1] = ["1RECV_F1", "1RECV_F0", *(x for i, x in enumerate(rows[1]) if i not in (first, second))]
    with pytest.raises(ScheduleError) as caught:
        validate(from_labels(rows))
    assert {(w.at, w.needs) for w in caught.value.cycle} == {("0SEND_F0", "1RECV_F0"), ("1RECV_F1", "0SEND_F1")}


def test_messages_that_are_missing_misplaced_or_empty_are_named():
    good = with_messages(one_f_one_b(3, 2))
    for rank, steps in enumerate(good.ranks):
        for position, step in enumerate(steps):
            if "_" in step.action:
                name = labels(good)[rank][position]
                with pytest.raises(ScheduleError, match=f"{name} is missing in the list of rank {rank}"):
                    validate(changed(good, rank, [*steps[:position], *steps[position + 1 :]]))
                with pytest.raises(ScheduleError, match=f"{name} is missing in the list of rank {rank}"):
                    simulate(changed(good, rank, [*steps[:position], *steps[position + 1 :]]), Costs(1, 1, 1))
    steps = list(good.ranks[0])
    with pytest.raises(ScheduleError, match="rank 0 sends 0SEND_F0 before 0F0, which computes it"):
        validate(changed(good, 0, [SendActivation(0), *(s for s in steps if s != SendActivation(0))]))
    steps = list(good.ranks[2])
    with pytest.raises(ScheduleError, match="rank 2 has 2F1 before 2RECV_F1, which brings its input"):
        validate(changed(good, 2, [*(s for s in steps if s != RecvActivation(1)), RecvActivation(1)]))
    with pytest.raises(ScheduleError, match="rank 2 has 2SEND_F0, and there is nothing to carry"):
        validate(changed(good, 2, [*steps, SendActivation(0)]))
    with pytest.raises(ScheduleError, match="has explicit messages already"):
        with_messages(good)
    with pytest.raises(RefusedError, match="choose 'early' or 'late'"):
        with_messages(gpipe(2, 2), receive="never")
