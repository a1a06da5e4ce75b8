"""What the ranks of a rollout send each other: a word, whole numbers, and floating-point ones.

A parcel is a head of 24 bytes (the word, and how many numbers of each kind follow), then 8 bytes for each number. A
prompt takes 2 numbers and its tokens; a sample takes 4, those of its prompt, and 2 for each of its tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

import torch

from labkit.align.rollout.sequences import Prompts, Sample
from labkit.wire.group import Group

SHARE, SAMPLES, RESULT, REFUSED = range(4)  # the words
ENDED = ("end", "length")


@dataclass(frozen=True)
class Parcel:
    word: int
    integers: list[int]
    floats: tuple[float, ...] = ()

    def send(self, group: Group, to: int) -> None:
        group.send(torch.tensor([self.word, len(self.integers), len(self.floats)]), to)
        if self.integers:
            group.send(torch.tensor(self.integers), to)
        if self.floats:
            group.send(torch.tensor(self.floats, dtype=torch.float64), to)


def receive(group: Group, source: int) -> Parcel:
    """The next parcel from rank `source`."""
    word, integers, floats = group.recv(torch.empty(3, dtype=torch.int64), source).tolist()
    whole, real = torch.empty(integers, dtype=torch.int64), torch.empty(floats, dtype=torch.float64)
    if integers:
        group.recv(whole, source)
    if floats:
        group.recv(real, source)
    return Parcel(word, whole.tolist(), tuple(real.tolist()))


def refused(why: str) -> Parcel:
    return Parcel(REFUSED, list(why.encode()))


def reason(parcel: Parcel) -> str:
    """Why it was refused."""
    return bytes(parcel.integers).decode()


def pack_prompts(prompts: Prompts) -> list[int]:
    return [number for i, prompt in prompts.items() for number in (i, len(prompt), *map(int, prompt))]


def unpack_prompts(integers: Iterable[int]) -> dict[int, tuple[int, ...]]:
    numbers, prompts = iter(integers), dict[int, tuple[int, ...]]()
    for i in numbers:
        prompts[i] = tuple(islice(numbers, next(numbers)))
    return prompts


def pack_samples(samples: Mapping[int, Sample]) -> tuple[list[int], tuple[float, ...]]:
    integers = list[int]()
    for s in samples.values():
        integers += (s.sequence, ENDED.index(s.ended), len(s.prompt), len(s.tokens), *s.prompt, *s.tokens)
    return integers, tuple(x for s in samples.values() for x in s.log_probs)


def unpack_samples(integers: Iterable[int], floats: Iterable[float]) -> dict[int, Sample]:
    numbers, log_probs, samples = iter(integers), iter(floats), dict[int, Sample]()
    for i in numbers:
        ended, prompt, tokens = tuple(islice(numbers, 3))
        samples[i] = Sample(
            i,
            tuple(islice(numbers, prompt)),
            tuple(islice(numbers, tokens)),
            tuple(islice(log_probs, tokens)),
            ENDED[ended],
        )
    return samples
