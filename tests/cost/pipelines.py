"""Pipelines by definition, for the closed forms to be compared with: each rank's order, and a clock for each rank.

Independent of `labkit.parallel.pipeline`. An instruction is (what, chunk, microbatch); what is F, I (gradient of the
input), W (of the weights), or B (both).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Order = list[tuple[str, int, int]]


def naive(p: int, m: int) -> list[Order]:
    return [[(what, 0, i) for i in range(m) for what in "FB"]] * p


def gpipe(p: int, m: int) -> list[Order]:
    return [[(what, 0, i) for what in "FB" for i in range(m)]] * p


def one_f_one_b(p: int, m: int) -> list[Order]:
    return interleaved(p, m, 1)


def interleaved(p: int, m: int, v: int) -> list[Order]:
    """m a multiple of p, or v = 1."""
    orders = []
    for rank in range(p):
        steps = [(k // p % v, k // (p * v) * p + k % p) if v > 1 else (0, k) for k in range(m * v)]
        forwards = [("F", chunk, i) for chunk, i in steps]
        backwards = [("B", v - 1 - chunk, i) for chunk, i in steps]
        warmup = min(m * v, (p - 1 - rank) * (2 if v > 1 else 1) + (v - 1) * p)
        order = forwards[:warmup]
        for forward, backward in zip(forwards[warmup:], backwards, strict=False):
            order += [forward, backward]
        orders.append(order + backwards[m * v - warmup :])
    return orders


def zero_bubble(p: int, m: int, kind: int) -> list[Order]:
    """ZB-H1 (kind 1), ZB-H2 (2): `kind` times the warm-up of 1F1B, and weights put off by `kind` r microbatches."""
    orders = []
    for rank in range(p):
        forwards = [("F", 0, i) for i in range(m)]
        warmup = min(m, kind * (p - 1 - rank) + 1)
        order = forwards[:warmup]
        rest = iter(forwards[warmup:])
        lag = kind * rank
        for i in range(m):
            order.append(("I", 0, i))
            if i >= lag:
                order.append(("W", 0, i - lag))
            order += [step for step in [next(rest, None)] if step]
        orders.append(order + [("W", 0, i) for i in range(max(0, m - lag), m)])
    return orders


@dataclass
class Outcome:
    seconds: float
    idle: list[float]  # of each rank, between its first instruction and its last


def run(orders: list[Order], f: float, b: float, w: float, chunks: int = 1) -> Outcome:
    """Each rank does its list in order; an instruction begins when its input is there. Messages take no time."""
    p, done, clocks, at = len(orders), {}, [0.0] * len(orders), [0] * len(orders)
    length = {"F": f / chunks, "I": b / chunks, "W": w / chunks, "B": (b + w) / chunks}
    first: list[float | None] = [None] * p
    busy = [0.0] * p
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            while at[rank] < len(order):
                what, chunk, i = order[at[rank]]
                stage = chunk * p + rank
                back = "I" if what in "IB" else what
                wanted = {
                    "F": [("F", stage - 1, i)] if stage else [],
                    "I": [("F", stage, i)] + ([("I", stage + 1, i)] if stage < p * chunks - 1 else []),
                    "W": [("I", stage, i)],
                }[back]
                if any(one not in done for one in wanted):
                    break
                begin = max([clocks[rank], *(done[one] for one in wanted)])
                first[rank] = begin if first[rank] is None else first[rank]
                clocks[rank] = done[back, stage, i] = begin + length[what]
                busy[rank] += length[what]
                at[rank] += 1
                moved = True
    assert all(n == len(order) for n, order in zip(at, orders, strict=True)), "the schedule waits for itself"
    return Outcome(
        max(clocks), [end - (begin or 0) - work for end, begin, work in zip(clocks, first, busy, strict=True)]
    )


def held(order: Order) -> tuple[int, int]:
    """The most activations of a rank (F done, input gradient not); the most of these and waiting weights together."""
    active = waiting = most = together = 0
    for what, _, _ in order:
        active += {"F": 1, "I": -1, "B": -1}.get(what, 0)
        waiting += {"I": 1, "W": -1}.get(what, 0)
        most, together = max(most, active), max(together, active + waiting)
    return most, together


ORDERS: dict[str, Callable[[int, int, int], list[Order]]] = {
    "naive": lambda p, m, v: naive(p, m),
    "gpipe": lambda p, m, v: gpipe(p, m),
    "one_f_one_b": lambda p, m, v: one_f_one_b(p, m),
    "interleaved": interleaved,
    "zb_h1": lambda p, m, v: zero_bubble(p, m, 1),
    "zb_h2": lambda p, m, v: zero_bubble(p, m, 2),
}
