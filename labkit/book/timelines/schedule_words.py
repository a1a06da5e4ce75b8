"""A schedule in words: a row for each rank, and one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import plural

if TYPE_CHECKING:
    from labkit.book.timelines.schedules import Box, Scene, Window

MOST_LABELS = 40  # of a rank
KINDS = "FBIWU"


def rows_of(scene: Scene, inside: dict[int, list[Box]], every: dict[int, list[Box]]) -> list[Row]:
    """The text equivalent."""
    first, last = scene.window
    unit, name = (1e3, " (ms)") if scene.seconds else (1.0, " (units)")
    few = all(len(mine) <= MOST_LABELS for mine in inside.values())
    counts = {rank: Counter(b.kind for b in mine) for rank, mine in inside.items()}
    rows: list[Row] = []
    for rank, mine in inside.items():
        busy = sum(b.end - b.start for b in mine)
        span = 0.0
        if mine:  # boxes that reach over the edge of the window count for what is inside
            busy -= max(0.0, first - mine[0].start) + max(0.0, mine[-1].end - last)
            span = min(mine[-1].end, last) - max(mine[0].start, first)
        row: dict[str, object] = {
            "rank": rank, f"computing{name}": _tidy(unit * busy), f"idle{name}": _tidy(unit * (last - first - busy)),
            f"idle inside{name}": _tidy(unit * (span - busy)), "activations at most": _peak(every[rank]),
        }  # fmt: skip
        if few:
            row["in order"] = " ".join(b.label for b in mine)
        else:
            kinds = [kind for kind in KINDS if any(count[kind] for count in counts.values())]
            row.update({f"number of {kind}": counts[rank][kind] for kind in kinds})
        rows.append(row)
    return rows


def _tidy(value: float) -> float:
    return round(value, 6) + 0.0


def _peak(boxes: Sequence[Box]) -> int:
    """Activations that a rank keeps at most."""
    change = {"F": 1, "B": -1, "W": -1}
    return max(accumulate(change.get(box.kind, 0) for box in boxes))


def sentence_of(
    scene: Scene, name: str, rows: list[Row], microbatches: int, window: Window | None
) -> str:  # fmt: skip
    first, last = scene.window
    idle = [float(str(row[next(k for k in row if k.startswith("idle ("))])) for row in rows]
    total = (last - first) * (1e3 if scene.seconds else 1)
    kept = [int(str(row["activations at most"])) for row in rows]
    count = f"{microbatches} microbatch" + ("" if microbatches == 1 else "es")
    text = f"{name}: " if name else ""
    text += f"{plural(len(scene.ranks), 'rank')}, {count}" + (f", {scene.chunks} chunks" if scene.chunks > 1 else "")
    text += f": {scene.time(last - first)}" if window is None else \
        f", from {scene.time(first)} to {scene.time(last)}"  # fmt: skip
    text += f", of which a rank is idle {100 * sum(idle) / (total * len(idle)):.1f} % on average."
    low, high = min(kept), max(kept)
    text += f" A rank keeps {plural(high, 'activation') if low == high else f'{low} to {high} activations'} at most."
    if scene.chunks > 1 and not scene.runs:
        text += " Lighter boxes are later chunks; a number before a letter is the stage."
    if scene.runs:
        text += (" Boxes in a row are drawn as one stretch, as tall as the share of its time in which the rank "
                 "computes; use window= or ranks= to see each.")  # fmt: skip
    return text
