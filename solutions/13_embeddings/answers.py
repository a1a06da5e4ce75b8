"""What well-known mistakes in the programs of the exercises give: what their checks compare with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labkit.chapters.c13_embeddings.checks import whole_table
from labkit.chapters.c13_embeddings.runs import noise


def rested(inputs: list[dict[str, Any]], lr: float, beta: float, mistake: str = "") -> list[list[Tensor]]:
    """By rank [rows, velocity, last] of `my_steps`, or what a well-known mistake gives."""
    n, w = len(inputs), whole_table(inputs)
    v, last = torch.zeros_like(w), torch.zeros(len(w), dtype=torch.int64)
    for t in range(1, 1 + len(inputs[0]["ids"])):
        ids = torch.cat([mine["ids"][t - 1] for mine in inputs])
        g = torch.zeros_like(w).index_add_(0, ids, torch.cat([mine["gradients"][t - 1] for mine in inputs]))
        for i in ids.unique().tolist():
            k = t - 1 - int(last[i])
            for _ in range({"none": 0, "more": k + 1, "one": min(k, 1)}.get(mistake, k)):
                v[i] = beta * v[i]
                w[i] = w[i] - lr * v[i] * (mistake != "still")
            v[i] = beta * v[i] + g[i]
            w[i] = w[i] - lr * v[i]
            last[i] = t
    return [[w[r::n], v[r::n], last[r::n]] for r in range(n)]


def left_over(came: list[int], secrets: list[Tensor], n: int, mistake: str = "") -> Tensor:
    """What `my_sum` takes out of the sum of the masked numbers, or what a well-known mistake takes out.

    secrets: by client, from client 1. n: numbers of a client.
    """
    total = torch.zeros(n, dtype=torch.int32)
    lost = [c for c in range(1, 1 + len(secrets)) if c not in came]
    for gone in lost[:1] if mistake == "first" else lost:
        for client in came:
            mask = noise(int(secrets[client - 1][gone]), n)
            sign = {"minus": 1, "plus": -1}.get(mistake, 1 if client < gone else -1)
            total += -sign * mask if mistake == "wrong" else sign * mask
    return total
