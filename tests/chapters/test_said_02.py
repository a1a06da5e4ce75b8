"""What chapter 2 says of measured messages, beside the picture of the same messages, for machines of many kinds."""

from __future__ import annotations

from statistics import median
from types import SimpleNamespace

import pytest

from labkit import cost
from labkit.chapters.c02_ranks_and_messages import measuring, pictures, said

FLAT, NOISE, BEGINS, BENDS = "almost flat", "may be noise", "begin to show", "climbs where the bytes count"
STEADY, WILD = (1.0, 1.02, 0.98), (1.0, 1.5, 0.7)  # factors on the times of one size after the other


def measured(alpha: float, bandwidth: float, largest: int, noise: tuple[float, ...]):  # type: ignore[no-untyped-def]
    """Points of all sizes of the chapter, the line through their medians, and the picture."""
    sizes = [0, 64, 1000, 4000, 16_000, *(largest // 4**k for k in range(3, -1, -1))]
    points = {n: [(alpha + n / bandwidth) * noise[k % len(noise)]] * 3 for k, n in enumerate(sizes)}
    fit = cost.fit_alpha_beta([(n, median(times)) for n, times in points.items()])
    return fit, pictures.one_message(fit, points)


@pytest.mark.parametrize(
    ("alpha", "bandwidth", "largest", "noise", "words"),
    [
        (200e-6, 3e9, 4_000_000, STEADY, BENDS),
        (200e-6, 3e9, 4_000_000, WILD, BENDS),
        (10e-6, 1e9, 100_000, STEADY, BENDS),
        (200e-6, 1.4e9, 100_000, STEADY, BEGINS),  # the line ends 36 % above the latency
        (200e-6, 1.4e9, 100_000, WILD, NOISE),
        (200e-6, 50e9, 100_000, STEADY, FLAT),
        (200e-6, 5e9, 4_000_000, STEADY, BENDS),
        (900e-6, 8e9, 4_000_000, STEADY, BEGINS),  # a slow machine
    ],
)
def test_the_sentence_says_of_the_bytes_what_the_picture_shows(
    alpha: float, bandwidth: float, largest: int, noise: tuple[float, ...], words: str
) -> None:
    fit, figure = measured(alpha, bandwidth, largest, noise)
    text = said.the_line(fit, largest, largest, 500, ratio=50.0).text
    assert [one for one in (FLAT, NOISE, BEGINS, BENDS) if one in text] == [words]
    lines = [line["name"] for line in figure.spec["data"]]
    assert ("β n alone" in lines) == ("the thin ones are its two parts" in text) == (words == BENDS)
    assert "α alone" in lines
    marked = f"half-bandwidth size {cost.format_bytes(fit.half_size, 2)}" in figure.svg if fit.beta else False
    assert marked == (words == BENDS)
    rise = fit.seconds(largest) / fit.seconds(0) - 1
    if words == FLAT:
        assert rise < 0.1
    if words in (BEGINS, NOISE):
        assert f"{rise:.0%}" in text and rise >= 0.1
    assert measuring.bytes_show(fit, largest) == (words in (BEGINS, BENDS)) == ("first time" not in text)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (65.0, "The line also explains"), (78.0, "The line also explains"), (54.0, "The line also explains"),
        (43.0, "an idea of the cost, but not the number"), (100.0, "an idea of the cost, but not the number"),
        (30.0, "leaves something out"), (160.0, "pay for every interruption"),
    ],
)  # fmt: skip
def test_the_line_explains_what_it_misses_by_a_quarter_at_most(times: float, words: str) -> None:
    fit = SimpleNamespace(
        alpha=200e-6, beta=1 / 3.02e9, beta_error=0.0, half_size=604e3, bandwidth=3.02e9, residual=0.0, worst=0.0,
        seconds=lambda n: 200e-6 + n / 3.02e9,
    )  # fmt: skip
    text = said.the_line(fit, 4_000_000, 4_000_000, 500, ratio=times).text
    assert "66 times as long as one" in text and words in text
    assert ("explains" in text) == words.endswith("explains")


def test_where_noise_hides_the_bytes_no_formula_is_held_against_the_pieces() -> None:
    fit, _ = measured(200e-6, 50e9, 100_000, STEADY)
    assert "times as long as one" not in said.the_line(fit, 100_000, 100_000, 500, ratio=400.0).text
