"""`group.compute`: a stand-in for a kernel, of a length that the caller chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.wire.recording import record as rec

if TYPE_CHECKING:
    from .group import Group


class Compute:
    """A kernel of a given length.

    `group.compute(s)` as a statement takes s seconds; `with group.compute(s):` takes at least s seconds,
    the work inside included. Which of the two it is shows only afterwards, so the plain form waits when
    the object is dropped, which CPython does at the end of the statement.
    """

    def __init__(self, group: Group, seconds: float):
        context, self._number = group.context, 0
        self._context = context
        faults = context.faults
        if faults is not None:
            faults.at_span("compute")
            seconds *= faults.slow
        self._clock, self._recorder = context.clock_here(), context.recorder
        start = self._clock.now()
        self._end = start + round(seconds * 1e9)
        self._number = self._recorder.begin(rec.SPAN, start, name=self._recorder.intern("compute"), group=group.key,
                                            parent=context.enclosing())  # fmt: skip
        self._device = context.device_clock
        self._begun: Any = self._device.mark() if self._device is not None else None
        self._inside = False
        if self._clock.virtual:
            self._settle()

    def _settle(self) -> None:
        if self._number:
            self._clock.reach(self._end)
            self._recorder.end(self._number, self._clock.now())
            if self._device is not None:
                self._device.span(self._number, self._begun)
            self._number = 0

    def __enter__(self) -> Compute:
        self._inside = True
        self._context.charged += 1
        return self

    def __exit__(self, *exc: object) -> None:
        self._context.charged -= 1
        self._settle()

    def __del__(self) -> None:
        if not self._inside:
            self._settle()
