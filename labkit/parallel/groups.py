"""Parameter groups, as torch's optimizers take them, over the parameters of a module that a strategy is about to cut.

decayed = [p for p in module.parameters() if p.dim() > 1]
others = [p for p in module.parameters() if p.dim() <= 1]
[{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from labkit.wire.errors import RefusedError

ParamGroups = Sequence[Mapping[str, Any]] | None


class Grouped:
    """settings: of each group, without its parameters. One without any is the last, if it has parameters: all others.

    of: the number of the group of each parameter of `module`, by its `id`. words: the same, for ranks to compare.
    Raises RefusedError for a parameter that is not the module's, or that is in two groups.
    """

    def __init__(self, module: nn.Module, param_groups: ParamGroups) -> None:
        given = [] if param_groups is None else list(param_groups)
        names = {id(p): name for name, p in module.named_parameters()}
        self.settings: list[dict[str, Any]] = []
        self.of: dict[int, int] = {}
        for number, group in enumerate(given):
            if not isinstance(group, Mapping) or "params" not in group:
                raise RefusedError(
                    f"param_groups[{number}] is {group!r:.60}: each is a dict as for a torch optimizer, "
                    "such as {'params': [...], 'weight_decay': 0.0}"
                )
            self.settings.append({key: value for key, value in group.items() if key != "params"})
            for p in [group["params"]] if isinstance(group["params"], nn.Parameter) else group["params"]:
                if id(p) not in names:
                    raise RefusedError(
                        f"param_groups[{number}] has a tensor that is no parameter of this module: take them "
                        "from module.named_parameters(), before the module is wrapped"
                    )
                if id(p) in self.of:
                    raise RefusedError(f"{names[id(p)]!r} is in two of param_groups ({self.of[id(p)]} and {number})")
                self.of[id(p)] = number
        if len(self.of) < len(names):
            self.settings.append({})
        for key in names:
            self.of.setdefault(key, len(given))
        self.words = {f"group of {name!r}": f"{self.settings[self.of[key]]}" for key, name in names.items()}
