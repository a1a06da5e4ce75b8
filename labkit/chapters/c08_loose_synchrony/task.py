"""What chapter 8 trains: a small network on 8 x 8 digits, as one flat tensor, and who is late when.

Everything is a function of seeds, and time is that of the virtual clock, on which a step takes `STEP` seconds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from labkit import book
from labkit.data import digits, image_batches
from labkit.data.images import Images
from labkit.models import MLP, MLPConfig
from labkit.optim.compression.counterexample import gradient as valley  # noqa: F401
from labkit.optim.synchrony import ASP, BSP, SSP, Policy
from labkit.parallel.server import Server, Update
from labkit.parallel.server.server import full_rate
from labkit.wire import Group

STEP = 0.01  # seconds of the virtual clock that a gradient takes when nothing is wrong
BATCH, RATE, OFTEN = 16, 0.8, 0.2  # examples of a worker; the rate of an averaged gradient; how often one is late
LAST = 0.05  # seconds at the end of a run over which its loss is averaged
WIDTHS = (64, 32, 10)
LATE = ["nobody", "now and then", "always the same"]


def options(world_size: int, transport: str, steps: int) -> dict[str, str]:
    """How the chapter launches its ranks. Refuses parameters for which its pictures and trainings were not made."""
    book.allow({
        f"world_size={world_size!r}: take a whole number of 2 to 7 ranks": world_size in range(2, 8),
        f"steps={steps!r}: take 12 or more, with fewer nothing is learned": steps in range(12, 100_000),
        f'transport={transport!r}: it is "local" or "gloo"': transport in ("local", "gloo"),
    })  # fmt: skip
    return {"transport": transport, "clock": "virtual"}


@cache
def model() -> MLP:
    """What the flat weights are put into; its own ones mean nothing."""
    return MLP(MLPConfig(WIDTHS))


@cache
def data() -> tuple[Images, Images]:
    return digits()


def begin(seed: int = 0) -> Tensor:
    """The first weights, flat: 2,410 numbers."""
    return parameters_to_vector(MLP(MLPConfig(WIDTHS), seed).parameters()).detach()


def gradient(weights: Tensor, batch: Images) -> Tensor:
    """Of the cross entropy of `batch` at these weights, flat."""
    net = model()
    vector_to_parameters(weights, net.parameters())
    found = torch.autograd.grad(F.cross_entropy(net(batch.x), batch.y), list(net.parameters()))
    return parameters_to_vector(found)


@torch.no_grad()
def loss(weights: Tensor) -> float:
    """The cross entropy of the 359 digits that nobody trains on; no more than 99 where training has gone astray."""
    net = model()
    vector_to_parameters(weights, net.parameters())
    found = F.cross_entropy(net(data()[1].x), data()[1].y).item()
    return min(found, 99.0) if found == found else 99.0


def batches(group: Group, seed: int = 0) -> Iterator[Images]:
    """Of a worker: rank 0 is the server."""
    return image_batches(data()[0], BATCH, seed, group.rank - 1, group.size - 1)


def now(group: Group) -> float:
    """Seconds of the run's clock."""
    return group.context.clock_here().now() / 1e9


def until(group: Group, seconds: float) -> Iterator[int]:
    """Counts clocks from 0, as long as `seconds` are not over."""
    end, clock = now(group) + seconds, 0
    while now(group) < end - 1e-9:
        yield clock
        clock += 1


def lateness(group: Group, late: str, times: float, seed: int = 0) -> Iterator[float]:
    """How long each gradient of this worker takes."""
    dice = random.Random(f"{seed} {group.rank}")
    while True:
        slow = {"nobody": False, "now and then": dice.random() < OFTEN, LATE[2]: group.rank == group.size - 1}[late]
        yield STEP * (times if slow else 1)


def policy(name: str | Policy, bound: int = 0) -> Policy:
    """Of that name, or as it is."""
    named: dict[str, Policy] = {"BSP": BSP(), "SSP": SSP(bound), "ASP": ASP()}
    return named[name] if isinstance(name, str) else name


@dataclass(frozen=True)
class ByRule:
    """A policy by a reader's rule: `answered(waiting, clocks, s)` says which of the waiting workers may go on.

    A server tells its policy the clock of one worker and that of the slowest, so these are the clocks that the rule
    gets here.
    """

    rule: Callable[[list[int], dict[int, int], int], list[int]]
    s: int
    together: ClassVar[bool] = False

    def waits(self, clock: int, slowest: int) -> bool:
        return 1 not in self.rule([1], {0: slowest, 1: clock}, self.s)


@dataclass
class Served:
    """What a server saw, until `seconds`. at: seconds since it began, of each update, and losses: after each one."""

    name: str
    log: list[Update]
    at: list[float]
    losses: list[float]
    workers: int
    bound: int | None
    seconds: float = field(default=0.0)

    def taus(self) -> list[int]:
        return [update.tau for update in self.log]

    def mean_tau(self) -> float:
        """The mean staleness of its gradients."""
        return sum(self.taus()) / max(1, len(self.log))

    def updates(self) -> int:
        """Gradients that were applied."""
        return len(self.log)

    def last(self) -> float:
        """The mean loss over the last `LAST` seconds: of the same time, however many updates a policy has in it."""
        to, begin, total = self.seconds, self.seconds - LAST, 0.0
        for at, loss in zip(reversed(self.at), reversed(self.losses), strict=True):
            since = max(at, begin)
            total, to = total + (to - since) * loss, since
            if at <= begin:
                break
        return total / (self.seconds - to)

    def lead(self) -> int:
        """By how many clocks a worker was ever ahead of the slowest when it got the weights."""
        return max(self.leads(), default=0)

    def leads(self) -> list[int]:
        """The same, for each update."""
        clocks = dict.fromkeys(range(1, self.workers + 1), 0)
        slowest = [0]  # by version
        for update in self.log:
            clocks[update.worker] = update.clock + 1
            slowest.append(min(clocks.values()))
        return [update.clock - slowest[update.version] for update in self.log]

    def curve(self) -> list[tuple[float, float]]:
        """(milliseconds, loss), from before the first update on."""
        last = {round(1e3 * at, 6): loss for at, loss in zip(self.at, self.losses, strict=True)}
        return sorted(last.items())


def serve(
    weights: Tensor, group: Group, rule: str | Policy, rate: float = RATE, momentum: float = 0.0,
    factor: Any = full_rate, bound: int = 0, end: float = math.inf,
) -> Served:  # fmt: skip
    """Be the server until all workers have ended. rate: of one clock of all workers, whatever the policy. bound: of
    SSP, where `rule` is only its name.

    factor: what the rate of an update is multiplied by, by its staleness. end: seconds, and what comes later is left
    out. (A worker finishes the gradient that it has begun, and under BSP that is up to a whole step.)
    """
    workers, kept = group.size - 1, policy(rule, bound)
    began, losses = now(group), list[float]()

    class Watched(torch.optim.SGD):
        def step(self) -> None:  # type: ignore[override]
            super().step()
            losses.append(loss(self.param_groups[0]["params"][0].detach()))

    each = rate if kept.together else rate / workers
    named = {"weights": weights}
    server = Server(named, group, [0], policy=kept, optimizer=partial(Watched, lr=each, momentum=momentum),
                    rate=factor)  # fmt: skip
    log = [update for update in server.serve() if update.at / 1e9 - began <= end + 1e-9]
    at = [update.at / 1e9 - began for update in log]
    if kept.together:  # one step for all gradients of a clock
        at = sorted(set(at))
    seconds = min(end, now(group) - began)
    return Served(type(kept).__name__, log, at, losses[: len(at)], workers, getattr(kept, "s", None), seconds)


class Job:
    """What a rank of section 1 to 3 has to do: which digits, who is late, for how long, and how the server steps.

    how: of `serve`.
    """

    def __init__(
        self, group: Group, late: str = "now and then", times: float = 4, seed: int = 0, end: float = 0.4, **how: Any
    ) -> None:
        self.group, self.late, self.times, self.seed, self.end, self.how = group, late, times, seed, end, how
        self.weights = begin(seed)

    def serve(self, rule: str | Policy) -> Served:
        return serve(self.weights, self.group, rule, end=self.end, **self.how)

    def steps(self) -> Iterator[tuple[Images, float]]:
        """A batch, and the seconds that its gradient takes, until the time is over."""
        data, takes = batches(self.group, self.seed), lateness(self.group, self.late, self.times, self.seed)
        for _ in until(self.group, self.end):
            yield next(data), next(takes)


def serve_any(weights: Tensor, group: Group, policy: Policy) -> list[Update]:
    """Be a server that looks at no loss, and return its log."""
    sgd = partial(torch.optim.SGD, lr=0.01)
    return Server({"weights": weights}, group, [0], policy=policy, optimizer=sgd).serve()


def each(run: Callable[[str], Served]) -> dict[str, Served]:
    """What `run` returns for each of the three policies, by name."""
    return {name: run(name) for name in ("BSP", "SSP", "ASP")}


def run(world: Any, fn: Callable[..., Any], **how: Any) -> Any:
    """One run of `fn(group, **how)` on the kept world."""
    return world.run(partial(fn, **how))


def served(world: Any, fn: Callable[..., Any], **how: Any) -> Served:
    """What the server saw in such a run."""
    seen: Served = run(world, fn, **how).results[0]
    return seen


def three_runs(world: Any, fn: Callable[..., Any], bound: int = 3, answered: Any = None, **how: Any) -> dict[str, Any]:
    """A run of `fn(group, rule=rule, **how)` under BSP, SSP and ASP, by name. answered: a reader's rule of SSP."""
    rules = {"BSP": BSP(), "SSP": ByRule(answered, bound) if answered else SSP(bound), "ASP": ASP()}
    return {name: run(world, fn, rule=rule, **how) for name, rule in rules.items()}


def three_served(*args: Any, **how: Any) -> dict[str, Served]:
    """What the server saw in the three runs of `three_runs`."""
    return {name: run.results[0] for name, run in three_runs(*args, **how).items()}


def bounded(answered: Any, s: str) -> Policy:
    """A reader's rule with this bound, as a workbench names it, or ASP where there is no bound."""
    return ASP() if s == "no bound" else ByRule(answered, int(s))


def for_each(run: Callable[..., Any], cases: Collection[Any], told: str = "{}") -> dict[Any, Any]:
    """What `run` returns for each of `cases`, by name; those of a dictionary have names of their own, and are given to
    `run` (a tuple as its arguments). In a line the reader sees which one is under way."""
    values = cases if isinstance(cases, Mapping) else {case: case for case in cases}
    return {name: run(*_arguments(values[name])) for name in book.in_turn(list(values), told)}


def _arguments(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)


def three_seeds(run: Callable[..., Any], cases: Mapping[str, Any], seed: int) -> dict[str, list[Any]]:
    """For each of `cases` what `run(*case, seed)` returns with three seeds, from `seed` on."""
    return for_each(lambda *case: [run(*case, seed + k) for k in range(3)], cases, "three trainings: {}")


def fresh_and_old(run: Callable[..., Any], seed: int, momenta: Sequence[float] = (0.0, 0.9)) -> dict[str, list[Any]]:
    """What `run(rule, momentum, seed)` returns under BSP and ASP, without momentum and with it, by name."""
    cases = {f"{rule}, {f'momentum {momentum}' if momentum else 'no momentum'}": (rule, momentum)
             for rule in ("BSP", "ASP") for momentum in momenta}  # fmt: skip
    return three_seeds(run, cases, seed)


def by_lateness(world: Any, fn: Callable[..., Any], **how: Any) -> dict[str, Served]:
    """What the server saw with nobody late, with workers late now and then, and with one that always is."""
    return for_each(lambda late: served(world, fn, late=late, **how), LATE, "late: {}")


def paces(world: Any, fn: Callable[..., Any], answered: Any, s: int, **how: Any) -> dict[str, dict[str, Served]]:
    """The three rules, SSP by a reader's rule: with workers late now and then, and with one that always is."""
    return for_each(lambda late: three_served(world, fn, s, answered, late=late, **how), LATE[1:], "late: {}")


def rumour(group: Group) -> Tensor:
    """What a rank has before the first round: rank 0 a number, and all others 0. Their mean is 1."""
    return torch.tensor([float(group.size) if group.rank == 0 else 0.0])


def noise(group: Group) -> Tensor:
    """A thousand random numbers, others on each rank."""
    return torch.randn(1000, generator=torch.Generator().manual_seed(group.rank))


def scaled_sign(x: Tensor) -> Tensor:
    """Signs times the mean size: a bit a number, and one scale."""
    return x.abs().mean() * x.sign()
