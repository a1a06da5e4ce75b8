"""What training sends that does not average in every step: local SGD, gossip, AD-PSGD, federated averaging. Bytes."""

from __future__ import annotations

from labkit.cost.collectives.registry import cost_of
from labkit.cost.refuse import not_negative, whole

__all__ = [
    "ad_psgd_bytes",
    "fed_avg_round_bytes",
    "gossip_bytes",
    "local_sgd_bytes_by_rank",
    "local_sgd_rounds",
    "masked_round_bytes",
]


def local_sgd_rounds(steps: int, every: int, start: int = 0) -> int:
    """Averages in `steps` steps: one in each of the first `start` (Lin et al. 2020), then one in `every`."""
    whole(every=every)
    not_negative(steps=steps, start=start)
    return min(steps, start) + max(0, steps - start) // every


def local_sgd_bytes_by_rank(
    numel: int, itemsize: int, size: int, steps: int, every: int, start: int = 0, algorithm: str = "ring"
) -> list[int]:
    """Bytes that each rank sends in `steps` steps: an all-reduce of the `numel` weights a round, and nothing else."""
    rounds = local_sgd_rounds(steps, every, start)
    return [rounds * n for n in cost_of("all_reduce", algorithm).bytes_by_rank(numel, itemsize, size)]


def gossip_bytes(nbytes: int, neighbours: int) -> int:
    """Bytes that a rank sends in a step of D-PSGD (Lian et al. 2017): the weights, to each of its neighbours."""
    whole(nbytes=nbytes)
    not_negative(neighbours=neighbours)
    return nbytes * neighbours


def ad_psgd_bytes(nbytes: int, steps: int, neighbours: int) -> tuple[int, int]:
    """(sent, received) by an active rank of AD-PSGD (Lian et al. 2018) in `steps` steps, whatever others do.

    A step is one meeting: a byte that asks for it, the weights there, and their average back. At the end each of the
    `neighbours` gets a byte that says so. A number of ranks does not appear.
    """
    whole(nbytes=nbytes, neighbours=neighbours)
    not_negative(steps=steps)
    return steps * (nbytes + 1) + neighbours, steps * nbytes


def fed_avg_round_bytes(nbytes: int, drawn: int, came: int) -> tuple[int, int]:
    """(sent by the server, sent by all clients) in a round of federated averaging (McMahan et al. 2017).

    `drawn` clients get a word of 8 bytes and the weights; all answer with a word, and `came` of them with weights.
    """
    whole(nbytes=nbytes, drawn=drawn)
    not_negative(came=came)
    return drawn * (8 + nbytes), drawn * 8 + came * nbytes


def masked_round_bytes(numel: int, itemsize: int, size: int, drawn: int, came: int) -> tuple[int, int]:
    """(sent by the server, sent by all clients) in a round of `masked_fed_avg` (Bonawitz et al. 2017, without shares).

    size: ranks, the server included. `drawn` clients send a public key of 256 bytes each, and get a word, the keys of
    all and the weights; `came` of them send numbers of 4 bytes. If clients were lost, each of those that came is told
    which, and sends a secret of 32 bytes for each of them. So keys grow like size^2 in all, and numbers do not.
    """
    whole(numel=numel, itemsize=itemsize, size=size, drawn=drawn)
    not_negative(came=came)
    lost = drawn - came
    server = drawn * (8 + 8 + numel * itemsize + size * 256) + (came * (8 + size) if lost else 0)
    return server, drawn * (256 + 8) + came * (4 * (numel + 1) + 32 * lost)
