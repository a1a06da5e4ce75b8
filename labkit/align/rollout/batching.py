"""Continuous batching: a sequence that has ended makes room for the next one at once (Yu et al. 2022, "Orca", 3.1).

A batch has a number of slots. With static batching all slots are filled together and the batch is over when its longest
sequence is, so a slot whose sequence ended early is idle for the rest. With continuous batching who is in the batch is
decided anew before each step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from labkit.align.rollout.cache import PagedCache
from labkit.align.rollout.decode import next_logits
from labkit.align.rollout.sampling import Sampling, check_logits, draw
from labkit.align.rollout.sequences import Growing, Prompts, Sample, begin
from labkit.models.gpt import GPT
from labkit.wire.errors import RefusedError


@dataclass(frozen=True)
class Generation:
    """samples: by id, in the order of the prompts. steps: for each step, the sequence in each slot, or None.

    preempted: sequences that lost their blocks to others, once for each time. used: the most blocks in use at a time.
    """

    samples: dict[int, Sample]
    steps: list[tuple[int | None, ...]]
    preempted: list[int]
    used: int

    @property
    def busy(self) -> list[int]:
        """How many slots had a sequence, by step."""
        return [sum(sequence is not None for sequence in step) for step in self.steps]


def generate(
    model: GPT, prompts: Prompts, how: Sampling, slots: int = 8, *, continuous: bool = True, blocks: int | None = None,
    block: int = 16,
) -> Generation:  # fmt: skip
    """Go on from each prompt, `slots` sequences at a time.

    continuous: fill a slot when its sequence has ended, otherwise all of them when all have. blocks: of the cache (see
    `PagedCache`); without it, enough for the longest sequences in all slots. With fewer, a sequence waits until its
    prompt fits; where those in the slots need more than there are, the one that came last gives its blocks back and is
    first to be admitted again, its tokens so far with its prompt (Kwon et al. 2023, 4.5, recomputation).

    A sequence's tokens are those it would get alone: batches differ in the rounding of their logits only, and that
    decides a draw about once in 10^6 tokens in float32. Raises RefusedError for a prompt that is empty or leaves no
    room in the context, a cache that is too small for one sequence, and NaN logits, which names the sequence.
    """
    for name, value in (("slots", slots), ("block", block)):
        if type(value) is not int or value < 1:
            raise RefusedError(f"{name}={value!r}: a whole number of at least 1")
    waiting = deque(begin(prompts, how, model.config))
    cache = _cache(model, waiting, slots, blocks, block)
    running: dict[int, Growing] = {}  # by slot, in the order in which they came
    samples, steps, preempted, used = dict[int, Sample](), list[tuple[int | None, ...]](), list[int](), 0
    while waiting or running:
        while not cache.fits(_counts(running.values(), cache)):
            _, last = running.popitem()
            cache.drop(last.sequence)
            waiting.appendleft(last)
            preempted.append(last.sequence)
        if continuous or not running:
            for slot in sorted({*range(slots)} - {*running}):
                if waiting and cache.fits(_counts([*running.values(), waiting[0]], cache)):
                    running[slot] = waiting.popleft()
        steps.append(tuple(running[i].sequence if i in running else None for i in range(slots)))
        step(model, cache, running.values(), how)
        used = max(used, cache.used)
        for slot, s in [*running.items()]:
            if s.ended:
                samples[s.sequence] = s.sample()
                cache.drop(s.sequence)
                del running[slot]
    return Generation({i: samples[i] for i in prompts}, steps, preempted, used)


def step(model: GPT, cache: PagedCache, batch: Collection[Growing], how: Sampling) -> None:
    """One more token for each sequence of the batch."""
    fresh = {s.sequence: s.whole[cache.lengths.get(s.sequence, 0) :] for s in batch}
    logits_bv = next_logits(model, cache, fresh)
    check_logits(logits_bv, list(fresh))
    log_probs_bv = how.log_probs(logits_bv)
    tokens = draw(log_probs_bv, [s.uniform() for s in batch])
    for s, token, log_probs_v in zip(batch, tokens, log_probs_bv, strict=True):
        s.add(token, float(log_probs_v[token]))


def _counts(batch: Iterable[Growing], cache: PagedCache) -> dict[int, int]:
    """How many positions of each sequence are not in the cache."""
    return {s.sequence: len(s.whole) - cache.lengths.get(s.sequence, 0) for s in batch}


def _cache(model: GPT, batch: Collection[Growing], slots: int, blocks: int | None, block: int) -> PagedCache:
    """A cache of so many blocks, or as many as sequences of the largest length need in all slots."""
    longest = max((len(s.prompt) + s.left - 1 for s in batch), default=1)  # the last token is never read
    needed = -(-longest // block)
    if blocks is not None and blocks < needed:
        raise RefusedError(
            f"blocks={blocks}: the longest sequence may need {needed} blocks of {block} positions, and must fit alone"
        )
    weight = model.tokens.weight
    enough = needed * min(slots, max(1, len(batch)))
    return PagedCache(model.config, enough if blocks is None else blocks, block, weight.dtype, weight.device)
