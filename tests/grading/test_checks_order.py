"""Evidence of order: what had begun and ended when a layer was announced, the same from records and from a switch."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from slices import few
from zoo_runs import animals, exercises, judged, sentences, source

import labkit
from labkit import collectives
from labkit.grading.checks.notebook import NotebookStudent
from labkit.grading.checks.order import Call, Mark, Order, order_of_rounds
from labkit.grading.checks.pristine import preamble
from labkit.grading.grader import memory
from labkit.grading.grader.door import Pace, SandboxStudent
from labkit.grading.sandbox import open_sandbox
from labkit.models import MLP, MLPConfig
from labkit.parallel.announce import announce_backward

pytestmark = pytest.mark.ranks

CHAPTER = "04_data_parallelism"
BOTH = (
    "waits_for_each_bucket", "blocks_in_the_hook", "only_the_first_bucket", "begins_when_the_next_does_not_fit",
    "all_after_the_backward_pass", "copies_as_they_come", "gradients_live_in_their_buckets", "counts_all_pieces",
    "waits_for_each_bucket_of_the_last_piece", "closes_a_bucket_too_early", "all_under_way_at_once",
)  # fmt: skip


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    monkeypatch.setenv("LABKIT_SLOW_MACHINE", "5")


ANSWER = '''
import time
import torch
from labkit import collectives

def announce(group, number):
    mine, theirs = torch.zeros(2, number, dtype=torch.uint8)
    for _ in range(8 * group.size):
        group.exchange(mine, to=(group.rank + 1) % group.size, like=theirs, source=(group.rank - 1) % group.size)

def my_calls(group, plan, nap):
    """plan: "b" begins an all-reduce, "w" waits for the oldest, "s" runs one, a digit announces it."""
    handles = []
    for n, what in enumerate(plan):
        if what == "b":
            x = torch.ones(10 + n)
            handles.append(collectives.all_reduce(x, group, "sum", algorithm="ring", async_op=True))
        elif what == "w":
            time.sleep(nap)  # it is over, most likely, and still it ends here
            handles.pop(0).wait()
        elif what == "s":
            collectives.all_reduce(torch.ones(10 + n), group, "sum", algorithm="ring")
        else:
            announce(group, int(what))
    for handle in handles:  # a rank that returns with messages under way leaves its neighbours alone
        handle.wait()
'''
PLANS = {  # what had begun at each announcement, and of that: what was over
    "1b2b3w": {1: (0, 0), 2: (1, 0), 3: (2, 0)},
    "b4w3": {4: (1, 0), 3: (1, 1)},
    "s2s1": {2: (1, 1), 1: (2, 2)},
    "bb1": {1: (2, 0)},
    "bw5b4": {5: (1, 1), 4: (2, 1)},
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("n", [2, 3])
def test_both_doors_see_what_had_begun_and_what_had_ended(plan, n):
    names: dict = {}
    exec(ANSWER, names)
    here = NotebookStudent(names, 1, "an-exercise").run("my_calls", n, plan=plan, nap=0.01)
    with open_sandbox([ANSWER], Pace(4.0).limits()) as box:
        there = SandboxStudent(box, 1, "an-exercise", Pace(4.0)).run("my_calls", n, plan=plan, nap=0.0)
    for run in (here, there):
        assert [order.announced for order in run.order] == [[int(c) for c in plan if c.isdigit()]] * n
        for rank, order in enumerate(run.order):
            assert [c.name for c in order.calls] == ["all_reduce"] * sum(c in "bs" for c in plan)
            assert (
                sum(c.nbytes for c in order.calls) + sum(8 * n * mark for mark in order.announced)
                == run.bytes_sent[rank]
            )
            for mark, (begun, over) in PLANS[plan].items():
                assert len(order.begun_by(mark)) == begun, (plan, mark, run is here)
                ended = len(order.over_by(mark))
                assert ended == over if run is here or over == begun else ended <= begun, (plan, mark, run is here)
    assert [[c.nbytes for c in o.calls] for o in here.order] == [[c.nbytes for c in o.calls] for o in there.order]


def test_a_call_that_just_began_is_not_over_behind_a_switch():
    with open_sandbox([ANSWER], Pace(4.0).limits()) as box:
        student = SandboxStudent(box, 1, "an-exercise", Pace(4.0))
        for n in (2, 3):
            run = student.run("my_calls", n, plan="1b2b3", nap=0.0)
            for order in run.order:
                assert [order.calls.index(c) for c in order.over_by(3)] == [0]  # the announcement of 2 was long enough
                assert order.over_by(2) == []


@pytest.mark.parametrize("name", few(BOTH))
def test_the_sandbox_and_the_notebook_give_the_same_marks(name):
    animal = next(a for a in animals(CHAPTER) if a.body.__name__ == name)
    there = judged(CHAPTER, animal.exercise, {animal.entry: animal.body})
    opened = exercises(CHAPTER)
    sources = [preamble(source(CHAPTER), opened), animal.source, memory.PROBE]
    with open_sandbox(sources, Pace(4.0).limits()) as box:
        here = opened.judge(animal.exercise, SandboxStudent(box, 20_26, animal.exercise, Pace(4.0)))
    assert [(m.name, m.state, m.points) for m in here.marks] == [(m.name, m.state, m.points) for m in there.marks], (
        sentences(here),
        sentences(there),
    )
    assert animal.right == (here.state == "right") and animal.says in sentences(here)


def test_a_right_answer_is_no_matter_of_luck_when_threads_come_late(monkeypatch):
    """The stream's thread may sleep as long as it likes before it sends: the evidence stays."""
    animal = next(a for a in animals(CHAPTER) if a.body.__name__ == "gradients_live_in_their_buckets")

    def late(batch, group, widths, bucket_bytes):
        run = group.run_collective

        def slow(name, algorithm, body, *args, **kwargs):
            def later(*a, **k):
                time.sleep(0.005 * (1 + group.rank))
                return body(*a, **k)

            return run(name, algorithm, later, *args, **kwargs)

        group.run_collective = slow
        return animal.body(batch, group, widths, bucket_bytes)

    outcome = judged(CHAPTER, "overlap", {"my_step": late})
    assert outcome.state == "right", sentences(outcome)


def test_announcements_come_before_the_gradients_of_their_layer():
    def backward(group, widths):
        model = announce_backward(MLP(MLPConfig(tuple(widths))), group)
        there = []
        for number, layer in enumerate(model.layers, 1):
            for p in layer.parameters():
                p.register_post_accumulate_grad_hook(lambda p, number=number: there.append((number, group_sent(group))))
        F.mse_loss(model(torch.ones(2, widths[0])), torch.zeros(2, widths[-1])).backward()
        return there

    def group_sent(group):
        return sum(messages for _, messages in group.context.recorder.page.counters())

    run = labkit.launch(backward, 3, [4, 5, 6, 3])
    for rank in run.results:
        assert [number for number, _ in rank] == [3, 3, 2, 2, 1, 1]
        assert [sent for _, sent in rank] == [12, 12, 24, 24, 36, 36]
    alone = labkit.launch(backward, 1, [4, 5, 3])
    assert [sent for _, sent in alone.results[0]] == [0] * 4


def delivery(src, operation, call, round, nbytes=8, dtype="float32", group=1):
    return SimpleNamespace(
        src=src, operation=operation, call=call, round=round, nbytes=nbytes, dtype=dtype, group=group
    )


def test_rounds_of_a_switch_as_an_order():
    """Messages of the same round were under way together: the call had begun, and was not over."""
    for order_in_log in itertools.permutations([delivery(0, 5, 1, 2), delivery(0, 0, 0, 2, 3, "uint8")]):
        (order,) = order_of_rounds([*order_in_log, delivery(0, 5, 1, 3), delivery(0, 0, 0, 4, 2, "uint8")], 1)
        assert [len(order.begun_by(m)) for m in (3, 2)] == [1, 1] and [len(order.over_by(m)) for m in (3, 2)] == [0, 1]
        assert order.announced == [3, 2] and order.calls[0].nbytes == 16
    both = order_of_rounds([delivery(0, 5, 1, 1, group=1), delivery(0, 5, 1, 2, group=2)], 1)[0]
    assert len(both.calls) == 2  # the first call of each of two groups


def test_two_passes_announce_twice_and_the_last_counts():
    calls = (Call("all_reduce", 8, (5,), (9,)),)
    order = Order(calls, (Mark(2, (1,)), Mark(2, (2,)), Mark(1, (3,)), Mark(2, (6,)), Mark(2, (7,)), Mark(1, (8,))))
    assert order.announced == [2, 1, 2, 1]
    assert order.begun_by(2) == list(calls) and order.over_by(2) == [] and order.begun_by(7) == list(calls)


def test_a_run_that_watches_memory_has_no_order():
    run = NotebookStudent({"f": lambda group: collectives.all_reduce(torch.ones(3), group)}, 1, "e").run(
        "f", 2, memory=True
    )
    assert run.order == [] and run.failure is None
