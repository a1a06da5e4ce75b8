"""A fleet: the models of alignment training on the ranks where a `Placement` puts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import nn

from labkit.align.fleet.learner import Learner
from labkit.align.fleet.swapping import HostSwap, Tensors
from labkit.cost import ROLES, Placement, WorkSeconds
from labkit.models.gpt import GPT, GPTConfig
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

TRAINED = ("policy", "critic")
RATES = {"policy": 1e-3, "critic": 1e-3}


class Fleet:
    """This rank's models. make: builds the model of a role ("policy", ...); called only for those that are held here.

    models: by role. learners: of those that are trained, each with the pool of its ranks. rates: of Adam, by role.
    seconds: on the virtual clock, how long work takes (see `spend`); without it, as long as it does.
    Raises RefusedError, on every rank: a placement for more ranks or fewer than there are, or a rank without a model.
    """

    def __init__(
        self, placement: Placement, group: Group, make: Callable[[str], nn.Module], *,
        rates: Mapping[str, float] = RATES, seconds: WorkSeconds | None = None,
    ) -> None:  # fmt: skip
        idle = [rank for rank in range(group.size) if not any(rank in placement.ranks(role) for role in ROLES)]
        if placement.size != group.size or idle:
            raise RefusedError(
                f"{placement} is for {placement.size} ranks, and the group has {group.size}"
                + (f", of which {idle} have no model" if idle else "")
            )
        self.placement, self.group, self.seconds = placement, group, seconds
        self.models = {role: make(role) for role in ROLES if group.rank in placement.ranks(role)}
        self.learners = dict[str, Learner]()
        for role, model in self.models.items():
            if role in TRAINED:
                pool = group.subgroup(placement.ranks(role))
                self.learners[role] = Learner(model, pool, rates[role])
            else:
                model.requires_grad_(False)
        self.swap = HostSwap(self._parts(), group.device) if placement.offload else None

    @property
    def config(self) -> GPTConfig:
        """Of a model that is held here; all have the same context and vocabulary."""
        model = next(iter(self.models.values()))
        assert isinstance(model, GPT)
        return model.config

    def check(self, budget: int, together: int = 1, needs: Sequence[str] = ()) -> None:
        """Raise RefusedError where a step's model has no rank, or `together` long sequences do not fit the budget."""
        missing = [role for role in needs if not self.placement.ranks(role)]
        if missing:
            raise RefusedError(f"{self.placement} has no rank for the {missing[0]} model, which this step needs")
        if budget < together * self.config.context:
            raise RefusedError(
                f"budget={budget}: a microbatch must have room for {together} sequences of {self.config.context} tokens"
            )

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A phase of a step on the timeline: "generate", a role that reads, or "train" and a role that learns.

        Where models are offloaded, those that it needs come to the device first, in a span called "swap".
        """
        role = "policy" if name == "generate" else name.removeprefix("train ")
        if role not in self.models:
            yield
            return
        parts = [role, f"Adam of {role}"] if name.startswith("train ") else [role]
        if self.swap is not None:
            with self.group.span("swap"):
                moved = self.swap.use(*parts)
                if self.seconds is not None:
                    self.group.compute(moved / self.seconds.host_bandwidth)
        with self.group.span(name):
            yield
        if self.swap is not None and name.startswith("train "):
            self.swap.changed(*parts)

    def spend(self, work: str, count: int) -> None:
        """On the timeline: `count` decoding steps ("decode") or tokens ("read", "train") by the rate of `seconds`."""
        if self.seconds is not None:
            self.group.compute(count * getattr(self.seconds, work))

    def _parts(self) -> dict[str, Tensors]:
        """The tensors that can be offloaded, by name."""
        found = dict[str, Tensors]()
        for role, model in self.models.items():
            found[role] = lambda model=model: list(model.parameters())  # type: ignore[misc]
            if role in self.learners:
                found[f"Adam of {role}"] = self.learners[role].tensors
        return found
