"""What a student receives: stubs, visible checks, folded hints, ids; nothing of a solution, a hidden check or a run."""

import ast
import base64
import copy
import json

import nbformat
import pytest
from hypothesis import given, strategies as st
from sample_source import NAME, cell, sample, sources

from labkit.grading.source import leaks, read_notebook, release, secrets_of
from labkit.grading.source.compose import answer, compose, essay, exercise, public, rubric, setup, statement
from labkit.grading.source.leaks import leaks_in_file

SECRET = "sent_chunks = 6 - 1  # every chunk but the one that stays"
HIDDEN = "every_rank = cost.ring_reduce_scatter_bytes(12_000_000, 6) / 1e6"


def test_a_solution_is_replaced_by_a_stub_that_says_what_to_do():
    got = sources(release(sample()))
    assert got["ring-megabytes-answer"] == "ring_megabytes = None"
    assert got["reduce-scatter-answer"] == (
        'def my_reduce_scatter(x, group):\n    """Return the sum of everyone\'s part `group.rank` of `x`."""\n'
        '    raise NotImplementedError("send to each rank its part, and add what arrives to your own")'
    )


def test_hidden_cells_and_hidden_regions_are_gone_and_the_rest_of_the_cell_stays():
    notebook = release(sample())
    assert "reduce-scatter-hidden" not in sources(notebook)
    public = sources(notebook)["ring-megabytes-public"]
    assert public == sources(sample())["ring-megabytes-public"].split("### BEGIN")[0].rstrip() + (
        '\n\n\nexercises.run("ring-megabytes")'
    )
    assert sources(notebook)["reduce-scatter-public"] == sources(sample())["reduce-scatter-public"]
    ast.parse(public)


def test_ids_order_and_plain_cells_stay_and_nothing_of_a_run_does():
    notebook = sample()
    for c in notebook.cells:
        c.metadata.update(execution={"x": "1"}, collapsed=True, author="me", tags=["kept"])
        if c.cell_type == "code":
            c.update(execution_count=7, outputs=[nbformat.v4.new_output("stream", text="old")])
    notebook.metadata.update(widgets={"state": {}}, kernelspec={"name": "mine", "display_name": "/home/me"})
    before = copy.deepcopy(notebook)
    got = release(notebook)
    assert notebook == before  # the argument is not changed
    assert [c.id for c in got.cells] == [c.id for c in notebook.cells if c.id != "reduce-scatter-hidden"]
    assert sources(got)["between"] == "The next one runs on real ranks."
    assert all(set(c.metadata) <= {"tags", "nbgrader", "labkit", "deletable", "editable"} for c in got.cells)
    assert all(c.metadata["tags"] == ["kept"] for c in got.cells)
    assert all((c.outputs, c.execution_count) == ([], None) for c in got.cells if c.cell_type == "code")
    assert set(got.metadata) == {"kernelspec", "labkit", "language_info"} and got.metadata.kernelspec.name == "python3"
    nbformat.validate(got)


def test_a_student_cannot_edit_or_delete_what_is_checked_by_accident():
    for c in release(sample()).cells:
        role = c.metadata.get("labkit", {}).get("role")
        assert c.metadata.get("deletable", True) is (role is None)
        assert c.metadata.get("editable", True) is (role in (None, "answer"))


def test_hints_are_folded_and_numbered_within_their_exercise():
    got = sources(release(sample()))
    assert got["ring-megabytes-hint-2"].startswith("<details><summary>Hint 2</summary>\n\nWhich chunk")
    assert got["reduce-scatter-hint-1"].startswith("<details><summary>Hint 1</summary>\n\n")
    assert got["reduce-scatter-hint-1"].endswith("\n\n</details>")


def test_the_stub_sentence_and_unknown_labels_do_not_travel():
    notebook = sample()
    cell(notebook, "reduce-scatter-answer").metadata.labkit["note"] = SECRET
    told = cell(release(notebook), "reduce-scatter-answer").metadata.labkit
    assert dict(told) == {"exercise": "reduce-scatter", "role": "answer"}


def test_several_regions_and_code_of_ones_own_as_a_stub():
    notebook = sample()
    c = cell(notebook, "reduce-scatter-answer")
    c.metadata.labkit.update(stub_code="a = ...\nreturn a")
    c.source += "\n\n\ndef helper():\n    ### BEGIN SOLUTION\n    return 3\n    ### END SOLUTION"
    got = sources(release(notebook))["reduce-scatter-answer"]
    assert got.endswith("\n    a = ...\n    return a\n\n\ndef helper():\n    a = ...\n    return a")


def test_an_explanation_is_written_by_hand_and_its_rubric_stays_with_who_marks():
    note = "You will be checked on clarity. Difficulty: hard."
    told = {"kind": "explanation", "points": 3, "core": False, "objective": "ring-steps", "section": "x", "level": 3}
    parts = (
        statement(f"## Explain\n\n{note}", **told),
        essay("The model answer of the ring", 3),
        rubric("- 3: it says who waits first"),
    )
    notebook = compose(setup("import labkit"), *exercise("explain", *parts))
    assert read_notebook(notebook, NAME).points == 3
    got = release(notebook)
    assert sources(got)["explain-answer"] == "*Write your answer here, in place of this line.*"
    assert "explain-rubric" not in sources(got) and not leaks(notebook, got)
    assert leaks(notebook, notebook), "the rubric says what a good answer says"
    asked = (
        '@exercises.check("explain", evidence="rubric", points=3)\ndef reads(student):\n    student.value("why")\n\n'
    )
    asked = public(asked + '\nexercises.run("explain")')
    code = answer('### BEGIN SOLUTION\nwhy = "The model answer"\n### END SOLUTION')
    notebook = compose(setup("import labkit"), *exercise("explain", parts[0], code, asked, parts[2]))
    assert read_notebook(notebook, NAME).points == 3
    assert sources(release(notebook))["explain-answer"] == "why = None"


words = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00"), max_size=60)
extras = st.lists(st.tuples(st.integers(0, 14), st.booleans(), words), max_size=6)


def with_extras(cells):
    """The sample with plain cells of any text, at any place outside an exercise's run of cells and behind the setup."""
    notebook = sample()
    places = [0, 1, 2, 8, len(notebook.cells)]
    added = []
    for number, (place, code, text) in enumerate(cells):
        make = nbformat.v4.new_code_cell if code else nbformat.v4.new_markdown_cell
        added.append(make(text, id=f"extra-{number}"))
        notebook.cells.insert(places[place % len(places)], added[-1])
        places = [p + (p >= places[place % len(places)]) for p in places]
    return notebook, {c.id: c for c in added}


@given(extras)
def test_cells_of_any_text_outside_exercises_stay_as_they_are(cells):
    notebook, added = with_extras(cells)
    got = {c.id: c for c in release(notebook).cells}
    for id, c in added.items():
        assert (got[id].source, got[id].cell_type) == (c.source, c.cell_type)
    assert [i for i in got if i in added] == [c.id for c in notebook.cells if c.id in added]
    assert len(got) == len(notebook.cells) - 1


@given(extras)
def test_releasing_what_was_released_changes_nothing(cells):
    once = release(with_extras(cells)[0])
    assert release(once) == once
    again = nbformat.reads(nbformat.writes(once), as_version=4)  # through a file, too
    assert nbformat.writes(release(again)) == nbformat.writes(once)


lines = st.lists(
    st.sampled_from(["total = sum(parts_of_everyone)", "", "    x = 1", "# a comment that is long"]), min_size=1
)


@given(lines, lines)
def test_no_line_of_any_solution_or_hidden_check_reaches_a_student(solution, check):
    notebook = sample()
    c = cell(notebook, "ring-megabytes-answer")
    c.source = c.source.replace("### END", "\n".join(line.strip() for line in solution) + "\n### END")
    c = cell(notebook, "reduce-scatter-hidden")
    c.source = c.source.replace("### END", "\n".join(line.strip() for line in check) + "\n### END")
    c.source = c.source.replace("\n### END", '\nexercises.run("reduce-scatter")\n### END')
    text = "".join(json.dumps(release(notebook)).split())
    found = secrets_of(notebook)
    assert len(found) >= 20 and not [s for s in found if s.bare in text]


def places():
    """Every place of a notebook in which a line could be forgotten."""
    picture = base64.b64encode(f"<svg>{SECRET}</svg>".encode()).decode()
    data = {"text/html": f"<pre>{SECRET}</pre>", "text/plain": "x"}
    yield "cell", lambda n: cell(n, "between").update(source=f"Hint: {SECRET}")
    yield "statement", lambda n: cell(n, "ring-megabytes-statement").update(source=f"```\n  {SECRET}\n```")
    yield "wrapped", lambda n: cell(n, "between").update(source=SECRET.replace(" but", "\n    but"))
    yield "stream", lambda n: outputs(n, nbformat.v4.new_output("stream", text=SECRET))
    yield "html", lambda n: outputs(n, nbformat.v4.new_output("display_data", data=data))
    yield "json", lambda n: outputs(n, nbformat.v4.new_output("display_data", data={"application/x+json": [SECRET]}))
    yield "traceback", lambda n: outputs(n, nbformat.v4.new_output("error", ename="E", evalue="", traceback=[SECRET]))
    yield "metadata", lambda n: cell(n, "between").metadata.update(note={"deep": [SECRET]})
    yield "tag", lambda n: cell(n, "between").metadata.update(tags=[SECRET])
    yield "notebook", lambda n: n.metadata.update(note=SECRET)
    yield "attachment", lambda n: cell(n, "between").update(attachments={"a.svg": {"image/svg+xml": picture}})
    yield "json in text", lambda n: cell(n, "between").metadata.update(note=json.dumps({"a": f"\t{SECRET}"}))
    yield "hidden check", lambda n: cell(n, "between").update(source=HIDDEN)


def outputs(notebook, output):
    cell(notebook, "setup").outputs = [output]


@pytest.mark.parametrize(("where", "put"), list(places()), ids=[name for name, _ in places()])
def test_a_forgotten_line_is_found_wherever_it_is(where, put):
    received = release(sample())
    assert leaks(sample(), received) == []
    put(received)
    found = leaks(sample(), received)
    assert found and all("ring-megabytes" in str(leak) for leak in found)
    assert leaks_in_file(secrets_of(sample()), "a.ipynb", nbformat.writes(received).encode())


def test_lines_that_the_author_shows_and_short_ones_are_no_secrets():
    found = [secret.line.strip() for secret in secrets_of(sample())]
    assert SECRET in found and HIDDEN in found
    assert "def sends_only_what_it_must(student):" in found
    for shown in (
        "return total",
        'exercises.run("reduce-scatter")',
        "inputs = [student.tensor(6, 2) for _ in range(3)]",
    ):
        assert shown not in found
    assert not [line for line in found if line.startswith("###")]


COMMON = [
    "for row in handles.values():",
    "    if group.rank == 0:",
    "        row.wait(group)",
    "        rows.append(row)",
]
SOLVED = [*COMMON, "kept_for_later = 7", "ring_megabytes = 3 * kept_for_later + size // 2"]


@pytest.mark.parametrize(
    ("shown", "leaking"),
    [
        *((line, False) for line in COMMON),
        ("\n".join(COMMON[:2]), False),
        ("\n".join(COMMON[:3]), True),
        ("    " + "\n\n    ".join(COMMON[1:]), True),
        (SOLVED[-2], True),  # the answer to a question
        (SOLVED[-1], True),
    ],
)
def test_what_stands_in_half_of_all_programs_is_secret_only_together(shown, leaking):
    notebook = sample()
    c = cell(notebook, "ring-megabytes-answer")
    c.source = "### BEGIN SOLUTION\n" + "\n".join(SOLVED) + "\n### END SOLUTION"
    received = release(notebook)
    cell(received, "between").source = shown
    assert bool(leaks(notebook, received)) is leaking


def test_a_solution_that_says_little_is_secret_as_a_whole():
    notebook = sample()
    c = cell(notebook, "ring-megabytes-answer")
    c.source = "### BEGIN SOLUTION\nreturn x.view_as(y)\n### END SOLUTION"
    assert [s.line for s in secrets_of(notebook) if s.cell == c.id] == ["return x.view_as(y)"]


def test_an_attachment_stays_only_where_the_released_cell_shows_it():
    notebook = sample()
    cell(notebook, "between").source = "![a](attachment:a.png)"
    cell(notebook, "between").attachments = {"a.png": {"image/png": "AAAA"}, "b.png": {"image/png": "AAAA"}}
    assert list(cell(release(notebook), "between").attachments) == ["a.png"]


def test_a_text_of_the_book_may_share_a_line_but_not_a_solution():
    found = secrets_of(sample())
    solution = [s.line for s in found if s.cell == "ring-megabytes-answer"]
    for text, leaking in ((solution[0], False), ("\n".join(solution), True), (HIDDEN, True), ("nothing", False)):
        assert bool(leaks_in_file(found, "a.md", text.encode(), shared=True)) is leaking
    assert leaks_in_file(found, "a.md", solution[0].encode())
