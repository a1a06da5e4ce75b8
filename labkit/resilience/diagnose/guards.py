"""Guards before an update: a loss or a gradient that is not finite, and a loss that jumps.

They look at what each rank has before it is exchanged: afterwards every rank holds the same NaN, and nobody can say
where it came from. All ranks get the same answer, so all of them skip the update or none does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from labkit import collectives
from labkit.parallel.refusals.agreement import gather_texts
from labkit.wire.group import Group
from labkit.world.diagnosis.explain import ranks_text

from .verdict import Verdict
from .waits import Clue

_NEVER = 1 << 60  # the place of something bad that did not happen


@dataclass(frozen=True)
class NotFinite:
    """What is not finite at `step`, the same on every rank. ranks: where it was made first. where: by rank, in words.

    everywhere: all ranks have it, so the weights are suspected more than any rank.
    """

    step: int
    ranks: tuple[int, ...]
    where: dict[int, str]
    everywhere: bool

    @property
    def verdict(self) -> Verdict:
        told = "; ".join(f"rank {r}: {self.where[r]}" for r in self.ranks)
        late = [r for r in self.where if r not in self.ranks]
        after = f"; {ranks_text(late)} had it later" if late else ""
        clue = Clue(frozenset(self.ranks), "not finite", f"step {self.step}: {told}{after}")
        return Verdict("not finite", self.ranks, not self.everywhere or len(self.ranks) == 1, (clue,))


class ForwardWatch:
    """Which module of `module` first made something that is not finite from inputs that were. `reset` each step.

    What is found is asked of the device at the end of a step only, so that nothing waits for it during the forward.
    """

    def __init__(self, module: nn.Module) -> None:
        self._seen: list[tuple[str, Tensor]] = []
        self._hooks = [m.register_forward_hook(self._hook(name)) for name, m in module.named_modules()]

    def reset(self) -> None:
        """Forget the step before."""
        self._seen.clear()

    def first(self) -> tuple[int, str]:
        """(place in the order of all module calls, its name), or a place beyond all and "" if everything was finite."""
        if self._seen:
            bad = torch.stack([flag.to("cpu") for _, flag in self._seen])
            places = torch.nonzero(bad).flatten()
            if len(places):
                at = int(places[0])
                return at, self._seen[at][0]
        return _NEVER, ""

    def close(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()

    def _hook(self, name: str):  # type: ignore[no-untyped-def]
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            bad = ~torch.stack([torch.isfinite(x).all() for x in _floats(output)] or [torch.tensor(True)]).all()
            good = torch.stack([torch.isfinite(x).all() for x in _floats(inputs)] or [torch.tensor(True)]).all()
            self._seen.append((name or type(module).__name__, bad & good))

        return hook


class FiniteGuard:
    """Asks every rank, once a step, whether its loss and its gradients are finite. Costs 24 bytes a rank."""

    def __init__(self, group: Group) -> None:
        self.group = group

    def check(
        self, step: int, loss: Tensor | float, gradients: Iterable[tuple[str, Tensor | None]],
        watch: ForwardWatch | None = None,
    ) -> NotFinite | None:  # fmt: skip
        """None, or what is not finite; every rank calls it, after backward and before its gradients are exchanged.

        gradients: (name, gradient or None), such as `(n, p.grad) for n, p in module.named_parameters()`. watch: tells
        apart who made a NaN and who received it inside the forward.
        """
        at, module = watch.first() if watch is not None else (_NEVER, "")
        words = f"the output of {module!r} in the forward" if module else ""
        if not words and not math.isfinite(float(loss)):
            words = f"the loss is {float(loss)}"
        bad = [name for name, g in gradients if g is not None and not _finite(g)]
        if bad:
            others = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
            words += f"{', ' if words else ''}the gradient of {bad[0]!r}{others}"
        where = at if module else _NEVER  # after all that were seen in a forward
        mine = torch.tensor([[len(words.encode()), where, len(bad)]], dtype=torch.int64, device=self.group.device)
        table = collectives.all_gather(mine, self.group).tolist()
        lengths = [row[0] for row in table]
        if not any(lengths):
            return None
        texts = gather_texts(self.group, words, lengths)
        found = {r: texts[r] for r, length in enumerate(lengths) if length}
        earliest = min(table[r][1] for r in found)
        ranks = tuple(r for r in found if table[r][1] == earliest)
        return NotFinite(step, ranks, found, len(ranks) == self.group.size > 1)


def _finite(x: Tensor) -> bool:
    total = x.detach().sum()  # one NaN or infinity makes the sum one; a sum that overflows is looked at again
    return bool(torch.isfinite(total)) or bool(torch.isfinite(x).all())


def _floats(value: object) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value.detach()] if value.is_floating_point() else []
    if isinstance(value, tuple | list):
        return [x for part in value for x in _floats(part)]
    return []
