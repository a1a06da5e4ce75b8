"""Which members of an emulation are on which host."""

from __future__ import annotations


def cut(count: int, parts: int) -> list[tuple[int, int]]:
    """(first, how many) of `parts` stretches of `count`, as even as can be."""
    edges = [count * i // parts for i in range(parts + 1)]
    return [(a, b - a) for a, b in zip(edges, edges[1:], strict=False)]


def blocks(members: int, replicas: int, hosts: int) -> list[list[tuple[int, int, int]]]:
    """For each host the (replica, first rank, count) of its members, which are numbered replica by replica."""
    owns = cut(members, replicas)
    found = []
    for first, count in cut(members, hosts):
        here = []
        for replica, (begin, ranks) in enumerate(owns):
            low, high = max(first, begin), min(first + count, begin + ranks)
            if low < high:
                here.append((replica, low - begin, high - low))
        found.append(here)
    return found
