"""Where a rank's buffers lie in the tensor that a collective is about, for the records of its messages.

Algorithms move copies: a partial sum, the room for a result, blocks in another order. The address of such a copy says
nothing. An algorithm therefore says once what a copy stands for (`group.work_on`, `group.copy_of`), and each record
then holds the place of its message in the collective's tensor. Nothing that is computed depends on it.

The tensor is that of the outermost collective, cut and joined as its result: collectives that it calls inside itself,
on its own or on smaller groups, add to the same places.
"""

from __future__ import annotations

from torch import Tensor

_NEVER = 1 << 62  # the number of elements at which a buffer that is no ring of rows would wrap around


class Places:
    """The known buffers of one rank during one collective. Offsets are counted in elements.

    origin: where the tensor of the collective that runs now begins in that of the outermost one; -1 if unknown.
    """

    __slots__ = ("origin", "_known")

    def __init__(self) -> None:
        self.origin = 0
        self._known: list[tuple[int, int, int, int, int, int]] = []

    def find(self, x: Tensor) -> int:
        """The element of the outermost collective's tensor at which `x` begins, -1 if it lies elsewhere."""
        at = x.data_ptr()
        for start, end, itemsize, origin, first, wrap in self._known:
            if start <= at < end:
                return origin + (first + (at - start) // itemsize) % wrap
        return -1

    def enter(self, x: Tensor | None, first_row: int, nested: bool) -> None:
        """A collective begins whose input `x` is rows `first_row` ... of its tensor."""
        if x is None or not x.numel():
            return
        first = first_row * _width(x)
        if nested:
            found = self.find(x)
            self.origin = found - first if found >= 0 else -1
        else:
            self._add(x, 0, first, _NEVER)

    def whole(self, x: Tensor, first_row: int) -> None:
        """`x` holds all rows of the tensor of the collective that runs now, from `first_row` on and around."""
        if self.origin >= 0:
            self._add(x, self.origin, first_row * _width(x), max(1, x.numel()))

    def copy(self, x: Tensor, original: Tensor) -> None:
        """`x` holds the same elements as `original`."""
        found = self.find(original)
        if found >= 0:
            self._add(x, found, 0, _NEVER)

    def _add(self, x: Tensor, origin: int, first: int, wrap: int) -> None:
        start, end = x.data_ptr(), x.data_ptr() + x.nbytes
        if start == end:
            return
        # What lay wholly inside was freed, and its memory given out again. The newest comes first.
        self._known = [known for known in self._known if known[0] < start or known[1] > end]
        self._known.insert(0, (start, end, x.itemsize, origin, first, wrap))


def _width(x: Tensor) -> int:
    """Elements in a row of `x`."""
    return x.numel() // len(x) if x.dim() and len(x) else 1
