"""The door of `model.join(...)`: a context around the loop over an epoch that ranks leave at the same step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from labkit.wire.errors import RefusedError


class Joining:
    """Every rank enters it. A rank without data stays in `accompany` until all are through.

    divide: with average="ranks", the sum is divided by all ranks ("world", as in PyTorch) or by those that still have
    data ("active").
    """

    def __init__(self, model: Any, step: Callable[[], object] | None, divide: str):
        if divide not in ("world", "active"):
            raise RefusedError(f"join(divide={divide!r}): 'world' or 'active'")
        self._model, self._step, self._divide = model, step, divide

    def __enter__(self) -> Self:
        if self._model._join is not None:
            raise RefusedError("this model is inside of join() already")
        self._model._join = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if kind is None:  # otherwise the world is ending
                self.accompany()
        finally:
            self._model._join = None

    def accompany(self) -> None:
        """Take part in the steps of those who still have data, then end as they do."""
        raise NotImplementedError
