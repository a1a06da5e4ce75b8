"""`Training`: everything that a run needs to go on as if it had never stopped, as pieces and plain values.

model, optimizer    parameters, buffers, momentum, numbers of steps, learning rates
scheduler, loader   what has `state_dict` and `load_state_dict`, and says plain data
random              the random numbers of this rank
extra               more of the caller's own, plain data: a function that gives it
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.optim import Optimizer

from labkit.parallel.hybrid.hybrid import Hybrid
from labkit.parallel.zero.adamw import AdamW
from labkit.parallel.zero.base import ZeRO
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

from . import hybrid_state, zero_state
from .encode import decode, encode
from .holdings import buffers, description, holdings, stream_of
from .manifest import Manifest
from .optimizer_state import numbers, optimizer_groups, optimizer_pieces
from .pieces import Piece
from .random_state import random_state
from .slices import everything


class Training:
    """The state of one rank. optimizer: one, or several, or None; under ZeRO it is a part of the model.

    stream: the name of this rank's random numbers (see `random_state.py`); by default ranks of one tensor-parallel
    group have one stream, and every other rank one of its own.
    identity: what must be the same beyond names and shapes; by default the model's `config`, if it has one.
    """

    def __init__(
        self, model: Any, optimizer: Optimizer | Sequence[Optimizer] | None, group: Group, *, scheduler: Any = None,
        loader: Any = None, random: bool = True, stream: str | None = None, extra: Any = None,
        identity: str | None = None,
    ) -> None:  # fmt: skip
        self.model, self.group, self.random = model, group, random
        self.zero = model if isinstance(model, ZeRO) else None
        self.inside: Any = None  # the functions for a model that has its optimizer inside
        if self.zero is not None or isinstance(model, Hybrid):
            self.inside = zero_state if self.zero is not None else hybrid_state
        given = [] if optimizer is None else [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
        if self.inside is not None and given:
            what = "a model under ZeRO" if self.zero is not None else "a hybrid run"
            raise RefusedError(f"{what} has its optimizer inside: pass the model alone")
        if self.zero is not None and (not isinstance(self.zero.optimizer, AdamW) or len(self.zero.groups.settings) > 1):
            raise RefusedError(
                "a checkpoint of ZeRO holds the state of labkit's AdamW in one parameter group: keep that of "
                "others with torch.save(model.training_state('shard'), ...)"
            )
        if not all(isinstance(o, Optimizer) for o in given):
            raise RefusedError(f"optimizer is a {type(optimizer).__name__}: pass a torch.optim.Optimizer, or several")
        self.optimizers: list[Optimizer] = given
        self.parts = {"scheduler": scheduler, "loader": loader}
        for name, part in self.parts.items():
            if part is not None and not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise RefusedError(f"{name} is a {type(part).__name__}: it needs state_dict() and load_state_dict()")
        self.extra = extra
        self.identity = description(model) if identity is None else identity
        self.stream = stream_of(model, group) if stream is None else stream

    # -- to be written -----------------------------------------------------------------------------------------

    def pieces(self) -> list[Piece]:
        """Every tensor, as far as this rank has it. Nothing is copied where memory is contiguous."""
        found = list(self.model_pieces())
        found += [
            Piece(f"buffer/{name}", tuple(b.shape), everything(b.numel()), b.detach().reshape(-1), each=True)
            for name, b in buffers(self.model)
        ]
        if self.random:
            for kind, x in random_state(self.group.device).items():
                found.append(replace(Piece.whole(f"random/{self.stream}/{kind}", x), each=True))
        return found

    def model_pieces(self) -> Iterator[Piece]:
        """Parameters, and what the optimizer keeps for them."""
        if self.inside is not None:
            yield from self.inside.pieces(self.model)
            return
        held = holdings(self.model)
        yield from (Piece(f"model/{h.name}", h.shape, h.slices, h.of(h.parameter)) for h in held)
        yield from optimizer_pieces(self.optimizers, held)

    def needed_pieces(self) -> Iterator[Piece]:
        """Parameters, and what the optimizer keeps for them, as far as this rank has to load them."""
        yield from self.model_pieces() if self.inside is None else self.inside.needed(self.model)

    def plain(self) -> dict[str, Any]:
        """All else, ready for JSON: "values", "groups" and "numbers" (see `manifest.py`)."""
        values = {name: encode(part.state_dict(), name) for name, part in self.parts.items() if part is not None}
        values["optimizer"] = "AdamW" if self.inside is not None else kind_of(self.optimizers)
        values["model"] = self.identity
        if self.extra is not None:
            values["extra"] = encode(self.extra(), "extra")
        if self.inside is not None:
            return {"values": values, "groups": self.inside.groups(self.model), "numbers": {}}
        held = holdings(self.model)
        return {"values": values, "groups": optimizer_groups(self.optimizers, held),
                "numbers": numbers(self.optimizers, held)}  # fmt: skip

    # -- what has a state of its own ---------------------------------------------------------------------------

    def states(self) -> dict[str, Any]:
        """The states of scheduler and loader, as they are."""
        return {name: copy.deepcopy(part.state_dict()) for name, part in self.parts.items() if part is not None}

    def put_states(self, states: Mapping[str, Any]) -> None:
        """Go back to `states()`."""
        for name, state in states.items():
            self.parts[name].load_state_dict(state)

    def take_states(self, saved: Manifest) -> None:
        """Take up the states of scheduler and loader. Raises what they raise."""
        rank, size = self.group.rank, self.group.size
        self.put_states({n: decode(saved.value(n, rank, size)) for n, p in self.parts.items() if p is not None})


def kind_of(optimizers: Sequence[Optimizer]) -> str | None:
    """Which optimizer: the names of the classes; None where there is none."""
    return " + ".join(sorted({type(o).__name__ for o in optimizers})) or None
