"""The panels of appendix A: what they ask, what they answer to a number, a code or a story of the reader's."""

import re
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from labkit import collectives, cost
from labkit.book.reading import writing
from labkit.book.reading.quizzes import Quiz
from labkit.chapters.cA_errata import agreeing, apart, asked_first, computing, opening, panels, pictures, suspects
from labkit.chapters.cA_errata.you_write import agrees, held_bytes, two_level_seconds
from labkit.course import errata
from labkit.course.chapter_file import load_chapter
from labkit.course.progress import Progress

LINES = errata()


def passed(function):
    """It, as if a check had found it right."""
    writing._right.append(function)
    return function


def test_a_readers_number_is_judged_by_its_digits_and_a_wrong_one_gets_a_hint_and_not_the_steps():
    wire = panels.apart("Bytes ", agrees).questions["nvlink-both"]
    assert "✓ Right" in wire.compare("18 times") and "NVLink is 12 to 18 times as fast" in wire.compare("18")
    sloppy = panels.apart("bytes", passed(lambda said, found: True)).questions["nvlink-both"]
    assert "one more digit" in sloppy.compare("2")
    whole = panels.apart("bytes", agrees).questions["whole-gradient"]
    first, second = whole.compare("21.9"), whole.compare("14")
    assert "the gradient of one stage" in first and "16 * 8" not in first and "16 × 8" not in first
    assert "✗ 14 is not it." in second and "(16 × 8)" not in second and not whole.over
    right = whole.compare("2.7")
    assert "✓ Right" in right and "(16 × 8) = 2.73 GB" in right, "2.7 means any number that rounds to it"
    assert "Very near" in whole.compare("2.71") and "decimal point is in the wrong place" in whole.compare("2734")
    assert "the number of the source" in panels.apart("time", agrees).questions["half-at-8192"].compare("8192")
    assert "Type a point and not a comma: 2.73." in whole.compare("2,73") and not whole.over
    assert "✓ Right" in panels.apart("time", agrees).questions["seventy-times"].compare("1,750 ms")
    for nothing in ("", "abc"):
        assert "no number" in whole.compare(nothing) and "2.73" not in whole.compare(nothing)


def test_a_right_number_is_said_twice_only_where_the_two_are_written_differently():
    gradient, link = LINES["whole-gradient"], LINES["above-seventy"]
    assert apart.judged(gradient, "2.73", agrees) == (True, "Right: 2.73 GB.")
    assert apart.judged(link, "13", agrees) == (True, "Right: 13 %.")
    assert apart.judged(gradient, "2.734", agrees) == (True, "Right: 2.734 agrees with 2.73 GB.")


def test_each_question_has_a_field_of_its_own():
    chosen, shown = panels.apart("bytes", agrees).box.children
    assert [id for _, id in chosen.options] == [id for id in apart.pencils() if LINES[id].kind == "bytes"]
    question, row, answer = shown.children[1].children
    field, compare, steps = row.children
    field.value = "350"
    steps.click()
    assert "175 billion" in question.value and "(16 × 8) = 2.73 GB" in answer.value
    assert "✗" not in answer.value and "How much of it does one part have" not in answer.value, (
        "what was said of a wrong number is gone"
    )
    assert field.disabled and compare.disabled, "nothing can be typed that the steps would contradict"
    assert shown.children[0].children[1].children[0].value == "", "a number does not come along to another question"


def test_a_press_that_arrives_before_the_number_costs_nothing_and_the_number_is_judged():
    question, row, answer = panels.apart("bytes", agrees).box.children[1].children[1].children
    field, compare, _ = row.children
    compare.click()
    assert "You gave no number yet" in answer.value
    field.value = "350"  # arrives after the press
    assert "the whole model" in answer.value and "(16 × 8)" not in answer.value
    compare.click()  # the next press, before the next number: the first hint stays, and nothing is spent
    assert "the whole model" in answer.value and "(16 × 8)" not in answer.value
    field.value = "2.73"
    assert "✓ Right: 2.73 GB." in answer.value and field.disabled
    field.value = "5"
    assert "✓ Right: 2.73 GB." in answer.value, "a right answer stays"


def test_what_follows_a_right_number_is_about_the_source_and_no_objection_to_it():
    for id, pencil in apart.pencils().items():
        assert pencil.why.startswith("The source "), id
        assert apart.worked(LINES[id])[1] == pencil.why not in apart.asked(LINES[id]) and "{" not in pencil.why


@pytest.mark.ranks
def test_the_first_screen_asks_before_ranks_start_and_tells_afterwards():
    def step(group):
        collectives.all_reduce(torch.ones(8), group)

    first = panels.three_ways(step)
    with closing(first.bench):
        assert "reduce_scatter" in first.bench.set(program=pictures.TABLE).code and "all_gather" in first.bench.code
        first.bench.set(program=pictures.TEXT)
        question, choice = first.box.children
        assert choice.value is None and "compared with plain data parallelism?" in question.value
        choice.value = "the same"
        assert first.chosen == "the same" and first.box.children[2] is first.bench.panel.box
        choice.value = "more"
        assert first.chosen == "the same" and len(first.box.children) == 3, "the first choice counts"
        assert first.bench.code.split("\n")[-2].startswith("print(run.trace.bytes_sent())"), (
            "as code it shows what was sent"
        )
        assert "More" in repr(first) and "program ZeRO-1, as the text says" in repr(first)


def _sends(times):
    class Trace:
        def bytes_sent(self):
            return [times * cost.ring_all_reduce_bytes(1000, 4)] * 4

        def calls(self):
            return [SimpleNamespace(nbytes=1000)]

    return SimpleNamespace(results=[None], trace=Trace())


@pytest.mark.ranks
def test_what_follows_from_the_first_run_is_said_of_the_run(monkeypatch):
    first = panels.three_ways(lambda group: None)
    first.bench.close()
    assert "no collective was called" in first.bench.said
    assert "no collective was called: has `step` been changed?" in str(first.told())
    sent = {"ZeRO-1, as the table says": 1.0, "ZeRO-1, as the text says": 1.5}
    monkeypatch.setattr(opening.labkit, "launch", lambda run, ranks: _sends(sent[run.keywords["program"]]))
    told = str(first.told())
    assert (
        "text sends 1.5 times as much" in told
        and "weights send exactly as much as plain" in told
        and "You expected" not in told
    )
    assert "cannot describe the same program" in told and "** On 4 ranks" in told, "as many as the panel has"
    for chosen, said in (("more", "You expected that."), ("less", "Your answer: *Less*.")):
        first.chosen = chosen
        assert said in str(first.told())
    sent["ZeRO-1, as the text says"] = 1.0
    told = str(first.told())
    assert "cannot describe" not in told and "has `step` been changed?" in told


@pytest.mark.ranks
def test_a_step_that_a_reader_has_broken_is_told_in_a_sentence() -> None:
    first = panels.three_ways(lambda group: group.no_such_thing)
    first.bench.close()
    assert "the ranks did not come to an end. rank" in str(first.told()) and "no_such_thing" in str(first.told())


def test_a_tie_may_be_rounded_either_way_and_what_does_not_end_is_stopped() -> None:
    entry = LINES["whole-gradient"]
    assert entry.claim().found == pytest.approx(2.734375)
    for digits in ("2.73437", "2.73438", "2.7"):
        assert apart.judged(entry, digits, agreeing.by_its_digits)[0], digits
    assert not apart.judged(entry, "2.73436", agreeing.by_its_digits)[0]
    with pytest.raises(TimeoutError, match="was stopped"):
        apart.value("n = 0\nwhile True: n += 1\nn", seconds=0.2)
    assert apart.value("2 + 3") == 5


def test_a_line_is_computed_again_with_other_numbers():
    shown = panels.computed("two-bases")
    chosen, words, code, buttons, came = shown.box.children
    button, reset = buttons.children
    chosen.value = "superlinear"
    assert "2400 / 50" in code.value and "48 times" in came.value and "grows faster" in words.value
    code.value = "2400 / 30"
    button.click()
    assert "It comes to this: 80 times with your inputs" in came.value and "would be right" in came.value
    button.click()
    assert "80 times" in came.value
    reset.click()
    assert "2400 / 50" in code.value and "48 times" in came.value
    assert "is not right: it says" in shown.run("2400 / 50") and "needs above 70 times" in shown.run("1")
    kept_back = {"hierarchical-both", *computing.NO_SUM}  # the reader writes the first one
    assert {id for _, id in panels.changeable()} == set(LINES) - kept_back
    for id in kept_back:
        assert panels.computed(id).box.children[0].value == id, "a line that the parameters name is in the list"
    assert "The box is empty" in shown.run(" ") and "must be a number" in shown.run(
        "from labkit import cost\ncost.wires"
    )
    for wrong, name in (("2400 / 0", "ZeroDivisionError"), ("x = 1", "ValueError"), ("2400 /", "SyntaxError")):
        assert name in shown.run(wrong)
    for wrong in ("'abc'", "1e400 * 0"):
        assert "must be a number" in shown.run(wrong)


def test_the_box_runs_what_arrives_after_the_press_and_says_that_it_runs(monkeypatch):
    shown = panels.computed("superlinear")
    _, _, code, buttons, came = shown.box.children
    seen = []
    came.observe(lambda change: seen.append(change["new"]), "value")
    buttons.children[0].click()
    code.value = "2400 / 30"  # arrives after the press
    assert "80 times" in came.value and any("It runs" in told for told in seen)

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(apart, "value", interrupted)
    code.value = "2400 / 20"
    assert "interrupted" in came.value and "80 times" not in came.value
    monkeypatch.undo()
    buttons.children[0].click()
    assert "120 times" in came.value, "what was interrupted can run again"


def test_every_line_in_the_list_has_a_name_of_its_own():
    names = [name for name, _ in panels.changeable()]
    assert len(set(names)) == len(names) and all(len(name) < 70 for name in names)


def test_the_case_has_more_than_one_story():
    """Time, counter as the speed while sending, counter as an average: which of them each setting explains."""
    sends_150, sends_300, flat = suspects.ALGORITHMS
    stories = {(3, 100, sends_150): (False, False, False), (3, 46, sends_150): (True, False, False),
               (3.55, 60, sends_150): (True, True, False), (4.65, 100, sends_150): (True, False, False),
               (3, 100, sends_300): (False, False, True), (4.45, 60, sends_300): (True, True, False),
               (6.35, 100, sends_300): (True, False, True), (8, 100, sends_300): (False, False, True),
               (0.75, 60, flat): (True, True, True), (1.25, 100, flat): (True, False, False)}  # fmt: skip
    for settings, fits in stories.items():
        assert tuple(one for one, _ in suspects.story(two_level_seconds, *settings).facts.values()) == fits, settings
    for settings, verdict in {(3, 100, sends_150): "neither", (3.55, 60, sends_150): "the counter as a speed",
                              (6.35, 100, sends_300): "the counter as an average",
                              (3, 46, sends_150): "the counter fits neither as a speed",
                              (8, 100, sends_300): "the time does not fit"}.items():  # fmt: skip
        assert verdict in suspects.story(two_level_seconds, *settings).verdict
    for algorithm in suspects.ALGORITHMS:  # what the verdict says of 3 GB
        for uplinks in range(20, 101):
            time, speed, average = (
                one for one, _ in suspects.story(two_level_seconds, 3, uplinks, algorithm).facts.values()
            )
            assert not (time and (speed or average))
    slow = suspects.story(two_level_seconds, 3, 46)
    assert slow.average == pytest.approx(0.30, abs=0.005), "slow uplinks send for longer"
    told = suspects.stories(two_level_seconds)
    assert [(row["message"], row["counter as a speed"], row["counter as an average"]) for row in told] == [
        ("3.00 GB", "46%", "30%"), ("3.55 GB", "60% ✓", "35%"), ("4.63 GB", "100%", "46%"),
        ("3.00 GB", "36%", "30%"), ("4.47 GB", "60% ✓", "44%"), ("6.35 GB", "100%", "63% ✓"),
        ("0.75 GB", "60% ✓", "60% ✓"), ("1.25 GB", "100%", "100%"),
    ]  # fmt: skip
    assert "64.77 ms" in repr(suspects.should(two_level_seconds)) and "47.27" in repr(
        suspects.should(two_level_seconds)
    )
    rows = suspects.table(two_level_seconds, SimpleNamespace(answered=True, chosen=""))
    takes = [f"{ms} ms" for ms in (84.6, 64.8, 35.0, 239.8, 273.1)]
    assert [row["takes"] for row in rows] == takes, "the nearest first"
    nearest = rows[0]
    choices = load_chapter("A_errata").question("which-suspect", {}).choices
    assert {choice.text.rstrip(".") for choice in choices} == {row["candidate"] for row in rows}
    assert nearest["candidate"] == "The algorithm of two_level_seconds, with uplinks at 60% of their speed"


def test_the_verdict_says_what_hangs_on_our_tolerance():
    left = suspects.left(two_level_seconds).text
    assert "With 3 GB no candidate fits" in left and "have to run at 30% to 46%" in left
    assert "the 3 points that we allow" in left and suspects.NEAR == 0.03
    size, part = map(float, re.search(r"with ([\d.]+) GB, and uplinks at (\d+)%", left).groups())
    _, sends_300, flat = suspects.ALGORITHMS
    one = suspects.story(two_level_seconds, size, part, sends_300)
    assert one.fits and abs(one.seconds - 0.1) < 0.0005 and f"{one.average:.0%}" == "60%"
    assert "the example is right that this was no flat ring" in left, "by its own 3 GB"
    slow = suspects.story(two_level_seconds, 3, 60)
    assert f"would have to add {1e3 * (suspects.SEEN - slow.seconds):.1f} ms" in left and slow.counter, (
        "the counter fits"
    )
    four = load_chapter("A_errata").question("what-next", {}).prompt
    for size in ["3 GB", *re.findall(r"\| two levels, .+ \| ([\d.]+ GB) \|", left)]:
        assert f"- {size}, " in four, "the question follows from the table"
    told = re.findall(r"with ([\d.]+) GB (?:a flat ring takes the 100 ms )?over (.+?)[ ,]", left, re.I)
    assert len(told) == 2
    for size, uplinks in told:
        part = {"healthy": 100, "uplinks": 60}[uplinks]
        assert suspects.story(two_level_seconds, float(size), part, flat).seconds == pytest.approx(0.1, rel=0.01)


def test_no_suspect_fits_with_the_size_of_the_expected_times():
    """Those whom the panel leaves out: one is too slow with nothing wrong, and eight rings need slow uplinks."""
    seen, said = suspects.SEEN, suspects.left(two_level_seconds).text
    for nvlink in (False, True):
        slow = cost.slow_sync.hierarchical_seconds(ports_per_node=1, both_directions=nvlink)
        assert slow > 1.03 * seen and cost.slow_sync.flat_seconds() > 1.03 * seen
    rings = cost.slow_sync.flat_seconds() / 8  # through the ports
    assert cost.slow_sync.rings_seconds() < seen and f"{rings / seen:.0%} to" in said
    assert abs(rings / seen - 0.6) > suspects.NEAR, "neither as a speed nor, as a ring never rests, as an average"
    rows = suspects.table(two_level_seconds, SimpleNamespace(answered=True, chosen=""))
    why = {row["candidate"].partition(",")[0]: row["what takes the time"] for row in rows}
    assert "the ports need only 30.0 ms" in why["Eight flat rings at once"]
    assert "238.1 ms; inside the nodes: 35.0 ms" in why["A hierarchical all-reduce"]
    for row in rows:
        parts = [float(ms) for ms in re.findall(r": ([\d.]+) ms", row["what takes the time"])]
        assert not parts or sum(parts) == pytest.approx(float(row["takes"].split()[0]), abs=0.11), row


def test_the_verdict_names_every_thick_piece_of_the_picture():
    thick = set()
    for algorithm in suspects.ALGORITHMS:
        for part in range(20, 101):
            size = suspects.seen_size(two_level_seconds, part / 100, algorithm)
            if counter := suspects.story(two_level_seconds, size, part, algorithm).counter:
                thick.add((algorithm, counter.removeprefix("counter as ").replace("counter in both meanings", "both")))
    rows = re.findall(r"\| (.+) \| [\d.]+ GB \| .+ \| (.+): \d+% \|", suspects.left(two_level_seconds).text)
    assert len(rows) == len(thick) == 4 and set(rows) == thick


def test_a_cell_that_needs_a_function_says_so_until_a_check_has_found_it_right():
    def stub(*given):
        raise NotImplementedError

    answered = SimpleNamespace(answered=True, chosen="")
    cells = [panels.judge, panels.memory, panels.slow_sync, pictures.phases, pictures.plane, suspects.should,
             suspects.left, lambda fn: panels.apart("bytes", fn),
             lambda fn: suspects.table(fn, answered)]  # fmt: skip
    for cell in cells:
        assert repr(cell(stub)) == "Run the check below your function stub first."
    assert repr(pictures.plane(two_level_seconds, panels.slow_sync(stub))).startswith("Explanations")
    task, mine = writing.find_task("A_errata", "agrees"), lambda said, found: agrees(said, found)
    assert not writing.checked(mine) and writing.checked(agrees)
    right = SimpleNamespace(state="wrong")
    judged = SimpleNamespace(own=task.own, judge=lambda names: right)
    writing.look_at(judged, {"agrees": mine})
    assert not writing.checked(mine)
    right.state = "right"
    writing.look_at(judged, {"agrees": mine})
    assert writing.checked(mine) and "By this rule 7 of 21" in repr(panels.judge(mine))
    assert "By your held_bytes" not in repr(panels.memory(held_bytes))


def test_the_suspects_are_computed_once_the_reader_has_chosen_one(monkeypatch, tmp_path):
    quiz = Quiz([load_chapter("A_errata").question("which-suspect", {})], "A_errata", Progress(tmp_path / "p.json"))
    assert len(suspects.table(two_level_seconds, quiz)) == 5, "without a reader"
    monkeypatch.setattr(suspects.book, "live", lambda: True)
    assert "Choose a candidate in the question above" in repr(suspects.table(two_level_seconds, quiz))
    assert quiz.chosen == ""
    quiz.answer("which-suspect", "a")
    rows = suspects.table(two_level_seconds, quiz)
    assert len(rows) == 5, "a wrong one is one"
    assert [row["candidate"] for row in rows if row["your choice"]] == [quiz.chosen.rstrip(".")]


def test_the_size_is_told_once_the_reader_has_computed_one(monkeypatch, tmp_path):
    question = load_chapter("A_errata").question("size-of-the-message", {})
    quiz = Quiz([question], "A_errata", Progress(tmp_path / "p.json"))
    monkeypatch.setattr(suspects.book, "live", lambda: True)
    assert "Compute the size in the question above" in repr(suspects.size(quiz))
    for typed, word in (("6", "goes through the port"), ("0.375", "not in bits"), ("1.25", "100 ms that were seen")):
        told = quiz.answer("size-of-the-message", typed)
        assert not told.right and word in told.why, typed
    assert quiz.answer("size-of-the-message", "3").right and "3.00 GB" in repr(suspects.size(quiz))
    parts = [float(ms) for ms in re.findall(r"\(([\d.]+) ms", repr(suspects.size(quiz)))]
    assert len(parts) == 3 and sum(parts) == pytest.approx(48.5, abs=0.05), "they add up to what the example expects"


def test_a_choice_comes_before_the_panel_and_is_kept_after_a_restart(monkeypatch, tmp_path):
    monkeypatch.setattr(asked_first.book, "live", lambda: True)
    monkeypatch.setattr(asked_first.Progress, "of_reader", lambda: Progress(tmp_path / "p.json"))
    asked = panels.failures()
    _, choice = asked.box.children
    choice.value = "80"
    assert asked.chosen == "80" and choice.disabled and "89.8" in asked.box.children[4].value
    assert "Your answer was: Nearly 80 %. With a failure every 50 minutes, 89.8 %" in asked.box.children[2].value
    choice.value = "90"
    assert asked.chosen == "80" and len(asked.box.children) == 5, "the first one counts"
    again = panels.failures()
    assert again.chosen == "80" and again.box.children[1].value == "80" and len(again.box.children) == 5
    assert panels.efficiency().chosen is None and len(panels.efficiency().box.children) == 2, "another question"


def test_each_first_answer_is_what_its_panel_shows():
    held, cliff, left = panels.memory(held_bytes).shown, panels.efficiency().shown, panels.failures().shown
    assert not any("ZeRO-1" in held.set(nodes=n).text.partition(" in 80 GB. By")[0] for n in (1, 5, 100, 128))
    assert (
        "second sentence holds" in cliff.set(shorter=14).text
        and "second sentence holds" not in cliff.set(shorter=13).text
    )
    assert "89.8% is done" in left.set(every=50).text
    assert cost.naive_bubble_fraction(4) == 0.75, "however many microbatches: the same"
    assert cost.ring_all_reduce_bytes(1 / 2, 4) < cost.ring_all_reduce_bytes(1, 8) / 2, "less than half"


@pytest.mark.ranks
def test_a_first_answer_gets_a_verdict(monkeypatch):
    monkeypatch.setattr(asked_first.book, "live", lambda: False)
    benches = [
        panels.pieces(lambda group, tp=2, pp=1: 0),
        panels.four_stages(lambda group, schedule="each alone", microbatches=4: 0),
    ]
    for asked in (panels.memory(held_bytes), panels.efficiency(), panels.failures(), *benches):
        assert asked.verdict == "" and asked.right in asked.choices and asked.found
        for id, said in asked.choices.items():
            asked.chosen = id
            wrong = f"✗ Your answer was: {said}. {asked.so}"
            assert asked.verdict == (f"✓ {said}: that is right." if id == asked.right else wrong)
    for asked in benches:
        asked.shown.close()


def test_the_picture_of_the_directions_waits_for_its_question_and_so_does_the_counter(monkeypatch, tmp_path):
    monkeypatch.setattr(panels.book, "live", lambda: True)
    monkeypatch.setattr(panels.Progress, "of_reader", lambda: Progress(tmp_path / "p.json"))
    wires = panels.apart("bytes", agrees)
    assert "Answer the question on NVLink above" in repr(pictures.both_directions(wires))
    assert "Answer the question" in repr(pictures.both_directions(panels.apart("bytes", lambda said, found: True)))
    wires.box.children[1].children[0].children[1].children[0].value = "18"
    assert "18 times a port" in pictures.both_directions(wires).sentence
    again = panels.apart("bytes", agrees)
    assert "18 times a port" in pictures.both_directions(again).sentence, "kept after a restart"
    waits = SimpleNamespace(answered=False)
    assert "Choose a candidate" in repr(suspects.counter(waits))
    assert "takes 84.6 ms, so none explains the 100 ms" in suspects.counter(SimpleNamespace(answered=True)).text


@pytest.mark.ranks
def test_the_code_of_the_pieces_shows_what_was_sent():
    def gradient_sum(group, tp=2, pp=1):
        return 0

    with closing(panels.pieces(gradient_sum).shown) as bench:
        assert bench.code.endswith("\nprint(run.trace.bytes_sent())  # by each rank\n")


def test_enter_on_an_empty_field_is_answered():
    question, row, answer = panels.apart("bytes", agrees).box.children[1].children[1].children
    field = row.children[0]
    field._handle_custom_msg({"event": "submit"}, [])
    assert "You gave no number yet" in answer.value
    field.value = "2.73"
    field._handle_custom_msg({"event": "submit"}, [])
    assert "✓ Right: 2.73 GB." in answer.value


def test_the_page_names_settings_that_are_stories():
    text = suspects.left(two_level_seconds).text
    told = re.findall(r"\| (.+) \| ([\d.]+) GB \| (at 60%|healthy) \| (both|a speed|an average): ", text)
    assert {kind for *_, kind in told} == {"both", "a speed", "an average"}, "one of each kind"
    for algorithm, size, uplinks, _ in told:
        assert suspects.story(two_level_seconds, float(size), 100 if uplinks == "healthy" else 60, algorithm).fits


def test_a_page_that_goes_on_with_the_books_function_does_not_call_it_the_readers():
    assert panels.judge(agrees).rule == "the book's agrees"
    assert panels.judge(passed(lambda said, found: agrees(said, found))).rule == "your agrees"
    assert "By the book's function" in pictures.phases(two_level_seconds).sentence
    assert "By your function" in pictures.phases(passed(lambda *given: two_level_seconds(*given))).sentence


def test_the_picture_of_the_case_is_of_the_readers_own_function():
    case = panels.slow_sync(two_level_seconds)
    assert "64.8 ms, 35.2 ms less than was seen" in repr(case)
    assert "takes 32.4 ms" in repr(panels.slow_sync(passed(lambda *given: two_level_seconds(*given) / 2)))
    size, speed, algorithm, shown = case.box.children
    before = shown.value
    size.value, speed.value = 3.55, 60
    assert shown.value != before and shown.value.count("✓") == 2 and "seen: 100 ms" in shown.value
    algorithm.value = panels.Case.algorithms[2]
    assert "ring over all GPUs, 47" in shown.value and "over all GPUs" not in before
    assert "46% busy" in pictures.phases(two_level_seconds).sentence


def test_the_case_keeps_what_was_found_and_the_plane_shows_it():
    case = panels.slow_sync(two_level_seconds)
    assert "No explanation that fits has been found yet." in repr(case)
    assert "circle" not in pictures.plane(two_level_seconds, case).svg
    for size, uplinks, algorithm in ((3.55, 60, 0), (3.56, 60, 0), (3, 100, 0), (0.75, 60, 2)):
        case.set(size, uplinks, panels.Case.algorithms[algorithm])
    for size in (3.5, 3.6):  # both fit, and neither is as near as what was found
        case.set(size, 60, panels.Case.algorithms[0])
    assert case.tally.count("GB,") == 2 and "3.55 GB, uplinks at 60%" in case.tally and "in both meanings" in case.tally
    assert case.tally in case._html()
    figure = pictures.plane(two_level_seconds, case)
    assert figure.svg.count("<circle") == 2 and "circles are the explanations that you have found" in figure.sentence


@pytest.mark.ranks
def test_a_program_that_was_edited_is_not_told_as_the_sources():
    edited = panels.three_ways(lambda group: collectives.all_reduce(torch.ones(8400), group, algorithm="ring"))
    with closing(edited.bench):
        told = str(edited.told())
    assert "sends exactly as much as plain data parallelism." in told and told.count("exactly as much") == 2
    assert "any number of ranks" not in told and "has `step` been changed?" in told


def test_an_agrees_that_stops_is_told_for_which_number():
    from labkit.chapters.cA_errata import you_write

    stopped = you_write.tried(lambda said, found: said.split(".")[1], "180", 1750.0)
    assert stopped == [None, "IndexError: list index out of range."]
    assert you_write.tried(agrees, "180", 1750.0) == [False, ""]
    with pytest.raises(NotImplementedError):
        you_write.tried(lambda said, found: (_ for _ in ()).throw(NotImplementedError()), "1", 1.0)


def test_explanations_wait_for_the_first_of_the_readers_or_for_a_second_run(monkeypatch):
    case = panels.slow_sync(two_level_seconds)
    assert "no candidate fits" in suspects.left(two_level_seconds, case).text, "nobody is there to search"
    monkeypatch.setenv("LABKIT_HEADLESS", "0")
    for shown in (suspects.left, pictures.plane):  # each is asked for by itself
        assert "Find one explanation" in shown(two_level_seconds, case)
        assert "Find one explanation" not in repr(shown(two_level_seconds, case))
    found = panels.slow_sync(two_level_seconds).set(3.55, 60, "two levels, NVLink sends 150 GB/s")
    assert "no candidate fits" in suspects.left(two_level_seconds, found).text


def test_what_the_opening_and_the_case_say_is_what_the_formulas_give():
    text = (Path(__file__).parents[2] / "notebooks/A_errata.ipynb").read_text()
    held = held_bytes(175e9, 1, 1024) / 1e9
    assert f"each GPU would need {held:.0f} GB" in text
    rings = cost.slow_sync.flat_seconds(6e9) / cost.slow_sync.RANKS_PER_NODE / 0.6
    assert abs(rings / suspects.SEEN - 1) < suspects.NEAR and cost.slow_sync.rings_seconds() * 2 < rings
    assert "Eight flat rings with 6 GB and uplinks at 60 % would fit as well." in text
