"""What the programs of the exercises return, computed on one rank: what their checks compare with."""

from __future__ import annotations

import torch
from torch import Tensor


def routed(logits: list[Tensor], k: int, slots: int, first: int, mistake: str = "") -> list[list[Tensor]]:
    """By rank [experts, weights, taken] of `my_router`, or what a well-known mistake gives. logits: by rank."""
    n, experts = len(logits), logits[0].shape[1]
    chosen = [_best(rows, k, mistake == "ties") for rows in logits]
    queue = []  # all choices, in the order in which they are served
    for rank, best in enumerate(chosen):
        turn = rank if mistake == "rank 0" else (first - rank if mistake == "backwards" else rank - first) % n
        for token, row in enumerate(best.tolist()):
            for choice, expert in enumerate(row):
                place = (turn, choice, token)
                if mistake == "tokens":
                    place = (turn, token, choice)
                elif mistake != "ranks":
                    place = (choice, turn, token)
                queue.append((place, rank, token, choice, expert))
    kept = [torch.zeros_like(best, dtype=torch.bool) for best in chosen]
    ahead: dict[tuple[int, int], int] = {}
    for _, rank, token, choice, expert in sorted(queue):
        line = (rank if mistake == "own" else -1, expert)
        place = ahead.get(line, 0)
        ahead[line] = place + 1
        kept[rank][token, choice] = place <= slots if mistake == "one more" else place < slots
    wanted = torch.zeros(experts, dtype=torch.int64)
    for best in chosen:
        wanted += best.flatten().bincount(minlength=experts)
    taken = wanted if mistake == "wanted" else wanted.clamp(max=slots)
    return [
        [best, _weights(rows, best, own, mistake), taken] for rows, best, own in zip(logits, chosen, kept, strict=True)
    ]


def _best(logits: Tensor, k: int, high: bool) -> Tensor:
    if high:  # of equal scores the expert with the higher number
        return logits.shape[1] - 1 - logits.flip(-1).sort(dim=-1, descending=True, stable=True).indices[:, :k]
    return logits.sort(dim=-1, descending=True, stable=True).indices[:, :k]


def _weights(logits: Tensor, experts: Tensor, kept: Tensor, mistake: str) -> Tensor:
    """The scores of the kept choices, so that those of a token add up to 1; 0 for the dropped ones."""
    scores = logits.softmax(-1).gather(1, experts)
    if mistake == "scores":
        return scores * kept
    if mistake == "before":
        return scores / scores.sum(-1, keepdim=True) * kept
    if mistake == "all":
        return scores / scores.sum(-1, keepdim=True)
    return (scores * kept / (scores * kept).sum(-1, keepdim=True)).nan_to_num(0.0)
