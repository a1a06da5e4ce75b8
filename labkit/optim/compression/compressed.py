"""Any compressor as a hook of `DataParallel`, with error feedback.

    hook = Compressed(TopK(0.01))
    model = DataParallel(module, group, hook=hook)

Error feedback (Seide et al. 2014; Karimireddy et al. 2019, algorithm 1), for each parameter on each rank:

    p = gradient + residual
    send encode(p)
    residual = p - decode(encode(p))

What is not sent now is sent later: what was sent and what is kept are together p, to the bit where the subtraction is
exact (top-k, random-k: a number is sent whole or kept whole), else to half a unit in the last place of what is kept.
That needs a compressor whose error is smaller than its input. An unbiased one does without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from labkit.collectives import all_gather, all_reduce
from labkit.optim.compression.compressors import Compressor, RandomK
from labkit.optim.compression.payload import Parts, joined, nbytes, parted
from labkit.optim.compression.state import HookState
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


class Compressed(HookState):
    """The hook. `.grad` becomes the sum over the ranks of what each has sent, the same bits on every rank.

    feedback: keep what was not sent, in memory as large as the gradients. A parameter goes whole where the compressor
    would not save bytes. algorithm: of the all-reduce of a `summable` compressor; the others are all-gathered. Each
    bucket is one message with all its payloads. Encoding happens when the bucket is full, decoding in `wait`.

    Bytes that a rank sends for a bucket of N ranks: `cost.gathered_payload_bytes` of the payloads' sum, or those of
    the all-reduce of its values. Gradients of 16 bits have residuals of 16 bits. Tensors are on the CPU.
    """

    def __init__(
        self, compressor: Compressor, feedback: bool = True, seed: int = 0, algorithm: str = "auto",
        check_nan: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(seed, check_nan)
        if feedback and isinstance(compressor, RandomK) and compressor.scale:
            raise RefusedError(
                "RandomK(scale=True) with feedback: what is sent is larger than what came in, and the residual would "
                "grow without end. Take scale=False, or feedback=False"
            )
        self.compressor, self.feedback, self.algorithm = compressor, feedback, algorithm

    def bucket(self, flat: Tensor, gradients: Mapping[str, Tensor], group: Group) -> _Sum:
        """Encode, and start to send."""
        entries, parts = [], []
        for name, gradient in gradients.items():
            step = self.steps[name] = self.steps.get(name, 0) + 1
            x = self._outgoing(name, gradient.view(-1), group.size)
            compressor = self._choose(step)
            if nbytes(compressor.parts(len(x), x.dtype)) >= x.nbytes:
                compressor = _WHOLE
            dice = partial(self.dice, name, step)
            mine = 0 if compressor.summable else group.rank
            sent = compressor.encode(x, dice(mine))
            if self.feedback:
                self._keep(name, x, compressor.decode(sent, len(x), dice(mine)).to(x.dtype))
            parts += sent
            entries.append(_Entry(gradient.view(-1), compressor, compressor.parts(len(x), x.dtype), dice))
        message = joined(parts)
        if self.compressor.summable:
            values = message.view(flat.dtype)
            return _Sum(entries, all_reduce(values, group, algorithm=self.algorithm, async_op=True), 1)
        return _Sum(entries, all_gather(message, group, async_op=True), group.size)

    def _choose(self, step: int) -> Compressor:
        """The compressor of a step, from 1."""
        return self.compressor

    def _outgoing(self, name: str, gradient: Tensor, ranks: int) -> Tensor:
        """What is to be encoded for this gradient (1-D)."""
        return self.at("residual", name, gradient) + gradient if self.feedback else gradient

    def _keep(self, name: str, x: Tensor, sent: Tensor) -> None:
        """x was to be sent, and this arrives of it."""
        torch.sub(x, sent, out=self.kept["residual"][name])


@dataclass
class _Entry:
    """One parameter of a message. out: its part of the bucket. dice(rank): what that rank drew with."""

    out: Tensor
    compressor: Compressor
    parts: Parts
    dice: Callable[[int], torch.Generator]


class _Sum:
    """Waits for the messages, and adds up what they say in the order of the ranks."""

    def __init__(self, entries: list[_Entry], handle: Any, messages: int) -> None:
        self._entries, self._handle, self._messages = entries, handle, messages

    def wait(self) -> None:
        arrived = self._handle.wait().view(torch.uint8).view(self._messages, -1)
        for rank, message in enumerate(arrived):
            parts = iter(parted(message, [part for entry in self._entries for part in entry.parts]))
            for entry in self._entries:
                sent = list(islice(parts, len(entry.parts)))
                decoded = entry.compressor.decode(sent, len(entry.out), entry.dice(rank))
                entry.out.copy_(decoded) if rank == 0 else entry.out.add_(decoded)


class _Whole:
    """Everything as it is, for what is too small to be compressed."""

    summable = True

    def parts(self, n: int, dtype: torch.dtype) -> Parts:
        return ((dtype, n),)

    def encode(self, x: Tensor, draw: torch.Generator) -> list[Tensor]:
        return [x]

    def decode(self, sent: list[Tensor], n: int, draw: torch.Generator) -> Tensor:
        return sent[0]


_WHOLE = _Whole()
