"""The workbenches of chapter 8: which controls each of them has, and which pictures it shows; and the pictures below
which a sentence stands that depends on the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from IPython.display import display

from labkit import Link, Network, book
from labkit.book.reading.conclusions import Conclusion
from labkit.book.workbenches.bench import View, Workbench
from labkit.chapters.c08_loose_synchrony import drawings, lm, methods, pictures, said, task, votes

Run = Callable[..., Any]
LINKS = {"fast": Link(1e9, 1e-5), "uplink: 4 MB/s": Link(4e6, 1e-4), "far: 20 ms": Link(1e8, methods.FAR)}
NARROW = methods.NETWORKS["narrow"]  # of the contest


def loose(race: Run) -> Workbench:
    """Who is late, how much, how far a worker may be ahead, and the momentum; all three policies answer."""
    controls = {
        "late": choice("who is late", task.LATE, "now and then"), "times": choice("times as slow", [2, 4, 8], 4),
        "bound": choice("bound s of SSP", [0, 1, 3, 8], 3), "momentum": choice("momentum", [0.0, 0.9], 0.0),
    }  # fmt: skip
    views: list[View] = [pictures.who_won, pictures.raced]
    return book.workbench(race, controls, views, title="Who waits for whom?", ranks=5, clock="virtual")


def bound(held_up: Run, world_size: int) -> Workbench:
    """How far ahead the reader's rule lets a worker be, in which cluster."""
    controls = {
        "s": choice("bound s", ["0", "1", "3", "no bound"], "1"),
        "late": choice("who is late", task.LATE, task.LATE[1]),
        "times": choice("times as slow", [2, 4, 8], 4),
    }  # fmt: skip
    views: list[View] = [pictures.held_up_said, drawings.held_up, pictures.held_up_curve]
    return book.workbench(
        held_up, controls, views, title="How far ahead may one be?", ranks=world_size + 1, clock="virtual"
    )


def rounds(training: Run, world_size: int) -> Workbench:
    """How many steps between two averages, over which link, and what the average is given to."""
    controls = {
        "every": choice("local steps H", [1, 4, 16, 64], 16),
        "outer": choice("at the end of a round", ["average", "outer step"], "outer step"),
        "rate": choice("rate of AdamW", [0.001, 0.003, 0.01], 0.001), "link": list(LINKS),
    }  # fmt: skip
    views: list[View] = [pictures.rounds_said, pictures.rounds_curve]
    return book.workbench(training, controls, views, title="Communicate less often", ranks=world_size, clock="virtual")


def far_rounds(runs: Any) -> Conclusion:
    """Local SGD with a few lengths of a round, over one link."""
    display(pictures.rounds(runs))
    return said.rounds(runs, lm.gain_by_choice(next(iter(runs.values())).trace.world_size, LINKS["far: 20 ms"], runs))


def neighbours(gossip: Run) -> Workbench:
    """Which graph, and how many ranks."""
    controls = {"name": choice("graph", drawings.GRAPHS, "ring"), "ranks": [4, 6, 8]}
    views: list[View] = [pictures.mixed]
    return book.workbench(gossip, controls, views, title="How fast do they agree?", ranks=6, transport="local")


def drift(gossiping: Mapping[float, Any], whole: Any) -> Conclusion:
    """Training with gossip at two rates: how far the ranks are apart, and its loss beside that of all-reduces."""
    display(pictures.drift({rate: methods.apart(run) for rate, run in gossiping.items()}))
    rate = max(gossiping)
    named = {f"gossip (rate {rate:g})": gossiping[rate], f"all-reduces (rate {rate:g})": whole}
    curves = {name: [(1e3 * at, loss) for at, loss in methods.curve(run)] for name, run in named.items()}
    display(pictures.losses(curves, "milliseconds", "Loss by time, far link", what="digits"))
    return said.drift(gossiping, whole)


def less(training: Run, world_size: int) -> Workbench:
    """What is sent of a gradient, and whether the rest is kept."""
    controls = {
        "send": choice("send", methods.SENDS, "1 in 100"),
        "rest": choice("the rest is", ["kept", "lost"], "kept"),
    }
    views: list[View] = [pictures.less_said, pictures.less_curve]
    return book.workbench(training, controls, views, title="Send less", ranks=world_size, clock="virtual",
                          network=NARROW)  # fmt: skip


def tuned(training: Run, world_size: int) -> Workbench:
    """Which method, at which rate, over which link; beside whole gradients at their rate."""
    controls = {
        "method": choice("method", [*methods.METHODS], "signs without feedback"),
        "rate": choice("learning rate", [0.008, 0.015, 0.03, 0.1, 0.4, 0.7, 1.0, 1.4, 2.0], 0.4),
        "link": choice("link", {"narrow: 1 MB/s": "narrow", "far: 20 ms": "far", "free": "free"}, "narrow"),
    }  # fmt: skip
    views: list[View] = [pictures.tuned_said, pictures.tuned_curve]
    return book.workbench(
        training, controls, views, title="A learning rate for each method", ranks=world_size, clock="virtual"
    )


def link(name: str) -> Network:
    """The link that a workbench calls so."""
    return Network(intra=LINKS[name])


def ages(runs: Any, typical: Any) -> Conclusion:
    """How stale gradients were, what the reader had predicted, and why."""
    display(pictures.ages(runs))
    display(typical.compare(said.most_often(runs["nobody"]), mark="emulated"))
    return said.ages(runs)


def price(aged: Any) -> Conclusion:
    display(pictures.price(aged))
    return said.price(aged)


def sent_by_ranks(ranks: Any, enough: Any) -> Conclusion:
    """What each method sends by the formulas, and what the reader had predicted of top-k."""
    lines = methods.by_ranks(ranks)
    display(pictures.sent_by_ranks(lines))
    display(pictures.beside_formula(enough, methods.as_much_as_whole()))
    return said.sent_by_ranks(lines)


def pace(runs: Any, answered: Run, s: int) -> Conclusion:
    display(pictures.pace(runs))
    return said.pace(runs, answered, s)


def walks(signs: Any, helped: Any) -> Conclusion:
    display(drawings.paths({"signs alone": signs, "signs with error feedback": helped}))
    return said.two_walks(signs, helped)


def vote(run: Any) -> Conclusion:
    display(votes.counted(run))
    return said.votes()


def power_step(run: Any) -> Conclusion:
    display(drawings.power_step(run))
    return said.power(run)


def trade_off(contest: methods.Contest) -> Conclusion:
    display(pictures.trade_off(contest))
    return said.vote(contest)


def pairs(runs: Any) -> Conclusion:
    display(pictures.steps_of_ranks(runs))
    return said.pairs(runs)


def links(race: methods.Race) -> Conclusion:
    display(pictures.links(race))
    return said.links(race)


def choice(label: str, options: Any, value: Any) -> Any:
    """A list to choose from, with a label that is no name of Python's."""
    from ipywidgets import Dropdown

    return Dropdown(options=options, value=value, description=label, style={"description_width": "initial"})
