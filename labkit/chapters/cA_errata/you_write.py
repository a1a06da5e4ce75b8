"""What appendix A asks its reader to write: whether a number agrees, what a rank holds under ZeRO, and the time of an
all-reduce in two levels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import labkit
from labkit import Link, Network
from labkit.collectives import all_reduce
from labkit.cost.units import format_seconds
from labkit.grading.writing import Reader, you_write
from labkit.parallel import ZeRO1, ZeRO2, ZeRO3
from labkit.wire import Group

SAID = [("48.5", 48.5226), ("48.5", 64.77), ("48.5", 48.58), ("180", 1750.0), ("180", 180.3), ("180", 178.0),
        ("0.081", 0.0808), ("0.081", 0.0822), ("2.30", 2.304), ("2.30", 2.33), ("18", 18.4), ("1", 1.7)]  # fmt: skip


def tried(fn: Callable[[str, float], object], said: str, found: float) -> list[object]:
    """What a function returns for one pair, and what stopped it, if anything. A stub stays an error of its own."""
    try:
        return [fn(said, found), ""]
    except NotImplementedError:
        raise
    except Exception as error:
        return [None, f"{type(error).__name__}: {error}."]


def digits_decide(student: Reader) -> str:
    got = student.through("agrees", 1, [SAID], lambda fn, rows, group: [tried(fn, *row) for row in rows]).results[0]
    never = all(answer is False for answer, _ in got)
    for (said, found), (answer, why) in zip(SAID, got, strict=True):
        text = "For said = {said!r} and found = {found} your function stopped: {why}{point}"
        point = "" if "." in said else " This number has no decimal point, so no digits come after one."
        student.expect(not why, text, said=said, found=found, why=why, point=point)
        text = "Return True or False: for {said!r} and {found} you returned {answer!r}."
        student.expect(isinstance(answer, bool), text, said=said, found=found, answer=answer)
        digits = len(said.partition(".")[2])
        rounded = f"{found:.{digits}f}"
        text = (
            "{found} rounds to {rounded} with as many digits as {said!r} has, so the two agree, and your function "
            "says that they do not."
            + (
                ' It says no to every pair: do you compare a number with a text? 48.5 == "48.5" is False.'
                if never
                else ""
            )
            if rounded == said
            else "{found} rounds to {rounded} with as many digits as {said!r} has, so the two do not agree, and your "
            "function says that they do. "
            + (
                "Do you cut digits off instead of rounding, or allow more than the digits do?"
                if str(found).startswith(said)
                else "Do you allow more than the digits do?"
            )
            + (" A 0 at the end is a digit like any other." if said == "180" else "")
        )
        student.expect(answer == (rounded == said), text, found=found, rounded=rounded, said=said)
    text = (
        "Your function judges all {} pairs correctly, near ones too. It counts the digits of the source, and zeros at "
    )
    text += "the end count as well."
    return text.format(len(SAID))


@you_write(digits_decide)
def agrees(said: str, found: float) -> bool:
    """Whether `found` rounds to `said`, a number with its digits: "48.5"."""
    digits = len(said.partition(".")[2])
    return f"{found:.{digits}f}" == said


WIDTH, LAYERS = 16, 2  # of the model whose bytes are measured: its parameters divide by 2 and by 4
STAGES = {1: ZeRO1, 2: ZeRO2, 3: ZeRO3}
ASKED = [(stage, ranks) for ranks in (4, 2) for stage in (0, 1, 2, 3)]


def measured(group: Group, stages: Sequence[int]) -> dict[int, int]:
    """By stage the bytes of training state that this rank holds at the end of a backward pass, in mixed precision."""
    held = {}
    for stage in stages:
        layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
        model = STAGES[stage](layers, group, precision="mixed")
        model(torch.ones(1, WIDTH)).float().sum().backward()
        held[stage] = round(model.state_bytes().total)
    return held


def holds(
    parameters: int, stage: int, ranks: int, sharded_from: Sequence[int] = (3, 2, 1), optimizer: int = 12
) -> float:
    """Bytes of parameters, gradients and optimizer on a rank; each part is sharded from this stage on."""
    parts = zip((2, 2, optimizer), sharded_from, strict=True)
    return sum(each * parameters / (ranks if stage >= first else 1) for each, first in parts)


def bytes_are_those_of_ranks(student: Reader) -> str:
    parameters = LAYERS * WIDTH * WIDTH
    asked = [(parameters, stage, ranks) for stage, ranks in ASKED]
    told = student.through("held_bytes", 1, [asked], lambda fn, rows, group: [fn(*row) for row in rows]).results[0]
    for got in told:
        student.expect(isinstance(got, int | float), "Return a number of bytes: you returned {got!r}.", got=got)
    alone = labkit.launch(measured, 1, (1,)).results[0][1]  # nothing is sharded on a rank by itself
    runs = {ranks: labkit.launch(measured, ranks, (1, 2, 3)).results[0] for ranks in (4, 2)}
    right = [runs[ranks].get(stage, alone) for stage, ranks in ASKED]

    def all_like(**other: Any) -> list[float]:
        return [holds(*row, **other) for row in asked]

    slips: dict[str, list[float]] = {
        "You divide nothing: which part does each stage shard?": all_like(sharded_from=(4, 4, 4)),
        "You divide everything in every stage, also in stage 0.": all_like(sharded_from=(0, 0, 0)),
        "You divide everything in every stage. Stage 1 shards the optimizer state alone.": all_like(
            sharded_from=(1, 1, 1)
        ),
        "You begin with the parameters. ZeRO begins with the largest part: first the optimizer state, then the "
        "gradients, then the parameters.": all_like(sharded_from=(1, 2, 3)),
        "You have 8 bytes of optimizer state. In mixed precision the copy of the weights in 32 bits is a third part of "
        "it, beside the two moments: 12.": all_like(optimizer=8),
        "You begin a stage too early. Stage 0 shards nothing.": all_like(sharded_from=(2, 1, 0)),
        "You begin a stage too late. Stage 1 shards the optimizer state already.": all_like(sharded_from=(4, 3, 2)),
        "You divide in stage 1 alone. Stages 2 and 3 shard the optimizer state as well, and more.": [
            holds(p, stage, ranks, (4, 4, 1)) if stage < 2 else 16 * p for p, stage, ranks in asked
        ],
        "Only the optimizer state is divided. Stage 2 shards the gradients too, and stage 3 also the parameters.": (
            all_like(sharded_from=(4, 4, 1))
        ),
        "The parameters are never divided: stage 3 shards them, too.": all_like(sharded_from=(4, 2, 1)),
        "// rounds down, so 2 // 4 is 0. Divide with /.": [
            sum(p * (each // ranks if stage >= first else each) for each, first in ((2, 3), (2, 2), (12, 1)))
            for p, stage, ranks in asked
        ],
        "That is the number in GB: return bytes.": [holds(*row) / 1e9 for row in asked],
        "That is what all ranks hold together. Of one?": [ranks * holds(p, stage, ranks) for p, stage, ranks in asked],
        "In each stage you divide one part only. A stage shards what the stage before it shards, too.": [
            parameters * (16 - part + part / ranks) for (stage, ranks) in ASKED for part in ((0, 12, 2, 2)[stage],)
        ],
    }  # fmt: skip
    why = next(
        (
            said
            for said, wrong in slips.items()
            if all(math.isclose(a, b, rel_tol=1e-4) for a, b in zip(told, wrong, strict=True))
        ),
        "",
    )
    for (stage, ranks), got, want in zip(ASKED, told, right, strict=True):
        where = f"under ZeRO-{stage}" if stage else "where nothing is sharded"
        text = "Of {parameters} parameters each of {ranks} ranks held {want:,} bytes {where}, yours says {got:,}. {why}"
        student.expect(abs(got - want) < 1, text, parameters=parameters, ranks=ranks, want=want, where=where,
                       got=round(got) if 1 <= abs(got) < 1e15 else got, why=why)  # fmt: skip
    return "On 2 and 4 real ranks, each held exactly the bytes of your function after a backward pass, in every stage."


@you_write(bytes_are_those_of_ranks)
def held_bytes(parameters: float, stage: int, ranks: int) -> float:
    """Bytes of training state on one rank, by stage of ZeRO; 0 shards nothing."""
    weights, gradients, optimizer = 2 * parameters, 2 * parameters, 12 * parameters
    if stage >= 1:
        optimizer /= ranks
    if stage >= 2:
        gradients /= ranks
    if stage >= 3:
        weights /= ranks
    return weights + gradients + optimizer


RUNS = [(144_000, 2, 3), (96_000, 2, 4), (192_000, 3, 2)]  # bytes, nodes, GPUs
NVLINK, PORT = 300e6, 25e6  # bytes per second, a thousandth of the case's: both directions together, and one


def both_levels(group: Group, nbytes: int) -> None:
    all_reduce(torch.ones(nbytes // 4), group, algorithm="hierarchical")


def slips(nbytes: int, nodes: int, gpus: int) -> dict[str, float]:
    """What a slip is, and the seconds that it makes of a run."""
    whole, ranks = nbytes / (NVLINK / 2), nodes * gpus
    scatter, ring = (gpus - 1) / gpus * whole, 2 * (nodes - 1) / nodes * nbytes / gpus / PORT
    return {
        "That is NVLink counted in both directions, or one of the two phases inside the node.": scatter + ring,
        "That is twice the bandwidth of NVLink, where half of it is one direction.": scatter / 2 + ring,
        "That is the source's algorithm, NVLink in both directions and all.": scatter / 2 + ring + whole / 2,
        "You end with a broadcast of the whole. After the ring each GPU has a share, and an all-gather of the shares "
        "is enough.": scatter + ring + whole,
        "You send the whole gradient through each port. How much is left for one GPU after the reduce-scatter?": (
            2 * scatter + gpus * ring
        ),
        "You divide by the GPUs of a node twice: a share leaves each node through each port.": 2 * scatter
        + ring / gpus,
        "A ring between the nodes has two phases, and you count one of them.": 2 * scatter + ring / 2,
        "Nothing crosses between the nodes.": 2 * scatter,
        "You send the phases inside the node twice. A reduce-scatter or an all-gather sends (n - 1) / n of the whole "
        "once; only an all-reduce sends twice that.": 4 * scatter + ring,
        "You have halved the port as well, but its bandwidth is that of one direction already.": 2 * scatter + 2 * ring,
        "The share is missing inside the node: a GPU sends (n - 1) / n of the whole there, and not n - 1 times it.": (
            2 * gpus * scatter + ring
        ),
        "You take 8 GPUs in a node. These nodes have other numbers: use `gpus`.": (
            2 * 7 / 8 * whole + 2 * (nodes - 1) / nodes * nbytes / 8 / PORT
        ),
        "The two phases inside the node are missing.": ring,
        "The ring between nodes has as many members as there are nodes, and not as many as there are GPUs.": (
            2 * scatter + 2 * (ranks - 1) / ranks * nbytes / gpus / PORT
        ),
        "Return seconds: that would be their number in milliseconds.": 1e3 * (2 * scatter + ring),
        "That is one flat ring over all GPUs. Reduce inside the node first, so that a share is all that crosses.": (
            2 * (ranks - 1) / ranks * nbytes / PORT
        ),
        "A reduce-scatter over n ranks sends (n - 1) / n of the whole, because a GPU keeps its own part. An all-gather "
        "does the same.": 2 * whole + ring,
        "A ring of n members sends 2 (n - 1) / n of its message: that factor is missing between the nodes.": (
            2 * scatter + ring * nodes / (nodes - 1)
        ),
        "The factor (n - 1) / n is missing, inside the node and between.": 2 * whole + ring * nodes / (nodes - 1),
    }


def the_time_is_that_of_a_run(student: Reader) -> str:
    asked = [(nbytes, nodes, gpus, NVLINK, PORT) for nbytes, nodes, gpus in RUNS]
    told = student.through("two_level_seconds", 1, [asked], lambda fn, rows, group: [fn(*row) for row in rows])
    for got in told.results[0]:
        student.expect(isinstance(got, int | float), "Return a number of seconds: you returned {got!r}.", got=got)
    made = [slips(*run) for run in RUNS]
    fits = [what for what in made[0] if all(near(got, s[what]) for got, s in zip(told.results[0], made, strict=True))]
    for (nbytes, nodes, gpus), got in zip(RUNS, told.results[0], strict=True):
        network = Network(nodes=nodes, ranks_per_node=gpus, intra=Link(NVLINK / 2, 0), inter=Link(PORT, 0))
        seconds = labkit.launch(both_levels, nodes * gpus, nbytes, clock="virtual", network=network).trace.duration
        text = "On {nodes} nodes of {gpus} GPUs a run took {took} of virtual time, and your function says {got}. {why}"
        student.expect(near(got, seconds), text, nodes=nodes, gpus=gpus, took=format_seconds(seconds, 3),
                       got=format_seconds(got, 3) if 0 < got < 1e3 else f"{got:.3g} s",
                       why=fits[0] if len(fits) == 1 else "")  # fmt: skip
    return "Three runs on 6 to 8 real ranks, with links a thousand times slower, took what your function says."


def near(got: float, seconds: float) -> bool:
    return abs(got - seconds) < 1e-9


@you_write(the_time_is_that_of_a_run)
def two_level_seconds(nbytes: float, nodes: int, gpus: int, nvlink: float, port: float) -> float:
    """Seconds of reduce-scatter, ring between nodes, all-gather. nvlink: both ways."""
    one_way = nvlink / 2
    inside = (gpus - 1) / gpus * nbytes / one_way  # and as much again at the end
    share = nbytes / gpus
    between = 2 * (nodes - 1) / nodes * share / port
    return inside + between + inside
