"""Linear layers of which every rank holds a part: of the outputs (column-parallel) or of the inputs (row-parallel).

One after the other they need one sum over the ranks: what the columns of the first make, the rows of the second read.
"Column" and "row" are those of A in Y = X A (Shoeybi et al. 2019, section 3). `nn.Linear` keeps the transpose, so
column-parallel cuts the rows of `weight`.

A new layer draws the weights of the whole `nn.Linear` and keeps its part: ranks with the same random state hold parts
of the same layer. `.of(linear, group)` takes parts of a layer that is there already.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from labkit.parallel.refusals.same_model import check_same, describe
from labkit.parallel.tensor.degrees import check_divides
from labkit.parallel.tensor.placement import Shards, check_shards, shard_spec_of
from labkit.parallel.tensor.products import CommOptions, Product, column_product, row_product
from labkit.parallel.tensor.regions import copy_to_region, gather_from_region, scatter_to_region
from labkit.parallel.tensor.shard_spec import ShardSpec
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group


class _Part(nn.Module):
    """What both have: a part of a linear layer, and how it communicates."""

    product: Product  # what multiplies; `labkit.parallel.kernels` puts one there that takes time
    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, group: Group, sequence: bool, overlap: bool, algorithm: str) -> None:
        super().__init__()
        self.group, self.sequence, self.overlap, self.algorithm = group, sequence, overlap, algorithm
        self.product, self.gather_again = Product(), True

    def _agree(self, linear: nn.Linear, **options: object) -> None:
        """The same layer and options on every rank, or RefusedError on all. One all-gather of 16 bytes a rank."""
        options |= {"sequence": self.sequence, "overlap": self.overlap, "algorithm": self.algorithm}
        check_same(describe(linear) | {f"option {k}": repr(v) for k, v in options.items()}, self.group)

    def _take(self, linear: nn.Linear, shard_specs: dict[str, ShardSpec]) -> None:
        """Keep this rank's part of weight and bias."""
        self.in_features, self.out_features, self.shard_specs = linear.in_features, linear.out_features, shard_specs
        for name, p in linear.named_parameters():
            part = shard_specs[name].take(p.detach(), self.group.rank) if name in shard_specs else p.detach().clone()
            part = part if part.is_meta else part.to(self.group.device)
            self.register_parameter(name, nn.Parameter(part, requires_grad=p.requires_grad))
        if linear.bias is None:
            self.register_parameter("bias", None)

    def _comm(self, length: int | None = None) -> CommOptions:
        return CommOptions(
            self.group, self.sequence, self.overlap, self.algorithm, length, self.product, self.gather_again
        )

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, part {self.group.rank} of {self.group.size}"


class ColumnParallelLinear(_Part):
    """`nn.Linear(in_features, out_features)` whose outputs are shared out: every rank makes out_features / N of them.

    weight: (out_features / N, in_features), bias: (out_features / N).
    gather_output: return all columns on every rank; one all-gather more in forward.
    sequence: the input is this rank's part of dimension 1, gathered before the product and again in backward.
    gather_again: False keeps the gathered input for backward: N times the memory, and one all-gather less.
    overlap: the sum of the input's gradient hides behind the weight's gradient.
    sections: lengths into which the outputs fall (queries, keys, values); every rank has its part of each.
    uneven: cut as `torch.tensor_split` where N does not divide (a vocabulary), in place of refusing that.
    shards: equal parts of each section that each rank holds, in place of an even cut: see `spread.py`.

    Sent, for an input of M bytes: forward nothing; backward one all-reduce of M bytes. With `sequence`: an all-gather
    forward, an all-gather and a reduce-scatter backward. The collectives are those of `algorithm`.
    Raises RefusedError on every rank: outputs that do not divide, with the nearest degrees; ranks whose layers differ.
    """

    def __init__(
        self, in_features: int, out_features: int, group: Group, *, bias: bool = True, gather_output: bool = False,
        sequence: bool = False, overlap: bool = True, gather_again: bool = True,
        sections: Sequence[int] | None = None, uneven: bool = False, shards: Shards | None = None,
        algorithm: str = "auto", check: bool = True,
    ):  # fmt: skip
        super().__init__(group, sequence, overlap, algorithm)
        self.gather_again = gather_again
        self._cut(nn.Linear(in_features, out_features, bias=bias), gather_output, sections, uneven, shards, check)

    @classmethod
    def of(
        cls, linear: nn.Linear, group: Group, *, gather_output: bool = False, sequence: bool = False,
        overlap: bool = True, gather_again: bool = True, sections: Sequence[int] | None = None, uneven: bool = False,
        shards: Shards | None = None, algorithm: str = "auto", check: bool = True,
    ) -> ColumnParallelLinear:  # fmt: skip
        """This rank's part of `linear`, which is the same on every rank."""
        made = cls.__new__(cls)
        _Part.__init__(made, group, sequence, overlap, algorithm)
        made.gather_again = gather_again
        made._cut(linear, gather_output, sections, uneven, shards, check)
        return made

    def _cut(
        self, linear: nn.Linear, gather_output: bool, sections: Sequence[int] | None, uneven: bool,
        shards: Shards | None, check: bool,
    ) -> None:  # fmt: skip
        sections = [linear.out_features] if sections is None else list(sections)
        if check:
            self._agree(linear, gather_output=gather_output, gather_again=self.gather_again, sections=sections,
                        uneven=uneven, shards=shards)  # fmt: skip
        if sum(sections) != linear.out_features:
            raise RefusedError(
                f"sections={sections} are {sum(sections)} outputs together, and the layer has {linear.out_features}"
            )
        if gather_output and len(sections) > 1:
            raise RefusedError("gather_output joins one section, whose parts stand side by side: leave out `sections`")
        if gather_output and shards is not None:
            raise RefusedError("gather_output joins parts that lie in the order of the ranks: leave out `shards`")
        if shards is not None:
            check_shards({f"section {i}": n for i, n in enumerate(sections)}, shards, self.group.size)
        elif not uneven:
            names = ["out_features"] if len(sections) == 1 else [f"section {i}" for i in range(len(sections))]
            check_divides("ColumnParallelLinear", dict(zip(names, sections, strict=True)), self.group.size)
        cut = shard_spec_of(0, sections, self.group.size, shards)
        self.gather_output = gather_output
        self._take(linear, {"weight": cut, "bias": cut})

    def forward(self, x: Tensor, length: int | None = None) -> Tensor:
        """(..., in_features) -> (..., out_features / N), or (..., out_features) with `gather_output`.

        length: with `sequence`, positions of the whole input, needed only if N does not divide them.
        """
        y = column_product(x, self.weight, self.bias, self._comm(length))
        if self.gather_output:
            y = gather_from_region(y, self.group, -1, length=self.out_features, algorithm=self.algorithm)
        return y


class RowParallelLinear(_Part):
    """`nn.Linear(in_features, out_features)` whose inputs are shared out: every rank makes a term of each output.

    weight: (out_features, in_features / N); bias: (out_features) on every rank, added once, after the sum.
    input_is_split: the input is this rank's part already, as a column-parallel layer makes it; else it is cut here.
    sequence: return this rank's part of dimension 1.
    shards: equal parts of the inputs that each rank holds, in place of an even cut: see `spread.py`.

    Sent, for an output of M bytes: forward one all-reduce of M bytes, backward nothing (an all-gather of the input's
    gradient, if the input was cut here). With `sequence`: a reduce-scatter forward, an all-gather backward, and one
    all-reduce of the bias's gradient, since every rank has added the bias to its own positions.
    Raises RefusedError on every rank: inputs that do not divide, with the nearest degrees; ranks with different layers.
    """

    def __init__(
        self, in_features: int, out_features: int, group: Group, *, bias: bool = True, input_is_split: bool = True,
        sequence: bool = False, shards: Shards | None = None, algorithm: str = "auto", check: bool = True,
    ):  # fmt: skip
        super().__init__(group, sequence, False, algorithm)
        self._cut(nn.Linear(in_features, out_features, bias=bias), input_is_split, shards, check)

    @classmethod
    def of(
        cls, linear: nn.Linear, group: Group, *, input_is_split: bool = True, sequence: bool = False,
        shards: Shards | None = None, algorithm: str = "auto", check: bool = True,
    ) -> RowParallelLinear:  # fmt: skip
        """This rank's part of `linear`, which is the same on every rank."""
        made = cls.__new__(cls)
        _Part.__init__(made, group, sequence, False, algorithm)
        made._cut(linear, input_is_split, shards, check)
        return made

    def _cut(self, linear: nn.Linear, input_is_split: bool, shards: Shards | None, check: bool) -> None:
        if check:
            self._agree(linear, input_is_split=input_is_split, shards=shards)
        inputs = {"in_features": linear.in_features}
        if shards is None:
            check_divides("RowParallelLinear", inputs, self.group.size)
        elif not input_is_split:
            raise RefusedError("input_is_split=False cuts the input evenly: leave out `shards`, or cut it before")
        else:
            check_shards(inputs, shards, self.group.size)
        self.input_is_split = input_is_split
        self._take(linear, {"weight": shard_spec_of(1, [linear.in_features], self.group.size, shards)})

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """(..., in_features / N) -> (..., out_features), or this rank's part of dimension 1 of it.

        bias: to be added in place of the layer's own, by a caller who sums its gradient together with others.
        """
        if not self.input_is_split:
            x = scatter_to_region(x, self.group, -1, algorithm=self.algorithm)
        y = row_product(x, self.weight, self._comm())
        if bias is None and self.bias is not None:
            bias = self.bias
            if self.sequence and torch.is_grad_enabled():
                bias = copy_to_region(bias, self.group, algorithm=self.algorithm)
        return y if bias is None else y + bias
