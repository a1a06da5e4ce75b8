"""The story, words and picture of a fault-tolerant run, from lines that were written by hand."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from labkit.book import replicas
from labkit.book.fault_tolerant.figure import drawn
from labkit.book.fault_tolerant.picture import picture
from labkit.book.fault_tolerant.story import AWAY, TRAINS, ZEROS, Story, tell
from labkit.book.fault_tolerant.tail import Tail
from labkit.book.fault_tolerant.words import happenings, membership_rows, replicas_text, rows, sentence
from labkit.resilience.audit.records import Start
from labkit.resilience.supervising.incidents import Incident

from .fake_replicas import LOST, ZERO, commit, three_replicas


def story(over: bool = True, now: float = 10.0) -> Story:
    return tell(three_replicas(), [LOST], 3, 2, ZERO, now, over)


def test_steps_have_their_times_samples_and_members() -> None:
    told = story()
    assert [s.step for s in told.steps] == list(range(7))
    assert [s.seconds for s in told.steps] == [None, 1, 1, 4, 1, 1, 1] and told.usual == 1
    assert [s.samples for s in told.steps] == [6, 6, 6, 4, 4, 4, 6] and told.samples == 36
    assert told.steps[3].rate == 1.0 and told.steps[6].rate == 6.0 and told.steps[0].rate is None
    assert [s.role(1) for s in told.steps] == [TRAINS] * 3 + [AWAY] * 2 + [ZEROS, TRAINS]
    assert told.memberships() == [
        (0, 2, (0, 1, 2), ()), (3, 4, (0, 2), ()), (5, 5, (0, 2), (1,)), (6, 6, (0, 1, 2), ())
    ]  # fmt: skip
    assert [(role, a.step, b.step) for role, a, b in told.phases(1)] == [
        (TRAINS, 0, 2), (AWAY, 3, 4), (ZEROS, 5, 5), (TRAINS, 6, 6)
    ]  # fmt: skip


def test_a_standstill_is_a_step_of_two_usual_ones_also_while_it_lasts() -> None:
    assert story().stills() == [(3.0, 7.0)] and story().standing == 3.0
    assert story(over=False, now=11.9).stills() == [(3.0, 7.0)]
    assert story(over=False, now=12.5).stills() == [(3.0, 7.0), (10.0, 12.5)]
    assert story(over=True, now=12.5).stills() == [(3.0, 7.0)]  # the end of a run is no standstill


def test_of_two_updates_of_a_step_the_later_quorum_counts_and_other_ranks_do_not() -> None:
    lines = [commit(0, 1, (0, 1)), commit(1, 2, (0, 1, 2), replica=1), commit(1, 3, (0, 2), quorum=2),
             commit(1, 2.5, (0, 2), quorum=2, replica=2), commit(2, 9, (0,), rank=1),
             Start(0, 0, 0, 1, positions=(0, 0, 0), checksum="a")]  # fmt: skip
    told = tell(lines, [], 3, 2, ZERO, 4)
    assert [(s.step, s.at, s.quorum, s.trained) for s in told.steps] == [(0, 1, 1, (0, 1)), (1, 2.5, 2, (0, 2))]


def restarted() -> Story:
    """Three steps by all, a death of all, and two of them again; and a step 1 that one replica had alone."""
    everyone = (0, 1, 2)
    lines = [commit(n, 1.0 + n, everyone) for n in range(3)]
    lines += [commit(0, 8, everyone, quorum=4), commit(1, 8.5, (0,), quorum=4), commit(1, 9, everyone, quorum=5)]
    return tell(lines, [], 3, 2, ZERO, 9, over=True)


def test_what_died_with_all_who_had_it_is_told_as_lost() -> None:
    told = restarted()
    assert [(s.step, s.quorum, s.at) for s in told.steps] == [(0, 4, 8), (1, 5, 9)]
    assert [(s.step, s.quorum) for s in told.lost] == [(0, 1), (1, 1), (2, 1), (1, 4)]
    assert [(a.step, b.step) for _, a, b in told.lost_phases(0)] == [(0, 2), (1, 1)]
    assert [s.seconds for s in told.lost] == [None, 1, 1, None] and told.samples == 12
    assert told.stills() == [(3.0, 8.0)]
    assert "2 steps with 12 samples are committed after 9 s. 4 more were trained and lost" in sentence(told)
    assert happenings(told)[-1] == "8.00 s  all replicas: nobody was left with a state, so step 0 is trained anew"
    assert story().lost == [] and "lost" not in sentence(story())


def test_the_picture_shows_what_is_lost() -> None:
    told = restarted()
    root = ElementTree.fromstring(picture(told, "t", "measured", "s"))
    boxes = [x for x in root.iter("{http://www.w3.org/2000/svg}rect") if len(x)]
    lost = [x for x in boxes if x[0].text == "replica 1 trained steps 0 to 2, which are lost"]
    alive = [x for x in boxes if x[0].text == "replica 1 trains: steps 0 to 1"]
    assert len(lost) == len(alive) == 1 and lost[0].get("fill", "").startswith("url(")
    assert float(lost[0].get("x", 0)) + float(lost[0].get("width", 0)) < float(alive[0].get("x", 0))
    dashed = [x for x in root.iter("{http://www.w3.org/2000/svg}path") if x.get("stroke-dasharray") == "4 3"]
    assert len(dashed) == 2  # throughput and loss
    assert "was trained, and is lost" in ElementTree.tostring(root).decode()
    assert "is lost with" not in picture(story(), "t", "measured", "s")


def test_marks_say_who_was_lost_and_when_it_was_started_again() -> None:
    assert [(m.at, m.replica, m.kind) for m in story().marks] == [(3.4, 1, "lost"), (4.0, 1, "started again")]
    spare = Incident(3, None, 1, "hung", 6, "", detected=1.0)
    unseen = Incident(1, 1, 1, "hung", 3, "", detected=6.0)  # nobody knows when it began
    assert [m.at for m in tell([], [spare, unseen], 3, 2, ZERO, 4).marks] == [6.0]


def test_it_is_told_in_words() -> None:
    assert sentence(story()) == (
        "7 steps with 36 samples are committed after 10 s. The loss went from 5 to 1.5. 3 steps had fewer than "
        "3 replicas, at least 2. A usual step takes 1 s; 1 step took more than twice that: 3 s longer than usual."
    )
    assert sentence(story(over=False)).endswith("Step 6 was trained by replicas 0, 1 and 2.")
    assert sentence(tell([], [], 3, 2, ZERO, 1)) == "No step is committed yet."
    assert [replicas_text(x) for x in ((), (2,), (0, 2))] == ["none", "replica 2", "replicas 0 and 2"]
    assert membership_rows(story())[2] == {"steps": "5", "trained by": "0, 2", "zeros from": "1"}
    assert rows(story())[3]["took, s"] == 4 and rows(story())[0]["samples a second"] is None
    assert happenings(story()) == [
        "3.00 s  replica 1: its last step for now is 2", "3.40 s  replica 1: rank 3 was lost",
        "4.00 s  replica 1: replica 1 was started again", "10.00 s  replica 1: trains again from step 6",
    ]  # fmt: skip


def test_the_picture_is_whole_and_says_by_shape_what_it_says_by_colour() -> None:
    svg = picture(story(), "A title", "measured", "What is seen.")
    root = ElementTree.fromstring(svg)
    said = [x.text for x in root.iter("{http://www.w3.org/2000/svg}title")]
    assert "A title" in said and "all stand still for 4.00 s" in said
    assert "replica 1 gives zeros: steps 5 to 5" in said and "replica 1 is away: steps 3 to 4" in said
    assert "3.40 s: rank 3 was lost" in said and "4.00 s: replica 1 was started again" in said
    boxes = {x.find("{http://www.w3.org/2000/svg}title").text: x for x in root.iter("{http://www.w3.org/2000/svg}rect")
             if x.find("{http://www.w3.org/2000/svg}title") is not None}  # fmt: skip
    looks = [(x.get("fill"), x.get("stroke-dasharray")) for name, x in boxes.items() if name.startswith("replica 1 ")]
    assert len(set(looks)) == 3 and looks[1][1] == "2 3" and looks[2][0].startswith("url(")
    assert picture(story(), "A title", "measured", "What is seen.") == svg
    early = picture(tell(three_replicas()[:1], [], 3, 2, ZERO, 1), "t", "measured", "s")
    assert ElementTree.fromstring(early) is not None  # one step has no duration yet


NAME = "{http://www.w3.org/2000/svg}title"


def spans(svg: str, name: str) -> list[tuple[float, float]]:
    """(left, right) of the boxes whose words begin with `name`."""
    rects = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}rect")
    mine = [x for x in rects if (said := x.find(NAME)) is not None and (said.text or "").startswith(name)]
    return [(float(x.get("x", 0)), float(x.get("x", 0)) + float(x.get("width", 0))) for x in mine]


def test_while_all_stand_still_no_lane_says_that_it_trains() -> None:
    svg = picture(story(), "t", "measured", "s")
    ((begin, end),) = spans(svg, "all stand still")
    before, after = spans(svg, "replica 0 trains")
    assert before[1] == pytest.approx(begin, abs=0.1)
    assert after[0] == pytest.approx(end - (end - begin) / 4, abs=0.1)  # the usual step of four at its end
    longer = picture(story(over=False, now=12.5), "t", "measured", "s")
    assert len(spans(longer, "all stand still")) == 2 and len(spans(longer, "replica 0 trains")) == 2


def test_a_mark_does_not_cover_the_one_before_it_in_its_lane() -> None:
    at_once = Incident(1, 1, 1, "died", 3, "", detected=3.5, struck=3.4, restarted=3.41)
    other = Incident(2, 2, 1, "died", 3, "", detected=3.5, struck=3.4)
    svg = picture(tell(three_replicas(), [at_once, other], 3, 2, ZERO, 10, True), "t", "measured", "s")
    lost, again = spans(svg, "3.40 s: rank 3 was lost"), spans(svg, "3.41 s: replica 1")
    assert len(lost) == 2 and lost[0][0] == lost[1][0] and again[0][0] >= lost[0][1]


def test_two_standstills_are_told_in_all() -> None:
    said = sentence(story(over=False, now=12.5))
    assert "2 steps took more than twice that: 4.5 s longer than usual, in all" in said


def test_a_run_with_a_stand_in_is_not_marked_as_measured() -> None:
    figure = drawn(story(), "A run", "emulated")
    assert figure.text.startswith("A run (emulated)") and "Who trained which steps (measured)" in figure.text


def test_lanes_meet_where_a_step_ends() -> None:
    root = ElementTree.fromstring(picture(story(), "t", "measured", "s"))
    mine = []
    for x in root.iter("{http://www.w3.org/2000/svg}rect"):
        name = x.find("{http://www.w3.org/2000/svg}title")
        if name is not None and name.text.startswith("replica 1 "):
            mine.append((float(x.get("x")), float(x.get("x")) + float(x.get("width"))))
    assert len(mine) == 4
    for (_, end), (begin, _) in zip(mine, mine[1:], strict=False):
        assert abs(end - begin) < 0.25


def test_the_log_is_read_as_it_grows(tmp_path: Path) -> None:
    tail = Tail(tmp_path)
    assert tail.read() == []
    path, other = tmp_path / "audit-0000-0000.jsonl", tmp_path / "audit-0000-0001.jsonl"
    first, second = commit(0, 1, (0, 1)).text(), commit(1, 2, (0, 1)).text()
    other.write_text(commit(0, 1, (0, 1), rank=1).text() + "\n")
    path.write_text(first + "\n" + second[:20])
    assert [x.step for x in tail.read()] == [0]
    with path.open("a") as file:
        file.write(second[20:] + "\n" + "{torn\n")
    assert [x.step for x in tail.read()] == [0, 1] == [x.step for x in tail.read()]
    path.unlink()
    assert [x.step for x in tail.read()] == [0, 1]
    assert json.loads(second)["kind"] == "commit"


def test_the_figure_has_all_of_it_and_takes_a_run_only() -> None:
    figure = drawn(story(), "A run")
    assert figure.text.startswith("A run (measured)\n7 steps") and "Who trained which steps (measured)" in figure.text
    assert "3.40 s  replica 1: rank 3 was lost" in figure.text and len(figure.rows) == 7
    shown = figure.bundle()
    assert set(shown) == {"text/plain", "image/svg+xml", "text/html"}
    image = ElementTree.fromstring(shown["text/html"])[0]
    assert image.get("alt", "").startswith("A run (measured). 7 steps with 36 samples")
    svg = base64.b64decode(image.get("src", "").partition("base64,")[2]).decode()
    assert svg == re.sub(r"#777\b", "#333", figure.svg), "dark on white"
    assert "min-width: 570px; background: white" in image.get("style", ""), "three quarters of 760"
    assert [row["trained by"] for row in figure.members()] == ["0, 1, 2", "0, 2", "0, 2", "0, 1, 2"]
    with pytest.raises(TypeError, match=r"job.wait\(\)"):
        replicas("run")  # type: ignore[arg-type]
