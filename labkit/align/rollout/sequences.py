"""A sequence from its prompt to its end: what is asked for, what has come so far, and what is handed back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from labkit.align.rollout.sampling import Sampling, uniform
from labkit.models.gpt import GPTConfig
from labkit.wire.errors import RefusedError

Prompts = Mapping[int, Sequence[int]]  # tokens by the id of their sequence; bytes or a 1-D tensor of integers will do


@dataclass(frozen=True)
class Sample:
    """What was generated after a prompt.

    log_probs: of each token, under the policy that it was drawn from. ended: "end" after the end token, which is the
    last of `tokens`, or "length".
    """

    sequence: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    ended: str


@dataclass
class Growing:
    """A sequence that is being generated."""

    sequence: int
    prompt: tuple[int, ...]
    how: Sampling
    context: int
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    @property
    def whole(self) -> tuple[int, ...]:
        return (*self.prompt, *self.tokens)

    @property
    def left(self) -> int:
        """How many more tokens there may be."""
        return min(self.how.new_tokens - len(self.tokens), self.context - len(self.whole))

    @property
    def ended(self) -> str:
        """Why it has ended; "" if it goes on."""
        if self.tokens and self.tokens[-1] == self.how.end:
            return "end"
        return "" if self.left else "length"

    def uniform(self, purpose: str = "token", ahead: int = 0) -> float:
        """The number that decides the token `ahead` of the next one."""
        return uniform(self.how.seed, self.sequence, len(self.whole) + ahead, purpose)

    def add(self, token: int, log_prob: float) -> None:
        self.tokens.append(token)
        self.log_probs.append(log_prob)

    def sample(self) -> Sample:
        return Sample(self.sequence, self.prompt, tuple(self.tokens), tuple(self.log_probs), self.ended)


def begin(prompts: Prompts, how: Sampling, config: GPTConfig) -> list[Growing]:
    """The sequences of these prompts. Raises RefusedError, with the id, for one that the model cannot go on from."""
    if how.end is not None and how.end >= config.vocab:
        raise RefusedError(f"the end token is {how.end}, and tokens go from 0 to {config.vocab - 1}")
    found = {i: tuple(int(token) for token in prompt) for i, prompt in prompts.items()}
    for i, prompt in found.items():
        if not prompt:
            raise RefusedError(f"the prompt of sequence {i} is empty: give it one token or more, such as a start token")
        if len(prompt) >= config.context:
            raise RefusedError(
                f"the prompt of sequence {i} has {len(prompt)} tokens, and with a context of {config.context} one of "
                f"at most {config.context - 1} leaves room for a new token: cut the prompt"
            )
        if outside := [token for token in prompt if not 0 <= token < config.vocab]:
            raise RefusedError(
                f"the prompt of sequence {i} has token {outside[0]}, and tokens go from 0 to {config.vocab - 1}"
            )
    return [Growing(i, prompt, how, config.context) for i, prompt in found.items()]
