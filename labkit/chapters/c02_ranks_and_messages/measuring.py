"""What section 6 of chapter 2 measures with: whole megabytes and their pieces."""

from __future__ import annotations

from typing import Any

import labkit
from labkit.cost.units import MB


def cutting(megabytes: float, pieces: int, **options: Any) -> dict[str, Any]:
    """Bytes that divide into `pieces` pieces, and what a message costs by what was once measured on this machine."""
    model = labkit.launch(lambda group: group.link_model, 2, **options).results[0]
    whole = max(1, round(megabytes * MB / 8 / pieces)) * 8 * pieces
    return {"whole": whole, "pieces": pieces, "alpha": model.alpha, "beta": model.beta}
