"""What cannot work is refused on every rank at once, in words; what breaks in the middle ends the run by name."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from slices import SLOW_WIRES
from torch import nn

import labkit
from labkit import RankFailed
from labkit.models import GPTConfig
from labkit.parallel.pipeline import (
    Backward,
    Costs,
    Forward,
    Pipeline,
    RecvActivation,
    RecvGradient,
    Schedule,
    ScheduleError,
    SendActivation,
    SendGradient,
    execute,
    gpipe,
    gpt_stages,
    interleaved,
    one_f_one_b,
    pipedream,
    with_messages,
)
from labkit.wire.errors import RefusedError

pytestmark = pytest.mark.ranks

X, Y = torch.ones(6, 4), torch.ones(6, 4)
GPT_4 = GPTConfig(layers=4, width=8, heads=2)


class Gives(nn.Module):
    """Returns what `what` makes of its product."""

    def __init__(self, what):
        super().__init__()
        self.layer, self.what = nn.Linear(4, 4), what

    def forward(self, x):
        return self.what(self.layer(x))


def run(schedule, modules=None, x=X, y=Y, loss=F.mse_loss, **options):
    """A case: what a rank does with its group."""

    def case(group):
        mine = nn.Linear(4, 4) if modules is None else modules(group.rank)
        own = schedule(group.rank) if callable(schedule) else schedule
        execute(own, mine, group, x, y, loss, **options)

    return case


def moved(rank, there, at):
    """1F1B of 3 ranks in which two instructions of `there` are exchanged on the rank `rank` alone."""
    lists = [list(r) for r in one_f_one_b(3, 3).ranks]
    if rank == there:
        lists[at][1], lists[at][2] = lists[at][2], lists[at][1]
    return Schedule(lists, 3, name="one_f_one_b")


MISSING = Schedule(
    [[Forward(0), Forward(1), Backward(0), Backward(1)]] * 2 + [[Forward(0), Backward(0), Forward(1)]], 2
)
ONE_BY_ONE = [Forward(0), Backward(0), Forward(1), Backward(1)]
CYCLE = Schedule([ONE_BY_ONE, ONE_BY_ONE, [Forward(1), Forward(0), Backward(0), Backward(1)]], 2)

CASES = {
    "zero microbatches": (lambda group: one_f_one_b(3, 0), ["microbatches", "0"]),
    "fewer examples than microbatches": (run(one_f_one_b(3, 8)), ["6 examples", "8 microbatches", "6 microbatches or"]),
    "no examples": (run(one_f_one_b(3, 2), x=X[:0], y=Y[:0]), ["0 examples"]),
    "more targets than inputs": (run(one_f_one_b(3, 2), y=Y[:4]), ["6 examples", "4 in `targets`"]),
    "inputs missing": (run(one_f_one_b(3, 2), x=None), ["inputs=NoneType", "first stage"]),
    "sizes that do not add up": (run(one_f_one_b(3, 2), sizes=[4, 4]), ["sizes=[4, 4]", "batch of 6"]),
    "nothing counts": (run(one_f_one_b(3, 2), count=lambda t: 0), ["[0, 0]", "at least one"]),
    "more stages than layers": (lambda group: gpt_stages(GPT_4, (3, 2), group),
                                ["6 stages", "4 layers", "4 stages or"]),
    "layers that do not add up": (lambda group: gpt_stages(GPT_4, (3, 1), group, layers=[2, 2, 1]), ["[2, 2, 1]", "4"]),
    "a schedule for other ranks": (run(one_f_one_b(4, 2)), ["4 ranks", "group has 3", "launch 4 ranks"]),
    "a schedule of more chunks": (run(interleaved(3, 3)), ["2 chunks", "1 modules"]),
    "no schedule": (run("1F1B"), ["Schedule", "str"]),
    "one rank without a schedule": (run(lambda rank: None if rank == 1 else gpipe(3, 2)), ["on rank 1", "NoneType"]),
    "different schedules": (run(lambda rank: gpipe(3, 2) if rank == 2 else one_f_one_b(3, 2)),
                            ["different schedules", "rank 2", "gpipe", "one_f_one_b"]),
    "different lists": (run(lambda rank: moved(rank, 2, 0)), ["list of rank 0", "instruction 1", "rank 2 has 0F2",
                                                              "rank 0 has 0F1"]),
    "one of them valid": (run(lambda rank: MISSING if rank == 2 else gpipe(3, 2)), ["different schedules", "rank 2"]),
    "different costs": (lambda group: run(gpipe(3, 2), seconds=Costs(group.rank, 1, 1))(group),
                        ["options", "seconds"]),
    "an instruction is missing": (run(MISSING), ["2B1"]),
    "a cycle": (run(CYCLE), ["deadlock", "rank 2 at 2F1 waits for 1F1 of rank 1", "1B0"]),
    "a receive is missing": (run(Schedule([[Forward(0), SendActivation(0), Backward(0)]] + [[Forward(0), Backward(0)]]
                                          * 2, 1)), ["0"]),
    "no modules": (lambda group: Pipeline([], group, F.mse_loss), ["no", "chunk"]),
    "one rank without a module": (run(gpipe(3, 2), lambda r: ["text"] if r == 1 else nn.Linear(4, 4)), ["on rank 1",
                                                                                                        "str"]),
    "different options": (lambda group: Pipeline(nn.Linear(4, 4), group, F.mse_loss, checkpoint=group.rank == 2),
                          ["rank 2", "checkpoint=True", "checkpoint=False"]),
    "another shape": (run(gpipe(3, 2), lambda r: nn.Linear(5, 4) if r == 1 else nn.Linear(4, 4)),
                      ["stage 0 sends is not what stage 1 takes", "float32[3, 4]", "3x4 and 5x4"]),
    "another dtype": (run(gpipe(3, 2), lambda r: nn.Linear(4, 4).double() if r == 2 else nn.Linear(4, 4)),
                      ["stage 1 sends is not what stage 2 takes", "float32[3, 4]", "dtype"]),
    "the loss does not fit": (run(gpipe(3, 2), y=torch.ones(6, dtype=torch.int64), loss=F.nll_loss, x=X[:, None]),
                              ["stage 2", "loss"]),
    "the first stage fails": (run(gpipe(3, 2), x=torch.ones(6, 5)), ["stage 0 raised", "float32[3, 5]", "mat1"]),
    "two tensors": (run(gpipe(3, 2), lambda r: Gives(lambda y: (y, y)) if r == 1 else nn.Linear(4, 4)),
                    ["stage 1 sends is not what stage 2 takes", "float32[3, 4] and float32[3, 4]", "3 were given"]),
    "a list": (run(gpipe(3, 2), lambda r: Gives(lambda y: [y, y]) if r == 1 else nn.Linear(4, 4)),
               ["stage 1 returns list", "a tuple of tensors"]),
    "a tensor and nothing": (run(gpipe(3, 2), lambda r: Gives(lambda y: (y, None)) if r == 0 else nn.Linear(4, 4)),
                             ["stage 0 returns a tuple of (Tensor, NoneType)"]),
    "inputs of two lengths": (run(gpipe(3, 2), x=(X, X[0])), ["6 and 4 examples", "Expand"]),
    "an input that is no tensor": (run(gpipe(3, 2), x=(X, None)), ["inputs=NoneType", "first stage"]),
    "nothing returned": (run(gpipe(3, 2), lambda r: Gives(lambda y: None) if r == 2 else nn.Linear(4, 4)),
                         ["stage 2 returns None"]),
    "whole numbers": (run(gpipe(3, 2), lambda r: Gives(lambda y: y.argmax(1)) if r == 0 else nn.Linear(4, 4)),
                      ["stage 0 returns int64[3]", "floating-point"]),
    "a loss that is no number": (run(gpipe(3, 2), loss=lambda y, t: (y - t) ** 2), ["shape (3, 4)", "mean"]),
    "updates without an optimizer": (run(pipedream(3, 2)), ["pipedream", "optimizers"]),
    "costs of other stages": (run(gpipe(3, 2), seconds=Costs([1, 1], 1, 1)), ["2 numbers", "3 stages"]),
    "tied weights of two shapes": (lambda group: Pipeline(nn.Linear(4, 4), group, F.mse_loss, tied={
        "w": nn.Parameter(torch.ones(2 + (group.rank == 2)))}), ["'w'", "(3,)", "rank 2", "(2,)"]),
}  # fmt: skip


@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_every_rank_refuses_with_the_same_words_and_goes_on(transport):
    def on_rank(group):
        found = {}
        for name, (case, _) in CASES.items():
            try:
                case(group)
            except RefusedError as refusal:
                found[name] = type(refusal).__name__, str(refusal)
        execute(one_f_one_b(3, 2), nn.Linear(4, 4), group, X, Y, F.mse_loss)  # nothing is left over
        return found

    results = labkit.launch(on_rank, 3, transport=transport).results
    for name, (_, words) in CASES.items():
        assert name in results[0], f"{name}: not refused"
        assert results[0][name] == results[1].get(name) == results[2].get(name), name
        kind, message = results[0][name]
        assert all(word in message for word in words), (name, message)
    assert {results[0][n][0] for n in ("a cycle", "an instruction is missing")} == {ScheduleError.__name__}


def test_tied_weights_cannot_be_updated_in_the_middle_of_a_step():
    def on_rank(group):
        modules = gpt_stages(GPT_4, (2, 1), group)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in modules]
        tokens = torch.zeros(4, 8, dtype=torch.int64)
        with pytest.raises(RefusedError, match="tied=False"):
            execute(pipedream(2, 2), modules, group, tokens, tokens, F.mse_loss, optimizers=optimizers)

    labkit.launch(on_rank, 2)


class Breaks(nn.Module):
    """Raises in its fourth forward: the first was the look at what it gives."""

    def __init__(self, backward):
        super().__init__()
        self.layer, self.calls, self.backward = nn.Linear(4, 4), 0, backward

    def forward(self, x):
        self.calls += 1
        y = self.layer(x)
        if self.calls == 4:
            if not self.backward:
                raise ArithmeticError("too hot")
            y.register_hook(lambda g: 1 / 0)
        return y


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("transport", SLOW_WIRES)
def test_a_stage_that_raises_in_the_middle_is_named_and_the_others_end(transport, backward):
    case = run(one_f_one_b(3, 6), lambda rank: Breaks(backward) if rank == 1 else nn.Linear(4, 4))
    with pytest.raises(RankFailed) as caught:
        labkit.launch(case, 3, transport=transport, timeout=20)
    message = str(caught.value)
    assert "rank 1" in message and ("ZeroDivisionError" if backward else "too hot") in message
    assert f"in 1{'B' if backward else 'F'}2: stage 1, microbatch 2" in message


def both_send_first():
    """Rank 0 sends an activation while rank 1 sends a gradient: each waits for the other to receive."""
    return Schedule([
        [Forward(0), SendActivation(0), Forward(1), SendActivation(1), RecvGradient(0), Backward(0), RecvGradient(1),
         Backward(1)],
        [RecvActivation(0), Forward(0), Backward(0), SendGradient(0), RecvActivation(1), Forward(1), Backward(1),
         SendGradient(1)],
    ], 2)  # fmt: skip


@pytest.mark.parametrize("transport", SLOW_WIRES)
@pytest.mark.parametrize("schedule", [both_send_first(), with_messages(one_f_one_b(3, 4), receive="late")])
def test_blocking_messages_that_cross_are_refused_and_run_as_written_diagnosed(transport, schedule):
    with pytest.raises(RankFailed, match="deadlock"):
        labkit.launch(run(schedule), schedule.size, transport=transport, timeout=20)
    with pytest.raises(RankFailed) as caught:
        labkit.launch(run(schedule, check=False), schedule.size, transport=transport, timeout=20)
    assert caught.value.failure.kind == "deadlock"
    message = str(caught.value)
    for rank in range(schedule.size):
        assert f"rank {rank}: send float32[" in message
