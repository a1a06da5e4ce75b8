"""`Hybrid`: this rank's part of a GPT on a mesh of all axes, and a training step of it.

    hybrid = Hybrid(group, GPTConfig(layers=4), HybridConfig(dp=2, data="zero1", pp=2, tp=2, microbatches=4), seed=1)
    for inputs, targets in batches:                     # the whole batch, on every rank
        loss = hybrid.step(inputs, targets, max_norm=1.0)

or, apart, as with PyTorch:

        hybrid.zero_grad()
        loss = hybrid.forward_backward(inputs, targets)
        norm = hybrid.clip_grad_norm_(1.0)
        hybrid.optimizer_step()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from labkit.collectives import all_reduce
from labkit.models.gpt import GPTConfig
from labkit.parallel.context.parallel import ContextParallel
from labkit.parallel.hybrid import norm, whole
from labkit.parallel.hybrid.batch import check_batch, examples_of
from labkit.parallel.hybrid.building import build_parts, build_replicas
from labkit.parallel.hybrid.checks import check, check_alike
from labkit.parallel.hybrid.config import DENSE, DP, HybridConfig
from labkit.parallel.hybrid.replicas import Held
from labkit.parallel.mesh import Mesh
from labkit.parallel.pipeline.running.pipeline import Pipeline
from labkit.parallel.pipeline.running.stage import drawing
from labkit.parallel.refusals.agreement import agree
from labkit.parallel.vocab_loss import vocab_parallel_cross_entropy
from labkit.parallel.zero.adamw import AdamW
from labkit.wire.group import Group


class Hybrid:
    """What rank `group.rank` holds of GPT(model, seed), trained along all axes of `config` at once.

    Weights, loss, norm and updates are those of one device that trains GPT(model, seed) on the whole batch with
    `optimizer` (AdamW; its settings may be changed between steps, alike on every rank). With experts, of one that
    takes the batch in the pieces of `examples_of`. dtype: of weights, gradients and messages.

    mesh: the axes, `mesh["tp"]`; "dp" of the config is "dp_replicate", "dp_shard" and "ep" there. dense: the ranks that
    hold the same weights as this one, along dp and cp.
    Bytes of a step: `cost.hybrid_bytes_by_rank`, for a model without experts. Raises RefusedError on every rank, before
    anything is built, for what cannot be (`checks.py`).
    """

    def __init__(
        self, group: Group, model: GPTConfig, config: HybridConfig, *, seed: int = 0, optimizer: AdamW | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        self.optimizer = AdamW() if optimizer is None else optimizer
        check_alike(model, config, {"seed": seed, "optimizer": self.optimizer, "dtype": dtype}, group)
        check(model, config, group.size)
        self.group, self.model, self.config, self.seed, self.dtype = group, model, config, seed, dtype
        self.mesh = mesh = Mesh(group, config.mesh)
        self.tp, self.pp = mesh["tp"], mesh["pp"]
        self.data = mesh[DP]  # the ranks that have other examples
        self.dense = mesh[DENSE]
        self.schedule = config.pipeline_schedule() if config.pp > 1 else None
        self.context = (
            ContextParallel(mesh["cp"], layout=config.layout, ulysses=config.ulysses) if config.cp > 1 else None
        )
        self.parts = build_parts(model, config, mesh, self.schedule, self.context, seed, dtype)
        self.replicas = build_replicas(model, config, mesh, self.schedule, self.parts, self.optimizer)
        self.steps = 0  # forward_backward so far: random numbers follow from it
        self._share = 1.0
        self._pipeline = None
        if self.schedule is not None:
            self._pipeline = Pipeline(self.replicas.modules, self.pp, self._loss, seed=self._stream,
                                      tied=self.replicas.tied)  # fmt: skip

    @property
    def _stream(self) -> int:
        """The seed of this rank's random numbers: those who share examples draw the same ones."""
        return self.seed * 1_000_003 + self.dense.rank

    # -- a step ------------------------------------------------------------------------------------------------

    def step(self, inputs: Tensor, targets: Tensor, *, max_norm: float | None = None) -> Tensor:
        """Forward, backward, clipping if `max_norm` is given, update: returns the loss of the whole batch."""
        self.zero_grad()
        loss = self.forward_backward(inputs, targets)
        if max_norm is not None:
            self.clip_grad_norm_(max_norm)
        self.optimizer_step()
        return loss

    def zero_grad(self) -> None:
        """Forget the gradients. A step begins with it."""
        self.replicas.zero_grad()

    def forward_backward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Have the gradients of the mean loss of the batch; returns it: float64, 0-d, the same on every rank.

        inputs, targets: (b, t) int64, the whole batch on every rank, which takes its examples and positions of it.
        Beside what the axes send: an all-reduce of one number over all ranks, the loss.
        """
        check_batch(inputs, targets, self.model, self.config)
        weight, length = self._begin(inputs.shape[1])
        pieces = examples_of(len(inputs), self.config.dp, self.config.microbatches)
        mine = [pieces[k][self.data.rank] for k in range(len(pieces))]
        shares = [weight * len(some) / len(inputs) for some in mine]
        for part in self.parts:
            part.begin(length)
        run = self._one_by_one if self._pipeline is None else self._through_the_pipeline
        loss = run(inputs, targets, mine, shares)
        self.replicas.reduce()
        self.steps += 1
        loss = loss.double().reshape(1).to(self.group.device)
        loss += sum(float(part.added) for part in self.parts)
        if self.tp.rank:  # the ranks of tp have the same loss
            loss.zero_()
        return all_reduce(loss, self.group, algorithm=self.config.algorithm)[0]

    def _begin(self, length: int) -> tuple[float, int]:
        """This rank's share of the positions, and how many these are."""
        if self.context is None:
            return 1.0, length
        self.context.begin(length)
        return self.context.weight, len(self.context.positions)

    def _own(self, whole_bt: Tensor, examples: range) -> Tensor:
        """This rank's examples and positions of (b, t)."""
        rows = whole_bt[examples.start : examples.stop].to(self.group.device)
        return rows if self.context is None else rows.index_select(1, self.context.positions.to(rows.device))

    def _one_by_one(self, inputs: Tensor, targets: Tensor, mine: list[range], shares: list[float]) -> Tensor:
        """Microbatches one after the other, the gradients added up."""
        (module,), (part,) = self.replicas.modules, self.parts
        total = torch.zeros((), dtype=torch.float64)
        for k, (examples, share) in enumerate(zip(mine, shares, strict=True)):
            self.replicas.expect(last=k + 1 == len(mine))
            part.share = self._share = share
            x, y = self._own(inputs, examples), self._own(targets, examples)
            with drawing(self._stream * 1_000_003 + self.steps, 0, k, self.group.device):
                loss = self._loss(module(x), y)
                loss.backward()
            total += loss.detach().double().cpu()
        return total

    def _through_the_pipeline(self, inputs: Tensor, targets: Tensor, mine: list[range], shares: list[float]) -> Tensor:
        """All microbatches by the schedule. They are of one size, and so of one share."""
        assert self._pipeline is not None and self.schedule is not None
        self.replicas.expect(last=False)
        every = range(mine[0].start, mine[-1].stop)
        self._share = sum(shares)  # of the mean over microbatches, which the pipeline takes
        for part in self.parts:
            part.share = shares[0]
        x, y = self._own(inputs, every), self._own(targets, every)
        loss = self._pipeline.execute(self.schedule, x, y).loss
        return torch.zeros(()) if loss is None else loss

    def _loss(self, logits_part: Tensor, targets: Tensor) -> Tensor:
        """This rank's share of the loss: a mean over its own positions, times how much they count."""
        loss = vocab_parallel_cross_entropy(
            logits_part, targets, self.tp, vocab=self.model.vocab, algorithm=self.config.algorithm
        )
        return self._share * loss

    # -- gradients ---------------------------------------------------------------------------------------------

    def held(self) -> Iterator[Held]:
        """What this rank owns of the training state, by the plain model's names: for norms, states, checkpoints."""
        return self.replicas.held()

    def updates(self) -> dict[str, int]:
        """How often each parameter of this rank was updated, by the plain model's names."""
        return self.replicas.steps()

    def grad_norm(self, norm_type: float = 2.0) -> Tensor:
        """The p-norm of the gradient of the whole model: see `norm.grad_norm`."""
        return norm.grad_norm(self.held(), self.group, norm_type, self.config.algorithm)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale all gradients so that their norm is at most `max_norm`; returns the norm before that."""
        found = self.grad_norm(norm_type)
        norm.scale(self.held(), found, max_norm)
        return found

    def optimizer_step(self) -> None:
        """Update what this rank owns, and have the new weights wherever they are needed whole."""
        self.replicas.update()
        for part in self.parts:
            part.rebalance()

    def nbytes(self) -> dict[str, int]:
        """Bytes of the tensors that lie on this rank now: "parameters", "gradients", and "optimizer", its moments.

        What two parts share counts once. Right after `forward_backward` that is what `zero_state_parts` has: whole
        gradients with "plain" and "zero1", this rank's part of them otherwise.
        """
        found, seen = dict.fromkeys(("parameters", "gradients", "optimizer"), 0), set[int]()
        for part, x in self.replicas.tensors():
            memory = x.untyped_storage()
            if memory.nbytes() and memory.data_ptr() not in seen:
                seen.add(memory.data_ptr())
                found[part] += memory.nbytes()
        return found

    # -- the model as a whole ----------------------------------------------------------------------------------

    def gradients(self) -> dict[str, Tensor]:
        """All gradients, whole, under the names of GPT, on the CPU of every rank: to look at and to compare."""
        return self._gathered("gradient")

    def state_dict(self) -> dict[str, Any]:
        """All that training goes on from, whole, on the CPU of every rank, in the format of `whole.py`."""
        shapes, buffers = whole.plain_shapes(self.model)
        state: dict[str, Any] = {"kind": "full"}
        for key, what in whole.KEYS.items():
            state[key] = self._gathered(what)
        state["steps"] = whole.steps(self.updates(), list(shapes), self.group)
        state["buffers"] = {name: self._buffer(name, shape) for name, shape in buffers.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict()`, of this or any other configuration. Refused on every rank for another model."""
        agree(self.group, whole.problem(state, *whole.plain_shapes(self.model)))
        for key, what in whole.KEYS.items():
            whole.take(self.held(), what, state[key], self.tp.rank)
        for name, buffer in self.buffers():
            buffer.copy_(state["buffers"][name])
        self.loaded(state["steps"])

    def loaded(self, steps: Mapping[str, int]) -> None:
        """What `held()` gives was written to; steps: updates of each parameter so far. Every rank calls it."""
        self.zero_grad()
        self.replicas.loaded(steps)
        self.steps = max(steps.values(), default=0)  # the random numbers go on
        if self._pipeline is not None:
            self._pipeline.steps = self.steps

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """(name, buffer) of this rank's layers: the biases of routers."""
        for part in self.parts:
            yield from part.model.named_buffers()

    def _buffer(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One buffer, from the ranks that have it, which have the same values."""
        own = dict(self.buffers()).get(name)
        x = torch.full(shape, -torch.inf, dtype=self.dtype, device=self.group.device) if own is None else own.clone()
        return all_reduce(x, self.group, "max").cpu()

    def _gathered(self, what: str) -> dict[str, Tensor]:
        return whole.gathered(
            self.held(), what, whole.plain_shapes(self.model)[0], self.dtype, self.tp.rank, self.group
        )

    def __repr__(self) -> str:
        return f"Hybrid({self.mesh!r}; data={self.config.data!r})"
