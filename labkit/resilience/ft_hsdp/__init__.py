"""FT-HSDP: replicas of a model train together, and go on when one of them breaks.

Names load when first used. `train` is what every rank runs; `protocol` says why it is right.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# No module is called like a name in this table: importing a submodule would put it in the place of the function.
_HOME: dict[str, str] = {
    "FtConfig": "config", "Attempt": "result", "Result": "result", "factor": "learning_rate", "train": "trainer",
    "Checkpoints": "persistence", "StateServer": "server", "fetch_state": "transfer", "numbers": "data",
    "plain_hsdp": "reference", "replay": "replaying", "steps_of": "replaying",
}  # fmt: skip

__all__ = [
    "Attempt", "Checkpoints", "FtConfig", "Result", "StateServer", "factor", "fetch_state", "numbers", "plain_hsdp",
    "replay", "steps_of", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
