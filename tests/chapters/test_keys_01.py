"""Keys of chapter 1: for all numbers that a student may get, no slip is right, and each is explained."""

from __future__ import annotations

import ast
import itertools
import math

import pytest
from grading.zoo_runs import source

from labkit import cost
from labkit.cost import textbook
from labkit.grading.answers import Number, find_key

CHAPTER = "01_why_distribute"
KEYS = {
    "state-of-a-model": ["state_gigabytes", "gpus"], "law-of-the-fleet": ["step_ms", "speed_up", "bound_by"],
    "three-signals": ["days_on_one", "signals"], "a-saving": ["saving"], "three-quarters-hidden": ["longest_ms"],
    "best-size": ["best_ranks"],
}  # fmt: skip
STEP = {"compute_ms": 800, "N": 8, "messages_ms": 96, "hidden_ms": 20, "waiting_ms": 10}
WITHOUT_NUMBERS = ["saved_percent", "right_price", "best_step", "n_squared"]


def ranges():
    """The choices that the setup cell gives to `exercises.given`, by exercise."""
    tree = ast.parse(source(CHAPTER).setup.source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    given = next(call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "given")
    return {keyword.arg.replace("_", "-"): ast.literal_eval(keyword.value) for keyword in given.keywords}


def draws():
    """(name of a key, numbers) for every key and every draw of its exercise's numbers."""
    for exercise, names in KEYS.items():
        spans = ranges()[exercise]
        for drawn in itertools.product(*spans.values()):
            yield from ((name, dict(zip(spans, drawn, strict=True))) for name in names)
    yield from ((name, {}) for name in WITHOUT_NUMBERS)


def key(name, numbers=None):
    return find_key(CHAPTER, name, **(numbers or {}))


def test_no_slip_is_right_or_hidden_behind_another():
    for name, numbers in draws():
        one = key(name, numbers)
        answer = one.answer if hasattr(one, "answer") else one.right
        assert one.mark(answer).right, (name, numbers)
        slips = getattr(one, "slips", ())
        assert slips or not isinstance(one, Number), (name, numbers)
        for wrong, why in slips:
            feedback = one.mark(wrong)
            assert not feedback.right and why in feedback.why, (name, numbers, wrong, feedback.why)


def test_every_key_is_asked_for_and_every_choice_has_a_reason():
    asked = {name for exercise in source(CHAPTER).exercises for name in exercise.names if exercise.kind == "derivation"}
    assert asked == {name for names in KEYS.values() for name in names} | set(WITHOUT_NUMBERS)
    for name, numbers in draws():
        if hasattr(one := key(name, numbers), "right"):
            for letter in one.why:
                assert letter == one.right or letter in one.right or not one.mark(letter).right


@pytest.mark.parametrize(
    "name, numbers, answers",
    [
        ("state_gigabytes", {"billions": 13, "GB": 80}, [208, "208 GB", "0.208 TB", "16 * 13"]),
        ("gpus", {"billions": 65, "GB": 80}, [13, "13"]),
        ("step_ms", STEP, ["186 ms", 186.4, "0.186 s"]),
        ("saved_percent", {}, ["72 %", 71.96, "0.7196 * 100"]),
        ("saving", {"dollars": 128}, ["$1033", 1036]),  # 1036: with the accumulation that the source has
        ("best_step", {}, ["max(C, C/3 + M)", "C/3 + max(2*C/3, M)", "C + M - min(M, 2*C/3)"]),
        ("longest_ms", {"C": 2100}, ["1.867 s", "8/9 * 2100"]),
        ("n_squared", {}, ["C/(2 alpha) - M beta/alpha", "(C/2 - M*beta)/alpha"]),
        ("best_ranks", {"compute_ms": 160, "alpha_us": 100}, [26, 27]),
    ],
)  # fmt: skip
def test_equal_forms_and_units_are_right(name, numbers, answers):
    for answer in answers:
        assert key(name, numbers).mark(answer).right, (answer, key(name, numbers).mark(answer).why)


def test_the_best_size_is_where_the_law_has_its_shortest_step():
    """By trying all sizes, with the times of labkit.cost."""
    compute, alpha, beta = 0.200, 1e-4, 1e-8

    def step(n):
        return cost.step_seconds(compute, n, cost.ring_all_reduce_time(1_000_000, n, alpha, beta))

    best = min(range(1, 200), key=step)
    assert key("best_ranks", {"compute_ms": 200, "alpha_us": 100}).mark(best).right


def test_the_best_step_is_what_the_law_allows():
    """The formula against labkit.cost: the most that can be hidden behind two thirds of the computing."""
    for computing, messages in ((90.0, 30.0), (90.0, 60.0), (90.0, 300.0)):
        hidden = min(messages, 2 / 3 * computing)
        law = cost.step_seconds(computing, 1, messages, overlap=hidden)
        assert math.isclose(law, max(computing, computing / 3 + messages))


def test_the_numbers_of_the_source_are_what_the_statements_quote():
    """Steps of 1811.7 and 6461.7 ms, and 4661.7 ms of messages; 75 percent hidden."""
    inside = textbook.ring_at(textbook.GPT2_GRADIENT, 8, textbook.NVLINK_ONE_DIRECTION).seconds
    between = textbook.ring_at(textbook.GPT2_GRADIENT, 32, textbook.TEN_GIGABIT).seconds
    assert round(1800 + 1e3 * inside, 1) == 1811.7 and round(1800 + 1e3 * (inside + between), 1) == 6461.7
    assert 10.5 / 14 == 0.75 and not key("longest_ms", {"C": 2100}).mark("14 s").right
    assert not key("saved_percent").mark(86.7).right and "fewer hours" in key("saved_percent").mark(75).why
