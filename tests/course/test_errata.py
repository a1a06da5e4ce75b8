"""Appendix A: every line is an error and no matter of rounding, leads to a place in the book, and is shown."""

import json
import math
import re
from decimal import ROUND_HALF_UP, Decimal
from types import SimpleNamespace

import pytest
import torch

import labkit
from labkit import collectives, cost
from labkit.book.drawing.svg import text_width
from labkit.chapters.cA_errata import agreeing, apart, opening, panels, pictures, sliding
from labkit.chapters.cA_errata.drawing import WIDTH
from labkit.chapters.cA_errata.you_write import agrees, held_bytes, two_level_seconds
from labkit.course import appendix_header, errata, load
from labkit.course.build import NOTEBOOKS
from labkit.course.chapter_file import load_chapter
from labkit.course.covered import Row, parse_reference, problems
from labkit.course.errata import COMES, _entry, groups, questions
from labkit.course.errors import CourseError
from labkit.course.file import Source, course_table, from_table

LINES = errata()
APPENDIX = load().appendix("A")
CELLS = json.loads((NOTEBOOKS / f"{APPENDIX.name}.ipynb").read_text(encoding="utf-8"))["cells"]


def ends(says):
    """The numbers of what a source says: one, or both ends of a range."""
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", says)]


@pytest.mark.parametrize("id", LINES)
def test_what_is_stated_and_what_is_computed_differ_by_more_than_rounding(id):
    claim = LINES[id].claim()
    assert claim.agrees is False
    assert min(abs(claim.found - end) for end in ends(claim.said)) >= 0.01 * max(map(abs, ends(claim.said))) or (
        claim.said.startswith(("above", "below"))  # then a bound itself is enough
    )


@pytest.mark.parametrize("id", LINES)
def test_a_line_leads_to_a_heading_that_exists(id):
    line = LINES[id]
    chapter = load().chapter(line.chapter)
    if chapter.written:
        assert re.fullmatch(r"\d\d \d+ .+", line.see), "a written chapter has sections"
        cells = json.loads((NOTEBOOKS / f"{chapter.name}.ipynb").read_text(encoding="utf-8"))["cells"]
        texts = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        assert line.heading in re.findall(r"^##? (.+)$", texts, flags=re.MULTILINE), line.see
        assert f"({chapter.name}.ipynb#" in pictures.link(line)
    else:
        assert line.see == f"{chapter.number:02d}", "a chapter to come has no headings yet"
        assert pictures.link(line) == ""


def test_lines_are_short_and_stand_once():
    assert len({(str(line.source), line.what) for line in LINES.values()}) == len(LINES)
    for line in LINES.values():
        assert "$" not in line.what + line.quote + line.place, "a notebook would take it for the start of a formula"
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", line.id)
        assert len(line.quote.split()) <= 8
        first, but = line.what.split(". But ")  # two sentences
        assert but.endswith(".") and max(len(first.split()), 1 + len(but.split())) <= 28, line.id


@pytest.mark.parametrize("id", LINES)
def test_a_line_is_as_far_off_as_its_group_says_and_its_cell_computes_it(id):
    line, shown = LINES[id], repr(panels.computed(id))
    assert line.comes in COMES and shown.endswith(f"{pictures.COMES[line.comes]}: {pictures.told(line)}")
    assert line.kind != "small" or 0.7 < line.factor < 1.2, "a small slip is small"
    assert apart.pasted(line) in shown
    *code, last = apart.pasted(line).split("\n")
    names = {}
    exec("\n".join(code), names)
    assert eval(last, names) == pytest.approx(line.claim().found), "the pasted cell needs no other"
    assert apart.value(apart.pasted(line)) == pytest.approx(line.claim().found), "and it runs below its line"


@pytest.mark.parametrize("id", apart.pencils())
def test_a_pencil_comes_to_our_number_and_the_question_has_what_goes_in(id):
    line, question = LINES[id], apart.pencils()[id]
    assert eval(question.way, {"ceil": math.ceil}) == pytest.approx(line.claim().found, rel=0.001)
    assert question.ask.endswith("?") and line.unit.split("{}")[0].split()[0] in question.ask.replace("percentage", "%")
    assert apart.worked(line)[0].endswith("(from the sentence itself)") == (line.comes == "then")
    assert line.factor and question.written in repr(panels.apart(line.kind)) and "`" not in question.ask
    told = dict.fromkeys((one["why"] for one in question.slips), 0)
    for slip in question.slips:
        value = eval(slip["way"], {"ceil": math.ceil, "floor": math.floor})
        right, said = apart.judged(line, f"{value:.6f}".rstrip("0").rstrip("."), agrees)
        assert not right and said == slip["why"], (slip, said)
        told[said] += 1
    assert all(told.values()) and question.hint.endswith((".", "?"))
    assert line.what.partition(". But ")[2] not in apart.asked(line), "why it cannot be comes after the number"


def test_two_groups_are_for_a_pencil_and_three_have_a_page_on_which_right_and_wrong_are_mixed():
    assert [LINES[id].kind for id in apart.pencils()] == ["bytes"] * 2 + ["time"] * 3
    file = load_chapter(APPENDIX.name)
    for id in ("page-memory", "page-failures", "page-order", "unmarked-page"):
        question = file.question(id, {}, 0)
        wrong = [choice.text for choice in question.choices if choice.right]
        assert 1 < len(wrong) < len(question.choices) > 4, id
        assert question.mark(wrong).right, id
        assert not any('"' in choice.text for choice in question.choices), f"{id}: quotation marks would give it away"


def test_the_questions_find_nearly_every_line_and_each_finds_some():
    first = [e.caught[0] for e in LINES.values() if e.caught]
    assert set(first) == set(questions()) and [id for id, e in LINES.items() if not e.caught] == ["no-infinity"]
    (habits,) = ["".join(cell["source"]) for cell in CELLS if cell["id"] == "habits"]
    assert {question for question in questions().values() if f"**{question}**" in habits} == set(questions().values())
    assert "find all of our findings but one, for which" in habits


def test_no_percentage_does_what_the_digits_do():
    shown = panels.judge(agrees)
    assert "7 of 21" in shown.sentence and "The 14 that do not are all findings" in shown.sentence
    assert "It lets 0 of the 14 findings through, and refuses 2 right ones" in shown.use(1).sentence
    assert "It lets 2 of the 14 findings through, and refuses 1 right one." in shown.use(5).sentence
    right, wrong = (
        [abs(one.far) for one in agreeing.numbers() if (one.where in LINES) is listed] for listed in (False, True)
    )
    assert sum(far < max(right) for far in wrong) >= 2, "no percentage at all separates them"
    assert shown.sentence.endswith(
        "up to 8.6% apart here, and a wrong one as little as 1.5%, so no percentage separates them."
    )
    for tenths in range(1, 251):
        assert "no percentage separates them" in shown.use(tenths / 10).sentence
    assert all(
        number in shown.found for number in ("4 stands", "from 3.5 to 4.5", "4.375", "8.6 %", "1104", "1088", "1.5 %")
    )
    assert shown.use(20).picture().count("<path") == 21, "each number has its mark"
    rule, within, table = shown.use().box.children
    assert "stroke-dasharray" not in table.value
    within.value = 20
    assert rule.value == "a percentage" and "stroke-dasharray" in table.value
    assert "lets 5" in table.value and table.value.index(">1104<") < table.value.index(">4000<"), "the nearest first"


def test_a_line_names_the_inputs_from_which_its_number_follows():
    hop, wire = LINES["latency-bound"], cost.wires.NVLINK
    assert hop.values["latency"] == f"{wire.alpha * 1e6:.1f} * US" and "3.4 µs of latency (assumed)" in hop.what
    assert hop.values["bandwidth"] == f"{wire.bandwidth / 1e9:.0f} * GB" and "at its 450 GB/s" in hop.what
    assert "which we read as above 50 %." in panels.computed("latency-bound").words()
    assert "which we read as error above 0." in panels.computed("equal-tokens").words()
    assert "we read" not in panels.computed("mebibytes").words()


def test_bert_large_does_not_fit_in_gigabits_either():
    base, large = (cost.ring_all_reduce_bytes(4 * n, 64) / 0.050 / 1e9 for n in (110e6, 340e6))
    assert not 100 <= large <= 200 and 100 <= 8 * base <= 200 and not 100 <= 8 * large <= 200
    assert "would fit BERT-Base, and be too small for BERT-Large" in LINES["bert-links"].what


def test_how_far_apart_two_numbers_are_follows_from_what_is_shown():
    for one in agreeing.numbers():
        if one.found:
            assert agreeing.percent(abs(one.far)) == agreeing.percent(abs(float(one.said) / float(one.shown) - 1)), one


def test_what_we_find_rounds_to_the_digits_of_the_source_as_one_rounds_at_school():
    for one in agreeing.numbers():
        digits = Decimal(1).scaleb(-len(one.said.partition(".")[2]))
        shown = Decimal(one.shown).quantize(digits, ROUND_HALF_UP)
        assert (shown == Decimal(one.said)) == agrees(one.said, one.found), one
    bubble = agreeing.Number("003 1.4.2.2", "bubble", "%", "17.9", 100 * cost.bubble_fraction(8, 32))
    assert bubble.shown == "17.949", "17.95 would round to 18.0"


def test_what_other_numbers_of_a_source_give_is_not_called_right():
    """Lines that need the 3.5 s, the 2.1 s as a speed or the 18 minutes, which other lines reject; and rates."""
    disputed = {"half-at-8192", "above-seventy", "rejoin-left-out", "eighteen-minutes", "single-digits", "nodes-136"}
    assert {LINES[id].comes for id in disputed} == {"elsewhere"}
    assert all("3.5" not in line.found or line.comes == "elsewhere" for line in LINES.values())
    (words,) = ("".join(cell["source"]) for cell in CELLS if cell["id"] == "small-text")
    assert "*By another place*: it comes from other lines of the same source" in words
    marks = {mark.lower() for mark in re.findall(r"^- \*(.+)\*:", words, flags=re.MULTILINE)}
    assert marks == set(pictures.COMES.values()), "told as they are shown"


def test_lines_on_alignment_and_on_formats_are_about_what_the_source_says():
    near, far = (cost.textbook.decades_apart(name, "E4M3") for name in ("FP16", "BF16"))
    assert 4 < near < 5 < far and cost.textbook.decades_apart("FP16", "E5M2") < 1, "with E5M2 not even FP16 fits"
    assert cost.textbook.FORMATS["BF16"][0] == cost.textbook.FORMATS["FP32"][0]
    generated = cost.kv_cache_bytes(80, 8, 128, 1024, 256) / 1e9
    assert f"{generated:.1f}" == LINES["prompts-in-the-cache"].says
    parts = [cost.time_weighted_mfu([(0.6, 0), (0.4, mfu)]) for mfu in (0.40, 0.55)]
    assert parts == [pytest.approx(0.16), pytest.approx(0.22)] and "makes 16 to 22 %" in LINES["part-of-the-time"].what
    assert 0.15 < min(parts) < max(parts) < 0.25, "as its table says"
    assert LINES["part-of-the-time"].claim().found == pytest.approx(100 * parts[1])
    assert 10 < LINES["fixed-lengths"].claim().found < 50, "its own variance"
    used = [
        cost.fleet_utilization(60, 40, 1000, cost.separate_seconds(60, 40, generators, 1000 - generators, False))
        for generators in range(1, 1000)
    ]
    assert LINES["pools-that-wait"].claim().found == pytest.approx(100 * max(used), rel=1e-4)


def test_two_times_of_one_sentence_have_one_label():
    against = {"seventy-times", "superlinear", "bound-without-rate", "each-microbatch"}
    assert {id for id, line in LINES.items() if line.comes == "then"} == against


def test_a_small_example_shows_most_findings_about_order():
    order = [line for line in LINES.values() if line.kind == "order"]
    assert 2 * sum("small" in line.caught for line in order) > len(order)
    assert sum(line.caught[:1] == ("small",) for line in order) < len(order), "several, and not most, are about events"


def test_a_line_of_the_box_has_inputs_and_computes_what_the_library_does():
    for _, id in panels.changeable():
        assert re.search(r"\d", LINES[id].found + "".join(LINES[id].values.values())), id
    whole, smaller = cost.Cluster().local_batches("ntp")[:2]
    found = {id: LINES[id].claim().found for id in ("nodes-136", "another-drop", "daily-checkpoint")}
    assert found["nodes-136"] == cost.topology.HpnPorts().connected_gpus
    assert found["another-drop"] == pytest.approx(100 * (1 - smaller / whole))
    assert found["daily-checkpoint"] == pytest.approx(cost.lost_work(interval=24, mtbf=4))


def test_a_claim_does_not_say_its_number_twice():
    for id, twice in {"six-times-longer": "(6 times)", "where-warmup-begins": "(0 times", "no-infinity": '("overflow',
                      "equal-tokens": '("must', "two-of-three": "(2 "}.items():  # fmt: skip
        assert twice not in pictures.claimed(LINES[id]), id
    assert pictures.claimed(LINES["fifty-gigabytes"]).endswith("nothing recomputed (50 GB).")
    assert pictures.claimed(LINES["bound-without-rate"]).endswith("(2 times).")


def test_the_sliders_of_memory_and_of_failures_begin_at_the_numbers_of_their_lines():
    memory, failure = panels.memory(held_bytes).shown, panels.failures().shown
    row = next(row for row in memory.table() if row[""] == "ZeRO-1")
    assert sum(row[f"{item} (GB)"] for item in sliding.ITEMS) == pytest.approx(
        LINES["zero1-on-eighty"].claim().found, 1e-4
    )
    assert sum(row["minutes"] for row in failure.table()) == pytest.approx(18)
    assert f"{LINES['rejoin-left-out'].claim().found:.1f}% is done" in failure.text
    assert "80.1% is done" in failure.set(rejoin=0).text and "89.8%" in failure.set(rejoin=100, every=50).text
    assert "702 GB of the 175B" in memory.text and "2.73 GB" in memory.text
    assert (
        "Only ZeRO-3 fits in 80 GB." in memory.set(nodes=5).text and "None of the four fits" in memory.set(nodes=4).text
    )
    assert (
        "None of the four fits" in sliding.held(held_bytes, 175, 34).sentence
        and "Only ZeRO-3 fits in 80 GB." in sliding.held(held_bytes, 175, 35).sentence
    )
    assert "All four fit in 80 GB." in memory.set(nodes=1, billions=5).text
    assert "ZeRO-1, ZeRO-2 and ZeRO-3 fit in 80 GB." in memory.set(billions=6).text


def test_the_two_sentences_of_the_cliff_need_messages_that_are_far_shorter():
    asked = panels.efficiency()
    told = asked.shown
    assert "Up to 614 GPUs" in told.text and told.text.count("does not hold") == 2
    holds = {k: told.set(shorter=k).text.count("holds") for k in range(1, 21)}
    assert [k for k, many in holds.items() if many == 1] == [14, 15], "the second needs less than the first"
    assert [k for k, many in holds.items() if many == 2] == [16, 17, 18, 19, 20]
    assert "a factor of 13.3, to 0.26 s" in asked.found and "the first one by 15.6, to 0.225 s" in asked.found
    assert sliding.scaling(3.5 / 13.4).sentence.count("sentence holds") == 1 and asked.choices["13"] == "About 13"
    assert sliding.scaling(0.2249).sentence.count("sentence holds") == 2
    assert sliding.scaling(0.2251).sentence.count("sentence holds") == 1


@pytest.mark.ranks
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 1), (4, 1), (4, 2)])
def test_a_piece_of_the_gradient_is_summed_with_those_who_have_the_same(tp, pp):
    (source,) = ["".join(cell["source"]) for cell in CELLS if cell["id"] == "pieces"]
    names = {"torch": torch, "collectives": collectives}
    exec(source.partition("panels.")[0], names)
    run = labkit.launch(names["gradient_sum"], 8, tp, pp)
    said, same = pictures.piece(run, tp, pp).sentence, 8 // (tp * pp)
    nbytes = 4 * 840_000 // (tp * pp)
    sent = cost.ring_all_reduce_bytes(nbytes, same) if same > 1 else 0
    assert all(0 <= each - sent < 400 for each in run.trace.bytes_sent())
    assert ("no sum to make" in said) == (same == 1) and ("whole model" in said) == (tp * pp == 1)
    run.results[0] *= 2  # a gradient that is not cut
    assert "has gradient_sum been changed?" not in said
    assert (tp * pp == 1) or "has gradient_sum been changed?" in pictures.piece(run, tp, pp).sentence
    assert ("5.88 MB" in said) == (tp * pp != 8) or "with all 8 ranks, the rank would send 5.88 MB" in said


@pytest.mark.ranks
@pytest.mark.parametrize(("stage", "ranks"), [(1, 4), (2, 2), (3, 4)])
def test_the_program_of_the_page_measures_what_held_bytes_says(stage, ranks):
    (source,) = ["".join(cell["source"]) for cell in CELLS if cell["id"] == "held-ranks"]
    names = {"torch": torch, "chapter": SimpleNamespace(check=lambda name: held_bytes)}
    exec(source.partition("panels.")[0], names)
    run = labkit.launch(names["state"], ranks, stage)
    shown = pictures.held(run, held_bytes, stage)
    assert f"held {held_bytes(512, stage, ranks):,.0f} bytes" in shown.sentence and len(shown.rows) == ranks
    parts = ("parameters (bytes)", "gradients (bytes)", "optimizer state (bytes)")
    whole = dict(zip(parts, (1024, 1024, 6144), strict=True))
    assert [name for name in parts if shown.rows[0][name] < whole[name]] == list(parts[3 - stage :]), (
        "these are sharded"
    )
    assert "That is what" in pictures.held(run, held_bytes, stage).sentence
    assert "has state been changed?" in pictures.held(run, lambda *asked: 1.0, stage).sentence


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("way", "many", "told"),
    [(panels.ALONE, 3, "120 ms"), (panels.ALONE, 1, "40 ms"), (panels.PIPED, 4, "70 ms"), (panels.PIPED, 12, "150 ms")],
)
def test_four_stages_idle_as_the_sentence_and_as_the_formula_say(way, many, told):
    (source,) = ["".join(cell["source"]) for cell in CELLS if cell["id"] == "four-stages"]
    names = {"torch": torch}
    exec(source.partition("panels.")[0], names)
    run = labkit.launch(names["batch"], 4, way, many, clock="virtual")
    part = cost.naive_bubble_fraction(4) if way == panels.ALONE else cost.bubble_fraction(4, many)
    shown = pictures.stages(run)
    assert shown.sentence.startswith(f"In {told} a stage idles for {part:.0%} of the time")
    assert [row["computing (ms)"] for row in shown.rows] == pytest.approx([10 * many] * 4)
    assert sum(row["idle (%)"] for row in shown.rows) / 4 == pytest.approx(100 * part, abs=0.1)
    asked = panels.four_stages(names["batch"])
    asked.shown.close()
    after = asked.found
    assert f"{100 * cost.naive_bubble_fraction(4):.0f} %" in after, after
    assert f"{100 * cost.bubble_fraction(4, 32):.0f} %" in after


def test_the_list_is_found_among_numbers_that_agree():
    mixed = agreeing.numbers()
    wrong = [one for one in mixed if not agrees(one.said, one.found)]
    assert {one.where for one in wrong} == {one.where for one in mixed} & set(LINES)
    assert len(mixed) - len(wrong) == len(agreeing.agreeing()) == 7 < len(wrong)
    named = {one.where for one in wrong}
    assert not named & {*apart.pencils(), *agreeing.LATER}, "what a reader computes later is not shown before"
    assert named == set(agreeing.NAMES) and len({one.what for one in mixed}) == len(mixed)


@pytest.mark.parametrize("id", ["bert-link", "x", 3, None, ""])
def test_what_is_not_there_is_said_in_a_sentence(id):
    for said in (panels.apart(id), panels.computed(id), pictures.lines(id)):
        assert repr(said).startswith("There is no ") and repr(said).endswith(".")
    assert "did you mean 'bert-links'" in repr(panels.computed("bert-link"))
    assert [line.id for line in pictures.lines("Order")] == [line.id for line in pictures.lines("order")]


@pytest.mark.parametrize("id", ["rows-of-a-table", "gpus-of-the-pools", "between-two-failures"])
def test_a_known_slip_is_told_its_reason(id):
    slips = {"rows-of-a-table": {"10000": "one in how many", "100": "five orders", "100000": "divide by 100"},
             "gpus-of-the-pools": {"256": "the whole cluster", "64": "all three degrees", "32": "one replica",
                                   "1": "1 GPU is not it",
                                   "224": "one replica of the policy leaves", "8": "one of the three degrees"},
             "between-two-failures": {"18": "what it says", "626": "thousands of servers", "6.26": "a server has 8",
                                      "28.75": "failures a day", "400.7": "12,500 servers"}}  # fmt: skip
    question = load_chapter(APPENDIX.name).question(id, {})
    right = {"rows-of-a-table": "1000", "gpus-of-the-pools": "0", "between-two-failures": "50.1"}[id]
    assert question.mark(right).right
    for typed, word in slips[id].items():
        told = question.mark(typed)
        assert not told.right and word in told.why, (typed, told.why)
    assert question.mark("123456").why.endswith("?") or "Divide" in question.mark("123456").why, "no mere 'not it'"


@pytest.mark.ranks
@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_ranks_say_which_sentence_on_zero1_is_right(size, monkeypatch):
    (source,) = ["".join(cell["source"]) for cell in CELLS if cell["id"] == "first-try"]
    names, shown = {}, []
    monkeypatch.setattr(panels, "three_ways", shown.append)
    exec(source, names)
    for way, ratio in (("plain data parallelism", "as the formula"), ("ZeRO-1, as the table says", "as the formula"),
                       ("ZeRO-1, as the text says", "1.5 times what plain")):  # fmt: skip
        figure = pictures.sent(labkit.launch(opening.programs(names["step"])[way], size), way)
        assert ratio in figure.sentence, (way, figure.sentence)
        assert all((one in str(figure.rows)) == (one in (way, opening.PROGRAMS[0])) for one in opening.PROGRAMS), (
            "no other"
        )
        steps = [row["step"] for row in figure.rows if row["program"] == f"{way}, in this run"]
        assert steps == {"pl": ["reduce-scatter of gradients", "all-gather of gradients"], "ta": ["reduce-scatter of "
                         "gradients", "all-gather of weights"], "te": ["reduce-scatter of gradients", "all-gather of "
                         "gradients", "broadcast of weights"]}[way.removeprefix("ZeRO-1, as the ")[:2]]  # fmt: skip
        assert len({row["bytes"] for row in figure.rows}) == 1, "each step sends (N - 1) / N of the gradient"


def test_all_sources_and_all_groups_have_lines():
    assert {line.source.seed for line in LINES.values()} == {seed.id for seed in load().seeds}
    assert {line.kind for line in LINES.values()} == set(groups())


def test_the_notebook_shows_every_group_under_its_name_and_all_questions():
    texts = ["".join(cell["source"]) for cell in CELLS]
    assert texts[0] == appendix_header("A")
    headings = re.findall(r"^## \d+ (.+)$", "\n".join(texts), flags=re.MULTILINE)
    assert set(groups().values()) - {groups()["small"]} <= set(headings)
    assert "pictures.everything()" in texts
    assert [name for name, _ in pictures.everything()] == list(groups().values())
    folded = pictures.everything()._repr_markdown_()
    assert "<summary>Bytes and bandwidth: 10 findings</summary>" in folded and "milliseconds: 1 finding<" in folded
    assert sum(len(lines) for _, lines in pictures.everything()) == len(LINES)
    asked = [id for text in texts for id in re.findall(r'chapter\.quiz\("(.+)"\)', text)]
    assert sorted(asked) == sorted(load_chapter(APPENDIX.name).questions)
    (line,) = [text for text in texts if text.startswith("line: str")]
    assert re.search(r'"(.+)"', line)[1] in LINES


def test_an_appendix_keeps_to_the_budgets_of_a_chapter_where_they_make_sense():
    """Something to touch first, three functions to write, nothing to predict, and cells as narrow and as short."""
    cells = [cell for cell in CELLS if cell["cell_type"] == "code"]
    folded = [cell["metadata"].get("jupyter", {}).get("source_hidden", False) for cell in cells]
    code = ["".join(cell["source"]) for cell, hidden in zip(cells, folded, strict=True) if not hidden]
    told = "\n".join(code)
    assert "panels.three_ways(" in code[0] and told.count("chapter.check(") == 3 and "chapter.predict(" not in told
    kept = [[line for line in text.split("\n") if line.strip() and not re.match(r"from \S+ import |import |### ",
             line.strip())] for text in code]  # fmt: skip
    assert len(CELLS) <= 75 and all(len(lines) <= 15 for lines in kept)
    assert max(len(line) for text in code for line in text.split("\n")) <= 88
    assert APPENDIX.name not in {chapter.name for chapter in load().chapters}


def test_the_table_has_links_and_its_words_have_none():
    group = pictures.lines("order")
    assert len(group._repr_markdown_().split("\n")) == len(group) + 6, "a head, and what folds it"
    assert group._repr_markdown_().startswith(f"<details><summary>{len(group)} findings")
    assert "(05_zero_and_fsdp.ipynb#6-A-step-of-FSDP)" in group._repr_markdown_()
    assert "[ch. 5, A step of FSDP]" in group._repr_markdown_(), "a chapter, and no section of the appendix"
    assert "| It says" not in pictures.lines("time")._repr_markdown_().replace("| It says w", "")
    assert "two-of-three" in repr(group) and "ipynb" not in repr(group)
    factors = [abs(math.log(line.factor)) for line in group if line.factor]
    assert factors == sorted(factors, reverse=True), "what is furthest off comes first"
    told = repr(panels.computed("accumulation-both"))
    assert "inside = 2 * 7 / 8 * 3 * GB" in told and "by another place: 0.162 % of the computing" in told


def test_the_questions_come_before_every_table():
    ids = [cell["id"] for cell in CELLS]
    asked = [
        id
        for id in ids
        if id.startswith("quiz-")
        and id not in ("quiz-case", "quiz-suspect", "quiz-unmarked")
        and not id.endswith("-page")
    ]
    assert max(map(ids.index, asked)) < ids.index("all-findings")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"source": "003 9.9"}, "no section of a source"),
        ({"kind": "bites"}, "is of kind 'bites': use one of bytes"),
        ({"sees": "03"}, "unexpected keyword"),
        ({"caught": ["who"]}, "is caught by who: use what, all"),
        ({"comes": "wrong"}, "what we find is 'wrong': use one of right, then, elsewhere"),
    ],
)
def test_a_line_that_breaks_a_rule_is_refused(change, why):
    row = {"id": "x", "kind": "bytes", "source": "003 1.1", "place": "p", "what": "w", "says": "1", "found": "2",
           "comes": "right", "see": "03"}  # fmt: skip
    assert _entry(dict(row)).claim().agrees is False
    with pytest.raises(CourseError, match=why):
        _entry({**row, **change})


def test_an_expression_that_fails_says_where():
    with pytest.raises(CourseError, match="errata, x"):
        _entry(
            {"id": "x", "kind": "bytes", "source": "003 1.1", "place": "p", "what": "w", "says": "1",
             "found": "cost.nothing", "comes": "right", "see": "03"}
        ).claim()  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [("appendix:A#nvlink-both", ""), ("appendix:A#case-suspects", ""), ("appendix:A#bytes-and-bandwidth", ""),
     ("appendix:A#nothing-there", "leads nowhere"), ("appendix:A", "leads nowhere")],
)  # fmt: skip
def test_coverage_may_name_a_line_a_cell_or_a_heading(text, problem):
    assert str(parse_reference(text)) == text
    row = Row("system", Source("003", "1.1"), "a thing", (parse_reference(text),), "simulated")
    found = problems(load(), (row,), NOTEBOOKS)
    assert problem in found[0] if problem else found == []


def test_an_appendix_without_a_field_is_refused():
    table = course_table()
    assert [appendix.letter for appendix in from_table(table).appendices] == ["A"]
    table["appendix"][0].pop("about")
    with pytest.raises(CourseError, match="an appendix has letter, name"):
        from_table(table)
    with pytest.raises(CourseError, match="no appendix 'B': there is A"):
        load().appendix("B")


def test_pictures_have_large_dark_text_on_white():
    moved = (
        sliding.held(held_bytes, 175, 1024),
        sliding.held(held_bytes, 1, 1),
        sliding.scaling(3.5),
        sliding.one_failure(18, 100, 12),
    )
    for figure in (pictures.both_directions(), *moved):
        sizes = [float(size) for size in re.findall(r'<text[^>]* font-size="([\d.]+)"', figure.svg)]
        assert len(sizes) == figure.svg.count("<text ") and min(sizes) >= 13.5, "none has the size that others have"
        right = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', figure.svg)
        ends = [float(x) for x in re.findall(r' x2="([\d.]+)"', figure.svg)] + [float(x) + float(w) for x, w in right]
        assert 0 < max(ends) <= WIDTH, "nothing is cut at the right"
        assert 'fill="#fff"' in figure.svg and "lk-ink" not in figure.svg and 'fill="#1a1a1a"' in figure.svg


@pytest.mark.parametrize("shorter", range(1, 21))
def test_nothing_lies_on_the_curve_of_the_cliff_but_the_two_places(shorter):
    svg = sliding.scaling(sliding.MESSAGES / shorter).svg
    curve = re.findall(r'<line x1="([\d.]+)" y1="([\d.]+)" x2="([\d.]+)" y2="([\d.]+)"[^>]*stroke-width="3"', svg)
    for name in ("first", "second"):
        x, y, rest = re.search(rf'<text x="([\d.]+)" y="([\d.]+)"([^>]*)>{name}<', svg).groups()
        wide = text_width(name, 13.5)
        left = float(x) - wide * ("end" in rest)
        beside = [float(y1) for x1, y1, *_ in curve if left - 8 < float(x1) < left + wide + 8]
        assert beside and not any(float(y) - 12 < one < float(y) + 3 for one in beside), (name, shorter)
        (below,) = re.findall(rf'<text [^>]*y="([\d.]+)"[^>]*>[◆◇] {name}', svg)
        assert float(below) > max(float(y2) for *_, y2 in curve) + 19


def test_the_two_lines_of_the_counter_have_their_names_apart():
    svg = pictures.phases(two_level_seconds).svg
    y = {name: float(re.search(rf'y="([\d.]+)"[^>]*>{name}', svg)[1]) for name in ("average", "counter")}
    assert y["average"] - y["counter"] > 20, "each on its own side of its line"


def test_the_pairs_of_pages_are_those_of_the_list_and_the_sum_of_their_question_is_right():
    question = load_chapter("A_errata").question("two-pages", {})
    wrong = " ".join(choice.text for choice in question.choices if choice.right)
    assert "0.1 to 0.5 ms over NVLink, and 2 to 10 ms" in wrong and LINES["twenty-or-nine"].says == "20"
    assert "22,000 dollars for 19 hours" in wrong and LINES["half-the-gpus"].says == "22000"
    assert "begins at 0" in wrong and LINES["where-warmup-begins"].says == "0"
    for id, told in (("twenty-or-nine", "9 times as fast"), ("half-the-gpus", "23,750 dollars")):
        assert told in question.explanation and f"{LINES[id].claim().found:,.0f}" in told
    fine = " ".join(choice.text for choice in question.choices if not choice.right)
    assert f"is {100 * cost.bubble_fraction(8, 32):.1f} %" in fine and "leaves 1.75 GB" in fine
    (text,) = ["".join(cell["source"]) for cell in CELLS if cell["id"] == "two-pages-text"]
    assert "Eleven findings" in text and sum(e.caught[0] == "page" for e in LINES.values() if e.caught) == 11


def test_what_the_page_says_of_its_sliders_is_what_they_say():
    texts = {"one-gpu-text": panels.memory(held_bytes).found, "one-failure-text": panels.failures().found}
    bytes_of = {stage: cost.zero_state_bytes(175e9, 1, stage) for stage in (1, 3)}
    assert f"35 GPUs of 80 GB hold the {bytes_of[3] / 1e9:,.0f} GB of state, so five nodes" in texts["one-gpu-text"]
    assert 80e9 * 35 >= bytes_of[3] > 80e9 * 34 and -(-35 // 8) == 5
    assert f"{175e9 * 4 / 1e9:.0f} GB of parameters and gradients stay" in texts["one-gpu-text"]
    assert (
        cost.state_bytes(5e9) == 80e9
        and "5 billion parameters: at 16 bytes each they fill the 80 GB" in texts["one-gpu-text"]
    )
    many = re.search(r"([\d.]+%) is done", panels.failures().shown.set(replicas=48).text)[1]
    assert f"with 48 it is {many}." in texts["one-failure-text"]
    for settings in ({"every": 18, "rejoin": 0}, {"every": 50, "rejoin": 100}):
        done = re.search(r"([\d.]+)% is done", panels.failures().shown.set(**settings).text)[1]
        assert f"{done} %" in texts["one-failure-text"], settings
