"""A planner of parallel training: what a plan holds, sends and takes, and which plan to take.

`model`, `gpus` and `cluster` say what is trained on what, `plan` how; `predicted` says what that takes, made of the
parts that `costs` keeps: `kernels` and `pace` have time, `held` memory, `wires`, `traffic` and `exchange` messages.
`search` looks at all plans of a `space`; `explain` and `remedies` put what it found into sentences, `advice` and
`fallacies` answer rules of thumb by computing. `published` has runs of papers to compare with, `calibrate` fits the few
figures of efficiency to measured steps.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

__all__: list[str] = []
if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """What the files say in their `__all__`."""


for _name in sorted(module.name for module in iter_modules(__path__)):
    _file = import_module(f"{__name__}.{_name}")
    globals().update({name: getattr(_file, name) for name in _file.__all__})
    __all__ += _file.__all__
