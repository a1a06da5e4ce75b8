"""What chapter 16 puts on ranks: four small models, where they live, and a step of PPO on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import labkit
from labkit import Group, Link, Network, book
from labkit.align.fleet import PPO, Fleet, Report, ppo_step
from labkit.align.rollout import Sample, Sampling
from labkit.cost import ROLES, ChunkLoad, Placement, StepTimeline, WorkSeconds, simulate_placement
from labkit.models import GPT, GPTConfig, ScalarGPT
from labkit.models.threads import one_thread
from labkit.world.kept import World

CONFIG = GPTConfig(vocab=32, context=56, layers=1, heads=2, width=32)
SECONDS = WorkSeconds(decode=2e-3, read=5e-5, train=2e-4, host_bandwidth=2e7)
NETWORK = partial(Network, ranks_per_node=1, inter=Link(1e9, 20e-6))
PPO_STEP = PPO(chunk=1, minibatches=1)
PROMPTS = {i: tuple((3 * i + j) % 32 for j in range(8)) for i in range(16)}
LONGEST = 32  # tokens of a response, where nothing else is chosen
AXIS = 0.55  # seconds that the first panel shows, whatever is chosen there
END = 5  # the token after which a response ends

WHERE = {
    "all four on every rank": lambda n: Placement.colocated(n),
    "taking turns, rest on the host": lambda n: Placement.colocated(n, offload=True),
    "a pool for each, same sizes": lambda n: Placement.separate(n - 3 * (n // 4), n // 4, n // 4, n // 4),
    "a pool for each, most for the policy": lambda n: Placement.separate(n - 3, 1, 1, 1),
    "two that train, two that read": lambda n: _two_pools(n, n // 4),
}


def _two_pools(size: int, readers: int) -> Placement:
    trainers, rest = tuple(range(size - readers)), tuple(range(size - readers, size))
    return Placement(trainers, rest, rest, trainers)


def places(where: str, size: int) -> Placement:
    """Which of so many ranks have which model."""
    return WHERE[where](size)


def allowed(world_size: int, transport: str, seed: int) -> None:
    """Raises ParameterError for parameters that the chapter's pictures and runs have no room for."""
    book.allow({
        "world_size is 4 or 8": world_size in (4, 8),
        'transport is "local" or "gloo"': transport in ("local", "gloo"),
        "seed is a whole number, 0 or more": isinstance(seed, int) and seed >= 0,
    })  # fmt: skip


def launcher(transport: str) -> Callable[..., labkit.Run]:
    """`labkit.launch`, over the transport of the chapter's parameters."""
    return partial(labkit.launch, transport=transport)


def model(role: str) -> GPT:
    """A small model of this role, with random weights: how long work takes does not depend on them."""
    with one_thread():
        return ScalarGPT(CONFIG, 1) if role in ("reward", "critic") else GPT(CONFIG, 2)


def sampling(longest: int, step: int) -> Sampling:
    """Responses of at most `longest` tokens, other ones in each step."""
    return Sampling(longest, END, seed=step)


@dataclass(frozen=True)
class Told:
    """Of a rank: its models, bytes on its device at most, bytes that a swap moved in a step, and its samples."""

    roles: tuple[str, ...]
    device: int
    samples: tuple[Sample, ...]


def told(fleet: Fleet, report: Report) -> Told:
    """What a rank tells of its last step."""
    sizes = {role: _bytes(one) for role, one in fleet.models.items()}
    held = sum(sizes.values()) + sum(2 * sizes[role] for role in fleet.learners)
    return Told(tuple(fleet.models), fleet.swap.peak if fleet.swap else held, tuple(report.samples))


def _bytes(module: Any) -> int:
    return sum(p.nbytes for p in module.parameters())


def one_step(group: Group, where: str | Placement, longest: int = LONGEST) -> Told:
    """The loop of the chapter's first cell, for the runs that stand beside it."""
    with one_thread():
        placement = places(where, group.size) if isinstance(where, str) else where
        fleet = Fleet(placement, group, model, seconds=SECONDS)
        for step, tokens in enumerate((1, longest)):
            group.step(step)
            report = ppo_step(fleet, PROMPTS, sampling(tokens, step), PPO_STEP)
        return told(fleet, report)


def by_placement(transport: str, size: int, longest: int = LONGEST) -> dict[str, labkit.Run]:
    """A run of each placement, one after the other, on the same ranks."""
    with World(size, clock="virtual", network=NETWORK(size), transport=transport) as world:
        return {name: world.run(one_step, name, longest) for name in book.in_turn([*WHERE], "a step with {}")}


def run_at(placement: Placement, transport: str, size: int) -> labkit.Run:
    """A step with the four models where the reader has put them. Raises ParameterError where they cannot be so."""
    idle = [rank for rank in range(size) if not any(rank in placement.ranks(role) for role in ROLES)]
    beyond = placement.size > size
    book.allow({
        "every rank needs a model, and " + f"{idle} have none": not idle,
        f"ranks are 0 to {size - 1}": not beyond,
        "PPO needs a reward model and a critic": bool(placement.reward and placement.critic),
    })  # fmt: skip
    return labkit.launch(one_step, size, placement, clock="virtual", network=NETWORK(size), transport=transport)


# What a run says ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """The last step of a run. bars: by rank (phase, begin, end) in seconds; busy: seconds in which each rank works."""

    seconds: float
    bars: list[list[tuple[str, float, float]]]
    busy: list[float]
    sent: int
    device: list[int]
    simulated: StepTimeline
    axis: float  # seconds that a picture of it shows: the same for all placements of the same responses

    @property
    def utilization(self) -> float:
        return sum(self.busy) / (len(self.busy) * self.seconds)


Bar = tuple[str, float, float]


def last_step(run: Any) -> Step:
    trace = run.trace
    begin, end = trace.during_step(1)[0], trace.duration
    bars = work(trace, PHASES, begin)
    busy = [sum(b - a for name, a, b in row if name != "swap") for row in bars]
    sent = sum(m.nbytes for m in trace.sends if m.step == 1 and m.collective < 0)
    results: list[Told] = run.results
    ranks = {role: tuple(r for r, one in enumerate(results) if role in one.roles) for role in ROLES}
    simulated = foretold(Placement(**ranks, offload=bool(trace.spans("swap"))), loads_of(results))
    slowest = max(foretold(make(trace.world_size), loads_of(results)).seconds for make in WHERE.values())
    taken = end - begin
    return Step(taken, bars, busy, sent, [one.device for one in results], simulated, max(taken, 1.02 * slowest))


def work(trace: Any, phases: Sequence[str], begin: float = 0.0) -> list[list[Bar]]:
    """By rank (phase, from, to), in seconds after `begin`: where it computed, and of which phase that was a part."""
    within: list[list[Bar]] = [[] for _ in range(trace.world_size)]
    for name in phases:
        for s in trace.spans(name):
            within[s.rank].append((name, s.start, s.end))
    bars: list[list[Bar]] = [[] for _ in range(trace.world_size)]
    for s in trace.spans("compute"):
        if s.start >= begin and s.end > s.start:
            phase = next(name for name, a, b in within[s.rank] if a <= s.start and s.end <= b)
            bars[s.rank].append((phase, s.start - begin, s.end - begin))
    return [_joined(sorted(row, key=lambda bar: bar[1])) for row in bars]


def _joined(row: list[Bar]) -> list[Bar]:
    """Pieces of one phase that follow each other without a pause are one bar."""
    found: list[Bar] = []
    for name, begin, end in row:
        if found and found[-1][0] == name and begin - found[-1][2] < 1e-4:
            found[-1] = (name, found[-1][1], end)
        else:
            found.append((name, begin, end))
    return found


# The innermost first: a swap lies within nothing else, and a model reads within its own phase only.
PHASES = ("swap", "generate", "policy", "reference", "reward", "critic", "train critic", "train policy")


def loads_of(results: Sequence[Told]) -> list[ChunkLoad]:
    """The chunks of the step that these ranks tell of."""
    samples = {s.sequence: s for one in results for s in one.samples}
    ids, each = list(PROMPTS), PPO_STEP.chunk
    return [load([samples[i] for i in ids[n : n + each]]) for n in range(0, len(ids), each)]


def evened(results: Sequence[Told]) -> float:
    """The part of the time that ranks with all four models would work, if all these responses were equally long."""
    loads = loads_of(results)
    longest = round(sum(one.responses for one in loads) / sum(one.sequences for one in loads))
    prompt = len(PROMPTS[0])
    even = [ChunkLoad(n := one.sequences, n * (prompt + longest), n * longest, longest) for one in loads]
    return foretold(Placement.colocated(len(results)), even).utilization


def foretold(placement: Placement, loads: Sequence[ChunkLoad]) -> StepTimeline:
    """What the simulator says of such a step at a placement."""
    return simulate_placement(
        placement, loads, SECONDS, epochs=PPO_STEP.epochs, minibatches=PPO_STEP.minibatches, weights=_sizes()
    )


@cache
def _sizes() -> dict[str, int]:
    return {role: _bytes(model(role)) for role in ROLES}


def load(samples: list[Sample]) -> ChunkLoad:
    responses = sum(len(s.tokens) for s in samples)
    whole = responses + sum(len(s.prompt) for s in samples)
    return ChunkLoad(len(samples), whole, responses, max(len(s.tokens) for s in samples))
