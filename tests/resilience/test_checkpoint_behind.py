"""Saving behind training: what is written is the state at that moment, and training does not wait."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from leftovers import NEVER
from torch import nn

from labkit import launch
from labkit.resilience.checkpoint import Checkpointer, Feed, NotSaved, available, read
from labkit.resilience.checkpoint.staging import Staging
from labkit.wire.errors import RefusedError

pytestmark = pytest.mark.ranks


class Gate:
    """Holds every write of this process back until it is opened."""

    def __init__(self):
        self.open, self.real, self.held = threading.Event(), os.write, threading.Event()

    def __enter__(self):
        def write(fd, data):
            if threading.current_thread() is not threading.main_thread():
                self.held.set()
                assert self.open.wait(20)
            return self.real(fd, data)

        os.write = write
        return self

    def __exit__(self, *_):
        self.open.set()
        os.write = self.real


def test_training_goes_on_and_the_checkpoint_is_of_the_moment(tmp_path):
    def train(group):
        torch.manual_seed(0)
        model = nn.Linear(700, 700)  # too large to be joined with others, which would be a copy
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        checkpoints = Checkpointer(tmp_path, group, model, optimizer, random=False)
        moments = {}
        for step in (1, 2):
            with Gate() as gate:
                moments[step] = {k: v.clone() for k, v in model.state_dict().items()}
                saved = checkpoints.save(step, wait=False)
                with torch.no_grad():
                    for p in model.parameters():
                        p.grad = torch.ones_like(p)
                optimizer.step()  # while nothing is on the disk yet
                assert gate.held.wait(20)  # a writer has come as far as the gate
                early = checkpoints.writing and not saved.whole and len(available(tmp_path)) < step
                group.barrier()
            stall = saved.stall
            done = checkpoints.finish()
            assert done is saved and saved.whole and saved.stall >= stall and saved.staging <= stall
            assert early
        checkpoints.close()
        return moments

    moments = launch(train, 2, transport="local").results[0]
    for found in available(tmp_path):
        state = read(found.path)
        assert all(torch.equal(state[k], moments[found.step][k]) for k in state)
    assert [f.step for f in available(tmp_path)] == [2, 1]
    assert not torch.equal(moments[1]["bias"], moments[2]["bias"])


class SlowCopy:
    """Holds every copy to host memory by another thread than the main one back until it is opened."""

    def __init__(self):
        self.open, self.real = threading.Event(), Staging.copy

    def __enter__(self):
        def copy(staging, staged, after=None):
            if threading.current_thread() is not threading.main_thread():
                assert self.open.wait(20)
            return self.real(staging, staged, after)

        Staging.copy = copy
        return self

    def __exit__(self, *_):
        self.open.set()
        Staging.copy = self.real


def trained(group, where, beside, steps=4):
    """A few steps of a net with batch statistics and dropout, saved after each; the states as they were."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(30, 300), nn.BatchNorm1d(300), nn.Dropout(0.5), nn.Linear(300, 300))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    moments = {}
    with Checkpointer(where, group, model, optimizer, keep=None) as checkpoints:
        for step in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 30)).square().mean().backward()
            optimizer.step()
            moments[step + 1] = {k: v.clone() for k, v in model.state_dict().items()}
            checkpoints.save(step + 1, wait=False, beside=beside)
    return moments


def test_a_copy_beside_training_is_that_of_the_moment(tmp_path):
    def train(group):
        return trained(group, tmp_path / "beside", True), trained(group, tmp_path / "before", False)

    one, other = launch(train, 1, transport="local").results[0]
    for moment, found in zip((one, other), (available(tmp_path / n) for n in ("beside", "before")), strict=True):
        assert [f.step for f in found] == [4, 3, 2, 1]
        for f in found:
            state = read(f.path)
            assert state and all(torch.equal(state[k], moment[f.step][k]) for k in state)
    for a, b in zip(available(tmp_path / "beside"), available(tmp_path / "before"), strict=True):
        assert (a.path / "rank-0000.data").read_bytes() == (b.path / "rank-0000.data").read_bytes()


def test_the_update_waits_for_the_copy_and_forward_does_not(tmp_path):
    def train(group):
        model = nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300))
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        seen = []
        with Checkpointer(tmp_path, group, model, optimizer) as checkpoints, SlowCopy() as copying:
            before = {k: v.clone() for k, v in model.state_dict().items()}
            saved = checkpoints.save(1, wait=False, beside=True)
            stall = saved.stall
            model(torch.randn(8, 300)).sum().backward()  # also changes batch statistics
            seen.append(not checkpoints._behind.staged.is_set())
            threading.Timer(0.3, copying.open.set).start()
            optimizer.step()
            seen += [checkpoints._behind.staged.is_set(), saved.stall - stall > 0.2, saved.staging > 0.2]
            checkpoints.finish()
            hooked = len(optimizer._optimizer_step_pre_hooks)
        return seen, hooked, len(optimizer._optimizer_step_pre_hooks), before

    seen, hooked, after, before = launch(train, 1, transport="local").results[0]
    assert seen == [True] * 4 and (hooked, after) == (1, 0)
    state = read(available(tmp_path)[0].path)
    assert all(torch.equal(state[k], before[k]) for k in state)
    assert not torch.equal(before["1.running_mean"], torch.ones(300))


def test_a_state_that_is_changed_under_the_copy_is_not_saved(tmp_path):
    def train(group):
        model = nn.Linear(300, 300)
        words = []
        checkpoints = Checkpointer(tmp_path, group, model)
        checkpoints.save(1)
        for by_hand in (False, True):
            with SlowCopy() as copying:
                checkpoints.save(2 + by_hand, wait=False, beside=True)
                if by_hand:
                    copying.open.set()
                    checkpoints.staged()
                if group.rank == 1:
                    with torch.no_grad():
                        model.weight.zero_()  # which this rank writes
            try:
                checkpoints.finish()
            except NotSaved as why:
                words.append(str(why))
        for options in ({"wait": True}, {}):
            try:
                checkpoints.save(9, beside=True, **options)
            except RefusedError as why:
                words.append(str(why))
        checkpoints.close()
        return words

    for first, *rest in launch(train, 2, transport="local").results:
        assert "step 2 was not saved. on rank 1: 'model/weight' was changed while it was copied: call staged()" in first
        assert len(rest) == 2 and all("goes with wait=False" in words for words in rest)
    assert [f.step for f in available(tmp_path)] == [3, 1]


def test_the_next_save_waits_for_the_one_before_and_says_what_went_wrong(tmp_path):
    def train(group):
        model = nn.Linear(300, 300)
        checkpoints = Checkpointer(tmp_path, group, model, keep=2, patience=NEVER)
        for step in range(1, 5):
            checkpoints.save(step, wait=False)
        checkpoints.finish()
        steps = [f.step for f in available(tmp_path)]
        real = os.fsync

        def broken(fd):
            raise OSError(5, os.strerror(5))

        words = []
        group.barrier()
        os.fsync = broken if group.rank == 1 else real
        try:
            checkpoints.save(5, wait=False)
            checkpoints.save(6, wait=False)
        except NotSaved as why:
            words.append(str(why))
        os.fsync = real
        checkpoints.save(7, wait=False)
        checkpoints.close()
        return steps, words

    # rank 0 does not sit out its patience for a part that never comes
    for steps, words in launch(train, 2, transport="local").results:
        assert steps == [4, 3]
        assert len(words) == 1 and "of step 5 was not saved. on rank 1: cannot write in" in words[0]
        assert words[0].endswith("The newest one is that of step 4")
    assert [f.step for f in available(tmp_path)] == [7, 4] and not list(tmp_path.glob("*.writing"))


def test_a_rank_that_never_writes_its_part(tmp_path):
    def train(group):
        checkpoints = Checkpointer(tmp_path, group, nn.Linear(3, 3), patience=0.3)
        with Gate() as gate:
            if group.rank == 0:
                gate.open.set()
            checkpoints.save(1, wait=False)
            if group.rank == 0:
                checkpoints._behind.join()
            group.barrier()
        try:
            checkpoints.finish()
        except NotSaved as why:
            return str(why)

    first, second = launch(train, 2, transport="local").results
    assert first == second and "on rank 0: rank 1 had not written its part of the checkpoint after 0.3 s" in first
    assert available(tmp_path) == []


def test_an_exception_in_training_does_not_wait_for_others(tmp_path):
    def train(group):
        with Checkpointer(tmp_path, group, nn.Linear(3, 3), patience=NEVER) as checkpoints:
            checkpoints.save(1)
            checkpoints.save(2, wait=False)
            if group.rank == 1:
                raise RuntimeError("unwell")
            group.barrier()

    run = launch(train, 2, transport="local", timeout=NEVER, on_failure="return")
    assert "unwell" in run.failures[0].message
    assert available(tmp_path)[0].step in (1, 2)


def test_retention_keeps_the_newest_the_marked_and_never_only_a_damaged_one(tmp_path):
    def train(group):
        model = nn.Linear(3, 3)
        with Checkpointer(tmp_path, group, model, keep=2, keep_every=4) as checkpoints:
            for step in range(1, 10):
                checkpoints.save(step)
        steps = [f.step for f in available(tmp_path)]
        group.barrier()
        if group.rank == 0:
            for found in available(tmp_path)[:2]:
                os.truncate(found.path / "rank-0000.data", 3)
        group.barrier()
        with Checkpointer(tmp_path, group, model, keep=2) as checkpoints:
            loaded = checkpoints.load()
            checkpoints.save(loaded.step + 1)
        return steps, loaded.step, [f.step for f in available(tmp_path)]

    for steps, loaded, after in launch(train, 2, transport="local").results:
        assert steps == [9, 8, 4] and loaded == 4
        assert after == [5, 9, 8, 4]  # the good ones are kept; the damaged ones go with the next old one


def test_a_feed_goes_on_in_any_world_and_each_example_comes_once():
    for sizes in ([2, 3, 1], [4, 2, 2], [1, 4, 3]):
        state, seen = None, []
        for size in sizes:
            feeds = [Feed(101, (r, size), batch=5, seed=2, last="exact") for r in range(size)]
            for feed in feeds:
                if state:
                    feed.load_state_dict(state)
            while feeds[0].epoch == 0 and (size == sizes[-1] or len(seen) < 30 * (sizes.index(size) + 1)):
                before = feeds[0].epoch
                taken = [x for feed in feeds for x in next(feed).tolist()]
                if feeds[0].epoch == before:
                    seen += taken
            state = feeds[0].state_dict()
            assert all(feed.state_dict() == state for feed in feeds)
        assert sorted(seen) == list(range(101))
