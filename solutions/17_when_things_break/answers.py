"""What the programs of the exercises return, computed on one rank: what their checks compare with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.chapters.c17_when_things_break.numbers import gradient_of


def find(members: Sequence[Sequence[int]], looks: Sequence[dict[str, Any]]) -> tuple[list[list[int]], list[int]]:
    """(which group's call waits for which other one's, the ranks at fault) of what the records say."""
    absent, waits = {}, set()
    for call in {look["inside"] for look in looks} - {-1}:
        most = max(int(looks[r]["calls"][call]) for r in members[call])
        absent[call] = [r for r in members[call] if int(looks[r]["calls"][call]) < most]
        waits |= {(call, looks[r]["inside"]) for r in absent[call] if looks[r]["inside"] >= 0}
    culprits: set[int] = set()
    for call in set(absent) - {of for of, _ in waits}:
        alone = [r for r in members[call] if looks[r]["inside"] == call and looks[r]["waits_for"] < 0]
        culprits |= set(absent[call] or alone)
    return [list(edge) for edge in sorted(waits)], sorted(culprits)


def slow_ranks(tables: Sequence[Tensor], least: float = 0.05, levels: Sequence[int] = (0,)) -> list[int]:
    """The ranks, at most half of them, that are set apart by little time in calls; [] for none."""
    spent, window = [], 0
    for table in tables:
        own = table[torch.isin(table[:, 0], torch.tensor(levels))]
        spent.append(int((own[:, 3] - own[:, 2]).sum()))
        window = max(window, int(table[:, 3].max() - table[:, 2].min()))
    order = sorted(range(len(spent)), key=lambda r: spent[r])
    gaps = [spent[b] - spent[a] for a, b in zip(order, order[1:], strict=False)][: len(order) // 2]
    if not gaps or max(gaps) < least * window:
        return []
    return sorted(order[: gaps.index(max(gaps)) + 1])


def trained(data: Sequence[dict[str, Tensor]], rate: float, how: str = "") -> tuple[Tensor, list[list[Any]]]:
    """(weights, steps left out with the ranks that had it first), as one process computes it. how: a mistake."""
    weights, left_out = data[0]["weights"].clone(), []
    for step in range(len(data[0]["x"])):
        own = [gradient_of(one["x"][step], one["y"][step], weights) for one in data]
        first = [rank for rank, g in enumerate(own) if not torch.isfinite(g).all()]
        if first:
            left_out.append([step, first])
            good = [g for g in own if torch.isfinite(g).all()]
            if how == "without them" and good:
                weights = weights - rate * torch.stack(good).sum(0) / len(good)
            elif how == "zeros":
                weights = weights - rate * torch.stack([torch.nan_to_num(g, 0.0, 0.0, 0.0) for g in own]).mean(0)
            continue
        weights = weights - rate * torch.stack(own).mean(0)
    return weights, left_out
