"""The tables of chapter 1: large models, a job on more and more ranks, and whether a job needs more than one GPU."""

from __future__ import annotations

from labkit import book, cost
from labkit.book.drawing.tables import Row
from labkit.book.drawing.units import listing
from labkit.cost.units import DAY, GB, MS, TB

PATIENCE = 30 * DAY  # of the machine's owner


def large_models(samples: int) -> book.Table:
    """What large models hold in mixed precision: the state, and the activations of so many samples."""
    rows: list[Row] = []
    for name, large in cost.SHAPES.items():
        batch, sequence, hidden, layers = samples, large.sequence, large.hidden, large.layers
        inside = cost.activation_bytes(batch, sequence, hidden, 1, large.heads, dropout=False, scores=False)
        borders = cost.checkpointed_activation_bytes(batch, sequence, hidden, layers)
        state = cost.state_bytes(large.params)
        rows.append({
            "model": name, "training state, GB": state / GB, "80 GB GPUs for it": cost.devices_to_hold(state),
            "activations, GB": layers * inside / GB, "checkpointed, GB": (borders + inside) / GB,
        })  # fmt: skip
    return book.Table(rows, caption=f"In mixed precision, {samples} samples of 2,048 tokens (simulated)")


def strong_scaling(
    compute: float, messages: dict[int, float], steps: dict[int, float], law: dict[int, float]
) -> book.Table:
    """By number of ranks: the seconds of messages and of the step, those of the reader's function, and their ratio."""
    rows: list[Row] = [
        {"ranks": n, "step, ms": steps[n] / MS, "by your function, ms": law[n] / MS,
         "times as fast": compute / steps[n],
         "rho": cost.communication_ratio(compute, n, messages[n]), "regime": cost.regime(compute / n, messages[n])}
        for n in steps
    ]  # fmt: skip
    return book.Table(rows, caption="Strong scaling (emulated)")


def signals(billions: float, billion_tokens: float, terabytes: float) -> tuple[str, list[Row]]:
    """Which signals a job gives on one machine, in a sentence, and what it needs beside what the machine has."""
    machine, job = cost.Machine(), cost.Training(billions * 1e9, billion_tokens * 1e9, terabytes * TB)
    seconds = cost.training_seconds(job.params, job.tokens, machine.flops_per_second)
    given = cost.distribution_signals(job, machine, PATIENCE)
    needs = {
        "training state, GB": (cost.state_bytes(job.params) / GB, machine.memory / GB),
        "days on one GPU": (seconds / DAY, PATIENCE / DAY),
        "data, TB": (job.dataset / TB, machine.storage / TB),
    }
    rows: list[Row] = [
        {"": name, "the job": needed, "at most": most, "signal": signal if signal in given else "none"}
        for (name, (needed, most)), signal in zip(needs.items(), cost.SIGNALS, strict=True)
    ]
    if not given:
        return "No signal: one GPU will do, as long as the activations find room beside the state.", rows
    return f"Yes: it {listing(list(given))}.", rows
