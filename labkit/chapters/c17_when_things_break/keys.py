"""Keys of chapter 17, when things break. Numbers come from labkit.cost; every slip is one that people make."""

from __future__ import annotations

import math

from labkit import cost
from labkit.course.case_plan import best_plan
from labkit.course.casefile import Case, Evidence, Suspect
from labkit.grading.answers import Number

YEAR = 24 * 365.25  # hours
WEEK = 7 * 24 * 3600  # seconds
SERVER = 8  # GPUs

# Hours between failures ---------------------------------------------------------------------------------------------


def _between(failures: int, days: int) -> float:
    return cost.observed_mtbf(failures, 24 * days)


def between_failures(gpus: int, failures: int, days: int) -> Number:
    """Hours from one failure of the job to the next."""
    right = _between(failures, days)
    slips = [
        (1 / right, "That is failures in an hour. Asked are hours for a failure."),
        (days / failures, "These are days."),
        (60 * right, "These are minutes."),
        (right * gpus, "That is one GPU. The job stops when any of them fails."),
        (right * gpus / SERVER, "That is one server. The job stops when any of them fails."),
    ]
    return Number.of(right, "hours", slips)


def of_one_server(gpus: int, failures: int, days: int) -> Number:
    """Years until one given server stops the job."""
    right = cost.unit_mtbf_of(_between(failures, days), gpus // SERVER) / YEAR
    slips = [
        (right * SERVER, "That is one GPU. A server has 8 of them, and fails 8 times as often."),
        (right * SERVER / gpus, "That is the whole job. A single server fails much more rarely."),
        (right * YEAR, "These are hours."),
        (right * YEAR / 24, "These are days."),
    ]
    return Number.of(right, "years", slips)


def clean_day(gpus: int, failures: int, days: int) -> Number:
    """Percent: the chance that a day goes by without a failure."""
    between = _between(failures, days)
    right = 100 * cost.survival_hours(between, 24)
    slips = [
        (100 - right, "That is the chance of at least one failure."),
        (100 * (1 - 24 / between), "Chances of separate hours multiply, they do not add up: that would be below 0."),
        (100 * math.exp(-between / 24), "Upside down: a day is many times as long as the time between failures."),
        (100 * math.exp(-1 / between), "That is one hour."),
        (0.0, "Nearly. But a chance is left: exp(-24 h / hours between failures)."),
    ]
    return Number.of(right, "%", slips)


def most_gpus(gpus: int, failures: int, days: int) -> Number:
    """GPUs on which half an hour lies between two failures."""
    between = _between(failures, days)
    slips = [
        (gpus * 0.5 / between, "Upside down: more GPUs fail more often."),
        (gpus * between, "With so many an hour lies between two failures."),
        (gpus * between / 30, "Half an hour, in hours: both times need the same unit."),
        (gpus * between / 0.5 / SERVER, "These are servers."),
    ]
    return Number.of(gpus * between / 0.5, "", slips)


# What to buy --------------------------------------------------------------------------------------------------------

CAUSES = ("frozen", "storage", "order", "lost")
SPLITS = {"joined": {"frozen", "storage"}, "count": {"lost"}, "ping": {"frozen"}, "calls": {"order"}}


def cases(prices: dict[str, int]) -> list[Case]:
    """The four cases, closed, each with evidence that says on which side of a split its cause is."""
    found = []
    for cause in CAUSES:
        evidence = []
        for id, side in SPLITS.items():
            left = side if cause in side else set(CAUSES) - side
            evidence.append(Evidence(id, id, prices[id], "", frozenset(Suspect(0, c) for c in left)))
        case = Case(cause, "", dict.fromkeys(CAUSES, ""), 1, evidence, Suspect(0, cause))
        case.give_up()
        found.append(case)
    return found


def _cheapest_first(prices: dict[str, int], stop: bool = True) -> float:
    """Mean minutes of who buys by price; stop: no further than until one suspect is left."""
    total = 0
    for cause in CAUSES:
        left = set(CAUSES)
        for id in sorted(prices, key=lambda id: prices[id]):
            if len(left) > 1 or not stop:
                total += prices[id]
                left &= SPLITS[id] if cause in SPLITS[id] else left - SPLITS[id]
    return total / len(CAUSES)


def cheapest_first(joined: int, count: int, ping: int, calls: int, percent: int) -> Number:
    """Mean minutes, the cheapest evidence first until one suspect is left."""
    prices = {"joined": joined, "count": count, "ping": ping, "calls": calls}
    slips = [
        (sum(prices.values()), "Who knows the cause stops buying. After which piece is that, for each cause?"),
        (joined + count + ping, "Two of the causes are known sooner: what is left of them after two pieces?"),
        (4 * _cheapest_first(prices), "That is all four cases together. Asked is the mean."),
        (best_plan(cases(prices)).mean, "That is the best plan. Here nobody plans: the next piece is the cheapest."),
    ]
    return Number.of(_cheapest_first(prices), "minutes", slips)


def in_hindsight(joined: int, count: int, ping: int, calls: int, percent: int) -> Number:
    """Mean minutes of the cheapest proof of each cause."""
    prices = {"joined": joined, "count": count, "ping": ping, "calls": calls}
    right = sum(case.perfect()[1] for case in cases(prices)) / 4
    slips = [
        (sum(min(prices[id] for id, side in SPLITS.items() if side == {c}) for c in ("frozen", "order", "lost")) / 4,
         "Storage needs proof as well: that it is none of the other three."),
        (4 * right, "That is all four cases together. Asked is the mean."),
        (best_plan(cases(prices)).mean, "That is a fair plan. Hindsight knows the cause, and only has to prove it."),
        ((ping + (ping + count + calls) + calls + count) / 4, "One piece rules out two of the causes at once."),
    ]  # fmt: skip
    return Number.of(right, "minutes", slips)


def fair_plan(joined: int, count: int, ping: int, calls: int, percent: int) -> Number:
    """Mean minutes of the best plan that does not know the cause."""
    prices = {"joined": joined, "count": count, "ping": ping, "calls": calls}
    right = best_plan(cases(prices)).mean
    slips = [
        (sum(case.perfect()[1] for case in cases(prices)) / 4, "That is hindsight: who buys does not know the cause."),
        (_cheapest_first(prices), "That is the cheapest first. What is the next piece worth buying after `joined`?"),
        (joined + ping, "After `joined` only half of the cases need `ping`."),
        (joined + (ping + max(count, calls)) / 2, "Nearly: for the other half there is cheaper evidence."),
        (ping + (count + calls) / 2, "After `joined`, one more piece is enough in every case."),
    ]
    return Number.of(right, "minutes", slips)


def guess_below(joined: int, count: int, ping: int, calls: int, percent: int) -> Number:
    """Minutes of a wrong verdict below which a guess is cheaper than `ping`."""
    slips = [
        (2.0 * ping, "That is for two causes that are equally likely."),
        (float(ping), "A guess is wrong only now and then."),
        (100 * ping / percent, "That is the chance of being right. A wrong verdict costs, a right one does not."),
        (ping * (100 - percent) / 100, "Upside down: the chance of a wrong verdict, times its price, is what a guess "
                                       "costs."),
    ]  # fmt: skip
    return Number.of(100 * ping / (100 - percent), "minutes", slips)


# A limit on waiting -------------------------------------------------------------------------------------------------


def _steps(step: int) -> int:
    return round(WEEK / step)


def alarms_a_week(step: int, deviation: int, ranks: int) -> Number:
    """Steps a week that a limit of five deviations stops for nothing."""
    limit, steps = step + 5 * deviation, _steps(step)
    right = cost.false_alarms(limit, step, deviation, ranks, steps)
    one = cost.false_alarms(limit, step, deviation, 1)
    slips = [
        (steps * one, "That is one rank. A step is stopped when any of them is late."),
        (right / steps, "That is the part of the steps. How many steps has a week?"),
        (ranks * one, "That is one step. How many has a week?"),
        (2 * right, "A rank that is early stops nothing: one side of the bell curve counts."),
        (right / 7, "That is a day."),
    ]
    return Number.of(right, "", slips, 0.02)


def limit_for_one(step: int, deviation: int, ranks: int) -> Number:
    """The shortest limit in seconds with one false alarm a week."""
    right = cost.deadline_for(step, deviation, ranks, _steps(step), 1)
    slips = [
        (cost.deadline_for(step, deviation, 1, _steps(step), 1), "That is enough for one rank."),
        (cost.deadline_for(step, deviation, ranks, 2, 1), "That stops every second step."),
        (step + 5 * deviation, "That is the limit of the first question."),
        (right - step, "That is what is added to a step."),
        (step + 3 * deviation, "Three deviations are exceeded by one rank in 741: by dozens of them in each step."),
    ]
    return Number.of(right, "s", slips, 0.005)


def price_of_sixty(step: int, deviation: int, ranks: int) -> Number:
    """GPU hours that a limit of 60 s costs more than that one, for each real hang."""
    limit = cost.deadline_for(step, deviation, ranks, _steps(step), 1)
    right = ranks * (60 - limit) / 3600
    slips = [
        (ranks * 60 / 3600, "That is the whole limit. How much longer is it than yours?"),
        (ranks * (60 - step) / 3600, "Compared with your limit, not with a step."),
        ((60 - limit) / 3600, "All ranks stand still."),
        (ranks * (60 - limit) / 60, "These are GPU minutes."),
        (ranks * limit / 3600, "That is what your own limit costs."),
    ]
    return Number.of(right, "GPU hours", slips, 0.02)


def limit_for_smoother(step: int, deviation: int, ranks: int) -> Number:
    """The limit that also stands 45 s more on all ranks."""
    limit = cost.deadline_for(step, deviation, ranks, _steps(step), 1)
    slips = [
        (step + 45, "That stops the step as soon as one rank is a little late."),
        (limit, "Every wait is measured by a clock. That all are late together does not help."),
        (60.0, "FT-HSDP had 60 s, and healthy replicas were declared dead."),
        (45 + 5 * deviation + step, "That has more than one false alarm a week."),
        (45.0, "They come on top of the step."),
    ]
    return Number.of(limit + 45, "s", slips, 0.005)


# A test of an hour --------------------------------------------------------------------------------------------------


def passes_test(one_in: int, steps: int, every: int) -> Number:
    """Percent of the bad hosts that pass a test."""
    right = 100 * (1 - 1 / one_in) ** steps
    slips = [
        (100 - right, "So many are found."),
        (100 * steps / one_in, "Chances of separate steps do not add up; and these would be found."),
        (100 * (1 - steps / one_in), "Nearly. Chances of separate steps multiply."),
        (100 * (1 - 1 / one_in), "That is a test of one step."),
        (0.0, "A bad host computes nearly all of its steps right."),
    ]
    return Number.of(right, "%", slips)


def steps_to_clear(one_in: int, steps: int, every: int) -> Number:
    """Clean steps in a row that clear a host with 99 percent confidence."""
    right = cost.runs_to_clear(1 / one_in, 0.99)
    slips = [
        (one_in, "So many steps it takes on average until a bad host shows. One in three would pass."),
        (cost.runs_to_clear(1 / one_in, 0.9), "That is a confidence of 90 percent."),
        (0.99 * one_in, "Chances of separate steps multiply, they do not add up."),
        (100 * one_in, "Fewer are enough: the chance to pass shrinks with every step, by the same part."),
    ]
    return Number.of(right, "steps", slips, 0.002)


def steps_by_then(one_in: int, steps: int, every: int) -> Number:
    """Steps of training until repeating one in `every` finds the host."""
    right = cost.steps_until_found(1 / one_in, every)
    slips = [
        (one_in, "That is when the first step is corrupted. It is found only if it is one of those done again."),
        (every, "That is how many steps are corrupted by then."),
        (one_in / every, "Who repeats less finds it later."),
        (one_in + every, "A repeated step must be a corrupted one: both chances multiply."),
    ]
    return Number.of(right, "steps", slips)


def corrupted_by_then(one_in: int, steps: int, every: int) -> Number:
    """How many of these steps are corrupted."""
    slips = [
        (1.0, "That is with every step done again."),
        (one_in, "How many of the steps until then does the host corrupt?"),
        (one_in * every, "That is all steps until then. The host corrupts a part of them."),
        (100 / every, "That is the extra work in percent."),
        (1 / every, "Upside down."),
    ]
    return Number.of(cost.corrupted_before_found(every), "steps", slips)


# How many it takes along --------------------------------------------------------------------------------------------


def before_averaging(dp: int, pp: int, failures: int, minutes: int) -> Number:
    """Ranks that stand still before anybody comes to the average of the gradients."""
    slips = [
        (SERVER, "That is the stage. Who waits for its activations and gradients?"),
        (pp, "Every stage has 8 ranks, and all of them wait."),
        (dp * pp * SERVER, "That is the end. Other replicas compute on until they come to the average."),
        (SERVER + dp - 1, "The average comes at the end of the backward pass. The pipeline stands still long before."),
        (pp * SERVER - 1, "The rank that hangs stands still, too."),
        (1, "Who shares a collective with it, or gets its messages?"),
    ]
    return Number.count(pp * SERVER, slips)


def hours_of_all(dp: int, pp: int, failures: int, minutes: int) -> Number:
    """GPU hours that one failure costs in the end."""
    world = dp * pp * SERVER
    slips = [
        (pp * SERVER * minutes / 60, "That is one replica. The others wait for it in the average."),
        (world * minutes, "These are GPU minutes."),
        (SERVER * minutes / 60, "That is one server."),
        (minutes / 60, "That is one GPU."),
    ]
    return Number.of(world * minutes / 60, "GPU hours", slips)


def percent_lost(dp: int, pp: int, failures: int, minutes: int) -> Number:
    """Percent of all GPU time that the failures of a day cost."""
    right = 100 * failures * minutes / 1440
    slips = [
        (100 * minutes / 1440, "That is one failure. A day has more."),
        (right / dp, "That would be if the other replicas went on."),
        (100 * failures * minutes / 60, "A day has 24 hours."),
        (100 - right, "That is what is left."),
    ]
    return Number.of(right, "%", slips)


def percent_alone(dp: int, pp: int, failures: int, minutes: int) -> Number:
    """The same if a failure stops its own replica alone."""
    right = 100 * failures * minutes / 1440
    slips = [
        (right, "That is with all replicas standing still."),
        (right / (dp * pp), "The whole replica stands still, all of its stages."),
        (right / (dp * pp * SERVER), "That would be the one GPU. Its replica stands still with it."),
        (right * (dp - 1) / dp, "That is what the others no longer lose."),
    ]
    return Number.of(right / dp, "%", slips)
