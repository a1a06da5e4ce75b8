"""The state of the random numbers, as bytes: Python's, PyTorch's, NumPy's if it is loaded, and this GPU's.

Each rank has a *stream* of its own, under a name. Ranks that must draw the same numbers (those of a tensor-parallel
group) have one stream. A stream that the checkpoint knows goes on bit for bit. A new one (more ranks, another mesh)
begins from a seed that is a function of what was saved and of its name: new, and the same each time.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def random_state(device: torch.device) -> dict[str, Tensor]:
    """By kind, as uint8 tensors."""
    version, numbers, gauss = random.getstate()
    found = {"torch": torch.get_rng_state(), "python": _tensor([version, *numbers], gauss)}
    if "numpy" in sys.modules:
        import numpy

        state: Any = numpy.random.get_state(legacy=True)
        _, keys, place, has_gauss, gauss = state
        found["numpy"] = _tensor([*map(int, keys), place, has_gauss], gauss)
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    return found


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Go on where `random_state` was taken. A kind that is not there stays as it is."""
    if "torch" in state:
        torch.set_rng_state(state["torch"].cpu())
    if "python" in state:
        (version, *numbers), gauss = _plain(state["python"])
        random.setstate((version, tuple(numbers), gauss))
    if "numpy" in state:
        import numpy

        (*keys, place, has_gauss), gauss = _plain(state["numpy"])
        numpy.random.set_state(("MT19937", numpy.array(keys, dtype=numpy.uint32), place, has_gauss, gauss or 0.0))
    if "cuda" in state and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)


def derived_seed(digests: Mapping[str, int], stream: str) -> int:
    """The seed of a stream that was not saved. digests: a checksum of each state that was saved, by stream.

    Where all streams were in one state (ranks that draw the same), a new one has the seed that any new one has.
    """
    alike = len(digests) > 1 and len(set(digests.values())) == 1
    text = json.dumps([sorted(digests.values()), "" if alike else stream])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")


def seed_everything(seed: int, device: torch.device) -> None:
    """Begin anew from `seed`, all kinds alike."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        import numpy

        numpy.random.seed(seed % 2**32)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def _tensor(numbers: Sequence[int], gauss: float | None) -> Tensor:
    """As bytes, always equally many: the numbers, and the second one of a pair that was drawn, if it waits (or NaN)."""
    last = torch.tensor([math.nan if gauss is None else gauss], dtype=torch.float64)
    return torch.cat([torch.tensor(numbers, dtype=torch.int64).view(torch.uint8), last.view(torch.uint8)])


def _plain(x: Tensor) -> tuple[list[int], float | None]:
    last = x[-8:].clone().view(torch.float64).item()
    return x[:-8].clone().view(torch.int64).tolist(), None if math.isnan(last) else last
