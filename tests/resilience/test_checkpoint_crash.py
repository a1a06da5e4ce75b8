"""A crash at every call that writes, in every way we could think of: the last good checkpoint loads, bit for bit."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
from pathlib import Path

import pytest
import torch
from slices import few
from torch import nn

from labkit import launch
from labkit.resilience.checkpoint import Checkpointer, NotSaved, available, check, read

pytestmark = pytest.mark.ranks

CALLS = ("mkdir", "open", "write", "fsync", "rename", "unlink", "rmdir")


class Shim:
    """Stands between this process and the system: counts calls that write, and acts at call number `at` (from 0).

    way: "kill" before the call; "half" of the data, then kill; an errno: that error, at this call and at all later ones
    of the same kind (all kinds for a disk that can only be read). None: note down what is done.
    """

    def __init__(self, at=-1, way=None):
        self.at, self.way, self.count, self.log, self.names = at, way, 0, [], {}
        self.real = {name: getattr(os, name) for name in CALLS}
        self.failing = set()

    def __enter__(self):
        for name in CALLS:
            setattr(os, name, lambda *a, name=name, **k: self.call(name, *a, **k))
        return self

    def __exit__(self, *_):
        for name, real in self.real.items():
            setattr(os, name, real)

    def call(self, name, *args, **kwargs):
        if name == "open" and not args[1] & os.O_CREAT:
            return self.done(name, self.real[name](*args, **kwargs), *args)
        number, self.count = self.count, self.count + 1
        if number == self.at:
            if self.way == "half" and name == "write":
                self.real[name](args[0], args[1][: len(args[1]) // 2])
            if self.way in ("half", "kill"):
                os.kill(os.getpid(), signal.SIGKILL)
            self.failing = set(CALLS) if self.way == errno.EROFS else {name}
            if self.way == errno.ENOSPC:
                self.failing = {"write", "mkdir"} if name in ("write", "mkdir") else {name}
        if isinstance(self.way, int) and name in self.failing:
            raise OSError(self.way, os.strerror(self.way), str(args[0]))
        return self.done(name, self.real[name](*args, **kwargs), *args)

    def done(self, name, result, *args):
        if self.way is None:
            if name == "open":
                self.names[result] = str(args[0])
                self.log.append((name, str(args[0])) if args[1] & os.O_CREAT else ("look", str(args[0])))
            elif name in ("write", "fsync"):
                self.log.append((name, self.names[args[0]], bytes(args[1]) if name == "write" else b""))
            else:
                self.log.append((name, *map(str, args[:2])))
        return result


def model_at(step):
    """Weights that anybody can check."""
    torch.manual_seed(step)
    return nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 80_000, bias=False))  # one small write, one large one


def is_step(model, step):
    return all(torch.equal(a, b) for a, b in zip(model.parameters(), model_at(step).parameters(), strict=True))


def loads(group, directory):
    """The step that loads in a new Checkpointer, after a look at every bit; and whether one more can be written."""
    model = model_at(0)
    with Checkpointer(directory, group, model, random=False) as checkpoints:
        loaded = checkpoints.load()
        step = loaded.step if loaded else 0
        assert is_step(model, step) and not (loaded and loaded.skipped)
        checkpoints.save(9)
    assert not any(sum(check(directory).values(), []))
    left = [
        p.name
        for p in Path(directory).iterdir()
        if p.name != "lock" and p not in [f.path for f in available(directory)]
    ]
    assert left == []
    return step


@pytest.mark.parametrize("way", few(["half", "kill"]))
def test_killed_at_every_call(way, tmp_path):
    def every_call(group):
        steps = []
        for at in range(1000):
            directory = tmp_path / str(at)
            with Checkpointer(directory, group, model_at(1), random=False, keep=1) as checkpoints:
                checkpoints.save(1)
            pid = os.fork()
            if pid == 0:
                try:
                    with (
                        Shim(at, way),
                        Checkpointer(directory, group, model_at(2), random=False, keep=1) as checkpoints,
                    ):
                        checkpoints.save(2)
                finally:
                    os._exit(0)
            survived = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            steps.append(loads(group, directory))
            shutil.rmtree(directory)
            if survived:
                return steps

    (steps,) = launch(every_call, 1, transport="local", timeout=100).results
    first = steps.index(2)
    assert steps == [1] * first + [2] * (len(steps) - first)  # never nothing, never anything between
    assert 10 < first < len(steps) - 3  # and some calls come after it counts: what is old is removed


@pytest.mark.parametrize("victim", few([1, 0]))
def test_a_rank_of_two_killed_at_every_call(victim, tmp_path):
    def save_both(group, directory, at):
        with Checkpointer(directory, group, model_at(1), random=False) as checkpoints:
            checkpoints.save(1)
        with Checkpointer(directory, group, model_at(2), random=False) as checkpoints:
            with Shim(at if group.rank == victim else -1, "kill") as shim:
                checkpoints.save(2, wait=at % 2 == 0)
                checkpoints.finish()
            return shim.count

    counts = launch(save_both, 2, tmp_path / "all", -2, transport="local").results
    assert min(counts) >= 4
    seen = []
    for at in range(counts[victim]):
        directory = tmp_path / str(at)
        run = launch(save_both, 2, directory, at, transport="local", timeout=20, on_failure="return")
        assert [f.rank for f in run.failures if f.kind == "died"] == [victim]
        seen.append(available(directory)[0].step)
        found = read(directory)
        model = model_at(0)
        model.load_state_dict(found)
        assert is_step(model, seen[-1])
    assert seen == sorted(seen) and seen[0] == 1
    assert launch(loads, 2, tmp_path / "0", transport="local").results == [1, 1]


@pytest.mark.parametrize("why", few([errno.ENOSPC, errno.EROFS, errno.EIO]), ids=errno.errorcode.get)
def test_an_error_at_every_call(why, tmp_path):
    def every_call(group):
        refusals = []
        for at in range(1000):
            directory = tmp_path / str(at)
            model = model_at(1)
            checkpoints = Checkpointer(directory, group, model, random=False, keep=1)
            checkpoints.save(1)
            model.load_state_dict(model_at(2).state_dict())
            saved = None
            with Shim(at if group.rank == group.size - 1 else -1, why) as shim:
                try:
                    saved = checkpoints.save(2, wait=at % 2 == 0)
                    checkpoints.finish()
                except NotSaved as refusal:
                    refusals.append(str(refusal))
                    saved = None
            assert is_step(model, 2)
            checkpoints.close()
            step = loads(group, directory)
            assert step == 2 if saved else step in (1, 2)
            group.barrier()
            over = torch.tensor([shim.count <= at])
            if group.rank == group.size - 1:
                shutil.rmtree(directory)
            from labkit import collectives

            if collectives.broadcast(over, group, group.size - 1).item():
                return refusals

    for size in (1, 2):
        refusals = launch(every_call, size, transport="local", timeout=100).results
        assert all(r == refusals[0] for r in refusals) and len(refusals[0]) >= 4  # the same words on every rank
        assert all(f"on rank {size - 1}: cannot write in" in r and os.strerror(why) in r for r in refusals[0])
        assert all("The newest one is that of step" in r for r in refusals[0] if "mkdir" not in r) or size == 1


class Node:
    """A file or a directory: what it is now, and what of it is on the disk. now, kept: bytes, or names -> nodes."""

    def __init__(self, empty):
        self.now, self.kept = empty, type(empty)()


class Disk:
    """A disk that keeps only what it has to: on a power cut the rest is lost, or has happened in the worst order."""

    def __init__(self, root):
        self.root, self.top = root, Node({})

    def find(self, path):
        node = self.top
        for name in Path(path).relative_to(self.root).parts:
            node = node.now[name]
        return node

    def do(self, name, path, *rest):
        if name == "fsync":
            node = self.find(path)
            node.kept = dict(node.now) if isinstance(node.now, dict) else node.now
            return
        if name == "write":
            self.find(path).now += rest[0]
            return
        names, last = self.find(os.path.dirname(path)).now, os.path.basename(path)
        if name == "mkdir":
            names[last] = Node({})
        elif name == "open":
            names.setdefault(last, Node(b""))
        elif name in ("unlink", "rmdir"):
            del names[last]
        elif name == "rename":
            self.find(os.path.dirname(rest[0])).now[os.path.basename(rest[0])] = names.pop(last)

    def write(self, into, lost, node=None):
        """As it is after the cut. lost: names that were not on the disk; else all names are there, and data is not."""
        node = node or self.top
        for name, inside in (node.kept if lost else node.now).items():
            if isinstance(inside.now, dict):
                (into / name).mkdir()
                self.write(into / name, lost, inside)
            else:
                (into / name).write_bytes(inside.kept + bytes(0 if lost else len(inside.now) - len(inside.kept)))


@pytest.mark.parametrize("lost", [True, False], ids=["names lost", "data lost"])
def test_the_power_is_cut_after_every_call(lost, tmp_path):
    def noted(group):
        with Shim() as shim, Checkpointer(tmp_path / "run", group, model_at(1), random=False, keep=1) as checkpoints:
            checkpoints.save(1)
            first = len(shim.log)
            checkpoints.training.model.load_state_dict(model_at(2).state_dict())
            checkpoints.save(2)
        return first, shim.log

    ((first, log),) = launch(noted, 1, transport="local").results
    disk, seen = Disk(tmp_path), []
    for number, entry in enumerate(log, 1):
        if entry[0] != "look":
            disk.do(*entry)
        if number < first:
            continue
        into = tmp_path / f"cut-{number}"
        into.mkdir()
        disk.write(into, lost)
        model = model_at(0)
        model.load_state_dict(read(into / "run"))
        newest = available(into / "run")[0].step
        assert is_step(model, newest)
        seen.append(newest)
        shutil.rmtree(into)
    assert seen == sorted(seen) and seen[0] == 1 and seen[-1] == 2


def flip(path, offset, bit):
    with open(path, "r+b") as f:
        f.seek(offset)
        byte = f.read(1)[0]
        f.seek(offset)
        f.write(bytes([byte ^ 1 << bit]))


def test_whatever_is_damaged_is_found_and_named_and_the_one_before_loads(tmp_path):
    def save_both(group):
        model = model_at(1)
        with Checkpointer(tmp_path / "run", group, model, random=False) as checkpoints:
            checkpoints.save(1)
            model.load_state_dict(model_at(2).state_dict())
            checkpoints.save(2)

    def load_each(group, directories):
        found = []
        for directory in directories:
            model = model_at(0)
            loaded = Checkpointer(directory, group, model, random=False).load()
            assert is_step(model, loaded.step)
            found.append((loaded.step, loaded.skipped))
        return found

    launch(save_both, 2, transport="local")
    newest = available(tmp_path / "run")[0].path
    names = sorted(p.name for p in newest.iterdir())
    assert names == ["manifest.json", "rank-0000.data", "rank-0001.data"]
    dice, cases = random.Random(4), []
    for number in range(36):
        directory = tmp_path / str(number)
        shutil.copytree(tmp_path / "run", directory)
        file = directory / newest.name / names[number % 3]
        size = file.stat().st_size
        if number < 24:
            flip(file, dice.randrange(size) if number % 3 else dice.randrange(20, size), dice.randrange(8))
        elif number < 30:
            os.truncate(file, dice.randrange(size))
        elif number < 33:
            file.unlink()
        else:
            file.write_bytes(b"")
        cases.append((directory, file))
    results = launch(load_each, 2, [d for d, _ in cases], transport="local", timeout=60).results
    assert results[0] == results[1]
    for (directory, file), (step, skipped) in zip(cases, results[0], strict=True):
        if step == 2:  # between two pieces: nothing is there that anybody reads
            assert skipped == [] and not any(check(directory).values())
            continue
        assert step == 1 and len(skipped) == 1 and file.name in skipped[0] and newest.name in skipped[0]
        if file.suffix == ".data":
            assert "'model/" in skipped[0]
        if file.suffix == ".data" and file.exists() and file.stat().st_size < (newest / file.name).stat().st_size:
            assert "was cut short: it ends" in skipped[0]
    assert sum(step == 1 for step, _ in results[0]) >= 34
