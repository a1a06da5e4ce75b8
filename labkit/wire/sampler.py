"""How much memory a rank held at its peak, in one of two senses that must not be confused.

resident: bytes of the tensors that are alive, each storage counted once, looked up at every mark on the timeline
(steps and ends of spans). It is what the formulas of the book speak of. peak: growth of the process's
high-water mark as the operating system sees it, with all that an allocator reserves.
"""

from __future__ import annotations

import gc


class Sampler:
    """Watches one process from now on."""

    def __init__(self, kind: str):
        import torch

        self.kind, self._torch, self._peak = kind, torch, 0
        if kind == "resident":
            gc.collect()
            gc.freeze()  # what is alive now is the interpreter's and PyTorch's own
            self._base = 0
        else:
            self.restart()

    def restart(self) -> None:
        """Watch from now on."""
        self._peak = 0
        if self.kind != "resident":
            _reset_high_water()
            self._base = _status("VmRSS")

    def sample(self) -> None:
        """Look now (resident only; the kernel watches the other)."""
        if self.kind == "resident":
            self._peak = max(self._peak, resident_bytes())

    def peak(self) -> int:
        """Bytes at the peak so far."""
        return self._peak if self.kind == "resident" else max(0, _status("VmHWM") - self._base)


def resident_bytes() -> int:
    """Bytes of all tensors this process holds, each storage once.

    What autograd saved for backward is not counted: Python does not see it. Hooks that make it visible mark it.
    """
    import torch

    storages: dict[int, int] = {}
    for thing in gc.get_objects():
        if isinstance(thing, torch.Tensor) and type(thing) is not torch.Tensor.__base__:
            if thing.is_meta or hasattr(thing, "_saved_for_backward"):
                continue
            try:
                for t in (thing, thing.grad if thing.is_leaf else None):
                    if t is not None:
                        storage = t.untyped_storage()
                        storages[storage.data_ptr()] = storage.nbytes()
            except (RuntimeError, NotImplementedError):
                continue  # a tensor without storage (meta, or being torn down)
    return sum(storages.values())


def _status(name: str) -> int:
    try:
        with open("/proc/self/status") as f:
            return next(int(line.split()[1]) * 1024 for line in f if line.startswith(name))
    except (OSError, StopIteration):
        import resource
        import sys

        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return used if sys.platform == "darwin" else used * 1024


def _reset_high_water() -> None:
    try:
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
    except OSError:
        pass
