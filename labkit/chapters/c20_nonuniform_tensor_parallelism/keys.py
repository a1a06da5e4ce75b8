"""Keys of chapter 20, nonuniform tensor parallelism. Counts are made here, by other ways than those of `labkit.cost`
where a student may call that; every slip is one that people make. Shares are percentages."""

from __future__ import annotations

import math
from fractions import Fraction

from labkit.chapters.c20_nonuniform_tensor_parallelism import checks as own
from labkit.cost.failures.boost import PAPER_POINTS
from labkit.grading.answers import Choice, Key, Listing, Number, Several

# What a failure idles -------------------------------------------------------------------------------------------------

FLEET, NODE = 32_768, 4


def _groups_hit(groups: int, failures: int, each: int) -> float:
    """Expected groups with a failure, if `failures` different ones of `groups * each` places fail by chance.

    One group is spared if all failures fall on the other places: a product, failure by failure.
    """
    places = groups * each
    return groups * (1 - math.prod((places - each - i) / (places - i) for i in range(failures)))


def idle_by_chance(width: int, failed: int, spare: int) -> Number:
    """Healthy GPUs without work, expected, if the failed ones are anywhere."""
    groups = FLEET // width
    right = width * _groups_hit(groups, failed, width) - failed
    slips = [
        (right + failed, "The failed GPUs are in it. How many *healthy* ones are idle?"),
        (failed * (width - 1.0), "Some groups have two failures or more. They are idle once."),
        (float(failed * width), "The failed GPUs are in it, and groups with two failures are in it twice."),
        (FLEET - right - failed, "Those are the GPUs that work."),
        (right / FLEET, "How many GPUs? That is their share of all."),
    ]
    return Number.of(right, "", slips, tolerance=0.005)


def where_the_rule_breaks() -> Choice:
    """Why failed * (width - 1) is too much."""
    why = {
        "a": "It takes them out: a failure idles the `width` - 1 others of its group.",
        "c": "It holds for each single failure, whatever the width is. What is different with many of them?",
        "d": "They are independent here. Look at a group that has two of them.",
    }
    return Choice("b", why)


def idle_by_nodes(width: int, failed: int, spare: int) -> Number:
    """The same if whole nodes of 4 fail."""
    right = width * _groups_hit(FLEET // width, failed // NODE, width // NODE) - failed
    slips = [
        (idle_by_chance(width, failed, spare).answer, "That is if each GPU fails by itself."),
        (right + failed, "The failed GPUs are in it. How many *healthy* ones are idle?"),
        (failed / NODE * (width - NODE), "Some groups have two failed nodes or more. They are idle once."),
        (right + failed - failed / NODE, "A node has 4 GPUs, and all of them have failed."),
    ]
    return Number.of(right, "", slips, tolerance=0.005)


def idle_at_least(width: int, failed: int, spare: int) -> Number:
    """Healthy GPUs without work, if failures lie as closely as they can."""
    groups = -(-failed // width)
    slips = [
        (groups * width, "The failed GPUs are in it. How many *healthy* ones are idle?"),
        (failed * (width - 1), "That is if each is in a group of its own: the worst case."),
        (width - 1, "So many failures do not fit into one group."),
        (groups, "That is groups. How many GPUs of them are healthy?"),
    ]
    if groups * width != failed:
        slips.append((0, "One group is not filled up with failures. Its healthy GPUs are idle."))
    return Number.count(groups * width - failed, slips)


def pays_from(width: int, failed: int, spare: int) -> Number:
    """Percent of GPUs that have failed, from which a group that leaves `spare` GPUs of its domain loses less."""
    domain = width + spare
    right = 100 * -math.expm1(math.log(width / domain) / domain)
    slips = [
        (100 * spare / domain, "So much do the spare GPUs cost. How many must fail until whole domains lose it?"),
        (100 * spare / domain**2, "Nearly: but wide groups with two failures are lost once only. Use the power."),
        (100 * -math.expm1(math.log(width / domain) / width), "A group of a whole domain has all of its GPUs."),
        (100 * -math.expm1(math.log(1 - spare / width) / domain), "The spare GPUs are a part of the whole domain."),
        (right / 100, "In percent, please."),
    ]  # fmt: skip
    return Number.of(right, "%", slips)


# A plain cut and the map ----------------------------------------------------------------------------------------------

GRADIENT = 2  # bytes, bf16


def pairs_of_a_plain_cut(wide: int, lost: int, billions: int) -> Number:
    """Pairs of ranks that share columns."""
    narrow = wide - lost
    slips = [
        (wide + narrow, "Where two edges lie on each other, a pair less. They do so at the end, at least."),
        (wide + narrow - 1, "Do the two cuts meet anywhere before the end?"),
        (2 * narrow, "That is the article's way of counting. It is right for 32 and 30. Draw both cuts."),
        (narrow, "That is with the shard map."),
        (wide * narrow, "Most ranks share nothing. Draw both cuts."),
        (wide, "A stretch that lies over an edge of the other cut has two partners."),
    ]
    return Number.count(wide + narrow - math.gcd(wide, narrow), slips)


def smallest_part(wide: int, lost: int, billions: int) -> Number:
    """The map's message over the smallest of a plain cut."""
    narrow = wide - lost
    together = math.gcd(wide, narrow)
    slips = [
        (wide * narrow // together, "So many of the smallest make the whole layer. How many make one message?"),
        (narrow // together, "That is a stretch of the *whole* replica over it. The map has those of the other."),
        (wide * narrow, "Have the two numbers a common divisor? And compare with one message, not with all columns."),
        (wide / lost, "That is the first part that is cut off. Others are smaller: which two edges are nearest?"),
    ]  # fmt: skip
    if together > 1:
        slips.append((wide, "The two numbers have a common divisor: the edges meet sooner, and lie less close."))
    return Number.count(wide // together, slips)


def _gigabytes(billions: int) -> float:
    return float(GRADIENT * billions)


def over_the_slow_link(wide: int, lost: int, billions: int) -> Number:
    """GB that a GPU of the narrow replica sends to the other replica."""
    whole, narrow = _gigabytes(billions), wide - lost
    slips = [
        (whole / wide, "So much has a GPU of the whole replica. The narrow one has fewer GPUs for the same model."),
        (whole / narrow / GRADIENT, "A number of bf16 has two bytes."),
        (2 * whole / narrow, "A number of bf16 has two bytes, and with two replicas each GPU sends its part once."),
        (whole, "Each GPU sends its own part only."),
    ]
    return Number.of(whole / narrow, "GB", slips)


def from_an_extra_rank(wide: int, lost: int, billions: int) -> Number:
    """GB that one extra rank sends before the sum."""
    whole, narrow = _gigabytes(billions), wide - lost
    slips = [
        (whole * lost / wide, "All extra ranks send that together."),
        (whole * lost / wide / narrow, "So much *gets* an owner."),
        (whole / narrow, "That is a stretch of the sync layout. An extra rank computes with $1/N_1$, as all others."),
        (whole / wide / narrow, "So much it sends to *one* of the owners."),
        (2 * whole / wide, "Before the sum it only sends. Afterwards it gets as much."),
    ]  # fmt: skip
    return Number.of(whole / wide, "GB", slips)


def fast_over_slow(wide: int, lost: int, billions: int) -> Number:
    """How many times as fast the links inside must be, for a trip of at most a tenth of the sum."""
    narrow = wide - lost
    slips = [
        (10.0, "Nearly: but the extra rank sends less than a GPU of the narrow replica."),
        (10 * wide / narrow, "Upside down: which of the two has more to send?"),
        (10 * lost / wide, "That is enough for the owners. Who has more to carry than they?"),
        (narrow / wide, "Then the trip takes as long as the sum. It should take a tenth."),
        (narrow / wide / 10, "Which one must be faster?"),
    ]
    return Number.of(10 * narrow / wide, "times", slips)


def narrowest_link() -> Choice:
    """Which link decides how long the bytes of the sum need."""
    why = {
        "a": "An extra rank has no partner in the other replica: its slow link is idle with the map.",
        "b": "It has fewer bytes than a GPU of the narrow replica, with either cut. And each byte has two ends.",
        "d": "All columns go to the narrow replica once, with either cut. How many GPUs share them there?",
    }
    return Choice("c", why)


# Whole heads, whole samples -------------------------------------------------------------------------------------------

FULL, SAMPLES = 32, 64  # GPUs of a domain; samples that a whole replica trains in a step


def most_heads(width: int, heads: int, kv: int, attention: int) -> Number:
    """Heads of the slowest rank."""
    slips = [
        (heads // width, "Some heads are left over, and somebody has to take them."),
        (heads // FULL, "That is on 32 GPUs."),
        (heads / width, "Heads are whole."),
    ]
    return Number.count(math.ceil(heads / width), slips)


def most_heads_with_groups(width: int, heads: int, kv: int, attention: int) -> Number:
    """The same if `kv` groups of heads share their keys and values, and stay together."""
    slips = [
        (math.ceil(heads / width), "That would tear groups apart. Deal out groups."),
        (math.ceil(kv / width), "That is groups. How many heads has each?"),
        (kv // width * (heads // kv), "Some groups are left over, and somebody has to take them."),
        (heads / width, "Groups are whole."),
    ]
    return Number.count(math.ceil(kv / width) * (heads // kv), slips)


def _longer(width: int, most: int, heads: int, attention: int) -> Fraction:
    """How much longer a layer takes on the slowest rank than on 32 GPUs."""
    part = Fraction(attention, 100)
    return part * Fraction(most * FULL, heads) + (1 - part) * Fraction(FULL, width)


def samples_in_step(width: int, heads: int, kv: int, attention: int) -> Number:
    """Whole samples of the narrow replica that take no longer than 64 on a whole one; each head has its own keys."""
    longer = _longer(width, math.ceil(heads / width), heads, attention)
    right = math.floor(SAMPLES / longer)
    groups = math.ceil(kv / width) * (heads // kv)
    slips = [
        (SAMPLES * width // FULL, "That is if all work were cut evenly. Heads are not."),
        (math.floor(SAMPLES * Fraction(heads, FULL * math.ceil(heads / width))),
         "That is if all work were in heads. The feed-forward part is cut evenly."),
        (right + 1, "Then the others would wait for it. Round down."),
        (float(SAMPLES / longer), "Samples are whole."),
        (math.floor(SAMPLES / _longer(width, groups, heads, attention)), "Here each head has its own keys and values."),
    ]  # fmt: skip
    return Number.count(right, slips)


def speed_for_all(width: int, heads: int, kv: int, attention: int) -> Number:
    """How many times as fast the GPUs must be to train all 64 samples in time."""
    right = float(_longer(width, math.ceil(heads / width), heads, attention))
    slips = [
        (FULL / width, "That is if all work were cut evenly. Heads are not."),
        (float(Fraction(FULL * math.ceil(heads / width), heads)), "Only a part of the work is in heads."),
        (1 / right, "That is the speed that it has without a boost. How many times as fast must it become?"),
        (SAMPLES / math.floor(SAMPLES / right), "Not rounded to whole samples: it shall train all of them."),
    ]
    return Number.of(right, "times", slips, tolerance=0.005)


def _power_for(speed: float) -> float:
    """The power at which a GPU is so fast. Its loss is a p + b p^2 at 1 + p, through the two points of the paper.

    Found by halving the step, from the usual power upwards.
    """
    (one, lost), (other, more) = ((power - 1, loss) for power, loss in PAPER_POINTS[1:])
    b = (more / other - lost / one) / (other - one)
    a = lost / one - b * one
    power, step = 0.0, 0.5
    while step > 1e-12:
        if (1 + power + step) * (1 - a * (power + step) - b * (power + step) ** 2) <= speed:
            power += step
        step /= 2
    return 1 + power


def more_than_before(width: int, heads: int, kv: int, attention: int) -> Number:
    """Percent by which a domain draws more, if `width` GPUs do the even work of 32."""
    power = _power_for(FULL / width)
    right = 100 * (width * power / FULL - 1)
    slips = [
        (0.0, "That is what the article says. With more power a GPU does less for each watt."),
        (100 * (power - 1), "So much more draws one GPU. But there are fewer of them."),
        (100 * width * power / FULL, "That is all of it. How much *more* than before?"),
        (100 * (FULL / width - 1), "So much faster must each be. Speed is not power."),
    ]
    return Number.of(right, "%", slips, tolerance=0.02)


def why_not_the_same_power() -> Choice:
    """Why the power of the failed GPUs does not suffice."""
    why = {
        "a": "They draw nothing. Their share is given to the others, and yet it is too little.",
        "c": "The comparison is for even work. What does a watt do at 1.1 times the power?",
        "d": "Only the domain that has lost GPUs is boosted.",
    }
    return Choice("b", why)


# Packed or not --------------------------------------------------------------------------------------------------------

REPLICAS, DOMAINS_OF_ONE = 16, 8
ALL_DOMAINS = REPLICAS * DOMAINS_OF_ONE


def _packed(one: int, two: int) -> list[list[int]]:
    """Failed GPUs of the domains of each replica, the worst first."""
    failed = [2] * two + [1] * one + [0] * (ALL_DOMAINS - one - two)
    return [failed[i : i + DOMAINS_OF_ONE] for i in range(0, ALL_DOMAINS, DOMAINS_OF_ONE)]


def _missing(one: int, two: int) -> int:
    """Samples that the packed replicas miss together."""
    return sum(max(replica) for replica in _packed(one, two))


def lost_in_place(one: int, two: int, gpus: int) -> Number:
    """Percent of the throughput, NTP, each failure in another replica."""
    right = 100 * (one + 2 * two) / (REPLICAS * gpus)
    slips = [
        (right / DOMAINS_OF_ONE, "That is the share of GPUs that failed. All stages of a replica are as narrow."),
        (100 * (one + two) / REPLICAS, "That is if each replica with a failure is dropped."),
        (100 * (one + two) / (REPLICAS * gpus), "Where two GPUs failed, a replica loses two samples."),
        (100 - right, "That is what is left."),
    ]  # fmt: skip
    return Number.of(right, "%", slips)


def lost_if_packed(one: int, two: int, gpus: int) -> Number:
    """Percent of the throughput, NTP, the worst domains together."""
    narrow = -(-(one + two) // DOMAINS_OF_ONE)
    right = 100 * _missing(one, two) / (REPLICAS * gpus)
    slips = [
        (lost_in_place(one, two, gpus).answer, "That is without packing."),
        (100 * (one + 2 * two) / (ALL_DOMAINS * gpus), "That is the share of GPUs that failed. Some others idle."),
        (100 * narrow / REPLICAS, "That is if the narrow replicas are dropped."),
        (100 * 2 * narrow / (REPLICAS * gpus), "In the last narrow replica no domain has lost two."),
        (100 * narrow / (REPLICAS * gpus), "The first replica is as narrow as its worst domain, which has lost two."),
    ]
    return Number.of(right, "%", slips)


def idle_and_healthy(one: int, two: int, gpus: int) -> Number:
    """Healthy GPUs that their replica is too narrow for, packed."""
    replicas = _packed(one, two)
    right = sum(max(replica) - failed for replica in replicas for failed in replica)
    whole = sum(max(replica) for replica in replicas for failed in replica if not failed)
    slips = [
        (right + one + 2 * two, "The failed ones are in it."),
        (whole, "A domain that has lost one GPU is too wide as well, beside one that has lost two."),
        (right - whole, "In the last narrow replica there are whole domains. They are too wide as well."),
        (one + 2 * two, "Those have failed."),
        (0, "Two narrow replicas have more domains than are broken, and not all are broken alike."),
    ]
    return Number.count(right, slips)


def spares_to_drop(one: int, two: int, gpus: int) -> Number:
    """Spare domains with which dp-drop trains the whole batch."""
    narrow = -(-(one + two) // DOMAINS_OF_ONE)
    slips = [
        (narrow * DOMAINS_OF_ONE, "The dropped replicas have whole domains, too. The manager can use them elsewhere."),
        (one + 2 * two, "A domain that has lost two is replaced once."),
        (narrow, "A replica has 8 domains."),
        (DOMAINS_OF_ONE, "One more replica is not enough: two are dropped."),
    ]
    return Number.count(one + two, slips)


def spares_to_narrow(one: int, two: int, gpus: int) -> Number:
    """Spare domains with which NTP trains the whole batch."""
    slips = [
        (one + two, "Narrow replicas may stay, if somebody trains what they miss. How much is that?"),
        (_missing(one, two), "So many samples are missing. Who could train them?"),
        (1, "One more replica. How many domains has it?"),
        (2 * DOMAINS_OF_ONE, "Two narrow replicas miss far less than two whole ones train."),
        (0, "Without a boost the narrow replicas train less."),
    ]
    return Number.count(DOMAINS_OF_ONE, slips)


def when_no_more_is_lost() -> Choice:
    """When packed NTP loses the share of failed GPUs and nothing else."""
    why = {
        "a": "Whole samples are met here in any case. Idle GPUs are not.",
        "b": "Then 8 of them fill a replica if they are packed. But what if there are 12 of them?",
        "d": "Spares bring samples. They do not change which GPUs idle.",
    }
    return Choice("c", why)


# The explanation ------------------------------------------------------------------------------------------------------


def _ascending(numbers: list[int], why: str) -> Key:
    return Listing([Number.count(number, [(other, why) for other in range(12)]) for number in numbers])


def heads_of_the_extra(lost: int, step: int, heads: int, batch: int) -> Key:
    """The heads with which the last rank of the whole replica computes while the other one is narrow."""
    right = sorted(own.of_the_whole(heads, own.WIDTH - 1))
    why = "First cut the heads into two stretches. The first two ranks keep the beginning of theirs, a third of all."
    return _ascending(right, why)


def weight_while_narrow(lost: int, step: int, heads: int, batch: int) -> Number:
    """The weight of the narrow replica's gradient."""
    whole, narrow = own.examples_of(lost, batch)
    slips = [
        (0.5, "That would be right with as many examples in both replicas."),
        ((own.WIDTH - 1) / (2 * own.WIDTH - 1), "That is its part of the ranks. Count examples."),
        (whole / batch, "That is the weight of the whole replica."),
        (narrow / whole, "The weights of both must sum to one."),
    ]
    return Number.of(narrow / batch, "", slips, tolerance=0.005)


def bytes_that_crossed(lost: int, step: int, heads: int, batch: int) -> Number:
    """Bytes of state that one replica sent to the other when the rank was lost."""
    moved = own.state_moved(lost, heads)
    right = sum(n for (a, b), n in moved.items() if a // own.WIDTH != b // own.WIDTH)
    slips = [
        (sum(moved.values()), "That is all that moved. Most of it stayed inside a replica."),
        (sum(moved.values()) - right, "That stayed inside a replica."),
        (right / 3, "Weights and both moments were lost."),
        (sum(n for (_, b), n in moved.items() if b // own.WIDTH == lost // own.WIDTH),
         "Some of it came from a rank of the same replica."),
    ]  # fmt: skip
    return Number.of(float(right), "bytes", slips, tolerance=0.001)


def never_with_the_extra(lost: int, step: int, heads: int, batch: int) -> Key:
    """The ranks that must not be lost together with the last rank of the whole replica."""
    whole, _ = own.ranks_of(lost)
    why = "Which ranks of the *other* replica hold a shard that it holds? And who else has that shard?"
    return _ascending(own.ends_with(lost, whole[-1], heads), why)


def never_with_the_first(lost: int, step: int, heads: int, batch: int) -> Key:
    """The ranks that must not be lost together with the first rank of the whole replica."""
    whole, _ = own.ranks_of(lost)
    why = "It holds the beginning of a stretch of the sync layout. Which rank of the other replica holds that?"
    return _ascending(own.ends_with(lost, whole[0], heads), why)


def what_changes_the_loss() -> Several:
    """Which changes of the run change its loss by more than the rounding."""
    why = {
        "a": "Its shards are in the other replica, as those of any rank. Nothing is lost for good.",
        "b": "The mean over all examples is a mean with these weights. Then they are right.",
        "c": "Then an example of the narrow replica counts more than one of the other.",
        "d": "The next update of the lost shards divides by another root, and goes another way.",
        "e": "Where a shard lies changes no sum.",
    }
    return Several("cd", why)
