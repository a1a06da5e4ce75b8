"""How fast a replica still is when its tensor-parallel groups are narrower, if some of its GPUs have failed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from labkit.cost.refuse import positive, whole

__all__ = ["WORK_480B", "narrow_speed"]

# The 480B model of the NTP paper (arXiv 2504.06095, section 6.2): 128 heads, hidden 20,480, feed-forward 81,920 wide,
# sequences of 16K. A layer's work by what it is cut along, in flops per token over hidden: 8 h + 4 s for attention
# (its four products, and scores and values of all s tokens) against 16 h for the feed-forward network.
_HIDDEN, _SEQUENCE = 20_480, 16_384
_ATTENTION, _FEED_FORWARD = 8 * _HIDDEN + 4 * _SEQUENCE, 16 * _HIDDEN
WORK_480B = (
    (128, _ATTENTION / (_ATTENTION + _FEED_FORWARD)),
    (4 * _HIDDEN, _FEED_FORWARD / (_ATTENTION + _FEED_FORWARD)),
)


def narrow_speed(width: int, full: int, work: Sequence[tuple[int, float]] | None = None) -> float:
    """The speed of a replica on groups of `width` GPUs, over that on `full` ones.

    work=None: everything can be cut evenly, width / full: .9375 for 30 of 32. Otherwise pairs (shards, part of the
    work): so many shards, such as heads, are dealt out whole, and the rank with most of them sets the pace. With
    128 heads, 30 ranks hold 4 or 5, so attention is 5/4 slower: `WORK_480B` at 30 and 28 of 32 gives .8755 and .8424.
    Time in communication counts as work here. Raises ValueError for a width of 0: no GPU is left to be narrow on.
    """
    whole(full=full)
    if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= full:
        raise ValueError(
            f"width must be from 1 to full={full}, not {width!r}: a group without a GPU is lost whole; "
            f"drop its replica (dp-drop) or put a spare domain in its place"
        )
    if work is None:
        return width / full
    parts = [part for _, part in work]
    positive(**{"part of the work": min(parts, default=0)})
    if abs(math.fsum(parts) - 1) > 1e-9:
        raise ValueError(f"the parts of the work must sum to 1, not {math.fsum(parts)!r}")
    for shards, _ in work:
        whole(shards=shards)
        if shards < full:
            raise ValueError(f"{shards} shards are fewer than {full} ranks: some hold none; use at most {shards} ranks")
    return 1 / math.fsum(part * -(-shards // width) / -(-shards // full) for shards, part in work)
