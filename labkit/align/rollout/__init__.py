"""Generation for training: the tokens that a policy model draws, which alignment then learns from.

    how = Sampling(new_tokens=32, end=0, temperature=0.8, top_p=0.95, seed=step)
    samples = generate(model, {0: b"hello", 1: b"how"}, how, slots=8).samples       # on one device
    samples = rollout(prompts, model, group, how, deadline=30.0).samples            # shared by the ranks of a group

cache.py         `PagedCache`: keys and values, in blocks
decode.py        `extend`: one pass over the tokens that are not in the cache yet
sampling.py      `Sampling`: greedy, temperature, top-k, top-p; a number for each draw
sequences.py     a sequence from its prompt to its end, and `Sample`
batching.py      `generate`: continuous batching, and static
speculative.py   `speculate`: a small model guesses, the large one checks
parcels.py       what ranks send each other
workers.py       `rollout`: the ranks share the prompts, and replace one that fails
"""

from labkit.align.rollout.batching import Generation, generate
from labkit.align.rollout.cache import PagedCache
from labkit.align.rollout.decode import extend, next_logits
from labkit.align.rollout.sampling import Sampling
from labkit.align.rollout.sequences import Prompts, Sample
from labkit.align.rollout.speculative import Speculation, speculate
from labkit.align.rollout.workers import Rollout, rollout

__all__ = [
    "Generation",
    "PagedCache",
    "Prompts",
    "Rollout",
    "Sample",
    "Sampling",
    "Speculation",
    "extend",
    "generate",
    "next_logits",
    "rollout",
    "speculate",
]
