"""Every collective of labkit over the switch: the results, bytes and messages that the `local` transport has."""

from __future__ import annotations

import pytest
import torch
from collectives import cases
from slices import few

import labkit
from labkit.grading.sandbox import Limits, open_sandbox
from labkit.world import machine

pytestmark = pytest.mark.ranks

SHAPES = [(), (0,), (7,), (8, 2), (131_075,)]

SOURCE = """
import torch
from labkit.collectives import ALGORITHMS

DTYPES = {str(d).removeprefix("torch."): d for d in vars(torch).values() if isinstance(d, torch.dtype)}

def everything(mine, group, plan):
    results = []
    for (collective, algorithm, op, root), x in zip(plan, mine):
        function = ALGORITHMS[collective][algorithm]
        options = {}
        if collective == "barrier":
            results.append(function(group))
            continue
        if collective == "scatter":
            like = torch.empty_like(torch.tensor_split(x, group.size)[group.rank])
            results.append(function(x if group.rank == root else None, group, root=root, like=like))
            continue
        if op:
            options["op"] = op
        if root >= 0:
            options["root"] = root
        results.append(function(x, group, **options))
    return results
"""


@pytest.fixture(scope="module")
def box():
    with open_sandbox([SOURCE], Limits(seconds=60, wait=20)) as opened:
        yield opened


@pytest.fixture(autouse=True)
def typical_links(monkeypatch):
    monkeypatch.setattr(machine, "link_model", lambda transport: None)


def plan_for(size):
    plan = []
    for n, (collective, algorithm) in enumerate(cases.algorithms(*cases.DATA, native=False)):
        if not cases.fits(algorithm, size, size):
            continue
        for i, shape in enumerate(SHAPES):
            if collective in cases.CUTTING and not shape:
                continue
            op, dtype = cases.REDUCIBLE[(7 * n + 3 * i) % len(cases.REDUCIBLE)] if i < 4 else ("sum", torch.float32)
            root = (n + i) % size if collective in cases.ROOTED else -1
            plan.append((collective, algorithm, shape, dtype, op if collective in cases.REDUCING else "", root))
    plan.append(("barrier", "dissemination", (), torch.float32, "", -1))
    return plan


def locally(group, mine, plan):
    names = {}
    exec(SOURCE, names)
    return names["everything"](mine[group.rank], group, plan)


@pytest.mark.parametrize("size", few([3, 1, 2, 5], 2))
def test_results_bytes_and_messages_are_those_of_local(box, size):
    plan = plan_for(size)
    mine = [[cases.small_numbers(r, shape, dtype) for _, _, shape, dtype, _, _ in plan] for r in range(size)]
    asked = [(c, a, op, root) for c, a, _, _, op, root in plan]
    e = box.call("everything", size, mine, {"plan": asked})
    assert e.failure is None, e.failure
    run = labkit.launch(locally, size, mine, asked, transport="local")
    for r in range(size):
        for what, here, there in zip(plan, e.results[r], run.results[r], strict=True):
            assert cases.same(here, there), (r, what)
    assert e.bytes_between == run.trace.bytes_between()
    assert e.messages == run.trace.messages()
    assert all(d.ended > d.begun for d in e.order) and sum(e.messages) == len(e.order)


def test_point_to_point_subgroups_and_rebuild(box):
    source = """
import torch
def f(x, group):
    out = []
    if group.size > 2:
        trio = group.subgroup([2, 0, 1]) if group.rank < 3 else None
        if trio is not None:
            handle = trio.isend(x, (trio.rank + 1) % 3)
            out.append(trio.irecv(torch.zeros_like(x), (trio.rank - 1) % 3).wait())
            handle.wait()
    half = group.split(group.rank % 2)
    from labkit.collectives import all_reduce
    out.append(all_reduce(x.clone(), half))
    new = group.rebuild(range(group.size))
    out.append(all_reduce(x.clone(), new, async_op=True).wait())
    if group.rank == 0:
        new.send(x, 1)
    elif group.rank == 1:
        out.append(new.recv(torch.zeros_like(x), 0))
    new.barrier()
    return out
"""
    xs = [torch.arange(6.0) + 10 * r for r in range(4)]
    with open_sandbox([source], Limits(seconds=20)) as own:
        e = own.call("f", 4, xs)
    assert e.failure is None, e.failure
    assert torch.equal(e.results[0][0], xs[2]) and torch.equal(e.results[2][0], xs[1])
    assert torch.equal(e.results[3][0], xs[1] + xs[3])
    assert all(torch.equal(r[-1 if n != 1 else -2], sum(xs)) for n, r in enumerate(e.results))
    assert torch.equal(e.results[1][-1], xs[0])


def test_a_mismatch_is_named_as_ever():
    with open_sandbox(
        ["def f(x, group):\n    return group.exchange(x, 1 - group.rank, x.clone(), 1 - group.rank)"]
    ) as box:
        e = box.call("f", 2, [torch.zeros(3), torch.zeros(4)])
    assert e.failure is not None and e.failure.kind == "wire" and e.failure.error == "Mismatch"
    assert "float32[3]" in e.failure.text and "float32[4]" in e.failure.text


def test_without_a_wall_only_on_request():
    from labkit.grading.sandbox import Unavailable

    with pytest.raises(Unavailable, match="untrusted_ok"):
        open_sandbox(["x = 1"], tier="none")
    with open_sandbox(["x = 1"], tier="none", untrusted_ok=True) as box:
        assert box.value("x").results == [1] and "NOT A SANDBOX" in box.report()
        assert box.call("x", 0).failure is not None


def test_the_stub_the_syntax_error_and_the_missing_name_are_told_apart():
    with open_sandbox(["def f(x, group):\n    raise NotImplementedError('say what to do')", "g = 1"]) as box:
        assert box.call("f", 2, [1, 2]).failure.error == "NotImplementedError"
        assert box.call("h", 2, [1, 2]).failure.kind == "missing"
        assert "<answer 1>" in box.call("f", 2, [1, 2]).failure.traceback
    with open_sandbox(["def f(:"]) as box:
        assert box.call("f", 1, [1]).failure.error == "SyntaxError"


def test_a_call_is_repeatable():
    source = "import torch, random\ndef f(x, group):\n    return torch.rand(3), random.random()"
    with open_sandbox([source]) as box:
        a, b, c = (box.call("f", 2, [0, 0], seed=s).results for s in (1, 1, 2))
    assert torch.equal(a[0][0], b[0][0]) and a[0][1] == b[0][1] and not torch.equal(a[0][0], c[0][0])


ROUNDS = """
from labkit.collectives import ALGORITHMS
import torch
def f(x, group, collective, algorithm):
    return ALGORITHMS[collective][algorithm](x, group)
def busy(x, group):  # a slow rank adds no round
    if group.rank == 1:
        for _ in range(60): torch.ones(300, 300) @ torch.ones(300, 300)
    return ALGORITHMS["all_reduce"]["ring"](x, group)
"""


@pytest.mark.parametrize("n", few([3, 2, 5]))
def test_rounds(n):
    log = (n - 1).bit_length()
    with open_sandbox([ROUNDS], Limits(seconds=20)) as box:
        for collective, algorithm, wanted in (
            ("all_reduce", "ring", 2 * (n - 1)), ("reduce_scatter", "ring", n - 1), ("all_gather", "bruck", log),
            ("broadcast", "tree", log), ("broadcast", "naive", n - 1),
        ):  # fmt: skip
            which = {"collective": collective, "algorithm": algorithm}
            got = [box.call("f", n, [torch.ones(4 * n)] * n, which, rounds=True) for _ in range(3)]
            assert all(e.failure is None for e in got), got[0].failure
            assert len({e.rounds for e in got}) == 1, (collective, algorithm, [e.rounds for e in got])
            assert got[0].rounds == wanted, (collective, algorithm, got[0].rounds)
        assert box.call("busy", n, [torch.ones(4 * n)] * n, rounds=True).rounds == 2 * (n - 1)
        assert box.call("busy", n, [torch.ones(4 * n)] * n).rounds == 0
