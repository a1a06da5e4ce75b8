"""Gradients in 8 bits on the wire, summed in 32: a hook of `DataParallel`, and the all-gather that it ends with.

    model = DataParallel(module, group, hook=QuantizedAllReduce())

    each rank encodes the N parts of its bucket
    an all-to-all brings everybody's part r to rank r
    rank r decodes them, adds them up in float32 in the order of the ranks, and encodes the sum
    an all-gather brings all sums to all ranks

So each gradient is rounded once, and the sum once more, whatever N is (Wang et al. 2023, "ZeRO++", do the same with
integers of 4 bits: qgZ). A ring would add in 8 bits and round at each of its N - 1 hops. `labkit.parallel.bf16_hook`
does that in BF16: it rounds once on every rank and once at every hop. This hook with `Codec("BF16")` sends the same
bytes, adds in float32, and rounds twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.collectives import all_gather, all_to_all
from labkit.collectives.chunks import even_sizes
from labkit.optim.compression.state import HookState
from labkit.optim.precision.codec import Codec
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

E4M3_BLOCKS = Codec("E4M3", 128)
WIRE_ROUNDINGS = ("nearest", "stochastic")


class QuantizedAllReduce(HookState):
    """The hook. `.grad` becomes the sum of what arrives, rounded once more, the same bits on every rank.

    codec: of gradients and sums; a part of a bucket is one row. rounding: "nearest", or "stochastic", whose sum has the
    right expectation; each rank draws its own numbers, from `seed`. There is no error feedback: half a step of E4M3 is
    3 % of a number or less, and `Compressed` remembers what coarser compressors leave out.

    Bytes that a rank sends for a bucket: `cost.coded_all_reduce_bytes_by_rank`. Tensors are on the CPU.
    """

    feedback = False

    def __init__(
        self, codec: Codec = E4M3_BLOCKS, rounding: str = "nearest", seed: int = 0, check_nan: bool = True
    ) -> None:  # fmt: skip
        super().__init__(seed, check_nan)
        if not isinstance(codec, Codec):
            raise RefusedError(f"QuantizedAllReduce({codec!r}): a Codec, such as Codec('E4M3', 128)")
        if rounding not in WIRE_ROUNDINGS:
            raise RefusedError(f"QuantizedAllReduce(rounding={rounding!r}): one of {', '.join(WIRE_ROUNDINGS)}")
        self.codec, self.rounding = codec, rounding

    def bucket(self, flat: Tensor, gradients: Mapping[str, Tensor], group: Group) -> _Sum:
        """Encode, and start to send the parts."""
        name = next(iter(gradients), "")
        self.steps[name] = self.steps.get(name, 0) + 1
        draw = self.dice(name, self.steps[name], group.rank)
        parts = [self.codec.encode(part[None], self.rounding, draw)[0] for part in flat.tensor_split(group.size)]
        out = [len(part) for part in parts]
        came = all_to_all(torch.cat(parts), group, out, [out[group.rank]] * group.size, async_op=True)
        return _Sum(self, flat, group, came, draw)


class _Sum:
    """Waits for everybody's part, adds up, and shares the sum. draw: this rank's random numbers."""

    def __init__(self, hook: QuantizedAllReduce, flat: Tensor, group: Group, came: Any, draw: torch.Generator) -> None:
        self._hook, self._flat, self._group, self._came, self._draw = hook, flat, group, came, draw

    def wait(self) -> None:
        codec, group = self._hook.codec, self._group
        numbers = even_sizes(len(self._flat), group.size)
        mine = numbers[group.rank]
        total, *others = codec.decode(self._came.wait().view(group.size, codec.row_bytes(mine)), mine)
        for part in others:
            total = total + part
        sent = codec.encode(total[None], self._hook.rounding, self._draw)[0]
        self._flat.copy_(CodedGather(sent, numbers, group, codec, "ring").wait())


class CodedGather:
    """An all-gather that is under way, of parts that are encoded as a row each.

    sent: this rank's part, encoded. numbers: of each rank's part. Bytes: `cost.coded_all_gather_bytes_by_rank`.
    """

    def __init__(
        self, sent: Tensor, numbers: Sequence[int], group: Group, codec: Codec, algorithm: str, of: str = ""
    ) -> None:  # fmt: skip
        self._numbers, self._codec = numbers, codec
        self._sizes = [codec.row_bytes(n) for n in numbers]
        self._handle = all_gather(sent, group, self._sizes, algorithm, async_op=True, of=of)

    def wait(self) -> Tensor:
        """The whole (1-D), float32: the same bits on every rank, since a rank decodes its own part too."""
        parts = zip(self._handle.wait().split(self._sizes), self._numbers, strict=True)
        return torch.cat([self._codec.decode(part[None], n)[0] for part, n in parts])
