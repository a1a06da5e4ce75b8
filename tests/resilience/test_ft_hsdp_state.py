"""The state of a rank: what is in it, that it goes to host memory and back to the bit, and what it refuses."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from labkit.resilience.ft_hsdp.digest import WIDTH, digest, fold
from labkit.resilience.ft_hsdp.offload import Offload
from labkit.resilience.ft_hsdp.persistence import snapshot_of
from labkit.resilience.ft_hsdp.server import StateServer
from labkit.resilience.ft_hsdp.staging import Stager
from labkit.resilience.ft_hsdp.state import TrainingState
from labkit.wire.errors import RefusedError

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "rprop": lambda p: torch.optim.Rprop(p),
}


class Net(nn.Module):
    def __init__(self, width=5, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.a = nn.Linear(3, width)
        self.norm = nn.BatchNorm1d(width)  # has buffers, one of them an integer without dimensions
        self.b = nn.Linear(width, 2).to(torch.float64)

    def forward(self, x):
        return self.b(self.norm(self.a(x)).double())


def made(optimizer, steps=3, seed=0, **options):
    model = Net(seed=seed, **options)
    state = TrainingState(model, OPTIMIZERS[optimizer](model.parameters()), 2)
    train(state, steps)
    return state


def train(state, steps):
    for n in range(steps):
        state.optimizer.zero_grad()
        state.model(torch.arange(12.0).reshape(4, 3).sin() + n).square().sum().backward()
        state.optimizer.step()
        state.step += 1
        state.positions[n % 2] += 4
    state.sum_up()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("before", [0, 2])
def test_a_state_becomes_another_to_the_bit_and_trains_on_as_it_would(optimizer, before):
    source, other = made(optimizer), made(optimizer, steps=before, seed=1)
    assert source.sum_up() != other.sum_up()
    other.load(snapshot_of(source))
    assert (other.checksum, other.step, other.positions) == (source.checksum, 3, [8, 4])
    for state in (source, other):
        train(state, 2)
    assert other.checksum == source.checksum


def test_a_fresh_state_empties_the_optimizer_of_who_takes_it_over():
    fresh, used = made("adamw", steps=0), made("adamw", steps=2)
    used.load(snapshot_of(fresh))
    assert used.checksum == fresh.checksum
    train(used, 1), train(fresh, 1)
    assert used.checksum == fresh.checksum


def test_a_copy_does_not_change_with_the_state():
    state = made("adamw")
    copy = snapshot_of(state)
    before = copy.raw.clone()
    train(state, 1)
    assert torch.equal(copy.raw, before)


@pytest.mark.parametrize("what", ["parameter", "buffer", "optimizer", "number", "step", "position"])
def test_the_checksum_is_of_everything(what):
    state = made("adamw")
    before = state.checksum
    with torch.no_grad():
        if what == "parameter":
            state.parameters[-1].view(-1)[0] += 1e-16
            state.parameters[0].view(-1)[0] = -state.parameters[0].view(-1)[0]
        elif what == "buffer":
            state.model.norm.num_batches_tracked += 1
        elif what == "optimizer":
            state.optimizer.state[state.parameters[1]]["exp_avg_sq"][0] *= 2
        elif what == "number":
            state.optimizer.state[state.parameters[1]]["step"] += 1
        elif what == "step":
            state.step += 1
        else:
            state.positions[1] += 1
    assert state.sum_up() != before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8])
def test_a_digest_sees_one_bit_of_a_large_tensor(dtype):
    x = torch.arange(3 * (1 << 18) + 5).to(dtype)
    assert x.nbytes > 16 * WIDTH and len(fold(x)) == 2
    raw, before, seen = x.view(torch.uint8), digest("", [x]), set()
    for at in (0, 12_345, len(raw) // 2, len(raw) - 1):
        raw[at] ^= 64
        seen.add(digest("", [x]))
        raw[at] ^= 64
    assert len(seen | {before}) == 5 and digest("", [x]) == before
    assert digest("", [x.view(-1, 1)]) != before and digest("a", [x]) != before
    y = torch.cat([x, x])[1:]  # a view that may not be readable as 64-bit integers
    assert len(digest("", [y])) == 16


def test_a_state_without_a_sum_says_where_it_comes_from():
    a, b = made("adamw"), made("adamw")
    a.follow("5 [0, 1]"), b.follow("5 [0, 1]")
    assert a.checksum == b.checksum != made("adamw").checksum
    other = made("adamw", steps=1)
    other.load(snapshot_of(a))
    assert other.checksum == a.checksum and other.sum_up() == made("adamw").checksum
    b.follow("6 [0, 1]"), a.follow("6 [0]")
    assert a.checksum != b.checksum


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h: h.update(format="labkit ft state 0"), "its format is"),
        (lambda h: h.update(positions=[1, 2, 3]), "a run with 3 replicas"),
        (lambda h: h["entries"][0].update(shape=[3, 5]), "parameter 'a.weight'"),
        (lambda h: h["entries"][1].update(dtype="float64"), "parameter 'a.bias'"),
        (lambda h: h["entries"].append(dict(h["entries"][0], place=["buffer", "more"])), "more"),
    ],
)  # fmt: skip
def test_a_state_of_another_model_is_refused_and_nothing_is_touched(change, words):
    source, other = made("adamw"), made("adamw", seed=1)
    found, before = snapshot_of(source), other.checksum
    change(found.header)
    with pytest.raises(RefusedError, match=words):
        other.load(found)
    assert other.sum_up() == before


def test_a_state_that_was_changed_on_its_way_is_found():
    source, other = made("adamw"), made("adamw", seed=1)
    found = snapshot_of(source)
    found.raw[3] ^= 16
    with pytest.raises(RefusedError, match="was changed on its way"):
        other.load(found)


def test_an_optimizer_of_other_parameters_is_refused():
    with pytest.raises(RefusedError, match="parameters that the model has not"):
        TrainingState(Net(), torch.optim.SGD(Net().parameters(), lr=1.0), 2)


@pytest.mark.parametrize("nbytes", [0, 1 << 40])  # in a thread, and at once
def test_a_staged_state_is_that_of_the_moment(nbytes, monkeypatch):
    monkeypatch.setattr("labkit.resilience.ft_hsdp.staging.AT_ONCE", nbytes)
    state = made("adamw")
    state.lineage = 4
    copy = state.copy_into
    monkeypatch.setattr(state, "copy_into", lambda snapshot: (time.sleep(0.1), copy(snapshot)))
    server = StateServer("t")
    try:
        stager = Stager(state, server, torch.device("cpu"))
        stager.stage()
        stager.settle()  # as a commit does
        expected = state.checksum
        train(state, 1)
        found = server.find((3, 4))
        other = made("adamw", seed=1)
        other.load(found)
        assert (other.checksum, stager.staged) == (expected, 1)
        stager.drop()
        assert server.find((3, 4)) == 410
    finally:
        server.close()


def test_what_goes_wrong_in_the_background_is_told(monkeypatch):
    monkeypatch.setattr("labkit.resilience.ft_hsdp.staging.AT_ONCE", 0)
    state, server = made("sgd"), StateServer("t")
    monkeypatch.setattr(server, "offer", lambda snapshot: 1 / 0)
    stager = Stager(state, server, torch.device("cpu"))
    stager.stage()
    with pytest.raises(ZeroDivisionError):
        stager.settle()
    stager.settle()  # once
    server.close()


def test_offloading_copies_the_state_and_counts_it():
    state, plain = made("adamw"), made("adamw")
    offload = Offload(state.optimizer, on=True)
    large = sum(x.nbytes for found in state.optimizer.state.values() for x in found.values() if x.dim())
    where = {x.data_ptr() for found in state.optimizer.state.values() for x in found.values() if x.dim()}
    offload.to_host()
    away = {x.data_ptr() for found in state.optimizer.state.values() for x in found.values() if x.dim()}
    assert not where & away and state.sum_up() == plain.checksum
    offload.to_device()
    train(state, 1), train(plain, 1)
    assert state.checksum == plain.checksum
    assert offload.copied == {"to_host": large, "to_device": large}
    off = Offload(state.optimizer, on=False)
    off.to_host()
    assert off.copied == {"to_host": 0, "to_device": 0}
