"""What does not fit is refused on every rank, in the same words, and nothing has changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from labkit import RefusedError, launch
from labkit.models import GPT, GPTConfig
from labkit.parallel import AdamW, FullyShard, ZeRO2
from labkit.resilience.checkpoint import (
    Checkpointer,
    Damaged,
    Feed,
    NotLoaded,
    NotSaved,
    available,
    check,
    manifest,
    read,
)

pytestmark = pytest.mark.ranks

CONFIG = GPTConfig(context=8, layers=1, width=16, heads=4, vocab=11)


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), **options)


def trained(model, optimizer):
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()


def save_gpt(group, directory):
    model = GPT(CONFIG)
    optimizer = adamw(model)
    trained(model, optimizer)
    with Checkpointer(directory, group, model, optimizer, loader=Feed(40, group, batch=2)) as checkpoints:
        checkpoints.save(3)


def snapshot(model, optimizer):
    state = [] if optimizer is None else [v for s in optimizer.state.values() for v in s.values()]
    return [x.clone() for x in (*model.parameters(), *state)]


CASES = {
    "another model": (lambda: GPT(GPTConfig(context=8, layers=2, width=16, heads=4, vocab=11)), "of another model"),
    "another number of heads": (lambda: GPT(GPTConfig(context=8, layers=1, width=16, heads=2, vocab=11)), "heads=2"),
    "another shape": (lambda: nn.ModuleDict({"tokens": nn.Embedding(12, 16)}), "[11, 16] in it, and [12, 16] here"),
    "fewer weights": (lambda: nn.ModuleDict({"tokens": nn.Embedding(11, 16)}), "which no rank has here"),
    "other names": (lambda: nn.Linear(2, 2), "it has no 'weight'"),
    "another dtype": (lambda: nn.ModuleDict({"tokens": nn.Embedding(11, 16).double()}), "build the model in float32"),
}


def test_another_model_optimizer_or_feed(tmp_path):
    launch(save_gpt, 2, tmp_path, transport="local")

    def try_all(group):
        found = {}

        def refused(name, model, optimizer, **options):
            before = snapshot(model, optimizer)
            try:
                Checkpointer(tmp_path, group, model, optimizer, **options).load()
            except NotLoaded as why:
                found[name] = str(why)
            after = snapshot(model, optimizer)
            assert len(before) == len(after) and all(torch.equal(a, b) for a, b in zip(before, after, strict=True))

        for name, (make, _) in CASES.items():
            model = make()
            refused(name, model, adamw(model))
        model = GPT(CONFIG, seed=4)
        optimizer = adamw(model)
        trained(model, optimizer)
        refused("another optimizer", model, torch.optim.SGD(model.parameters(), 0.1))
        refused("other data", model, optimizer, loader=Feed(41, group, batch=2))
        refused("a schedule", model, optimizer, scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 3))
        feed = Feed(40, group, batch=2, seed=group.rank)  # one rank alone has another order
        next(feed)
        before = feed.state_dict()
        refused("one rank's order", model, optimizer, loader=feed)
        assert feed.state_dict() == before
        if group.rank == 1:
            model.tokens.weight = nn.Parameter(torch.zeros(12, 16))
        refused("one rank's model", model, optimizer)
        try:
            Checkpointer(tmp_path, group, model, optimizer).load(7)
        except NotLoaded as why:
            found["no such step"] = str(why)
        assert Checkpointer(tmp_path / "empty", group, model).load() is None
        return found

    first, second = launch(try_all, 2, transport="local").results
    assert first == second
    for name, (_, words) in CASES.items():
        assert words in first[name] and "000001-step-3" in first[name], name
    assert "has the state of AdamW, and the optimizer here is SGD" in first["another optimizer"]
    assert "on rank 0" in first["other data"] and "count=41" in first["other data"]
    assert "saved without a scheduler" in first["a schedule"]
    assert "on rank 1" in first["one rank's order"] and "seed=1" in first["one rank's order"]
    assert "on rank 1" in first["one rank's model"] and "[12, 16] here" in first["one rank's model"]
    assert first["no such step"].endswith("there are: 3")


def test_a_mesh_that_cannot_fit(tmp_path):
    """FSDP trains a whole unit in step; a checkpoint in which its weights were trained unequally often cannot fit."""

    def unequal(group):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        optimizer = adamw(model)
        trained(model, optimizer)
        model[0].weight.grad = None
        optimizer.step()
        with Checkpointer(tmp_path, group, model, optimizer) as checkpoints:
            checkpoints.save(2)

    def load(group):
        found = []
        for units in ([], None):
            model = FullyShard(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), group, units=units)
            before = model.state_dict()
            try:
                Checkpointer(tmp_path, group, model, adamw(model)).load()
            except NotLoaded as why:
                found.append(str(why))
            assert all(torch.equal(x, before[k]) for k, x in model.state_dict().items())
        model = ZeRO2(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), group, AdamW(), "single")
        Checkpointer(tmp_path, group, model).load()  # ZeRO counts for each weight
        return found, [n for unit in model.units for n in unit.steps]

    launch(unequal, 1, transport="local")
    for found, steps in launch(load, 2, transport="local").results:
        assert len(found) == 2 and all("trained together" in why for why in found)
        assert sorted(steps) == [1, 2, 2, 2]


def test_another_version_or_another_file(tmp_path):
    launch(save_gpt, 1, tmp_path, transport="local")
    file = available(tmp_path)[0].path / "manifest.json"
    good = file.read_text()

    def load(group):
        model = GPT(CONFIG, seed=1)
        checkpoints = Checkpointer(tmp_path, group, model, adamw(model))
        try:
            checkpoints.load()
        except RefusedError as why:
            return type(why).__name__, str(why)

    file.write_text(good.replace("labkit checkpoint 1 ", "labkit checkpoint 2 ", 1))
    kind, words = launch(load, 2, transport="local").results[1]
    assert kind == "NotLoaded" and "format 2" in words and "reads format 1" in words
    file.write_text("[]")
    kind, words = launch(load, 2, transport="local").results[1]
    assert kind == "Damaged" and "no checkpoint in" in words and "another program" in words
    file.write_text(good.replace('"step": 3', '"step": 4'))
    kind, words = launch(load, 2, transport="local").results[0]
    assert kind == "Damaged" and "checksum" in words
    with pytest.raises(Damaged):
        read(tmp_path)
    assert "checksum" in check(tmp_path)["000001-step-3"][0]
    file.write_text(good)
    assert launch(load, 2, transport="local").results == [None, None]
    with pytest.raises(NotLoaded, match="nothing under 'modell/'; it has model, optimizer, random"):
        read(tmp_path, "modell/")
    with pytest.raises(NotLoaded, match="there is no checkpoint in"):
        read(tmp_path / "nowhere")


def test_parts_that_are_missing_in_the_manifest_itself(tmp_path):
    """A manifest that is whole, and tells of too little: what a faulty writer would leave."""
    launch(save_gpt, 1, tmp_path, transport="local")
    checkpoint = available(tmp_path)[0].path
    saved = manifest.parse((checkpoint / "manifest.json").read_text())
    saved.stored["model/tokens.weight"] = []
    (checkpoint / "manifest.json").write_text(saved.text())
    with pytest.raises(Damaged, match="176 of 176 elements of 'model/tokens.weight' are missing"):
        read(tmp_path)


OTHER = textwrap.dedent(
    """
    import sys, torch, labkit
    from labkit.resilience.checkpoint import Checkpointer

    def hold(group, directory):
        checkpoints = Checkpointer(directory, group, torch.nn.Linear(2, 2))
        checkpoints.save(1)
        print("here", flush=True)
        while True:
            pass

    if __name__ == "__main__":
        labkit.launch(hold, 1, sys.argv[1], transport="local")
    """
)


def test_two_writers(tmp_path):
    script = tmp_path / "other.py"
    script.write_text(OTHER)
    directory = tmp_path / "run"

    def save(group):
        model = nn.Linear(2, 2)
        checkpoints = Checkpointer(directory, group, model)
        try:
            checkpoints.save(2)
        except NotSaved as why:
            words = str(why)
        else:
            return "saved", 0
        return words, checkpoints.load().step  # who may not write may read

    other = subprocess.Popen([sys.executable, str(script), str(directory)], stdout=subprocess.PIPE, text=True)
    try:
        assert "here" in other.stdout.readline()
        before = sorted(os.listdir(directory))
        first, second = launch(save, 2, transport="local").results
        assert first == second and first[1] == 1
        assert "on rank 0: process" in first[0] and "two writers would remove each other's" in first[0]
        assert sorted(os.listdir(directory)) == before
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    words = "saved"
    for _ in range(100):  # its rank ends with it, in a moment
        words, _ = launch(save, 2, transport="local").results[0]
        if words == "saved":
            break
    assert words == "saved" and [f.step for f in available(directory)] == [2, 1]


def test_what_cannot_be_saved_and_wrong_options(tmp_path):
    class Odd:
        def state_dict(self):
            return {"x": {1, 2}}

        def load_state_dict(self, state): ...

    def try_all(group):
        model = nn.Linear(2, 2)
        found = []

        def refused(act):
            try:
                act()
            except RefusedError as why:
                found.append(f"{type(why).__name__}: {why}")

        def make(*args, directory=tmp_path, **options):
            return Checkpointer(directory, group, *args, **options)

        refused(lambda: make(model, kind="whole" if group.rank else "full"))
        refused(lambda: make(model, keep=0))
        refused(lambda: make(model, patience=-1))
        refused(lambda: make(model, "adam"))
        refused(lambda: make("gpt"))
        refused(lambda: make(model, loader=3))
        refused(lambda: make(ZeRO2(nn.Linear(2, 2), group), adamw(model)))
        refused(lambda: make(model, loader=Odd()).save(1))
        refused(lambda: make(model).save(-1))
        refused(lambda: make(model).save(group.rank))
        refused(lambda: make(nn.Linear(2, 2 + group.rank)).save(1))
        (tmp_path / "file").write_text("")
        refused(lambda: make(model, directory=tmp_path / "file").save(1))
        return found

    first, second = launch(try_all, 2, transport="local").results
    assert first == second
    words = ["on rank 1: kind='whole'", "keep=0", "patience=-1", "pass a torch.optim.Optimizer", "model is a str",
             "needs state_dict()", "optimizer inside", "on rank 0: loader['x'] is a set", "save(-1)",
             "different steps: 0, 1", "they are not parts of one tensor", "cannot write in"]  # fmt: skip
    assert len(first) == len(words)
    for text, word in zip(first, words, strict=True):
        assert word in text
    assert json.dumps([t.split(":")[0] for t in first]) == json.dumps(["RefusedError"] * 7 + ["NotSaved"] * 5)
    assert available(tmp_path) == [] and not list(tmp_path.glob("*.writing"))
