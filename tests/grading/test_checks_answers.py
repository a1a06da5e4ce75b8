"""Answers of derivations: any unit, any equal form; slips are named; no text runs, and none takes long."""

from __future__ import annotations

import itertools
import time

import pytest
import torch

from labkit.grading.answers import Choice, Listing, Number, Several, Symbolic, find_key

RING = Symbolic("2*(N-1)*alpha + 2*(N-1)/N*M*beta", "N M alpha beta", [("2*M*beta", "the limit")])


@pytest.mark.parametrize(
    "answer", [70, 70.3, "70 MB", "0.07 GB", "560 Mb", "2*7/8*40 MB", "70,000 kB", torch.tensor(70.0)]
)
def test_a_number_counts_in_any_unit(answer):
    assert Number(70, "MB").mark(answer).right


@pytest.mark.parametrize(
    "answer, said",
    [
        ("80 MB", "one phase"), (0.07, "1,000 times too small"), (8.75, "bits and bytes"), ("70 MiB", "MiB"),
        ("70 s", "measures time"), ("seventy", "not a number"), (None, "not a number"), ([70], "not a number"),
        (True, "not a number"), (float("nan"), "not a finite"), (71, "is not it"),
    ],
)  # fmt: skip
def test_a_wrong_number_is_told_why(answer, said):
    feedback = Number(70, "MB", slips=[(80, "That is one phase.")]).mark(answer)
    assert not feedback.right and said in feedback.why


@pytest.mark.parametrize(
    "formula",
    [
        "2(N-1) (alpha + M/N beta)", "2*(N-1)*alpha + 2*M*beta - 2*M*beta/N", "2 (N-1) alpha + 2 (N-1)/N * M beta",
        "(N-1)/0.5 * (alpha + beta*M/N)", "2·(N−1)·alpha + 2·(N−1)÷N·M·beta", "2*(N-1)*(alpha + M*beta*N^-1)",
    ],
)  # fmt: skip
def test_any_equal_form_is_right(formula):
    assert RING.mark(formula).right, str(RING.mark(formula))


@pytest.mark.parametrize(
    "formula, said",
    [
        ("2 M beta", "the limit"), ("(N-1)*alpha", "should depend on M and beta"), ("P*M", "no symbol here"),
        ("N +", "cannot be read"), ("1/0", "divides by zero"), ("", "Nothing"), (None, "as text"),
        ("2*(N-1)*alpha + 2*(N-1)/N*M*beta + N - N - 1e-6", "not equal"),
    ],
)  # fmt: skip
def test_a_wrong_formula_is_told_why(formula, said):
    feedback = RING.mark(formula)
    assert not feedback.right and said in feedback.why


def test_logarithms_and_rounding():
    key = Symbolic("ceil(log2(p))*(alpha+n*beta)", "p alpha n beta")
    assert key.mark("(alpha + beta n) * ceil(log(p)/log(2))").right
    assert not key.mark("log2(p)*(alpha + beta n)").right
    assert Symbolic("max(a, b)", "a b").mark("max(b, a)").right


HOSTILE = [
    "__import__('os').system('true')", "().__class__", "(lambda: N)()", "open('x')", "[N for N in N]", "f'{N}'",
    "9**9**9**9", "(((9^12)^12)^12)^12", "ceil(2**(N*N*N*N*N*N*N))", "N**N**N", "9" * 199, "1e999",
    "(" * 90 + "N" + ")" * 90,
    "-" * 150 + "N", "N" + "*999999999999999" * 11, "max(" + ",".join(["N"] * 60) + ")", "N!", "N; M", "N\nM", "N.real",
    "min(1,min(1,min(1,min(N,M))))", "log(log(log(log(0))))", "0^-1", "(N-N)^(0-1)", "sqrt(0-N)", "\x00", "𝑁",
    "ceil(" * 30 + "N/3" + ")" * 30, "ceil(((((((N^12)^12)^12)^12)^12)^12)^12/7)",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_is_run_and_none_takes_long(text):
    begin = time.process_time()
    feedback = Symbolic("N + M", "N M").mark(text)
    assert not feedback.right and feedback.why
    assert time.process_time() - begin < 2


def test_letters_and_lists():
    assert Choice("b", {"a": "no"}).mark(" (B) ").right
    assert "(a) because" in Choice("b", {"a": "because"}).mark("a").why
    assert not Choice("b", {"a": "no"}).mark("ab").counted and not Choice("b", {"a": "no"}).mark(3).counted
    several = Several("ac", {"a": "A", "b": "look at b", "c": "C"})
    assert several.mark("a and c").right and several.mark(["c", "a"]).right
    assert "look at b" in several.mark("abc").why
    both = Listing([Number(70, "MB"), Choice("b", {"a": "no"})])
    assert both.mark(["70 MB", "b"]).right
    assert both.mark([70, "a"]).why.startswith("Answer 2 of 2")
    assert "list of 2" in both.mark(70).why and "list of 2" in both.mark([70]).why


def every_draw(ranges):
    return [dict(zip(ranges, drawn, strict=True)) for drawn in itertools.product(*ranges.values())]


GBPS = {"GB_per_second": [25, 50]}
KEYS_03 = [
    *(("ring_megabytes", g) for g in every_draw({"N": [6, 8, 12, 16], "M": [120, 240, 360, 480]})),
    *((name, {"t": t}) for name in ("megabytes_sent", "too_high") for t in (4, 6, 8, 16)),
    *(("latency_share", g) for g in every_draw({"N": [256, 1024], "alpha_us": [5, 20], "M": [2, 8], **GBPS})),
    *(("gigabytes", {"ms": ms}) for ms in (60, 80, 100, 120, 160)),
    *((name, {"N": n}) for name in ("out_holds", "meant", "times_the_bytes") for n in (5, 6, 7, 8)),
    ("ring_time", {}), ("crossover", {}),
]  # fmt: skip


@pytest.mark.parametrize("name, numbers", KEYS_03)
def test_no_slip_of_chapter_3_is_right_or_hidden_behind_another(name, numbers):
    key = find_key("03_collectives", name, **numbers)
    assert key.mark(key.answer).right
    for wrong, why in key.slips:
        feedback = key.mark(wrong)
        assert not feedback.right and why in feedback.why, (wrong, feedback.why)


def test_the_numbers_of_the_sources_are_what_the_keys_compute():
    assert find_key("03_collectives", "megabytes_sent", t=8).mark("117.4 MB").right
    assert find_key("03_collectives", "too_high", t=8).mark("14.29 %").right
    assert find_key("03_collectives", "gigabytes", ms=239.8).mark("3.00 GB").right
    assert find_key("03_collectives", "out_holds", N=4).mark(24).right


def test_a_key_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match="c03_collectives.keys has no key 'nothing'"):
        find_key("03_collectives", "nothing")
