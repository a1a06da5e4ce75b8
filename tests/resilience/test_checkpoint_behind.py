"""Saving behind training: what is written is the state at that moment, and training does not wait."""

from __future__ import annotations

import os
import threading
import time

import torch
from torch import nn

from labkit import launch
from labkit.resilience.checkpoint import Checkpointer, Feed, NotSaved, available, read


class Gate:
    """Holds every write of this process back until it is opened."""

    def __init__(self):
        self.open, self.real, self.held = threading.Event(), os.write, 0

    def __enter__(self):
        def write(fd, data):
            if threading.current_thread() is not threading.main_thread():
                self.held += 1
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
                early = checkpoints.writing and not saved.whole and len(available(tmp_path)) < step
                group.barrier()
            stall = saved.stall
            done = checkpoints.finish()
            assert done is saved and saved.whole and saved.stall >= stall and saved.staging <= stall
            assert early and gate.held
        checkpoints.close()
        return moments

    moments = launch(train, 2, transport="local").results[0]
    for found in available(tmp_path):
        state = read(found.path)
        assert all(torch.equal(state[k], moments[found.step][k]) for k in state)
    assert [f.step for f in available(tmp_path)] == [2, 1]
    assert not torch.equal(moments[1]["bias"], moments[2]["bias"])


def test_the_next_save_waits_for_the_one_before_and_says_what_went_wrong(tmp_path):
    def train(group):
        model = nn.Linear(300, 300)
        checkpoints = Checkpointer(tmp_path, group, model, keep=2, patience=30)
        begun = time.monotonic()
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
        return steps, words, time.monotonic() - begun

    for steps, words, seconds in launch(train, 2, transport="local").results:
        assert steps == [4, 3] and seconds < 20  # rank 0 does not sit out its patience for a part that never comes
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
        with Checkpointer(tmp_path, group, nn.Linear(3, 3)) as checkpoints:
            checkpoints.save(1)
            checkpoints.save(2, wait=False)
            if group.rank == 1:
                raise RuntimeError("unwell")
            group.barrier()

    begun = time.monotonic()
    run = launch(train, 2, transport="local", timeout=30, on_failure="return")
    assert "unwell" in run.failures[0].message and time.monotonic() - begun < 15
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
