"""Federated averaging (McMahan et al. 2017): a server, and clients whose data never leaves them.

    reports = fed_avg(module, group, train, rounds=10, fraction=0.5, deadline=30.0)     # on every rank

Rank 0 is the server. In each round it draws some clients and sends them its weights; each trains on data of its own for
as long as it likes (`train`), and sends weights back. The new weights are the average of those that came within the
deadline, each counted by its examples. Who gives up, dies or comes too late is left out and reported, and holds nobody.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from labkit.optim.synchrony.errands import Errands
from labkit.optim.synchrony.weights import Weights
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

SERVER, END = 0, 0  # the server's rank; what it says in place of the number of a round, which counts from 1
Train = Callable[[nn.Module, int], int | None]


@dataclass(frozen=True)
class Round:
    """What became of a round. came: clients whose weights are in the average. away: why the others' are not, by rank.

    examples: of those that came, together.
    """

    number: int
    came: tuple[int, ...]
    away: dict[int, str]
    examples: int

    def __str__(self) -> str:
        missing = "; ".join(f"rank {rank} {why}" for rank, why in self.away.items())
        if not self.came:
            return f"round {self.number}: no client came back ({missing or 'none is left'}), and the weights stay"
        of = f"{len(self.came)} of {len(self.came) + len(self.away)} clients came back with {self.examples} examples"
        return f"round {self.number}: {of}" + (f"; {missing}" if missing else "")


def fed_avg(
    module: nn.Module, group: Group, train: Train, rounds: int, fraction: float = 1.0, deadline: float = math.inf,
    seed: int = 0,
) -> list[Round]:  # fmt: skip
    """Train `module` in `rounds` rounds. Every rank calls it; all hold the same weights when it returns.

    train(module, round): what a client does with the weights that it was sent, in place; returns how many examples
    they were trained on, or None (or 0) if it gives up this round. The server's is never called. fraction: of the
    clients that are drawn in a round, at least one, by `seed`. deadline: seconds, after which a round ends with those
    that came; what comes later is thrown away, and until then its client is given nothing else to do.

    With all clients drawn, equal data and one local step of plain SGD, a round is a data-parallel step, but for
    rounding. Returns a report of each round on the server, and on a client an empty list. A round without any weights
    changes nothing. Bytes: `cost.fed_avg_round_bytes`, and the weights once more to each client at the end. Raises
    RefusedError, on every rank, for arguments that cannot be, or different models or arguments.
    """
    check(group, rounds, fraction, deadline)
    weights = Weights(module, group, f"rounds={rounds}, fraction={fraction}, deadline={deadline}, seed={seed}")
    if group.rank != SERVER:
        _client(module, weights, group, train)
        return []
    errands, reports = Errands(group), list[Round]()
    for number in range(1, rounds + 1):
        group.step(number)
        drawn, away = draw(errands, number, fraction, seed)
        flat = weights.read()
        for rank in drawn:
            errands.ask(rank, _ask, number, flat)
        answers = errands.gather(drawn, deadline)
        away |= absent(errands, drawn, answers)
        kept = {rank: answer for rank, answer in answers.items() if answer is not None}
        total = sum(examples for examples, _ in kept.values())
        if total:
            mean = sum(examples / total * theirs.to(torch.float64) for examples, theirs in kept.values())
            weights.write(mean)
        reports.append(Round(number, tuple(kept), away, total))
    farewell(errands, weights)
    return reports


def check(group: Group, rounds: int, fraction: float, deadline: float) -> None:
    """Refuse arguments that cannot be."""
    if group.size < 2:
        raise RefusedError("federated averaging needs a server and a client: 2 ranks or more, not 1")
    if type(rounds) is not int or rounds < 1:
        raise RefusedError(f"rounds={rounds!r}: a whole number of at least 1")
    if not 0 < fraction <= 1:
        raise RefusedError(f"fraction={fraction!r}: the part of the clients that a round draws, above 0 and up to 1")
    if not deadline > 0:
        raise RefusedError(f"deadline={deadline!r}: seconds above 0; a client needs some time to answer")


def draw(errands: Errands, number: int, fraction: float, seed: int) -> tuple[list[int], dict[int, str]]:
    """The clients of a round, and those drawn that are not free, with the reason. Who is lost is not drawn again."""
    living = [rank for rank in range(1, errands.group.size) if rank not in errands.lost]
    count = min(len(living), max(1, round(fraction * (errands.group.size - 1))))
    drawn = sorted(random.Random(f"{seed} {number}").sample(living, count))
    busy = {rank: "is still busy with an earlier round" for rank in drawn if errands.busy(rank)}
    return [rank for rank in drawn if rank not in busy], busy


def absent(errands: Errands, drawn: list[int], answers: dict[int, object]) -> dict[int, str]:
    """Why the numbers of some of those drawn are not there."""
    why = {rank: errands.lost.get(rank, "came too late") for rank in drawn if rank not in answers}
    return why | {rank: "gave up" for rank, answer in answers.items() if answer is None}


def farewell(errands: Errands, weights: Weights) -> None:
    """Send the final weights to every client. For one that is late this waits as long as the run's longest wait."""
    group, flat = errands.group, weights.read()
    clients = range(1, group.size)
    errands.gather([rank for rank in clients if errands.busy(rank)])
    there = [rank for rank in clients if rank not in errands.lost]
    for rank in there:
        errands.ask(rank, tell, END, flat)
    errands.gather(there)


def counted(group: Group, examples: int | None) -> int:
    """What `train` returned, with 0 for None; refused if it is no count."""
    if examples is not None and (type(examples) is not int or examples < 0):
        raise RefusedError(f"rank {group.rank}: train returned {examples!r}: how many examples it saw, or None")
    return examples or 0


def tell(group: Group, rank: int, word: int, flat: Tensor) -> None:
    """A word (8 bytes), then the weights."""
    group.send(torch.tensor([word]), rank)
    group.send(flat, rank)


def _ask(group: Group, rank: int, number: int, flat: Tensor) -> tuple[int, Tensor] | None:
    """The server's part of a round with one client: its (examples, weights); None if it gave up."""
    tell(group, rank, number, flat)
    examples = int(group.recv(torch.empty(1, dtype=torch.int64), rank))
    return (examples, group.recv(torch.empty_like(flat), rank)) if examples else None


def _client(module: nn.Module, weights: Weights, group: Group, train: Train) -> None:
    """Do what the server asks for, until it says that this is the end."""
    like = weights.read()
    while True:
        number = int(group.recv(torch.empty(1, dtype=torch.int64), SERVER))
        weights.write(group.recv(like, SERVER))
        if number == END:
            return
        group.step(number)
        examples = counted(group, train(module, number))
        flat = weights.read() if examples else torch.empty(0)
        group.send(torch.tensor([examples]), SERVER)
        if examples:
            group.send(flat, SERVER)
