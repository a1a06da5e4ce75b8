"""A whole GPT on the ranks of a group, equal to `labkit.models.GPT` in loss and gradients.

    model = TensorParallelGPT(config, group)          the same tokens go to every rank
    loss = model(tokens_bt, targets_bt)               the mean loss, the same on every rank
    loss.backward()                                   each rank: gradients of its own parts
    model.clip_grad_norm_(1.0)
    optimizer.step()                                  of model.parameters(), each rank for itself

Sources: Shoeybi et al. 2019 (tensor parallelism), Korthikanti et al. 2022 (sequence parallelism).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.models.gpt import GPT, GPTConfig, check_positions, next_token_loss
from labkit.parallel.fsdp.deferred import deferred
from labkit.parallel.tensor.block import TensorParallelBlock, check_alike, check_config, drop, layer_norm
from labkit.parallel.tensor.gradients import clip_grad_norm_, grad_norm
from labkit.parallel.tensor.linear import ColumnParallelLinear
from labkit.parallel.tensor.moves import own_part
from labkit.parallel.tensor.placement import Placement
from labkit.parallel.tensor.random import check_random_state
from labkit.parallel.tensor.regions import (
    copy_all_to_region,
    gather_from_region,
    scatter_to_region,
)
from labkit.parallel.tensor.shard_spec import shard_specs_of
from labkit.parallel.tensor.whole import load_whole, whole_gradients, whole_state
from labkit.parallel.vocab import VocabParallelEmbedding
from labkit.parallel.vocab_loss import vocab_parallel_cross_entropy
from labkit.wire.group import Group


class TensorParallelGPT(nn.Module):
    """`GPT(config, seed)` with its heads, feed-forward columns and vocabulary shared out among the ranks of `group`.

    The names of parameters are those of GPT, and their values are parts of its values, to the bit. They are drawn one
    after the other on every rank: no rank ever holds the whole model.
    sequence: sequence parallelism. Between the sums every rank holds a part of the positions (as `torch.tensor_split`
        cuts them: any number of positions will do).
    overlap: the sum of each input's gradient hides behind the product that makes the weight's gradient.
    gather_again: what sequence parallelism gathers is not kept for backward, but gathered again.
    split_vocabulary: share out the rows of the embedding and the columns of the logits; else every rank has them all.
    algorithm: of the large collectives, a name of `labkit.collectives.ALGORITHMS`. For `sequence` a name that
        all_gather, reduce_scatter and all_reduce have: "ring", or "auto".

    placement: the shards that each rank holds, in place of an even cut: then the group may have any number of ranks.
    layers: those of a stage of a pipeline, as numbers; all by default. A stage that does not begin at layer 0 has no
        embedding and takes (b, t, d); one that does not end with the last layer has no norm and no logits. `forward`
        of a stage returns what `logits_part` does: (b, t, d) (this rank's part of t with `sequence`), or its logits.

    Dropout: the ranks' random state must be the same (`random.py`), which each forward in training mode checks: one
    all-gather of 8 bytes a rank. Sent else: `TensorParallelBlock` says it for a layer; with `split_vocabulary` one
    all-reduce of b t d elements forward (embedding) and one backward (logits), and what the loss sends. With `sequence`
    these are a reduce-scatter and an all-gather each, another all-gather with `gather_again`, and one all-reduce of
    (2 + context) d elements: the gradients of the last norm and of the positions.
    Raises RefusedError, on every rank: another config or other options on some rank; heads, kv_heads or expansion *
    width that do not divide, naming which and the nearest degrees that do.
    """

    def __init__(
        self, config: GPTConfig, group: Group, *, sequence: bool = False, overlap: bool = True, seed: int = 0,
        split_vocabulary: bool = True, gather_again: bool = True, algorithm: str = "auto",
        placement: Placement | None = None, layers: range | None = None,
    ):  # fmt: skip
        super().__init__()
        self.layers = range(config.layers) if layers is None else layers
        self.first, self.last = self.layers.start == 0, self.layers.stop == config.layers
        self.length: int | None = None  # of the whole sequence, where a stage takes a part of it
        ways: dict[str, Any] = {"sequence": sequence, "overlap": overlap, "gather_again": gather_again,
                                "algorithm": algorithm}  # fmt: skip
        check_alike(config, {"seed": seed, "split_vocabulary": split_vocabulary, "placement": placement,
                             "layers": self.layers} | ways, group)  # fmt: skip
        if placement is None:
            check_config(config, group)
        self.placement = placement
        self.config, self.group, self.sequence = config, group, sequence
        self.split_vocabulary, self.algorithm = split_vocabulary, algorithm
        self._build(ways)
        self._draw(seed)

    def _build(self, ways: dict[str, Any]) -> None:
        """All parts, without values."""
        config, group = self.config, self.group
        if self.first:
            unset = nn.Embedding.from_pretrained(torch.empty(config.vocab, config.width), freeze=False)
            self.tokens: nn.Module = unset
            if self.split_vocabulary:
                shards = self.placement.vocab if self.placement else None
                self.tokens = VocabParallelEmbedding.of(
                    unset, group, sequence=self.sequence, algorithm=self.algorithm, shards=shards
                )
        with torch.device("meta"):
            embedded = self.first and not config.rotary
            self.positions = nn.Embedding(config.context, config.width) if embedded else None
            blocks = [TensorParallelBlock(config, group, placement=self.placement, check=False, **ways)
                      for _ in self.layers]  # fmt: skip
            whole = self.first and self.last
            self.blocks: Any = nn.ModuleList(blocks) if whole else nn.ModuleDict(dict(zip(map(str, self.layers), blocks,
                                                                                      strict=True)))  # fmt: skip
            if self.last:
                self.norm = nn.LayerNorm(config.width)
                self.lm_head = self._head(ways)
        self.to_empty(device=group.device)
        for buffer in self.buffers():
            buffer.zero_()  # a router's bias, which has no gradient
        if config.tied and self.first and self.last:
            self.lm_head.weight = self.tokens.weight

    def _head(self, ways: dict[str, Any]) -> nn.Module:
        config = self.config
        if not self.split_vocabulary:
            return nn.Linear(config.width, config.vocab, bias=False)
        shards = self.placement.vocab if self.placement else None
        return ColumnParallelLinear(config.width, config.vocab, self.group, bias=False, uneven=True, check=False,
                                    shards=shards, **ways)  # fmt: skip

    @property
    def tied(self) -> dict[str, nn.Parameter]:
        """The matrix that both embeds and scores, where this stage has one end of it only."""
        if not self.config.tied or self.first == self.last:
            return {}
        weight = self.tokens.weight if self.first else self.lm_head.weight
        assert isinstance(weight, nn.Parameter)
        return {"tokens.weight": weight}

    def _draw(self, seed: int) -> None:
        """This rank's parts of the values of GPT(config, seed)."""
        whole: Any = deferred(GPT, self.config, seed=seed)
        names = {id(p): name for name, p in whole.named_parameters()}
        mine = {name: (p, cut) for name, p, cut in shard_specs_of(self)}
        if self.tied and self.last:
            mine["tokens.weight"] = mine.pop("lm_head.weight")

        @torch.no_grad()
        def deliver(values: Tensor, parameter: Tensor) -> None:
            name = names.get(id(parameter))  # None: the matrix that tying has thrown away
            if name in mine:
                p, cut = mine[name]
                p.copy_(values if cut is None else cut.take(values, self.group.rank))

        whole.recipe.replay(deliver, whole, self.group.device)

    def forward(self, tokens_bt: Tensor, targets_bt: Tensor | None = None, positions_t: Tensor | None = None) -> Tensor:
        """Logits of the next symbol, whole on every rank: (b, t) int64 -> (b, t, v). With targets: the mean loss, 0-d.

        tokens_bt, targets_bt: the same on every rank. positions_t: where the tokens stand in their sequence, if not
        from 0 on. With targets the logits stay where they are made: no rank ever
        holds more than its part of them, and instead of an all-gather of the logits a few numbers a position are sent.
        """
        part_btv = self.logits_part(tokens_bt, positions_t)
        if not (self.first and self.last):
            return part_btv
        if not self.split_vocabulary:
            return part_btv if targets_bt is None else next_token_loss(part_btv, targets_bt)
        if targets_bt is not None:
            ids = None if self.placement is None else self.placement.vocab
            return vocab_parallel_cross_entropy(part_btv, targets_bt, self.group, vocab=self.config.vocab, ids=ids,
                                                algorithm=self.algorithm)  # fmt: skip
        return self._whole_scores(part_btv)

    def _whole_scores(self, part_btv: Tensor) -> Tensor:
        """The columns of all ranks, in the order of the ids: (b, t, part) -> (b, t, v)."""
        if self.placement is None:
            return gather_from_region(part_btv, self.group, -1, length=self.config.vocab, algorithm=self.algorithm)
        held = self.placement.vocab
        most = max(map(len, held))
        padded = F.pad(part_btv, (0, most - part_btv.shape[-1]))
        columns = {i: rank * most + at for rank, mine in enumerate(held) for at, i in enumerate(mine)}
        order = torch.tensor([columns[i] for i in range(self.config.vocab)], device=part_btv.device)
        return gather_from_region(padded, self.group, -1, algorithm=self.algorithm).index_select(-1, order)

    def logits_part(self, tokens_bt: Tensor, positions_t: Tensor | None = None) -> Tensor:
        """This rank's columns of the logits, or all of them if the vocabulary is not split."""
        t = tokens_bt.shape[1] if self.first or self.length is None else self.length
        if self.first:
            check_positions(t if positions_t is None or not t else int(positions_t.max()) + 1, self.config)
        dropout = self.config.dropout if self.training else 0.0
        if dropout:
            check_random_state(self.group)
        norm, positions_td = self._outside(slice(t) if positions_t is None else positions_t)
        x_btd = tokens_bt
        if self.first:
            x_btd = self._embed(tokens_bt, positions_td)
            x_btd = drop(x_btd, dropout, self.group if self.sequence else None)
        for block in self.blocks.values() if isinstance(self.blocks, nn.ModuleDict) else self.blocks:
            x_btd = block(x_btd, t)
        if not self.last:
            return x_btd
        x_btd = layer_norm(x_btd, norm, self.norm.eps)
        if self.split_vocabulary:
            return self.lm_head(x_btd, t)
        if self.sequence:
            x_btd = gather_from_region(x_btd, self.group, 1, length=t, algorithm=self.algorithm)
        return self.lm_head(x_btd)

    def _outside(self, at: slice | Tensor) -> tuple[Sequence[Tensor], Tensor | None]:
        """The last norm (weight, bias) and the position embeddings that this rank adds, where there are any."""
        held: list[Tensor] = [self.norm.weight, self.norm.bias] if self.last else []
        norms = len(held)
        table: Tensor | None = None if self.positions is None else self.positions.weight
        several = [*held, table] if self.split_vocabulary and table is not None else held
        if self.sequence and several and torch.is_grad_enabled():
            held = list(copy_all_to_region(several, self.group, algorithm=self.algorithm))
            table = held.pop() if len(held) > norms else table
        positions_td = None if table is None else table[at]
        if positions_td is not None and self.sequence and self.split_vocabulary:
            positions_td = own_part(positions_td, self.group, 0)
        return held, positions_td

    def _embed(self, tokens_bt: Tensor, positions_td: Tensor | None) -> Tensor:
        """Tokens and positions added: (b, t, d), or this rank's part of t."""
        x_btd = self.tokens(tokens_bt)
        if positions_td is not None:
            x_btd = x_btd + positions_td
        if self.sequence and not self.split_vocabulary:
            x_btd = scatter_to_region(x_btd, self.group, 1, algorithm=self.algorithm)
        return x_btd

    # -- the model as a whole ----------------------------------------------------------------------------------

    def grad_norm(self, norm_type: float = 2.0) -> Tensor:
        """See `gradients.grad_norm`."""
        return grad_norm(self, self.group, norm_type)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """See `gradients.clip_grad_norm_`."""
        return clip_grad_norm_(self, self.group, max_norm, norm_type)

    def whole_state(self) -> dict[str, Tensor]:
        """All parameters, whole, under the names of GPT, on every rank: see `whole.py`."""
        return whole_state(self, self.group)

    def whole_gradients(self) -> dict[str, Tensor]:
        """All gradients, whole, under the names of GPT, on every rank."""
        return whole_gradients(self, self.group)

    def load_whole(self, state: dict[str, Tensor]) -> None:
        """Take this rank's parts of the parameters of a GPT."""
        load_whole(self, self.group, state)
