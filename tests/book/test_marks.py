"""Badges, quoted numbers, boxes, source listings, and sentences that follow a result."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from labkit import book
from labkit.book import badge, quoted, source, whose
from labkit.book.drawing import marks, tables
from labkit.book.drawing.marks import Box
from labkit.book.drawing.tables import Table
from labkit.book.reading.conclusions import holds
from labkit.chapters.cA_errata.you_write import two_level_seconds


def plain(x: int) -> int:
    """Twice `x`."""
    # why: because
    return 2 * x


@functools.lru_cache
@functools.wraps(plain)
def decorated(x: int) -> int:
    return plain(x)


@functools.lru_cache
def noisy(x: int) -> int:
    """Say nothing."""
    return x


def test_source_shows_the_lines_of_a_function_and_its_place_without_line_numbers() -> None:
    shown = source(plain)
    assert shown.where.endswith("test_marks.py: plain")
    assert not shown.where.startswith("/")
    assert shown.code.startswith("def plain(x: int) -> int:") and "because" in repr(shown)
    html = shown._repr_mimebundle_()["text/html"]
    assert "var(--jp-mirror-editor-keyword-color" in html and "because" in html


def test_source_leaves_out_decorators_and_docstrings_as_asked() -> None:
    assert source(noisy).code.startswith("def noisy") and source(noisy, decorators=True).code.startswith("@functools")
    short = source(noisy, docstring=False)
    assert short.code == "def noisy(x: int) -> int:\n    return x"
    assert source(decorated).name == "plain"  # what it wraps


def test_source_shows_one_statement_of_a_function() -> None:
    assert source(noisy, only="return").code == "return x"
    with pytest.raises(ValueError, match="no statement of noisy begins with 'while'"):
        source(noisy, only="while")


def test_source_of_labkit_is_named_from_the_package_on() -> None:
    assert source(Table.text).where == "labkit/book/drawing/tables.py: Table.text"
    module = source(tables)
    assert module.where == "labkit/book/drawing/tables.py: the whole file"
    assert module.code == Path(tables.__file__).read_text("utf-8").rstrip()


def test_a_function_of_a_chapters_room_is_the_books_and_any_other_the_readers() -> None:
    assert whose(two_level_seconds) == "the book's" and whose(plain) == "your"


def test_source_of_a_cell_is_this_notebook() -> None:
    import linecache

    code = "def typed(x):\n    return x\n"
    name = "/tmp/ipykernel_1/123.py"
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, name, "exec"), scope)
    assert source(scope["typed"]).where == "this notebook: typed"


def test_source_refuses_what_has_none() -> None:
    with pytest.raises(ValueError, match="not available"):
        source(len)


def test_marks_have_a_form_in_words() -> None:
    assert repr(badge("emulated")).startswith("[emulated: real processes")
    assert "measured" in badge("measured")._repr_html_()
    assert repr(badge("recorded")) == "[recorded: from runs over many seeds, made once with labkit and shipped with it]"
    number = quoted(239.8, "a textbook, table 2", "ms")
    assert repr(number) == "239.8 ms [quoted: a textbook, table 2]" and float(number) == 239.8
    box = Box("On a GPU cluster", "NCCL may wait *minutes*.\n\n- so set a deadline")._repr_mimebundle_()
    assert box["text/plain"].startswith("On a GPU cluster\nNCCL may wait")
    assert box["text/markdown"].splitlines() == [
        "> **On a GPU cluster**", ">", "> NCCL may wait *minutes*.", ">", "> - so set a deadline",
    ]  # fmt: skip


def test_marks_refuse_an_unknown_kind_and_a_number_without_a_source() -> None:
    with pytest.raises(ValueError, match="guessed"):
        badge("guessed")
    with pytest.raises(ValueError, match="where the number stands"):
        quoted(1.0, " ")


def test_long_lines_are_broken_between_words() -> None:
    assert '<pre style="white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere;' in source(plain).html()
    assert '<code style="white-space: inherit; word-break: inherit">' in source(plain).html()


def test_a_conclusion_is_chosen_by_its_numbers_and_keeps_them() -> None:
    def said(far: float) -> book.Conclusion:
        return book.conclude(
            "Inside a node {near:.0%}.",
            {"far > 0.5": "Across nodes most, {far:.0%}.", "far > near": "Across nodes {far:.0%}."},
            {"far < 1": ""},
            near=0.16, far=far,
        )  # fmt: skip

    assert repr(said(0.63)) == "Inside a node 16%. Across nodes most, 63%."
    assert repr(said(0.35)) == "Inside a node 16%. Across nodes 35%."
    bundle = said(0.35)._repr_mimebundle_()
    assert bundle["text/markdown"] == bundle["text/plain"] == repr(said(0.35))
    kept = json.loads(json.dumps(bundle))["application/vnd.labkit.conclusion+json"]
    assert kept["claims"] == ["far > near", "far < 1"] and kept["numbers"] == {"near": 0.16, "far": 0.35}
    assert all(holds(claim, kept["numbers"]) for claim in kept["claims"])
    assert not holds("far > near", kept["numbers"] | {"far": 0.1})
    assert book.conclude("{x[0]}", x=[1 / 3], y={"a": 2e9 / 3}).numbers == {"x": [0.333333], "y": {"a": 666667000.0}}


@pytest.mark.parametrize(
    ("sentences", "numbers", "why"),
    [
        ([{"x > 1": "more", "x == 1": "one"}], {"x": 0}, "none of .*'x > 1'.* holds with x=0"),
        (["{x}"], {"x": float("nan")}, "finite"),
        (["{x}"], {"x": object()}, "cannot be recorded"),
    ],
)
def test_a_conclusion_that_nobody_thought_of_is_refused(
    sentences: list[Any], numbers: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        book.conclude(*sentences, **numbers)


def test_a_claim_knows_its_numbers_only() -> None:
    with pytest.raises(NameError, match="open"):
        holds("open('/etc/passwd')", {})
    assert holds("max(found) - min(found) < 2 and all(n > m for n in found)", {"found": [3, 4], "m": 2})


def test_a_sentence_in_a_panel_has_code_and_bold_and_no_html_of_its_own() -> None:
    said = marks.inline("In **75 %** of `x < y` & z")
    assert said == "In <strong>75 %</strong> of <code>x &lt; y</code> &amp; z"


def test_stars_stress_a_word_and_are_left_alone_in_code_and_in_products() -> None:
    said = marks.inline("the *new* one, `a *b* c`, **not** 2 * 3 * 4")
    assert said == "the <em>new</em> one, <code>a *b* c</code>, <strong>not</strong> 2 * 3 * 4"


def test_a_whole_file_is_folded_and_a_function_is_not() -> None:
    assert book.source(marks).html().startswith("<details><summary>labkit/book/drawing/marks.py: the whole file, ")
    assert "<details>" not in book.source(marks.inline).html()
