"""Evidence of plain messages: what a rank sent, and what it had taken by then, the same from records and a switch."""

from __future__ import annotations

import pytest
from slices import few
from zoo_runs import animals, exercises, judged, sentences, source

from labkit.grading.checks.notebook import NotebookStudent
from labkit.grading.checks.order import Order, Plain
from labkit.grading.checks.pristine import preamble
from labkit.grading.grader import memory
from labkit.grading.grader.door import Pace, SandboxStudent
from labkit.grading.sandbox import open_sandbox

pytestmark = pytest.mark.ranks

CHAPTER = "10_pipeline_parallelism"
BOTH = (
    "fills_and_drains_whatever_the_list_says", "handles_of_everything", "receives_posted_ahead",
    "runs_another_list_than_it_shows",
)  # fmt: skip

ANSWER = '''
import torch

def my_messages(group, plans):
    """plans[rank]: "1>3" sends 3 bytes' worth to rank 1, "1<3" takes that from it, "+" begins to take it and waits
    for it at the next "." only."""
    sends, begun = [], []
    for word in plans[group.rank].split():
        if word == ".":
            begun.pop(0).wait()
            continue
        peer, number = int(word[0]), int(word[2:])
        x = torch.ones(number, dtype=torch.float64)
        if word[1] == ">":
            sends.append(group.isend(x, to=peer))
        elif word[1] == "<":
            group.recv(x, source=peer)
        else:
            begun.append(group.irecv(x, source=peer))
    for send in sends:
        send.wait()
'''


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setenv("LABKIT_SLOW_MACHINE", "5")


def both(plans):
    names: dict = {}
    exec(ANSWER, names)
    here = NotebookStudent(names, 1, "an-exercise").run("my_messages", len(plans), plans=plans)
    with open_sandbox([ANSWER], Pace(4.0).limits()) as box:
        there = SandboxStudent(box, 1, "an-exercise", Pace(4.0)).run("my_messages", len(plans), plans=plans)
    return here.order, there.order


def test_both_doors_see_what_was_sent_and_what_had_been_taken():
    plans = ["1>3 1<5 1>4", "0<3 2>6 2<7 0>5 0<4", "1<6 1>7"]
    for orders in both(plans):
        zero, one, two = orders
        assert [(m.peer, m.nbytes) for m in zero.sent] == [(1, 24), (1, 32)]
        assert [(m.peer, m.nbytes) for m in one.taken] == [(0, 24), (2, 56), (0, 32)]
        assert [zero.had(message, 1, 0) for message in zero.to(1)] == [False, True]
        (right,), (back,) = one.to(2), one.to(0)
        assert one.had(right, 0, 0) and not one.had(right, 2, 0) and not one.had(right, 0, 1)
        assert one.had(back, 2, 0) and one.had(two.sent[0], 2, 7) is False
        assert zero.calls == one.calls == () and zero.marks == ()


def test_a_receive_that_was_begun_has_not_been_taken():
    plans = ["1+3 1>4 . 1>5", "0<4 0>3 0<5"]
    for zero, _ in both(plans):
        assert [zero.had(message, 1, 0) for message in zero.to(1)] == [False, True]


def test_messages_that_cross_had_not_been_taken():
    for zero, one in both(["1>4 1<3 1>5", "0>3 0<4 0<5"]):
        assert [zero.had(message, 1, 0) for message in zero.to(1)] == [False, True]
        assert not one.had(one.sent[0], 0, 0)


def test_what_was_never_waited_for_was_never_taken():
    order = Order(sent=(Plain(1, 8, (5,)),), taken=(Plain(1, 8, (9,)), Plain(1, 8, (2,))))
    assert not order.had(order.sent[0], 1, 0) and order.had(order.sent[0], 1, 1) and not order.had(order.sent[0], 1, 2)


@pytest.mark.parametrize("name", few(BOTH))
def test_the_sandbox_and_the_notebook_give_the_same_marks(name):
    animal = next(a for a in animals(CHAPTER) if a.body.__name__ == name)
    there = judged(CHAPTER, animal.exercise, {animal.entry: animal.body}, [animal.at])
    opened = exercises(CHAPTER)
    opened.worlds = [animal.at]
    sources = [preamble(source(CHAPTER), opened), animal.source, memory.PROBE]
    with open_sandbox(sources, Pace(4.0).limits()) as box:
        student = SandboxStudent(box, 20_26, animal.exercise, Pace(4.0), [animal.at])
        here = opened.judge(animal.exercise, student)
    assert [(m.name, m.state, m.points) for m in here.marks] == [(m.name, m.state, m.points) for m in there.marks], (
        sentences(here),
        sentences(there),
    )
    assert animal.right == (here.state == "right") and animal.says in sentences(here)
