"""alpha and beta of this machine: measured once, kept in a small file, used by `algorithm="auto"`.

Two ranks exchange messages of several sizes and the times are fitted by `labkit.cost.fit_alpha_beta`. It takes a
fraction of a second, at the first launch on a machine; every launch hands the same numbers to all its ranks, so that
all choose alike.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from labkit.wire.context import LinkModel
from labkit.wire.transports import kinds

SIZES = (4, 4096, 65536, 1 << 20, 1 << 22)  # bytes
REPEAT = 9

_known: dict[str, LinkModel] = {}
_lock = threading.RLock()


def link_model(transport: str) -> LinkModel | None:
    """This machine's model for a transport, measured now if it never was; None where that cannot be done."""
    with _lock:
        if kinds()[transport].device != "cpu":
            return None
        if transport not in _known:
            found = _load().get(_key(transport))
            _known[transport] = LinkModel(*found) if found else measure(transport)
        return _known[transport]


def measure(transport: str) -> LinkModel:
    """Measure alpha (s a message) and beta (s a byte) between two ranks, keep and return them."""
    from labkit.cost import fit_alpha_beta

    from .engine import launch

    with _lock:
        _known[transport] = LinkModel(70e-6, 1 / 1.5e9)  # for the measuring run itself
        points = launch(_exchanges, 2, transport=transport).results[0]
        fit = fit_alpha_beta(points)
        model = _known[transport] = LinkModel(max(fit.alpha, 1e-9), max(fit.beta, 1e-15))
        _store(transport, model)
        return model


def _exchanges(group: Any) -> list[tuple[int, float]]:
    """Median seconds of an exchange, by bytes."""
    import torch

    points = []
    other = 1 - group.rank
    for nbytes in SIZES:
        x, y = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4)
        times = []
        for _ in range(REPEAT):
            begin = time.perf_counter()
            group.exchange(x, other, y, other)
            times.append(time.perf_counter() - begin)
        points.append((nbytes, statistics.median(times[1:])))
    return points


def _file() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "labkit" / "links.json"


def _key(transport: str) -> str:
    import platform

    import torch

    return f"{transport} {platform.node()} {os.cpu_count()} torch {torch.__version__}"


def _load() -> dict[str, tuple[float, float]]:
    try:
        found = json.loads(_file().read_text())
        return {k: (float(a), float(b)) for k, (a, b) in found.items() if a > 0 and b > 0}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # not there, or not ours: it is written anew


def _store(transport: str, model: LinkModel) -> None:
    path = _file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        table = {**_load(), _key(transport): (model.alpha, model.beta)}
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as f:
            json.dump(table, f, indent=1)
        os.replace(f.name, path)
    except OSError:
        pass  # a read-only home: measured again next time
