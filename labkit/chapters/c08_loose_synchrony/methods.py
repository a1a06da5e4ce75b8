"""One training for every method of chapter 8, so that they differ in what they send and in nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from labkit import Link, Network, Slow, cost, launch
from labkit.chapters.c08_loose_synchrony.drawings import graph, valley as valley_loss
from labkit.chapters.c08_loose_synchrony.task import for_each, now, three_seeds
from labkit.data import digits, image_batches
from labkit.data.images import Images
from labkit.models import MLP, MLPConfig
from labkit.models.threads import one_thread
from labkit.optim.compression import Compressed, ScaledSign, TopK
from labkit.optim.compression.compressors import Compressor
from labkit.optim.compression.payload import nbytes
from labkit.optim.synchrony import ADPSGD, GossipSGD, LocalSGD, graphs, mix
from labkit.parallel import DataParallel
from labkit.wire import Group

WIDTHS, BATCH, RATE, STEP = (64, 64, 10), 8, 0.4, 0.001  # STEP: seconds that a gradient takes
FAR = 0.02  # seconds that a message takes on the far link
VOTED = 0.015  # the rate of a majority vote, which is how far each weight moves in a step
NETWORKS = {"narrow": Network(intra=Link(1e6, 2e-4)), "far": Network(intra=Link(1e8, FAR)), "free": None}


Rule = Callable[[Tensor, Tensor, Callable[[Tensor], Tensor]], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Local:
    every: int


@dataclass(frozen=True)
class Rated:
    """A hook that needs a learning rate of its own."""

    hook: Any
    rate: float


@dataclass(frozen=True)
class Gossip:
    """`mix(x, row, group)` is a round of averages on this rank, such as a reader's `mix_once`. graph: its name."""

    graph: str
    mix: Callable[[Tensor, list[float], Group], Tensor]


def mutual(graph: Tensor) -> bool:
    """Whether all neighbours on a graph hear each other."""
    return torch.equal(graph, graph.T)


def one_way(graph: Tensor) -> Callable[..., Tensor]:
    """The library's round of averages on a graph, whose arrows may go one way; called as a reader's is."""
    return lambda x, row, group: mix(x, graph, group)


class Feedback(Compressed):
    """A compressor as a hook, with a reader's `rule(gradient, residual, compress)` for what is sent and what is kept.

    compress(x) is what arrives of x, so what the rule wants to send is sent as it is.
    """

    def __init__(self, rule: Rule, compressor: Compressor) -> None:
        super().__init__(compressor)
        self.rule = rule

    def __repr__(self) -> str:  # ranks compare it, and the same rule has another address on each of them
        return f"Feedback({type(self.compressor).__name__}, {vars(self.compressor)})"

    def _outgoing(self, name: str, gradient: Tensor, ranks: int) -> Tensor:
        n, kept, draw = len(gradient), self.at("residual", name, gradient), self.dice(name, 0)
        whole = nbytes(self.compressor.parts(n, gradient.dtype)) >= gradient.nbytes

        def compress(x: Tensor) -> Tensor:
            return x if whole else self.compressor.decode(self.compressor.encode(x, draw), n, draw)

        sent, rest = self.rule(gradient.clone(), kept.clone(), compress)
        kept.copy_(rest)
        return sent

    def _keep(self, name: str, x: Tensor, sent: Tensor) -> None:
        """The rule has said what is kept."""


def forgetful(gradient: Tensor, residual: Tensor, compress: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """What compression leaves out is lost."""
    return compress(gradient), residual


SHARES: dict[str, Compressor] = {
    "1 in 10": TopK(0.1), "1 in 100": TopK(0.01), "1 in 1000": TopK(0.001), "signs": ScaledSign(),
}  # fmt: skip


SENDS = ["all", *SHARES]


def sending(what: str, rule: Rule) -> Any:
    """The method that a workbench calls so. rule: what becomes of the rest."""
    return Feedback(rule, SHARES[what]) if what in SHARES else None


def less(run: Any, send: str, rest: str, steps: int) -> dict[str, Any]:
    """What a workbench shows of a run. rest: what becomes of what is not sent, where the reader's rule decides it."""
    found = curve(run)
    n = run.trace.world_size
    return {
        "name": f"{send}, the rest {rest}" if send in SHARES else send,
        "steps": steps, "seconds": found[-1][0], "computing": STEP * steps,
        "curve": [(4.0 * k, loss) for k, (_, loss) in enumerate(found, 1)], "sent": sent(run, steps),
        "whole": cost.ring_all_reduce_bytes_by_rank(sum(math.prod(s) for s in shapes()), 4, n)[0],
    }  # fmt: skip


def data(group: Group, seed: int = 0) -> Iterator[Images]:
    """The batches of this rank: no two ranks have the same digits."""
    return image_batches(digits()[0], BATCH, seed, group.rank, group.size)


def train(group: Group, method: Any, seed: int = 0, steps: int = 60) -> list[tuple[float, Tensor]]:
    """(seconds, weights) every fourth step. method: a hook, None, `Rated`, `Local` or `Gossip`."""
    group.step(0)
    net, rate = MLP(MLPConfig(WIDTHS), seed), RATE
    if isinstance(method, Rated):
        rate = method.rate
    while isinstance(method, Rated):  # of several rates the outermost counts
        method = method.hook
    sgd = torch.optim.SGD(net.parameters(), lr=rate)
    step: Callable[[], Any] = sgd.step
    model: nn.Module = net
    if isinstance(method, Local):
        step = LocalSGD(net, group, sgd, method.every).step
    elif isinstance(method, Gossip):
        step = partial(_gossip, net, group, sgd, method)
    else:
        model = DataParallel(net, group, **({"hook": method} if method else {}))
    seen, began = [], now(group)
    group.step(1)
    for k, (x, y) in enumerate(islice(data(group, seed), steps), 1):
        sgd.zero_grad()
        loss = F.cross_entropy(model(x), y)
        group.compute(STEP)
        loss.backward()
        step()
        if k % 4 == 0:
            seen.append((now(group) - began, parameters_to_vector(net.parameters()).detach()))
    return seen


@torch.no_grad()
def _gossip(net: nn.Module, group: Group, sgd: torch.optim.Optimizer, method: Gossip) -> None:
    """An average with the neighbours, and then the step of this rank's own gradient."""
    row = graph(method.graph, group.size)[group.rank].tolist()
    mixed = method.mix(parameters_to_vector(net.parameters()), row, group)
    vector_to_parameters(mixed, net.parameters())
    sgd.step()


@one_thread()
@torch.no_grad()
def curve(run: Any) -> list[tuple[float, float]]:
    """(seconds, loss on digits kept back): of the mean of the ranks' weights, when the last rank was there."""
    x, y = digits()[1]
    net, found = MLP(MLPConfig(WIDTHS)), []
    for moment in zip(*run.results, strict=True):
        vector_to_parameters(torch.stack([weights for _, weights in moment]).mean(0), net.parameters())
        found.append((max(at for at, _ in moment), F.cross_entropy(net(x), y).item()))
    return found


@torch.no_grad()
def apart(run: Any) -> dict[float, float]:
    """step -> the consensus distance of the ranks' weights, every fourth step of `train`."""
    found = {}
    for k, moment in enumerate(zip(*run.results, strict=True), 1):
        weights = torch.stack([weights for _, weights in moment])
        found[4.0 * k] = float((weights - weights.mean(0)).square().sum(1).mean().sqrt())
    return found


def sent(run: Any, steps: int) -> float:
    """Bytes that a rank sent in a step, on average over ranks, without what is sent before the first one."""
    return sum(m.nbytes for m in run.trace.sends if m.step == 1) / run.trace.world_size / steps


def when(curve: list[tuple[float, float]], target: float) -> float:
    """Seconds until the loss was first below `target`, or infinity."""
    return next((at for at, loss in curve if loss < target), float("inf"))


@dataclass(frozen=True)
class Tried:
    """One training of the contest: (seconds, loss) every fourth step, and the bytes that a rank sent in a step."""

    curve: list[tuple[float, float]]
    nbytes: float

    def last(self) -> float:
        return self.curve[-1][1]

    def steps_to(self, target: float) -> float:
        """Steps, counted by four, until the loss was first below `target`, or infinity."""
        return next((4.0 * k for k, (_, loss) in enumerate(self.curve, 1) if loss < target), math.inf)


def tried(run: Any) -> Tried:
    """What the contest keeps of a run of `train`."""
    found = curve(run)
    return Tried(found, sent(run, 4 * len(found)))


Contest = Mapping[str, Sequence[Tried]]  # of each method its trainings, by seed


def contest(world: Any, ways: Mapping[str, Any], seed: int, steps: int) -> Contest:
    """Every method's training on the kept world, with three seeds."""
    return three_seeds(lambda way, seed: tried(world.run(train, way, seed, steps)), ways, seed)


METHODS = [
    "whole gradients", "signs without feedback", "signs with feedback", "majority vote", "top-k 1%", "DGC 1%", "QSGD",
    "PowerSGD rank 2", "local SGD with H = 4", "gossip on a ring",
]  # fmt: skip


def tuned(method: Rated, name: str, ranks: int, seed: int, link: str) -> dict[str, Any]:
    """What a workbench shows of sixty steps of a method at a rate, over one of `NETWORKS`, and of whole gradients."""
    one = tried(launch(train, ranks, method, seed, network=NETWORKS[link], clock="virtual"))
    lines = {"whole gradients (rate 0.4)": _whole(ranks, seed, link), f"{name} (rate {method.rate:g})": one}
    return {"lines": {told: [(1e3 * at, min(loss, 99.0) if loss == loss else 99.0) for at, loss in it.curve]
                      for told, it in lines.items()}, "sent": one.nbytes, "seconds": one.curve[-1][0]}  # fmt: skip


@cache
def _whole(ranks: int, seed: int, link: str) -> Tried:
    return tried(launch(train, ranks, None, seed, network=NETWORKS[link], clock="virtual"))


def seconds_of_steps(world: Any, ways: Mapping[str, Any], seed: int) -> dict[str, float]:
    """The time of a step of every method on the kept world, from twenty steps of each."""
    return for_each(lambda way: seconds_each(world.run(train, way, seed, 20), 20), ways, "twenty steps: {}")


@dataclass(frozen=True)
class Race:
    """Methods on their way to one loss. reached: seconds on the narrow link, by seed. times: by link and method the
    seconds with each seed, of those that came there with every seed."""

    whole: str
    target: float
    reached: dict[str, list[float]]
    times: dict[str, dict[str, list[float]]]
    far: dict[str, float] = field(default_factory=dict)  # seconds of a step over the far link

    def gain(self, link: str, name: str) -> float:
        """How many times as fast as whole gradients it is, by the mean times; 0 if it did not come there."""
        times = self.times[link]
        return sum(times[self.whole]) / sum(times[name]) if name in times else 0.0

    def told(self, link: str, name: str) -> str:
        """The gain, as the page writes it."""
        gain = self.gain(link, name)
        return f"{gain:.2f}" if gain < 2 else f"{gain:.1f}"

    def best(self, link: str) -> str:
        return max(self.times[link], key=lambda name: self.gain(link, name))

    def seconds(self, name: str) -> float:
        """The mean on the narrow link, or -1 where not all seeds came there."""
        some = self.reached[name]
        return sum(some) / len(some) if max(some) < float("inf") else -1.0


def race(contest: Contest, far: dict[str, float]) -> Race:
    """To the loss that the first method, whole gradients, has on average after two thirds of its steps. In a very
    short run to a higher one, which it reaches with every seed.

    contest: on the narrow link. far: seconds of a step over a far link.
    """
    whole = next(iter(contest))
    base = [one.curve for one in contest[whole]]
    target = sum(curve[2 * len(curve) // 3][1] for curve in base) / len(base)
    target = max(target, 1.001 * max(min(loss for _, loss in curve) for curve in base))
    reached = {name: [when(one.curve, target) for one in some] for name, some in contest.items()}
    there = [name for name, some in reached.items() if max(some) < math.inf]
    steps = {name: [one.steps_to(target) for one in contest[name]] for name in there}
    times = {
        "narrow link": {name: reached[name] for name in there},
        "far link": {name: [count * far[name] for count in steps[name]] for name in there},
        "free link": {name: [count * STEP for count in steps[name]] for name in there},
    }
    return Race(whole, target, reached, times, far)


def by_ranks(ranks: Sequence[int]) -> dict[str, dict[int, int]]:
    """Bytes that a rank sends for one gradient of the network, by method and number of ranks: the formulas."""
    n, ks = sum(map(math.prod, shapes())), sum(math.ceil(0.01 * math.prod(s)) for s in shapes())  # 1 % of each tensor
    rules: dict[str, Callable[[int], int]] = {
        "whole": lambda r: cost.ring_all_reduce_bytes_by_rank(n, 4, r)[0],
        "signs": lambda r: cost.gathered_payload_bytes(cost.sign_bytes(n), r),
        "top-k 1%": lambda r: cost.gathered_payload_bytes(cost.top_k_bytes(ks), r),
        "majority vote": lambda r: cost.majority_vote_bytes_by_rank(n, r)[0],
        "PowerSGD rank 2": lambda r: cost.power_sgd_bytes_by_rank(shapes(), 2, r)[0],
    }
    return {name: {r: rule(r) for r in ranks} for name, rule in rules.items()}


def as_much_as_whole(share: float = 0.01) -> int:
    """From how many ranks on top-k of a large gradient sends as much as a ring does: numbers and places, in float32."""
    return next(r for r in range(2, 999) if share * 8 * (r - 1) >= 4 * 2 * (r - 1) / r - 1e-9)


def seconds_each(run: Any, steps: int) -> float:
    """The time of a step of a run of so many, without the first four: the first step of some methods has a start.

    steps: 4 more than a multiple of 8, since local SGD with H = 4 is through every other time with a rank ahead.
    """
    points = curve(run)
    return (points[-1][0] - points[0][0]) / (steps - 4)


def shapes() -> list[tuple[int, ...]]:
    return [tuple(p.shape) for p in MLP(MLPConfig(WIDTHS)).parameters()]


def factored(group: Group, power_step: Callable[..., tuple[Tensor, Tensor]], seed: int = 0) -> dict[str, Tensor]:
    """One `power_step(m, q, group)` of a gradient of 64 x 64 numbers, with two columns: what it began with and made.

    Two steps before give it the Q that it begins with.
    """
    m, q = gradient(seed, own=group.rank), torch.randn(64, 2, generator=torch.Generator().manual_seed(seed))
    for _ in range(2):
        _, q = power_step(m, q, group)
    p, new = power_step(m, q, group)
    return {"m": m, "before": q, "p": p, "q": new}


@one_thread()
def gradient(seed: int = 0, after: int = 20, own: int = 0) -> Tensor:
    """Of the first layer's weights (64 x 64), on a batch of one's own, after some steps that all take alike."""
    net = MLP(MLPConfig(WIDTHS), seed)
    found: tuple[Tensor, ...] = ()
    for k, (x, y) in enumerate(islice(image_batches(digits()[0], 32, seed), after + own + 1)):
        if after <= k < after + own:
            continue  # the batch of another rank
        with torch.no_grad():
            for p, g in zip(net.parameters(), found, strict=bool(found)):
                p.sub_(g, alpha=RATE)
        found = torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters()))
    return found[0]


def seconds_a_step(group: Group, pairs: bool, steps: int = 12) -> float:
    """Of the virtual clock, on this rank: AD-PSGD if `pairs`, else synchronous gossip, on the same graph.

    The first step is left out: a rank that is no neighbour of a slow one waits for it from the second step on.
    """
    net = MLP(MLPConfig(WIDTHS))
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    kind = ADPSGD if pairs else GossipSGD
    model = kind(net, group, sgd, graphs.bipartite(group.size))
    began = 0.0
    for k, (x, y) in enumerate(islice(data(group), steps)):
        if k == 1:
            began = now(group)
        sgd.zero_grad()
        F.cross_entropy(net(x), y).backward()
        group.compute(0.01)
        model.step()
    took = (now(group) - began) / (steps - 1)
    if isinstance(model, ADPSGD):
        model.close()
    return took


def in_step_and_in_pairs(world_size: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Runs that return a step's seconds on each rank, by the way of gossip. The last rank is four times as slow."""
    ways = {"synchronous with neighbours": False, "in pairs, nobody waits": True}
    how = {"faults": [Slow(world_size - 1, factor=4)], **options}
    return for_each(lambda pairs: launch(seconds_a_step, world_size, pairs, **how), ways)


OUTCOMES = [
    "It comes to the minimum, in more steps than with gradients.",
    "It moves to and fro, and the loss never gets below the one it began with.",
    "It comes to a point near the minimum and stays there.",
    "It runs away, and the loss grows without end.",
]


def outcome(walk: Sequence[Sequence[float]]) -> str:
    """Which of these a descent of the valley was, by the least loss on the way."""
    least, first = min(valley_loss(*p) for p in walk), valley_loss(*walk[0])
    return OUTCOMES[1] if least > 0.99 * first else OUTCOMES[0] if least < 1e-3 * first else OUTCOMES[2]
