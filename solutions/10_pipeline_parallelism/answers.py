"""What the programs of the exercises return, computed on one rank: what their checks compare with."""

from __future__ import annotations


def limited_1f1b(stages: int, microbatches: int, room: int) -> list[list[str]]:
    """The labels of the 1F1B in which no rank keeps more than `room` activations: shorter warmups on early ranks."""
    rows = []
    for rank in range(stages):
        warmup = min(stages - rank, room, microbatches) - 1
        row = [f"{rank}F{k}" for k in range(warmup)]
        for k in range(microbatches):
            row += [f"{rank}F{k + warmup}"] * (k + warmup < microbatches) + [f"{rank}B{k}"]
        rows.append(row)
    return rows
