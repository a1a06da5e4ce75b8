"""What one rank of a pipeline can be told to do: small frozen objects, which say what and with which microbatch.

`microbatch` counts from 0. `chunk` counts the parts of the model that lie on the same rank, from 0; without
interleaving there is one. Which stage of the model a chunk of a rank is, its `Schedule` says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, order=True)
class Instruction:
    """One thing to do. `action` is its name in PyTorch's notation (`torch.distributed.pipelining`)."""

    action: ClassVar[str] = ""

    microbatch: int
    chunk: int = 0


class Compute(Instruction):
    """Takes time on the rank that does it, and reads or writes activations."""

    __slots__ = ()


class Forward(Compute):
    """Compute the stage's output; keep what backward will need."""

    __slots__ = ()
    action = "F"


class Backward(Compute):
    """The whole backward: gradients of the stage's input and of its weights."""

    __slots__ = ()
    action = "B"


class InputGradient(Compute):
    """The gradient of the stage's input alone (B in Qi et al. 2023): what the stage before waits for."""

    __slots__ = ()
    action = "I"


class WeightGradient(Compute):
    """The gradients of the stage's weights (W in Qi et al. 2023): nobody waits for them before the step ends."""

    __slots__ = ()
    action = "W"


class Update(Compute):
    """The optimizer's step, with the gradient of one microbatch: PipeDream's, which never flushes."""

    __slots__ = ()
    action = "U"


class Message(Instruction):
    """Moves an activation or a gradient between neighbouring stages."""

    __slots__ = ()


class SendActivation(Message):
    """Send the stage's output to the next stage."""

    __slots__ = ()
    action = "SEND_F"


class RecvActivation(Message):
    """Receive the stage's input from the stage before."""

    __slots__ = ()
    action = "RECV_F"


class SendGradient(Message):
    """Send the gradient of the stage's input to the stage before."""

    __slots__ = ()
    action = "SEND_B"


class RecvGradient(Message):
    """Receive the gradient of the stage's output from the next stage."""

    __slots__ = ()
    action = "RECV_B"
