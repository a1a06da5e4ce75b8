"""What programs of the exercises return, computed on one rank: what their checks compare with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.chapters.c08_loose_synchrony.sums import stream

RATE = 0.25


def served(first: Tensor, takes: list[list[int]], xs: list[Tensor], s: int, mistake: str = "") -> list[Any]:
    """By rank what `my_run` returns, or what a well-known mistake gives. takes, xs: of the workers 1, 2, ...

    The server's [weights, log], then of each worker the milliseconds for which it waited.
    """
    workers, clocks, weights = range(1, len(takes) + 1), len(takes[0]), first
    begun = dict.fromkeys(workers, 0)  # when a worker got its weights, in ms
    got = dict.fromkeys(workers, weights)
    version, clock, waited = dict.fromkeys(workers, 0), dict.fromkeys(workers, 0), dict.fromkeys(workers, 0)
    held: dict[int, tuple[int, Tensor, int]] = {}
    log: list[list[int]] = []
    busy = set(workers)
    while busy:
        order = {w: (begun[w] + takes[w - 1][clock[w]], -w if mistake == "high" else w) for w in busy}
        worker = min(busy, key=lambda w: order[w])
        now = order[worker][0]
        weights = weights - RATE * (got[worker] - xs[worker - 1][clock[worker]])
        log.append([now, worker, clock[worker], len(log) - version[worker]])
        clock[worker] += 1
        busy.remove(worker)
        if clock[worker] < clocks:
            held[worker] = now, weights, len(log)
        slowest = min(clock.values())
        for w in sorted(held):
            ahead = clock[w] - slowest
            if mistake == "free" or ahead < s + (mistake != "strict") + (mistake == "one more"):
                since, then, old = held.pop(w)
                begun[w] = since if mistake == "since" else now
                waited[w] += begun[w] - since
                got[w], version[w] = (then, old) if mistake == "old" else (weights, len(log))
                busy.add(w)
    table = torch.tensor(log)
    if mistake == "own":
        table[:, 3] += 1
    elif mistake == "clocks":  # how far the worker is behind, in clocks and not in updates
        table[:, 3] //= max(1, len(takes))
    return [[weights, table], *(waited[w] for w in workers)]


def masked(numbers: Tensor, secrets: Tensor, rank: int, mistake: str = "", lost: Sequence[int] = ()) -> Tensor:
    """What client `rank` of `my_masked_sum` sends, or what a well-known mistake sends. secrets: by partner."""
    total = numbers.clone()
    for partner, secret in enumerate(secrets.tolist()):
        if partner in (0, rank) or mistake == "plain" or (mistake == "knowing" and partner in lost):
            continue
        plus = 1 if rank < partner or mistake == "all added" else -1
        total.add_(stream(secret, len(total)), alpha=-plus if mistake == "turned" else plus)
    return total


def thinned(gradients: list[Tensor], k: int, mistake: str = "") -> list[Any]:
    """By rank [updates, residual] of `my_top_k`, or of a well-known mistake, and the entries that a rank sent to each.

    gradients: by rank, (steps, n).
    """
    ranks, (steps, n) = len(gradients), gradients[0].shape
    part, few = n // ranks, k // ranks
    residual = [torch.zeros(n) for _ in gradients]
    updates, rows = torch.zeros(steps, n), torch.zeros(ranks, ranks, dtype=torch.int64)
    for t in range(steps):
        total = torch.zeros(n)
        for r in range(ranks):
            wanted = gradients[r][t] + (0 if mistake == "forgets" else residual[r])
            size = wanted if mistake == "signed" else wanted.abs()
            best = _largest(size, k, mistake == "high")
            kept = wanted.clone()
            kept[best] = 0
            residual[r] = wanted if mistake == "keeps" else kept
            total[best] += wanted[best]
            rows[r] += (best // part).bincount(minlength=ranks)
        if mistake == "mean":
            total = total / ranks
        for r in range(ranks):
            own = total[r * part : (r + 1) * part]
            size = own if mistake == "signed" else own.abs()
            best = _largest(size, min(part, k if mistake == "all k" else few), mistake == "high")
            rest = own.clone()
            rest[best] = 0
            updates[t, r * part + best] = own[best]
            if mistake == "everywhere":  # every rank keeps what an owner has left
                for each in residual:
                    each[r * part : (r + 1) * part] += rest
            elif mistake != "drops":
                residual[r][r * part : (r + 1) * part] += rest
    return [[[updates, own] for own in residual], rows]


def _largest(size: Tensor, k: int, high: bool) -> Tensor:
    """Where the k largest are; of equal ones the lower place first, or, if `high`, the higher."""
    if high:
        return len(size) - 1 - size.flip(0).sort(descending=True, stable=True).indices[:k]
    return size.sort(descending=True, stable=True).indices[:k]
