"""Keys of chapter 18, checkpoints. Numbers come from labkit.cost; every slip is one that people make."""

from __future__ import annotations

import math
from functools import partial

from labkit import cost
from labkit.cost.units import HOUR, MINUTE
from labkit.grading.answers import Choice, Number, Several

# When to save -------------------------------------------------------------------------------------------------------


def interval(write: int, hours: int) -> Number:
    """Minutes between checkpoints, by Young."""
    mtbf = 60 * hours
    slips = [
        (math.sqrt(write * mtbf), "On average half an interval is lost, not all of it: where does the 2 come from?"),
        (math.sqrt(2 * write * hours), "Minutes and hours are mixed under the root."),
        (math.sqrt(2 * write * mtbf) / 60, "That is in hours."),
        (mtbf / 2, "That is half the time between failures. The time to write is not in it."),
    ]
    return Number.of(cost.young_interval(write, mtbf), "min", slips)


def beside_useful(write: int, hours: int) -> Number:
    """Percent of the useful time that writing and work done again cost, at that interval."""
    mtbf = 60 * hours
    best = cost.young_interval(write, mtbf)
    right = cost.first_order_tax(best, write, mtbf)
    slips = [
        (100 * write / best, "That is writing alone. What does a failure cost?"),
        (100 * (write / best + best / mtbf), "A failure loses half an interval on average."),
        (100 * right.of_elapsed, "That is of all time. Here the part is asked beside the useful time."),
    ]
    return Number.of(100 * right.of_useful, "%", slips)


def of_all_time(write: int, hours: int) -> Number:
    """The same as percent of all time."""
    mtbf = 60 * hours
    right = cost.first_order_tax(cost.young_interval(write, mtbf), write, mtbf)
    slips = [
        (100 * right.of_useful, "That is beside the useful time. All time is useful time and this."),
        (100 * right.goodput, "That is the part that trains."),
        (100 * (right.of_useful / (1 - right.of_useful)), "The wrong way round: all time is the larger one."),
    ]
    return Number.of(100 * right.of_elapsed, "%", slips)


def interval_of_four(write: int, hours: int) -> Number:
    """Minutes between checkpoints of a fleet of four times as many GPUs."""
    best = cost.young_interval(write, 60 * hours)
    slips = [
        (best / 4, "It goes with the square root of the time between failures."),
        (best, "The larger fleet fails four times as often."),
        (2 * best, "The other way round: who fails more often saves more often."),
    ]
    return Number.of(cost.young_interval(write, 60 * hours / 4), "min", slips)


def tax_of_four(write: int, hours: int) -> Number:
    """Percent beside the useful time of that fleet, at its own best interval."""
    mtbf = 60 * hours
    best = cost.young_interval(write, mtbf)
    old = cost.first_order_tax(best, write, mtbf).of_useful
    slips = [
        (100 * old, "Writing costs more, too, since it comes more often."),
        (400 * old, "That would be without a shorter interval, if writing were free."),
        (50 * old, "Upside down."),
        (100 * cost.first_order_tax(best, write, mtbf / 4).of_useful, "That is at the old interval."),
    ]
    return Number.of(100 * cost.first_order_tax(best / 2, write, mtbf / 4).of_useful, "%", slips)


# Bytes to be written ------------------------------------------------------------------------------------------------


def checkpoint_gigabytes(billions: int, replicas: int, ranks: int, storage: int) -> Number:
    """GB of a checkpoint."""
    slips = [
        (16.0 * billions, "16 bytes are what training holds. Which of them can be made anew?"),
        (14.0 * billions, "The 16-bit weights follow from the 32-bit ones."),
        (2.0 * billions, "That are the 16-bit weights alone. What does Adam need to go on?"),
        (4.0 * billions, "That are the weights alone. What does Adam need to go on?"),
        (8.0 * billions, "That are the moments alone."),
        (12.0 * billions * replicas, "Replicas hold the same. It is written once."),
    ]
    return Number.of(cost.checkpoint_bytes(billions), "GB", slips)


def rank_gigabytes(billions: int, replicas: int, ranks: int, storage: int) -> Number:
    """GB that each rank writes."""
    whole = cost.checkpoint_bytes(billions)
    slips = [
        (whole / ranks, "So much a rank holds. But each of the replicas holds the same, and they share it out."),
        (whole / replicas, "A replica has many ranks."),
        (whole, "That is all of it."),
        (16 * billions / (replicas * ranks), "What training holds is more than what is written."),
    ]
    return Number.of(whole / (replicas * ranks), "GB", slips)


def seconds_full(billions: int, replicas: int, ranks: int, storage: int) -> Number:
    """Seconds, if rank 0 writes all at 2 GB/s."""
    whole = cost.checkpoint_bytes(billions)
    slips = [
        (whole / storage, "One rank sends 2 GB/s, whatever the storage could take."),
        (2 * whole, "Upside down: divide by the rate."),
        (8 * billions, "16 bytes a parameter are not all written."),
    ]
    return Number.of(cost.write_seconds(whole, 1, 2), "s", slips)


def seconds_sharded(billions: int, replicas: int, ranks: int, storage: int) -> Number:
    """Seconds, if all ranks write."""
    whole = cost.checkpoint_bytes(billions)
    slips = [
        (whole / (2 * replicas * ranks), "So fast the ranks could send. What does the storage take?"),
        (whole / (2 * ranks), "So fast one replica could send. What does the storage take?"),
        (whole / 2, "That is one rank."),
        (whole / (storage + 2 * replicas * ranks), "The slower of the two decides."),
    ]
    return Number.of(cost.write_seconds(whole, replicas * ranks, 2, storage), "s", slips)


def room_for_three(billions: int, replicas: int, ranks: int, storage: int) -> Number:
    """GB of storage that a run needs which keeps the last three."""
    whole = cost.checkpoint_bytes(billions)
    slips = [
        (3 * whole, "The oldest one goes when the new one is whole. What lies there just before?"),
        (whole, "That is one of them."),
        (2 * whole, "Three are kept, and one is being written."),
    ]
    return Number.of(cost.kept_bytes(whole, 3), "GB", slips)


# Find the error: dollars of a day -----------------------------------------------------------------------------------

WRITE, GPU_HOURS, OFTEN = 5 * MINUTE, 50_000, 15 * MINUTE


def _taxes(gpus: int) -> tuple[cost.Tax, cost.Tax]:
    mtbf = cost.mtbf_of(GPU_HOURS * HOUR, gpus)
    tax = partial(cost.first_order_tax, write=WRITE, mtbf=mtbf)
    return tax(OFTEN), tax(cost.young_interval(WRITE, mtbf))


def hours_between(gpus: int, price: int) -> Number:
    """Hours between failures of the cluster."""
    slips = [
        (float(GPU_HOURS), "That is one GPU."),
        (gpus / GPU_HOURS, "Upside down: those are failures in an hour."),
        (GPU_HOURS / gpus * 8, "Each GPU counts for itself here, not each server."),
    ]
    return Number.of(cost.mtbf_of(GPU_HOURS, gpus), "h", slips)


def dollars_as_stated(gpus: int, price: int) -> Number:
    """Dollars a day, in the way of the textbook."""
    often, best = (tax.of_useful for tax in _taxes(gpus))
    day = 24 * gpus * price
    slips = [
        (day * often, "That is the tax of 15 minutes. How much more is it than at the best interval?"),
        (day * best, "That is the tax at the best interval."),
        (day * (often - best) / 24, "That is an hour."),
        (day * (_taxes(gpus)[0].of_elapsed - _taxes(gpus)[1].of_elapsed), "That is like for like. And the textbook?"),
        (day * (WRITE / OFTEN - best), "A failure costs something with 15 minutes, too."),
    ]
    return Number.of(day * (often - best), "", slips)


def dollars_of_all_time(gpus: int, price: int) -> Number:
    """Dollars a day, both taxes as parts of all time."""
    often, best = _taxes(gpus)
    day = 24 * gpus * price
    slips = [
        (day * (often.of_useful - best.of_useful), "Those percentages are of useful time, and a day is all time."),
        (day * often.of_elapsed, "That is the tax of 15 minutes. How much more is it than at the best interval?"),
        (day * (often.of_useful - best.of_useful) * often.goodput, "The two taxes are parts of different whole times: "
         "turn each into a part of all time first."),
    ]  # fmt: skip
    return Number.of(day * (often.of_elapsed - best.of_elapsed), "", slips)


def what_to_say() -> Choice:
    """Which statement is right."""
    why = {
        "a": "Of a day with 24 hours, part is no useful time. The percentage is not of it.",
        "c": "Both are right, each beside its own time. What must not be done is to mix them.",
        "d": "Work done again is in both terms. Look at which time stands below.",
    }
    return Choice("b", why)


# While training goes on ---------------------------------------------------------------------------------------------


def _behind(write: int, part: int, hours: int) -> tuple[float, float, float]:
    """(stall, minutes between failures, best interval)."""
    stall, mtbf = write / part, 60.0 * hours
    return stall, mtbf, cost.asynchronous_interval(stall, write, mtbf)


def interval_behind(write: int, part: int, hours: int) -> Number:
    """Minutes between saves behind training."""
    stall, mtbf, right = _behind(write, part, hours)
    young = cost.young_interval(write, mtbf)
    slips = [
        (young, "That is for a save that is waited for. What does training wait for now?"),
        (young / part, "The interval goes with the square root of the stall."),
        (math.sqrt(2 * (write + stall) * mtbf), "Training waits for the copy only."),
        (float(write), "So long it must be, but longer is better here."),
    ]
    return Number.of(right, "min", slips)


def tax_waited(write: int, part: int, hours: int) -> Number:
    """Percent beside useful time, waited for, at its own best interval."""
    _, mtbf, behind = _behind(write, part, hours)
    young = cost.young_interval(write, mtbf)
    slips = [
        (100 * write / young, "That is writing alone. What does a failure cost?"),
        (100 * cost.first_order_tax(behind, write, mtbf).of_useful, "That is at the interval of the other one."),
        (100 * cost.first_order_tax(young, write, mtbf).of_elapsed, "That is of all time."),
    ]
    return Number.of(100 * cost.first_order_tax(young, write, mtbf).of_useful, "%", slips)


def tax_behind(write: int, part: int, hours: int) -> Number:
    """Percent beside useful time, behind training, at its own best interval."""
    stall, mtbf, best = _behind(write, part, hours)
    right = cost.asynchronous_tax(best, stall, write, mtbf)
    slips = [
        (100 * cost.first_order_tax(best, stall, mtbf).of_useful, "What is still being written cannot be loaded: a "
         "failure goes back further."),
        (100 * (stall / best + (best / 2 + write) / mtbf), "Nearly: before it is written it must be copied."),
        (100 * cost.first_order_tax(cost.young_interval(write, mtbf), write, mtbf).of_useful / part, "The stall "
         "is so much shorter, the loss is not: work is still done again."),
        (100 * right.of_elapsed, "That is of all time."),
    ]  # fmt: skip
    return Number.of(100 * right.of_useful, "%", slips)


def times_larger(write: int, part: int, hours: int) -> Number:
    """How many times larger the fleet may be until the interval is as short as the writing."""
    stall, mtbf, best = _behind(write, part, hours)
    slips = [
        (best / write, "The interval goes with the square root of the fleet."),
        (2 * mtbf / write, "Training waits for the copy only: which time stands under the root?"),
        ((write / best) ** 2, "Upside down."),
        (mtbf / (part * write), "The 2 under the root is missing."),
    ]
    return Number.of((best / write) ** 2, "times", slips)


def what_behind_costs() -> Several:
    """What a save behind training costs that one that is waited for does not."""
    why = {
        "a": "the original changes with the next update, and what is written must not.",
        "b": "what is being written cannot be loaded yet.",
        "c": "the call has returned long before the disk says no.",
        "d": "it would without the copy. When is the copy made?",
        "e": "the same state is written, by the same ranks.",
    }
    return Several("abc", why)


# Where a restart takes as long as the fleet runs --------------------------------------------------------------------

SMALL, LARGE, BETWEEN = 16_384, 98_304, 18 * MINUTE * 100_000  # GPUs, GPUs, seconds between failures of one GPU


def _growth(small: int, large: int) -> cost.Growth:
    return cost.fit_growth([(SMALL, small), (LARGE, large)])


def _restart(gpus: float, small: int, large: int, rest: int) -> float:
    return _growth(small, large).seconds(gpus) + rest * MINUTE


def exponent(small: int, large: int, rest: int) -> Number:
    """The power of the size with which connections grow."""
    slips = [
        (large / small / (LARGE / SMALL), "A power is a quotient of logarithms."),
        (math.log(LARGE / SMALL) / math.log(large / small), "Upside down."),
        (math.log(large / small), "Divide by the logarithm of how many times more GPUs there are."),
        (math.log((large + 60 * rest) / (small + 60 * rest)) / math.log(LARGE / SMALL), "Only the connections grow."),
    ]
    return Number.of(_growth(small, large).exponent, "", slips)


def connections(small: int, large: int, rest: int) -> Number:
    """Seconds at 200,000 GPUs."""
    line = large + (large - small) * (200_000 - LARGE) / (LARGE - SMALL)
    slips = [
        (line, "That is a straight line through the two points. A power bends upwards."),
        (large * 200_000 / LARGE, "That is in proportion to the size."),
        (_growth(small, large).seconds(200_000) + 60 * rest, "That is the whole restart."),
    ]
    return Number.of(_growth(small, large).seconds(200_000), "s", slips)


def trains(small: int, large: int, rest: int) -> Number:
    """Percent of all time that 50,000 GPUs train."""
    restart, every = _restart(50_000, small, large, rest), BETWEEN / 50_000
    slips = [
        (100 * restart / every, "That is what the restarts take."),
        (100 * (1 - restart / (18 * MINUTE)), "Half as many GPUs fail half as often."),
        (100 * (1 - rest * MINUTE / every), "The connections take time, too."),
        (100 * every / (every + restart), "A failure comes every so often, restart included: by the clock."),
        (100 * (1 - 2 * restart / (18 * MINUTE)), "The wrong way round: half as many GPUs fail half as often."),
    ]
    return Number.of(100 * (1 - restart / every), "%", slips)


def crossing(small: int, large: int, rest: int) -> Number:
    """GPUs at which a restart takes as long as the time between two failures."""
    low, high = 1e3, 1e7
    for _ in range(80):  # the restart grows with the size, and the time between failures falls
        middle = (low + high) / 2
        low, high = (middle, high) if _restart(middle, small, large, rest) < BETWEEN / middle else (low, middle)
    slips = [
        (BETWEEN / (rest * MINUTE), "That is without the connections."),
        (BETWEEN / _restart(LARGE, small, large, rest), "With more GPUs the connections take longer than that."),
        ((BETWEEN / _growth(small, large).scale) ** (1 / (1 + _growth(small, large).exponent)), "That is with the "
         "connections alone."),
    ]  # fmt: skip
    return Number.of(low, "", slips, 0.02)
