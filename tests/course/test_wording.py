"""Texts with places in them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from labkit.course.errors import CourseError
from labkit.course.wording import Words

WORDS = Words({"world_size": 8, "nbytes": 1_018_368, "share": 0.4375, "rows": [3, 5]}, "03.toml, an-id")


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("no places", "no places"),
        ("{world_size} ranks, {nbytes} bytes", "8 ranks, 1,018,368 bytes"),
        ("{format_bytes(nbytes)}", "1.018 MB"),
        ("{share:.0%} and {share}", "44% and 0.4375"),
        ("{nbytes / 7}", "145,481"),
        ("$2\\frac{{N-1}}{{N}}M$, {{}}", "$2\\frac{N-1}{N}M$, {}"),
        ("{ {1: 'a:b}'}[1] }", "a:b}"),
        ("{rows[1:]}, {'yes' if world_size != 4 else 'no':>4}", "[5],  yes"),
        ("{cost.ring_all_reduce_bytes(6 * MB, 3) / MB:g}", "8"),
        ("{sqrt(log2(16)):.1f} {max(rows)} {sum(x for x in rows if x < world_size)}", "2.0 5 8"),
        ("\\frac{{{world_size}}}{{2}}", "\\frac{8}{2}"),
    ],
)
def test_places_are_filled_in(text: str, filled: str) -> None:
    assert WORDS.fill(text) == filled


def test_a_missing_value_is_named_with_the_entry_and_what_was_passed() -> None:
    with pytest.raises(CourseError) as told:
        WORDS.fill("{word_size} ranks")
    said = str(told.value)
    assert "03.toml, an-id" in said and "'word_size'" in said and "did you mean 'world_size'" in said
    assert "nbytes, rows, share, world_size" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{cost.no_such_thing(1)}", "no_such_thing"),
        ("{1 / (world_size - 8)}", "ZeroDivisionError"),
        ("{world_size:.3q}", ".3q"),
        ("{N-}", "LaTeX"),
        ("{open('x')}", "'open'"),
        ("a } b", "single }"),
        ("a { b", "never closed"),
    ],
)
def test_what_cannot_be_filled_in_names_the_entry(text: str, said: str) -> None:
    with pytest.raises(CourseError, match="03.toml, an-id") as told:
        WORDS.fill(text)
    assert said in str(told.value)


def test_a_value_may_not_hide_what_every_text_sees() -> None:
    with pytest.raises(CourseError, match="'MB'"):
        Words({"MB": 1}, "here")


def test_an_entry_has_values_of_its_own_that_build_on_each_other() -> None:
    words = WORDS.using({"n": "world_size // 2", "m": "n * KiB"})
    assert words.fill("{n} {m}") == "4 4,096"
    with pytest.raises(CourseError, match="'n'"):
        WORDS.fill("{n}")


@given(st.text(alphabet=st.characters(exclude_characters="{}")))
def test_text_without_braces_is_left_alone(text: str) -> None:
    assert WORDS.fill(text) == text


@given(st.text(alphabet="{}ab:'\"1(["))
def test_any_text_is_filled_in_or_refused_as_a_mistake_of_the_file(text: str) -> None:
    try:
        WORDS.fill(text)
    except CourseError as error:
        assert "03.toml, an-id" in str(error)
