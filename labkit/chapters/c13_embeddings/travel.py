"""Requests that pile up at the owners of rows, and ids that travel there while rows come back: from real look-ups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from labkit import book, cost
from labkit.book.drawing.figure import WIDTH, heading
from labkit.book.drawing.style import ON_COLOUR, SERIES
from labkit.book.drawing.svg import Svg
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import bytes_text
from labkit.chapters.c13_embeddings.tables import ROWS, Requests, Trip

PIECES, MOMENTS = 40, 6
LEFT, WIDE = 74.0, 440.0


def piles(run: Any, placement: str, skew: float) -> book.Player:
    """Request by request, where in the shards the rows lie that were asked for."""
    told: list[Requests] = run.results
    n = len(told)
    served = [one.served for one in told]
    every = [place for one in told for place in one.places]
    mixed = [every[i] for i in torch.randperm(len(every), generator=torch.Generator().manual_seed(0)).tolist()]
    law, drawn = (shares_by_law(placement, skew, draws, n) for draws in (told[0].draws, None))
    title = "Requests pile up at the owners of the rows"
    frames = []
    final = _counted(mixed, n)
    by_range = [(i * n // ROWS, i * n / ROWS % 1) for one in told for i in one.asked]  # one height for all placements
    most = max(1, *(max(row) for row in final), *(max(row) for row in _counted(by_range, n)))
    for k in range(1, MOMENTS + 1):
        some = mixed[: len(mixed) * k // MOMENTS]
        so_far = [sum(r == owner for owner, _ in some) for r in range(n)]
        busy = served.index(max(served))
        if k < MOMENTS:
            said = f"{len(some):,} of {len(mixed):,} requests have arrived."
        else:
            times = served[busy] * n / max(1, sum(served))
            if min(served) == max(served):
                said = f"All requests have arrived. Every rank got {served[0]:,} of them."
            else:
                said = (
                    f"All requests have arrived. Rank {busy} got {served[busy]:,} of them, {times:.2f} times the mean."
                )
        frames.append((_piled(title, said, _counted(some, n), most, so_far, law, drawn, placement, skew), said))
    rows = [{"rank": r, "requests": served[r], "share": served[r] / max(1, sum(served)),
             "expected": law[r], "expected of all ids": drawn[r]} for r in range(n)]  # fmt: skip
    return book.play(frames, title=title, badge="measured", rows=rows, still=MOMENTS - 1, begin=MOMENTS - 1)


def shares_by_law(placement: str, skew: float, draws: int | None, n: int) -> list[float]:
    """The part of the requests that each rank should get, by `labkit.cost`; without `draws` the part of all ids."""
    if placement in ("range", "modulo"):
        return cost.zipf_shard_loads(ROWS, skew, n, placement, draws)
    return [1 / n] * n if placement == "columns" else [1.0] + [0.0] * (n - 1)


def _counted(places: Sequence[tuple[int, float]], n: int) -> list[list[int]]:
    found = [[0] * PIECES for _ in range(n)]
    for owner, where in places:
        found[owner][int(where * PIECES)] += 1
    return found


def _piled(
    title: str, said: str, piled: Sequence[Sequence[int]], most: int, so_far: Sequence[int],
    law: Sequence[float], drawn: Sequence[float], placement: str, skew: float,
) -> str:  # fmt: skip
    svg = Svg(WIDTH, title, said)
    top = max(heading(svg, "measured", said), 74.0) + 6
    n = len(piled)
    band = max(30.0, 300.0 / n)
    high, step = band - 16, WIDE / PIECES
    total = max(1, sum(so_far))
    for r, row in enumerate(piled):
        y, look = top + r * band, SERIES[r % 8]
        svg.text(8, y + band / 2 + 4, f"rank {r}", 12, bold=True)
        svg.line(LEFT, y + high + 4, LEFT + WIDE, y + high + 4)
        for k, count in enumerate(row):
            if count:
                tall = max(1.2, high * count / most)
                svg.rect(LEFT + k * step, y + high + 4 - tall, step - 1, tall, look.colour, look.hatch, ON_COLOUR,
                         stroke_width=0.4, hover=f"{count} requests")  # fmt: skip
        x = LEFT + WIDE + 16
        svg.text(x, y + band / 2 + 6, f"{so_far[r] / total:.0%}", 20, bold=True)
        svg.text(x + 58, y + band / 2, f"{so_far[r]:,} requests", 11.5)
        svg.text(x + 58, y + band / 2 + 13, f"expected: {_part(law[r])} ({_part(drawn[r])} of ids)", 9.5)
    y = top + n * band + 12
    nth = {2: "second", 3: "third"}.get(n, f"{n}th")
    held = {"range": "neighbouring ids", "modulo": f"every {nth} id", "columns": "its columns of all ids",
            "one rank": "rank 0 has all of them"}[placement] + (", the popular ones first" if skew else "")  # fmt: skip
    svg.text(LEFT, y, f"from left to right: a rank's rows ({held})", 11)
    svg.text(LEFT, y + 16, "height: how many requests for rows of that place have come", 11)
    return svg.render(y + 28)


Cell = tuple[int, int]  # (id, rank that asks for it)
WAYS = ("All-to-all: each group of ids goes to its owner. What a rank owns itself is not sent.",
        "All-to-all again: the rows go back the same way, with the counts swapped.")  # fmt: skip


def travelling(run: Any) -> book.Player:
    """Ids to the owners and rows back: ranks returned a `Trip` each."""
    trips: list[Trip] = run.results
    n = len(trips)
    home = [[(i, r) for i in one.ids] for r, one in enumerate(trips)]
    unique = [[(i, r) for i in one.unique] for r, one in enumerate(trips)]
    ordered = [sorted(row, key=lambda cell: cell[0] % n) for row in unique]
    there = [[(i, source) for source, ids in enumerate(one.asked_by) for i in ids] for one in trips]
    assert [sorted(one.unique) for one in trips] == [[round(x) for x in one.rows] for one in trips]  # rows are named
    busy = max(range(n), key=lambda r: len(there[r]))
    ahead = ", ".join(f"{sum(i % n == s for i, _ in ordered[0])} to rank {s}" for s in range(n))
    moments: list[tuple[str, list[list[Cell]], str, str]] = [
        (f"Each rank has a batch of {len(home[0])} ids. The colour and hatch of an id are those of its owner.", home,
         "", "id"),
        (f"Each id once: rank 0 has {len(home[0])} ids, and {len(unique[0])} different ones.", unique, "", "id"),
        (f"Sorted by owner. The counts are sent first, and rank 0 sends: {ahead}.", ordered, "owner", "id"),
        (f"The ids are at their owners. Rank {busy} is asked for {len(there[busy])} rows.", there, "asker", "id"),
        ("Each owner looks up its rows. They are in the order in which they were asked for.", there, "asker", "row"),
        ("The rows are back, and still sorted by owner.", ordered, "owner", "row"),
        ("In place: every id has its row, and an id that appears twice has it twice.", home, "", "row"),
    ]  # fmt: skip
    wide = min(46.0, (WIDTH - 84) / max(1, *(len(row) for row in [*there, *home])))
    frames = [(_moment(words, rows, by, kind, n, wide, run.trace.badge), words) for words, rows, by, kind in moments]
    for at, there_and_back in ((3, False), (6, True)):  # between the moments: the all-to-alls
        words = WAYS[there_and_back]
        frames.insert(at, (_on_the_way(words, ordered, there_and_back, run.trace.badge), words))
    rows = [{"rank": r} | {f"asks rank {s}": sum(i % n == s for i in one.unique) for s in range(n)}
            for r, one in enumerate(trips)]  # fmt: skip
    return book.play(frames, title="Ids go to the owners, rows come back", badge=run.trace.badge, rows=rows, still=3)


def _moment(words: str, rows: Sequence[Sequence[Cell]], by: str, kind: str, n: int, wide: float, badge: str) -> str:
    svg = Svg(WIDTH, "Ids go to the owners, rows come back", words)
    y = max(heading(svg, badge, words), 72.0) + 4
    for r, row in enumerate(rows):
        svg.text(8, y + 18, f"rank {r}", 12, bold=True)
        x, before = 84.0, None
        for i, asker in row:
            mark = {"owner": i % n, "asker": asker, "": None}[by]
            if before is not None and mark != before:
                svg.line(x - 1, y - 2, x - 1, y + 40, width=2.5)
            before = mark
            look = SERIES[i % n % 8]
            svg.rect(x + 2, y + 2, wide - 5, 22, look.colour, look.hatch, ON_COLOUR, radius=9 if kind == "id" else 0,
                     stroke_width=0.8 if kind == "id" else 2.6)  # fmt: skip
            svg.rect(x + wide / 2 - 9, y + 6, 17, 14, "#ffffff", stroke="none", radius=3)
            svg.text(x + wide / 2, y + 17, str(i), 10.5, "middle", on_colour=True)
            if by == "asker":
                svg.text(x + wide / 2, y + 36, f"for {asker}", 9, "middle")
            x += wide
        y += 46
    svg.text(8, y + 10, "round: an id. With corners and a thick frame: the row of this id. 'for 1': rank 1 asks.", 10.5)
    return svg.render(y + 20)


def _on_the_way(words: str, ordered: Sequence[Sequence[Cell]], back: bool, badge: str) -> str:
    """What each rank (at the left) sends to each owner (at the right), or gets back from it: a line for each group."""
    svg = Svg(WIDTH, "Ids go to the owners, rows come back", words)
    top = max(heading(svg, badge, words), 72.0) + 22
    n = len(ordered)
    band = max(52.0, 10.5 * n)
    each = (band - 10) / n
    left, right = 230.0, WIDTH - 110.0
    svg.text(8, top - 8, "who asks", 11, bold=True)
    svg.text(right + 14, top - 8, "owners", 11, bold=True)
    for r, row in enumerate(ordered):
        y, look = top + r * band, SERIES[r % 8]
        svg.text(8, y + band / 2 + 4, f"rank {r}", 12, bold=True)
        svg.rect(right + 10, y + 4, 92, band - 8, look.colour, look.hatch, ON_COLOUR)
        svg.rect(right + 22, y + band / 2 - 9, 68, 18, "#ffffff", stroke="none", radius=3)
        svg.text(right + 56, y + band / 2 + 4, f"rank {r}", 12, "middle", bold=True, on_colour=True)
        for s in range(n):
            ids = [i for i, _ in row if i % n == s]
            if not ids:
                continue
            begin, end = y + 5 + (s + 0.5) * each, top + s * band + 5 + (r + 0.5) * each
            what = SERIES[s % 8]
            text = ", ".join(map(str, ids))
            svg.text(left - 8, begin + 3.5, f"{'rows' if back else 'ids'} {text}", 9 if n > 4 else 10, "end")
            if r == s:
                svg.rect(left, begin - 2, 8, 4, what.colour, "", ON_COLOUR, stroke_width=0.6)
                continue
            svg.line(left, begin, right, end, width=1.0 + 1.1 * len(ids), colour=what.colour,
                     dash=DASHES[s % len(DASHES)])  # fmt: skip
            if back:
                svg.arrow_head(left, begin, left - right, begin - end, 7)
            else:
                svg.arrow_head(right + 4, end, right - left, end - begin, 7)
    y = top + n * band + 14
    svg.text(8, y, "the wider a line, the more it carries   a short bar: stays on its rank", 10.5)
    return svg.render(y + 12)


DASHES = ("", "7 4", "2 3", "9 3 2 3", "12 3", "4 2", "1 2", "6 2 1 2")


def moved(run: Any) -> book.Player:
    """Buckets that go from rank to rank, as wide as what was asked of them. Ranks returned the loads and the owners of
    the buckets, both before and after, and the bytes that they sent."""
    n, nbytes = len(run.results), sum(one[2] for one in run.results)
    (before, old), (after, new) = run.results[0][:2]
    going = sorted((b for b in range(len(old)) if old[b] != new[b]), key=lambda b: -before[b])
    worst = [_busiest(loads, owners, n) for loads, owners in ((before, old), (after, new))]
    frames, now = [], list(old)
    widest = max(1, *(sum(before[b] for b in range(len(old)) if old[b] == r) for r in range(n)),
                 *(sum(after[b] for b in range(len(new)) if new[b] == r) for r in range(n)))  # fmt: skip

    def add(words: str, loads: Sequence[int], owners: Sequence[int], fresh: Sequence[int], was: Sequence[int]) -> None:
        frames.append((_buckets(words, loads, owners, fresh, was, old, widest, n), words))

    add(f"Three steps are over. The busiest rank was asked for {worst[0]:.2f} times the mean. A box is a bucket, and "
        "its width is how many of its rows were asked for.", before, now, (), now)  # fmt: skip
    each = -(-len(going) // 4) or 1
    for k in range(0, len(going), each):
        fresh, was = going[k : k + each], list(now)
        for b in fresh:
            now[b] = new[b]
        done = min(k + each, len(going))
        the_last = "the bucket that moved last" if len(fresh) == 1 else "the buckets that moved last"
        add(f"Of {len(old)} buckets {len(going)} must move, and {done} of these {'has' if done == 1 else 'have'} moved "
            f"so far. A thick frame marks {the_last}. With the requests of the first three steps, and after "
            f"{'this move' if done == 1 else f'these {done} moves'}, the busiest rank gets "
            f"{_busiest(before, now, n):.2f} times the mean.", before, now, fresh, was)  # fmt: skip
    add(f"In the next three steps the busiest rank is asked for {worst[1]:.2f} times the mean. {len(going)} of "
        f"{len(old)} buckets moved, which have {bytes_text(nbytes)} with their optimizer's state. "
        + _stopped(before, new, n),
        after, new, (), new)  # fmt: skip
    rows: list[Row] = [
        {"rank": r} | {name: sum(loads[b] for b, owner in enumerate(owners) if owner == r)
                       for name, loads, owners in (
                           (f"{REQUESTS}before", before, old), (f"{REQUESTS}after", after, new))}
        for r in range(n)
    ]  # fmt: skip
    return book.play(frames, title=MOVED, badge="measured", rows=rows, still=min(1, len(frames) - 1))


MOVED = "Buckets of rows move from rank to rank"
REQUESTS = "requests of three steps, "


def _stopped(loads: Sequence[int], owners: Sequence[int], n: int) -> str:
    """Why no further bucket moved, by the loads that were counted before."""
    by_rank = [sum(load for load, owner in zip(loads, owners, strict=True) if owner == r) for r in range(n)]
    full = by_rank.index(max(by_rank))
    if sum(load > 0 for load, owner in zip(loads, owners, strict=True) if owner == full) == 1:
        return (
            f"More moves would not help: rank {full} was the busiest, but all its requests went to a single bucket, "
            "which cannot be cut."
        )
    return (
        f"More moves would not help: rank {full} was the busiest, but each of its buckets has at least as many "
        "requests as its lead over the rank with fewest."
    )


def _busiest(loads: Sequence[int], owners: Sequence[int], n: int) -> float:
    by_rank = [sum(load for load, owner in zip(loads, owners, strict=True) if owner == r) for r in range(n)]
    return max(by_rank) * n / max(1, sum(by_rank))


def _buckets(
    words: str, loads: Sequence[int], owners: Sequence[int], fresh: Sequence[int], was: Sequence[int],
    first: Sequence[int], widest: int, n: int,
) -> str:  # fmt: skip
    svg = Svg(WIDTH, MOVED, words)
    top = max(heading(svg, "measured", words), 74.0) + 6
    band, left = max(38.0, 200.0 / n), 66.0
    high = band - 16

    def places(owners: Sequence[int]) -> dict[int, tuple[float, float, float]]:
        at, found = [left] * n, {}
        for b in sorted(range(len(loads)), key=lambda b: (first[b] != owners[b], b)):  # what came stands at the end
            wide = 610.0 * loads[b] / widest
            found[b] = at[owners[b]], top + owners[b] * band, wide
            at[owners[b]] += wide
        return found

    now, before = places(owners), places(was)
    for r in range(n):
        svg.text(8, top + r * band + high / 2 + 4, f"rank {r}", 12, bold=True)
        asked = sum(load for load, owner in zip(loads, owners, strict=True) if owner == r)
        end = max([x + wide for b, (x, _, wide) in now.items() if owners[b] == r], default=left)
        svg.text(end + 6, top + r * band + high / 2 + 4, f"{asked:,}", 10.5)
    for b, (x, y, wide) in now.items():
        look = SERIES[first[b] % 8]
        svg.rect(x, y, max(wide, 0.5), high, look.colour, look.hatch, ON_COLOUR,
                 stroke_width=2.4 if b in fresh else 0.6, hover=f"bucket {b}: {loads[b]:,} rows asked for")  # fmt: skip
    for b in fresh:
        (x1, y1, wide), (x2, y2, _) = before[b], now[b]
        down = y2 > y1
        begin, end = (y1 + high, y2) if down else (y1, y2 + high)
        svg.rect(x1, y1, max(wide, 0.5), high, dash="3 2", stroke_width=1.4)
        svg.line(x1 + wide / 2, begin, x2 + wide / 2, end, width=1.3)
        svg.arrow_head(x2 + wide / 2, end, x2 - x1, end - begin, 7)
    y = top + n * band + 6
    svg.text(8, y, "colour and hatch: who had the bucket first   number: rows asked for in three steps", 10.5)
    return svg.render(y + 12)


def _part(share: float) -> str:
    return "<1%" if 0 < share < 0.01 else f"{share:.0%}"
