"""What chapter 8 says of its runs: sentences whose truth depends on a result are made from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labkit import book
from labkit.book.reading.conclusions import Conclusion
from labkit.chapters.c08_loose_synchrony import drawings
from labkit.chapters.c08_loose_synchrony.methods import Race
from labkit.chapters.c08_loose_synchrony.task import LATE, Served

Points = Sequence[tuple[float, float]]


def pace(runs: Mapping[str, Mapping[str, Served]], answered: Callable[..., Any], s: int) -> Conclusion:
    """What a bound on the lead brings where lateness wanders and where it does not, and the bound on staleness."""
    speed = {late: {p: served.updates() / served.seconds for p, served in some.items()} for late, some in runs.items()}
    some, same = (speed[late]["SSP"] / speed[late]["BSP"] for late in LATE[1:])
    bounded = [of["SSP"] for of in runs.values()]
    return book.conclude(
        "Where lateness wanders from worker to worker, SSP gets {some:.2f} times as many gradients as BSP, and where "
        "it is always the same worker {same:.2f} times.",
        {"some > 1.1 and some > same": "A small lead absorbs a delay that will be another worker's next time. It "
         "cannot absorb a worker that is always slower: once the others are {s} steps ahead, they go at its pace.",
         "True": "A small lead absorbs a delay only if the late worker can catch up later."},
        "ASP gets {free:.2f} times as many as BSP there. So replace a machine that is always slow (chapter 17 finds "
        "it). A bound is useful where delays come and go, and where old gradients do harm. Section 3 says when they "
        "do.\n\n"
        "The largest lead under {whose} rule was {lead}. A bound on the lead is also one on staleness: while a worker "
        "computes one gradient, each of the $N - 1$ others can bring at most $2s + 1$ updates, so $\\tau \\le "
        "(N-1)(2s+1)$, which is {most} here.",
        {"oldest <= most": "The oldest gradient of these runs had {oldest}."},
        some=some, same=same, free=speed[LATE[2]]["ASP"] / speed[LATE[2]]["BSP"], whose=book.whose(answered), s=s,
        lead=max(served.lead() for served in bounded), most=(bounded[0].workers - 1) * (2 * s + 1),
        oldest=max(max(served.taus()) for served in bounded),
    )  # fmt: skip


def remedies(rated: Mapping[str, Sequence[float]]) -> Conclusion:
    """Whether a rate that falls with staleness helps, and whether it helps more than one that is as small for all."""
    plain, root, inverse, alike = (sum(some) / len(some) for some in rated.values())
    _, *rules, same = rated.values()
    rule = min(rules, key=sum)
    return book.conclude(
        "With the rate as it is, the mean loss in the end is {plain:.2f}. With the root rule it is {root:.2f}, with "
        "the rate over the staleness {inverse:.2f}, and with one smaller rate for all {alike:.2f}.",
        {"min(root, inverse, alike) > 0.9 * plain": "Here none of them brings much, for the gradients are not old "
         "enough.",
         "worst < best_alike": "A rule that looks at each gradient does better than the same small rate "
         "for all: it matters which gradients are made smaller.",
         "worst_alike < best": "The same small rate for all does even better than the rules. So what "
         "helps here is a smaller rate, and not which gradient gets it.",
         "True": "Three seeds cannot tell the better rule from the same small rate for all. So a smaller rate helps, "
         "and whether it matters which gradient gets it does not show here."},
        "But who told us how small? We took it from the rule, which had found it from the ages that it saw, and would "
        "find it again with other workers.",
        {"inverse > 1.2 * root": "The rate over the staleness leaves a fresh gradient as it is, and so does less here.",
         "True": ""},
        plain=plain, root=root, inverse=inverse, alike=alike, best=min(rule), worst=max(rule),
        best_alike=min(same), worst_alike=max(same),
    )  # fmt: skip


def outer(
    gain: Mapping[str, Sequence[float]], outer_step: Callable[..., Any], rates: tuple[float, float] = (0.001, 0.01)
) -> Conclusion:
    """Where an outer step is ahead of the plain average, and where it is not."""
    pairs = [[gain[f"rate {rate}, {what}"] for what in ("average", "outer step")] for rate in rates]
    (small, small_outer), (large, large_outer) = ([sum(some) / len(some) for some in pair] for pair in pairs)
    return book.conclude(
        "With a rate of {low:g} on the ranks, the plain average ends at a mean loss of {small:.2f}, and {whose} outer "
        "step at {small_outer:.2f}.",
        {"every": "The outer step is ahead with each of the seeds. Small steps leave room to go farther, and it does "
         "so without a byte more on the wire.",
         "small_outer < small": "On average the outer step is ahead, but not with every seed.",
         "True": "Here it brings nothing."},
        "With a rate of {high:g} it is {large:.2f} against {large_outer:.2f}.",
        {"large_outer > 1.02 * large and apart": "There the ranks go far enough by themselves, and twice as far is too "
         "far.",
         "large_outer > 1.02 * large": "There the ranks go far enough by themselves. Going twice as far brings "
         "nothing, and the mean is even worse, though the seeds' ranges overlap.",
         "True": "There it does no harm either."},
        {"large < small_outer": "And the lowest loss of all four belongs to the plain average with the large rate. So "
         "in a run as short as this one you would raise the rate of AdamW, and need no outer step.",
         "True": "The outer step with small inner steps is the best of all four."},
        "DiLoCo's own runs are longer: models of up to 400 million parameters, and rounds of 500 steps. Its outer rate "
        "of 0.7 and momentum of 0.9 make a lasting movement {far:g} times as large, once there have been some ten "
        "rounds.",
        small=small, small_outer=small_outer, large=large, large_outer=large_outer, low=rates[0], high=rates[1],
        far=round(0.7 / (1 - 0.9), 9),
        whose=book.whose(outer_step), every=all(y < x for x, y in zip(*pairs[0], strict=True)),
        apart=min(pairs[1][1]) > max(pairs[1][0]),
    )  # fmt: skip


def two_walks(signs: Points, helped: Points) -> Conclusion:
    """Where signs lead alone, and with error feedback."""
    return book.conclude(
        "Both walks begin with a loss of {first:g}. Signs alone never get below {plain:.3g} in {count} steps, and with "
        "error feedback the loss ends at {ends:.2g}.",
        {"plain > 0.99 * first and ends < 0.1 * first": "The bits on the wire are the same. Three lines and some "
         "memory make the difference."},
        "Signs alone do work on many networks, where errors differ from step to step. Bernstein et al. (2018) prove it "
        "for large batches or for noise that is symmetric, and this valley has neither. Error feedback needs neither.",
        first=drawings.valley(*signs[0]), plain=min(drawings.valley(*p) for p in signs), count=len(signs) - 1,
        ends=drawings.valley(*helped[-1]),
    )  # fmt: skip


def links(race: Race) -> Conclusion:
    """Which method wins over which link, by how much, and who did not come to the target."""
    rows, reached, whole = race.rows, race.reached, race.whole
    there = {name: some for name, some in reached.items() if max(some) < float("inf")}
    best = min(there, key=lambda name: sum(there[name]))
    top, power = (max(there.get(name, [0])) for name in ("top-k 1%", "PowerSGD rank 2"))
    names = ("narrow link", "far link", "no link")
    first = {link: min(rows, key=lambda row, link=link: row[link])["method"] for link in names}  # type: ignore[misc]
    base = next(row for row in rows if row["method"] == whole)
    gain = {link: base[link] / min(row[link] for row in rows) for link in names}
    there_too = base["far link"] / next(row["far link"] for row in rows if row["method"] == best)
    return book.conclude(
        "**Narrow.** Whole gradients need {low:.2f} to {high:.2f} s to come to the target.",
        {"narrow > 1.05": "The quickest method is {best}, with {one:.2f} to {last:.2f} s.",
         "True": "No method is clearly quicker."},
        {"top and power and top < low and power < low": "Top-k and PowerSGD may take more steps to the same loss, and "
         "yet the slowest of their three runs is quicker than the quickest with whole gradients.", "True": ""},
        {"late": "These did not come there with all three seeds: {late}.", "True": "All methods came there."},
        {"b > 1.05": "\n\n**Far.** The winner is {far}, {b:.1f} times as fast as whole gradients.",
         "True": "\n\n**Far.** No method is clearly faster than whole gradients there."},
        {"gossip > 1.05 and far != 'gossip, ring'": "Gossip is {gossip:.1f} times as fast: it sends no fewer bytes, "
         "but its step takes {gossip_ms:.0f} ms where that of whole gradients takes {whole_ms:.0f}. A round of gossip "
         "is one exchange with the neighbours, and in an all-reduce several follow each other.", "True": ""},
        {"far != best and too < 1": "The winner of the narrow link, {best}, is slower than whole gradients here, at "
         "{too:.1f} times their speed.",
         "far != best": "The winner of the narrow link comes to {too:.1f} times here.", "True": ""},
        {"best == 'majority vote' and too < 1": "Its votes go to each of the other ranks and then the outcomes come "
         "from each of them, so its step pays many latencies: {vote_ms:.0f} ms.", "True": ""},
        {"thin > base": "PowerSGD is slower here than whole gradients, for it adds up one factor after the other, and "
         "so pays the latencies of two sums in each step.", "True": ""},
        {"b > 1.05 and far != best": "So another bottleneck has another winner.", "True": ""},
        "\n\n**None.** If messages cost nothing at all, the best one would be {c:.2f} times as fast.",
        {"c < 1.15": "There is little to gain then, and you keep whole gradients, which need no tuning.",
         "quick == 'majority vote'": "That is the vote, which has a rate of its own, so this may be the rate.",
         "True": "That is a difference in steps, and three seeds are few to believe it."},
        {"missing > 0.5": "\n\nWith so few steps most methods did not come to the target, so do not choose by this "
         "picture: take more *steps*.", "True": ""},
        missing=sum(name not in there for name in reached) / len(reached), quick=first["no link"],
        gossip_ms=1e3 * next((t for name, t in race.far.items() if name.startswith("gossip")), 0.0),
        whole_ms=1e3 * race.far.get(whole, 0.0), vote_ms=1e3 * race.far.get("majority vote", 0.0),
        narrow=base["narrow link"] / min(row["narrow link"] for row in rows),
        gossip=base["far link"] / next((r["far link"] for r in rows if r["method"].startswith("gossip")), math.inf),
        far=first["far link"], b=gain["far link"], c=gain["no link"], low=min(there[whole]), high=max(there[whole]),
        thin=next((row["far link"] for row in rows if row["method"] == "PowerSGD rank 2"), 0.0), base=base["far link"],
        best=best, too=there_too, one=min(there[best]), last=max(there[best]), top=top, power=power,
        late="; ".join(name for name in reached if name not in there),
    )  # fmt: skip
