"""Pictures to play: one is shown at a time, a page moves them, and without a page one stands for all."""

from __future__ import annotations

import pytest

from labkit import book

FRAMES = [("<svg>a</svg>", "first a"), ("<svg>b</svg>", "then b"), ("<svg>c</svg>", "at last c")]


def test_it_steps_between_the_first_and_the_last() -> None:
    played = book.play(FRAMES, title="abc", badge="measured")
    played.previous()
    assert (played.step, played.svg, played.text) == (0, *FRAMES[0])
    for _ in range(4):
        played.next()
    assert (played.step, played.svg, played.text) == (2, *FRAMES[2])
    with pytest.raises(ValueError, match="has steps 0 to 2"):
        played.step = 3
    with pytest.raises(ValueError, match="nothing to play"):
        book.play([], title="", badge="measured")


def test_without_a_page_one_picture_stands_for_all() -> None:
    played = book.play(FRAMES, title="abc", badge="emulated", rows=[{"letter": "a"}], still=1)
    assert played.still.svg == "<svg>b</svg>" and repr(played).startswith("abc (emulated)\nthen b\n\nletter")


def test_the_page_and_the_object_show_the_same() -> None:
    played = book.play(FRAMES, title="abc", badge="measured", sentence="Three letters.")
    view = played.widget
    assert (view.title, view.last, view.step, view.svg) == ("abc", 2, 0, "<svg>a</svg>")
    view.step = 2  # as a page does
    assert (played.step, view.svg, view.words) == (2, "<svg>c</svg>", "at last c")
    played.previous()
    assert (view.step, view.words) == (1, "then b") and played.still.sentence == "Three letters."


def test_a_workbench_shows_them() -> None:
    bench = book.workbench(
        lambda world, k=1: k, {"k": (0, 2)}, [lambda k: book.play(FRAMES, title="abc", badge="measured", still=k)]
    )
    assert bench.panel and "then b" in bench.text
    bench.close()
