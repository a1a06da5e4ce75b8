"""What the panels of appendix A have in common."""

from __future__ import annotations

from typing import Any

from labkit import book
from labkit.book.frontend import VIEW

INSIDE = "calc(100% - 4px)"  # as wide as a control may be: it has a margin of 2 px on each side


class Panel:
    """A widget, made when first shown; without a reader, its words."""

    def __init__(self) -> None:
        self._box: Any = None

    def _made(self) -> Any:
        raise NotImplementedError

    @property
    def box(self) -> Any:
        if self._box is None:
            self._box = self._made()
        return self._box

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        told: dict[str, Any] = {"text/plain": repr(self)}
        return told | {VIEW: self.box._repr_mimebundle_()[VIEW]} if book.live() else told
