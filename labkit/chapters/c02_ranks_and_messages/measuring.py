"""What section 6 of chapter 2 measures with: whole megabytes and their pieces, and when the bytes show."""

from __future__ import annotations

from typing import Any

import labkit
from labkit.cost.units import MB

VISIBLE = 0.1  # of the latency: a line that climbs by less looks flat


def cutting(megabytes: float, pieces: int, **options: Any) -> dict[str, Any]:
    """Bytes that divide into `pieces` pieces, and what a message costs by what was once measured on this machine."""
    model = labkit.launch(lambda group: group.link_model, 2, **options).results[0]
    whole = max(1, round(megabytes * MB / 8 / pieces)) * 8 * pieces
    return {"whole": whole, "pieces": pieces, "alpha": model.alpha, "beta": model.beta}


def bytes_show(fit: Any, largest: int) -> bool:
    """Whether messages of up to `largest` bytes tell what a byte costs.

    They do where its bytes take as long as the latency, or at least visibly much of it, by twice what `beta` may err.
    """
    climbs = fit.beta * largest >= VISIBLE * fit.alpha
    return bool(fit.half_size <= largest or (climbs and fit.beta > 2 * fit.beta_error))
