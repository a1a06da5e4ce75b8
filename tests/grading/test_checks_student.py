"""The student's door in a notebook: real ranks, evidence, stubs, errors in words, limits; marks and their records."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest
import torch

from labkit import cost
from labkit.grading import open_exercises
from labkit.grading.answers import Number
from labkit.grading.checks.data import NotData, as_data
from labkit.grading.checks.exercises import ChecksFailed, options_from_outside
from labkit.grading.checks.fresh import Fresh
from labkit.grading.checks.judge import Check
from labkit.grading.checks.marks import MARK, STATES
from labkit.grading.checks.notebook import NotebookStudent
from labkit.grading.checks.pristine import preamble
from labkit.grading.checks.show import bundle, html, text
from labkit.grading.checks.student import NotRight, StudentError, same
from labkit.grading.checks.wording import cleaned

pytestmark = pytest.mark.ranks


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setenv("LABKIT_SLOW_MACHINE", "5")


def student(seed=1, **names):
    return NotebookStudent(names, seed, "an-exercise")


def ring(x, group):
    n, me = group.size, group.rank
    parts = x.tensor_split(n)
    partial = parts[(me - 1) % n].clone()
    for step in range(n - 1):
        mine = parts[(me - step - 2) % n]
        partial = group.exchange(partial, to=(me + 1) % n, like=torch.empty_like(mine), source=(me - 1) % n) + mine
    return partial


@pytest.mark.parametrize("n", [1, 3, 5])
def test_a_run_returns_results_and_all_evidence(n):
    one = student(my_ring=ring)
    x = [one.tensor(7, 3) for _ in range(n)]
    run = one.run("my_ring", n, x, memory=True)
    assert same(run.results, list(sum(x).tensor_split(n)))
    assert run.bytes_sent == cost.ring_reduce_scatter_bytes_by_rank(7, 12, n)
    assert [sum(row) for row in run.bytes_between] == run.bytes_sent
    assert run.messages == [n - 1] * n and run.rounds == n - 1
    assert all(84 + 24 * (n > 1) <= peak <= 84 * 3 for peak in run.peak_bytes)  # its input, and two parts or more
    assert run.failure is None and not hasattr(run, "seconds")


def test_the_rank_that_is_furthest_off_is_named_with_a_cause():
    text = "rank {rank} sent {got:bytes} and not {expected:bytes}: {why}"
    with pytest.raises(NotRight, match="^rank 1 sent 5 kB and not 2 kB: too much$"):
        causes = {True: "too much", False: "too little"}
        student().expect_by_rank([2, 5000, 3], [1, 2000, 1], text, why=lambda got, expected: causes[got > expected])
    student().expect_by_rank([1, 2], [1, 2], text)
    with pytest.raises(NotRight, match="^a brace { stays$"):
        student().expect(False, "a brace { stays")


@pytest.mark.parametrize("n, star, tree", [(1, 0, 0), (5, 4, 3), (8, 7, 3)])
def test_rounds_are_the_messages_that_follow_one_another(n, star, tree):
    def from_the_root(group):
        x = torch.ones(3)
        for other in range(1, group.size):
            if group.rank == 0:
                group.send(x, to=other)
            elif group.rank == other:
                group.recv(x, source=0)

    def doubling(group):
        x, distance = torch.ones(3), 1
        while distance < group.size:
            if group.rank < distance and group.rank + distance < group.size:
                group.send(x, to=group.rank + distance)
            elif distance <= group.rank < 2 * distance:
                group.recv(x, source=group.rank - distance)
            distance *= 2

    one = student(star=from_the_root, tree=doubling)
    assert (one.run("star", n).rounds, one.run("tree", n).rounds) == (star, tree)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_rounds_depend_on_what_a_program_waited_for_and_not_on_what_happens_to_be_through(n):
    def at_once(group):
        x, r = torch.ones(3), group.rank
        handles = []
        for other in [q for q in range(group.size) if q != r]:
            handles += [group.irecv(torch.empty(3), source=other), group.isend(x, to=other)]
            while not all(h.done() for h in handles if r and other == 0):  # some are through early
                time.sleep(0.001)
            time.sleep(0.005)
        for h in handles:
            h.wait()

    def one_by_one(group):
        x = torch.ones(3)
        for other in range(1, group.size):
            if group.rank == 0:
                handle = group.isend(x, to=other)
                while not handle.done():
                    time.sleep(0.001)
                handle.wait()  # there is nothing left to wait for, and still the next one comes after this one
            elif group.rank == other:
                group.irecv(x, source=0).wait()

    one = student(at_once=at_once, one_by_one=one_by_one)
    for name, rounds in (("at_once", 1), ("one_by_one", n - 1)):
        run = one.run(name, n)
        assert run.failure is None and run.rounds == rounds, (name, run)


def test_the_same_call_is_made_once_and_checks_get_the_same_inputs():
    calls = []

    class Counting(NotebookStudent):
        def _call(self, *args):
            calls.append(args)
            return super()._call(*args)

    one = Counting({"my_ring": ring}, 3, "an-exercise")
    for _ in range(3):
        one.begin_check()
        one.run("my_ring", 3, [one.tensor(4) for _ in range(3)])
    assert len(calls) == 1
    one.run("my_ring", 3, [one.tensor(4) for _ in range(3)])
    assert len(calls) == 2


def test_inputs_are_new_with_another_seed_and_repeatable_with_the_same():
    def drawn(seed):
        fresh = Fresh(seed, "e")
        return list(fresh.sizes((1, 3, 5), rows=(7, 1000), width=(1, 9))), fresh.tensor(50).tolist()

    assert drawn(1) == drawn(1)
    assert all(a != b for a, b in zip(drawn(1), drawn(2), strict=True))
    sizes, values = drawn(1)
    assert [n for n, *_ in sizes] == [1, 3, 5] and all(7 <= rows <= 1000 and 1 <= w <= 9 for _, rows, w in sizes)
    assert all(v == int(v) and 1 <= abs(v) < 8 for v in values)
    assert list(Fresh(1, "e", worlds=[3]).sizes((1, 3, 5))) == [3]
    assert list(Fresh(1, "e", worlds=[8]).sizes((1, 3, 5))) == [1]
    assert Fresh(1, "e").tensor(9, dtype=torch.bool).all() and (Fresh(1, "e").tensor(9, dtype=torch.uint8) > 0).all()


# What goes wrong, in words -------------------------------------------------------------------------------------------


def receives_from_the_left(x, group):
    return group.recv(x, source=(group.rank - 1) % group.size)


def sends_another_length(x, group):
    like = torch.empty(9)
    return group.exchange(x, to=(group.rank + 1) % group.size, like=like, source=(group.rank - 1) % group.size)


def misspells(x, group):
    def inner():
        return undefined_name  # noqa: F821

    return inner()


def returns_an_object(x, group):
    return slice(1, 2)


@pytest.mark.parametrize(
    "fn, said, detail",
    [
        (receives_from_the_left, "wait for each other", "rank 2: receive float32[4] from rank 1"),
        (sends_another_length, "receives float32[9]", "in sends_another_length"),
        (misspells, "raised NameError: name 'undefined_name' is not defined", "return undefined_name"),
        (returns_an_object, "it returned a slice", ""),
        (3, "my_fn should be a function. Here it is of type int.", ""),
    ],
)
def test_a_failure_is_a_sentence_and_the_students_own_lines(fn, said, detail):
    one = student(my_fn=fn)
    with pytest.raises(StudentError) as caught:
        one.run("my_fn", 3, [torch.ones(4)] * 3)
    assert said in str(caught.value) and detail in caught.value.detail
    assert "messenger.py" not in caught.value.detail and "labkit/wire" not in caught.value.detail


def test_a_loop_that_never_ends_costs_one_limit_and_no_more(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_SLOW_MACHINE", "1")

    def forever(x, group):
        (tmp_path / f"{group.rank}-{time.monotonic_ns()}").touch()
        while True:
            pass

    opened = opened_with(my_fn=forever)

    @opened.check("an-exercise", evidence="result", points=1)
    def another_run(student):
        student.run("my_fn", 5, [student.tensor(6)] * 5)

    outcome = opened.judge("an-exercise")
    assert len(list(tmp_path.glob("0-*"))) <= 1, "it was run again"
    assert [mark.state for mark in outcome.marks] == ["error"] * 3
    assert "did not end within 2 s" in outcome.marks[0].sentence and "Not run" in outcome.marks[2].sentence


def test_only_data_travels():
    tensor = torch.ones(3, requires_grad=True)
    copied = as_data({"a": [1, 2.5, "x", None, b"y", (True, tensor)]})
    assert same(copied, {"a": [1, 2.5, "x", None, b"y", (True, torch.ones(3))]})
    assert not copied["a"][5][1].requires_grad
    endless: list = []
    endless.append(endless)
    lying = type("Lying", (int,), {"__eq__": lambda self, other: True})
    for value in (object(), {1: 2}, endless, lying(3), torch.ones(2).to_sparse(), {"a": {2, 3}}):
        with pytest.raises(NotData, match="return|keys"):
            as_data(value)


@pytest.mark.parametrize(
    "a, b", [(True, 1), (1, 1.0), ([1], (1,)), (torch.ones(2), torch.ones(2, 1)), (torch.ones(2), torch.ones(2).int()),
             (torch.ones(2), None), ({"a": 1}, {"b": 1})],
)  # fmt: skip
def test_what_is_not_the_same(a, b):
    assert not same(a, b) and not same(b, a) and same(a, a)


# States and marks -----------------------------------------------------------------------------------------------


def opened_with(worlds=None, strict=False, **names):
    """An exercise of two checks for a function my_fn(x, group): the sum (2 points), and few bytes (1 point)."""
    opened = open_exercises("03_collectives", namespace=names, worlds=worlds, strict=strict, seed=4)

    @opened.check("an-exercise", evidence="result", points=2)
    def the_sum(student):
        for n in student.sizes((1, 3)):
            x = [student.tensor(6) for _ in range(n)]
            student.expect_results(student.run("my_fn", n, x), [sum(x)] * n, {"Nothing was added.": x})

    @opened.check("an-exercise", evidence="bytes", points=1)
    def few_bytes(student):
        for n in student.sizes((1, 3)):
            run = student.run("my_fn", n, [student.tensor(6) for _ in range(n)])
            most = cost.ring_all_reduce_bytes_by_rank(6, 4, n)
            student.expect_by_rank(run.bytes_sent, most, "rank {rank} sent {got:bytes}, {expected:bytes} are enough.")

    return opened


def everyone(x, group):
    total = x.clone()
    for d in range(1, group.size):
        like = torch.empty_like(x)
        total += group.exchange(x, to=(group.rank + d) % group.size, like=like, source=(group.rank - d) % group.size)
    return total


def stub(x, group):
    raise NotImplementedError("write it")


def double_only_with_three(x, group):
    if group.size == 3:
        raise ValueError("three")
    return x


@pytest.mark.parametrize(
    "fn, state, points, said",
    [
        (None, "unattempted", 0, "There is no my_fn yet"),
        (stub, "unattempted", 0, "my_fn is still the stub"),
        (everyone, "partly", 2, "sent 48 B, 32 B are enough"),
        (lambda x, group: x, "wrong", 0, "Nothing was added."),
        (lambda x, group: None, "wrong", 0, "Is there a return at the end?"),
        (lambda x, group: x.double(), "wrong", 0, "float64"),
        (lambda x, group: x[:2], "wrong", 0, "shape [2]; it should be [6]"),
        (misspells, "error", 0, "NameError"),
        (double_only_with_three, "error", 0, "With 3 ranks: rank"),
    ],
)
def test_states_and_points(fn, state, points, said):
    opened = opened_with(**({"my_fn": fn} if fn else {}))
    outcome = opened.judge("an-exercise")
    assert (outcome.state, outcome.points, outcome.of) == (state, points, 3)
    assert said in text(outcome) and state in STATES


def test_one_answer_of_two_counts_and_the_other_is_not_attempted():
    opened = open_exercises("03_collectives", namespace={"first": None, "second": 7}, strict=False)
    for name in ("first", "second"):

        def body(student, name=name):
            student.expect_answer(name, Number(7))

        body.__name__ = name
        opened.check("e", evidence="answer", points=1)(body)
    outcome = opened.judge("e")
    assert [mark.state for mark in outcome.marks] == ["unattempted", "right"]
    assert (outcome.state, outcome.points) == ("partly", 1) and "not attempted yet. first is still None" in text(
        outcome
    )
    opened.namespace["second"] = 8
    assert opened.judge("e").state == "wrong"


def test_a_stub_is_run_once_only():
    calls = []

    class Counting(NotebookStudent):
        def _call(self, *args):
            calls.append(args)
            return super()._call(*args)

    opened = opened_with()

    @opened.check("an-exercise", evidence="result", points=1)
    def another_run(student):
        student.run("my_fn", 3, [student.tensor(2)] * 3)

    outcome = opened.judge("an-exercise", Counting({"my_fn": stub}, 4, "an-exercise"))
    assert outcome.state == "unattempted" and len(calls) == 1


def test_the_right_answer_gets_all_points_and_a_record():
    from labkit.collectives import ring_all_reduce

    opened = opened_with(my_fn=lambda x, group: ring_all_reduce(x.clone(), group))
    outcome = opened.judge("an-exercise")
    record = json.loads(json.dumps(outcome.record()))
    assert record["state"] == "right" and record["points"] == record["of"] == 3
    assert record["schema"] == 1 and record["exercise"] == "an-exercise" and record["seed"] == 4
    assert [c["name"] for c in record["checks"]] == ["the_sum", "few_bytes"]
    assert len(record["check_hash"]) == 16 and record["version"]
    assert opened.judge("an-exercise").checks_hash == outcome.checks_hash


def test_marks_are_shown_in_words_and_without_markup_of_the_students():
    def angry(x, group):
        raise ValueError("<script>alert(1)</script>")

    outcome = opened_with(my_fn=angry).judge("an-exercise")
    shown = bundle(outcome)
    assert set(shown) == {MARK, "text/html", "text/plain"}
    assert "<script>" not in shown["text/html"] and "&lt;script&gt;" in shown["text/html"]
    assert "stopped with an error" in html(outcome) and "! an-exercise" in text(outcome)
    assert html(outcome).count("<li ") == 2 and "color:" not in html(outcome).replace("currentColor", "")


def test_a_reason_is_said_once_and_a_right_check_needs_no_sentence():
    def angry(x, group):
        raise ValueError("not today")

    outcome = opened_with(my_fn=angry).judge("an-exercise")
    assert outcome.marks[0].sentence == outcome.marks[1].sentence and "not today" in outcome.marks[0].sentence
    for shown in (html(outcome), text(outcome)):
        assert shown.count(outcome.marks[0].sentence) == 1 and shown.count("For the same reason.") == 1
    partly = html(opened_with(my_fn=everyone).judge("an-exercise"))
    assert "Right." not in partly and "right, 2 of 2 points" in partly


def test_inputs_are_new_only_where_there_are_inputs():
    opened = open_exercises("03_collectives", namespace={"seven": 7}, strict=False)

    @opened.check("e", evidence="answer", points=1)
    def is_seven(student):
        student.expect_answer("seven", Number(7))

    assert "Inputs are new" not in html(opened.judge("e"))
    assert "Inputs are new" in html(opened_with(my_fn=everyone).judge("an-exercise"))


@pytest.mark.parametrize("well", [True, False])
def test_after_a_cell_that_failed_an_older_answer_may_be_judged(monkeypatch, well):
    import IPython
    import IPython.display

    displayed = []
    shell = SimpleNamespace(last_execution_succeeded=well)
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    monkeypatch.setattr(IPython.display, "display", lambda shown, raw: displayed.append(shown))
    opened_with(my_fn=everyone).run("an-exercise")
    for mime in ("text/html", "text/plain"):
        assert ("The cell that ran before this one failed." in displayed[0][mime]) is not well


def test_a_wrong_answer_fails_its_cell_only_where_cells_must_fail(monkeypatch, capsys):
    names = {"my_fn": everyone}
    assert opened_with(**names).run("an-exercise") is None
    assert "partly right, 2 of 3 points" in capsys.readouterr().out
    with pytest.raises(ChecksFailed, match="partly right"):
        opened_with(strict=True, **names).run("an-exercise")
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    assert opened_with(**names).run("an-exercise") == 2.0
    with pytest.raises(ChecksFailed):
        opened_with(strict=None).run("an-exercise")


def test_a_check_that_stumbles_over_a_result_takes_no_one_down():
    opened = open_exercises("03_collectives", namespace={"my_fn": lambda x, group: "a text"}, strict=False)

    @opened.check("e", evidence="result", points=1)
    def adds(student):
        assert student.run("my_fn", 1, [torch.ones(2)]).results[0].sum() == 2

    outcome = opened.judge("e")
    assert outcome.state == "error" and "AttributeError" in outcome.marks[0].sentence


def test_what_an_author_gets_wrong_is_said():
    with pytest.raises(ValueError, match="evidence='speed' is none of"):
        Check("e", "n", "speed", 1, lambda student: None)
    with pytest.raises(ValueError, match="points=0"):
        Check("e", "n", "bytes", 0, lambda student: None)
    with pytest.raises(ValueError, match="no check of 'nothing'"):
        opened_with().judge("nothing")


def test_numbers_of_a_student_vary_by_student_and_stay():
    def numbers(who):
        with options_from_outside(student=who, namespace={}):
            return open_exercises("03_collectives").given(ring_bytes={"N": [6, 8, 12], "M": (1, 10**6)})

    assert numbers("ada") == numbers("ada") != numbers("alan")
    assert set(numbers("ada")["ring-bytes"]) == {"N", "M"} and numbers("ada")["ring-bytes"]["N"] in (6, 8, 12)
    assert "ring-bytes" in repr(numbers("ada")) and "<table>" in numbers("ada")._repr_html_()


def test_lines_of_a_notebook_cell_are_looked_up_where_the_notebook_is(monkeypatch):
    import linecache

    cell = "/tmp/ipykernel_77/123.py"
    monkeypatch.setitem(linecache.cache, cell, (9, None, ["def f(x):\n", "    return x.nothing\n"], cell))
    raised = f'Traceback (most recent call last):\n  File "{cell}", line 2, in f\nAttributeError: nothing\n'
    library = '  File "/x/lib/python3.11/site-packages/torch/a.py", line 5, in g\n    deep()\n'
    shown = cleaned(raised.replace("AttributeError", library + "AttributeError"))
    assert shown.splitlines()[1:] == [
        "  File your cell, line 2, in f",
        "    return x.nothing",
        "AttributeError: nothing",
    ]


def test_answers_can_rely_on_imports_and_numbers_without_the_exercises():
    from zoo_runs import exercises, source

    text = preamble(source("03_collectives"), exercises("03_collectives"))
    names = {}
    exec(text, names)
    assert names["given"]["ring-bytes"].keys() == {"N", "M"} and type(names["given"]) is dict
    assert "torch" in names and "collectives" in names and "grading" not in text
    for exercise in source("03_collectives").exercises:
        for cell in exercise.answers:
            if cell.cell_type == "code":
                exec(cell.source, names)
