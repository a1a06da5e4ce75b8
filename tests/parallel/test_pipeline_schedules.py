"""Every schedule, over (stages, microbatches, chunks): complete, in an order that can run, within its memory; and
equal to PyTorch's own, and accepted by PyTorch's checkers."""

from __future__ import annotations

import itertools

import pytest
from torch.distributed.pipelining import schedules as theirs

from labkit.parallel.pipeline import (
    Schedule,
    from_labels,
    gpipe,
    interleaved,
    labels,
    naive,
    one_f_one_b,
    pipedream,
    v_half,
    validate,
    with_messages,
    zb_h1,
    zb_h2,
    zb_v,
)
from labkit.wire.errors import RefusedError

STAGES, MICROBATCHES = range(1, 9), range(1, 21)
PLAIN = {f.__name__: f for f in (naive, gpipe, one_f_one_b, pipedream, zb_h1, zb_h2, zb_v, v_half)}
PEAKS = {
    "naive": lambda p, m, r: 1,
    "gpipe": lambda p, m, r: m,
    "one_f_one_b": lambda p, m, r: min(m, p - r),
    "pipedream": lambda p, m, r: min(m, p - r),
    "zb_h1": lambda p, m, r: min(m, p),
    "zb_h2": lambda p, m, r: min(m, 2 * p - 1),
    "zb_v": lambda p, m, r: min(2 * m, 2 * p, m + 1 + r),
    "v_half": lambda p, m, r: min(2 * m, 2 * (p // 2) + 2, m + 1 + r // 2),
}


def fits(p, m):
    """Whether PyTorch's ScheduleInterleaved1F1B takes m microbatches on p ranks."""
    return m % max(1, m // p) == 0


def every(stages=STAGES, microbatches=MICROBATCHES):
    """(name, p, m, schedule) of all schedules of the given sizes."""
    for p, m in itertools.product(stages, microbatches):
        for name, make in PLAIN.items():
            yield name, p, m, make(p, m)
        for chunks in (1, 2, 3):
            if chunks == 1 or fits(p, m):
                yield f"interleaved {chunks}", p, m, interleaved(p, m, chunks)


def test_every_schedule_is_complete_runs_and_keeps_exactly_what_its_docstring_says():
    seen = 0
    for name, p, m, schedule in every():
        report = validate(schedule)
        assert (schedule.size, schedule.microbatches) == (p, m)
        if name in PEAKS:
            expected = tuple(PEAKS[name](p, m, r) for r in range(p))
            assert report.peak == expected, (name, p, m)
            validate(schedule, limit=expected)  # and no more than that
        seen += 1
    assert seen == 8 * 20 * 8 + 8 * 20 + 2 * sum(fits(p, m) for p in STAGES for m in MICROBATCHES)


def test_interleaving_keeps_a_warmup_and_one_of_each_chunk():
    for p, m, chunks in itertools.product(STAGES, MICROBATCHES, (2, 3)):
        if fits(p, m):
            length = m // max(1, m // p)  # of a round: p where p divides m
            expected = [min(m * chunks, (chunks - 1) * length + 2 * (p - 1 - r) + 1) for r in range(p)]
            assert list(validate(interleaved(p, m, chunks)).peak) == expected, (p, m, chunks)
        else:
            with pytest.raises(RefusedError, match="cannot be cut into"):
                interleaved(p, m, chunks)


def test_by_stage_is_the_high_water_of_each_stage_alone():
    assert validate(interleaved(2, 4)).by_stage == (4, 3, 2, 1)
    assert validate(one_f_one_b(4, 8)).by_stage == (4, 3, 2, 1)
    assert validate(zb_h1(4, 8)).unfinished == (1, 2, 3, 4)
    assert validate(zb_v(3, 8)).by_stage[2:4] == (4, 3)


def test_refused_microbatches_come_with_the_nearest_that_work():
    with pytest.raises(RefusedError) as caught:
        interleaved(4, 11)
    assert "nearest numbers that can are 10 and 12" in str(caught.value)
    interleaved(4, 10), interleaved(4, 12)


@pytest.mark.parametrize("make", [*PLAIN.values(), interleaved])
def test_no_stages_and_no_microbatches_are_refused(make):
    for stages, microbatches in ((0, 4), (4, 0), (4, -1), (2.0, 4), (2, True)):
        with pytest.raises(RefusedError, match="needs a whole number, 1 or more"):
            make(stages, microbatches)


def test_labels_are_read_back_as_the_same_schedule():
    for *_, schedule in every(range(2, 6), (1, 2, 3, 5, 8, 12)):
        assert from_labels(labels(schedule), name=schedule.name) == schedule
        explicit = with_messages(schedule)
        assert from_labels(labels(explicit), name=schedule.name) == explicit


def test_labels_that_mean_nothing_are_named():
    with pytest.raises(RefusedError, match="'0X3' in the list of rank 1"):
        from_labels([["0F0"], ["0X3"]])
    with pytest.raises(RefusedError, match="'0F-1'"):
        from_labels([["0F-1"]])
    with pytest.raises(
        RefusedError, match="1F0 is in the list of rank 0, and stage 1 of 2 stages on 2 ranks is on rank 1"
    ):
        from_labels([["0F0", "1F0"], ["0B0", "1B0"]])
    read = from_labels([["0UNSHARD", "0F0", None, "", "0B0", "0REDUCE_GRAD"]])
    assert labels(read) == [["0F0", "0B0"]]
    assert from_labels({1: "1F0 1B0", 0: ["0F0", "0B0"]}) == from_labels([["0F0", "0B0"], ["1F0", "1B0"]])
    with pytest.raises(RefusedError, match="there is no label in these rows"):
        from_labels([[], []])


# -- PyTorch ---------------------------------------------------------------------------------------------------------


def actions(schedule):
    return {r: [theirs._Action.from_str(text) for text in row] for r, row in enumerate(labels(schedule))}


def test_pytorchs_checkers_accept_every_schedule():
    """All but PipeDream, whose updates PyTorch has no name for; with messages too, theirs and ours."""
    for name, p, m, schedule in every((1, 2, 3, 4, 8), (1, 2, 3, 4, 7, 8, 12)):
        if name == "pipedream":
            continue

        def rank_of(stage, schedule=schedule):
            return schedule.where(stage)[0]

        theirs._validate_schedule(actions(schedule), p, schedule.stages, m)
        sent = theirs._add_send_recv(actions(schedule), rank_of, schedule.stages)
        theirs._simulate_comms_compute(sent, rank_of, schedule.stages)
        validate(from_labels([[str(a) for a in sent[r]] for r in range(p)], microbatches=m,
                             placement=schedule.placement))  # fmt: skip
        if m < 9:
            theirs._simulate_comms_compute(actions(with_messages(schedule)), rank_of, schedule.stages)


def plain(order, p):
    """Labels of PyTorch's order, idle steps and gradient reductions left out."""
    return [[str(a) for a in order[r] if a is not None and "REDUCE" not in str(a)] for r in range(p)]


def made(kind, p, m, v=1):
    """The order that a schedule class of PyTorch computes, without the processes and modules that it wants."""
    maker = object.__new__(kind)
    maker.pp_group_size, maker._n_microbatches, maker.n_local_stages, maker._num_stages = p, m, v, p * v
    maker.number_of_rounds = max(1, m // p)
    maker.microbatches_per_round, maker.num_stages = m // maker.number_of_rounds, p * v
    if hasattr(kind, "_calculate_single_rank_operations"):
        return plain({r: maker._calculate_single_rank_operations(r) for r in range(p)}, p)
    return plain(maker._get_pipeline_order(), p)


@pytest.mark.parametrize("p", STAGES)
def test_orders_are_those_that_pytorch_makes(p):
    for m in MICROBATCHES:
        assert labels(gpipe(p, m)) == made(theirs.ScheduleGPipe, p, m)
        if m >= p:  # with fewer microbatches theirs does forwards that do not exist
            # its last rank starts at microbatch 1, a slip in the listing alone: what it runs starts at 0
            assert labels(one_f_one_b(p, m))[:-1] == made(theirs.Schedule1F1B, p, m)[:-1]
        assert labels(zb_h1(p, m)) == made(theirs.ScheduleInterleavedZeroBubble, p, m)
        assert labels(zb_v(p, m)) == made(theirs.ScheduleZBVZeroBubble, p, m, 2)
        for v in (2, 3):
            if fits(p, m):
                assert labels(interleaved(p, m, v)) == made(theirs.ScheduleInterleaved1F1B, p, m, v)


def test_a_schedule_is_data():
    one, two = one_f_one_b(2, 3), one_f_one_b(2, 3)
    assert one == two
    assert one != gpipe(2, 3)
    assert Schedule(one.ranks, 3, name="one_f_one_b") == one
