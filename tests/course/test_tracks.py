"""Weeks: every chapter once, prerequisites first, as even as the order allows. Weights: percent, whatever the track."""

from itertools import combinations

import pytest
from hypothesis import given, strategies as st

from labkit.course import load
from labkit.course.pages.contents import TRACKS
from labkit.course.tracks import even_split, track, weights


def totals(sizes, starts):
    return [sum(sizes[start:end]) for start, end in zip(starts, [*starts[1:], len(sizes)], strict=True)]


@given(st.lists(st.integers(0, 90), min_size=1, max_size=9), st.data())
def test_no_other_cut_is_more_even(sizes, data):
    parts = data.draw(st.integers(1, len(sizes)))
    starts = even_split(sizes, parts)
    assert len(starts) == parts and starts[0] == 0 and starts == sorted(set(starts))
    every_cut = ([0, *cut] for cut in combinations(range(1, len(sizes)), parts - 1))
    squares = min(sum(total**2 for total in totals(sizes, cut)) for cut in every_cut)
    assert sum(total**2 for total in totals(sizes, starts)) == squares


def test_equal_sizes_are_cut_into_equal_parts():
    assert totals([10] * 12, even_split([10] * 12, 4)) == [30, 30, 30, 30]


@pytest.mark.parametrize("parts", [0, 3])
def test_a_week_without_a_chapter_is_refused(parts):
    with pytest.raises(ValueError, match=f"2 chapters cannot fill {parts} weeks: take 1 to 2"):
        even_split([10, 10], parts)


def test_the_book_offers_six_weeks_of_the_core_and_twelve_of_everything():
    assert TRACKS == ((6, False), (12, True))


@pytest.mark.parametrize(("weeks", "everything"), TRACKS)
def test_a_track_keeps_every_prerequisite_before_its_chapter(weeks, everything):
    course = load()
    ours = track(course, weeks, everything)
    read = set()
    for chapter in ours.chapters:
        assert course.needs(chapter.number) <= read, f"chapter {chapter.number} comes too early"
        read.add(chapter.number)


@pytest.mark.parametrize(("weeks", "everything"), TRACKS)
def test_a_track_has_all_its_chapters_once_and_no_empty_week(weeks, everything):
    course = load()
    ours = track(course, weeks, everything)
    assert [week.number for week in ours.weeks] == list(range(1, weeks + 1))
    assert all(week.chapters for week in ours.weeks)
    assert ours.chapters == tuple(chapter for chapter in course.chapters if everything or chapter.core)


@pytest.mark.parametrize(("weeks", "everything"), TRACKS)
def test_minutes_of_a_track_are_those_of_its_chapters_and_evenly_spread(weeks, everything):
    ours = track(load(), weeks, everything)
    for week in ours.weeks:
        assert week.minutes == sum(c.minutes if everything else c.core_minutes for c in week.chapters)
        assert week.assistant == sum(chapter.assistant for chapter in week.chapters)
    mean = ours.minutes / weeks
    longest = max(c.minutes for c in ours.chapters)
    assert max(week.minutes for week in ours.weeks) < mean + longest  # no week could give its last chapter away
    assert ours.minutes == sum(week.minutes for week in ours.weeks)


@pytest.mark.parametrize(("weeks", "everything"), TRACKS)
def test_weights_of_a_track_add_up_to_a_hundred(weeks, everything):
    ours = track(load(), weeks, everything)
    percent = weights(ours.chapters)
    assert sum(percent.values()) == 100
    total = sum(chapter.weight for chapter in ours.chapters)
    for chapter in ours.chapters:
        assert abs(percent[chapter.number] - 100 * chapter.weight / total) < 1
    if everything:
        assert percent == {chapter.number: chapter.weight for chapter in ours.chapters}


def test_what_rounding_leaves_goes_to_the_largest_remainder():
    chapters = [load().chapter(number) for number in (4, 5, 12)]
    assert [chapter.weight for chapter in chapters] == [6, 6, 3]
    assert weights(chapters) == {4: 40, 5: 40, 12: 20}
    chapters = [load().chapter(number) for number in (3, 4, 12)]  # of 14: 35.7, 42.9, 21.4
    assert weights(chapters) == {3: 36, 4: 43, 12: 21}
