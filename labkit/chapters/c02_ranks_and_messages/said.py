"""What chapter 2 says of the line through the reader's messages: no more than the picture shows."""

from __future__ import annotations

from typing import Any

from labkit import book, cost
from labkit.book.reading.conclusions import Conclusion
from labkit.chapters.c02_ranks_and_messages.measuring import bytes_show
from labkit.chapters.c02_ranks_and_messages.pictures import two_digits
from labkit.cost.units import format_bytes, format_seconds

EARLIER = "The second question below therefore takes $\\beta$ from the first time that labkit was used on this machine."
BOTH = (
    "By the line your {pieces} messages should take {by_formula} times as long as one, and you measured {times} times."
)


def the_line(fit: Any, largest: int, whole: int, pieces: int, ratio: float) -> Conclusion:
    """Latency and bytes of this machine's messages, and whether the line explains what cutting costs.

    fit: of messages up to `largest` bytes. ratio: measured, `pieces` messages of `whole` bytes in all to a single one.
    """
    shown = bytes_show(fit, largest)
    by_line = pieces * fit.seconds(whole / pieces) / fit.seconds(whole) if shown else None
    return book.conclude(
        "On this machine a message costs $\\alpha$ = {alpha}, and the bytes come on top of that.",
        {"bends": "The thick line is the model, and the thin ones are its two parts.",
         "True": "The thick line is the model, and the thin one is the latency alone."},
        "The markers are the medians of your messages; their bars leave out the fastest and the slowest tenth.",
        {"missed <= 0.2 and worst <= 0.35": "",
         "True": "But take all of these numbers as rough: the line misses a typical marker by {missed:.0%}, and one of "
                 "them by {worst:.0%}, probably because something else was using the machine. Run the section again "
                 "when it is quiet."},
        {"bends": "The line is flat where only the latency counts, and climbs where the bytes count. Both take the "
                  "same time at $n_{{1/2}}$ = {at}, where a message reaches half of the bandwidth of {speed}.",
         "shown": "The bytes begin to show: at {up_to} the line lies {rise:.0%} above the latency. But they do not yet "
                  "take as long as the latency. By the line that happens at $n_{{1/2}}$ = {at}, and with larger "
                  "`megabytes` you would see it.",
         "rise >= 0.1": "Up to {up_to} the line climbs by {rise:.0%}, but the markers lie so far around it that this "
                        "may be noise. Run the section again with larger `megabytes`, or when the machine has less to "
                        "do. " + EARLIER,
         "True": "Up to {up_to} the line is almost flat, because the latency hides the bytes. Run the section again "
                 "with larger `megabytes`. " + EARLIER},
        {"by_line is None": "",
         "0.8 <= by_line / ratio <= 1.25": "The line also explains your {pieces} messages: by the formula they take "
                                           "{by_formula} times as long as one, and you measured {times} times.",
         "0.6 <= by_line / ratio <= 1.7": BOTH + " So here it gives you an idea of the cost, but not the number.",
         "by_line < ratio": BOTH + " A median leaves out what interrupts a single message, but {pieces} messages in a "
                            "row pay for every interruption on the way.",
         "by_line > ratio": BOTH + " So here the formula leaves something out, or the machine was busier in one of the "
                            "two runs."},
        "\n\nA rule follows that runs through the whole book: **few large messages are better than many small ones**. "
        "Frameworks follow it when they join gradients into buckets before they send them (chapter 4). The second "
        "question below is about your own numbers, so it opens again when you have measured new ones.",
        alpha=format_seconds(fit.alpha, 3), bends=fit.half_size <= largest, shown=shown,
        missed=fit.residual, worst=fit.worst, rise=fit.beta * largest / max(fit.alpha, 1e-12),
        at=format_bytes(fit.half_size, 2), up_to=format_bytes(largest), speed=cost.format_bandwidth(fit.bandwidth, 2),
        by_line=by_line, ratio=ratio, pieces=pieces,
        by_formula=two_digits(by_line or 1), times=two_digits(ratio),
    )  # fmt: skip
