"""alpha and beta of this machine, fitted once and kept, so that `algorithm="auto"` can choose."""

from __future__ import annotations

from labkit.wire.context import LinkModel

_fitted: dict[str, LinkModel] = {}


def link_model(transport: str) -> LinkModel | None:
    """What was fitted for this transport in this process; None before that (then defaults are used)."""
    return _fitted.get(transport)


def remember(transport: str, model: LinkModel) -> None:
    """Use this model for the launches that follow."""
    _fitted[transport] = model
