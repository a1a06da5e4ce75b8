"""Every question, fallacy, pitfall and system of the sources has an answer, and the answer is where we say."""

import importlib
import json
import re
from collections import Counter

import pytest

from labkit.course import coverage, covered, load
from labkit.course.build import NOTEBOOKS
from labkit.course.covered import KINDS, WAYS, Reference, Row, parse_reference, places, problems, questions
from labkit.course.errors import CourseError
from labkit.course.file import Source, course_table, from_table
from labkit.course.started import DOORS, evidence

# Counted by reading the answers of source 003 ("Self-Check: Answer", one "Learning Objective:" after each answer),
# block by block: the blocks close sections 1.1 to 1.11.
SELF_CHECK = {
    "1.1": 5, "1.2": 6, "1.3": 6, "1.4": 6, "1.5": 3, "1.6": 6, "1.7": 5, "1.8": 3, "1.9": 3, "1.10": 5, "1.11": 3,
}  # fmt: skip
# Counted in the same text: the goals at its beginning; the headings "Fallacy:" and "Pitfall:" of section 1.10; the
# "Common pitfall" line of each definition; the boxes "Checkpoint 1.1" to "1.4".
COUNTED = {"goal": 7, "objective": 51, "fallacy": 5, "pitfall": 5, "misconception": 11, "checkpoint": 4}
SYSTEMS = """
NTP-PW; DP-DROP; CloudMatrix; NVL72; HPN; FALCON; GH200; NTP in Megatron; FT-HSDP; FTAR,; Minder; Chubby and
Delos; Oobleck; ReCycle; Bamboo; Horovod; GPUDirect; BlueConnect; CheckFreq; DistBelief; NVLink; InfiniBand;
NCCL; DistributedSampler; Baidu; GPT-2; ZeRO; FSDP; LARS; LAMB; signSGD; Deep Gradient Compression; PowerSGD;
QSGD; Local SGD; GPipe; PipeDream; 1F1B; zero-bubble; Megatron-LM; Llama 3 405B; Ring Attention; FlashAttention;
parameter server; DLRM; TorchRec; GShard; Switch Transformer; Mixtral; Transformer Engine; Blackwell;
ParallelismOptimizer; PaLM; PPO; DPO; InstructGPT; Llama-2-70B; ZeRO-Offload; Young-Daly; MobileNet; torchrun;
DeepSpeed; HYBRID_SHARD; torch.distributed"""


def test_no_question_fallacy_or_pitfall_is_missing():
    rows = Counter(row.kind for row in coverage())
    assert {kind: rows[kind] for kind in COUNTED} == COUNTED
    assert set(rows) == set(KINDS)


def test_every_block_of_self_check_questions_is_there():
    blocks = Counter(row.source.section for row in coverage() if row.kind == "objective")
    assert blocks == SELF_CHECK
    assert sum(SELF_CHECK.values()) == COUNTED["objective"]
    assert {row.source.seed for row in coverage() if row.kind == "objective"} == {"003"}


def test_the_challenges_of_every_other_source_are_there():
    """004 lists six in a table; 001, section 3.6, three demands and three difficulties; 002 has four techniques."""
    challenges = Counter(row.source.seed for row in coverage() if row.kind == "challenge")
    assert challenges == {"001": 6, "002": 4, "004": 6}


@pytest.mark.parametrize("name", " ".join(SYSTEMS.split()).split("; "))
def test_a_system_that_the_sources_name_is_there(name):
    assert any(name in row.what for row in coverage() if row.kind == "system"), name


@pytest.mark.parametrize(("kind", "count"), [("table", 10), ("figure", 18)])
def test_every_numbered_table_and_figure_of_the_textbook_is_there(kind, count):
    """003 numbers its tables from 1 to 10 and its figures from 1 to 18."""
    found = [row.what for row in coverage() if row.kind == kind and row.source.seed == "003"]
    assert [re.match(rf"{kind} (\d+): ", what)[1] for what in found] == [str(n) for n in range(1, count + 1)]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"covered_by": ["chapter:03#the-ring"]}, "how is 'a ring' .* answered"),
        ({"covered_by": ["chapter:03#the-ring"], "how": "half"}, "'half' is none of"),
        ({"covered_by": ["planned:08/staleness"], "how": "real"}, "only planned"),
        ({"covered_by": [], "how": "real"}, "nothing covers"),
    ],
)
def test_a_row_that_does_not_say_how_it_is_answered_is_refused(monkeypatch, entry, why):
    row = {"source": "003 1.1", "what": "a ring"} | entry
    monkeypatch.setattr(covered, "read_toml", lambda path: {"system": [row]})
    with pytest.raises(CourseError, match=why):
        coverage.__wrapped__()


def test_all_sources_name_systems_and_no_row_stands_twice():
    assert {row.source.seed for row in coverage() if row.kind == "system"} == {seed.id for seed in load().seeds}
    twice = [key for key, count in Counter((row.kind, row.source, row.what) for row in coverage()).items() if count > 1]
    assert not twice
    for row in coverage():
        assert len(row.what.split()) <= 22 and not row.what.endswith("."), row.what


def test_every_reference_leads_somewhere():
    assert problems(load(), coverage(), NOTEBOOKS) == []


def test_questions_cite_sections_that_exist():
    course = load()
    seeds = {seed.id for seed in course.seeds}
    for chapter in course.chapters:
        for question in questions(chapter):
            source = Source.parse(question["source"])
            if source.seed in seeds:
                assert course.cites(source), f"{chapter.name}: question {question['id']} cites {source}"


@pytest.mark.parametrize(
    "text",
    ["chapter:3#x", "quiz:03#ring", "chapter:03/ring", "book:03#x", "chapter:03#", "quiz:03/Ring", "planned: 03", ""],
)
def test_what_is_no_reference_is_refused(text):
    with pytest.raises(CourseError, match="is no reference"):
        parse_reference(text)


@pytest.mark.parametrize(
    "text", ["chapter:03#the-ring", "quiz:03/ring-bytes", "exercise:05/a_b", "planned:07/x", "planned:07"]
)
def test_a_reference_is_written_as_it_was_read(text):
    assert str(parse_reference(text)) == text


@pytest.fixture
def small(tmp_path):
    """A course in which chapter 3 is the only one written, with a notebook of one section and an exercise."""
    table = course_table()
    for chapter in table["chapter"]:
        chapter["state"] = "written" if chapter["number"] == 3 else "planned"
    cells = [
        {"id": "s4", "cell_type": "markdown", "metadata": {}, "source": ["text\n", "## 4 The ring\n", "more"]},
        {"id": "run-ring", "cell_type": "code", "metadata": {}, "source": ["# not a heading"]},
    ]
    for folder, content in (("notebooks", cells), ("exercises", cells[1:])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "03_collectives.ipynb").write_text(json.dumps({"cells": content}))
    return from_table(table), tmp_path / "notebooks"


@pytest.mark.parametrize(
    "text", ["chapter:03#the-ring", "chapter:03#run-ring", "exercise:03/run-ring", "quiz:03/ring-bytes-of-12",
             "planned:05/zero-bytes"],
)  # fmt: skip
def test_a_good_reference_is_no_problem(small, text):
    course, notebooks = small
    assert problems(course, (Row("system", Source("003", "1.1"), "x", (parse_reference(text),)),), notebooks) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("chapter:03#the-tree", "leads nowhere: chapter 3 has run-ring, s4, the-ring"),
        ("chapter:03#not-a-heading", "leads nowhere"),
        ("chapter:03", "leads nowhere"),
        ("exercise:03/s4", "leads nowhere: chapter 3 has run-ring"),
        ("quiz:03/no-such-question", "leads nowhere"),
        ("chapter:04#the-ring", "names a chapter that is not written: use planned:04/"),
        ("quiz:04/x", "names a chapter that is not written"),
        ("planned:03/ring-bytes", "is still planned, but chapter 3 is written"),
        ("planned:05/zero-byte", "leads nowhere: chapter 5 has fsdp-step"),
        ("planned:05", "leads nowhere"),
        ("chapter:77#x", "names a chapter that does not exist"),
    ],
)
def test_a_reference_that_leads_nowhere_is_a_problem(small, text, problem):
    course, notebooks = small
    row = Row("system", Source("003", "1.1"), "a thing", (parse_reference(text),))
    (said,) = problems(course, (row,), notebooks)
    assert said.startswith(f"system of 003 1.1, 'a thing': {text}") and problem in said


def test_a_row_that_is_called_real_needs_a_cell_that_ranks_have_run_for(small):
    course, notebooks = small
    source, where = (
        Source("003", "1.1"),
        (parse_reference("chapter:03#the-ring"), parse_reference("chapter:03#run-ring")),
    )
    assert problems(course, (Row("system", source, "a ring", where, "simulated"),), notebooks) == []
    (said,) = problems(course, (Row("system", source, "a ring", where, "real"),), notebooks)
    assert "is called real" in said
    path = notebooks / "03_collectives.ipynb"
    cells = json.loads(path.read_text())["cells"]
    cells[1]["source"] = ["run = labkit.launch(ring, 4)"]
    path.write_text(json.dumps({"cells": cells}))
    evidence.cache_clear()
    assert problems(course, (Row("system", source, "a ring", where, "real"),), notebooks) == []
    (said,) = problems(course, (Row("system", source, "a ring", where[:1], "real"),), notebooks)
    assert "is called real" in said


def test_a_cell_is_evidence_if_what_it_shows_came_from_ranks(tmp_path):
    """By statements: what a cell makes anew has nothing to do with a run, though an earlier cell used its name."""
    sources = {
        "setup": "launch, n = partial(labkit.launch, transport='local'), 4",
        "plain": "rows = [n, labkit.cost.launch_pad]\nlabkit.warm()",
        "run": "def job(x):\n    return launch(f, x)\n\n\nfound = [job(k) for k in range(n)]",
        "table": "rows = []\nfor x in found:\n    rows.append(x.results)\nbook.Table(rows)",
        "again": "rows = [row for row in range(n)]\nfor x in rows:\n    rows[x] = 1",
        "later": "book.Table(rows)",
        "case": "scene = hung.investigate('A', n)",
        "filled": "best = {}\nbest['a'] = scene.seconds",
        "shown": "print(best)",
    }
    cells = [{"id": id, "cell_type": "code", "metadata": {}, "source": [text]} for id, text in sources.items()]
    for role, text in (("statement", "Write a ring."), ("public", "@check\ndef ring(student):\n    student.run(x)")):
        about = {"labkit": {"exercise": "ring", "role": role}}
        kind = "markdown" if role == "statement" else "code"
        cells.append({"id": f"ring-{role}", "cell_type": kind, "metadata": about, "source": [text]})
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    assert evidence(tmp_path / "a.ipynb") == {"run", "table", "case", "filled", "shown", "ring-statement"}


def test_what_starts_ranks_is_where_the_list_says():
    for name, module in DOORS.items():
        assert callable(getattr(importlib.import_module(module), name)), name


def test_the_page_counts_each_way_of_an_answer_apart():
    page = (NOTEBOOKS / "coverage.md").read_text(encoding="utf-8")
    found = Counter(row.how or "planned" for row in coverage())
    numbers = " | ".join(str(found[way]) for way in (*WAYS, "planned"))
    assert f"| all |  | {len(coverage())} | {numbers} |" in page and min(found[way] for way in WAYS) > 0


def test_only_one_of_several_references_is_wrong(small):
    course, notebooks = small
    good, bad = parse_reference("chapter:03#the-ring"), Reference("quiz", 3, "nothing")
    assert len(problems(course, (Row("goal", Source("003", "1.0"), "x", (good, bad, good)),), notebooks)) == 1


def test_a_notebook_that_does_not_exist_has_no_places(tmp_path):
    assert list(places(tmp_path / "04_data_parallelism.ipynb")) == []


def test_only_sections_that_a_source_has_can_be_cited():
    course = load()
    cited = ["003 1.10", "004 The Pipeline Bubble", "001 二", "003 1.12", "004 1.1", "005 1.1", "003"]
    assert [course.cites(Source.parse(text)) for text in cited] == [True, True, True, False, False, False, False]
