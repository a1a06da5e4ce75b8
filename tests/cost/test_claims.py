"""A source's number is held against ours to the digits that the source gives, and to no more."""

from __future__ import annotations

import pytest

from labkit import cost


@pytest.mark.parametrize(
    ("said", "found", "agrees"),
    [
        ("0.985", 0.984485, False), ("0.984", 0.984485, True), ("81", 81.4, True), ("81", 82.1, False),
        ("at most 3", 3.0, True), ("at most 3", 3.1, False), ("below 1", 0.99, True), ("below 1", 1.0, False),
        ("44", 44.444, True), ("", 71.6, None), ("at least 5", 5.0, True), ("at least 5", 4.9, False),
        ("above 70", 70.0, False), ("above 70", 70.1, True), ("24 to 36", 24.0, True), ("24 to 36", 36.4, True),
        ("24 to 36", 36.6, False), ("0.5 to 1.5", 0.44, False), ("0.5 to 1.5", 0.46, True),
    ],
)  # fmt: skip
def test_a_number_agrees_to_the_digits_of_its_source(said, found, agrees):
    assert cost.Claim("s", "w", said, found).agrees is agrees


@pytest.mark.parametrize("said", ["about 90", "1/2", "many", "3 %", "1.2.3", "at most 2 to 3", "2 to", "to 3", "2 - 3"])
def test_what_is_no_number_is_refused(said):
    with pytest.raises(ValueError, match="at most"):
        cost.Claim("s", "w", said, 1.0)


def test_a_row_has_one_digit_more_than_the_source_and_says_what_was_put_in():
    claims = [cost.Claim("001", "above", "81", 82.149, "%", 0.104, "the start"),
              cost.Claim("001", "GPUs", "1048576", 1_048_576.0),
              cost.Claim("001", "lost", "at most 3", 1.551, "%", 0.0011),
              cost.Claim("002", "tier", "30", 30.0, given=True),
              cost.Claim("002", "coming back", "", 74.76, "%")]  # fmt: skip
    above, gpus, lost, tier, back = cost.claim_rows(claims)
    assert (above["it says"], above["here"], above["same digits"], above["why"]) == (
        "81 %", "82.1 ± 0.1 %", False, "the start")  # fmt: skip
    assert gpus["here"] == "1,048,576" and gpus["same digits"] is True
    assert lost["it says"] == "at most 3 %" and lost["here"] == "1.551 ± 0.001 %"
    assert tier["same digits"] == "put in" and back["it says"] == "-" and back["same digits"] is None
    assert cost.agreement(claims) == (2, 3)


def test_enough_digits_are_shown_to_see_a_broken_bound_and_what_is_not_zero():
    assert cost.Claim("001", "power", "at most 1", 1.0274).ours == "1.03"
    assert cost.Claim("001", "power", "at most 1", 1.27).ours == "1.3" and cost.Claim("s", "w", "1", 1.04).ours == "1.0"
    assert cost.Claim("001", "share", "below 1", 0.04).ours == "0.04"
