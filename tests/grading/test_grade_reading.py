"""What was handed in is read whatever it is, and only its answer cells are taken."""

from __future__ import annotations

import copy
import json
import os

import pytest

from labkit.bench.grade_class import NAME, ROOT, filled, source
from labkit.grading.grader import reading
from labkit.grading.grader.answers import take_answers
from labkit.grading.grader.cells import needed, python, sources_for
from labkit.grading.grader.submissions import read_submission, students_in

BODY = "def my_broadcast(x, group, root):\n    return x\n"


@pytest.fixture(scope="module")
def book():
    return source()


@pytest.fixture
def notebook(book):
    """A submission with BODY as the broadcast, and solutions elsewhere."""
    return filled({"broadcast": BODY}, book)


@pytest.fixture
def read(book, tmp_path):
    """read(bytes or notebook): what is taken of it."""

    def handed(data):
        raw = data if isinstance(data, bytes) else json.dumps(data).encode()
        (tmp_path / "ada").mkdir(exist_ok=True)
        (tmp_path / "ada" / f"{NAME}.ipynb").write_bytes(raw)
        return read_submission(tmp_path, "ada", book)

    return handed


def cell(notebook, id):
    return next(c for c in notebook["cells"] if c.get("id") == id)


def broadcast(submission):
    (answer,) = submission.answers["broadcast"]
    return answer


@pytest.mark.parametrize(
    "encode, said",
    [
        (lambda text: text.encode(), ""),
        (lambda text: b"\xef\xbb\xbf" + text.encode(), ""),
        (lambda text: text.replace("\\n", "\n").encode(), ""),
        (lambda text: text.encode("utf-16"), "UTF-16"),
        (lambda text: text.encode("utf-16-le"), "UTF-16"),
        (lambda text: text.encode("utf-16-be"), "UTF-16"),
        (lambda text: text.encode("utf-32"), "UTF-32"),
        (lambda text: text.replace('"nbformat"', '"caf\xe9": 1, "nbformat"').encode("latin-1"), "Latin-1"),
        (lambda text: text.replace("{", "\0{", 3).encode() + b"\0\0", "null bytes"),
    ],
)
def test_any_encoding_is_read(read, notebook, encode, said):
    found = read(encode(json.dumps(notebook)))
    assert broadcast(found).source == BODY
    assert said in " ".join(found.handed.problems) and bool(said) == bool(found.handed.problems)


@pytest.mark.parametrize(
    "raw, said",
    [
        (b"", "empty"),
        (b"\0" * 50, "empty"),
        (b"PK\x03\x04 a zip", "not JSON"),
        (b"[" * 200_000, "not JSON"),
        (b"[1, 2]", "no notebook"),
        (b'{"nbformat": 4}', "no cells"),
        (b'{"nbformat": 4, "cells": 7}', "no cells"),
        (b'{"cells": [' + b"9" * 5000 + b"]}", "not JSON"),
    ],
)
def test_what_is_no_notebook_is_unattempted_with_a_sentence(read, raw, said):
    found = read(raw)
    assert said in found.handed.problems[-1] and found.handed.sha256
    assert all(answer.stub and answer.source is None for cells in found.answers.values() for answer in cells)


def test_old_formats_and_broken_cells_are_read_as_well_as_they_can_be(read, notebook):
    notebook["cells"] += [7, None, {"cell_type": 3, "source": {"a": 1}, "metadata": [1]}, {}]
    old = {"nbformat": 3, "worksheets": [{"cells": notebook["cells"]}]}
    found = read(old)
    assert broadcast(found).source == BODY
    assert "format 3" in found.handed.problems[0] and "no cells" in found.handed.problems[1]
    cell(notebook, "broadcast-answer")["source"] = ["def my_broadcast(x, group, root):\n", 3, "    return '\ud800'\n"]
    assert broadcast(read(notebook)).source.encode("utf-8")


def test_a_huge_file_is_not_read(book, tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "LARGEST", 1000)
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / f"{NAME}.ipynb").write_bytes(b" " * 1001)
    assert "clear the outputs" in read_submission(tmp_path, "ada", book).handed.problems[0]


def test_links_pipes_and_missing_files_are_refused_in_words(book, notebook, tmp_path):
    secret = tmp_path / "secret.ipynb"
    secret.write_text(json.dumps(notebook))
    for student in ("link", "pipe", "nothing", "wrong"):
        (tmp_path / "class" / student).mkdir(parents=True)
    (tmp_path / "class" / "link" / f"{NAME}.ipynb").symlink_to(secret)
    os.mkfifo(tmp_path / "class" / "pipe" / f"{NAME}.ipynb")
    (tmp_path / "class" / "wrong" / "03_collectives(1).ipynb").write_text("{}")
    (tmp_path / "class" / "linked").symlink_to(tmp_path)
    assert students_in(tmp_path / "class") == ["link", "nothing", "pipe", "wrong"]
    for student, said in {"link": "is a link", "pipe": "is no file", "nothing": "No 03", "wrong": "rename"}.items():
        found = read_submission(tmp_path / "class", student, book)
        assert said in found.handed.problems[0] and not found.read and broadcast(found).source is None


def test_a_notebook_somewhat_below_is_found_but_not_through_links(book, notebook, tmp_path):
    deep = tmp_path / "ada" / "homework" / "three"
    deep.mkdir(parents=True)
    (deep / f"{NAME}.ipynb").write_text(json.dumps(notebook))
    (tmp_path / "ben").mkdir()
    (tmp_path / "ben" / "more").symlink_to(deep)
    assert broadcast(read_submission(tmp_path, "ada", book)).source == BODY
    assert not read_submission(tmp_path, "ben", book).read


def test_statements_checks_and_metadata_change_nothing(read, notebook, book):
    before = read(notebook).answers
    for c in notebook["cells"]:
        if not c["id"].endswith("-answer"):
            c["source"], c["metadata"] = "raise SystemExit", {"labkit": {"role": "answer", "exercise": "broadcast"}}
        else:
            c["metadata"] = {"labkit": {"exercise": "two-nodes", "role": "public", "points": 100}}
    after = read(notebook)
    assert after.answers == before and not after.handed.problems


def test_lost_ids_are_found_by_metadata_then_by_names_then_by_place(read, notebook):
    for keep in ("labkit nbgrader", "nbgrader", "labkit", ""):
        own = copy.deepcopy(notebook)
        for id in ("broadcast-answer", "late-rank-answer"):
            lost = cell(own, id)
            del lost["id"]
            lost["metadata"] = {key: value for key, value in lost["metadata"].items() if key in keep.split()}
        own["cells"].insert(3, {"cell_type": "code", "metadata": {}, "source": "scratch = 1"})
        found = read(own)
        assert broadcast(found).source == BODY
        assert found.answers["late-rank"][0].source.startswith("With five ranks")
        assert len([p for p in found.handed.problems if "lost its id" in p]) == (0 if keep else 2)


def test_of_copies_the_last_that_is_not_the_stub_is_taken(read, notebook, book):
    at = next(i for i, c in enumerate(notebook["cells"]) if c["id"] == "broadcast-answer")
    stub = take_stub(book)
    for text, place in ((BODY.replace("return x", "return x + 1"), 1), (stub, 2)):
        copied = copy.deepcopy(notebook["cells"][at]) | {"id": f"copy{place}", "source": text}
        notebook["cells"].insert(at + place, copied)
    found = read(notebook)
    assert "x + 1" in broadcast(found).source
    assert f"(cells {at + 1}, {at + 2}, {at + 3})" in found.handed.problems[0]
    assert f"the last one that is not the stub was taken, {at + 2}" in found.handed.problems[0]


def take_stub(book):
    cells = json.loads((ROOT / "exercises" / f"{NAME}.ipynb").read_text())["cells"]
    text = cell({"cells": cells}, "broadcast-answer")["source"]
    return text if isinstance(text, str) else "".join(text)


def test_a_deleted_cell_is_unattempted_and_a_stub_is_a_stub(read, notebook, book):
    notebook["cells"] = [c for c in notebook["cells"] if c["id"] != "broadcast-answer"]
    found = read(notebook)
    assert broadcast(found).stub and "not in the notebook" in found.handed.problems[0]
    stub = take_stub(book)
    for text in (stub, "# a remark\n" + stub + "\n\n", "", "# nothing yet"):
        assert broadcast(read(filled({"broadcast": text}, book))).stub, text
    assert not broadcast(read(filled({"broadcast": stub + "\n1 +"}, book))).stub


def test_an_answer_beside_the_answer_cell_is_not_read_and_the_student_is_told(read, book):
    notebook = filled({"broadcast": take_stub(book)}, book)
    notebook["cells"].append({"cell_type": "code", "id": "mine", "metadata": {}, "source": BODY})
    found = read(notebook)
    assert broadcast(found).stub and "Move it there" in found.handed.problems[0]


def test_a_cell_of_another_type_and_a_cell_too_long_are_not_read(read, notebook):
    cell(notebook, "broadcast-answer")["cell_type"] = "markdown"
    cell(notebook, "two-nodes-answer")["source"] = "#" * (reading.LONGEST_CELL + 1)
    found = read(notebook)
    assert broadcast(found).source is None and found.answers["two-nodes"][0].source is None
    assert "type markdown" in " ".join(found.handed.problems) and "left out" in " ".join(found.handed.problems)


def test_an_exercise_runs_with_the_cells_that_define_what_it_uses_and_no_others(book):
    others = [
        "import math\ndef ring(x):\n    return helper(x)\n",
        "def helper(x):\n    return n\n",
        "n = 1\nwhile True: pass",
    ]
    assert needed(["def f(x, n):\n    return ring(x) + n\n"], others[:2]) == others[:2]
    assert needed(["def f(x):\n    ring = 1\n    return ring\n"], others) == []
    assert needed(["def helper(x):\n    return x\ny = helper(1)\n"], others) == []
    assert needed(["def ring(x):\n    return math.pi\n"], others) == [others[0], *others[1:]]
    answers = take_answers(book, reading.cells_of(json.dumps(filled({"broadcast": BODY}, book)).encode(), []), [])
    first, *rest = sources_for("broadcast", answers, "import torch")
    assert first == "import torch" and rest[0] == BODY and "labkit_watched" in rest[1] and len(rest) == 2


def test_lines_for_ipython_are_left_out_and_mistakes_stay():
    assert python("%matplotlib inline\n!ls\nx = 1") == "\n\nx = 1"
    assert python("x = = 1") == "x = = 1" and python("x = 5 \\\n% 3") == "x = 5 \\\n% 3"
