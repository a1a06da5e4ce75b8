"""A run that stops and goes on: bit for bit as if it had never stopped; and in another world, cut in another way."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
from slices import few
from torch import nn

from labkit import collectives, launch
from labkit.models import GPT, GPTConfig, next_token_loss
from labkit.parallel import AdamW, DataParallel, FullyShard, Mesh, Pipeline, TensorParallelGPT, ZeRO1, ZeRO2, ZeRO3
from labkit.parallel.pipeline import one_f_one_b
from labkit.parallel.pipeline.running.stages import gpt_stages
from labkit.resilience.checkpoint import Checkpointer, Feed, NotSaved, read

pytestmark = pytest.mark.ranks

CONFIG = GPTConfig(context=8, layers=2, width=24, heads=6, vocab=31)
TOKENS = torch.arange(48 * 9).reshape(48, 9) * 7 % 31


class Plain:
    """A model that every rank holds, and its step; the others differ in a few lines."""

    def __init__(self, group, config=CONFIG, seed=0):
        self.group = group
        self.model = self.build(config, seed)
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2, eps=1e-5)

    def build(self, config, seed):
        return DataParallel(GPT(config, seed), self.group)

    def parameters(self):
        return self.model.parameters()

    def batch(self, feed):
        return TOKENS[next(feed)]

    def step(self, feed):
        tokens = self.batch(feed)
        self.model.zero_grad()
        loss = next_token_loss(self.model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        self.optimizer.step()
        return loss.item()


class Sharded(Plain):
    def build(self, config, seed):
        return FullyShard(GPT(config, seed), self.group)


class Zero(Plain):
    kind = ZeRO2

    def __init__(self, group, config=CONFIG, seed=0):
        self.group, self.optimizer = group, None
        self.model = self.kind(GPT(config, seed), group, AdamW(lr=1e-2, eps=1e-5), "single")

    def step(self, feed):
        tokens = self.batch(feed)
        self.model.zero_grad()
        loss = next_token_loss(self.model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        self.model.step()
        return loss.item()


class Zero1(Zero):
    kind = ZeRO1


class Zero3(Zero):
    kind = ZeRO3


class Tensors(Plain):
    def build(self, config, seed):
        return TensorParallelGPT(config, self.group, seed=seed)

    def batch(self, feed):
        every = Feed(48, (0, 1), batch=12, seed=3)
        every.load_state_dict(feed.state_dict())
        next(feed)
        return TOKENS[next(every)]


class Piped(Tensors):
    def build(self, config, seed):
        self.pipeline = Pipeline(gpt_stages(config, (self.group.size, 1), self.group, seed=seed), self.group,
                                 next_token_loss)  # fmt: skip
        return self.pipeline

    def parameters(self):
        return [p for m in self.pipeline.modules for p in m.parameters()]

    def step(self, feed):
        tokens = self.batch(feed)
        self.optimizer.zero_grad()
        result = self.pipeline.execute(one_f_one_b(self.group.size, 3), tokens[:, :-1], tokens[:, 1:])
        self.optimizer.step()
        return None if result.loss is None else result.loss.item()


def feed_of(group):
    return Feed(48, group, batch=12 // group.size, seed=3)


def seed_all(number):
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


def run(group, way, directory, begin, end, kind="sharded", draw=True, seed=0):
    """Train from step `begin` to `end`; load first unless at the beginning, save at the end."""
    state, feed = way(group, seed=seed), feed_of(group)
    losses = []
    with Checkpointer(directory, group, state.model, state.optimizer, loader=feed, kind=kind) as checkpoints:
        loaded = checkpoints.load() if begin else None
        assert (loaded.step if loaded else 0) == begin
        for _ in range(begin, end):
            losses.append(state.step(feed))
        checkpoints.save(end)
    drawn = (torch.rand(2).tolist(), random.random(), numpy.random.rand()) if draw else ()
    return losses, drawn, feed.state_dict()


ALL = [(Plain, 2), (Sharded, 3), (Zero1, 2), (Zero, 3), (Zero3, 2), (Tensors, 2), (Piped, 2)]


@pytest.mark.parametrize(("way", "size"), ALL, ids=lambda x: getattr(x, "__name__", x))
def test_it_goes_on_bit_for_bit(way, size, tmp_path):
    kind = "full" if way in (Sharded, Piped) else "sharded"

    def both(group):
        seed_all(group.rank)
        without = run(group, way, tmp_path / "without", 0, 4)
        seed_all(group.rank)
        run(group, way, tmp_path / "with", 0, 2, kind, draw=False)
        seed_all(77)  # whatever a new process has drawn
        return without, run(group, way, tmp_path / "with", 2, 4, kind, seed=5)

    for without, again in launch(both, size, transport="local").results:
        assert again[0] == without[0][2:] and again[1:] == without[1:]
    whole, pieces = read(tmp_path / "without", ""), read(tmp_path / "with", "")
    assert whole.keys() == pieces.keys() and all(torch.equal(whole[k], pieces[k]) for k in whole)


MOVES = [(Plain, 2, Sharded, 3), (Sharded, 4, Sharded, 3), (Sharded, 3, Tensors, 2), (Tensors, 3, Tensors, 2),
         (Tensors, 2, Piped, 2), (Piped, 2, Zero3, 3), (Zero, 2, Plain, 1), (Zero3, 2, Tensors, 3),
         (Plain, 1, Zero1, 2)]  # fmt: skip


@pytest.fixture(scope="module")
def smooth(tmp_path_factory):
    """The weights after four steps on one rank."""
    directory = tmp_path_factory.mktemp("smooth")
    launch(run, 1, Plain, directory, 0, 4, transport="local")
    return read(directory)


@pytest.mark.parametrize(
    ("before", "n", "after", "m"), few(MOVES[2:] + MOVES[:2], 4), ids=lambda x: getattr(x, "__name__", x)
)
def test_it_goes_on_in_another_world_cut_in_another_way(before, n, after, m, tmp_path, smooth):
    directory = tmp_path / "runs"
    launch(run, n, before, directory, 0, 2, transport="local")
    saved = read(directory, "")

    def go_on(group):
        state = after(group, seed=9)
        with Checkpointer(directory, group, state.model, state.optimizer) as checkpoints:
            assert checkpoints.load().ranks == n
        with Checkpointer(tmp_path / "copy", group, state.model, state.optimizer) as checkpoints:
            checkpoints.save(2)
        run(group, after, directory, 2, 4)

    launch(go_on, m, transport="local")
    again = read(tmp_path / "copy", "")
    names = [k for k in saved if "random/" not in k]
    assert sorted(names) == sorted(k for k in again if "random/" not in k)
    assert [k for k in names if not torch.equal(again[k], saved[k])] == []
    here = read(directory)
    assert max((here[k] - smooth[k]).abs().max().item() for k in smooth) < 1e-4


@pytest.mark.parametrize(("way", "axis"), [(Piped, "pp"), (Tensors, "tp")])
def test_on_a_mesh_every_number_is_written_once(way, axis, tmp_path):
    def two_by_two(group):
        mesh = Mesh(group, {"dp": 2, axis: 2})
        state = way(mesh[axis])
        state.step(Feed(48, (0, 1), batch=12, seed=3))
        with Checkpointer(tmp_path / "run", group, state.model, state.optimizer) as checkpoints:
            saved = checkpoints.save(1)
        try:
            Checkpointer(tmp_path / str(mesh.coordinates[axis]), mesh["dp"], state.model).save(1)
        except NotSaved as why:
            return saved.nbytes, str(why), checkpoints.training.stream
        return saved.nbytes, "", checkpoints.training.stream

    found = launch(two_by_two, 4, transport="local").results
    everything = read(tmp_path / "run", "")
    whole = sum(x.nbytes for x in everything.values())
    assert sum(nbytes for nbytes, *_ in found) == whole and max(nbytes for nbytes, *_ in found) < 0.4 * whole
    streams = [stream for *_, stream in found]
    if way is Piped:
        assert all(why == "" for _, why, _ in found) and streams == ["0", "1", "2", "3"]
    else:  # a column of the mesh has but half of each matrix
        assert all("elements are there" in why and "not of one axis" in why for _, why, _ in found)
        assert streams == ["0", "0", "2", "2"]


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x):
        return self.inner(x)


def test_statistics_random_numbers_schedule_and_momentum_of_each_rank(tmp_path):
    def half(group, directory, end):
        torch.manual_seed(0)
        model = Normed()
        torch.manual_seed(group.rank + 1)
        optimizer = torch.optim.SGD(
            [{"params": model.inner[0].parameters(), "lr": 0.1}, {"params": [*model.inner[1:].parameters()]}],
            lr=0.2, momentum=0.9)  # fmt: skip
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        seen = {"steps": 0, "losses": []}
        checkpoints = Checkpointer(directory, group, model, optimizer, scheduler=schedule, extra=lambda: seen)
        loaded = checkpoints.load()
        if loaded:
            seen |= loaded.extra
        while seen["steps"] < end:
            optimizer.zero_grad()
            loss = model(torch.randn(6, 3)).square().mean()
            loss.backward()
            for p in model.parameters():
                collectives.all_reduce(p.grad, group)
            optimizer.step()
            schedule.step()
            seen["steps"] += 1
            seen["losses"].append(0.0 if group.rank else loss.item())
        checkpoints.save(end)
        checkpoints.close()
        return {k: v.clone() for k, v in model.state_dict().items()}, schedule.get_last_lr(), torch.rand(1)

    launch(half, 2, tmp_path / "with", 3, transport="gloo")
    halves = launch(half, 2, tmp_path / "with", 6, transport="gloo")
    whole = launch(half, 2, tmp_path / "without", 6, transport="gloo")
    for (a, lr, x), (b, rates, y) in zip(halves.results, whole.results, strict=True):
        assert lr == rates and lr[0] < 0.1 and x == y
        assert all(torch.equal(a[k], b[k]) for k in b)
    means = [a["inner.1.running_mean"] for a, *_ in halves.results]
    assert not torch.equal(*means)  # each rank has its own
    assert "scratch" not in read(tmp_path / "with", "buffer/")


def test_new_ranks_draw_new_numbers_and_old_ones_go_on(tmp_path):
    def draw(group, rand):
        model = nn.Linear(2, 2)
        torch.manual_seed(group.rank)
        with Checkpointer(tmp_path, group, model) as checkpoints:
            if rand is None:
                checkpoints.save(1)
            else:
                checkpoints.load()
        return torch.rand(1).item()

    before = launch(draw, 2, None, transport="local").results
    same = launch(draw, 2, 1, transport="local").results
    more = launch(draw, 4, 1, transport="local").results
    again = launch(draw, 4, 1, transport="local").results
    assert same == before == more[:2] and more == again and len(set(more)) == 4
