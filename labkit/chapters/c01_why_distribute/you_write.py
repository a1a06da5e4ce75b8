"""What chapter 1 asks its reader to write: bytes of training, the time of a step, a layer cut by its columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import labkit
from labkit import Link, Network, collectives, cost
from labkit.collectives import all_reduce
from labkit.cost.units import MS, format_bytes, format_seconds
from labkit.grading.checks.student import Slips, StudentError
from labkit.grading.writing import Reader, you_write
from labkit.wire import Group

ALPHA, BETA = 1e-4, 1e-8  # of the links of the runs that a step's time is compared with


def trained(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model after a step of training, and its optimizer."""
    model = nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 10))
    model = model.bfloat16() if kind == "bfloat16" else model
    if kind == "with a frozen layer":
        model[0].requires_grad_(False)
    adam = torch.optim.Adam(p for p in model.parameters() if p.requires_grad)
    x = torch.ones(4, 48, dtype=next(model.parameters()).dtype)
    model(x).square().mean().backward()
    adam.step()
    return model, adam


def parts_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[int, int, int]:
    """Bytes of parameters, gradients and state, by another way than the book's version: storage by storage."""

    def size(tensors: Any) -> int:
        return sum(t.untyped_storage().nbytes() for t in tensors)

    every = list(model.parameters())
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    return size(every), size(p.grad for p in every if p.grad is not None), size(moments)


def the_bytes_are_counted(student: Reader) -> str:
    def counted(fn: Callable[..., Any], kind: str, group: Group) -> tuple[Any, tuple[int, int, int], int, int, int]:
        model, adam = trained(kind)
        every = list(model.parameters())
        steps = sum(t.nbytes for state in adam.state.values() for t in state.values()) - parts_of(model, adam)[2]
        frozen = sum(p.nbytes for p in every if not p.requires_grad)
        return fn(model, adam), parts_of(model, adam), sum(p.numel() for p in every), frozen, steps

    kinds = ["float32", "bfloat16", "with a frozen layer"]
    told = {"float32": "", "bfloat16": "With parameters in bfloat16, of 2 bytes each, ", "with a frozen layer":
            "Where one layer is frozen, and has neither gradient nor moments, "}  # fmt: skip
    for kind in kinds:
        ((got, (weights, gradients, moments), count, frozen, steps),) = student.through(
            "training_bytes", 1, [kind], counted
        ).results
        if got is None or isinstance(got, torch.Tensor) or not isinstance(got, int | float):
            student.expect(False, "Return one number of bytes: you returned {got!r}.", got=got)
        right, before = weights + gradients + moments, told[kind]
        slips = {
            right
            - frozen: "a part is missing: a frozen parameter still takes memory, even if nothing is computed for it.",
            moments + steps: "these are Adam's tensors alone. What about the parameters and their gradients?",
            count: "you have counted numbers, and not their bytes: a tensor knows its `nbytes`.",
            4 * count: "these are 4 bytes for each parameter, as the model alone takes in float32.",
            16 * count: "16 bytes for each parameter are not right any more: count the tensors themselves.",
            weights: "this is what the parameters alone take. What else is still there when the next step begins? "
            "(Or did you count numbers, and not their bytes?)",
            weights + gradients: "Adam's own tensors are missing: they lie in `optimizer.state`.",
            weights + moments: "a quarter is missing: the parameters themselves, the gradients (they hang at the "
            "parameters, as `p.grad`), or one of Adam's two moments.",
        }
        good = right <= got <= right + steps
        near = next((why for n, why in slips.items() if n <= got <= n + steps and not good), None)
        far = "your function says {got}, and the tensors that are alive take {right}."
        student.expect(good, _sentence(before, near or far), got=_bytes(got), right=_bytes(right))
    return (
        "On three models that a rank has trained for a step, in float32, in bfloat16 and with a frozen layer, your "
        "count is that of the tensors that were alive."
    )


def _sentence(before: str, rest: str) -> str:
    text = before + rest
    return text[0].upper() + text[1:]


def _bytes(n: float) -> str:
    return format_bytes(n) if n < 1000 else f"{int(n):,} bytes"


@you_write(the_bytes_are_counted)
def training_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all tensors that stay from step to step: no activations."""
    tensors = list(model.parameters())
    tensors += [p.grad for p in model.parameters() if p.grad is not None]  # type: ignore[misc]
    for state in optimizer.state.values():
        tensors += state.values()
    return sum(t.nbytes for t in tensors)


def a_step(group: Group, each: float, nbytes: int, late: float, hide: bool) -> None:
    """A step on the virtual clock: the last rank computes for longer, and the message may go beside the kernel."""
    gradient = torch.ones(nbytes // 4)
    handle = all_reduce(gradient, group, algorithm="ring", async_op=True) if hide else None
    group.compute(each + (late if group.rank == group.size - 1 else 0.0))
    if handle is None:
        all_reduce(gradient, group, algorithm="ring")
    else:
        handle.wait()


def the_time_is_that_of_real_ranks(student: Reader) -> str:
    runs = [  # compute, ranks, bytes, waiting, and how much it tries to hide, as a part of the messages
        (120 * MS, 1, 0, 0.0, 0.0), (120 * MS, 2, 2_400_000, 0.0, 0.0), (180 * MS, 3, 2_400_000, 30 * MS, 0.0),
        (240 * MS, 4, 2_400_000, 0.0, 1.0), (80 * MS, 4, 2_400_000, 0.0, 1.0), (240 * MS, 4, 2_400_000, 0.0, 1.5),
    ]  # fmt: skip
    asked, measured = [], []
    for compute, n, nbytes, late, hide in runs:
        network = Network(nodes=n, ranks_per_node=1, inter=Link(1 / BETA, ALPHA))
        run = labkit.launch(a_step, n, compute / n, nbytes, late, hide > 0, clock="virtual", network=network)
        messages = cost.ring_all_reduce_time(nbytes, n, ALPHA, BETA) if n > 1 else 0.0
        asked.append((compute, n, messages, late, hide * messages))
        measured.append(run.trace.duration)
    said = student.through("step_seconds", 1, [asked], lambda fn, rows, group: [fn(*row) for row in rows]).results[0]
    for (compute, n, messages, late, hidden), seconds, got in zip(asked, measured, said, strict=True):
        student.expect(isinstance(got, int | float), "Return a number of seconds: you returned {got!r}.", got=got)
        whole, ranks = compute / n + messages + late, f"{n} rank{'s' * (n > 1)}"
        why = next((text for wrong, text in {
            compute + messages + late - min(hidden, compute): "Is all the computing still done by each rank?",
            compute / n + late - hidden: "Where are the messages?",
            compute / n + messages - hidden: "Where is the waiting?",
            whole + hidden: "What is hidden makes a step shorter, and not longer.",
            (compute + messages + late) / n: "The computing is divided by the ranks. Are the messages?",
            compute / n + (messages + late - hidden) / n: "The computing is divided by the ranks. Are the messages?",
            whole - hidden: f"You hide {format_seconds(hidden, 3)}, and the messages take only "
            f"{format_seconds(messages, 3)}: you hide more than there was to send." if hidden > messages else
            f"You hide {format_seconds(hidden, 3)} of messages, and each rank "
            f"computes for {format_seconds(compute / n, 3)} only: how much can that hide?",
            whole: "The run began its messages beside the computing. What does that hide?",
        }.items() if abs(got - wrong) < 1e-9), "")  # fmt: skip
        told = f"{ranks} of {format_seconds(compute / n, 3)} of computing each, messages of "
        told += format_seconds(messages, 3)
        told += f", a last rank that is {format_seconds(late, 3)} late" if late else ""
        told += ", all of them begun before the computing" if hidden else ""
        told += f", and a program that tries to hide {format_seconds(hidden, 3)}" if hidden > messages else ""
        text = "A run with {told} took {took}, and your function says {got}. {why}"
        student.expect(abs(got - seconds) < 1e-9, text.strip(), told=told, took=format_seconds(seconds, 3),
                       got=format_seconds(got, 3) if got >= 0 else f"{got:.3g} s", why=why)  # fmt: skip
    return (
        "Six runs on 1 to 4 ranks took what your function says, with a late rank among them, and with messages that "
        "the computing hid as far as it could."
    )


@you_write(the_time_is_that_of_real_ranks)
def step_seconds(compute: float, ranks: int, messages: float, waiting: float, hidden: float) -> float:
    """Seconds of a step that one rank alone would compute in `compute` seconds."""
    each = compute / ranks
    hidden = min(hidden, messages, each)
    return each + messages + waiting - hidden


STOPPED = {  # a part of what PyTorch says, and what one has done then
    "shapes cannot be multiplied": "The part of `weight` that you use does not fit `x`. `weight` has a row for each "
    "column of the result, so its rows are to be cut: `weight.tensor_split(group.size)`.",
    "must be Tensor, not tuple": "`tensor_split` returns the parts of all ranks, in a tuple. Take your own one, with "
    "the number `group.rank`.",
    "must match the existing size": "Your part of `weight` and the `bias` that you add to it differ in length: cut "
    "both in the same way.",
}


def the_columns_are_joined(student: Reader) -> str:
    for n in student.sizes((2, 3, 5)):
        x, weight, bias = student.tensor(4, 6), student.tensor(7, 6), student.tensor(7)
        whole = F.linear(x, weight, bias)
        try:
            run = student.through("cut_columns", n, [[x, weight, bias]] * n, lambda fn, mine, group: fn(*mine, group))
        except StudentError as stopped:
            uneven = (
                "7 columns do not divide by {n}, so the ranks' parts differ in length, and `all_gather` must be told "
            )
            uneven += "how long each of them is: that is its third argument, `sizes`."
            student.expect(" receives float32" not in str(stopped), uneven, n=n)
            for part, slip in STOPPED.items():
                student.expect(part not in str(stopped), slip)
            raise
        parts = weight.tensor_split(n)
        sums = [F.linear(x, w) for w in parts]
        biases = bias.tensor_split(n)
        own = [F.linear(x, w, b) for w, b in zip(parts, biases, strict=True)]
        student.expect(None not in run.results, "A rank returned None: return the joined columns.")
        slips: Slips = {
            "Each rank returned its own columns. They are right, but nobody has the others yet.": own,
            "The columns are all there, but the wrong way round: they lie as rows. One `.T` is missing.": [whole.T] * n,
            "The columns are right, but the bias is missing.": [torch.cat(sums, 1)] * n,
        }
        if all(isinstance(got, Tensor) and got.numel() == whole.numel() and got.shape != whole.shape
               and not torch.equal(got, whole.T) for got in run.results):  # fmt: skip
            why = "There are as many numbers as there should be, but joined along the wrong dimension: `all_gather` "
            student.expect(False, why + "joins along the first one, which here must be that of the columns.")
        student.expect_results(run, [whole] * n, slips, within=1e-5)
        least = sum(own[rank].nbytes for rank in range(n)) * (n - 1)
        sent = sum(run.bytes_sent)
        text = (
            "The result is right, but nothing was sent: every rank computed all columns by itself, which is as much "
            "work as without the others."
        )
        student.expect(sent, text)
        text = (
            "The result is right, but with {n} ranks {sent:bytes} were sent. If every rank sends its own columns to "
            "the others, {least:bytes} are enough: do you join whole results, or pad them with zeros?"
        )
        student.expect(sent <= least, text, n=n, sent=sent, least=least)
    return "With 2, 3 and 5 ranks everyone has all 7 columns, and each column was computed and sent by one rank."


@you_write(the_columns_are_joined)
def cut_columns(x: Tensor, weight: Tensor, bias: Tensor, group: Group) -> Tensor:
    """Return F.linear(x, weight, bias), of which every rank computes some columns."""
    weights, biases = weight.tensor_split(group.size), bias.tensor_split(group.size)
    mine = F.linear(x, weights[group.rank], biases[group.rank])
    sizes = [len(part) for part in biases]
    return collectives.all_gather(mine.T, group, sizes).T
