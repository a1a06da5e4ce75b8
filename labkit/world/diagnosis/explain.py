"""The words of a diagnosis: who did what, who waits for whom, and why it cannot end well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from labkit.wire.dtypes import describe
from labkit.wire.recording import record as rec
from labkit.wire.recording.trace import shape_told

if TYPE_CHECKING:
    from labkit.world.diagnosis.reading import Picture


def ranks_text(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 1 and 2`, `ranks 0 to 5 and 7`."""
    ranks = sorted(ranks)
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    runs: list[list[int]] = []
    for r in ranks:
        if runs and r == runs[-1][-1] + 1:
            runs[-1].append(r)
        else:
            runs.append([r])
    parts = [str(x) for run in runs for x in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else run)]
    return "ranks " + (", ".join(parts[:-1]) + " and " if len(parts) > 1 else "") + parts[-1]


def call_text(e: np.void, names: list[str], earlier: int = 0) -> str:
    """A collective of record `e`. earlier: what the page of its rank says."""
    tensor = describe(int(e["dtype"]), shape_told(e)) if e["dtype"] else ""
    call = call_number(int(e["group"]), int(e["seq"]), earlier)
    return f"{name_text(names, e['name'])}{of_text(e, names)}({tensor}), call {call}"


def call_number(group: int, seq: int, earlier: int) -> int:
    """Which call of its group it is; in a kept world, counted from where the reader's function began."""
    return seq - earlier if group == rec.WORLD and seq > earlier else seq


def of_text(e: np.void, names: list[str]) -> str:
    """` of 'blocks.3'`, where the call said what it is of."""
    of = rec.call_words(name_text(names, e["detail"]) if e["detail"] >= 0 else "")[2]
    return f" of {of!r}" if of else ""


def name_text(names: list[str], number: int) -> str:
    return names[number] if 0 <= number < len(names) else "?"  # the table of names was full


def explain_stuck(picture: Picture) -> str:
    """Why the stuck ranks cannot go on, with the wait-for picture."""
    gone = sorted(
        {r for s in picture.stuck for r in picture.waits[s].on if picture.state[r] in (rec.FINISHED, rec.FAILED)}
    )
    if gone:
        ended = "finished" if all(picture.state[r] == rec.FINISHED for r in gone) else "failed"
        has, them = ("has", "it") if len(gone) == 1 else ("have", "them")
        first = f"{ranks_text(gone)} {has} {ended} while others wait for {them}"
    else:
        first = f"{ranks_text(picture.stuck)} wait for each other"
    return first + "\n" + wait_for_picture(picture, picture.stuck)


def explain_timeout(picture: Picture, timeout: float, stopped: list[int]) -> str:
    """What nobody moved for, with everyone's wait. timeout: seconds; stopped: ranks that got a SIGSTOP."""
    awaited = _awaited(picture)
    starting = picture.state.count(rec.UNBORN)
    why = f"nothing moved for timeout={timeout:g} s" + (" while the ranks were starting" if starting else "")
    if stopped:
        why += f": {ranks_text(stopped)} {'is' if len(stopped) == 1 else 'are'} stopped (SIGSTOP)"
    elif awaited:
        why += f": {ranks_text(awaited)} {'is' if len(awaited) == 1 else 'are'} awaited but outside any message"
    return why + "\n" + wait_for_picture(picture, range(len(picture.state)))


def awaits(picture: Picture) -> dict[int, list[int]]:
    """The ranks that each rank waits for, of those that wait."""
    return {rank: sorted(wait.on) for rank, wait in sorted(picture.waits.items())}


def culprit(picture: Picture) -> int:
    """The one rank that others wait for and that waits for nobody, or -1."""
    free = _awaited(picture)
    return free[0] if len(free) == 1 else -1


def _awaited(picture: Picture) -> list[int]:
    return sorted({r for w in picture.waits.values() for r in w.on if r not in picture.waits})


def wait_for_picture(picture: Picture, ranks: Sequence[int]) -> str:
    """A line a rank: what it does and whom it waits for."""
    return "\n".join(f"  rank {r}: {picture.describe(r)}" for r in ranks)
