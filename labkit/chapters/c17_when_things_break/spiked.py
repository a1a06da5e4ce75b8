"""Experts on real ranks, a stretch of whose parameters jumps: from a place in the whole model back to a host."""

from __future__ import annotations

import random
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from labkit import book
from labkit.collectives import all_reduce
from labkit.pocket.experts import Experts
from labkit.wire import Group
from labkit.wire.errors import RefusedError

LAYERS, EACH, WIDTH, HIDDEN, TOKENS = 2, 2, 16, 32, 24  # layers; experts of a layer on a rank; tokens of a rank
STRETCH, HEIGHT = 32, 1e7  # consecutive parameters, and by how much they jump (the FT-HSDP paper, section 2.2)
EXPERT = 2 * WIDTH * HIDDEN + WIDTH + HIDDEN  # parameters of one expert
HOST = 2  # ranks of a host


def model(group: Group, seed: int) -> list[Experts]:
    """LAYERS layers of experts; a rank holds EACH of every layer. The routers are the same on all ranks."""
    torch.manual_seed(seed)
    layers = [Experts(WIDTH, HIDDEN, EACH * group.size, 1, group) for _ in range(LAYERS)]
    torch.manual_seed(1000 * seed + group.rank + 1)
    for layer in layers:
        for parameter in layer.experts.parameters():
            parameter.data = 0.2 * torch.randn_like(parameter)
    return layers


def step(layers: list[Experts], group: Group, rate: float = 0.1) -> float:
    """One step of gradient descent on random tokens, which are to come out as their own cosine; the loss."""
    x = target = torch.randn(TOKENS, WIDTH)
    balance = torch.zeros(())
    for layer in layers:
        y, uneven = layer(x)
        x, balance = x + y, balance + uneven
    loss = mse_loss(x, target.cos()) + 0.01 * balance
    loss.backward()
    for layer in layers:
        for name, parameter in layer.named_parameters():
            if parameter.grad is not None and name == "gate.weight":
                all_reduce(parameter.grad.div_(group.size), group)
            if parameter.grad is not None:  # no token may have come to an expert
                parameter.data -= rate * parameter.grad
                parameter.grad = None
    return loss.item()


def flat(layer: Experts) -> Tensor:
    """This rank's experts of a layer, one after the other, as one vector of EACH * EXPERT numbers."""
    return torch.cat([p.detach().flatten() for p in layer.experts.parameters()])


def spike(layers: list[Experts], seed: int) -> None:
    """What a faulty host does: STRETCH numbers in a row of one expert, of one layer, jump by more than HEIGHT."""
    dice = random.Random(f"spike {seed}")
    expert = list(dice.choice(layers).experts.values())[dice.randrange(EACH)]
    weight = next(expert.parameters()).data.view(-1)
    at = dice.randrange(weight.numel() - STRETCH)
    weight[at : at + STRETCH] += HEIGHT * (1.5 + torch.rand(STRETCH))


def hosts(seed: int, size: int) -> dict[int, str]:
    """rank -> host, HOST ranks on each, as a scheduler might place them. Only the names are made up: all ranks are on
    this machine."""
    names = [f"node-{n:02}" for n in random.Random(f"hosts {seed}").sample(range(1, 90), size // HOST)]
    places = random.Random(f"places {seed}").sample(range(size), size)
    return {rank: names[places[rank] // HOST] for rank in range(size)}


def evidence(whole: Tensor, size: int, placed: Mapping[int, str]) -> Tensor:
    """Print what the reader needs to go back from the model to a host; the places of the numbers that jumped."""
    where = (whole.abs() > HEIGHT).nonzero().flatten()
    calm = whole[whole.abs() <= HEIGHT].abs().max()
    print(f"{len(whole):,} parameters of experts. All but {len(where)} are below {calm:.2f} [measured]")
    print(f"the others are above {whole[where].min():.2g}, at places {int(where[0]):,} to {int(where[-1]):,}")
    print(f"a layer: {EACH * size} experts of {EXPERT:,} parameters, expert 0 first; a rank holds {EACH} in a row")
    print("the scheduler's list:", ", ".join(f"rank {rank} on {host}" for rank, host in placed.items()))
    return where


def told(faulty: str | None, path: str, found: str, struck: str, placed: Mapping[int, str]) -> str:
    """Whether the reader's host, and the one that the cell has found along `path`, is that of the rank struck."""
    if faulty is None and book.live():
        return "Work it out on paper first, and write the name of a host in place of None."
    if faulty is not None and faulty not in placed.values():
        raise RefusedError(f"faulty={faulty!r}: the hosts are {', '.join(sorted(set(placed.values())))}")
    lines = f"The cell goes by {path} to {found}, and struck was a rank on {struck}."
    if faulty is None:
        return lines
    if faulty == struck:
        return f"Right. {lines}"
    return (
        f"Not {faulty}: its ranks are {', '.join(str(r) for r, host in placed.items() if host == faulty)}. Take the "
        f"place inside its layer, divide by the size of an expert, and the expert by {EACH}. {lines}"
    )
