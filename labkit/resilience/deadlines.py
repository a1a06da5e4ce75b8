"""How long each wait may take: six limits, one inside the other, that cannot contradict each other.

A message is waited for inside an exchange; a vote begins when a rank has its exchange and lasts until the slowest
member of its replica has given up its own; exchange and vote together are part of a step; who asks for a quorum waits
for others that are in a step; and only a rank that has been still for longer than all of that is ended from outside.
So whatever goes wrong, the innermost wait that knows whom it waits for ends first, and says so.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields

from labkit.wire.errors import RefusedError, WaitTimeout

FACTORS = {"message": 3.0, "exchange": 4.0, "vote": 5.0, "step": 10.0, "join": 12.0, "hang": 15.0}
LEAST = 1.0  # seconds: on a busy machine a healthy process may get no processor for about as long


@dataclass(frozen=True)
class Deadlines:
    """Limits in seconds. Refuses a set in which an outer limit could end before one inside it.

    message: one wait for one message. exchange: the all-reduce of a step's gradients. vote: whether all ranks of a
    replica have finished theirs. step: everything from a quorum to the commit. join: until there is a quorum.
    hang: how long a rank may show no sign of progress before its supervisor ends it.
    """

    message: float
    exchange: float
    vote: float
    step: float
    join: float
    hang: float

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10**7:
                raise RefusedError(f"Deadlines({f.name}={value!r}): needs a number of seconds above 0")
        for inner, outer, why in _RULES:
            needed, given = sum(getattr(self, name) for name in inner), getattr(self, outer)
            if not needed < given:
                raise RefusedError(
                    f"Deadlines: {outer}={given:g} s must be longer than {' and '.join(inner)} "
                    f"({needed:g} s){' together' if len(inner) > 1 else ''}: {why}"
                )

    @classmethod
    def for_step(cls, seconds: float, least: float = LEAST) -> Deadlines:
        """A set for a training step that usually takes `seconds`; no limit is shorter than `least` seconds.

        A message may take three steps, as in the FT-HSDP paper (60 s for steps of 20 s, section 4.1).
        """
        for name, value in (("seconds", seconds), ("least", least)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10**5:
                raise RefusedError(f"Deadlines.for_step({name}={value!r}): needs a number of seconds above 0")
        unit = max(float(seconds), least / FACTORS["message"])
        return cls(**{name: factor * unit for name, factor in FACTORS.items()})

    def start(self, name: str, outer: Limit | None = None) -> Limit:
        """Let the limit called `name` run from now on, inside `outer`."""
        if name not in FACTORS:
            raise RefusedError(f"there is no deadline {name!r}: they are {', '.join(FACTORS)}")
        return Limit(name, getattr(self, name), outer)


_RULES = (
    (("message",), "exchange", "an exchange waits for messages"),
    (("exchange",), "vote", "a rank that votes at once waits for one that is still in its exchange"),
    (("exchange", "vote"), "step", "a step holds both, one after the other"),
    (("step",), "join", "a replica that asks for a quorum waits for others that are in a step"),
    (("join",), "hang", "a rank that waits for a quorum does not hang"),
)


class Limit:
    """A deadline that runs. Inside another one it never ends later than that, so the inner one is the first to fire."""

    def __init__(self, name: str, seconds: float, outer: Limit | None = None) -> None:
        self.name, self.seconds, self.outer = name, seconds, outer
        self.begun = time.monotonic()
        self.end: float = self.begun + seconds if outer is None else min(self.begun + seconds, outer.end)

    @property
    def left(self) -> float:
        """Seconds until it ends, 0 when it is over."""
        return max(0.0, self.end - time.monotonic())

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.end

    def check(self, what: str = "") -> None:
        """Raise WaitTimeout if it is over, saying what was waited for."""
        if not self.over:
            return
        text = f"{what}: " if what else ""
        cut = ""
        if self.outer is not None and self.end < self.begun + self.seconds:
            cut = f", cut to {self.end - self.begun:.3g} s by the one around it ({self.outer.name})"
        raise WaitTimeout(f"{text}the deadline of {self.seconds:g} s for a {self.name} is over{cut}")

    def __repr__(self) -> str:
        return f"Limit({self.name}, {self.left:.3g} of {self.seconds:g} s left)"
