"""An explorer says at once what its model says, by sliders, from Python, and in words."""

from __future__ import annotations

import pytest

from labkit import book
from labkit.book import Slider


def double(size, part):
    return f"{size} doubled is {2 * size}.", [{"size": size, "twice": 2 * size, "part": part}]


def made():
    sliders = {"size": Slider("GPUs", 8, 64, 16, 8), "part": Slider("share", 0, 1, 0.5, 0.25, "of all")}
    return book.explorer("Doubling", sliders, double)


def test_it_shows_settings_words_and_numbers_without_a_reader():
    shown = made()._repr_mimebundle_()
    for words in ("Doubling (simulated)", "GPUs: 16", "share: 0.5 of all", "16 doubled is 32.", "twice"):
        assert words in shown["text/plain"]
    assert "16 doubled is 32." in shown["text/html"] and "application/vnd.jupyter.widget-view+json" not in shown


def test_a_move_of_a_slider_is_answered_in_the_form():
    explorer = made()
    explorer.form.act("size", "change", 40)
    assert explorer.settings == {"size": 40, "part": 0.5} and explorer.table()[0]["twice"] == 80
    assert "40 doubled is 80." in explorer.form.item("seen")["feedback"] and explorer.form.item("size")["value"] == 40
    explorer.form.act("part", "change", 0.7501)  # a page may round
    assert explorer.settings["part"] == 0.75
    assert explorer.set(size=8) is explorer and explorer.form.item("size")["value"] == 8
    for sent, kept in ((1000, 64), (-5, 8)):  # nor may a page leave the slider
        explorer.form.act("size", "change", sent)
        assert explorer.settings["size"] == kept and f"{kept} doubled is {2 * kept}." in explorer.text


def test_whole_numbers_reach_the_model_as_such_and_others_do_not():
    seen = []
    sliders = {"size": Slider("GPUs", 8, 64, 16, 8), "part": Slider("share", 0, 1, 0.5, 0.25)}
    explorer = book.explorer("Kinds", sliders, lambda size, part: (seen.append((size, part)) or "-", []))
    explorer.form.act("size", "change", 24.0)
    explorer.set(part=1.0)
    assert seen == [(16, 0.5), (24, 0.5), (24, 1)]
    assert [[type(x) for x in one] for one in seen] == [[int, float], [int, float], [int, int]]


def test_moving_from_python_before_it_is_shown_and_markup_in_its_words():
    explorer = book.explorer("Marks", {"n": Slider("n", 1, 9, 1)}, lambda n: (f"{n} < 10 & more", [{"n": n}]))
    explorer.set(n=3)
    assert explorer.form.item("n")["value"] == 3 and "3 &lt; 10 &amp; more" in explorer.form.item("seen")["feedback"]
    assert "(simulated)" in explorer.form.item("seen")["feedback"]
    with pytest.raises(ValueError):
        book.explorer("Marks", {"n": Slider("n", 1, 9, 1)}, lambda n: ("-", []), badge="guessed")


@pytest.mark.parametrize(("values", "words"), [({"size": 12}, "8 to 64 in steps of 8"), ({"gpus": 8}, "no slider")])
def test_what_a_slider_cannot_be_is_refused(values, words):
    explorer = made()
    with pytest.raises(ValueError, match=words):
        explorer.set(**values)
    assert explorer.settings == {"size": 16, "part": 0.5}


def test_a_slider_that_cannot_move_is_refused():
    with pytest.raises(ValueError, match="low < high"):
        Slider("GPUs", 8, 8, 8)
    with pytest.raises(ValueError, match="in steps of"):
        Slider("GPUs", 8, 64, 9, 8)
    with pytest.raises(ValueError, match="slider or more"):
        book.explorer("nothing", {}, double)


def test_an_answer_may_be_a_picture():
    def drawn(n):
        return book.bars({"size": {"one": n, "two": 2 * n}}, unit="", sentence=f"There are {n} & more.")

    explorer = book.explorer("Drawn", {"n": Slider("n", 1, 9, 1)}, drawn).set(n=3)
    seen = explorer.form.item("seen")["feedback"]
    assert "There are 3 &amp; more. (simulated)" in seen and "<img alt=" in seen and "<table" not in seen
    assert "There are 3 & more." in explorer.text and explorer.table()[1]["size"] == 6


def test_a_slider_may_have_only_some_values_and_moves_to_the_nearest() -> None:
    few = Slider("heads", 1, 16, 4, only=(1, 2, 4, 8, 16))
    seen = book.explorer("Heads", {"heads": few}, lambda heads: (f"{heads} heads", [{"heads": heads}]))
    for moved, heads in (("5", 4), ("7", 8), ("16", 16), ("3", 2)):
        seen._moved("heads", "change", moved)
        assert seen.settings == {"heads": heads}
    with pytest.raises(ValueError, match="heads: one of 1, 2, 4, 8, 16, not 5"):
        seen.set(heads=5)
