"""The picture of a diagnosis: every operation and member drawn, suspects marked, the same in words."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET

from resilience.pages_by_hand import Desk

from labkit.book import diagnosis
from labkit.book.drawing.svg import text_width
from labkit.resilience.diagnose import Clue, Verdict, diagnose


def nested():
    """dp x tp: rank 3 computes, rank 2 waits for it in tp, ranks 0 and 1 for both in dp."""
    desk = Desk(4)
    for rank in (0, 1):
        desk.leave(rank, desk.enter(rank, (0, 1)))
    desk.enter(2, (2, 3))
    desk.enter(0, (0, 2))
    desk.enter(1, (1, 3))
    return diagnose(desk.look())


def texts(figure) -> list[str]:
    return [t.text or "" for t in ET.fromstring(figure.svg).iter("{http://www.w3.org/2000/svg}text")]


def circles(figure) -> list[dict]:
    return [c.attrib for c in ET.fromstring(figure.svg).iter("{http://www.w3.org/2000/svg}circle")]


def test_both_levels_are_drawn() -> None:
    figure = diagnosis(nested())
    assert [t for t in texts(figure) if t[:2] in ("1:", "2:", "3:")] != []
    assert len([c for c in circles(figure) if c.get("r") == "15"]) == 6  # two members in each of three operations
    assert len([c for c in circles(figure) if c.get("r") == "11.5"]) == 2  # rank 3 is a suspect in two of them
    assert figure.badge == "measured" and nested().draw().svg == figure.svg


def test_the_words_say_what_the_picture_shows() -> None:
    figure = diagnosis(nested())
    assert "rank 3: has not joined." in figure.sentence
    rows = figure.rows
    assert {row["rank"] for row in rows if row["suspect"] == "yes"} == {3}
    (waiting,) = {row["operation"] for row in rows if row["waits for operation"] != "-"}
    assert waiting.startswith("1: ")  # what waits stands above what it waits for
    assert {row["it"] for row in rows} == {"is in it", "has not joined"}


def test_the_picture_has_its_words_in_a_page_too() -> None:
    figure = diagnosis(nested())
    picture = ET.fromstring(figure.bundle()["text/html"])[0]
    assert picture.get("alt") == f"{figure.title} (measured). {figure.sentence}"
    kind, _, data = picture.get("src").partition(";base64,")
    assert kind == "data:image/svg+xml" and base64.b64decode(data).decode() == re.sub(r"#777\b", "#333", figure.svg)


def test_who_waits_for_whom_inside_an_operation() -> None:
    desk = Desk(3)
    number = [desk.enter(r, (0, 1, 2)) for r in range(3)]
    desk.exchange(1, 2, 0, (0, 1, 2), number[1])
    verdict = diagnose(desk.look())
    figure = diagnosis(verdict)
    assert [row["waits for rank"] for row in figure.rows] == ["-", "0", "-"]
    plain = diagnosis(Verdict(verdict.kind, verdict.suspects, verdict.exact, verdict.clues, None, None))
    assert figure.svg.count("lk-head") > plain.svg.count("lk-head")


def test_colour_is_never_alone() -> None:
    figure = diagnosis(nested())
    inside, absent = ([c for c in circles(figure) if (c.get("stroke-dasharray") is None) is solid
                       and c.get("r") == "15"] for solid in (True, False))  # fmt: skip
    assert inside and absent
    assert "not joined" in " ".join(texts(figure)) and "suspect" in texts(figure)


def test_a_verdict_without_operations_shows_its_ranks() -> None:
    slow = Verdict("slow", (1, 2), True, (Clue(frozenset({1, 2}), "slow", "they come last"),))
    figure = diagnosis(slow)
    assert [row["rank"] for row in figure.rows] == [1, 2] and "they come last" in figure.sentence
    assert diagnosis(Verdict("nothing", (), True)).rows == []


def test_many_operations_are_left_out_of_the_picture_but_not_of_the_words() -> None:
    desk = Desk(14)
    for rank in range(13):
        desk.enter(rank, (rank, rank + 1))
    figure = diagnosis(diagnose(desk.look()))
    assert "3 operations that wait for these are left out" in " ".join(texts(figure))
    assert len(figure.rows) == 26 and {r["rank"] for r in figure.rows if r["suspect"] == "yes"} == {13}


def test_a_deadlock_of_operations_is_drawn_as_well() -> None:
    desk = Desk(4)
    desk.enter(2, (2, 3))
    desk.enter(3, (0, 1, 2, 3))
    figure = diagnosis(diagnose(desk.look()))
    assert len({row["operation"] for row in figure.rows}) == 2
    labels = at_the_left(figure)
    assert len(labels) == 2 and no_two_overlap(labels)


def test_the_labels_of_arrows_lie_apart_and_left_of_the_boxes() -> None:
    """Two operations of the same size that wait for each other: their arrows have the same middle."""
    desk = Desk(6)
    for rank in (2, 4):
        desk.enter(rank, (0, 2, 4))
    for rank in (0, 1, 3, 5):
        desk.enter(rank, (0, 1, 2, 3, 4, 5))
    figure = diagnosis(diagnose(desk.look()))
    labels = at_the_left(figure)
    assert sorted(text for text, _, _ in labels) == ["0", "2, 4"] and no_two_overlap(labels)
    boxes = [float(r.get("x")) for r in ET.fromstring(figure.svg).iter("{http://www.w3.org/2000/svg}rect")
             if float(r.get("width", 0)) > 300]  # fmt: skip
    assert max(x + text_width(text, 11) for text, x, _ in labels) < min(boxes) and min(x for _, x, _ in labels) >= 2


def at_the_left(figure) -> list[tuple[str, float, float]]:
    """The labels of the arrows between operations: (words, left side, base line)."""
    found = [(t.text or "", float(t.get("x")), float(t.get("y")))
             for t in ET.fromstring(figure.svg).iter("{http://www.w3.org/2000/svg}text")]  # fmt: skip
    return [each for each in found if each[0].replace(", ", "").isdigit() and each[1] < 60]


def no_two_overlap(labels: list[tuple[str, float, float]]) -> bool:
    return all(abs(y - v) >= 11 or x + text_width(a, 11) < u or u + text_width(b, 11) < x
               for n, (a, x, y) in enumerate(labels) for b, u, v in labels[:n])  # fmt: skip
