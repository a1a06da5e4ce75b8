"""Faults that are really injected: a process killed, a message lost, a bit flipped, a rank slowed down.

A fault names its rank and when: `step=` (the rank marks that training step), `message=` (the rank is about to send
its nth message), or `at=` a span or collective name with `nth=`, counted from the birth of its process, or from when
it is injected into a job that runs; without any of these it strikes at once.
Each fires once a job. The rank that reaches the place asks the parent, which strikes it: what
is killed is killed from outside, in the middle of whatever it was doing.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from labkit.wire.recording.record import Page

from .errors import RefusedError


@dataclass(frozen=True)
class Fault:
    """Base of all faults. rank: the world rank it strikes. At most one of step, message and at is given.

    A kind of fault has a `signal`, which the parent sends to the process, or the rank carries it out itself:
    `carry_out`, and for those on messages `on_message`.
    """

    signal: ClassVar[int] = 0

    rank: int
    step: int | None = None
    message: int | None = None
    at: str | None = None
    nth: int = 1

    def __post_init__(self) -> None:
        if sum(w is not None for w in (self.step, self.message, self.at)) > 1:
            raise RefusedError(f"{self}: give one of step=, message= and at=, not several")
        if self.nth < 1 or (self.message is not None and self.message < 1):
            raise RefusedError(f"{self}: nth= and message= count from 1")

    @property
    def immediate(self) -> bool:
        """Whether it strikes at once."""
        return self.step is None and self.message is None and self.at is None

    def carry_out(self, rank: RankFaults) -> None:
        """Strike, in the rank itself."""

    def where(self) -> str:
        """When it strikes, in words."""
        if self.step is not None:
            return f"at step {self.step}"
        if self.message is not None:
            return f"at message {self.message}"
        return f"at {self.at!r} number {self.nth}" if self.at is not None else "at once"


@dataclass(frozen=True)
class Kill(Fault):
    """The process dies at once (SIGKILL), as when the machine loses power."""

    signal = signal.SIGKILL


@dataclass(frozen=True)
class Hang(Fault):
    """The process stops (SIGSTOP): alive, silent, holding its sockets open."""

    signal = signal.SIGSTOP


@dataclass(frozen=True)
class Slow(Fault):
    """`group.compute` takes `factor` times as long from here on."""

    factor: float = 2.0

    def carry_out(self, rank: RankFaults) -> None:
        rank.slow *= self.factor


class MessageFault(Fault):
    """One that strikes the next message which the rank sends."""

    def carry_out(self, rank: RankFaults) -> None:
        rank.next_messages.append(self)

    def on_message(self, x: Tensor) -> Tensor | None:
        """What is sent in place of `x`; None for nothing."""
        raise NotImplementedError


@dataclass(frozen=True)
class Corrupt(MessageFault):
    """One bit of the message flips on the way: bit `bit` of the last byte (sign and exponent) of its middle element."""

    bit: int = 6

    def on_message(self, x: Tensor) -> Tensor:
        x = x.clone()
        if x.numel():
            raw = x.as_strided((x.numel(),), (1,)).view(torch.uint8)  # a single entry may have any stride
            raw[raw.numel() // 2 | (x.element_size() - 1)] ^= 1 << self.bit
        return x


@dataclass(frozen=True)
class Drop(MessageFault):
    """The message is never sent."""

    def on_message(self, x: Tensor) -> None:
        return None


@dataclass(frozen=True)
class Raise(Fault):
    """The rank's code raises RuntimeError(text)."""

    text: str = "injected fault"

    def carry_out(self, rank: RankFaults) -> None:
        raise RuntimeError(self.text)


KINDS = [k.__name__ for k in (*Fault.__subclasses__(), *MessageFault.__subclasses__()) if k is not MessageFault]


def check_faults(faults: Any, size: int) -> list[Fault]:
    """The faults as a list; refuses what is no fault or names a rank outside the world."""
    if faults is not None and not isinstance(faults, list | tuple):
        raise RefusedError(f"faults={faults!r}: needs a list of faults, such as [Kill(1, step=3)]")
    faults = list(faults or [])
    for f in faults:
        if not isinstance(f, Fault) or type(f) is Fault:
            raise RefusedError(f"faults= takes {', '.join(KINDS[:-1])} and {KINDS[-1]}, not {f!r}")
        if not isinstance(f.rank, int) or not 0 <= f.rank < size:
            raise RefusedError(f"{f}: the world has ranks 0 to {size - 1}")
    return faults


class RankFaults:
    """The faults of one rank, watched from inside it.

    ask(number) tells the parent that fault `number` is due and returns whether it is to be carried out here (what has a
    signal is carried out by the parent while `ask` waits), and any faults that were injected meanwhile. ask(-1) only
    asks for those.
    """

    def __init__(self, faults: dict[int, Fault], page: Page, ask: Callable[[int], tuple[bool, dict[int, Fault]]]):
        self._waiting, self._page, self._ask = dict(faults), page, ask
        self._messages, self._spans = 0, {}  # type: int, dict[str, int]
        self._before: dict[int, int] = {}  # fault that came later -> how often its place had been passed by then
        self.next_messages: list[MessageFault] = []
        self.slow = 1.0

    def start(self) -> None:
        """Carry out what strikes at once."""
        self._strike(lambda f, _: f.immediate)

    def at_step(self, n: int) -> None:
        self._strike(lambda f, _: f.step == n)

    def at_span(self, name: str) -> None:
        self._listen()  # a fault that comes just now counts this one
        seen = self._spans[name] = self._spans.get(name, 0) + 1
        self._strike(lambda f, before: f.at == name and f.nth == seen - before)

    def at_message(self, x: Tensor, peer: int) -> Tensor | None:
        """The tensor to send in place of `x`; None to send nothing."""
        self._messages += 1
        self._strike(lambda f, _: f.message == self._messages)
        return self.next_messages.pop(0).on_message(x) if self.next_messages else x

    def _listen(self) -> None:
        if self._page.fault:  # the parent has something for us
            self._page.fault = 0
            self._take(self._ask(-1)[1])

    def _take(self, more: dict[int, Fault]) -> None:
        self._before |= {n: self._spans.get(f.at, 0) for n, f in more.items() if f.at is not None}
        self._waiting.update(more)

    def _strike(self, due: Callable[[Fault, int], bool]) -> None:
        self._listen()
        for number, fault in list(self._waiting.items()):
            here = due(fault, self._before.get(number, 0)) or fault.immediate
            if here and self._waiting.pop(number, None) is not None:
                go, more = self._ask(number)
                self._take(more)
                if go:
                    fault.carry_out(self)
