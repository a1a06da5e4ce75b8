"""Keys of chapter 21, a hundred thousand GPUs. Worked out here from combinations, exponentials and fractions; the tests
compare them with labkit.cost. Every slip is one that people make. Percentages, minutes, GPU-days."""

from __future__ import annotations

import math
from fractions import Fraction

from labkit.chapters.c21_hundred_thousand_gpus.checks import ACCOUNTS, OwnCluster, expected_out, own_cluster
from labkit.grading.answers import Choice, Listing, Number, Several

# Exactly so many -----------------------------------------------------------------------------------------------------

NARROW, WIDE, LARGER = 8, 16, 1000
FINE = 0.004  # tolerance where two models lie near each other


def _exact(gpus: int, failed: int, width: int) -> float:
    """The chance that none of `failed` GPUs is among `width`: by the failures, one after the other."""
    return float(math.prod(Fraction(gpus - width - i, gpus - i) for i in range(failed)))


def _each(gpus: int, failed: int, width: int) -> float:
    return (1 - failed / gpus) ** width


def exact_whole(gpus: int, failed: int) -> Number:
    """Percent of the domains of 8 that are whole, if exactly so many fail."""
    right = 100 * _exact(gpus, failed, NARROW)
    slips = [
        (100 * _each(gpus, failed, NARROW), "That is if each fails by itself. Here it is known how many fail."),
        (100 * (1 - failed * NARROW / gpus), "Two failures may meet in one domain: then fewer domains are hit."),
        (100 * (1 - failed / gpus), "That is the part of the GPUs that work. A whole domain needs all of its 8."),
        (100 - right, "Those are the domains that are hit."),
    ]
    return Number(right, "%", FINE, slips)


def each_whole(gpus: int, failed: int) -> Number:
    """The same if each GPU fails by itself."""
    right = 100 * _each(gpus, failed, NARROW)
    slips = [
        (100 * _exact(gpus, failed, NARROW), "That is with exactly so many. Here there may be more of them, or fewer."),
        (100 * (1 - failed * NARROW / gpus), "That counts domains twice in which two GPUs fail."),
        (100 * (1 - failed / gpus), "That is for one GPU. All 8 must work."),
        (100 - right, "Those are the domains that are hit."),
    ]
    return Number(right, "%", FINE, slips)


def apart_in_large(gpus: int, failed: int) -> Number:
    """Percentage points between the two, with 1,000 times as many GPUs and failures."""

    def between(times: int) -> float:
        gone, all_of_them = failed * times, gpus * times
        exact = math.prod((all_of_them - gone - i) / (all_of_them - i) for i in range(NARROW))  # by the GPUs
        return 100 * (_each(all_of_them, gone, NARROW) - exact)

    slips = [
        (between(1), "That is in the small cluster."),
        (between(LARGER) / 100, "Percentage points are asked for, not parts of one."),
        (between(1) / LARGER**0.5, "It shrinks faster than with a root. Compute both, with all digits."),
    ]
    return Number(between(LARGER), "", 0.02, slips)


def lost_with_wide(gpus: int, failed: int) -> Number:
    """GPUs in domains of 16 that are hit, if exactly so many fail."""
    right = gpus * (1 - _exact(gpus, failed, WIDE))
    slips = [
        (gpus * (1 - _exact(gpus, failed, NARROW)), "That is with domains of 8."),
        (float(failed * WIDE), "Failures may meet in one domain, and here they often do."),
        (gpus * (1 - _exact(gpus, failed, NARROW) ** 2), "The halves of a domain are not independent: see the letter."),
        (gpus * (1 - _each(gpus, failed, WIDE)), "Here it is known how many fail."),
        (gpus - right, "Those are the GPUs in whole domains."),
    ]
    return Number(right, "GPUs", FINE, slips)


def why_not_squared() -> Choice:
    """What is wrong with the square of the small domain's share."""
    why = {
        "a": "Try it with as many failures as there are GPUs outside of one small domain. Can both halves be whole?",
        "c": "That they may meet is in the small domain's share already.",
        "d": "A GPU does not know how wide its domain is. Each fails as often as before.",
    }
    return Choice("b", why)


# By the clock, or at random ------------------------------------------------------------------------------------------

STALL, RETURN, REPLICAS = 3.0, 100 / 60, 12  # minutes; as chapter 19 reads the paper
SECONDS = 60


def _random(every: float, restart: float, interval: float, write: float) -> float:
    """Percent kept at random. An interval with its write is tried until one is not hit.

    A try succeeds with e^-x, x its length over `every`; one that fails takes so long on average, and then a restart,
    which may be hit itself.
    """
    span = interval + write
    hit = -math.expm1(-span / every)
    while_hit = every - span * (1 - hit) / hit  # mean length of a try that is hit
    restarted = every * math.expm1(restart / every)  # mean length until a restart is not hit
    return 100 * interval / (span + hit / (1 - hit) * (while_hit + restarted))


def clock_kept(every: int, restart: int, interval: int, write: int) -> Number:
    """Percent kept, with a failure every `every` minutes sharp."""
    span, room = Fraction(interval) + Fraction(write, SECONDS), every - restart
    right = 100 * (room // span) * interval / every
    slips = [
        (100 * room / every, "What was trained after the last checkpoint is lost, and writing keeps nothing."),
        (100 * float(room / span) * interval / every, "Part of a checkpoint keeps nothing: count the whole ones."),
        (100 * (room // span) * interval / room, "Of *all* time: the restart is in it."),
    ]
    return Number(float(right), "%", slips=slips)


def random_kept(every: int, restart: int, interval: int, write: int) -> Number:
    """Percent kept at random."""
    w = write / SECONDS
    slips = [
        (100 * math.exp(-restart / every), "That would be with checkpoints that come without end and cost nothing."),
        (_random(every, restart, interval, 0.0), "Writing takes time, and a failure may strike meanwhile."),
        (_random(every, 0.0, interval, w), "After a failure comes a restart, which may be hit as well."),
        (
            100 / (1 + w / interval + (interval / 2 + restart) / every),
            "That is the first order, for restarts that are short against the time between failures. This one is not.",
        ),
        (
            100 * interval / every / math.expm1((interval + w) / every) * (1 - restart / every),
            "A restart may be hit as well, and then begins anew.",
        ),
    ]
    return Number(_random(every, restart, interval, w), "%", slips=slips)


def clock_best(every: int, restart: int, interval: int, write: int) -> Number:
    """The best interval by the clock, in minutes."""
    room, w = every - restart, write / SECONDS
    slips = [
        (float(room), "Then the failure comes before the checkpoint is written, and takes everything."),
        (math.sqrt(2 * w * every), "That is Young's, for failures at random. Here you know when they come."),
        (
            room / 2 - w,
            "That makes two checkpoints, and the first one protects nothing: no failure comes before the second.",
        ),
        (every - w, "After a failure there is a restart first."),
    ]
    return Number(room - w, "min", slips=slips)


def random_at_clock_best(every: int, restart: int, interval: int, write: int) -> Number:
    """Percent kept at random, with the interval that is best by the clock."""
    w = write / SECONDS
    best = every - restart - w
    slips = [
        (100 * best / every, "That is by the clock. At random a failure rarely waits for the checkpoint."),
        (_random(every, restart, interval, w), "That is with the first interval."),
        (100 * math.exp(-restart / every), "That would be with checkpoints that come without end and cost nothing."),
    ]
    return Number(_random(every, restart, best, w), "%", slips=slips)


def most_at_random(every: int, restart: int, interval: int, write: int) -> Number:
    """Percent that could be kept at random if checkpoints cost nothing and came without end."""
    slips = [
        (100 * (every - restart) / every, "That is by the clock. At random a restart may be hit, and gaps are uneven."),
        (100 * every / (every + restart), "A restart may be hit, and then begins anew."),
        (100 * -math.expm1(-restart / every), "That is the time in restarts."),
    ]
    return Number(100 * math.exp(-restart / every), "%", slips=slips)


def as_rare(every: int, restart: int, interval: int, write: int) -> Number:
    """Minutes between failures at which stopping all, by the clock, keeps what FT-HSDP does."""
    part = (REPLICAS - 1) / REPLICAS
    kept = (every - restart + (restart - STALL - RETURN) * part) / every
    free = (every - restart + (restart - STALL) * part) / every
    slips = [
        (
            restart / (1 - free),
            "That is without the stall of the return: 80 instead of 72 percent in the paper's case.",
        ),
        (every / (1 - kept), "What all wait for is the restart. Which part of the time may it be?"),
        (restart / kept, "That is the part that trains. Which part does not?"),
    ]
    return Number(restart / (1 - kept), "min", slips=slips)


def why_44() -> Choice:
    """What the part (every - restart) / every is at random."""
    why = {
        "a": "At random a fleet could keep more than that, if its checkpoints were free: see your fifth number.",
        "b": "With checkpoints as they are it may keep less. Make the interval longer, and look.",
        "d": "The mean number of failures is the same. But what they hit is not.",
    }
    return Choice("c", why)


# Whole samples -------------------------------------------------------------------------------------------------------

FULL = 32


def _fewer(width: int, samples: int) -> int:
    return samples * width // FULL


def _same_batch(width: int, samples: int, replicas: int, narrow: int) -> Fraction:
    """The shortest step with the whole batch, in times of one sample on a whole replica: tried one after the other."""
    pace = Fraction(width, FULL)
    ends = {Fraction(i) for i in range(1, 3 * samples)} | {i / pace for i in range(1, 3 * samples)}
    for end in sorted(ends):
        if (replicas - narrow) * int(end) + narrow * int(end * pace) >= replicas * samples:
            return end
    raise AssertionError("three times as long is enough for any replica of half the width")


def _idle(width: int, samples: int) -> Fraction:
    could = Fraction(samples * width, FULL)
    return 1 - int(could) / could


def lost_if_all_wait(width: int, samples: int, replicas: int, narrow: int, below: int) -> Number:
    """Percent of the throughput, if narrow replicas keep all their samples."""
    right = 100 * (1 - width / FULL)
    slips = [
        (100 * (FULL / width - 1), "So much longer is a step. Throughput is samples over time."),
        (right * narrow / replicas, "Not only the narrow ones are late: all wait for them at the end of each step."),
        (100 * narrow / replicas, "That is if they are dropped."),
    ]
    return Number(right, "%", slips=slips)


def lost_with_fewer(width: int, samples: int, replicas: int, narrow: int, below: int) -> Number:
    """Percent of the samples, if narrow replicas train the whole samples that they can."""
    part = (samples - _fewer(width, samples)) / samples
    slips = [
        (100 * narrow / replicas * (1 - width / FULL), "Samples are whole, so they train fewer than that."),
        (100 * part, "That is what a narrow replica loses. The others lose nothing."),
        (100 * narrow / replicas, "That is if they are dropped."),
        (100 * (1 - width / FULL), "That is if all wait for them."),
    ]
    return Number(100 * narrow / replicas * part, "%", slips=slips)


def same_batch_step(width: int, samples: int, replicas: int, narrow: int, below: int) -> Number:
    """How many times as long the shortest step with the whole batch is."""
    right = float(_same_batch(width, samples, replicas, narrow) / samples)
    fluid = replicas / (replicas - narrow * (1 - width / FULL))
    slips = [
        (fluid, "That would be with samples that can be cut. Who takes the next whole one?"),
        (replicas * samples / (replicas * samples - narrow * (samples - _fewer(width, samples))),
         "The missing samples must be trained by somebody, and those are whole."),
        (max(FULL / width, (samples + 1) / samples), "The other way is shorter. Compare the two."),
    ]  # fmt: skip
    return Number(right, "times", 0.004, slips)


def who_is_last(width: int, samples: int, replicas: int, narrow: int, below: int) -> Choice:
    """Who ends that step: it depends on the numbers."""
    keeps = _same_batch(width, samples, replicas, narrow) < samples + 1
    why = {
        "a": "Keeping all its samples takes a narrow replica longer than one more sample takes a whole one.",
        "b": "One more sample takes a whole replica longer than a narrow one needs for all of its own.",
        "c": "Times of whole samples at two speeds rarely meet. Compare the two times.",
        "d": "With a sample less, the batch is not whole, unless somebody else trains it.",
    }
    right = "a" if keeps else "b"
    return Choice(right, {letter: text for letter, text in why.items() if letter != right})


def first_batch(width: int, samples: int, replicas: int, narrow: int, below: int) -> Number:
    """The fewest samples of a replica for which a narrow one idles less than `below` percent."""
    limit, right = Fraction(below, 100), 1
    while _idle(width, right) >= limit:
        right += 1
    slips = [
        (_always(width, below), "From there on it always holds. Does it hold for fewer, too?"),
        (_certain(width, below), "There it must hold, since less than a whole sample is lost. Try fewer, one by one."),
        (right - 1, "There it is still as much, or more."),
    ]
    return Number.count(right, slips)


def always_batch(width: int, samples: int, replicas: int, narrow: int, below: int) -> Number:
    """The fewest samples from which on it always holds."""
    right = _always(width, below)
    first = next(i for i in range(1, right + 1) if _idle(width, i) < Fraction(below, 100))
    slips = [
        (first, "Try the next ones: it does not hold for all of them."),
        (_certain(width, below), "That is certain, but it holds for some fewer already."),
        (right - 1, "Just there it does not hold."),
    ]
    return Number.count(right, slips)


def _certain(width: int, below: int) -> int:
    """Less than one sample is lost: from so many on that is less than `below` percent of what could be trained."""
    return math.floor(Fraction(100 * FULL, below * width)) + 1


def _always(width: int, below: int) -> int:
    found = _certain(width, below)
    while found > 1 and _idle(width, found - 1) < Fraction(below, 100):
        found -= 1
    return found


# Borrowed power ------------------------------------------------------------------------------------------------------

POINTS = {110: 0.028, 120: 0.065}  # percent of the power -> part of the performance per watt that is lost (001)


def _constant(power: int) -> float:
    """q of P = q + (1 - q) s^3 through one of the paper's points."""
    more = power / 100
    speed = more * (1 - POINTS[power])
    return 1 - (more - 1) / (speed**3 - 1)


def _asked(gpus: int, failed: int) -> float:
    return gpus / (gpus - failed)


def _power(gpus: int, failed: int, q: float) -> float:
    return q + (1 - q) * _asked(gpus, failed) ** 3


def constant_part(gpus: int, failed: int, power: int, samples: int) -> Number:
    """Percent of the power that does not depend on the speed."""
    more, q = power / 100, _constant(power)
    slips = [
        (100 * (1 - (more - 1) / (more**3 - 1)), "At so much power it is not as much faster: watts do less there."),
        (100 * (1 - q), "That is the part that grows with the speed."),
        (100 * (1 - (more - 1) / (more * (1 - POINTS[power]) - 1)), "The law has the cube of the speed."),
    ]
    return Number(100 * q, "%", slips=slips)


def power_each(gpus: int, failed: int, power: int, samples: int) -> Number:
    """Times the usual power, for a GPU of a domain that keeps pace."""
    x = _asked(gpus, failed)
    slips = [
        (x, "That is the speed. The power grows faster."),
        (x**3, "Part of the power does not depend on the speed."),
        (1.0, "They must be faster than usual."),
    ]
    return Number(_power(gpus, failed, _constant(power)), "times", 0.003, slips)


def power_domain(gpus: int, failed: int, power: int, samples: int) -> Number:
    """The power of the whole domain over that without failures."""
    x, each = _asked(gpus, failed), _power(gpus, failed, _constant(power))
    slips = [
        (1.0, "That is what the article says. Add up what the GPUs draw that are left."),
        (each, "That is one GPU. There are fewer of them now."),
        (x**2, "Part of the power does not depend on the speed."),
    ]
    return Number(each / x, "times", 0.003, slips)


def _in_budget(gpus: int, failed: int, power: int) -> float:
    q, x = _constant(power), _asked(gpus, failed)
    return ((x - q) / (1 - q)) ** (1 / 3) / x


def speed_in_budget(gpus: int, failed: int, power: int, samples: int) -> Number:
    """Percent of the usual speed, of a domain that draws what it drew before."""
    right = 100 * _in_budget(gpus, failed, power)
    slips = [
        (100.0, "Then speed would grow as power does."),
        (100 * (gpus - failed) / gpus, "That is without more power. They have what the failed ones leave."),
        (right * _asked(gpus, failed), "So fast is one GPU. The domain has fewer of them."),
    ]
    return Number(right, "%", 0.003, slips)


def samples_in_budget(gpus: int, failed: int, power: int, samples: int) -> Number:
    """Whole samples of such a replica, while others train `samples`."""
    could = samples * _in_budget(gpus, failed, power)
    slips = [
        (samples, "It is a little too slow for that, and samples are whole."),
        (could, "Samples are whole."),
    ]
    return Number.count(math.floor(could), slips)


def least_constant(gpus: int, failed: int, power: int, samples: int) -> Number:
    """Percent that would have to be constant, so that the budget suffices."""
    x = _asked(gpus, failed)
    part = 1 / (x * x + x + 1)
    slips = [
        (100 * part, "That is the part that may grow with the speed."),
        (200 / 3, "That is the limit for ever fewer failures. With yours it is more."),
        (100 * _constant(power), "With that the budget does not suffice: see your third number."),
    ]
    return Number(100 * (1 - part), "%", 0.005, slips)


def when_it_suffices() -> Choice:
    """What must hold so that the power of the failed GPUs suffices."""
    why = {
        "a": "With more of them failed, the others have more power, but must be faster as well.",
        "c": "The limit of a GPU is another question. In your third number no GPU is near it, and it does not suffice.",
        "d": "They do stop: that is what the boost lives on. It is not enough.",
    }
    return Choice("b", why)


# A cluster of your own -----------------------------------------------------------------------------------------------


def _own(repair: int, samples: int, drawings: int, seed: int) -> OwnCluster:
    return own_cluster(repair, samples, drawings, seed)


def own_losses(repair: int, samples: int, drawings: int, seed: int) -> Listing:
    """Percent lost by dropping, and by narrowing."""
    runs = _own(repair, samples, drawings, seed).by_method
    drop, ntp = (100 * runs[method].loss.mean for method in ("dp-drop", "ntp"))
    worst = [100 * runs[method].worst.mean for method in ("dp-drop", "ntp")]
    return Listing([
        Number.of(drop, "%", [(ntp, "That is by narrowing."), (worst[0], "That is at the worst time.")], 0.002),
        Number.of(ntp, "%", [(drop, "That is by dropping."), (worst[1], "That is at the worst time.")], 0.002),
    ])  # fmt: skip


def one_drawing(repair: int, samples: int, drawings: int, seed: int) -> Number:
    """The standard deviation of one drawing's loss by dropping, in percentage points."""
    loss = _own(repair, samples, drawings, seed).by_method["dp-drop"].loss
    right = 100 * loss.error * math.sqrt(drawings)
    slips = [
        (100 * loss.error, "That is how well the *mean* is known. Single drawings lie further apart."),
        (100 * loss.error * drawings, "Errors of a mean shrink with the root of the number of drawings."),
        (100 * (loss.highest - loss.lowest), "That is from the lowest to the highest. How far is one from the mean?"),
    ]
    return Number.of(right, "", slips)


def drawings_needed(repair: int, samples: int, drawings: int, seed: int) -> Number:
    """Drawings for a standard error of 0.01 points."""
    error = 100 * _own(repair, samples, drawings, seed).by_method["dp-drop"].loss.error
    slips = [
        (drawings * error / 0.01, "Four times as many drawings halve an error: it goes with the root."),
        ((error / 0.01) ** 2, "So many times as many as you have."),
    ]
    return Number.of(drawings * (error / 0.01) ** 2, "", slips, 0.02)


def own_accounts(repair: int, samples: int, drawings: int, seed: int) -> Listing:
    """GPU-days by narrowing: useful, waiting, idle, stranded, failed."""
    runs = _own(repair, samples, drawings, seed).by_method
    kept, dropped, boosted = (runs[method].gpu_days for method in ("ntp", "dp-drop", "ntp-pw"))
    keys = []
    for name in ACCOUNTS:
        slips = [(dropped[name], f"{name}: that is by dropping."), (boosted[name], f"{name}: that is with more power.")]
        keys.append(Number.of(kept[name], "", slips, 0.002))
    return Listing(keys)


def from_power(repair: int, samples: int, drawings: int, seed: int) -> Number:
    """GPU-days by which the accounts with more power are too many."""
    days = _own(repair, samples, drawings, seed).by_method["ntp-pw"].gpu_days
    without = sum(days[name] for name in ACCOUNTS) - days["failed"]
    slips = [
        (without, "That is the sum without those in repair."),
        (-days["boosted"], "The sum is more than all GPU-days, not less."),
        (0.0, "Add up the five of NTP-PW, those in repair too, and compare with all GPU-days."),
    ]
    return Number(days["boosted"], "", 0.01, slips)


def out_by_formula(repair: int, samples: int, drawings: int, seed: int) -> Number:
    """GPU-days in repair, expected, if all work at first."""
    right = expected_out(repair)
    rate = 32_768 * 419 / 54 / 16_384
    slips = [
        (15 * rate * (0.78 * repair + 0.22 / 8), "That is if as many are repaired as fail from the first day on."),
        (rate * (0.78 * repair + 0.22 / 8), "So many are in repair at a time, later on. How many GPU-days are that?"),
        (15 * rate, "That is the number of failures. How long is each GPU out?"),
        (_own(repair, samples, drawings, seed).out.mean, "That was drawn. What is expected, without drawing?"),
    ]
    return Number.of(right, "", slips, 0.002)


def what_it_supports() -> Several:
    """Which sentences the run supports."""
    why = {
        "a": "That is what a standard error says: about luck, with these inputs.",
        "b": "The ± is about luck alone. Whether rates and repairs are those of a real cluster, no drawing shows.",
        "c": "If they did not add up, a GPU would be counted twice, or lost.",
        "d": "They add up with any repair time that you put in.",
        "e": "What both are given, both can have wrong. What is compared is the drawing and the adding up.",
    }
    return Several("ace", why)
