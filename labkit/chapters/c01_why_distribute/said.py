"""What chapter 1 says of its runs, with the reader's prediction beside each."""

from __future__ import annotations

from typing import Any

from labkit import book
from labkit.book.reading.conclusions import Conclusion
from labkit.cost.units import MB


def what_stays(predicted: Any, parameters: int, state: int) -> Conclusion:
    """Bytes of the parameters and of all that stays, and which part a wrong prediction has left out."""
    predicted.require()  # an unanswered prediction: the numbers would be those of an earlier run
    return book.conclude(
        "The parameters take {weights:.3g} MB, and everything that stays takes {right:.3g} MB.",
        {"guess is None or abs(guess - right) <= 0.03 * right": "",
         "abs(guess - weights) <= 0.03 * weights":
             "You predicted the parameters alone. Training also keeps a gradient for each of them, and what Adam "
             "remembers.",
         "abs(guess - 2 * weights) <= 0.06 * weights":
             "You predicted twice the parameters. That is enough for the gradients, but Adam's two averages are "
             "missing.",
         "abs(guess - 3 * weights) <= 0.09 * weights":
             "You predicted three times the parameters, so one part is missing: the gradients, or one of Adam's two "
             "averages.",
         "guess > right": "Your prediction was larger. Did you count activations, or a part twice?",
         "guess < weights": "Your prediction was smaller than the parameters alone. Each of them takes 4 bytes.",
         "True": "Your prediction was smaller. There are four parts, and each is as large as the parameters."},
        guess=predicted.values[1] if predicted.predicted else None, weights=parameters / MB, right=state / MB,
    )  # fmt: skip


def layers_alone(predicted: Any, ratio: float, ranks: int) -> Conclusion:
    """How long a forward pass takes whose layers lie on several ranks, and what a wrong prediction has overlooked."""
    predicted.require()
    return book.conclude(
        "With the layers on {ranks} ranks the forward pass takes {ratio:.2f} times as long as on one.",
        {"guess == 0 and ratio >= 0.7": "The work is divided, but the ranks do not work at the same time, "
                                        "because each of them needs what the one before it has computed.",
         "guess == 2 and ratio < 1.3": "The messages that you may have thought of are short beside the computing.",
         "True": "The work is divided, but each rank has to wait for the one before it."},
        guess=predicted.values[0] if predicted.predicted else None, ratio=ratio, ranks=ranks,
    )  # fmt: skip
