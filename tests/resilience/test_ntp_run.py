"""A job that loses ranks and gets them back trains as if nothing had happened: the same losses, the same weights."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from slices import REBUILDABLE, few
from torch import nn

from labkit import Hang, Kill
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.parallel import ColumnParallelLinear, RowParallelLinear
from labkit.resilience.deadlines import Deadlines
from labkit.resilience.ntp import NtpConfig, NtpFailed, Replicas, run_ntp
from labkit.wire.errors import RefusedError

pytestmark = pytest.mark.ranks

# 12 heads do not divide by 5, 7 or 8; 61 ids by nothing; 90 columns by no 4 or 7.
MODEL = GPTConfig(vocab=61, context=12, layers=2, heads=12, width=36, expansion=5)
GROUPED = GPTConfig(vocab=61, context=12, layers=1, heads=16, kv_heads=8, width=32, tied=False)
BATCH, STEPS = 9, 8


def examples(numbers):
    return (numbers[:, None] * 13 + torch.arange(13)) * 7 % 61


def slowly(numbers):
    time.sleep(0.15)
    return examples(numbers)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=3e-3)


def config(*widths, **options):
    options = {"batch": BATCH, "dtype": torch.float64, "bucket_bytes": 8192} | options
    return NtpConfig(options.pop("model", MODEL), examples, options.pop("optimizer", adamw), widths, **options)


def single_device(model_config, steps=STEPS, optimizer=adamw):
    """The same training in one process: losses and weights."""
    model = GPT(model_config, seed=0).double()
    steps_of, losses = optimizer(list(model.parameters())), []
    for step in range(steps):
        tokens = examples(torch.arange(step * BATCH, (step + 1) * BATCH))
        loss = next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])
        steps_of.zero_grad()
        loss.backward()
        steps_of.step()
        losses.append(loss.item())
    return losses, {name: p.detach() for name, p in model.named_parameters()}


def same(run, losses, weights):
    """The run's losses and weights are these, and all replicas have the same."""
    assert len(run.losses) == len(losses)
    assert max(abs(a - b) for a, b in zip(run.losses, losses, strict=True)) < 1e-10
    for result in run.finished:
        trained = [a.loss for a in result.attempts if a.loss is not None]
        assert trained == run.losses[len(run.losses) - len(trained) :]  # none, for one that came back at the end
        if result.weights is not None:
            assert all(torch.equal(result.weights[name], run.weights[name]) for name in weights)
    assert run.weights.keys() == weights.keys()
    assert max(float((run.weights[name] - weights[name]).abs().max()) for name in weights) < 1e-9


@pytest.fixture(scope="module")
def alone():
    return single_device(MODEL)


@pytest.mark.parametrize("widths", few([(4, 3), (3, 2, 4), (3,), (4, 4), (4, 2)], one=True), ids=str)
@pytest.mark.parametrize("transport", few(REBUILDABLE))
def test_replicas_of_any_widths_train_as_one_device(transport, widths, alone):
    run = run_ntp(config(*widths), STEPS, transport=transport).require()
    same(run, *alone)
    assert run.widths == [widths] * STEPS and not run.incidents


@pytest.mark.parametrize("lost", few([6, *range(6), 7]))
@pytest.mark.parametrize("transport", REBUILDABLE)
def test_any_rank_is_lost_and_comes_back(transport, lost):
    """Steps take a moment, so that a new process is there before the others are through."""
    job = replace(config(4, 4, repair_steps=2), examples=slowly)
    run = run_ntp(job, 2 * STEPS, faults=[Kill(lost, step=2)], transport=transport).require()
    same(run, *single_device(MODEL, 2 * STEPS))
    narrow = (3, 4) if lost < 4 else (4, 3)
    assert run.widths[:4] == [(4, 4), (4, 4), narrow, narrow] and set(run.widths) == {(4, 4), narrow}
    assert run.results[lost].incarnation == 2 and len(run.incidents) == 1


def halves(numbers):
    assert len(numbers) in (4, 5), "as many in each replica"
    return examples(numbers)


def test_stronger_ranks_train_as_many_examples_as_a_whole_replica(alone):
    job = replace(config(3, 3, stronger=True), examples=halves)
    narrow = Replicas.of(3, 1)
    assert job.shares(narrow) == [5, 4] and replace(job, stronger=False).shares(narrow) == [7, 2]
    run = run_ntp(job, STEPS, faults=[Kill(4, step=2), Kill(5, step=2)]).require()
    same(run, *alone)
    assert run.widths[-1] == (3, 1)


def test_without_a_repair_it_stays_narrow(alone):
    run = run_ntp(config(4, 4), STEPS, faults=[Kill(2, step=1), Kill(5, step=4), Kill(7, step=4)]).require()
    same(run, *alone)
    assert run.widths == [(4, 4)] + [(3, 4)] * 3 + [(3, 2)] * 4
    assert [r is None or not r.finished for r in run.results] == [rank in (2, 5, 7) for rank in range(8)]


def test_a_replica_that_is_lost_whole_is_left_out(alone):
    run = run_ntp(config(2, 2, repair_steps=2), STEPS, faults=[Kill(2, step=2), Kill(3, step=2)]).require()
    same(run, *alone)
    assert (2,) in run.widths and run.widths[:2] == [(2, 2)] * 2, (run.attempts, run.incidents)


@pytest.mark.parametrize("place", few(["agree", "forward", "backward", "update", "arrange"]))
@pytest.mark.parametrize("transport", few(REBUILDABLE))
def test_it_may_happen_anywhere(transport, place, alone):
    """In "agree" and "update" some ranks may have all that is needed for the update, and some may have made it."""
    faults = [Kill(4, at=place, nth=1 if place == "arrange" else 3)]
    run = run_ntp(config(3, 3, repair_steps=2), STEPS, faults=faults, transport=transport)
    same(run.require(), *alone)


@pytest.mark.long
def test_grouped_heads_untied_and_momentum():
    def sgd(parameters):
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)

    wanted = single_device(GROUPED, optimizer=sgd)
    job = config(4, 3, model=GROUPED, optimizer=sgd, repair_steps=2)
    run = run_ntp(job, STEPS, faults=[Kill(1, step=2), Kill(6, step=4)]).require()
    same(run, *wanted)
    assert (3, 3) in run.widths


@pytest.mark.parametrize("transport", few(REBUILDABLE))
def test_a_rank_that_hangs_is_left_out(transport, alone):
    job = config(3, 3, repair_steps=1, deadlines=Deadlines.for_step(0.15, least=0.4))
    run = run_ntp(job, STEPS, faults=[Hang(1, step=3)], transport=transport).require()
    same(run, *alone)
    assert (2, 3) in run.widths


@pytest.mark.parametrize("repair_steps", [None, 2])  # also who would come back does not wait for what cannot
def test_what_is_on_no_rank_any_more_is_said_on_all(repair_steps):
    """The whole of one replica, and a rank of the other: its shards are gone."""
    run = run_ntp(config(2, 2, repair_steps=repair_steps), STEPS, faults=[Kill(r, step=3) for r in (1, 2, 3)])
    with pytest.raises(NtpFailed, match="is on no rank any more.*Begin again from a checkpoint"):
        run.require()
    assert not run.finished


CHAOS = 60


@pytest.mark.parametrize("seed", few(range(CHAOS)))
def test_ranks_are_lost_at_random(seed, alone):
    """Ranks of all replicas but the first, which keeps every shard; any number at a time, anywhere."""
    draw = random.Random(seed)
    widths = draw.choice([(4, 4), (3, 3), (2, 4), (3, 2, 3)])
    size = sum(widths)
    places = ["forward", "backward", "agree", "update", "arrange"]
    faults = []
    for rank in draw.sample(range(widths[0], size), draw.randint(1, 3)):
        at = draw.choice(places)
        faults.append(Kill(rank, at=at, nth=draw.randint(1, 1 if at == "arrange" else STEPS - 1)))
    run = run_ntp(config(*widths, repair_steps=draw.choice([1, 2, None])), STEPS, faults=faults)
    same(run.require(), *alone)


REFUSALS = {
    "a width of zero": (lambda: config(4, 0), "each replica needs one rank or more"),
    "too wide": (lambda: config(13), "heads: 12 shards for a replica of 13 ranks"),
    "a batch too small": (lambda: config(2, 2, batch=1), "a batch of 1 for 2 replicas"),
    "repair": (lambda: config(2, 2, repair_steps=0), "repair_steps=0"),
    "beat": (lambda: config(2, 2, beat=60.0), "signs of life"),
    "attempts": (lambda: config(2, 2, max_attempts=0), "max_attempts=0"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_what_cannot_be_is_refused(case):
    make, words = REFUSALS[case]
    with pytest.raises(RefusedError, match=words):
        make()


class Own(nn.Module):
    """Not a GPT: layers of PyTorch, two of which are cut into 10 shards; alone they are whole."""

    def __init__(self, group=None, shards=None):
        super().__init__()
        self.scale = nn.Linear(6, 6)  # every rank holds all of it
        up, down, self.norm = nn.Linear(6, 20), nn.Linear(20, 3), nn.LayerNorm(6)
        self.up = up if group is None else ColumnParallelLinear.of(up, group, shards=shards(10))
        self.down = down if group is None else RowParallelLinear.of(down, group, shards=shards(10))

    def forward(self, x, y):
        return F.cross_entropy(self.down(self.up(self.norm(self.scale(x)).tanh()).relu()), y)


def pairs(numbers):
    x = torch.stack([torch.sin(numbers * (k + 1.0)) for k in range(6)], 1).double()
    return x, numbers % 3


@pytest.mark.parametrize("widths", [(3, 2), (5,)], ids=str)
def test_a_model_of_ones_own_trains_as_on_one_device(widths):
    torch.manual_seed(7)
    model, losses = Own().double(), []
    optimizer = adamw(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(*pairs(torch.arange(step * BATCH, (step + 1) * BATCH)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    job = replace(config(*widths, model=Own, seed=7, repair_steps=2), examples=pairs)
    run = run_ntp(job, STEPS, faults=[Kill(1, step=2)] if len(widths) > 1 else []).require()
    same(run, losses, {n: p.detach() for n, p in model.named_parameters()})
    assert ((2, 2) in run.widths) == (len(widths) > 1) and run.widths[:2] == [widths] * 2


def test_a_model_that_is_no_function_or_too_narrow_is_refused():
    with pytest.raises(RefusedError, match="makes a module"):
        config(2, 2, model=nn.Linear(3, 3))
    with pytest.raises(NtpFailed, match="10 shards for 11 ranks"):
        run_ntp(replace(config(11, model=Own), examples=pairs), 2).require()
    with pytest.raises(NtpFailed, match="the buffer running_mean would not follow"):
        run_ntp(replace(config(1, 1, model=lambda group, shards: nn.BatchNorm1d(6)), examples=pairs), 2).require()
    even = replace(config(2, 1, model=lambda group, shards: ColumnParallelLinear(4, 4, group)), examples=pairs)
    with pytest.raises(NtpFailed, match="weight is cut evenly: give its layer the shards"):
        run_ntp(even, 2).require()
