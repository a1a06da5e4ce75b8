"""Keys of chapter 1, why distribute. Numbers come from labkit.cost; every slip is one that people really make."""

from __future__ import annotations

import math

from labkit import cost
from labkit.cost import textbook, units
from labkit.cost.units import DAY, HOUR, MB, MS, US
from labkit.grading.answers import Choice, Number, Several, Symbolic

Slips = list[tuple[float, str]]
MACHINE = cost.Machine()  # of section 3


def _unlike(right: float, slips: Slips, tolerance: float = 0.01) -> Slips:
    """The slips that are wrong for these numbers, each value once: with some numbers a slip happens to be right."""
    kept: Slips = []
    for value, why in slips:
        if all(abs(value - other) > 3 * tolerance * abs(other) for other in (right, *(v for v, _ in kept))):
            kept.append((value, why))
    return kept


def state_gigabytes(billions: float, GB: float) -> Number:
    """GB of the training state of a model of so many billion parameters."""
    parts = cost.state_parts(billions)
    slips = [
        (parts.parameters, "Those are the parameters alone. What else stays from step to step?"),
        (parts.parameters + parts.gradients, "Parameters and gradients. Adam's state is three times as large as both."),
        (parts.optimizer, "That is Adam's state alone."),
        (8 * billions, "8 bytes a parameter are its two moments, or a float32 parameter and gradient. Count all."),
        (14 * billions, "One of the two-byte parts is missing: there are parameters, and there are gradients."),
        (20 * billions, "In mixed precision parameters and gradients have 2 bytes each, not 4."),
    ]
    return Number(cost.state_bytes(billions), "GB", slips=slips)


def gpus(billions: float, GB: float) -> Number:
    """The fewest GPUs of so many GB that hold the state."""
    right = cost.devices_to_hold(cost.state_bytes(billions), GB)
    parts = cost.state_parts(billions)
    slips = [
        (right - 1, "Then a part of the state has no place: round up."),
        (cost.devices_to_hold(parts.parameters, GB), "So many hold the parameters. Training needs 16 bytes of each."),
        (cost.devices_to_hold(parts.optimizer, GB), "So many hold Adam's state. Parameters and gradients come on top."),
        (cost.state_bytes(billions) / GB, "Half a GPU cannot be had: round up."),
    ]
    slips = [(value, why) for value, why in slips if value > 0 and value != right]
    return Number(right, "GPUs", 1e-9, _unlike(right, slips, 1e-6))


def step_ms(compute_ms: float, N: int, messages_ms: float, hidden_ms: float, waiting_ms: float) -> Number:
    """Milliseconds of a step by the fleet law."""
    right = cost.step_seconds(compute_ms, N, messages_ms, waiting_ms, hidden_ms)
    slips = [
        (right + hidden_ms, "The hidden part of the messages costs no time: take it away."),
        (right + 2 * hidden_ms, "What is hidden shortens the step: take it away, do not add it."),
        (right - compute_ms / N + compute_ms, "The computing is divided by N."),
        (
            (right - compute_ms / N) / N + compute_ms / N,
            "Only the computing is divided. Each GPU pays the rest in full.",
        ),
        (right - waiting_ms, "The waiting is missing."),
        (right - hidden_ms, "The hidden part is taken away twice."),
    ]
    return Number(right, "ms", slips=_unlike(right, slips))


def speed_up(compute_ms: float, N: int, messages_ms: float, hidden_ms: float, waiting_ms: float) -> Number:
    """How many times as fast as one GPU."""
    right = cost.speedup(compute_ms, N, messages_ms, waiting_ms, hidden_ms)
    slips = [
        (right / N, "That is the efficiency. Multiply by N."),
        (1 / right, "That is the other way round: divide the time of one GPU by the time of the step."),
        (float(N), "So fast it would be if nothing but computing took time."),
    ]
    return Number(right, "times", slips=_unlike(right, slips))


def bound_by(compute_ms: float, N: int, messages_ms: float, hidden_ms: float, waiting_ms: float) -> Choice:
    """The regime, by the largest term."""
    terms = {"a": compute_ms / N, "b": messages_ms - hidden_ms, "c": waiting_ms}
    regime = cost.regime(*terms.values())
    right = {"compute-bound": "a", "communication-bound": "b", "coordination-bound": "c"}[regime]
    why = {
        "a": "compares the computing of one GPU of the N, not that of the whole step, and here it is not the largest.",
        "b": "compares the messages that are not hidden, and here they are not the largest.",
        "c": "compares the waiting, and here it is not the largest.",
    }
    return Choice(right, {letter: text for letter, text in why.items() if letter != right})


def days_on_one(billions: float, billion_tokens: float, TB: float) -> Number:
    """Days that one GPU of 396 TFLOP/s computes."""
    right = cost.training_seconds(billions * 1e9, billion_tokens * 1e9, MACHINE.flops_per_second) / DAY
    slips = [
        (right / 6, "Each parameter takes 6 operations a token: 2 in the forward pass, 4 in the backward pass."),
        (right / 3, "2 operations a parameter and token are the forward pass. The backward pass takes twice as many."),
        (right * DAY, "Those are seconds. A day has 86,400."),
        (right * DAY / HOUR, "Those are hours."),
    ]
    return Number(right, "days", slips=slips)


def signals(billions: float, billion_tokens: float, TB: float) -> Several:
    """The letters of the signals that the job gives on the chapter's machine."""
    job = cost.Training(params=billions * 1e9, tokens=billion_tokens * 1e9, dataset=TB * units.TB)
    given = cost.distribution_signals(job, MACHINE, 30 * DAY)
    letters = "".join(letter for letter, signal in zip("abc", cost.SIGNALS, strict=True) if signal in given)
    why = {
        "a": "16 bytes a parameter: does the state fit into 80 GB?",
        "b": "compare the days of one GPU with 30.",
        "c": "compare the data with the disk of 4 TB.",
    }
    return Several(letters, why)


def _node_hours(ranks: int, nodes: int) -> float:
    """Hours of nodes that training GPT-2 takes: 25 hours of one GPU, 1.8 s a step."""
    messages = textbook.ring_at(textbook.GPT2_GRADIENT, 8, textbook.NVLINK_ONE_DIRECTION).seconds
    if nodes > 1:
        messages += textbook.ring_at(textbook.GPT2_GRADIENT, ranks, textbook.TEN_GIGABIT).seconds
    return nodes * 25 / cost.speedup(ranks * 1.8, ranks, messages)


def saving(dollars: float) -> Number:
    """Dollars that one node saves in place of four."""
    one, four = _node_hours(8, 1), _node_hours(32, 4)
    slips = [
        (dollars * one, "That is what one node costs. How much more do four cost?"),
        (dollars * four, "That is what four nodes cost. Take away what one costs."),
        (dollars * (one - four / 4), "You pay for all four nodes in each hour."),
        (dollars * (25 - one), "Compare with four nodes, not with a single GPU."),
        (8 * dollars * (four - one), "The price is that of a node, with its 8 GPUs."),
    ]
    right = dollars * (four - one)
    return Number(right, "$", 0.015, _unlike(right, slips, 0.015))


def saved_percent() -> Number:
    """The saving in percent of what four nodes cost."""
    one, four = _node_hours(8, 1), _node_hours(32, 4)
    slips = [
        (75.0, "Four nodes cost four times as much an hour, but they also need fewer hours: compare dollars."),
        (100 * one / four, "That is what one node costs in percent of four. How much is saved?"),
        (100 * (four - one) / one, "That is in percent of what one node costs. Divide by the cost of four."),
    ]
    return Number(100 * (1 - one / four), "%", 0.015, slips)


def right_price() -> Choice:
    """Whether the percentage depends on the price."""
    why = {
        "a": "A higher price makes both more expensive. What does it do to their ratio?",
        "b": "A lower price makes both cheaper. What does it do to their ratio?",
    }
    return Choice("c", why)


def best_step() -> Symbolic:
    """The shortest step when only the backward pass can hide messages."""
    slips = [
        ("max(C, M)", "That hides messages behind the forward pass too. No gradient exists before the backward pass."),
        ("C/3 + M", "Right for long messages. No more than M itself can be hidden: try M = 0."),
        ("C", "So it is if all messages fit behind the backward pass. And if they are longer?"),
        ("C + M/4", "That hides three quarters of the messages, however long they are. What are they hidden behind?"),
        ("C + M", "Nothing is hidden here."),
        ("C + M - max(M, 2*C/3)", "The hidden part is limited by both, so it is the smaller of the two."),
        ("C + M - min(M, C/3)", "The backward pass is two thirds of the computing, the forward pass one third."),
    ]
    return Symbolic("C + M - min(M, 2*C/3)", "C M", slips)


def longest_ms(C: float) -> Number:
    """The longest messages of which three quarters fit behind the backward pass."""
    slips = [
        (2 / 3 * C, "So long is the backward pass. Three quarters of M fit into it, not all of M."),
        (C / 2, "Three quarters of the backward pass. It is three quarters of M that must fit into it."),
        (4 / 3 * C, "Not behind the whole computing: in the forward pass there is no gradient yet."),
        (4 / 9 * C, "The backward pass is two thirds of the computing, not one third."),
        (C, "How long is the backward pass?"),
    ]
    return Number(8 / 9 * C, "ms", slips=slips)


def n_squared() -> Symbolic:
    """The square of the number of ranks with the shortest step."""
    slips = [
        ("C/(2*alpha)", "The bytes of a ring depend on N as well: 2 (N-1)/N M beta has a part with 1/N."),
        ("(C + 2*M*beta)/(2*alpha)", "A sign: (N-1)/N is 1 - 1/N, so the part of the bytes with 1/N is negative."),
        ("(C - 2*M*beta)/alpha", "A ring pays two latencies a rank, one in each phase."),
        ("(C - M*beta)/(2*alpha)", "A ring has two phases, for the bytes too."),
        ("2*alpha/(C - 2*M*beta)", "Upside down: with a small latency the best N is large."),
    ]
    return Symbolic("(C - 2*M*beta)/(2*alpha)", "C M alpha beta", slips)


def best_ranks(compute_ms: float, alpha_us: float) -> Number:
    """The best number of ranks for the chapter's gradient and links."""
    compute, alpha, transfer = compute_ms * MS, alpha_us * US, 1 * MB / (100 * MB)
    squared = (compute - 2 * transfer) / (2 * alpha)
    right = math.sqrt(squared)
    slips = [
        (squared, "That is the square. Take its root."),
        (math.sqrt(2 * squared), "A ring pays two latencies a rank, one in each phase."),
        (math.sqrt(compute / (2 * alpha)), "The bytes of a ring have a part that shrinks with 1/N. Did it get lost?"),
    ]
    return Number(right, "ranks", 0.6 / right, _unlike(right, slips, 0.6 / right))
