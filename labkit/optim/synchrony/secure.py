"""Federated averaging by secure aggregation: the server sees no client's weights, only their sum (see `masking.py`).

A round has three talks with each client in place of one (Bonawitz et al. 2017, figure 2, without its shares):

    keys        each client sends a fresh public key
    numbers     each gets the weights and all keys, trains, and sends its weights under its masks
    secrets     where clients were lost in between, the others disclose what they had agreed on with those
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from labkit.optim.synchrony import masking
from labkit.optim.synchrony.errands import Errands
from labkit.optim.synchrony.federated import END, SERVER, Round, Train, absent, check, counted, draw, farewell, tell
from labkit.optim.synchrony.weights import Weights
from labkit.wire.errors import RefusedError
from labkit.wire.group import Group

KEY, SECRETS = -1, -2  # what the server says in place of the number of a round


def masked_fed_avg(
    module: nn.Module, group: Group, train: Train, rounds: int, fraction: float = 1.0, deadline: float = math.inf,
    seed: int = 0, bits: int = 16, least: int = 2,
) -> list[Round]:  # fmt: skip
    """`fed_avg`, in which the server learns the sum of weights times examples, and the sum of the examples.

    bits: of the fraction, in fixed-point numbers of 32 bits; the average is off by at most half of 2^-bits for each
    client and divided by the examples, and a client whose numbers are too large for that is refused. least: with fewer
    clients a sum tells too much, and the round is given up. deadline: of each of the three talks. A survivor that is
    lost while secrets are disclosed spoils the round, which then changes nothing.

    Bytes of a round: `cost.masked_round_bytes`. Everything else is as in `fed_avg`.
    """
    check(group, rounds, fraction, deadline)
    if type(least) is not int or least < 2:
        raise RefusedError(f"least={least!r}: a sum hides its terms if there are 2 or more")
    masking.to_fixed(torch.zeros(1), bits, 1)
    options = f"rounds={rounds}, fraction={fraction}, deadline={deadline}, seed={seed}, bits={bits}, least={least}"
    weights = Weights(module, group, options)
    if group.rank != SERVER:
        _client(module, weights, group, train, bits)
        return []
    errands, reports = Errands(group), list[Round]()
    for number in range(1, rounds + 1):
        group.step(number)
        drawn, away = draw(errands, number, fraction, seed)
        total, came = _sum(errands, drawn, away, number, weights.read(), least, deadline)
        examples = 0 if total is None else round(float(masking.from_fixed(total, bits)[-1]))
        if total is not None:
            weights.write(masking.from_fixed(total, bits)[:-1] / examples)
        reports.append(Round(number, came, away, examples))
    farewell(errands, weights)
    return reports


def _sum(
    errands: Errands, drawn: list[int], away: dict[int, str], number: int, flat: Tensor, least: int, deadline: float
) -> tuple[Tensor | None, tuple[int, ...]]:
    """The sum of what came under masks, without the masks, and from whom; None if it cannot, or must not, be had.

    Adds to `away` those that are missing.
    """
    few = f"came back, but with fewer than {least} no sum is taken"
    for rank in drawn:
        errands.ask(rank, _ask_key)
    keys = errands.gather(drawn, deadline)
    away |= absent(errands, drawn, keys)
    table = torch.zeros(errands.group.size, masking.KEY_BYTES, dtype=torch.uint8)
    for rank, key in keys.items():
        table[rank] = key
    if len(keys) < least:
        return None, _void(away, keys, few)
    for rank in keys:
        errands.ask(rank, _ask_numbers, number, flat, table)
    answers = errands.gather(keys, deadline)
    away |= absent(errands, list(keys), answers)
    came = {rank: masked for rank, masked in answers.items() if masked is not None}
    if len(came) < least:
        return None, _void(away, came, few)
    total = torch.stack(list(came.values())).sum(0, dtype=torch.int32)
    if lost := sorted({*keys} - {*came}):
        for rank in came:
            errands.ask(rank, _ask_secrets, lost)
        disclosed = errands.gather(came, deadline)
        if len(disclosed) < len(came):
            away |= absent(errands, list(came), disclosed)
            return None, _void(away, disclosed, "came back, but masks of others stay in the sum")
        known = [
            (s, gone, bytes(secret.tolist())) for s in came for gone, secret in zip(lost, disclosed[s], strict=True)
        ]
        total -= masking.unmatched(known, len(total))
    return total, tuple(came)


def _void(away: dict[int, str], there: dict[int, Tensor], why: str) -> tuple[int, ...]:
    """Nobody counts in this round: say so of those that were there."""
    away |= dict.fromkeys(there, why)
    return ()


def _ask_key(group: Group, rank: int) -> Tensor:
    group.send(torch.tensor([KEY]), rank)
    return group.recv(torch.empty(masking.KEY_BYTES, dtype=torch.uint8), rank)


def _ask_numbers(group: Group, rank: int, number: int, flat: Tensor, table: Tensor) -> Tensor | None:
    tell(group, rank, number, flat)
    group.send(table, rank)
    took_part = group.recv(torch.empty(1, dtype=torch.int64), rank).item()
    return group.recv(torch.empty(len(flat) + 1, dtype=torch.int32), rank) if took_part else None


def _ask_secrets(group: Group, rank: int, lost: list[int]) -> Tensor:
    group.send(torch.tensor([SECRETS]), rank)
    group.send(torch.tensor([r in lost for r in range(group.size)], dtype=torch.uint8), rank)
    return group.recv(torch.empty(len(lost), masking.SECRET_BYTES, dtype=torch.uint8), rank)


def _client(module: nn.Module, weights: Weights, group: Group, train: Train, bits: int) -> None:
    """Do what the server asks for, until it says that this is the end."""
    key, secrets = masking.new_key(), dict[int, bytes]()
    like = weights.read()
    while True:
        word = int(group.recv(torch.empty(1, dtype=torch.int64), SERVER))
        if word == KEY:
            key = masking.new_key()
            group.send(torch.tensor(list(key.public), dtype=torch.uint8), SERVER)
        elif word == SECRETS:
            asked = group.recv(torch.empty(group.size, dtype=torch.uint8), SERVER)
            given = masking.disclosed(secrets, asked.nonzero()[:, 0].tolist())
            group.send(torch.tensor([list(secret) for secret in given], dtype=torch.uint8), SERVER)
        else:
            weights.write(group.recv(like, SERVER))
            if word == END:
                return
            group.step(word)
            table = group.recv(torch.empty(group.size, masking.KEY_BYTES, dtype=torch.uint8), SERVER)
            partners = [r for r in range(group.size) if table[r].any() and r != group.rank]
            secrets = {r: masking.shared_secret(key, bytes(table[r].tolist())) for r in partners}
            examples = counted(group, train(module, word))
            group.send(torch.tensor([int(examples > 0)]), SERVER)
            if examples:
                numbers = torch.cat([weights.read().to(torch.float64) * examples, torch.tensor([float(examples)])])
                fixed = masking.to_fixed(numbers, bits, len(partners) + 1)
                group.send(fixed + masking.mask(secrets, group.rank, len(fixed)), SERVER)
