"""What a run does when something breaks: find it, keep the state, go on with the others.

Names load when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# No module is called like a name in this table: importing a submodule would put it in the place of the function.
_HOME: dict[str, str] = {
    "Checkpointer": "checkpoint.checkpointer", "Feed": "checkpoint.feed", "run_elastic": "elastic",
    "Deadlines": "deadlines", "Limit": "deadlines",
    "Fatal": "errors", "Recoverable": "errors", "classify": "errors",
    "Quorum": "quorum", "QuorumClient": "quorum", "QuorumService": "quorum",
    "Ftar": "ftar.queued", "Work": "ftar.queued", "ft_all_reduce": "ftar.exchange",
    "AuditFailed": "audit", "AuditLog": "audit", "Supervisor": "supervising.supervisor",
    "Incident": "supervising.incidents",
    "FtJob": "supervising.run", "FtRun": "supervising.run", "RunFailed": "supervising.run",
    "run_ft_hsdp": "supervising.run", "start_ft_hsdp": "supervising.run",
    "FtConfig": "ft_hsdp", "plain_hsdp": "ft_hsdp", "replay": "ft_hsdp", "train": "ft_hsdp",
}  # fmt: skip

__all__ = [
    "AuditFailed", "AuditLog", "Checkpointer", "Deadlines", "Fatal", "Feed", "FtConfig", "FtJob", "FtRun", "Ftar",
    "Incident", "Limit", "Quorum", "QuorumClient", "QuorumService", "Recoverable", "RunFailed", "Supervisor", "Work",
    "classify", "ft_all_reduce", "plain_hsdp", "replay", "run_elastic", "run_ft_hsdp", "start_ft_hsdp", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
