"""Keys of chapter 19, FT-HSDP. Numbers come from labkit.cost; every slip is one that people make. Times in minutes."""

from __future__ import annotations

import math
from math import sqrt

from labkit import cost
from labkit.cost.units import GB, MB, MINUTE
from labkit.grading.answers import Choice, Number

STALL = 3.0  # minutes that all stand still for when a replica is lost, as the paper counts it
REJOIN = cost.rejoin_stall_seconds() / MINUTE


# The time that trains -------------------------------------------------------------------------------------------------


def all_stop(every: int, recovery: int, n: int) -> Number:
    """Percent, if everybody stops."""
    right = 100 * cost.synchronous_effective_time(every, recovery)
    slips = [
        (100 * recovery / every, "That is the part that is lost."),
        (100 * every / (every + recovery), "`every` counts from failure to failure: the recovery lies in it."),
        (100 * (1 - recovery / every / n), "Without replicas of their own all n wait, not one."),
    ]
    return Number.of(right, "%", slips)


def one_stops(every: int, recovery: int, n: int) -> Number:
    """Percent, if one of n replicas stops, and all for three minutes."""
    right = 100 * cost.fault_tolerant_effective_time(every, recovery, STALL, n)
    slips = [
        (100 * (1 - STALL / every), "While one replica is away, n - 1 of n train. That is less than all."),
        (100 * (1 - recovery / n / every), "All stand still for three minutes. Take them out."),
        (
            100 * (every - recovery + recovery * (n - 1) / n) / every,
            "All stand still for three minutes. Take them out.",
        ),
        (
            100 * (every - recovery - STALL + recovery * (n - 1) / n) / every,
            "The three minutes are counted twice: they are a part of the recovery.",
        ),
        (
            100 * (every - recovery + (recovery - STALL) / n) / every,
            "1 of n trains there? The others do: n - 1 of n.",
        ),
    ]
    return Number.of(right, "%", slips, tolerance=0.004)


def with_return(every: int, recovery: int, n: int) -> Number:
    """The same with the 100 seconds of coming back, taken from the time in which one is missing."""
    right = 100 * cost.fault_tolerant_effective_time(every, recovery, STALL, n, rejoin=REJOIN)
    slips = [
        (100 * cost.fault_tolerant_effective_time(every, recovery, STALL, n), "That is without the return."),
        (
            100 * cost.fault_tolerant_effective_time(every, recovery, STALL, n, rejoin=2.0),
            "Two minutes were the step of the return. A usual step takes 20 seconds of them anyway.",
        ),
        (
            100 * cost.fault_tolerant_effective_time(every, recovery, STALL, n) - 100 * REJOIN / every,
            "Nearly: one replica is missing in those seconds anyway, so only n - 1 of n lose them.",
        ),
    ]
    return Number.of(right, "%", slips, tolerance=0.004)


# What all wait for ----------------------------------------------------------------------------------------------------


SMOOTHER, BUG = (cost.stalls.KILL_STALL[part] for part in cost.stalls.FIXED)


def _detected(step: int, every: int, seconds: int) -> float:
    return 100 * cost.fault_tolerant_effective_time(every, 10, (seconds + step) / MINUTE, 12)


def stall_now(step: int, patience: int, seconds: int, every: int) -> Number:
    """Seconds that all stand still for, all four parts."""
    right = patience * step + step + SMOOTHER + BUG
    slips = [
        (right - step, "The step that came to nothing is trained again."),
        (right - SMOOTHER - BUG, "That is without the smoother and the reconfiguration."),
        (right - BUG, "That is without the reconfiguration."),
        (right - patience * step + patience, "The time-out is given in steps."),
    ]
    return Number.of(right, "s", slips)


def stall_mended(step: int, patience: int, seconds: int, every: int) -> Number:
    """Seconds without the two parts that were mended."""
    right = float((patience + 1) * step)
    slips = [
        (float(patience * step), "The step that came to nothing is trained again."),
        (right + SMOOTHER, "Both of them were mended, the smoother and the reconfiguration."),
        (float(step), "The time-out is still there."),
    ]
    return Number.of(right, "s", slips)


def stall_detected(step: int, patience: int, seconds: int, every: int) -> Number:
    """Seconds, mended, with a detector in place of the time-out."""
    slips = [
        (float(seconds), "The step is trained again, however early the failure is seen."),
        (float(seconds + (patience + 1) * step), "The detector stands in the place of the time-out."),
        (float(seconds) + step + SMOOTHER + BUG, "The other two parts were mended."),
    ]
    return Number.of(float(seconds + step), "s", slips)


def effective_detected(step: int, patience: int, seconds: int, every: int) -> Number:
    """Percent of time that trains with that stall, 12 replicas, 10 minutes of recovery, nothing lost by returning."""
    stall = (patience + 1) * step / MINUTE
    slips = [
        (100 * cost.fault_tolerant_effective_time(every, 10, stall, 12), "That is with the time-out."),
        (100 * (1 - (seconds + step) / MINUTE / every), "One of 12 replicas is away for the rest of the 10 minutes."),
        (100 * cost.synchronous_effective_time(every, 10), "That is if everybody stops for all of it."),
        (
            100 * cost.fault_tolerant_effective_time(every, 10, 0.0, 12),
            "All stand still for a while, also with a detector.",
        ),
    ]
    return Number.of(_detected(step, every, seconds), "%", slips, tolerance=0.004)


def why_not_shorter() -> Choice:
    """What a time-out of half a step would do."""
    why = {
        "a": "A lost replica costs as much whoever notices it. What happens to those that are *not* lost?",
        "c": "The time-out is a limit on waiting. Nobody waits for it while all goes well.",
        "d": "The vote has a limit of its own, and comes after the exchange.",
    }
    return Choice("b", why)


# A state on its way ---------------------------------------------------------------------------------------------------

BYTES, GPUS_OF_HOST, STEP = 12, 8, 20


def _per_gpu(billions: int, gpus: int) -> float:
    return BYTES * billions * 1e9 / gpus / GB


def _seconds(billions: int, gpus: int, gigabits: int) -> float:
    return _per_gpu(billions, gpus) * GPUS_OF_HOST * 8 / gigabits


def state_of_a_gpu(billions: int, gpus: int, gigabits: int, behind: int) -> Number:
    """GB of training state that a GPU of a replica fetches."""
    right = _per_gpu(billions, gpus)
    slips = [
        (right / 3, "That is the weights. AdamW keeps two more numbers for each of them."),
        (right * 2 / 3, "That is what AdamW keeps. The weights are fetched too."),
        (right * gpus, "That is the whole replica. Each of its GPUs fetches its own part."),
        (right / 2, "The numbers have 4 bytes each, not 2."),
        (right * 8 / gpus, "A replica is cut over all of its GPUs, and no copy is inside it."),
    ]
    return Number.of(right, "GB", slips)


def seconds_on_the_way(billions: int, gpus: int, gigabits: int, behind: int) -> Number:
    """Seconds for a host to fetch its part over its card."""
    right = _seconds(billions, gpus, gigabits)
    slips = [
        (right / GPUS_OF_HOST, "The eight GPUs of a host share one card."),
        (right / 8 / GPUS_OF_HOST, "Gbit/s are bits, and eight GPUs share the card."),
        (right * gpus / GPUS_OF_HOST, "All hosts fetch at the same time, each its own part."),
    ]
    return Number.of(right, "s", slips)


def seconds_from_one(billions: int, gpus: int, gigabits: int, behind: int) -> Number:
    """Seconds if `behind` replicas fetch from one and the same."""
    right = behind * _seconds(billions, gpus, gigabits)
    slips = [
        (right / behind, "That is if each fetches from another one. Here one card sends everything."),
        (right / behind**2, "More of them do not make it faster. One card sends everything."),
    ]
    return Number.of(right, "s", slips)


def most_in_a_step(billions: int, gpus: int, gigabits: int, behind: int) -> Number:
    """How many replicas one source could serve within a step of 20 seconds."""
    one = _seconds(billions, gpus, gigabits)
    right = math.floor(STEP / one)
    slips = [
        (right + 1, "The last one would not have everything when the step ends. Round down."),
        (math.floor(STEP / one * GPUS_OF_HOST), "The eight GPUs of a host share one card."),
        (behind, "So many come back here. How many could?"),
    ]
    return Number.count(right, slips)


def why_during_the_step() -> Choice:
    """Why the others need not wait for a transfer that takes less than a step."""
    why = {
        "a": "The state *before* the step is fetched, and that is old when the step ends. What mends it?",
        "b": "The weights of the others move on, and nobody sends them again.",
        "d": "It would train from a state that nobody else has. Which gradient does it give?",
    }
    return Choice("c", why)


# Bytes in flight ------------------------------------------------------------------------------------------------------

LINK = 50  # GB/s between buildings


def in_flight(megabytes: int, n: int, ms: int) -> Number:
    """MB on their way to one neighbour, with 4 chunks."""
    slips = [
        (cost.ftar.CHUNK / MB, "That is one chunk."),
        (4 * n * cost.ftar.CHUNK / MB, "That is one piece of the tensor. To one neighbour goes 1/R of it at a time."),
        (float(megabytes), "Not all of the tensor is under way at a time."),
        (megabytes / n, "The limit does not depend on the tensor."),
    ]
    return Number.of(cost.ftar_in_flight_bytes(chunks=4) / MB, "MB", slips)


def pieces(megabytes: int, n: int, ms: int) -> Number:
    """Rings one after the other, with 4 chunks."""
    nbytes = megabytes * int(MB)
    slips = [
        (cost.ftar_partitions(nbytes, n), "That is with one chunk."),
        (math.ceil(megabytes / 32), "A piece has S C bytes for *each* rank of the ring."),
        (math.floor(nbytes / (32 * MB * n)), "What is left over is a piece, too: round up."),
        (nbytes / (32 * MB * n), "Pieces are whole: round up."),
    ]
    return Number.count(cost.ftar_partitions(nbytes, n, chunks=4), slips)


def fewest_chunks(megabytes: int, n: int, ms: int) -> Number:
    """The fewest chunks with which the link is never idle."""
    full = LINK * 1e9 * ms / 1e3 / cost.ftar.CHUNK
    slips = [
        (math.floor(full), "With so many the link is idle for a moment: round up."),
        (full, "Chunks are whole: round up."),
        (math.ceil(2 * full), "The `ms` are there and back already."),
        (math.ceil(full / 2), "A chunk is free again when the answer is *back*."),
        (math.ceil(full / 8), "50 GB/s are bytes."),
    ]
    return Number.count(math.ceil(full), slips)


def steps_of_the_ring(megabytes: int, n: int, ms: int) -> Number:
    """Steps of all rings, with 4 chunks."""
    nbytes = megabytes * int(MB)
    each = cost.ftar_partitions(nbytes, n, chunks=4)
    slips = [
        (each * (n - 1), "That is half of it: first the sums go round, then the results."),
        (2 * (n - 1), "That is one ring. There is one for each piece."),
        (each * 2 * n, "A ring of R has R - 1 steps each time."),
    ]
    return Number.count(cost.ftar_rounds(nbytes, n, chunks=4), slips)


# Smaller steps meanwhile ----------------------------------------------------------------------------------------------


def rate_linear(away: int, n: int, length: int) -> Number:
    """The factor of the linear rule."""
    k = n - away
    slips = [
        (away / n, "That is the part that is away."),
        (n / k, "Upside down: the rate becomes smaller."),
        (cost.intervention_factor("sqrt", k, n), "That is the root of it."),
    ]
    return Number.of(cost.intervention_factor("linear", k, n), "", slips, tolerance=0.005)


def rate_root(away: int, n: int, length: int) -> Number:
    """The factor of the square root rule."""
    k = n - away
    slips = [
        (cost.intervention_factor("linear", k, n), "That is the linear rule."),
        (sqrt(n / k), "Upside down: the rate becomes smaller."),
        (sqrt(away / n), "That is the root of the part that is away."),
    ]
    return Number.of(cost.intervention_factor("sqrt", k, n), "", slips, tolerance=0.005)


def noise_of_mean(away: int, n: int, length: int) -> Number:
    """The deviation of the mean gradient's noise, against that of all n."""
    k = n - away
    slips = [
        (n / k, "That is the variance."),
        (sqrt(k / n), "That is the *sum* over those that are there. The optimizer gets their mean."),
        (1.0, "Fewer summands, more noise."),
    ]
    return Number.of(sqrt(n / k), "times", slips, tolerance=0.005)


def noise_of_linear_step(away: int, n: int, length: int) -> Number:
    """The noise of a step with the linear rule, against a step of all n."""
    k = n - away
    slips = [
        (1.0, "That is the rule with the root."),
        (sqrt(n / k), "That is without a change of the rate."),
        (k / n, "The rate falls, and the noise of the mean rises: multiply the two."),
    ]
    return Number.of(cost.step_noise_factor("linear", k, n), "times", slips, tolerance=0.005)


def samples_missing(away: int, n: int, length: int) -> Number:
    """Percent of the samples that 10,000 steps miss, if `away` are away for `length` of them, twice."""
    right = 100 * cost.samples_lost(2, length, away, n, 10_000)
    slips = [
        (right / 2, "There were two such times."),
        (100 * 2 * length / 10_000, "In those steps the others train."),
        (right / away, "How many are away?"),
        (100 - right, "That is what is left."),
    ]
    return Number.of(right, "%", slips)


def why_the_root() -> Choice:
    """What the square root keeps as it was."""
    why = {
        "a": "The rate falls while the noise of the mean rises: they cannot be in proportion.",
        "b": "The mean over those that are there is right on average, with any rate.",
        "d": "Samples are missing whatever the rate is.",
    }
    return Choice("c", why)
