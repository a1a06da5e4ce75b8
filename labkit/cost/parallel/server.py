"""What a parameter server moves in one clock, and how long its ports take (Li et al. 2014).

Each of N workers pulls n bytes of weights from S servers and pushes n bytes of gradients. A worker sends and receives n
bytes, whatever N is, but n N / S bytes go through the port of each server in either direction: the *incast*. A ring
all-reduce moves less than 2 n bytes over each port, whatever N is, but takes 2 (N - 1) latencies.
"""

from __future__ import annotations

import math

from labkit.cost.collectives.ring import ring_all_reduce
from labkit.cost.refuse import not_negative, whole

__all__ = ["server_crossover", "server_exchange_time", "server_step_bytes", "server_worker_bytes"]

HEAD_BYTES = 40  # of a request: five numbers of 8 bytes


def server_worker_bytes(nbytes: int, parameters: int, servers: int) -> int:
    """Bytes that a worker sends in a clock: its gradients, and a head to each server for each pull, push and tick."""
    whole(nbytes=nbytes, parameters=parameters, servers=servers)
    return nbytes + HEAD_BYTES * servers * (2 * parameters + 1)


def server_step_bytes(nbytes: int, workers: int) -> int:
    """Bytes that all servers together send in a clock in which `workers` pull all weights (`nbytes`)."""
    whole(nbytes=nbytes, workers=workers)
    return nbytes * workers


def server_exchange_time(nbytes: float, workers: int, servers: int, alpha: float, beta: float) -> float:
    """Seconds from the first push to the last pulled weight, if all workers push at once and then pull at once.

    2 alpha + (2 N + S - 1) n / S beta, if S is at most N: in either phase the port of a server takes the shares of N
    workers one after the other, and as all workers send to the first server first, the last one begins S - 1 shares
    later. With fewer workers than servers a worker's own port is the narrow one, which changes N and S in the sum:
    2 alpha + (N + 2 S - 1) n / S beta. Heads are left out.
    """
    whole(workers=workers, servers=servers)
    not_negative(nbytes=nbytes, alpha=alpha, beta=beta)
    shares = workers + servers - 1 + max(workers, servers)
    return 2 * alpha + shares * nbytes / servers * beta


def server_crossover(nbytes: float, servers: int, alpha: float, beta: float) -> int | None:
    """The number of workers from which on a ring all-reduce is faster than the servers; None if there is none.

    With t = n beta, and N not below S, the ring wins where N (t / S - alpha) + 2 alpha - t (S + 1) / 2S + t / N > 0. So
    it wins for all large N if a server's share t / S takes longer than a latency, and else for no large N. A tie counts
    for the servers.
    """
    whole(servers=servers)
    not_negative(nbytes=nbytes, alpha=alpha, beta=beta)
    t = nbytes * beta
    share = t / servers - alpha
    if share <= 0:
        return None
    begun = t * (servers + 1) / (2 * servers) - 2 * alpha
    workers = max(2, math.floor(begun / share) + 1)  # here the ring wins even without t / N
    while workers > 2 and _ring_wins(nbytes, workers - 1, servers, alpha, beta):
        workers -= 1
    return workers


def _ring_wins(nbytes: float, workers: int, servers: int, alpha: float, beta: float) -> bool:
    ring = ring_all_reduce.time(nbytes, workers, alpha, beta)
    return ring < server_exchange_time(nbytes, workers, servers, alpha, beta)
