"""Four models on the ranks of a fleet: who holds which one, what they send each other, and how a step goes by.

A step of PPO learns from chunks: a few prompts with their responses. The policy writes a chunk, and then every other
model reads it. All this is the same wherever the models are; the placement says on which rank it happens.

    colocated          every rank has all four, and works through its own chunks
    time-multiplexed   so too, but only the model at work is in the memory of the device, and the others in the host's
    separate           each model has a pool of ranks of its own, and chunks travel between pools
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from labkit.cost.refuse import not_negative, whole

__all__ = ["ROLES", "ChunkLoad", "Placement", "StepTimeline", "WorkSeconds", "placement_bytes", "simulate_placement",
           "swap_bytes_by_phase"]  # fmt: skip

ROLES = ("policy", "reference", "reward", "critic")


@dataclass(frozen=True)
class Placement:
    """The ranks of each model. GRPO has no critic, DPO no reward model either. offload: time-multiplexed.

    Raises ValueError for a model without ranks, a rank that stands twice in a pool, and offload of separate pools.
    """

    policy: tuple[int, ...]
    reference: tuple[int, ...]
    reward: tuple[int, ...] = ()
    critic: tuple[int, ...] = ()
    offload: bool = False

    def __post_init__(self) -> None:
        for role in ROLES:
            ranks = self.ranks(role)
            if role in ("policy", "reference") and not ranks:
                raise ValueError(f"Placement({role}=()): the {role} model needs a rank")
            if len({*ranks}) != len(ranks) or any(rank < 0 for rank in ranks):
                raise ValueError(f"Placement({role}={ranks}): different ranks, from 0 on")
        if self.offload and any(self.ranks(role) not in ((), self.policy) for role in ROLES):
            raise ValueError("offload is for models that share all their ranks: with pools of their own nothing waits")

    @classmethod
    def colocated(cls, size: int, *, critic: bool = True, offload: bool = False) -> Placement:
        """All models on all of `size` ranks."""
        whole(size=size)
        every = tuple(range(size))
        return cls(every, every, every, every if critic else (), offload)

    @classmethod
    def separate(cls, policy: int, reference: int, reward: int, critic: int = 0) -> Placement:
        """Pools of so many ranks, one after the other."""
        ranks = iter(range(policy + reference + reward + critic))
        pools = [tuple(islice(ranks, n)) for n in (policy, reference, reward, critic)]
        return cls(pools[0], pools[1], pools[2], pools[3])

    def ranks(self, role: str) -> tuple[int, ...]:
        """The pool of a model."""
        found: tuple[int, ...] = getattr(self, role)
        return found

    def owner(self, role: str, chunk: int) -> int:
        """The rank at which a model meets a chunk: chunks are dealt out in turn."""
        ranks = self.ranks(role)
        return ranks[chunk % len(ranks)]

    @property
    def size(self) -> int:
        """Ranks that there must be."""
        return 1 + max(rank for role in ROLES for rank in self.ranks(role))

    @property
    def readers(self) -> tuple[str, ...]:
        """The models that read what the policy has written."""
        return tuple(role for role in ROLES[1:] if self.ranks(role))


@dataclass(frozen=True)
class ChunkLoad:
    """sequences, and tokens of prompts and responses (tokens) and of responses alone. steps: decoding steps."""

    sequences: int
    tokens: int
    responses: int
    steps: int


@dataclass(frozen=True)
class WorkSeconds:
    """Seconds of a decoding step (decode), of a token that a model only reads (read), and of one in an update (train).

    host_bandwidth: bytes a second between device and host, each way. Without it swaps take no time.
    """

    decode: float
    read: float
    train: float
    host_bandwidth: float = float("inf")

    def __post_init__(self) -> None:
        not_negative(decode=self.decode, read=self.read, train=self.train)


@dataclass(frozen=True)
class StepTimeline:
    """seconds: of the step. busy: seconds in which each rank works."""

    seconds: float
    busy: list[float]

    @property
    def utilization(self) -> float:
        """The part of all ranks' time in which they work."""
        return sum(self.busy) / (len(self.busy) * self.seconds)


def simulate_placement(
    placement: Placement, chunks: Sequence[ChunkLoad], seconds: WorkSeconds, *, epochs: int = 1, minibatches: int = 1,
    weights: Mapping[str, int] | None = None,
) -> StepTimeline:  # fmt: skip
    """A step of PPO, or of GRPO where there is no critic, without the time of messages.

    The policy writes its chunks one after the other; a model of another pool reads each as soon as it is there. When
    all is read, every model that learns goes `epochs` times over `minibatches` parts of the chunks, and its pool sums
    the gradients after each. weights: bytes of each model, for the swaps of `offload`.
    """
    whole(epochs=epochs, minibatches=minibatches)
    clock, busy, written = [0.0] * placement.size, [0.0] * placement.size, dict[int, float]()
    swaps = swap_bytes_by_phase(weights or {}, placement) if placement.offload else {}

    def work(role: str, chunk: int, duration: float, after: float = 0.0) -> float:
        rank = placement.owner(role, chunk)
        clock[rank] = max(clock[rank], after) + duration
        busy[rank] += duration
        return clock[rank]

    def swap(phase: str) -> None:
        for rank in range(placement.size):
            clock[rank] += swaps.get(phase, 0) / seconds.host_bandwidth

    swap("generate")
    for c, chunk in enumerate(chunks):
        written[c] = work("policy", c, chunk.steps * seconds.decode)
    for role in ("policy", *placement.readers):
        swap(role)
        for c, chunk in enumerate(chunks):
            work(role, c, chunk.tokens * seconds.read, written[c])
    clock = [max(clock)] * placement.size
    for role in ("critic", "policy"):
        pool = placement.ranks(role)
        if not pool:
            continue
        swap(f"train {role}")
        for part in [range(0), *split(len(chunks), minibatches) * epochs]:  # they agree on counts first
            for c in part:
                work(role, c, chunks[c].tokens * seconds.train)
            together = max(clock[rank] for rank in pool)
            for rank in pool:
                clock[rank] = together
    return StepTimeline(max(clock), busy)


def split(count: int, parts: int) -> list[range]:
    """`count` chunks in so many minibatches, as equal as can be, the longer ones first."""
    each, more = divmod(count, parts)
    starts = [n * each + min(n, more) for n in range(parts + 1)]
    return [range(a, b) for a, b in zip(starts, starts[1:], strict=False)]


def swap_bytes_by_phase(weights: Mapping[str, int], placement: Placement) -> dict[str, int]:
    """Bytes that cross between device and host before each phase of a step, out and in, on every rank.

    A trained model has its weights and Adam's two moments of as many bytes, all changed by the step before. Frozen
    weights need not go out: the host's copy is still right. All phases together, with policy P, critic C, reference R
    and reward model M: 6 P + 6 C + R + M, of which 3 P + 3 C go out.
    """
    p, c = weights["policy"], weights["critic"] if placement.critic else 0
    swaps = {"generate": 2 * p, "reference": p + weights["reference"], "reward": weights["reward"]}
    if placement.critic:
        swaps |= {"critic": c, "train critic": 2 * c}
    return swaps | {"train policy": 3 * c + 3 * p}


def placement_bytes(placement: Placement, chunks: Sequence[ChunkLoad]) -> list[list[int]]:
    """Bytes from each rank (row) to each rank (column) in the messages of a step; nothing where all are colocated.

    A chunk of s sequences, n tokens and r of them in responses: 8 (2 + 2 s + n) once to every other rank that reads it;
    back come 4 r of the reference's log-probabilities, 4 s rewards and 4 r values, and 4 r returns go to the critic.
    The sums of gradients within a pool come on top: an all-reduce of the model for each update.
    """
    sent = [[0] * placement.size for _ in range(placement.size)]
    for c, chunk in enumerate(chunks):
        home = placement.owner("policy", c)
        readers = {role: placement.owner(role, c) for role in placement.readers}
        for rank in {*readers.values()} - {home}:
            sent[home][rank] += 8 * (2 + 2 * chunk.sequences + chunk.tokens)
        for role, rank in readers.items():
            if rank != home:
                sent[rank][home] += 4 * (chunk.sequences if role == "reward" else chunk.responses)
                sent[home][rank] += 4 * chunk.responses if role == "critic" else 0
    return sent
