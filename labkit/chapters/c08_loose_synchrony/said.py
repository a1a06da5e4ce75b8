"""What chapter 8 says of its runs: sentences whose truth depends on a result are made from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labkit import book
from labkit.book.drawing.units import listing
from labkit.book.reading.conclusions import Conclusion
from labkit.chapters.c08_loose_synchrony import drawings, methods
from labkit.chapters.c08_loose_synchrony.methods import Contest, Race, by_ranks
from labkit.chapters.c08_loose_synchrony.task import LATE, Served

Points = Sequence[Sequence[float]]
SMALL = ("signs with feedback", "majority vote", "top-k 1%", "DGC 1%", "QSGD", "PowerSGD rank 2",
         "local SGD with H = 4")  # messages  # fmt: skip


def most_often(served: Served) -> int:
    """The staleness that most of its gradients have."""
    return max(set(served.taus()), key=served.taus().count)


def _first(words: str) -> str:
    """The words, as a sentence begins."""
    return words[:1].upper() + words[1:]


def ages(runs: Mapping[str, Served]) -> Conclusion:
    """What staleness depends on, and what it does not."""
    means = [served.mean_tau() for served in runs.values()]
    return book.conclude(
        "With equally fast workers nearly every gradient has a staleness of {even}, because while a worker computes, "
        "every other worker brings one update.",
        {"same": "If somebody is late, the *mean* hardly changes: it is about {high:.1f} in each run.",
         "high - low < 0.1 * even + 0.1": "If somebody is late, the *mean* hardly changes: it lies between {low:.1f} "
         "and {high:.1f} in the three runs.",
         "True": "If somebody is late, the *mean* stays between {low:.1f} and {high:.1f}."},
        {"worst > 2 * even + 1": "But the gradients of a slow worker are far staler than the mean: up to {worst} "
         "updates.",
         "True": "The largest staleness was {worst}."},
        "\n\n<details><summary>Where does this mean come from?</summary>\n\n"
        "Let $N$ be the number of workers, and add up the staleness of all gradients that are being computed. "
        "Each update makes the gradients of the other $N - 1$ workers staler by 1, so it adds $N - 1$ to this sum. It "
        "also removes the staleness of the gradient that has just arrived. In the long run the sum neither grows nor "
        "shrinks, so the gradients that arrive have a staleness of $N - 1$ on average.\n\n</details>",
        same=f"{min(means):.1f}" == f"{max(means):.1f}", even=most_often(runs["nobody"]), low=min(means),
        high=max(means), worst=max(max(served.taus()) for served in runs.values()),
    )  # fmt: skip


def price(aged: Mapping[str, Sequence[float]]) -> Conclusion:
    """What age costs without momentum and with it, where as many gradients come either way."""
    quick, quick_9, slow, slow_9 = aged.values()
    fresh, fresh_9, stale, stale_9 = (sum(some) / len(some) for some in aged.values())
    return book.conclude(
        {"stale < 0.9 * fresh": "Without momentum staleness does no harm that three seeds could show.",
         "stale < 1.2 * fresh and each and overlap": "Without momentum stale gradients cost little here: the loss is "
         "higher with every seed, but the ranges overlap.",
         "stale < 1.2 * fresh": "Without momentum stale gradients cost little here, on average over three seeds.",
         "min(slow) > max(quick)": "Staleness has a price even without momentum.",
         "True": "Without momentum stale gradients are worse on average, though the seeds' ranges overlap."},
        {"stale_9 > 1.2 * fresh_9 and apart": "With momentum stale gradients do real harm: there even the best ASP "
         "run is worse than the worst BSP run.",
         "stale_9 > 1.1 * fresh_9": "With momentum stale gradients are worse on average, though the seeds' ranges "
         "overlap.",
         "True": "With momentum too, the gradients of this small world are not stale enough to do much harm."},
        "\n\nWhy does momentum matter? Take the simplest loss, a parabola, and let every gradient be exactly "
        "$\\tau$ updates old. Below, one walk uses no momentum and the other a momentum of 0.9. Both begin at the same "
        "point, and their effective rate is the same. Step through the pictures: each has a larger $\\tau$.",
        fresh=fresh, stale=stale, fresh_9=fresh_9, stale_9=stale_9, quick=quick, slow=slow,
        apart=min(slow_9) > max(quick_9), overlap=min(slow) <= max(quick),
        each=all(b > a for a, b in zip(quick, slow, strict=True)),
    )  # fmt: skip


def pace(runs: Mapping[str, Mapping[str, Served]], answered: Callable[..., Any], s: int) -> Conclusion:
    """What a bound on the lead brings where lateness wanders and where it does not, and the bound on staleness."""
    speed = {late: {p: served.updates() / served.seconds for p, served in some.items()} for late, some in runs.items()}
    some, same = (speed[late]["SSP"] / speed[late]["BSP"] for late in LATE[1:])
    free, often = (speed[late]["ASP"] / speed[late]["BSP"] for late in (LATE[2], LATE[1]))
    bounded = [of["SSP"] for of in runs.values()]
    return book.conclude(
        {"some > 1.1 and some > same": "If delays come and go, it helps to let workers run ahead by a few steps: SSP "
         "gets {some:.2f} times as many gradients as BSP, and ASP {often:.2f} times as many.\n\nAgainst a worker that "
         "is always slow SSP cannot help for long: once the others are {s} steps ahead, they go at its pace. In this "
         "short run their head start still gives SSP {same:.2f} times as many gradients as BSP.",
         "True": "It helps to let workers run ahead only if the late worker can catch up later. SSP gets {some:.2f} "
         "times as many gradients as BSP where delays come and go, and {same:.2f} times where one worker is always "
         "slow."},
        "With this worker ASP gets {free:.2f} times as many, but its gradients are stale, and section 3 asks what "
        "stale gradients cost. So it is better to replace a machine that is always slow, and chapter 17 shows how to "
        "find it.\n\n"
        "The largest lead under {whose} rule was {lead}. A bound on the lead is also a bound on staleness: "
        "$\\tau \\le (N-1)(2s+1)$, which is {most} here.",
        {"oldest <= most": "The largest staleness in the SSP runs was {oldest}."},
        "\n\n<details><summary>Where does this bound come from?</summary>\n\n"
        "You compute one gradient. Meanwhile each of the other $N - 1$ workers brings at most $2s + 1$ updates:\n\n"
        "| what the other worker does while you compute | its updates |\n|---|---|\n"
        "| it was at most $s$ steps behind you when you began, and catches up | at most $s$ |\n"
        "| it gets $s$ steps ahead of you | $s$ |\n"
        "| with a lead of exactly $s$ it may still begin one more gradient | 1 |\n\n</details>",
        some=some, same=same, free=free, often=often, whose=book.whose(answered), s=s,
        lead=max(served.lead() for served in bounded), most=(bounded[0].workers - 1) * (2 * s + 1),
        oldest=max(max(served.taus()) for served in bounded),
    )  # fmt: skip


def drift(gossiping: Mapping[float, Any], whole: Any) -> Conclusion:
    """What gossip costs and saves in training. gossiping: a run by its rate. whole: of all-reduces, at the largest."""
    (low, few), (high, many) = ((rate, methods.apart(run)) for rate, run in sorted(gossiping.items()))
    ours, theirs = methods.curve(gossiping[high])[-1], methods.curve(whole)[-1]
    ends = [some[max(some)] for some in (few, many)]
    return book.conclude(
        {"ends[1] > ends[0]": "With a rate of {high:g} the weights end {times:.1f} times as far apart as with {low:g}, "
         "because larger steps pull the ranks further apart between two rounds.",
         "True": "With a rate of {high:g} the weights do not end further apart than with {low:g}."},
        {"few_ranks": "(On a ring of so few ranks a round averages over all of them, so this is only the distance that "
         "the last gradients have made.)", "True": ""},
        {"quicker > 1.1": "Over the far link the steps with gossip are {quicker:.1f} times as fast as those with "
         "all-reduces. In a step of gossip a rank waits for one message. The all-reduce that the book chooses here is "
         "no ring, but it still is a chain of {chain} messages.",
         "True": "Over the far link the steps are about as fast as those with all-reduces, because between so few "
         "ranks the chain of an all-reduce is as short as that of gossip."},
        {"ours > theirs": "In the end the mean of the ranks' weights has a loss of {ours:.2f}, and with all-reduces it "
         "is {theirs:.2f}. One reason is that each rank computes its gradients with its own weights, not with their "
         "mean.",
         "True": "In the end the mean of the ranks' weights has a loss of {ours:.2f}, and with all-reduces it is "
         "{theirs:.2f}."},
        "(One run.)",
        ends=ends, times=ends[1] / ends[0], few_ranks=whole.trace.world_size <= 3,
        chain=round((theirs[0] / max(many) - methods.STEP) / methods.FAR), low=low, high=high,
        quicker=theirs[0] / ours[0], ours=ours[1],
        theirs=theirs[1],
    )  # fmt: skip


def two_walks(signs: Points, helped: Points) -> Conclusion:
    """Where signs lead alone, and with error feedback."""
    return book.conclude(
        {"plain > 0.99 * first and ends < 0.1 * first": "With error feedback, messages of the same size lead to the "
         "minimum, while signs alone never get below the loss that they began with."},
        "After 80 steps the loss with error feedback is {ends:.2g}, and it began at {first:g}.\n\n"
        "<details><summary>Why do signs alone work on many networks?</summary>\n\n"
        "They do, because their errors differ from step to step. Bernstein et al. (2018) "
        "prove it for large batches, or for noise that is symmetric and *unimodal*, with a single peak at the mean. "
        "Why not in our valley? At $(1, 1)$ the mean of both gradients has the signs $(+, +)$, but each square alone "
        "gets one of the two signs wrong. The *noise*, the difference between one gradient and this mean, has only "
        "two values. So it is symmetric, but it has two peaks and none at the mean.\n\n</details>",
        first=drawings.valley(*signs[0]), plain=min(drawings.valley(*p) for p in signs),
        ends=drawings.valley(*helped[-1]),
    )  # fmt: skip


def rounds(runs: Mapping[str, Any], shorter: float = 0.0) -> Conclusion:
    """What fewer averages save over a link with a high latency, and what they cost in loss.

    shorter: what the last run would gain with the all-reduce that suits the link best; 0 if that is not told.
    """
    often, *_, rarely = (run.results[0] for run in runs.values())
    ends = [run.results[0].last() for run in runs.values()]
    return book.conclude(
        "With {rare} the same 64 steps are {less:.1f} times as fast as with {every}, because there are far fewer "
        "all-reduces.",
        {"0 < shorter < 0.98 * less": "The cell uses rings. With the shorter chain that the book's all-reduce "
         "would choose on this link, the factor would be only {shorter:.1f}.", "True": ""},
        {"worse < 0.1": "The loss in the end is nearly the same, although the ranks drift apart between two averages.",
         "True": "But the loss in the end is higher by {worse:.2f}, because the ranks drift apart between two "
         "averages."},
        every=next(iter(runs)), rare=[*runs][-1], less=often.seconds / rarely.seconds, worse=max(ends) - ends[0],
        shorter=shorter,
    )  # fmt: skip


def sent_by_ranks(lines: Mapping[str, Mapping[int, int]]) -> Conclusion:
    """What grows with the number of ranks, and what does not."""
    at = {name: {r: line[r] / lines["whole"][r] for r in line} for name, line in lines.items()}
    return book.conclude(
        {"many > 1 and signs > 1 and power < 1 and vote < 1": "If messages can be added up or counted, each rank sends "
         "about the same part of what a ring all-reduce of the whole gradient sends, however many ranks there are. If "
         "messages must be gathered, this part grows with every rank."},
        "With 8 ranks top-k of 1 % sends {few:.1%} of what this all-reduce sends.",
        {"many > 1 and signs > 1": "With 128 ranks both top-k and signs send more than the all-reduce."},
        "A majority vote stays at about {vote:.1%}, and PowerSGD at {power:.1%} if its all-reduces are rings. That is "
        "more than for the one matrix above, because two columns save less in the small last layer of this network, "
        "and biases are sent whole.",
        "\n\nThe line of top-k crosses that of the whole gradient a little before 100, because $k$ is rounded up in "
        "each tensor of this small network.",
        few=at["top-k 1%"][8], many=at["top-k 1%"][128], signs=at["signs"][128], power=at["PowerSGD rank 2"][128],
        vote=at["majority vote"][128],
    )  # fmt: skip


def votes() -> Conclusion:
    """What a majority vote cannot do."""
    return book.conclude(
        "What the ranks get is not a sum of what they have sent, so no rank can tell which part of its gradient is "
        "missing. So the vote has no error feedback, and in the valley of section 6 it would be stuck. But where "
        "the noise is symmetric with a single peak at the mean, as Bernstein et al. assume, a majority is right even "
        "more often than one rank."
    )


def power(run: Any) -> Conclusion:
    """How much of a matrix two thin ones miss, and where the rest goes."""
    missed, least, share = drawings.missed(run)
    return book.conclude(
        "With {share:.1%} of the numbers one power step misses {missed:.0%} of the norm of $M$.",
        {"missed < 1.1 * least": "No two columns could do much better: the best miss {least:.0%}.",
         "True": "The best two columns would miss {least:.0%}."},
        "What is missed is kept and sent later, by error feedback.",
        missed=missed, least=least, share=share,
    )  # fmt: skip


def vote(contest: Contest) -> Conclusion:
    """Whether a vote, which keeps nothing, ends at a higher loss than whole gradients do; and the bytes of PowerSGD."""
    voted, whole = ([one.last() for one in contest[name]] for name in ("majority vote", "whole gradients"))
    sent = {name: some[0].nbytes for name, some in contest.items()}
    ring = {name: of[4] for name, of in by_ranks([4]).items()}  # the quotient is that of any number of ranks
    below = [name for name, some in contest.items() if name != "majority vote"
             and max(one.last() for one in some) < min(whole)]  # fmt: skip
    name = "PowerSGD rank 2"
    more = sent.get(name, 0.0) / sent["whole gradients"] / (ring[name] / ring["whole"])
    return book.conclude(
        {"min(voted) > max(whole)": "The vote has no error feedback, and here it ends at a higher loss than whole "
         "gradients with every seed.",
         "max(voted) < min(whole)": "The vote has no error feedback, and yet here it ends at a lower loss than whole "
         "gradients with every seed.",
         "True": "The vote has no error feedback. Yet its loss is not clearly different from that of whole gradients, "
         "as the ranges of the three seeds overlap."},
        {"below": "{below} ended below whole gradients with every seed, although less of each gradient was sent. Do "
         "not expect that elsewhere: this is a small task of {steps} steps.",
         "True": ""},
        {"more > 1.05": "\n\nPowerSGD sends {more:.2f} times as much here as with the rings of section 7. Its factors "
         "are small, so the book's `DataParallel` chooses an all-reduce with a shorter chain of messages, but more "
         "bytes.", "True": ""},
        more=more, voted=voted, whole=whole, below=_first(listing(below)) if below else "",
        steps=4 * len(contest["whole gradients"][0].curve),
    )  # fmt: skip


def pairs(runs: Mapping[str, Any]) -> Conclusion:
    """Whose pace the ranks have, in synchronous gossip and in pairs, of which the last is slow."""
    together, alone = (run.results for run in runs.values())
    return book.conclude(
        {"min(together) > 0.95 * max(together)": "With synchronous gossip the delay moves one neighbour "
         "further in each step. Here every even rank is a neighbour of every odd one, so from the second step on the "
         "slow rank sets the pace of all. The times above leave out the first step.",
         "True": "With synchronous gossip the slow rank holds up the others."},
        {"max(quick) < 0.5 * slow": "In pairs the slow rank holds up only itself."},
        "What the meetings cost in loss is not measured here.",
        together=together, quick=alone[:-1], slow=alone[-1],
    )  # fmt: skip


def links(race: Race) -> Conclusion:
    """Which method wins over which link, by how much and why, and who did not come to the target."""
    whole, reached, narrow = race.whole, race.reached, race.times["narrow link"]
    best, far, quick = (race.best(link) for link in ("narrow link", "far link", "free link"))
    others = [name for name in race.times["far link"] if name not in (far, whole)]
    after = max(others, key=lambda name: race.gain("far link", name), default="")
    late = [name for name in reached if name not in narrow]
    return book.conclude(
        {"gain > 1.05": "**Narrow link.** Few bytes make short steps: the fastest method is {best}, with {one:.2f} s "
         "where whole gradients need {base:.2f} s.",
         "True": "**Narrow link.** No method is clearly faster than whole gradients."},
        {"few and slowest < first and not late": "All methods that send much less are faster.",
         "few and slowest < first": "Of the methods that reached the target with all three seeds, those that send much "
         "less are faster.",
         "True": ""},
        {"late": "{late} did not reach the target with all three seeds.", "True": ""},
        {"b > 1.05 and rounds": "\n\n**Far link.** The length of the chain of messages decides: the fastest "
         "method is {far}, {far_told} times as fast as whole gradients.",
         "b > 1.05": "\n\n**Far link.** The fastest method is {far}, {far_told} times as fast as whole gradients.",
         "True": "\n\n**Far link.** No method is clearly faster than whole gradients."},
        {"b > 1.05 and next_told and next != best": "The next one is {next}, with {next_told}.", "True": ""},
        {"far != best and too < 0.95": "The winner of the narrow link, {best}, is slower than whole gradients here.",
         "far != best and too <= 1.05": "The winner of the narrow link, {best}, is as fast as whole gradients here.",
         "far != best": "The winner of the narrow link, {best}, is {too_told} times as fast here.", "True": ""},
        {"best == 'majority vote' and too < 0.95": "A vote needs a chain of two messages, the votes and the "
         "outcome, so a step takes {vote:.0f} ms in place of {whole_ms:.0f} ms.", "True": ""},
        {"0 < thin < 0.8": "PowerSGD is only {thin:.2f} times as fast as whole gradients, because its second "
         "all-reduce begins only when the first one has ended.", "True": ""},
        {"c < 1.005": "\n\n**Free link.** If messages cost nothing, no method would be faster than whole gradients.",
         "True": "\n\n**Free link.** If messages cost nothing, the best method would be {c_told} times as fast."},
        {"c < 1.005": "So you would keep them, as there is nothing more to tune.",
         "c < 1.15": "There is little to gain then, so you would keep whole gradients, as there is nothing more to "
         "tune.",
         "True": "That is {quick}, which needs fewer steps here. Three seeds on one small task are too few to rely on "
         "that."},
        {"missing > 0.5": "\n\nWith so few steps most methods did not reach the target, so do not choose by this "
         "picture: take more *steps*.", "True": ""},
        best=best, far=far, quick=quick, gain=race.gain("narrow link", best), b=race.gain("far link", far),
        c=race.gain("free link", quick), too=race.gain("far link", best), one=race.seconds(best),
        far_told=race.told("far link", far), too_told=race.told("far link", best), c_told=race.told("free link", quick),
        base=race.seconds(whole),
        vote=1e3 * race.far.get("majority vote", 0.0), whole_ms=1e3 * race.far.get(whole, 0.0),
        first=min(narrow[whole]),
        rounds=far in ("local SGD with H = 4", "gossip on a ring"), few=[name for name in SMALL if name in narrow],
        slowest=max((max(narrow[name]) for name in SMALL if name in narrow), default=0.0),
        next=after, next_told=race.told("far link", after) if after and race.gain("far link", after) > 1.05 else "",
        thin=race.gain("far link", "PowerSGD rank 2"),
        missing=sum(name not in narrow for name in reached) / len(reached),
        late=_first(listing(late)) if late else "",
    )  # fmt: skip
