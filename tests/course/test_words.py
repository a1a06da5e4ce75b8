"""Glossary and notation: enough of it, well formed, and nothing bold in a chapter that it does not know."""

import json
import re

import pytest

from labkit.course import glossary, load, notation
from labkit.course.build import NOTEBOOKS
from labkit.course.errors import CourseError
from labkit.course.words import bold_terms, check_sentences


def test_the_glossary_covers_all_chapters():
    terms = glossary().terms
    assert len(terms) >= 120
    assert {term.chapter for term in terms} == {chapter.number for chapter in load().chapters}
    assert [term.en.casefold() for term in terms] == sorted(term.en.casefold() for term in terms)


def test_every_term_has_a_chinese_one_of_its_own():
    terms = glossary().terms
    assert len({term.zh for term in terms}) == len(terms)
    for term in terms:
        assert re.search(r"[\u4e00-\u9fff]", term.zh), f"{term.en}: {term.zh} is not Chinese"
        assert not re.search(r"[\u4e00-\u9fff]", term.en + term.text)


@pytest.mark.parametrize("chapter", load().written(), ids=lambda chapter: chapter.name)
def test_every_bold_term_of_a_written_chapter_is_in_the_glossary(chapter):
    cells = json.loads((NOTEBOOKS / f"{chapter.name}.ipynb").read_text(encoding="utf-8"))["cells"]
    words = glossary()
    unknown = [
        f"{phrase!r} in cell {cell['id']}"
        for cell in cells[1:]  # the first cell is made from the course file
        if cell["cell_type"] == "markdown"
        for phrase in bold_terms("".join(cell["source"]))
        if words.find(phrase) is None and phrase.casefold() not in words.emphasis
    ]
    assert not unknown, (
        "add these to `term` in a labkit/chapters/c*/chapter.toml, or to `emphasis` in course.toml: "
        + "; ".join(unknown)
    )


def test_bold_terms_are_short_phrases_that_do_not_instruct():
    text = (
        "An **all-reduce** is a **collective**; **Reduce-scatter** too. **Predict.** **Look at the sums** "
        "**each rank** **rank 1** **the ring** **one two three four** **$M$** **`send`** a ** b ** c "
        "**Shift\nEnter** ***strong***"
    )
    assert bold_terms(text) == ["all-reduce", "collective", "Reduce-scatter", "Shift\nEnter"]
    assert bold_terms("**a**") == [] and bold_terms("**x**") == ["x"]
    assert bold_terms("**first.** between **second.**") == []
    assert bold_terms("**2 * 3** inside **x**") == ["x"]  # what stands between two bold phrases is not bold


def test_chapter_3_uses_terms_that_the_test_sees():
    """The test above would pass on a notebook in which it finds nothing."""
    cells = json.loads((NOTEBOOKS / "03_collectives.ipynb").read_text(encoding="utf-8"))["cells"]
    found = {phrase.casefold() for cell in cells for phrase in bold_terms("".join(cell["source"]))}
    assert {"collective", "all-reduce", "reduce-scatter", "virtual clock", "chunk", "recursive doubling"} <= found


def test_a_term_is_found_by_any_spelling():
    words = glossary()
    ring = words.find("Ring all-reduce")
    assert ring is not None and ring is words.find("ring") and ring.chapter == 3 and ring.zh == "环形全归约"
    assert words.find("no such term") is None
    assert not {word for word in words.emphasis if words.find(word)}, "a term is no mere emphasis"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("No full stop", "end the text with a full stop"),
        ("One. Two. Three.", "3 sentences; 2 are enough"),
        ("word " * 25 + "word.", "a sentence of more than 25 words"),
        ("Short. " + "word " * 25 + "word.", "a sentence of more than 25 words"),
    ],
)
def test_long_explanations_are_refused(text, message):
    with pytest.raises(CourseError, match=message):
        check_sentences("here", text, most=2)


def test_explanations_of_allowed_length_pass():
    check_sentences("here", "Of 1.5 chunks. " + "word " * 24 + "word.", most=2)


def test_the_letters_that_all_chapters_share():
    units = {symbol.symbol: symbol.unit for symbol in notation().symbols}
    expected = {
        "N": "ranks", "P": "parameters", "M": "bytes", "m": "microbatches", "p": "stages", "alpha": "s",
        "beta": "s/byte",
    }  # fmt: skip
    assert expected.items() <= units.items()
    first = {symbol.symbol: symbol.chapter for symbol in notation().symbols}
    assert (first["P"], first["alpha"], first["M"], first["p"]) == (1, 2, 3, 10)


def test_no_letter_stands_for_two_things():
    symbols = notation().symbols
    assert len({symbol.latex for symbol in symbols}) == len({symbol.symbol for symbol in symbols}) == len(symbols)


def test_conflicts_of_the_sources_are_told_with_what_we_write():
    conflicts = {(c.source, c.symbol): c for c in notation().conflicts}
    parameters = conflicts["004 The Memory Budget of Training", "N"]
    assert parameters.here == "P" and parameters.there.startswith("parameters")
    assert {c.there for c in notation().conflicts if c.source.startswith("004") and c.symbol == "P"} == {
        "GPUs", "pipeline stages",
    }  # fmt: skip
    for conflict in notation().conflicts:
        assert conflict.there != conflict.here
